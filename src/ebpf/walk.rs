//! What an iterator of the kernel writes, as records of one size.

use std::io::{self, Read};

/// Eight times what the kernel gives in one read.
const BUFFER_BYTES: usize = 256 << 10;

/// Room for what is read; kept from walk to walk.
#[must_use]
pub fn buffer() -> Vec<u8> {
    vec![0; BUFFER_BYTES]
}

/// Hands every record up to the end to `take`; one may come in two pieces.
///
/// # Errors
/// The kernel ends the walk halfway: nothing is known of what was not handed over.
pub fn read_records(
    mut from: impl Read,
    record_bytes: usize,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut kept = 0;
    loop {
        let read = match from.read(&mut buffer[kept..]) {
            Ok(0) if kept == 0 => return Ok(()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            // The kernel breaks off after a million objects without a record, and goes on from there.
            Err(error) if again(&error) => continue,
            Err(error) => return Err(error),
        };
        let filled = kept + read;
        let whole = filled - filled % record_bytes;
        buffer[..whole].chunks_exact(record_bytes).for_each(&mut take);
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = 88;

    /// Hands out its bytes in pieces, with an interruption before each.
    struct Pieces(Vec<u8>, usize, bool);

    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.2 = !self.2;
            if self.2 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = self.1.min(self.0.len()).min(into.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn records_that_come_in_pieces_are_put_together() {
        let bytes: Vec<u8> = (0..50).flat_map(|number| [number; RECORD]).collect();
        for piece in [1, RECORD - 1, RECORD, 3 * RECORD + 7, 1 << 20] {
            let mut seen: Vec<u8> = Vec::new();
            let mut buffer = vec![0; 2 * RECORD + 5];
            let from = Pieces(bytes.clone(), piece, false);
            read_records(from, RECORD, &mut buffer, |record| seen.extend(record)).unwrap();
            assert_eq!(seen, bytes, "pieces of {piece}");
        }
    }

    #[test]
    fn half_a_record_at_the_end_is_an_error() {
        let from = Pieces(vec![1; RECORD - 1], 64, false);
        let error = read_records(from, RECORD, &mut [0; 4096], |_| ()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
