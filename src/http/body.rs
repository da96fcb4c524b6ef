//! Request bodies: bytes in any split become the body a client meant, chunks and gzip undone.
//!
//! Keeps nothing but the state of its decoders; the body goes to the caller. Invariants: no byte behind the body is
//! taken; neither the body as sent nor the body as inflated grows past its limit.
//! Source: RFC 9112, 6 "Message Body"; RFC 1952. Read first: `a_body_split_anywhere_is_the_same_body`.

use super::{
    chunk::{ChunkDecoder, ChunkError},
    head::{Head, Length},
    response::Status,
};
use crate::limits;

/// Reads one body.
pub struct BodyReader {
    framing: Framing,
    gunzip: Option<Gunzip>,
    /// Body bytes as sent so far, chunk heads not counted.
    sent: u64,
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Known { left: u64 },
    Chunked(ChunkDecoder),
}

/// Why a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not the chunked coding it should be.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// Larger than any request needs.
    #[error("the body of the request is larger than {limit} bytes")]
    TooLarge {
        /// Bytes allowed, as sent.
        limit: u64,
    },
    /// Inflates to more than any request needs.
    #[error("the body of the request inflates to more than {limit} bytes")]
    InflatesTooLarge {
        /// Bytes allowed, inflated.
        limit: usize,
    },
    /// Damaged gzip, or more than one gzip member.
    #[error("the body of the request is not the gzip it says")]
    Gzip,
}

impl BodyError {
    /// How the client hears of it.
    pub fn status(&self) -> Status {
        match self {
            Self::TooLarge { .. } | Self::InflatesTooLarge { .. } => Status::CONTENT_TOO_LARGE,
            Self::Chunk(_) | Self::Gzip => Status::BAD_REQUEST,
        }
    }
}

impl BodyReader {
    /// A reader for the body that follows `head`.
    pub fn new(head: &Head) -> Self {
        let framing = match head.length {
            Length::None => Framing::Known { left: 0 },
            Length::Known(left) => Framing::Known { left },
            Length::Chunked => Framing::Chunked(ChunkDecoder::default()),
        };
        let has_body = head.length != Length::None;
        Self { framing, gunzip: (head.gzip && has_body).then(Gunzip::default), sent: 0 }
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        match &self.framing {
            Framing::Known { left } => *left == 0,
            Framing::Chunked(decoder) => decoder.is_done(),
        }
    }

    /// Takes from the front of `bytes` and appends body bytes to `out`. Returns how many bytes were taken: all of them, or
    /// those up to the end of the body.
    ///
    /// # Errors
    /// The body is malformed or too large; the connection cannot be read on from.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, BodyError> {
        if matches!(self.framing, Framing::Known { left } if self.sent + left > limits::BODY_SENT_MAX) {
            return Err(BodyError::TooLarge { limit: limits::BODY_SENT_MAX });
        }
        let mut taken = 0;
        while taken < bytes.len() && !self.is_done() {
            let rest = bytes.get(taken..).unwrap_or_default();
            let (used, body) = match &mut self.framing {
                Framing::Known { left } => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= len as u64;
                    (len, len)
                }
                Framing::Chunked(decoder) => decoder.take(rest)?,
            };
            self.sent += body as u64;
            if self.sent > limits::BODY_SENT_MAX {
                return Err(BodyError::TooLarge { limit: limits::BODY_SENT_MAX });
            }
            let body = rest.get(used - body..used).unwrap_or_default();
            match &mut self.gunzip {
                Some(gunzip) => gunzip.take(body, out)?,
                None => out.extend_from_slice(body),
            }
            taken += used;
        }
        if self.is_done() && self.gunzip.as_ref().is_some_and(|gunzip| !gunzip.is_done()) {
            return Err(BodyError::Gzip);
        }
        Ok(taken)
    }
}

