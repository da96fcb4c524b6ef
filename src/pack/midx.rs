//! Multi-pack-indexes: one sorted list of ids over many packs becomes, for each id, a pack and an offset.
//!
//! Opens no pack. Refuses version 2 and layers of an incremental chain, whose tables alone say nothing. Invariants: ids
//! ascend; every pack number is below the number of names; after [`Midx::verify`] every byte is as git wrote it.
//! Source: gitformat-pack(5), "multi-pack-index (MIDX) files", "multi-pack-index reverse indexes".
//! Read first: `every_id_is_where_the_multi_pack_index_says`.

use std::ops::Range;

use super::{bitmap, map::Mapping, order::hash_number, pace::Pace};
use crate::oid::{Kind, ObjectId, oid};

/// Why a multi-pack-index is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MidxError {
    /// It does not start as a multi-pack-index, or is shorter than its tables.
    #[error("the multi-pack-index has no sound header; `git multi-pack-index write` makes it anew")]
    Header,
    /// Another version than 1.
    #[error("the multi-pack-index has version {0}, 1 is known; `git -c midx.version=1 multi-pack-index write`")]
    Version(u8),
    /// Its ids are of another hash function.
    #[error("the multi-pack-index is for hash function {0}")]
    Hash(u8),
    /// It is one layer of several.
    #[error("the multi-pack-index is one layer above {0} others; `git multi-pack-index write` joins them")]
    Incremental(u8),
    /// A table is not there, or of another size than the objects need.
    #[error("the multi-pack-index has no sound table {}", .0.escape_ascii())]
    Table([u8; 4]),
    /// Its bytes are not those its trailer was made of.
    #[error("the multi-pack-index does not match its checksum; `git multi-pack-index write` makes it anew")]
    Checksum,
}

/// A mapped multi-pack-index.
#[derive(Debug)]
pub struct Midx {
    map: Mapping,
    kind: Kind,
    count: u32,
    names: Vec<Box<str>>,
    fan: Range<usize>,
    ids: Range<usize>,
    offsets: Range<usize>,
    large: Range<usize>,
    order: Option<Range<usize>>,
    packs: Option<Range<usize>>,
    checksum: ObjectId,
}

impl Midx {
    /// Finds its way in a `multi-pack-index` file. Cost: the 256 words of the fan, and the names.
    ///
    /// # Errors
    /// The file is damaged, or of a sort that is not read.
    pub fn open(map: Mapping, kind: Kind) -> Result<Self, MidxError> {
        let header = map.first_chunk::<HEADER_SIZE>().ok_or(MidxError::Header)?;
        let [b'M', b'I', b'D', b'X', version, hash, tables, bases, p0, p1, p2, p3] = *header else {
            return Err(MidxError::Header);
        };
        if version != 1 {
            return Err(MidxError::Version(version));
        }
        if u32::from(hash) != hash_number(kind) {
            return Err(MidxError::Hash(hash));
        }
        if bases != 0 {
            return Err(MidxError::Incremental(bases));
        }
        let end = map.len().checked_sub(kind.len_in_bytes()).ok_or(MidxError::Header)?;
        let checksum = map.get(end..).and_then(|raw| ObjectId::try_from(raw).ok()).ok_or(MidxError::Header)?;
        let table = |id: [u8; 4]| table(&map, tables, end, id);
        let needed = |id: [u8; 4], size: Option<usize>| {
            let found = table(id).ok_or(MidxError::Table(id))?;
            if size.is_none_or(|size| found.len() == size) { Ok(found) } else { Err(MidxError::Table(id)) }
        };
        let fan = needed(*b"OIDF", Some(256 * 4))?;
        let count = count(map.get(fan.clone()).unwrap_or_default()).ok_or(MidxError::Table(*b"OIDF"))?;
        let each = |size: usize| (count as usize).checked_mul(size);
        let order = table(*b"RIDX").map(|_| needed(*b"RIDX", each(4))).transpose()?;
        let packs = u32::from_be_bytes([p0, p1, p2, p3]);
        let names = names(map.get(needed(*b"PNAM", None)?).unwrap_or_default(), packs);
        let names = names.ok_or(MidxError::Table(*b"PNAM"))?;
        let bitmapped = table(*b"BTMP").map(|_| needed(*b"BTMP", names.len().checked_mul(8))).transpose()?;
        Ok(Self {
            kind,
            count,
            names,
            fan,
            ids: needed(*b"OIDL", each(kind.len_in_bytes()))?,
            offsets: needed(*b"OOFF", each(8))?,
            large: table(*b"LOFF").unwrap_or(0..0),
            order,
            packs: bitmapped,
            checksum,
            map,
        })
    }

