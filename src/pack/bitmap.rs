//! Reachability bitmaps: a mapped `.bitmap` file becomes, for some commits, the set of all that is reachable from each.
//!
//! Speaks of bits and of index positions as the file does; [`super::chart`] says which objects those are. Name hashes are
//! passed over; flags unknown here are ignored, as git does. Invariants: a chain of exclusive-ors is resolved without
//! recursion and never longer than there are entries; nothing is allocated from a claimed count; after
//! [`Bitmaps::verify`] every byte is as git wrote it.
//! Source: gitformat-bitmap(5). Read first: `stored_bitmaps_hold_what_rev_list_lists`.

use std::{ops::Range, rc::Rc};

use rustc_hash::FxHashMap;

use super::{
    checksum::Checksum,
    entry::ObjectType,
    ewah::{Ewah, EwahError},
    map::Mapping,
    marks::Marks,
    pace::Pace,
};
use crate::{
    limits,
    oid::{Kind, ObjectId},
};

/// Why a `.bitmap` file is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// It does not start as a bitmap file, or is shorter than header and trailer.
    #[error("the bitmap file has no sound header; `git repack -adb` makes it anew")]
    Header,
    /// Another version than 1.
    #[error("the bitmap file has version {0}, 1 is known")]
    Version(u16),
    /// It does not promise that all links of its objects are inside: flags as they stand.
    #[error("the bitmap file does not cover all links (flags {0:#06x})")]
    Partial(u16),
    /// It names another pack or multi-pack-index.
    #[error("the bitmap file belongs to another pack")]
    Mismatch,
    /// The tables at its end do not fit into it.
    #[error("the bitmap file is too short for its tables")]
    Tables,
    /// A stored bitmap does not start within the file, or for no object.
    #[error("entry {entry} of the bitmap file is damaged")]
    Entry {
        /// Which, in the order they stand.
        entry: u32,
    },
    /// An exclusive-or against what is not before it, or in a circle.
    #[error("entry {entry} of the bitmap file is joined to no earlier one")]
    Chain {
        /// Which, in the order they stand or, with a lookup table, in that.
        entry: u32,
    },
    /// Two bitmaps for the commit at that index position.
    #[error("the bitmap file has two entries for the object at index position {0}")]
    Twice(u32),
    /// A compressed set is damaged.
    #[error("{0}")]
    Set(#[from] EwahError),
    /// Its bytes are not those its trailer was made of.
    #[error("the bitmap file does not match its checksum; `git repack -adb` makes it anew")]
    Checksum,
}

/// A mapped `.bitmap` file.
#[derive(Debug)]
pub struct Bitmaps {
    map: Mapping,
    kind: Kind,
    /// Objects, and so bits of each set.
    count: u32,
    /// Where the sets of commits, trees, blobs and tags start.
    types: [usize; 4],
    rows: Rows,
    /// Where each pseudo-merge starts.
    merges: Vec<usize>,
}

/// Where the stored bitmaps are.
#[derive(Debug)]
enum Rows {
    /// In the order they stand, and sorted by index position.
    Scanned(Vec<Row>, Vec<(u32, u32)>),
    /// In the lookup table, sorted by index position.
    Table(Range<usize>),
}

/// One stored bitmap.
#[derive(Clone, Copy, Debug)]
struct Row {
    commit: u32,
    /// Where its set starts.
    at: usize,
    /// The row it is an exclusive-or against.
    against: Option<u32>,
}

/// Names one stored bitmap of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored(u32);

impl Bitmaps {
    /// Finds its way in a file for `count` objects that must name `checksum`: that of a pack or a multi-pack-index.
    /// Cost: without a lookup table, a look at each stored bitmap's header.
    ///
    /// # Errors
    /// The file is damaged, of an unknown version, or for other objects.
    pub fn open(map: Mapping, kind: Kind, count: u32, checksum: &ObjectId) -> Result<Self, BitmapError> {
        let header = Header::parse(&map, kind)?;
        if header.checksum != *checksum {
            return Err(BitmapError::Mismatch);
        }
        let sections = Sections::find(&map, kind, count, &header)?;
        let mut at = header.size;
        let mut types = [0; 4];
        for start in &mut types {
            *start = at;
            at += Ewah::parse(map.get(at..sections.sets_end).unwrap_or_default())?.1;
        }
        let merges = sections.merges(&map)?;
        let rows = match sections.table {
            Some(table) => Rows::Table(table),
            None => scan(map.get(..sections.sets_end).unwrap_or_default(), at, header.entries, count)?,
        };
        Ok(Self { map, kind, count, types, rows, merges })
    }