/// One gzip member, as it arrives.
struct Gunzip {
    header: Vec<u8>,
    inflate: flate2::Decompress,
    state: GunzipState,
    sum: flate2::Crc,
    trailer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GunzipState {
    Header,
    Deflate,
    Trailer,
    Done,
}

impl Default for Gunzip {
    fn default() -> Self {
        Self {
            header: Vec::new(),
            inflate: flate2::Decompress::new(false),
            state: GunzipState::Header,
            sum: flate2::Crc::new(),
            trailer: Vec::new(),
        }
    }
}

impl Gunzip {
    fn is_done(&self) -> bool {
        self.state == GunzipState::Done
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        let carried;
        let mut bytes = bytes;
        if self.state == GunzipState::Header {
            self.header.extend_from_slice(bytes);
            let Some(size) = gzip_header_size(&self.header)? else { return Ok(()) };
            self.state = GunzipState::Deflate;
            carried = std::mem::take(&mut self.header);
            bytes = carried.get(size..).unwrap_or_default();
        }
        if self.state == GunzipState::Deflate {
            let used = self.inflate(bytes, out)?;
            bytes = bytes.get(used..).unwrap_or_default();
        }
        if self.state == GunzipState::Trailer {
            let len = bytes.len().min(GZIP_TRAILER_SIZE - self.trailer.len());
            self.trailer.extend_from_slice(bytes.get(..len).unwrap_or_default());
            bytes = bytes.get(len..).unwrap_or_default();
            if self.trailer.len() == GZIP_TRAILER_SIZE {
                self.check_trailer()?;
            }
        }
        // A second member would be read by some servers and not by others.
        if self.is_done() && !bytes.is_empty() { Err(BodyError::Gzip) } else { Ok(()) }
    }

    fn inflate(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, BodyError> {
        let mut used = 0;
        loop {
            let mut room = [0u8; 16 * 1024];
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let rest = bytes.get(used..).unwrap_or_default();
            let status = self.inflate.decompress(rest, &mut room, flate2::FlushDecompress::None);
            let status = status.map_err(|_| BodyError::Gzip)?;
            let took = usize::try_from(self.inflate.total_in() - before_in).unwrap_or(usize::MAX);
            let gave = usize::try_from(self.inflate.total_out() - before_out).unwrap_or(usize::MAX);
            used += took;
            let gave = room.get(..gave).unwrap_or_default();
            if out.len() + gave.len() > limits::BODY_INFLATED_MAX {
                return Err(BodyError::InflatesTooLarge { limit: limits::BODY_INFLATED_MAX });
            }
            self.sum.update(gave);
            out.extend_from_slice(gave);
            if status == flate2::Status::StreamEnd {
                self.state = GunzipState::Trailer;
                return Ok(used);
            }
            if took == 0 && gave.is_empty() {
                return Ok(used);
            }
        }
    }

    fn check_trailer(&mut self) -> Result<(), BodyError> {
        let number = |at: usize| {
            let bytes = self.trailer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes)
        };
        if number(0) != Some(self.sum.sum()) || number(4) != Some(self.sum.amount()) {
            return Err(BodyError::Gzip);
        }
        self.state = GunzipState::Done;
        Ok(())
    }
}

/// Bytes of the gzip header at the front of `bytes`; `None` when it is not complete.
fn gzip_header_size(bytes: &[u8]) -> Result<Option<usize>, BodyError> {
    if !bytes.iter().zip(GZIP_START).all(|(byte, magic)| *byte == magic) {
        return Err(BodyError::Gzip);
    }
    let (Some(flags), Some(_)) = (bytes.get(3), bytes.get(9)) else { return Ok(None) };
    let mut at = 10;
    if flags & 0xe0 != 0 {
        return Err(BodyError::Gzip);
    }
    if flags & 4 != 0 {
        let Some(size) = bytes.get(at..at + 2).and_then(|size| size.try_into().ok()) else { return Ok(None) };
        at += 2 + usize::from(u16::from_le_bytes(size));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            match bytes.get(at..).and_then(|rest| memchr::memchr(0, rest)) {
                Some(end) => at += end + 1,
                None if bytes.len() > GZIP_HEADER_MAX => return Err(BodyError::Gzip),
                None => return Ok(None),
            }
        }
    }
    at += if flags & 2 == 0 { 0 } else { 2 };
    Ok((bytes.len() >= at).then_some(at))
}

