//! The write probe as both its sides know it: what `mrscope-write-probe` is asked, by its
//! arguments, and what it answers, by one JSON object. No verbs and no I/O: the answer is text
//! here, whoever wrote or read it.

mod answer;
mod flags;
mod options;

pub use answer::{Answer, AnswerError, Failure, MAX_ANSWER_BYTES, Reason, Report};
pub use options::{OptionsError, Pages, ProbeOptions};
