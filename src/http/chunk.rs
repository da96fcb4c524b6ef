//! Chunks: the coding of a body whose length is not known when it starts.
//!
//! The decoder is a cursor over states and keeps no byte of the body. Invariant: `Done` is reached only behind the empty
//! line that ends the trailer, so what follows belongs to the next request.
//! Source: RFC 9112, 7.1 "Chunked Transfer Coding". Read first: `a_chunked_body_split_anywhere_decodes_alike`.

use crate::limits;

/// What follows the bytes of each chunk.
pub const CHUNK_TAIL: &[u8] = b"\r\n";
/// What ends the body: the empty chunk and the empty trailer.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Hexadecimal digits of `size`.
pub fn digits(size: usize) -> usize {
    (usize::BITS - size.leading_zeros()).div_ceil(4).max(1) as usize
}

/// Why bytes are no chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A size line that is no hexadecimal number of at most 64 bits.
    #[error("a chunk of the body has no readable size")]
    Size,
    /// A size line, or a trailer, longer than any client writes.
    #[error("a line between the chunks of the body is longer than {limit} bytes")]
    LineTooLong {
        /// Bytes allowed.
        limit: usize,
    },
    /// Something else than CR LF where a line ends.
    #[error("a chunk of the body does not end where it says")]
    End,
}

/// Where a decoder stands.
///
/// ```text
/// Size -> SizeEnd -> Bytes -> BytesEnd(CR, LF) -> Size ...
///              \-> (size 0) Trailer -> Done
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size { value: u64, digits: u8, line: usize },
    Extension { value: u64, line: usize },
    SizeEnd { value: u64 },
    Bytes { left: u64 },
    BytesCr,
    BytesLf,
    Trailer { line: usize, total: usize },
    TrailerEnd { line: usize, total: usize },
    Done,
}

/// Undoes the coding.
#[derive(Clone, Copy, Debug)]
pub struct ChunkDecoder(State);

impl Default for ChunkDecoder {
    fn default() -> Self {
        Self(State::Size { value: 0, digits: 0, line: 0 })
    }
}

