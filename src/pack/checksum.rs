//! The trailer of a pack of our own making: a hash over every byte before it.
//!
//! The fastest safe SHA code (SHA-NI through the crates sha1 and sha2), without collision detection: nobody but us chose
//! these bytes as a pack, and the client checks each object's id anyway. Source: gitformat-pack(5), trailer.
//! Read first: `the_trailer_of_a_pack_is_the_hash_of_all_before_it`.

use sha1::Digest as _;

use super::{map::Mapping, pace::Pace};
use crate::oid::{Kind, ObjectId};

/// A running hash.
#[derive(Clone, Debug)]
pub struct Checksum(Running);

#[derive(Clone, Debug)]
enum Running {
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Checksum {
    /// Starts over no bytes.
    pub fn new(kind: Kind) -> Self {
        Self(match kind {
            Kind::Sha256 => Running::Sha256(sha2::Sha256::new()),
            _ => Running::Sha1(sha1::Sha1::new()),
        })
    }

    /// Takes the next bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Running::Sha1(hash) => hash.update(bytes),
            Running::Sha256(hash) => hash.update(bytes),
        }
    }

    /// The hash of all bytes.
    pub fn finish(self) -> ObjectId {
        match self.0 {
            Running::Sha1(hash) => ObjectId::from(<[u8; 20]>::from(hash.finalize())),
            Running::Sha256(hash) => ObjectId::from(<[u8; 32]>::from(hash.finalize())),
        }
    }
}

/// Whether the hash at the end of a file is that of all before it.
pub async fn match_checksum(file: &Mapping, kind: Kind, pace: &Pace) -> bool {
    let Some((bytes, trailer)) =
        file.len().checked_sub(kind.len_in_bytes()).and_then(|start| file.split_at_checked(start))
    else {
        return false;
    };
    let mut sum = Checksum::new(kind);
    for (number, part) in bytes.chunks(HASHED_AT_ONCE).enumerate() {
        if number % PARTS_AHEAD == 0 {
            file.will_need((number + PARTS_AHEAD) * HASHED_AT_ONCE, PARTS_AHEAD * HASHED_AT_ONCE);
        }
        sum.update(part);
        pace.work(part.len()).await;
    }
    sum.finish().as_bytes() == trailer
}

/// Bytes hashed between two looks at the slice that is left.
const HASHED_AT_ONCE: usize = 64 * 1024;
/// Parts the kernel is asked to read ahead: 4 MiB, so that the loop does not wait for the disk.
const PARTS_AHEAD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trailer_of_a_pack_is_the_hash_of_all_before_it() {
        // The empty packs of both kinds, as `git pack-objects` writes them.
        let empty = b"PACK\0\0\0\x02\0\0\0\0";
        let mut sum = Checksum::new(Kind::Sha1);
        sum.update(&empty[..5]);
        sum.update(&empty[5..]);
        assert_eq!(sum.finish().to_string(), "029d08823bd8a8eab510ad6ac75c823cfd3ed31e");
        let mut sum = Checksum::new(Kind::Sha256);
        sum.update(empty);
        assert_eq!(sum.finish().to_string(), "7ed890d8a45760f3eecf73045b1d1047085af4776dc683d78eac82203df1993f");
    }
}
