//! Netlink on the wire: messages in a datagram, attributes in a message, numbers in the order of
//! this machine's bytes. Pure over what was received: it borrows, allocates nothing but names, and
//! takes at least a header's bytes with every step.

use std::iter::FusedIterator;

const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// Without NLA_F_NESTED and NLA_F_NET_BYTEORDER: nldev sets neither where it nests by old habit.
const KIND_MASK: u16 = 0x3fff;

/// What was received is not what netlink sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("{what} has {met} bytes, expected {expected} or more")]
    Short { what: &'static str, met: usize, expected: usize },
    #[error("{what} says it has {met} bytes, expected {least} to {most}")]
    Length { what: &'static str, met: usize, least: usize, most: usize },
    #[error("attribute {kind} has {met} bytes, expected {expected}")]
    Size { kind: u16, met: usize, expected: usize },
    #[error("{of} has no attribute {kind} ({name})")]
    Missing { of: &'static str, kind: u16, name: &'static str },
}

/// One message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

/// The messages of a datagram. Ends at its first mistake.
#[must_use]
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let header = match header::<MESSAGE_HEADER>(&mut self.rest, "the header of a message")? {
            Ok(header) => header,
            Err(error) => return Some(Err(error)),
        };
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = body(&mut self.rest, "a message", length, MESSAGE_HEADER);
        Some(payload.map(|payload| Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        }))
    }
}

impl FusedIterator for Messages<'_> {}

/// One attribute: its kind without flags, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
}

/// The attributes of a message, or of an attribute that nests. Ends at its first mistake.
#[must_use]
pub fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let what = "the header of an attribute";
        let [l0, l1, k0, k1] = match header::<ATTRIBUTE_HEADER>(&mut self.rest, what)? {
            Ok(header) => *header,
            Err(error) => return Some(Err(error)),
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]) & KIND_MASK;
        let payload = body(&mut self.rest, "an attribute", length, ATTRIBUTE_HEADER);
        Some(payload.map(|payload| Attribute { kind, payload }))
    }
}

impl FusedIterator for Attributes<'_> {}

/// The next header, still in `rest`. After a mistake nothing is left.
fn header<'a, const SIZE: usize>(
    rest: &mut &'a [u8],
    what: &'static str,
) -> Option<Result<&'a [u8; SIZE], WireError>> {
    if rest.is_empty() {
        return None;
    }
    Some(rest.first_chunk().ok_or_else(|| {
        let met = std::mem::take(rest).len();
        WireError::Short { what, met, expected: SIZE }
    }))
}

/// What lies behind a header; `rest` goes on behind it and its padding.
fn body<'a>(
    rest: &mut &'a [u8],
    what: &'static str,
    length: usize,
    header: usize,
) -> Result<&'a [u8], WireError> {
    let all = std::mem::take(rest);
    let wrong = WireError::Length { what, met: length, least: header, most: all.len() };
    let payload = all.get(header..length).ok_or(wrong)?;
    // The last one need not be padded.
    *rest = all.get(length.next_multiple_of(4)..).unwrap_or_default();
    Ok(payload)
}

impl<'a> Attribute<'a> {
    fn exactly<const SIZE: usize>(&self) -> Result<[u8; SIZE], WireError> {
        self.payload.try_into().map_err(|_| WireError::Size {
            kind: self.kind,
            met: self.payload.len(),
            expected: SIZE,
        })
    }

    /// # Errors
    /// It has another size.
    pub fn u8(&self) -> Result<u8, WireError> {
        self.exactly().map(|[byte]| byte)
    }

    /// # Errors
    /// It has another size.
    pub fn u32(&self) -> Result<u32, WireError> {
        self.exactly().map(u32::from_ne_bytes)
    }

    /// # Errors
    /// It has another size.
    pub fn u64(&self) -> Result<u64, WireError> {
        self.exactly().map(u64::from_ne_bytes)
    }

    /// Up to its NUL, if it has one; whatever is no UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        let end = self.payload.iter().position(|byte| *byte == 0).unwrap_or(self.payload.len());
        String::from_utf8_lossy(&self.payload[..end]).into_owned()
    }

    /// What is nested in it.
    #[must_use]
    pub fn nested(&self) -> Attributes<'a> {
        attributes(self.payload)
    }
}

