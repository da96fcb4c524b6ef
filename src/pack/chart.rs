//! A bitmap file in its place: bits of the file become positions of one store.
//!
//! Decides nothing. Invariants: an object that stands in several packs is charted at the one position that answers for it,
//! whichever copy the bitmap counts; nothing is charted before the checksums of the files were compared, once.
//! Source: gitformat-bitmap(5), "pack order" and "MIDX order".
//! Read first: `charted_bits_are_the_positions_that_answer`.

use std::sync::OnceLock;

use super::{
    bitmap::{BitmapError, Bitmaps, Stored},
    map::Mapping,
    marks::Marks,
    midx::{Midx, MidxError},
    pace::Pace,
    packfile::Pack,
    store::Store,
};

/// Why a bitmap file is of no use to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChartError {
    /// The bitmap file is damaged.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
    /// The multi-pack-index is damaged.
    #[error(transparent)]
    Midx(#[from] MidxError),
    /// The store has no pack of that number.
    #[error("the bitmap file is for pack {0}, which is not there")]
    NoPack(u32),
    /// The multi-pack-index does not say in which order the bits stand.
    #[error("the multi-pack-index has a bitmap and no order of its bits")]
    NoOrder,
    /// The object at a bit is not where the multi-pack-index says.
    #[error("the object at bit {0} is not where the multi-pack-index says")]
    Misplaced(u32),
}

/// A bitmap file for one store.
#[derive(Debug)]
pub struct Chart {
    bitmaps: Bitmaps,
    source: Source,
    /// Position for each bit, once the files were compared with their checksums.
    positions: OnceLock<Result<Box<[u32]>, ChartError>>,
}

#[derive(Debug)]
enum Source {
    /// The pack of that number.
    Pack(usize),
    /// Several packs; their numbers in the store by their numbers in the file.
    Midx(Midx, Box<[usize]>),
}

impl Chart {
    /// The bitmap file of the pack of that number.
    ///
    /// # Errors
    /// The file is damaged or for another pack.
    pub fn of_pack(store: &Store, number: usize, bitmap: Mapping) -> Result<Self, ChartError> {
        let pack = store.packs().get(number).ok_or(ChartError::NoPack(number as u32))?;
        let bitmaps = Bitmaps::open(bitmap, store.kind(), pack.count(), pack.trailer())?;
        Ok(Self { bitmaps, source: Source::Pack(number), positions: OnceLock::new() })
    }

    /// The bitmap file of a multi-pack-index, all packs of which must be in the store.
    ///
    /// # Errors
    /// The file is damaged or for another index, or a pack is missing.
    pub fn of_midx(store: &Store, midx: Midx, bitmap: Mapping) -> Result<Self, ChartError> {
        let bitmaps = Bitmaps::open(bitmap, midx.kind(), midx.count(), midx.checksum())?;
        if !midx.has_order() {
            return Err(ChartError::NoOrder);
        }
        let number_of = |(number, name): (u32, &str)| {
            store.packs().iter().position(|pack| pack.name() == name).ok_or(ChartError::NoPack(number))
        };
        let names = midx.names().iter().map(AsRef::as_ref);
        let numbers: Result<Box<[usize]>, ChartError> = (0..).zip(names).map(number_of).collect();
        Ok(Self { bitmaps, source: Source::Midx(midx, numbers?), positions: OnceLock::new() })
    }

    /// The file itself.
    pub fn bitmaps(&self) -> &Bitmaps {
        &self.bitmaps
    }

    /// What was found wrong with the files when they were first used.
    pub fn fault(&self) -> Option<ChartError> {
        self.positions.get().and_then(|found| found.as_ref().err()).copied()
    }