/// Magic number and the only method there is, RFC 1952, 2.3.1.
const GZIP_START: [u8; 3] = [0x1f, 0x8b, 8];
/// CRC-32 and size, RFC 1952, 2.3.1.
const GZIP_TRAILER_SIZE: usize = 8;
/// Bytes of a gzip header with file name and comment, beyond which it is no request.
const GZIP_HEADER_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HeadReader;
    use proptest::prelude::*;
    use std::io::Write;

    fn head(fields: &str) -> Head {
        let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        HeadReader::new().take(text.as_bytes()).unwrap().1.unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::GzBuilder::new()
            .filename("n")
            .comment("c")
            .extra("xx")
            .write(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(head: &Head, parts: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), BodyError> {
        let (mut reader, mut out, mut used) = (BodyReader::new(head), Vec::new(), 0);
        for part in parts {
            used += reader.take(part, &mut out)?;
        }
        Ok((out, used, reader.is_done()))
    }

    #[test]
    fn a_request_without_length_has_no_body() {
        assert_eq!(read(&head(""), &[b"GET /next"]), Ok((vec![], 0, true)));
        assert_eq!(read(&head("Content-Encoding: gzip\r\n"), &[b"GET /next"]), Ok((vec![], 0, true)));
    }

    #[test]
    fn a_gzip_that_is_damaged_cut_or_doubled_is_refused() {
        let good = gzip(b"0011command=fetch");
        let mut bad: Vec<Vec<u8>> = vec![good[..good.len() - 1].to_vec(), [&good[..], &good[..]].concat(), vec![0; 30]];
        for at in [0, 1, 2, good.len() - 1, good.len() - 6] {
            let mut flipped = good.clone();
            flipped[at] ^= 0x40;
            bad.push(flipped);
        }
        for body in bad {
            let head = head(&format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", body.len()));
            assert_eq!(read(&head, &[&body]), Err(BodyError::Gzip), "{body:x?}");
        }
    }

    #[test]
    fn bodies_are_bounded_as_sent_and_as_inflated() {
        let limit = limits::BODY_SENT_MAX;
        assert!(read(&head(&format!("Content-Length: {limit}\r\n")), &[b"x"]).is_ok());
        let error = Err(BodyError::TooLarge { limit });
        assert_eq!(read(&head(&format!("Content-Length: {}\r\n", limit + 1)), &[b"x"]), error);
        let bomb = gzip(&vec![0; limits::BODY_INFLATED_MAX + 1]);
        let head = head(&format!("Content-Encoding: x-gzip\r\nContent-Length: {}\r\n", bomb.len()));
        assert_eq!(read(&head, &[&bomb]), Err(BodyError::InflatesTooLarge { limit: limits::BODY_INFLATED_MAX }));
    }

    proptest! {
        #[test]
        fn a_body_split_anywhere_is_the_same_body(
            body in proptest::collection::vec(any::<u8>(), 1..400),
            cuts in proptest::collection::vec(0usize..600, 0..6),
            zipped: bool,
            chunked: bool,
        ) {
            let coded = if zipped { gzip(&body) } else { body.clone() };
            let mut fields = if zipped { "Content-Encoding: gzip\r\n".to_owned() } else { String::new() };
            let mut sent = Vec::new();
            if chunked {
                fields.push_str("Transfer-Encoding: chunked\r\n");
                for chunk in coded.chunks(37) {
                    sent.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                    sent.extend(chunk);
                    sent.extend(b"\r\n");
                }
                sent.extend(b"0\r\n\r\n");
            } else {
                fields += &format!("Content-Length: {}\r\n", coded.len());
                sent.extend(&coded);
            }
            let end = sent.len();
            sent.extend(b"GET /next HTTP/1.1\r\n");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(sent.len())).collect();
            cuts.extend([0, sent.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &sent[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&head(&fields), &parts), Ok((body, end, true)));
        }
    }
}