    /// Compares all bytes with the trailer: 1 ms for about 1.5 MB.
    ///
    /// # Errors
    /// [`MidxError::Checksum`].
    pub async fn verify(&self, pace: &Pace) -> Result<(), MidxError> {
        if bitmap::is_sound(&self.map, self.kind, pace).await { Ok(()) } else { Err(MidxError::Checksum) }
    }

    /// Objects in all packs together, each counted once.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The hash function of ids and trailer.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The packs by number, named as [`super::Pack::name`] does.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The trailer, which names the file's bitmap: `multi-pack-index-<checksum>.bitmap`.
    pub fn checksum(&self) -> &ObjectId {
        &self.checksum
    }

    /// Position of `id` in the sorted list.
    pub fn find(&self, id: &oid) -> Option<u32> {
        let first = usize::from(id.first_byte());
        let mut start = first.checked_sub(1).and_then(|before| self.word(&self.fan, before)).unwrap_or(0);
        let mut end = self.word(&self.fan, first)?;
        while start < end {
            let middle = start + (end - start) / 2;
            match self.id_at(middle)?.cmp(id) {
                std::cmp::Ordering::Less => start = middle + 1,
                std::cmp::Ordering::Greater => end = middle,
                std::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// Id at a position of the sorted list.
    pub fn id_at(&self, index: u32) -> Option<&oid> {
        let size = self.kind.len_in_bytes();
        let start = (index as usize).checked_mul(size)?;
        let raw = self.map.get(self.ids.clone())?.get(start..start.checked_add(size)?)?;
        oid::try_from_bytes(raw).ok()
    }

    /// Number of the pack that an object was taken from, and its offset there.
    pub fn place_at(&self, index: u32) -> Option<(u32, u64)> {
        let pack = self.word(&self.offsets, (index as usize).checked_mul(2)?)?;
        let offset = self.word(&self.offsets, index as usize * 2 + 1)?;
        if (pack as usize) >= self.names.len() {
            return None;
        }
        if self.large.is_empty() || offset >> 31 == 0 {
            return Some((pack, u64::from(offset)));
        }
        let row = (offset & 0x7fff_ffff) as usize;
        let raw = self.map.get(self.large.clone())?.get(row.checked_mul(8)?..)?.first_chunk::<8>()?;
        Some((pack, u64::from_be_bytes(*raw)))
    }

    /// Whether it says in which order its bitmap counts objects.
    pub fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// Position in the sorted list of the object at a bit of the bitmap.
    pub fn index_of_bit(&self, bit: u32) -> Option<u32> {
        self.word(self.order.as_ref()?, bit as usize).filter(|index| *index < self.count)
    }

    /// First bit and number of bits of the objects taken from a pack, if the file says.
    pub fn bits_of_pack(&self, pack: u32) -> Option<(u32, u32)> {
        let table = self.packs.as_ref()?;
        let at = (pack as usize).checked_mul(2)?;
        Some((self.word(table, at)?, self.word(table, at + 1)?))
    }

    fn word(&self, table: &Range<usize>, number: usize) -> Option<u32> {
        let raw = self.map.get(table.clone())?.get(number.checked_mul(4)?..)?.first_chunk::<4>()?;
        Some(u32::from_be_bytes(*raw))
    }
}

/// The bytes of a table, found in the list at the front; each ends where the next begins.
fn table(map: &[u8], tables: u8, end: usize, id: [u8; 4]) -> Option<Range<usize>> {
    let rows = map.get(HEADER_SIZE..)?.as_chunks::<12>().0.get(..=usize::from(tables))?;
    let offset = |row: &[u8; 12]| usize::try_from(u64::from_be_bytes(*row.last_chunk::<8>()?)).ok();
    let at = rows.iter().take(usize::from(tables)).position(|row| row.starts_with(&id))?;
    let range = offset(rows.get(at)?)?..offset(rows.get(at + 1)?)?;
    (range.start >= HEADER_SIZE && range.start <= range.end && range.end <= end).then_some(range)
}

/// Objects, from a fan that must ascend.
fn count(fan: &[u8]) -> Option<u32> {
    let words = fan.as_chunks::<4>().0.iter().map(|raw| u32::from_be_bytes(*raw));
    words.is_sorted_by(|one, next| one <= next).then(|| fan.last_chunk::<4>().map_or(0, |raw| u32::from_be_bytes(*raw)))
}

/// `packs` names, each ended by NUL, without their `.idx`.
fn names(bytes: &[u8], packs: u32) -> Option<Vec<Box<str>>> {
    let mut names = Vec::new();
    let mut rest = bytes;
    for _ in 0..packs {
        let end = memchr::memchr(0, rest)?;
        let name = std::str::from_utf8(rest.get(..end)?).ok()?;
        let name = name.strip_suffix(".idx").or(name.strip_suffix(".pack")).unwrap_or(name);
        names.push(name.into());
        rest = rest.get(end + 1..)?;
    }
    Some(names)
}

/// Bytes before the list of tables.
const HEADER_SIZE: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::fixture::{Repository, map, map_bytes};

    fn of_two_packs(kind: Kind) -> Repository {
        let repository = Repository::empty(kind);
        for seed in [50, 51] {
            repository.grow(seed, 40);
            repository.git(&["repack", "-q"]);
        }
        // A third pack that holds again what is in one of the others.
        let tip = repository.git(&["rev-parse", "b50-0"]);
        repository.git_fed(&["pack-objects", "-q", "--revs", "objects/pack/pack"], tip.as_bytes());
        repository.git(&["multi-pack-index", "write", "--bitmap"]);
        repository
    }

    fn path(repository: &Repository) -> std::path::PathBuf {
        repository.path().join("objects/pack/multi-pack-index")
    }

    #[test]
    fn every_id_is_where_the_multi_pack_index_says() {
        for kind in [Kind::Sha1, Kind::Sha256] {
            let repository = of_two_packs(kind);
            let midx = Midx::open(map(&path(&repository)), kind).unwrap();
            let pace = Pace::default();
            pace.run(midx.verify(&pace), |_| unreachable!()).unwrap();
            let store = repository.store();
            let names: Vec<&str> = store.packs().iter().map(|pack| pack.name()).collect();
            assert!(midx.names().iter().map(AsRef::as_ref).eq(names.iter().copied()));
            let ids = repository.ids(&["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]);
            assert_eq!(ids.len(), midx.count() as usize);
            for (index, id) in ids.iter().enumerate() {
                assert_eq!(midx.find(id), Some(index as u32));
                assert_eq!(midx.id_at(index as u32), Some(id.as_ref()));
                let (pack, offset) = midx.place_at(index as u32).unwrap();
                let pack = &store.packs()[pack as usize];
                let at = pack.position_of_offset(offset).unwrap();
                assert_eq!(pack.id_at(pack.order()[at as usize]), Some(id.as_ref()));
            }
            assert_eq!(midx.find(&ObjectId::null(kind)), None);
            assert_eq!((midx.id_at(midx.count()), midx.place_at(midx.count())), (None, None));
            // Bits count the objects of one pack after those of another.
            let mut bits = 0;
            for pack in 0..3 {
                let (first, count) = midx.bits_of_pack(pack).unwrap();
                bits += count;
                for bit in first..first + count {
                    assert_eq!(midx.place_at(midx.index_of_bit(bit).unwrap()).unwrap().0, pack);
                }
            }
            assert_eq!((bits, midx.index_of_bit(bits), midx.has_order()), (midx.count(), None, true));
        }
    }

    #[test]
    fn other_versions_layers_and_hashes_are_refused() {
        let repository = of_two_packs(Kind::Sha1);
        let right = std::fs::read(path(&repository)).unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = right.clone();
            bytes[at] = value;
            Midx::open(map_bytes(&bytes), Kind::Sha1).err()
        };
        assert_eq!(with(0, b'X'), Some(MidxError::Header));
        assert_eq!(with(4, 2), Some(MidxError::Version(2)));
        assert_eq!(with(5, 2), Some(MidxError::Hash(2)));
        assert_eq!(with(7, 1), Some(MidxError::Incremental(1)));
        assert_eq!(with(11, 200), Some(MidxError::Table(*b"PNAM")));
        assert_eq!(Midx::open(map_bytes(&right), Kind::Sha256).err(), Some(MidxError::Hash(1)));
        assert_eq!(MidxError::Table(*b"OIDF").to_string(), "the multi-pack-index has no sound table OIDF");
    }

    #[test]
    fn damaged_multi_pack_indexes_are_errors() {
        let repository = of_two_packs(Kind::Sha1);
        let right = std::fs::read(path(&repository)).unwrap();
        let pace = Pace::default();
        let opened = |bytes: &[u8]| {
            let midx = Midx::open(map_bytes(bytes), Kind::Sha1)?;
            for index in (0..midx.count().min(10_000)).step_by(5) {
                let _ =
                    (midx.place_at(index), midx.index_of_bit(index), midx.id_at(index).and_then(|id| midx.find(id)));
            }
            pace.run(midx.verify(&pace), |_| unreachable!())
        };
        assert_eq!(opened(&right), Ok(()));
        for length in (0..right.len()).step_by(64) {
            assert!(opened(&right[..length]).is_err(), "cut at {length}");
        }
        // All of header, tables' list and fan, and a part of the rest.
        for at in (0..1100).chain((1100..right.len()).step_by(9)) {
            let mut bytes = right.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(opened(&bytes).is_err(), "flipped at {at}");
        }
    }
}