    /// Compares all bytes with the trailer: 1 ms for about 1.5 MB.
    ///
    /// # Errors
    /// [`BitmapError::Checksum`].
    pub async fn verify(&self, pace: &Pace) -> Result<(), BitmapError> {
        if is_sound(&self.map, self.kind, pace).await { Ok(()) } else { Err(BitmapError::Checksum) }
    }

    /// Objects, and so bits of each set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Stored bitmaps.
    pub fn stored(&self) -> u32 {
        match &self.rows {
            Rows::Scanned(rows, _) => rows.len() as u32,
            Rows::Table(table) => (table.len() / TRIPLET_SIZE) as u32,
        }
    }

    /// The stored bitmap of the commit at an index position.
    pub fn find(&self, index: u32) -> Option<Stored> {
        match &self.rows {
            Rows::Scanned(_, sorted) => {
                let at = sorted.binary_search_by_key(&index, |(commit, _)| *commit).ok()?;
                sorted.get(at).map(|(_, row)| Stored(*row))
            }
            Rows::Table(table) => {
                let table = self.map.get(table.clone())?.as_chunks::<TRIPLET_SIZE>().0;
                let commit = |triplet: &[u8; TRIPLET_SIZE]| word(triplet, 0).unwrap_or(u32::MAX);
                table.binary_search_by_key(&index, commit).ok().map(|row| Stored(row as u32))
            }
        }
    }

    /// The bits of all objects of a type.
    ///
    /// # Errors
    /// The set is damaged.
    pub fn of_type(&self, object: ObjectType) -> Result<Marks, BitmapError> {
        let [commits, trees, blobs, tags] = self.types;
        let at = match object {
            ObjectType::Commit => commits,
            ObjectType::Tree => trees,
            ObjectType::Blob => blobs,
            ObjectType::Tag => tags,
        };
        let mut words = self.room();
        self.set_at(at)?.0.or_into(&mut words)?;
        self.checked(words)
    }

    /// Pseudo-merges: sets of commits of which the union of all that is reachable is stored.
    pub fn merges(&self) -> usize {
        self.merges.len()
    }

    /// Adds to `bits` what the pseudo-merge reaches, if all its commits are in `tips` or in `bits`; tells whether they are.
    ///
    /// # Errors
    /// One of its sets is damaged, or there is no such pseudo-merge.
    pub fn add_merge(&self, number: usize, tips: &Marks, bits: &mut Marks) -> Result<bool, BitmapError> {
        let at = self.merges.get(number).copied().ok_or(BitmapError::Tables)?;
        let (commits, used) = self.set_at(at)?;
        let mut known = bits.words().to_vec();
        known.resize(self.words(), 0);
        known.iter_mut().zip(tips.words()).for_each(|(word, tips)| *word |= tips);
        if !commits.is_within(&known)? {
            return Ok(false);
        }
        let mut words = self.room();
        self.set_at(at + used)?.0.or_into(&mut words)?;
        bits.join(&self.checked(words)?);
        Ok(true)
    }

    fn row(&self, number: u32) -> Option<Row> {
        match &self.rows {
            Rows::Scanned(rows, _) => rows.get(number as usize).copied(),
            Rows::Table(table) => {
                let table = self.map.get(table.clone())?.as_chunks::<TRIPLET_SIZE>().0;
                let triplet = table.get(number as usize)?;
                let offset = u64::from_be_bytes(triplet.get(4..12)?.try_into().ok()?);
                let at = usize::try_from(offset).ok()?.checked_add(ENTRY_HEADER_SIZE)?;
                let against = word(triplet, 12).filter(|row| *row != u32::MAX);
                Some(Row { commit: word(triplet, 0)?, at, against })
            }
        }
    }

