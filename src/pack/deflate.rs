//! Deflating what cannot be copied: whole objects become zlib streams, in one go when small, in slices when large.
//!
//! Knows no entry header. libdeflater's level 1 for what fits in one go: better and no slower than zlib's level 1 (measured,
//! docs/decisions.md); zlib-rs for what has to give the loop back in between, which libdeflater cannot.
//! Read first: `deflated_bytes_inflate_to_themselves`.

use libdeflater::{CompressionLvl, Compressor};

/// Deflates objects in one go; keep one for each piece of work.
pub struct Deflater {
    compressor: Compressor,
}

impl Default for Deflater {
    fn default() -> Self {
        Self::new()
    }
}

impl Deflater {
    /// A deflater of the level this server uses.
    pub fn new() -> Self {
        // The crate's `fastest` is level 0, which only copies.
        let level = CompressionLvl::new(LEVEL).unwrap_or_default();
        Self { compressor: Compressor::new(level) }
    }

    /// Appends the zlib stream of `bytes`.
    pub fn append(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if bytes.len() <= STORED_MAX {
            push_stored(bytes, out);
            return;
        }
        let start = out.len();
        let bound = self.compressor.zlib_compress_bound(bytes.len());
        out.resize(start + bound, 0);
        let written = out.get_mut(start..).map_or(Ok(0), |room| self.compressor.zlib_compress(bytes, room));
        // The bound is the compressor's own promise for this length.
        let written = written.expect("this holds because the room is the compressor's own bound");
        out.truncate(start + written);
    }
}

/// Appends a zlib stream of one stored block. RFC 1950, RFC 1951 3.2.4.
fn push_stored(bytes: &[u8], out: &mut Vec<u8>) {
    let len = bytes.len() as u16;
    // Deflate with a window of 32 KiB, the fastest level; the last block, stored.
    out.extend_from_slice(&[0x78, 0x01, 0x01]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(!len).to_le_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(&libdeflater::adler32(bytes).to_be_bytes());
}

/// Deflates an object that arrives in parts.
pub struct SlicedDeflater {
    compress: flate2::Compress,
}

impl Default for SlicedDeflater {
    fn default() -> Self {
        Self::new()
    }
}

impl SlicedDeflater {
    /// Starts a zlib stream.
    pub fn new() -> Self {
        Self { compress: flate2::Compress::new(flate2::Compression::fast(), true) }
    }

    /// Takes a part in and appends what comes out; `last` ends the stream.
    pub fn append(&mut self, part: &[u8], last: bool, out: &mut Vec<u8>) {
        let flush = if last { flate2::FlushCompress::Finish } else { flate2::FlushCompress::None };
        let mut taken = 0;
        loop {
            out.reserve(GROWTH);
            let before = self.compress.total_in();
            let rest = part.get(taken..).unwrap_or_default();
            let status = self.compress.compress_vec(rest, out, flush);
            taken += usize::try_from(self.compress.total_in() - before).unwrap_or(0);
            match status {
                Ok(flate2::Status::StreamEnd) | Err(_) => return,
                _ if !last && taken == part.len() && out.len() < out.capacity() => return,
                _ => {}
            }
        }
    }
}

/// Level of libdeflate: 1 is the fastest that compresses.
const LEVEL: i32 = 1;
/// Bytes of room offered at a time.
const GROWTH: usize = 32 * 1024;

/// Bytes that are stored as they are: mostly deltas, whose code tables would cost more than they save. Of tokio-rs/tokio, one
/// commit deep, 31 % of the time to plan for 0.1 % of the bytes.
const STORED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn inflated(stream: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        flate2::read::ZlibDecoder::new(stream).read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn text_gets_smaller() {
        let (text, mut out) = (b"fn main() { println!(); }\n".repeat(100), Vec::new());
        Deflater::new().append(&text, &mut out);
        assert!(out.len() < text.len() / 4, "{} of {}", out.len(), text.len());
    }

    proptest! {
        #[test]
        fn deflated_bytes_inflate_to_themselves(bytes in proptest::collection::vec(0u8..4, 0..5000)) {
            let mut out = b"before".to_vec();
            Deflater::new().append(&bytes, &mut out);
            prop_assert_eq!(&out[..6], b"before");
            prop_assert_eq!(inflated(&out[6..]), bytes);
        }

        #[test]
        fn bytes_in_parts_deflate_to_one_stream(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 1..6)) {
            let mut deflater = SlicedDeflater::new();
            let mut out = Vec::new();
            for (number, part) in parts.iter().enumerate() {
                deflater.append(part, number + 1 == parts.len(), &mut out);
            }
            prop_assert_eq!(inflated(&out), parts.concat());
        }
    }
}
