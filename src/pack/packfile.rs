//! One pack and its index: mapped bytes become entries, ids, offsets and the order they stand in.
//!
//! Opens no file and decodes no object. Invariants: the index belongs to the pack (same trailer, same count); index
//! positions run in id order, pack positions in offset order, and both are below `count`.
//! Source: gitformat-pack(5), "pack-*.pack files", "pack-*.idx files".
//! Read first: `every_entry_ends_where_the_next_begins` in `tests` of this room.

use std::{cmp::Ordering, path::PathBuf, sync::OnceLock};

use super::{
    checksum::match_checksum,
    entry::{Entry, EntryError},
    map::Mapping,
    order::{self, OrderError, Reverse},
    pace::Pace,
    seal::Seal,
};
use crate::oid::{Kind, ObjectId, oid};

/// One pack, mapped, with its index.
pub struct Pack {
    name: Box<str>,
    kind: Kind,
    data: Mapping,
    index: gix_pack::index::File<Mapping>,
    index_bytes: Mapping,
    /// Objects whose id starts with a byte up to this one.
    fan: Box<[u32]>,
    trailer: ObjectId,
    reverse: Option<Reverse>,
    /// Pack position -> index position, from the `.rev` file or computed when first needed.
    order: OnceLock<(Box<[u32]>, Option<OrderError>)>,
    seal: OnceLock<Seal>,
}

impl std::fmt::Debug for Pack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pack").field("name", &self.name).field("count", &self.count()).finish_non_exhaustive()
    }
}

/// Why a pack cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The `.pack` file has no sound header, or is shorter than header and trailer.
    #[error("pack {name}: the pack file is damaged at its header; run `git fsck` and fetch it anew")]
    Header {
        /// File name without folder or ending.
        name: Box<str>,
    },
    /// The `.idx` file is damaged.
    #[error("pack {name}: the index is damaged; `git index-pack` makes it anew")]
    Index {
        /// File name without folder or ending.
        name: Box<str>,
    },
    /// Pack and index were not made for each other.
    #[error("pack {name}: the index belongs to another pack; `git index-pack` makes it anew")]
    Mismatch {
        /// File name without folder or ending.
        name: Box<str>,
    },
}

impl Pack {
    /// Joins the mappings of `name`.pack and `name`.idx. Cost: the offset table is read once (4 bytes an object).
    ///
    /// # Errors
    /// The files are damaged or do not belong together.
    pub fn open(name: &str, kind: Kind, data: Mapping, index: Mapping) -> Result<Self, PackError> {
        let name: Box<str> = name.into();
        let header = gix_pack::data::File::from_data(data.clone(), PathBuf::new(), kind)
            .map_err(|_| PackError::Header { name: name.clone() })?;
        let fan = fan_of(&index).ok_or_else(|| PackError::Index { name: name.clone() })?;
        let index_bytes = index.clone();
        let index = gix_pack::index::File::from_data(index, PathBuf::new(), kind)
            .map_err(|_| PackError::Index { name: name.clone() })?;
        let trailer = data
            .get(data.len().saturating_sub(kind.len_in_bytes())..)
            .and_then(|raw| ObjectId::try_from(raw).ok())
            .ok_or_else(|| PackError::Header { name: name.clone() })?;
        if index.pack_checksum() != trailer || index.num_objects() != header.num_objects() {
            return Err(PackError::Mismatch { name });
        }
        Ok(Self {
            name,
            kind,
            data,
            index,
            index_bytes,
            fan,
            trailer,
            reverse: None,
            order: OnceLock::new(),
            seal: OnceLock::new(),
        })
    }

    /// Gives the pack its `.rev` file, which saves sorting. Its table is checked when first needed ([`Self::order_fault`]).
    ///
    /// # Errors
    /// The file is damaged or for another pack; the pack is as good as without.
    pub fn read_order_from(&mut self, reverse: Mapping) -> Result<(), OrderError> {
        self.reverse = Some(Reverse::open(reverse, self.kind, self.count(), &self.trailer)?);
        Ok(())
    }

    /// Whether the pack is known to be sealed: it holds exactly what is reachable from its own commits and tags.
    pub fn is_sealed(&self) -> bool {
        self.seal().is_some()
    }

    /// What reaches all of the pack, if it is known to be sealed.
    pub fn seal(&self) -> Option<&Seal> {
        self.seal.get()
    }

    /// Remembers a proof that the pack is sealed. A pack never changes, so neither does this.
    pub fn learn_sealed(&self, seal: Seal) {
        let _ = self.seal.set(seal);
    }

    /// Whether pack and index match their checksums. What is copied is not looked at, so that a flipped bit would reach every
    /// client; this reads both files in full, once, when there is nothing else to do.
    pub async fn is_intact(&self, pace: &Pace) -> bool {
        match_checksum(&self.index_bytes, self.kind, pace).await && match_checksum(&self.data, self.kind, pace).await
    }