/// A request with attributes of 32 bits.
#[must_use]
pub fn request(kind: u16, flags: u16, sequence: u32, numbers: &[(u16, u32)]) -> Vec<u8> {
    const NUMBER: usize = ATTRIBUTE_HEADER + 4;
    let length = MESSAGE_HEADER + NUMBER * numbers.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The kernel fills in from whom.
    bytes.extend(0_u32.to_ne_bytes());
    for (kind, value) in numbers {
        bytes.extend((NUMBER as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((payload.len() + ATTRIBUTE_HEADER) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn what_is_asked_is_read_back() {
        let bytes = request(0x1401, 0x301, 7, &[(1, 5), (62, u32::MAX)]);
        let all: Vec<_> = messages(&bytes).collect();
        let [Ok(message)] = all[..] else { panic!("{all:?}") };
        assert_eq!((message.kind, message.flags, message.sequence), (0x1401, 0x301, 7));
        let numbers: Vec<_> = attributes(message.payload)
            .map(|it| it.and_then(|it| Ok((it.kind, it.u32()?))).unwrap())
            .collect();
        assert_eq!(numbers, [(1, 5), (62, u32::MAX)]);
    }

    #[test]
    fn flags_of_an_attribute_are_no_part_of_its_kind() {
        let bytes = attribute(0xc028, &attribute(41, b"abc"));
        let table = attributes(&bytes).next().unwrap().unwrap();
        assert_eq!(table.kind, 0x28);
        let inner = table.nested().next().unwrap().unwrap();
        assert_eq!((inner.kind, inner.text().as_str()), (41, "abc"));
        assert!(attributes(&bytes).nth(1).is_none());
    }

    #[test]
    fn a_text_ends_at_its_nul_and_may_be_any_bytes() {
        let text = |payload| Attribute { kind: 2, payload }.text();
        assert_eq!(text(b"rxe0\0junk"), "rxe0");
        assert_eq!(text(b"rxe0"), "rxe0");
        assert_eq!((text(b"\xff"), text(b"")), ("\u{fffd}".into(), String::new()));
    }

    #[test]
    fn a_number_has_its_own_size() {
        let of = |payload: &'static [u8]| Attribute { kind: 45, payload };
        assert_eq!(of(&[1]).u8(), Ok(1));
        assert_eq!(of(&[1; 8]).u64(), Ok(0x0101_0101_0101_0101));
        let error = of(&[0; 4]).u64().unwrap_err();
        assert_eq!(error.to_string(), "attribute 45 has 4 bytes, expected 8");
    }

    #[test]
    fn a_length_below_the_header_or_beyond_the_end_is_told_and_ends_it() {
        for length in [0_u16, 3, 13, u16::MAX] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.resize(12, 1);
            let all: Vec<_> = attributes(&bytes).collect();
            let met = usize::from(length);
            let wrong = WireError::Length { what: "an attribute", met, least: 4, most: 12 };
            assert_eq!(all, [Err(wrong)]);
        }
        let mut bytes = request(1, 0, 1, &[]);
        bytes[0] = 15;
        let error = messages(&bytes).next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "a message says it has 15 bytes, expected 16 to 16");
    }

    #[test]
    fn half_a_header_is_told() {
        let bytes = request(1, 0, 1, &[(1, 1)]);
        let error = messages(&bytes[..15]).next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the header of a message has 15 bytes, expected 16 or more");
        let mut all = attributes(&bytes[16..19]);
        assert!(all.next().unwrap().is_err() && all.next().is_none());
        assert!(messages(&[]).next().is_none() && attributes(&[]).next().is_none());
    }

    #[test]
    fn the_last_attribute_needs_no_padding() {
        let mut bytes = attribute(1, b"a");
        bytes.truncate(5);
        let all: Vec<_> = attributes(&bytes).collect();
        assert_eq!(all, [Ok(Attribute { kind: 1, payload: b"a" })]);
    }
}
