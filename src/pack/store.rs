//! The packs of one snapshot in the order they are asked: an id becomes a position, a position becomes a pack's entry.
//!
//! Reads no object and knows no loose one. Invariant: positions are dense (`0..total`), each pack owns one range of them
//! in its index order, and an object that stands in several packs is always found at the same position.
//! Read first: `an_object_in_two_packs_has_one_position`.

use std::sync::Arc;

use super::{chart::Chart, checksum::Checksum, packfile::Pack};
use crate::oid::{Kind, ObjectId, oid};

/// Packs of one repository (its own first, then those of its alternates).
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    packs: Vec<Arc<Pack>>,
    /// `starts[i]` is the first position of pack `i`; one more at the end holds the total.
    starts: Vec<u32>,
    identity: [u8; 32],
    chart: Option<Chart>,
}

/// More objects than positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packs of the repository hold more than 2^32 objects; repack it")]
pub struct TooManyObjects;

impl Store {
    /// Joins packs; the first that holds an object answers for it.
    ///
    /// # Errors
    /// All packs together hold more objects than positions can name.
    pub fn new(kind: Kind, packs: Vec<Arc<Pack>>) -> Result<Self, TooManyObjects> {
        let mut starts = Vec::with_capacity(packs.len() + 1);
        let mut total = 0u32;
        starts.push(0);
        for pack in &packs {
            total = total.checked_add(pack.count()).ok_or(TooManyObjects)?;
            starts.push(total);
        }
        let mut sum = Checksum::new(Kind::Sha256);
        for pack in &packs {
            sum.update(pack.trailer().as_bytes());
        }
        let identity = sum.finish().as_bytes().try_into().unwrap_or_default();
        Ok(Self { kind, packs, starts, identity, chart: None })
    }

    /// Gives the store the bitmap file that was opened for it.
    pub fn set_chart(&mut self, chart: Chart) {
        self.chart = Some(chart);
    }

    /// Its bitmap file, if it has one that looked sound.
    pub fn chart(&self) -> Option<&Chart> {
        self.chart.as_ref()
    }

    /// The same for stores with the same packs in the same order, in which positions mean the same.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// The hash function of all ids.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The packs in the order they are asked.
    pub fn packs(&self) -> &[Arc<Pack>] {
        &self.packs
    }

    /// Positions in all: one for each object of each pack, copies included.
    pub fn total(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// First position of the pack with that number.
    pub fn start_of(&self, pack: usize) -> u32 {
        self.starts.get(pack).copied().unwrap_or_else(|| self.total())
    }

    /// The position that answers for `id`, if any pack holds it.
    pub fn find(&self, id: &oid) -> Option<u32> {
        self.packs.iter().zip(&self.starts).find_map(|(pack, start)| pack.find(id).map(|index| start + index))
    }

    /// Whether any pack holds `id`.
    pub fn contains(&self, id: &oid) -> bool {
        self.find(id).is_some()
    }

    /// Number of the pack, the pack, and the index position within it.
    pub fn place(&self, position: u32) -> Option<(usize, &Pack, u32)> {
        if position >= self.total() {
            return None;
        }
        let number = self.starts.partition_point(|start| *start <= position).checked_sub(1)?;
        let pack = self.packs.get(number)?;
        Some((number, pack, position - self.starts.get(number)?))
    }

    /// The id at a position.
    pub fn id(&self, position: u32) -> Option<ObjectId> {
        self.place(position).and_then(|(_, pack, index)| pack.id_at(index)).map(ToOwned::to_owned)
    }
}
