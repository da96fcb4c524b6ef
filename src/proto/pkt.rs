//! pkt-lines: bytes become lines and marks, lines become bytes; and the heads of side-bands.
//!
//! Borrows, never copies what it reads. Invariants: a line is never written with more than 65516 bytes of content; a length of four is
//! an empty line, neither a mark nor a fault; what cannot be a length is an error, not an end.
//! Source: gitprotocol-common(5), "pkt-line Format"; gitprotocol-pack(5), "Packfile Data".
//! Read first: `lines_and_marks_are_told_apart`.

use crate::limits;

/// One thing a stream of pkt-lines holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pkt<'a> {
    /// A line; its final newline, if any, is still there.
    Data(&'a [u8]),
    /// `0000`
    Flush,
    /// `0001`
    Delim,
    /// `0002`
    ResponseEnd,
}

/// Why bytes are no pkt-line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PktError {
    /// Four bytes that are no hexadecimal number, at this offset.
    #[error("bad line length characters at byte {0} of the request")]
    NoLength(usize),
    /// `0003`, or a length beyond 65523.
    #[error("bad line length {length} at byte {at} of the request")]
    BadLength {
        /// As it stands.
        length: usize,
        /// Offset of the line.
        at: usize,
    },
    /// The bytes end within a line.
    #[error("the request ends within a line")]
    CutShort,
}

/// Reads lines one after the other. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Pkts<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Pkts<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn parse(&self) -> Result<(Pkt<'a>, usize), PktError> {
        let rest = self.rest();
        let digits = rest.get(..4).ok_or(PktError::CutShort)?;
        let mut length = 0;
        for digit in digits {
            let digit = char::from(*digit).to_digit(16).ok_or(PktError::NoLength(self.at))?;
            length = length << 4 | digit as usize;
        }
        match length {
            0 => Ok((Pkt::Flush, 4)),
            1 => Ok((Pkt::Delim, 4)),
            2 => Ok((Pkt::ResponseEnd, 4)),
            4..=READ_MAX => Ok((Pkt::Data(rest.get(4..length).ok_or(PktError::CutShort)?), length)),
            _ => Err(PktError::BadLength { length, at: self.at }),
        }
    }
}

impl<'a> Iterator for Pkts<'a> {
    type Item = Result<Pkt<'a>, PktError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest().is_empty() {
            return None;
        }
        match self.parse() {
            Ok((pkt, size)) => {
                self.at += size;
                Some(Ok(pkt))
            }
            Err(error) => {
                self.at = self.bytes.len();
                Some(Err(error))
            }
        }
    }
}

/// A line without its newline, of which there is at most one. As in stock git, a NUL ends the line.
pub fn chomped(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    memchr::memchr(0, line).and_then(|end| line.get(..end)).unwrap_or(line)
}

/// Ends a message.
pub const FLUSH: &[u8] = b"0000";
/// Parts the sections of a message.
pub const DELIM: &[u8] = b"0001";
/// Ends a stateless response, where a proxy in between needs to know.
pub const RESPONSE_END: &[u8] = b"0002";

/// Appends one line of `content`, of which no more is sent than fits.
pub fn push(out: &mut Vec<u8>, content: &[u8]) {
    let content = content.get(..content.len().min(LINE_MAX)).unwrap_or_default();
    push_length(out, content.len() + 4);
    out.extend_from_slice(content);
}

/// Appends one line made of parts, with a newline behind them.
pub fn push_line(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let size = parts.iter().map(|part| part.len()).sum::<usize>() + 1;
    if size > LINE_MAX {
        let mut line = parts.concat();
        line.truncate(LINE_MAX - 1);
        line.push(b'\n');
        push(out, &line);
        return;
    }
    push_length(out, size + 4);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.push(b'\n');
}

fn push_length(out: &mut Vec<u8>, length: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for shift in [12, 8, 4, 0] {
        out.push(DIGITS[length >> shift & 15]);
    }
}

/// Which bands a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sideband {
    /// None: the pack comes bare.
    None,
    /// `side-band`: lines of at most 1000 bytes.
    Small,
    /// `side-band-64k`, and all of version 2.
    Large,
}