impl ChunkDecoder {
    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.0 == State::Done
    }

    /// Takes from the front of `bytes`: how many were used, and how many of the last of these are body bytes. Call again
    /// until nothing is used.
    ///
    /// # Errors
    /// The bytes are no chunked body.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, usize), ChunkError> {
        let mut used = 0;
        while let Some(byte) = bytes.get(used) {
            if let State::Bytes { left } = self.0 {
                let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - used);
                let left = left - len as u64;
                self.0 = if left == 0 { State::BytesCr } else { State::Bytes { left } };
                return Ok((used + len, len));
            }
            if self.is_done() {
                break;
            }
            self.0 = self.step(*byte)?;
            used += 1;
        }
        Ok((used, 0))
    }

    fn step(&self, byte: u8) -> Result<State, ChunkError> {
        let too_long = ChunkError::LineTooLong { limit: limits::CHUNK_LINE_MAX };
        match self.0 {
            State::Size { .. } | State::Extension { .. } | State::SizeEnd { .. } => self.step_size(byte),
            State::BytesCr if byte == b'\r' => Ok(State::BytesLf),
            State::BytesLf if byte == b'\n' => Ok(State::Size { value: 0, digits: 0, line: 0 }),
            State::Trailer { line, total } => match byte {
                b'\r' => Ok(State::TrailerEnd { line, total }),
                b'\n' => Err(ChunkError::End),
                _ if total >= limits::CHUNK_LINE_MAX => Err(too_long),
                _ => Ok(State::Trailer { line: line + 1, total: total + 1 }),
            },
            State::TrailerEnd { line: 0, .. } if byte == b'\n' => Ok(State::Done),
            State::TrailerEnd { total, .. } if byte == b'\n' => Ok(State::Trailer { line: 0, total }),
            _ => Err(ChunkError::End),
        }
    }

    fn step_size(&self, byte: u8) -> Result<State, ChunkError> {
        match self.0 {
            State::Size { line, .. } | State::Extension { line, .. } if line >= limits::CHUNK_LINE_MAX => {
                Err(ChunkError::LineTooLong { limit: limits::CHUNK_LINE_MAX })
            }
            State::Size { value, digits, line } => match (byte, char::from(byte).to_digit(16)) {
                (_, Some(digit)) if digits < 16 => {
                    Ok(State::Size { value: value << 4 | u64::from(digit), digits: digits + 1, line: line + 1 })
                }
                (b';' | b' ' | b'\t', _) if digits > 0 => Ok(State::Extension { value, line: line + 1 }),
                (b'\r', _) if digits > 0 => Ok(State::SizeEnd { value }),
                _ => Err(ChunkError::Size),
            },
            State::Extension { value, line } => match byte {
                b'\r' => Ok(State::SizeEnd { value }),
                b'\n' => Err(ChunkError::End),
                _ => Ok(State::Extension { value, line: line + 1 }),
            },
            State::SizeEnd { value: 0 } if byte == b'\n' => Ok(State::Trailer { line: 0, total: 0 }),
            State::SizeEnd { value } if byte == b'\n' => Ok(State::Bytes { left: value }),
            _ => Err(ChunkError::End),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(parts: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), ChunkError> {
        let mut decoder = ChunkDecoder::default();
        let (mut out, mut used_in_all) = (Vec::new(), 0);
        for part in parts {
            let mut rest = *part;
            loop {
                let (used, body) = decoder.take(rest)?;
                out.extend_from_slice(&rest[used - body..used]);
                rest = &rest[used..];
                used_in_all += used;
                if used == 0 {
                    break;
                }
            }
        }
        Ok((out, used_in_all, decoder.is_done()))
    }

    #[test]
    fn sizes_extensions_and_trailers_are_read() {
        let body = b"4\r\nWiki\r\n00005;a=b\r\npedia\r\nA \r\n0123456789\r\n0\r\nX: y\r\n\r\nNEXT";
        assert_eq!(decode(&[body]), Ok((b"Wikipedia0123456789".to_vec(), body.len() - 4, true)));
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for (bad, error) in [
            (&b"\r\n"[..], ChunkError::Size),
            (b"+4\r\n", ChunkError::Size),
            (b"0x4\r\n", ChunkError::Size),
            (b"4\nWiki", ChunkError::Size),
            (b"4;a\nWiki", ChunkError::End),
            (b"4\rWiki", ChunkError::End),
            (b"4\r\nWikiX", ChunkError::End),
            (b"4\r\nWiki\n", ChunkError::End),
            (b"4\r\nWiki\rX", ChunkError::End),
            (b"0\r\nX\n", ChunkError::End),
            (b"0\r\n\rX", ChunkError::End),
            (b"11112222333344445\r\n", ChunkError::Size),
        ] {
            assert_eq!(decode(&[bad]), Err(error), "{:?}", String::from_utf8_lossy(bad));
        }
        let long = [b"4;".as_slice(), &[b'a'; 300]].concat();
        assert_eq!(decode(&[&long]), Err(ChunkError::LineTooLong { limit: limits::CHUNK_LINE_MAX }));
        let long = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(70)].concat();
        assert_eq!(decode(&[&long]), Err(ChunkError::LineTooLong { limit: limits::CHUNK_LINE_MAX }));
    }

    #[test]
    fn digits_are_those_of_the_hexadecimal_number() {
        for size in [0usize, 1, 15, 16, 255, 256, 262_144, usize::MAX] {
            assert_eq!(digits(size), format!("{size:x}").len(), "{size}");
        }
    }

    proptest! {
        #[test]
        fn a_chunked_body_split_anywhere_decodes_alike(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in proptest::collection::vec(0usize..300, 0..5),
        ) {
            let mut coded = Vec::new();
            for chunk in &chunks {
                coded.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                coded.extend(chunk);
                coded.extend(CHUNK_TAIL);
            }
            coded.extend(LAST_CHUNK);
            let end = coded.len();
            coded.extend(b"GET / HTTP/1.1");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(coded.len())).collect();
            cuts.extend([0, coded.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &coded[pair[0]..pair[1]]).collect();
            let (body, used, done) = decode(&parts).unwrap();
            prop_assert_eq!((body, used, done), (chunks.concat(), end, true));
        }
    }
}
