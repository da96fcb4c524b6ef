//! The order entries stand in: a `.rev` file, or a sort, becomes the index position of each pack position.
//!
//! Trusts no table: one that is no ascending order of all entries is refused, and the order is computed instead.
//! Invariant: an order that was read equals the one that would have been computed.
//! Source: gitformat-pack(5), "pack-*.rev files". Read first: `a_reverse_index_that_git_wrote_is_the_computed_order`.

use super::map::Mapping;
use crate::oid::{Kind, ObjectId};

/// Why a `.rev` file is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// It does not start with `RIDX`, or is shorter than header and trailer.
    #[error("the reverse index has no sound header; `git index-pack --rev-index` makes it anew")]
    Header,
    /// Another version than 1.
    #[error("the reverse index has version {0}, 1 is known")]
    Version(u32),
    /// Its ids are of another hash function.
    #[error("the reverse index is for hash function {0}")]
    Hash(u32),
    /// It is not as long as its pack needs.
    #[error("the reverse index has {found} bytes where the pack needs {needed}")]
    Size {
        /// Bytes for the objects of the pack.
        needed: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// It names another pack.
    #[error("the reverse index belongs to another pack")]
    Mismatch,
    /// The entry at a pack position does not follow the one before.
    #[error("the reverse index is out of order at entry {at}")]
    Unsorted {
        /// The pack position.
        at: u32,
    },
}

/// A mapped `.rev` file whose header fits its pack.
#[derive(Clone, Debug)]
pub struct Reverse {
    map: Mapping,
    count: u32,
}

impl Reverse {
    /// Checks everything but the table, which is read when first needed.
    ///
    /// # Errors
    /// The file is damaged, or not for the pack with `count` objects and that trailer.
    pub fn open(map: Mapping, kind: Kind, count: u32, trailer: &ObjectId) -> Result<Self, OrderError> {
        let word = |at: usize| map.get(at..at + 4).and_then(|raw| raw.try_into().ok()).map(u32::from_be_bytes);
        if map.get(..4) != Some(b"RIDX") {
            return Err(OrderError::Header);
        }
        match word(4).ok_or(OrderError::Header)? {
            1 => {}
            other => return Err(OrderError::Version(other)),
        }
        match word(8).ok_or(OrderError::Header)? {
            hash if hash == hash_number(kind) => {}
            other => return Err(OrderError::Hash(other)),
        }
        let needed = (HEADER_SIZE + 2 * kind.len_in_bytes()) as u64 + 4 * u64::from(count);
        if map.len() as u64 != needed {
            return Err(OrderError::Size { needed, found: map.len() as u64 });
        }
        let named = map.len() - 2 * kind.len_in_bytes();
        if map.get(named..named + kind.len_in_bytes()) != Some(trailer.as_bytes()) {
            return Err(OrderError::Mismatch);
        }
        Ok(Self { map, count })
    }

    /// Index position for each pack position; `offset_of` tells where the entry at an index position starts.
    ///
    /// # Errors
    /// [`OrderError::Unsorted`].
    pub fn read(&self, offset_of: impl Fn(u32) -> Option<u64>) -> Result<Box<[u32]>, OrderError> {
        let table = self.map.get(HEADER_SIZE..).unwrap_or_default();
        let mut before = None;
        let mut order = Vec::with_capacity(self.count as usize);
        for (at, raw) in (0..self.count).zip(table.as_chunks::<4>().0) {
            let index = u32::from_be_bytes(*raw);
            // Strictly ascending offsets of so many entries are all entries, each once.
            let offset = offset_of(index).filter(|offset| before.is_none_or(|before| before < *offset));
            before = Some(offset.ok_or(OrderError::Unsorted { at })?);
            order.push(index);
        }
        Ok(order.into())
    }
}

/// The order of `count` entries by offset.
pub fn computed(count: u32, offset_of: impl Fn(u32) -> u64) -> Box<[u32]> {
    let mut order: Vec<(u64, u32)> = (0..count).map(|index| (offset_of(index), index)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

/// How files of packs number the hash functions.
pub fn hash_number(kind: Kind) -> u32 {
    if kind == Kind::Sha256 { 2 } else { 1 }
}

/// Bytes before the table.
const HEADER_SIZE: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::fixture::{Repository, map, map_bytes};

    #[test]
    fn a_reverse_index_that_git_wrote_is_the_computed_order() {
        for kind in [Kind::Sha1, Kind::Sha256] {
            let repository = Repository::empty(kind);
            repository.grow(30, 30);
            repository.git(&["-c", "pack.writeReverseIndex=true", "repack", "-adq"]);
            let path = &repository.pack_files("rev")[0];
            let plain = repository.pack_of(path);
            let mut pack = repository.pack_of(path);
            assert_eq!(pack.read_order_from(map(path)), Ok(()));
            assert_eq!(pack.order(), plain.order());
            assert_eq!((pack.order_fault(), plain.order_fault()), (None, None));
        }
    }

    #[test]
    fn a_broken_reverse_index_is_reported_and_the_order_still_right() {
        let repository = Repository::empty(Kind::Sha1);
        repository.grow(31, 40);
        repository.git(&["-c", "pack.writeReverseIndex=true", "repack", "-adq"]);
        let path = &repository.pack_files("rev")[0];
        let right = repository.pack_of(path).order().to_vec();
        let bytes = std::fs::read(path).unwrap();
        let table_end = bytes.len() - 20;
        let damaged = |bytes: &[u8]| {
            let mut pack = repository.pack_of(path);
            let opened = pack.read_order_from(map_bytes(bytes));
            assert_eq!(pack.order(), right);
            opened.err().or(pack.order_fault())
        };
        for length in (0..bytes.len()).step_by(64) {
            assert!(damaged(&bytes[..length]).is_some(), "cut at {length}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            // The checksum of the file itself says nothing that the table does not.
            assert_eq!(damaged(&flipped).is_some(), at < table_end, "flipped at {at}");
        }
        assert_eq!(damaged(b"RIDX"), Some(OrderError::Header));
        let other = Repository::packed(32, 10);
        let mut other_pack = other.pack_of(&other.pack_files("pack")[0]);
        let size = OrderError::Size { needed: 52 + 4 * u64::from(other_pack.count()), found: bytes.len() as u64 };
        assert_eq!(other_pack.read_order_from(map(path)), Err(size));
    }
}