impl Sideband {
    /// Bytes before the content of each banded line.
    pub fn head_size(self) -> usize {
        match self {
            Self::None => 0,
            Self::Small | Self::Large => 5,
        }
    }

    /// Most bytes of content one banded line takes.
    pub fn payload_max(self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Small => 995,
            Self::Large => limits::PKT_SIZE_MAX - 5,
        }
    }
}

/// What a banded line carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// Pack bytes.
    Pack = 1,
    /// Words for the person waiting.
    Progress = 2,
    /// The last words.
    Fatal = 3,
}

/// Appends the head of a banded line with `payload` bytes of content, at most what the band takes.
pub fn band_head(out: &mut Vec<u8>, band: Band, payload: usize) {
    push_length(out, payload + 5);
    out.push(band as u8);
}

/// Bytes of a line that is read: three more than one that is written, as stock git has it.
const READ_MAX: usize = limits::PKT_SIZE_MAX + 3;
/// Bytes of content of one line.
const LINE_MAX: usize = limits::PKT_SIZE_MAX - 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_and_marks_are_told_apart() {
        let bytes = b"0006a\n000100040000FFFF";
        let mut pkts = Pkts::new(bytes);
        for expected in [Pkt::Data(b"a\n"), Pkt::Delim, Pkt::Data(b""), Pkt::Flush] {
            assert_eq!(pkts.next(), Some(Ok(expected)));
        }
        assert_eq!(pkts.rest(), b"FFFF");
        assert_eq!(pkts.next(), Some(Err(PktError::BadLength { length: 0xffff, at: 18 })));
        assert_eq!(pkts.next(), None);
    }

    #[test]
    fn what_is_no_line_is_an_error() {
        for (bytes, error) in [
            (&b"000"[..], PktError::CutShort),
            (b"0005", PktError::CutShort),
            (b"0009done", PktError::CutShort),
            (b"0003", PktError::BadLength { length: 3, at: 0 }),
            (b"fff4", PktError::BadLength { length: 0xfff4, at: 0 }),
            (b"fff3", PktError::CutShort),
            (b"00 5a", PktError::NoLength(0)),
            (b"+005a", PktError::NoLength(0)),
            (b"0x05a", PktError::NoLength(0)),
        ] {
            assert_eq!(Pkts::new(bytes).next(), Some(Err(error)), "{bytes:?}");
        }
        let largest = [b"fff0".as_slice(), &vec![b'x'; 65516]].concat();
        assert_eq!(Pkts::new(&largest).next(), Some(Ok(Pkt::Data(&vec![b'x'; 65516]))));
    }

    #[test]
    fn a_newline_or_a_nul_ends_a_line() {
        let cases: [(&[u8], &[u8]); 5] =
            [(b"a\n", b"a"), (b"a\n\n", b"a\n"), (b"a\0b\n", b"a"), (b"\0", b""), (b"a", b"a")];
        for (line, text) in cases {
            assert_eq!(chomped(line), text);
        }
    }

    #[test]
    fn a_line_too_long_to_be_said_is_cut() {
        let mut out = Vec::new();
        push_line(&mut out, &[&vec![b'a'; 40_000], &vec![b'b'; 40_000]]);
        assert_eq!(out.len(), 65520);
        assert!(out.ends_with(b"b\n"));
        assert_eq!(Pkts::new(&out).count(), 1);
    }

    #[test]
    fn bands_fit_their_lines() {
        let mut out = Vec::new();
        band_head(&mut out, Band::Pack, Sideband::Large.payload_max());
        band_head(&mut out, Band::Fatal, Sideband::Small.payload_max());
        assert_eq!(out, b"fff0\x0103e8\x03");
    }

    proptest! {
        #[test]
        fn lines_round_trip(lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..10)) {
            let mut out = Vec::new();
            for line in &lines {
                push(&mut out, line);
            }
            out.extend_from_slice(FLUSH);
            let read: Vec<_> = Pkts::new(&out).collect::<Result<_, _>>().unwrap();
            let expected: Vec<_> = lines.iter().map(|line| Pkt::Data(line)).chain([Pkt::Flush]).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Pkts::new(&bytes).count() <= bytes.len() / 4 + 1);
        }
    }
}