    /// The pack, if the bitmap is that of a single one.
    pub fn pack<'s>(&self, store: &'s Store) -> Option<&'s Pack> {
        match &self.source {
            Source::Pack(number) => store.packs().get(*number).map(AsRef::as_ref),
            Source::Midx(..) => None,
        }
    }

    /// The stored bitmap of the commit at a position.
    pub fn stored(&self, store: &Store, position: u32) -> Option<Stored> {
        let (number, pack, index) = store.place(position)?;
        let index = match &self.source {
            Source::Pack(own) if *own == number => Some(index),
            Source::Pack(own) => store.packs().get(*own)?.find(pack.id_at(index)?),
            Source::Midx(midx, _) => midx.find(pack.id_at(index)?),
        };
        self.bitmaps.find(index?)
    }

    /// The position for each bit. The first call reads both files in full and each pack's order, and tells a lasting fault.
    ///
    /// # Errors
    /// A file does not match its checksum, or an object is not where it says.
    pub async fn positions(&self, store: &Store, pace: &Pace) -> Result<&[u32], ChartError> {
        if self.positions.get().is_none() {
            let found = self.find_positions(store, pace).await;
            let _ = self.positions.set(found);
        }
        match self.positions.get() {
            Some(Ok(positions)) => Ok(positions),
            Some(Err(fault)) => Err(*fault),
            None => Ok(&[]),
        }
    }

    async fn find_positions(&self, store: &Store, pace: &Pace) -> Result<Box<[u32]>, ChartError> {
        self.bitmaps.verify(pace).await?;
        match &self.source {
            Source::Pack(number) => of_pack(store, *number, pace).await,
            Source::Midx(midx, numbers) => {
                midx.verify(pace).await?;
                of_midx(store, midx, numbers, pace).await
            }
        }
    }
}

async fn of_pack(store: &Store, number: usize, pace: &Pace) -> Result<Box<[u32]>, ChartError> {
    let pack = store.packs().get(number).ok_or(ChartError::NoPack(number as u32))?;
    let start = store.start_of(number);
    let mut positions: Box<[u32]> = pack.order().iter().map(|index| start + index).collect();
    pace.work(positions.len()).await;
    for earlier in store.packs().iter().take(number) {
        // Look from the smaller side: often ten new objects over two hundred thousand old ones.
        for index in 0..earlier.count().min(pack.count()) {
            let (from, to) = if earlier.count() < pack.count() { (earlier, pack) } else { (pack, earlier) };
            let id = from.id_at(index).filter(|id| to.find(id).is_some());
            let found = id.and_then(|id| Some((store.find(id)?, pack.offset_at(pack.find(id)?)?)));
            if let Some((position, offset)) = found
                && let Some(bit) = pack.position_of_offset(offset)
                && let Some(charted) = positions.get_mut(bit as usize)
            {
                *charted = position;
            }
            pace.work(COST_OF_LOOK).await;
        }
    }
    Ok(positions)
}

async fn of_midx(store: &Store, midx: &Midx, numbers: &[usize], pace: &Pace) -> Result<Box<[u32]>, ChartError> {
    let mut positions = vec![u32::MAX; midx.count() as usize];
    let mut bits = vec![u32::MAX; midx.count() as usize];
    let mut charted = Marks::with_room(store.total());
    // Objects of one pack stand in the order of their offsets: a finger in each pack only moves on.
    let mut fingers = vec![0u32; numbers.len()];
    for (bit, position) in (0..).zip(&mut positions) {
        let misplaced = ChartError::Misplaced(bit);
        let index = midx.index_of_bit(bit).ok_or(misplaced)?;
        let (pack, offset) = midx.place_at(index).ok_or(misplaced)?;
        let finger = fingers.get_mut(pack as usize).ok_or(misplaced)?;
        let number = *numbers.get(pack as usize).ok_or(misplaced)?;
        let pack = store.packs().get(number).ok_or(misplaced)?;
        while pack.offset_in_order(*finger).ok_or(misplaced)? < offset {
            *finger += 1;
        }
        let found = pack.order().get(*finger as usize).filter(|index| pack.offset_at(**index) == Some(offset));
        *position = store.start_of(number) + found.ok_or(misplaced)?;
        charted.insert(*position);
        *bits.get_mut(index as usize).ok_or(misplaced)? = bit;
        pace.work(COST_OF_LOOK / 4).await;
    }
    // Copies the index does not count: an earlier one answers for the object.
    for copy in (0..store.total()).filter(|position| !charted.contains(*position)) {
        pace.work(COST_OF_LOOK).await;
        let Some(id) = store.id(copy) else { continue };
        let bit = midx.find(&id).and_then(|index| bits.get(index as usize).copied());
        if let Some(charted) = bit.and_then(|bit| positions.get_mut(bit as usize))
            && let Some(answers) = store.find(&id)
        {
            *charted = answers;
        }
    }
    Ok(positions.into())
}