    fn set_at(&self, at: usize) -> Result<(Ewah<'_>, usize), BitmapError> {
        Ok(Ewah::parse(self.map.get(at..).unwrap_or_default())?)
    }

    /// Words of each set.
    fn words(&self) -> usize {
        (self.count as usize).div_ceil(64)
    }

    fn room(&self) -> Vec<u64> {
        vec![0; self.words()]
    }

    /// Refuses bits beyond the last object.
    fn checked(&self, words: Vec<u64>) -> Result<Marks, BitmapError> {
        let beyond = self.count % 64;
        if beyond != 0 && words.last().is_some_and(|last| last >> beyond != 0) {
            return Err(EwahError::Beyond { room: self.words() }.into());
        }
        Ok(Marks::of_words(words))
    }
}

/// Resolves stored bitmaps of one file; remembers those it met, since one is often the base of the next.
pub struct Resolver<'a> {
    bitmaps: &'a Bitmaps,
    known: FxHashMap<u32, Rc<Marks>>,
}

impl<'a> Resolver<'a> {
    /// A resolver that remembers nothing yet.
    pub fn new(bitmaps: &'a Bitmaps) -> Self {
        Self { bitmaps, known: FxHashMap::default() }
    }

    /// The file it resolves.
    pub fn bitmaps(&self) -> &'a Bitmaps {
        self.bitmaps
    }

    /// Bits of all that is reachable from the commit of a stored bitmap, itself included.
    ///
    /// # Errors
    /// The bitmap, or one it is an exclusive-or against, is damaged.
    pub async fn reachable(&mut self, stored: Stored, pace: &Pace) -> Result<Rc<Marks>, BitmapError> {
        let mut chain = Vec::new();
        let mut number = stored.0;
        let mut words = loop {
            if let Some(known) = self.known.get(&number) {
                if chain.is_empty() {
                    return Ok(Rc::clone(known));
                }
                break known.words().to_vec();
            }
            let row = self.bitmaps.row(number).ok_or(BitmapError::Entry { entry: number })?;
            chain.push((number, row));
            if chain.len() > self.bitmaps.stored() as usize {
                return Err(BitmapError::Chain { entry: stored.0 });
            }
            match row.against {
                Some(against) => number = against,
                None => break self.bitmaps.room(),
            }
        };
        let mut found = None;
        while let Some((number, row)) = chain.pop() {
            let (set, _) = self.bitmaps.set_at(row.at)?;
            set.xor_into(&mut words)?;
            pace.work((set.size() + words.len()) / WORDS_PER_UNIT).await;
            found = Some(self.remember(number, words.clone())?);
        }
        found.ok_or(BitmapError::Chain { entry: stored.0 })
    }

    fn remember(&mut self, number: u32, words: Vec<u64>) -> Result<Rc<Marks>, BitmapError> {
        let marks = Rc::new(self.bitmaps.checked(words)?);
        let held = (self.known.len() + 1) * self.bitmaps.words() * size_of::<u64>();
        if held > limits::BITMAPS_HELD_MAX {
            self.known.clear();
        }
        self.known.insert(number, Rc::clone(&marks));
        Ok(marks)
    }
}

/// Whether a file ends with the hash of all before it. Gives the loop back every 64 KiB.
pub(super) async fn is_sound(map: &Mapping, kind: Kind, pace: &Pace) -> bool {
    let Some(end) = map.len().checked_sub(kind.len_in_bytes()) else { return false };
    let (content, trailer) = map.split_at(end);
    let mut sum = Checksum::new(kind);
    for part in content.chunks(64 * 1024) {
        sum.update(part);
        pace.work(part.len() / 3).await;
    }
    sum.finish().as_bytes() == trailer
}

struct Header {
    flags: u16,
    entries: u32,
    checksum: ObjectId,
    size: usize,
}

