//! How the datagrams of one answer become its messages, and what may be said in between. Pure over
//! their bytes.

use super::wire::{Message, WireError, messages};
use super::{NldevError, Question};

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
const NLM_F_MULTI: u16 = 0x2;
const NLM_F_DUMP_INTR: u16 = 0x10;

/// What a datagram came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    More,
    /// That was all of it.
    Whole,
    /// That was all, and not what was there at any one time, or some of it was lost.
    Torn,
}

/// An answer while it comes.
#[derive(Debug)]
pub struct Answer {
    question: Question,
    sequence: u32,
    torn: bool,
}

impl Answer {
    #[must_use]
    pub fn to(question: Question, sequence: u32) -> Self {
        Self { question, sequence, torn: false }
    }

    /// Hands each message of the answer to `each`.
    ///
    /// # Errors
    /// The kernel refused, or what it sent can't be read.
    pub fn take(
        &mut self,
        datagram: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), WireError>,
    ) -> Result<Step, NldevError> {
        for message in messages(datagram) {
            let message = message?;
            if message.sequence != self.sequence {
                continue;
            }
            self.torn |= message.flags & NLM_F_DUMP_INTR != 0 || message.kind == NLMSG_OVERRUN;
            match message.kind {
                NLMSG_ERROR => self.refused(&message)?,
                NLMSG_DONE => {
                    // A dump of a kernel that has no more to say may end without a number.
                    if !message.payload.is_empty() {
                        self.refused(&message)?;
                    }
                    return Ok(self.end());
                }
                NLMSG_NOOP | NLMSG_OVERRUN => {}
                kind if kind == self.question.command.kind() => {
                    each(message.payload)?;
                    if message.flags & NLM_F_MULTI == 0 {
                        return Ok(self.end());
                    }
                }
                kind => return Err(NldevError::Strange { kind, question: self.question }),
            }
        }
        Ok(Step::More)
    }

    fn end(&self) -> Step {
        if self.torn { Step::Torn } else { Step::Whole }
    }

    /// An error of 0 is an acknowledgement.
    fn refused(&self, message: &Message<'_>) -> Result<(), NldevError> {
        let Some(error) = message.payload.first_chunk() else {
            let met = message.payload.len();
            return Err(WireError::Short { what: "an error", met, expected: 4 }.into());
        };
        match i32::from_ne_bytes(*error) {
            0 => Ok(()),
            error => {
                Err(NldevError::Refused { question: self.question, errno: error.unsigned_abs() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Command;
    use super::*;

    const ASKED: Question =
        Question { command: Command::MemoryRegions, device: Some(3), mrn: None };

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn part(flags: u16, payload: &[u8]) -> Vec<u8> {
        message(ASKED.command.kind(), NLM_F_MULTI | flags, 9, payload)
    }

    fn done(error: i32) -> Vec<u8> {
        message(NLMSG_DONE, NLM_F_MULTI, 9, &error.to_ne_bytes())
    }

    /// What comes of datagrams: the payloads, and how it ended.
    fn read(datagrams: &[Vec<u8>]) -> (Vec<u8>, Result<Step, String>) {
        let mut answer = Answer::to(ASKED, 9);
        let mut seen = Vec::new();
        let mut step = Ok(Step::More);
        for datagram in datagrams {
            step = answer
                .take(datagram, |payload| {
                    seen.extend(payload);
                    Ok(())
                })
                .map_err(|error| error.to_string());
        }
        (seen, step)
    }

    #[test]
    fn parts_of_several_datagrams_end_with_done() {
        let first = [part(0, b"1111"), part(0, b"2222")].concat();
        let (seen, step) = read(&[first.clone(), part(0, b"3333")]);
        assert_eq!((seen.as_slice(), step), (&b"111122223333"[..], Ok(Step::More)));
        let (seen, step) = read(&[first, part(0, b"3333"), done(0)]);
        assert_eq!((seen.as_slice(), step), (&b"111122223333"[..], Ok(Step::Whole)));
    }

    #[test]
    fn done_may_share_a_datagram_and_have_no_number() {
        let end = message(NLMSG_DONE, NLM_F_MULTI, 9, b"");
        let (seen, step) = read(&[[part(0, b"1111"), end].concat()]);
        assert_eq!((seen.as_slice(), step), (&b"1111"[..], Ok(Step::Whole)));
    }

    #[test]
    fn a_single_answer_needs_no_done() {
        let (seen, step) = read(&[message(ASKED.command.kind(), 0, 9, b"1111")]);
        assert_eq!((seen.as_slice(), step), (&b"1111"[..], Ok(Step::Whole)));
    }

    #[test]
    fn a_dump_whose_table_changed_meanwhile_is_torn_wherever_it_is_said() {
        let torn = [part(NLM_F_DUMP_INTR, b"1111"), part(0, b"2222")].concat();
        let (seen, step) = read(&[torn, done(0)]);
        assert_eq!((seen.as_slice(), step), (&b"11112222"[..], Ok(Step::Torn)));
        let end = message(NLMSG_DONE, NLM_F_MULTI | NLM_F_DUMP_INTR, 9, &[0; 4]);
        assert_eq!(read(&[part(0, b"1111"), end]).1, Ok(Step::Torn));
        let lost = message(NLMSG_OVERRUN, 0, 9, b"");
        assert_eq!(read(&[lost, done(0)]).1, Ok(Step::Torn));
    }

    #[test]
    fn an_error_is_told_from_an_acknowledgement() {
        let error = |number: i32| message(NLMSG_ERROR, 0, 9, &number.to_ne_bytes());
        let refused = Err("the kernel refuses to list MRs of device 3: EINVAL".to_owned());
        assert_eq!(read(&[error(-22)]).1, refused);
        assert_eq!(read(&[done(-22)]).1, refused);
        assert_eq!(read(&[error(0)]).1, Ok(Step::More));
        assert_eq!(read(&[error(0), done(0)]).1, Ok(Step::Whole));
        let short = message(NLMSG_ERROR, 0, 9, b"22");
        assert!(read(&[short]).1.unwrap_err().contains("an error has 2 bytes, expected 4"));
        assert!(read(&[error(i32::MIN)]).1.unwrap_err().ends_with("2147483648"));
    }

    #[test]
    fn an_answer_to_another_question_is_passed_over() {
        let other = message(ASKED.command.kind(), 0, 8, b"1111");
        assert_eq!(read(&[other]), (Vec::new(), Ok(Step::More)));
        let noop = message(NLMSG_NOOP, 0, 9, b"");
        assert_eq!(read(&[noop]), (Vec::new(), Ok(Step::More)));
    }

    #[test]
    fn a_message_that_was_not_asked_for_is_told() {
        let strange = message(0x1401, NLM_F_MULTI, 9, b"1111");
        assert!(read(&[strange]).1.unwrap_err().contains("5121"));
    }

    #[test]
    fn a_mistake_within_is_an_error_after_what_came_before_it() {
        let mut cut = [part(0, b"1111"), part(0, b"2222")].concat();
        cut.truncate(cut.len() - 2);
        let (seen, step) = read(&[cut]);
        assert_eq!(seen, b"1111");
        assert!(step.unwrap_err().contains("a message says it has 20 bytes"));
    }
}