/// Units of finding one id in an index.
const COST_OF_LOOK: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        oid::Kind,
        pack::fixture::{Repository, map, map_bytes},
    };

    /// One bitmapped pack, and a smaller one that holds some of the same objects.
    fn overlapping() -> Repository {
        let repository = Repository::packed(70, 60);
        let tip = repository.git(&["rev-parse", "b70-0"]);
        repository.git_fed(&["pack-objects", "-q", "--revs", "objects/pack/pack"], tip.as_bytes());
        repository
    }

    fn check(store: &Store, chart: &Chart, id_of_bit: impl Fn(u32) -> crate::oid::ObjectId) {
        let pace = Pace::default();
        let positions = pace.run(chart.positions(store, &pace), |_| unreachable!()).unwrap();
        for (bit, position) in (0..).zip(positions) {
            assert_eq!(Some(*position), store.find(&id_of_bit(bit)));
        }
        assert_eq!(positions.len(), chart.bitmaps().count() as usize);
        let stored = (0..store.total()).filter(|position| store.find(&store.id(*position).unwrap()) == Some(*position));
        let stored = stored.filter(|position| chart.stored(store, *position).is_some()).count();
        assert_eq!((stored, chart.fault()), (chart.bitmaps().stored() as usize, None));
    }

    #[test]
    fn charted_bits_are_the_positions_that_answer() {
        let repository = overlapping();
        let path = &repository.pack_files("bitmap")[0];
        let name = path.file_stem().unwrap().to_str().unwrap();
        let packs = repository.store().packs().to_vec();
        for packs in [packs.clone(), packs.into_iter().rev().collect()] {
            let store = Store::new(Kind::Sha1, packs).unwrap();
            let number = store.packs().iter().position(|pack| pack.name() == name).unwrap();
            let chart = Chart::of_pack(&store, number, map(path)).unwrap();
            let pack = &store.packs()[number];
            check(&store, &chart, |bit| pack.id_at(pack.order()[bit as usize]).unwrap().to_owned());
            assert!(matches!(Chart::of_pack(&store, 1 - number, map(path)), Err(ChartError::Bitmap(_))));
            assert_eq!(Chart::of_pack(&store, 2, map(path)).err(), Some(ChartError::NoPack(2)));
        }
    }

    #[test]
    fn bits_of_a_multi_pack_index_are_charted_over_its_packs() {
        let repository = overlapping();
        repository.grow(71, 40);
        repository.git(&["repack", "-q"]);
        repository.git(&["multi-pack-index", "write", "--bitmap"]);
        // One more that the index does not know, with objects that it does.
        repository.grow(72, 40);
        repository.git_bytes(&["pack-objects", "-q", "--all", "objects/pack/pack"], b"");
        let folder = repository.path().join("objects/pack");
        let midx = || Midx::open(map(&folder.join("multi-pack-index")), Kind::Sha1).unwrap();
        let path = folder.join(format!("multi-pack-index-{}.bitmap", midx().checksum()));
        let packs = repository.store().packs().to_vec();
        assert!(packs.len() > midx().names().len());
        for turn in 0..packs.len() {
            let mut packs = packs.clone();
            packs.rotate_left(turn);
            let store = Store::new(Kind::Sha1, packs.clone()).unwrap();
            let chart = Chart::of_midx(&store, midx(), map(&path)).unwrap();
            let index = midx();
            check(&store, &chart, |bit| index.id_at(index.index_of_bit(bit).unwrap()).unwrap().to_owned());
            packs.retain(|pack| *pack.name() != *index.names()[1]);
            let store = Store::new(Kind::Sha1, packs).unwrap();
            assert_eq!(Chart::of_midx(&store, midx(), map(&path)).err(), Some(ChartError::NoPack(1)));
        }
    }

    #[test]
    fn a_chart_of_a_damaged_file_tells_its_fault_at_first_use() {
        let repository = Repository::packed(73, 60);
        let path = &repository.pack_files("bitmap")[0];
        let mut bytes = std::fs::read(path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let store = repository.store();
        let chart = Chart::of_pack(&store, 0, map_bytes(&bytes)).unwrap();
        let pace = Pace::default();
        let fault = ChartError::Bitmap(BitmapError::Checksum);
        assert_eq!(chart.fault(), None);
        assert_eq!(pace.run(chart.positions(&store, &pace), |_| unreachable!()), Err(fault));
        assert_eq!(chart.fault(), Some(fault));
    }
}