impl Header {
    fn parse(map: &[u8], kind: Kind) -> Result<Self, BitmapError> {
        let size = 12 + kind.len_in_bytes();
        let raw = map.get(..size).filter(|_| map.len() >= size + kind.len_in_bytes()).ok_or(BitmapError::Header)?;
        let (Some(b"BITM"), Some(version), Some(entries)) = (raw.get(..4), word(raw, 4), word(raw, 8)) else {
            return Err(BitmapError::Header);
        };
        let (version, flags) = ((version >> 16) as u16, version as u16);
        if version != 1 {
            return Err(BitmapError::Version(version));
        }
        if flags & FULL_DAG == 0 {
            return Err(BitmapError::Partial(flags));
        }
        let checksum = raw.get(12..).and_then(|raw| ObjectId::try_from(raw).ok()).ok_or(BitmapError::Header)?;
        Ok(Self { flags, entries, checksum, size })
    }
}

/// The tables at the end of the file, found from its end backwards.
struct Sections {
    /// Where the sets and entries end.
    sets_end: usize,
    table: Option<Range<usize>>,
    /// The offsets of all pseudo-merges.
    merges: Range<usize>,
}

impl Sections {
    fn find(map: &[u8], kind: Kind, count: u32, header: &Header) -> Result<Self, BitmapError> {
        let mut end = map.len() - kind.len_in_bytes();
        let mut take = |size: u64| -> Result<Range<usize>, BitmapError> {
            let start = usize::try_from(size).ok().and_then(|size| end.checked_sub(size));
            let start = start.filter(|start| *start >= header.size).ok_or(BitmapError::Tables)?;
            Ok(start..std::mem::replace(&mut end, start))
        };
        if header.flags & NAME_HASHES != 0 {
            take(u64::from(count) * 4)?;
        }
        let mut table = None;
        if header.flags & LOOKUP_TABLE != 0 {
            table = Some(take(u64::from(header.entries) * TRIPLET_SIZE as u64)?);
        }
        let mut merges = 0..0;
        if header.flags & PSEUDO_MERGES != 0 {
            let tail = take(MERGES_TAIL_SIZE)?;
            let tail = map.get(tail).unwrap_or_default();
            let size = tail.get(16..24).and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_be_bytes);
            merges = take(u64::from(word(tail, 0).unwrap_or(0)) * 8)?;
            let before = size.checked_sub(MERGES_TAIL_SIZE + merges.len() as u64).ok_or(BitmapError::Tables)?;
            take(before)?;
        }
        Ok(Self { sets_end: end, table, merges })
    }

    fn merges(&self, map: &[u8]) -> Result<Vec<usize>, BitmapError> {
        let offsets = map.get(self.merges.clone()).unwrap_or_default().as_chunks::<8>().0;
        let offset = |raw: &[u8; 8]| usize::try_from(u64::from_be_bytes(*raw)).ok().filter(|at| *at < map.len());
        offsets.iter().map(|raw| offset(raw).ok_or(BitmapError::Tables)).collect()
    }
}

/// Steps over all stored bitmaps.
fn scan(sets: &[u8], mut at: usize, entries: u32, count: u32) -> Result<Rows, BitmapError> {
    let mut rows: Vec<Row> = Vec::new();
    for entry in 0..entries {
        let damaged = BitmapError::Entry { entry };
        let rest = sets.get(at..).unwrap_or_default();
        let commit = word(rest, 0).filter(|commit| *commit < count).ok_or(damaged)?;
        let back = u32::from(*rest.get(4).ok_or(damaged)?);
        if back > limits::BITMAP_XOR_MAX || back > entry {
            return Err(BitmapError::Chain { entry });
        }
        let start = at + ENTRY_HEADER_SIZE;
        let (_, used) = Ewah::parse(sets.get(start..).ok_or(damaged)?)?;
        rows.push(Row { commit, at: start, against: (back > 0).then(|| entry - back) });
        at = start + used;
    }
    let mut sorted: Vec<(u32, u32)> = rows.iter().map(|row| row.commit).zip(0..).collect();
    sorted.sort_unstable();
    if let Some([(twice, _), _]) = sorted.array_windows().find(|[(one, _), (other, _)]| one == other) {
        return Err(BitmapError::Twice(*twice));
    }
    Ok(Rows::Scanned(rows, sorted))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|raw| raw.try_into().ok()).map(u32::from_be_bytes)
}