    /// File name without folder and ending, `pack-<hash>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The hash function of ids and trailer.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Objects in the pack.
    pub fn count(&self) -> u32 {
        self.index.num_objects()
    }

    /// The checksum over everything before it, as it stands at the end of the file.
    pub fn trailer(&self) -> &ObjectId {
        &self.trailer
    }

    /// All bytes: header, entries, trailer.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Offset of the first byte behind the last entry.
    pub fn end(&self) -> u64 {
        (self.data.len() - self.kind.len_in_bytes()) as u64
    }

    /// Index position of `id`. Ids are spread evenly, so a guess by their next four bytes is nearly right: two looks at the
    /// index instead of ten.
    pub fn find(&self, id: &oid) -> Option<u32> {
        let first = usize::from(id.first_byte());
        let mut start = first.checked_sub(1).and_then(|before| self.fan.get(before)).copied().unwrap_or(0);
        let mut end = self.fan.get(first).copied()?.min(self.count());
        let key = guide(id);
        let (mut low, mut high) = (0u64, 1u64 << 32);
        let mut guesses = 0;
        while start < end {
            let room = u64::from(end - start);
            let guess = if guesses < GUESSES_MAX { (key - low) * room / (high - low).max(1) } else { room / 2 };
            guesses += 1;
            let middle = start + guess.min(room - 1) as u32;
            let met = self.index.oid_at_index(middle);
            match guide(met).cmp(&key).then_with(|| met.cmp(id)) {
                Ordering::Less => (start, low) = (middle + 1, guide(met)),
                Ordering::Greater => (end, high) = (middle, guide(met)),
                Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// Id at an index position. `None` past the end.
    pub fn id_at(&self, index: u32) -> Option<&oid> {
        (index < self.count()).then(|| self.index.oid_at_index(index))
    }

    /// Offset of the entry at an index position, as the index claims it. `None` past the end.
    pub fn offset_at(&self, index: u32) -> Option<u64> {
        (index < self.count()).then(|| self.index.pack_offset_at_index(index))
    }

    /// Index position for each pack position. The first call may sort all offsets.
    pub fn order(&self) -> &[u32] {
        &self.order_and_fault().0
    }

    /// What was found wrong with the `.rev` file when its table was read.
    pub fn order_fault(&self) -> Option<OrderError> {
        self.order.get().and_then(|(_, fault)| *fault)
    }

    fn order_and_fault(&self) -> &(Box<[u32]>, Option<OrderError>) {
        self.order.get_or_init(|| {
            let fault = match self.reverse.as_ref().map(|reverse| reverse.read(|index| self.offset_at(index))) {
                Some(Ok(order)) => return (order, None),
                Some(Err(fault)) => Some(fault),
                None => None,
            };
            (order::computed(self.count(), |index| self.index.pack_offset_at_index(index)), fault)
        })
    }

    /// Offset of the entry at a pack position; for `count` itself, the end of the last entry.
    pub fn offset_in_order(&self, position: u32) -> Option<u64> {
        if position == self.count() {
            return Some(self.end());
        }
        self.order().get(position as usize).and_then(|index| self.offset_at(*index))
    }

    /// Pack position of the entry that starts exactly at `offset`.
    pub fn position_of_offset(&self, offset: u64) -> Option<u32> {
        let at = self.order().partition_point(|index| self.index.pack_offset_at_index(*index) < offset);
        let index = *self.order().get(at)?;
        (self.index.pack_offset_at_index(index) == offset).then_some(at as u32)
    }

    /// The header of the entry at `offset`.
    ///
    /// # Errors
    /// No entry can start there.
    pub fn entry(&self, offset: u64) -> Result<Entry, EntryError> {
        Entry::parse(self.tail(offset), self.kind)
    }

    /// Bytes from `offset` to the end of the last entry; empty when there are none.
    pub fn tail(&self, offset: u64) -> &[u8] {
        let end = usize::try_from(self.end()).unwrap_or(0);
        usize::try_from(offset).ok().and_then(|offset| self.data.get(offset..end)).unwrap_or_default()
    }
}

/// The four bytes of an id behind the first: where among the ids with the same first byte it should stand.
fn guide(id: &oid) -> u64 {
    id.as_bytes().get(1..5).and_then(|raw| raw.try_into().ok()).map_or(0, u32::from_be_bytes).into()
}

/// The 256 words of the fan: at the start of an old index, behind magic and version of a newer one.
fn fan_of(index: &[u8]) -> Option<Box<[u32]>> {
    let start = if index.starts_with(b"\xfftOc") { 8 } else { 0 };
    let raw = index.get(start..start + 256 * 4)?;
    Some(raw.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect())
}

/// Guesses before the search only halves: ids that somebody chose are not spread evenly.
const GUESSES_MAX: usize = 6;