/// Flag: every link of every object stays inside. Without it a bitmap says nothing.
const FULL_DAG: u16 = 0x1;
/// Flag: a hash of each object's path stands at the end.
const NAME_HASHES: u16 = 0x4;
/// Flag: a table of all stored bitmaps stands before those.
const LOOKUP_TABLE: u16 = 0x10;
/// Flag: pseudo-merges stand before that.
const PSEUDO_MERGES: u16 = 0x20;
/// Bytes of one row of the lookup table: index position, offset, row.
const TRIPLET_SIZE: usize = 16;
/// Bytes before the set of a stored bitmap: index position, exclusive-or offset, flags.
const ENTRY_HEADER_SIZE: usize = 6;
/// Bytes at the end of the pseudo-merges: how many, of how many commits, where their table is, size of it all.
const MERGES_TAIL_SIZE: u64 = 24;
/// Joining so many words costs what inflating one byte costs.
const WORDS_PER_UNIT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::fixture::{Repository, map, map_bytes};
    use std::collections::BTreeSet;

    /// The repository's only pack with its bitmap file.
    fn opened(repository: &Repository, bytes: Option<&[u8]>) -> (crate::pack::Pack, Result<Bitmaps, BitmapError>) {
        let path = &repository.pack_files("bitmap")[0];
        let pack = repository.pack_of(path);
        let map = bytes.map_or_else(|| map(path), map_bytes);
        let bitmaps = Bitmaps::open(map, repository.kind, pack.count(), pack.trailer());
        (pack, bitmaps)
    }

    /// Compares every stored bitmap and the types with git; returns how many there are.
    fn compare_all(repository: &Repository) -> usize {
        let (pack, bitmaps) = opened(repository, None);
        let bitmaps = bitmaps.unwrap();
        let pace = Pace::default();
        let ids = |marks: &Marks| -> BTreeSet<ObjectId> {
            marks.iter_from(0).map(|bit| pack.id_at(pack.order()[bit as usize]).unwrap().to_owned()).collect()
        };
        pace.run(bitmaps.verify(&pace), |_| unreachable!()).unwrap();
        let mut resolver = Resolver::new(&bitmaps);
        let mut count = 0;
        for index in 0..pack.count() {
            let Some(stored) = bitmaps.find(index) else { continue };
            count += 1;
            let marks = pace.run(resolver.reachable(stored, &pace), |_| unreachable!()).unwrap();
            let id = pack.id_at(index).unwrap().to_string();
            let listed = repository.parse_ids(&repository.git(&["rev-list", "--objects", &id]));
            assert_eq!(ids(&marks), listed.into_iter().collect(), "{id}");
        }
        assert_eq!(count, bitmaps.stored());
        for object in [ObjectType::Commit, ObjectType::Tree, ObjectType::Blob, ObjectType::Tag] {
            let format = "--batch-check=%(objectname) %(objecttype)";
            let lines = repository.git(&["cat-file", "--batch-all-objects", format]);
            let of_type: Vec<&str> = lines.lines().filter(|line| line.ends_with(object.name())).collect();
            assert_eq!(
                ids(&bitmaps.of_type(object).unwrap()),
                repository.parse_ids(&of_type.join("\n")).into_iter().collect()
            );
        }
        count as usize
    }

    #[test]
    fn stored_bitmaps_hold_what_rev_list_lists() {
        for (kind, table) in
            [(Kind::Sha1, "false"), (Kind::Sha1, "true"), (Kind::Sha256, "false"), (Kind::Sha256, "true")]
        {
            let repository = Repository::empty(kind);
            repository.grow(40, 120);
            repository.git(&["-c", &format!("pack.writeBitmapLookupTable={table}"), "repack", "-adbfq"]);
            assert!(compare_all(&repository) > 5);
        }
    }

    #[test]
    fn pseudo_merges_reach_what_their_commits_reach() {
        let repository = Repository::packed(41, 150);
        repository.git(&["config", "bitmapPseudoMerge.all.pattern", "refs/"]);
        repository.git(&["config", "bitmapPseudoMerge.all.threshold", "now"]);
        repository.git(&["config", "bitmapPseudoMerge.all.stableThreshold", "never"]);
        repository.git(&["repack", "-adbfq"]);
        compare_all(&repository);
        let (pack, bitmaps) = opened(&repository, None);
        let bitmaps = bitmaps.unwrap();
        assert!(bitmaps.merges() > 0);
        for number in 0..bitmaps.merges() {
            let mut words = bitmaps.room();
            bitmaps.set_at(bitmaps.merges[number]).unwrap().0.or_into(&mut words).unwrap();
            let tips = Marks::of_words(words);
            let id = |bit: u32| pack.id_at(pack.order()[bit as usize]).unwrap().to_owned();
            let commits: String = tips.iter_from(0).map(|bit| id(bit).to_string() + "\n").collect();
            let listed = repository.git_fed(&["rev-list", "--objects", "--stdin"], commits.as_bytes());
            let mut bits = Marks::default();
            assert_eq!(bitmaps.add_merge(number, &Marks::default(), &mut bits), Ok(false));
            assert_eq!(bitmaps.add_merge(number, &tips, &mut bits), Ok(true));
            let held: BTreeSet<ObjectId> = bits.iter_from(0).map(id).collect();
            assert_eq!(held, repository.parse_ids(&listed).into_iter().collect());
        }
    }

    #[test]
    fn a_bitmap_file_of_another_pack_is_refused() {
        let (one, other) = (Repository::packed(42, 20), Repository::packed(43, 20));
        let bytes = std::fs::read(&other.pack_files("bitmap")[0]).unwrap();
        assert_eq!(opened(&one, Some(&bytes)).1.err(), Some(BitmapError::Mismatch));
    }

    #[test]
    fn headers_that_promise_too_little_are_refused() {
        let repository = Repository::packed(44, 20);
        let right = std::fs::read(&repository.pack_files("bitmap")[0]).unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = right.clone();
            bytes[at] = value;
            opened(&repository, Some(&bytes)).1.err()
        };
        assert_eq!(with(0, b'X'), Some(BitmapError::Header));
        assert_eq!(with(5, 2), Some(BitmapError::Version(2)));
        assert_eq!(with(7, 4), Some(BitmapError::Partial(4)));
        // An unknown flag is ignored.
        assert_eq!(with(6, 0x80), None);
        assert!(with(8, 0xff).is_some());
        assert_eq!(opened(&repository, Some(&right[..51])).1.err(), Some(BitmapError::Header));
        assert_eq!(opened(&repository, Some(&right[..60])).1.err(), Some(BitmapError::Tables));
    }

    /// Every stored bitmap of the file, or the first error.
    fn resolved(bitmaps: &Bitmaps, is_verified: bool) -> Result<Vec<Rc<Marks>>, BitmapError> {
        let pace = Pace::default();
        if is_verified {
            pace.run(bitmaps.verify(&pace), |_| unreachable!())?;
        }
        let mut resolver = Resolver::new(bitmaps);
        let found = (0..bitmaps.count()).filter_map(|index| bitmaps.find(index));
        found.map(|stored| pace.run(resolver.reachable(stored, &pace), |_| unreachable!())).collect()
    }

    #[test]
    fn damaged_bitmap_files_are_errors_or_right() {
        for table in ["false", "true"] {
            let repository = Repository::empty(Kind::Sha1);
            repository.grow(45, 60);
            repository.git(&["-c", &format!("pack.writeBitmapLookupTable={table}"), "repack", "-adbfq"]);
            let right = std::fs::read(&repository.pack_files("bitmap")[0]).unwrap();
            let truth = resolved(&opened(&repository, None).1.unwrap(), true).unwrap();
            for length in (0..right.len()).step_by(64) {
                let (_, bitmaps) = opened(&repository, Some(&right[..length]));
                assert!(bitmaps.and_then(|bitmaps| resolved(&bitmaps, true)).is_err(), "cut at {length}");
            }
            for at in 0..right.len() {
                let mut bytes = right.clone();
                bytes[at] ^= 1 << (at % 8);
                let (_, bitmaps) = opened(&repository, Some(&bytes));
                let Ok(bitmaps) = bitmaps else { continue };
                assert_eq!(resolved(&bitmaps, true).ok().filter(|found| *found != truth), None, "flipped at {at}");
                // Unverified it may be wrong, but ends.
                let _ = resolved(&bitmaps, false);
            }
        }
    }
}
