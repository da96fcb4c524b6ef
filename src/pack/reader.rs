//! Objects out of packs: a position becomes a type and bytes, through any chain of deltas.
//!
//! Reads no loose object and checks no id. Remembers the bases it met (bounded by bytes), since a walk meets the
//! neighbours of one chain one after the other. Invariants: nothing is allocated from a claim larger than the stream
//! could inflate to; an object over `limits::OBJECT_INLINE_MAX` is inflated in slices.
//! Source: gitformat-pack(5), "Deltified representation".
//! Read first: `objects_read_equal_those_of_git_cat_file` in `tests` of this room.

use std::{collections::VecDeque, rc::Rc};

use libdeflater::Decompressor;
use rustc_hash::FxHashMap;

use super::{
    delta,
    entry::{Entry, EntryKind, ObjectType},
    fault::Fault,
    pace::Pace,
    packfile::Pack,
    store::Store,
};
use crate::{limits, oid::ObjectId};

/// One object held whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its type.
    pub object: ObjectType,
    /// Its bytes, shared with the base cache.
    pub bytes: Rc<Vec<u8>>,
}

/// Reads objects of one store; keep one for each piece of work.
pub struct Reader {
    inflater: Decompressor,
    cache: BaseCache,
    /// Instructions of the delta being applied.
    scratch: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new(limits::BASE_CACHE_SIZE)
    }
}

impl Reader {
    /// A reader that remembers at most `cache_size` bytes of bases.
    pub fn new(cache_size: usize) -> Self {
        Self { inflater: Decompressor::new(), cache: BaseCache::new(cache_size), scratch: Vec::new() }
    }

    /// The object at `position` of `store`.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub async fn read(&mut self, store: &Store, position: u32, pace: &Pace) -> Result<Object, Fault> {
        let (number, pack, index) = store.place(position).ok_or_else(|| missing(store))?;
        let (Some(id), Some(offset)) = (pack.id_at(index), pack.offset_at(index)) else {
            return Err(missing(store));
        };
        self.read_at(number, pack, offset, id.to_owned(), pace).await
    }

    /// The object whose entry starts at `offset` of `pack`; `id` only names it in errors.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub async fn read_at(
        &mut self,
        number: usize,
        pack: &Pack,
        offset: u64,
        id: ObjectId,
        pace: &Pace,
    ) -> Result<Object, Fault> {
        let (mut object, mut chain) = self.down_to_base(number, pack, offset, id, pace).await?;
        while let Some((at, entry)) = chain.pop() {
            let mut instructions = std::mem::take(&mut self.scratch);
            self.inflate(pack, at, &entry, id, &mut instructions, pace).await?;
            let bytes = delta::apply_paced(&object.bytes, &instructions, limits::OBJECT_SIZE_MAX, pace)
                .await
                .map_err(|error| Fault::Delta { id, error })?;
            self.scratch = instructions;
            self.scratch.clear();
            if self.scratch.capacity() > SCRATCH_KEPT {
                self.scratch = Vec::new();
            }
            object.bytes = Rc::new(bytes);
            self.cache.insert((number, at), &object);
        }
        Ok(object)
    }

    /// A delta for the object at `offset` against the nearest object down its chain that `is_base` accepts, made by joining
    /// the deltas between: where that base is, and the instructions. `None` when there is none, or when the delta would be
    /// more than half the object.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub async fn retarget(
        &mut self,
        pack: &Pack,
        offset: u64,
        id: ObjectId,
        is_base: impl Fn(u64) -> bool,
        pace: &Pace,
    ) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        let broken = |error| Fault::Delta { id, error };
        let (mut at, mut joined, mut size_max) = (offset, Vec::new(), 0);
        for depth in 0..=limits::DELTA_DEPTH_MAX {
            if depth > 0 && is_base(at) {
                return Ok(Some((at, joined)));
            }
            let entry = pack.entry(at).map_err(|error| Fault::Entry { id, error })?;
            if matches!(entry.kind, EntryKind::Whole(_)) || entry.size > limits::OBJECT_INLINE_MAX {
                return Ok(None);
            }
            let mut delta = std::mem::take(&mut self.scratch);
            self.inflate(pack, at, &entry, id, &mut delta, pace).await?;
            if depth == 0 {
                size_max = usize::try_from(delta::sizes(&delta).map_err(broken)?.1 / 2).unwrap_or(0);
                joined.clone_from(&delta);
            } else {
                match delta::compose(&joined, &delta, size_max).map_err(broken)? {
                    Some(both) => joined = both,
                    None => {
                        self.scratch = delta;
                        return Ok(None);
                    }
                }
                pace.work(joined.len()).await;
            }
            self.scratch = delta;
            at = base_offset(pack, at, &entry).ok_or(Fault::NoBase { id })?;
        }
        Err(Fault::Depth { id, limit: limits::DELTA_DEPTH_MAX })
    }

    /// Where the chain of the entry at `offset` ends, and after how many deltas: the whole entry all of its family rests on.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub fn root_of(&self, pack: &Pack, offset: u64, id: ObjectId) -> Result<(u64, usize), Fault> {
        let mut at = offset;
        for depth in 0..=limits::DELTA_DEPTH_MAX {
            let entry = pack.entry(at).map_err(|error| Fault::Entry { id, error })?;
            if matches!(entry.kind, EntryKind::Whole(_)) {
                return Ok((at, depth));
            }
            at = base_offset(pack, at, &entry).ok_or(Fault::NoBase { id })?;
        }
        Err(Fault::Depth { id, limit: limits::DELTA_DEPTH_MAX })
    }

    /// Collects the deltas from `offset` down to the first entry that is whole or remembered.
    async fn down_to_base(
        &mut self,
        number: usize,
        pack: &Pack,
        offset: u64,
        id: ObjectId,
        pace: &Pace,
    ) -> Result<(Object, Vec<(u64, Entry)>), Fault> {
        let mut chain = Vec::new();
        let mut at = offset;
        loop {
            if let Some(object) = self.cache.find((number, at)) {
                return Ok((object, chain));
            }
            let entry = pack.entry(at).map_err(|error| Fault::Entry { id, error })?;
            if let EntryKind::Whole(object) = entry.kind {
                let mut bytes = Vec::new();
                self.inflate(pack, at, &entry, id, &mut bytes, pace).await?;
                let object = Object { object, bytes: Rc::new(bytes) };
                self.cache.insert((number, at), &object);
                return Ok((object, chain));
            }
            chain.push((at, entry));
            if chain.len() > limits::DELTA_DEPTH_MAX {
                return Err(Fault::Depth { id, limit: limits::DELTA_DEPTH_MAX });
            }
            at = base_offset(pack, at, &entry).ok_or(Fault::NoBase { id })?;
        }
    }

    /// Inflates the entry at `offset` into `out`, which ends up with exactly the size the entry claims.
    async fn inflate(
        &mut self,
        pack: &Pack,
        offset: u64,
        entry: &Entry,
        id: ObjectId,
        out: &mut Vec<u8>,
        pace: &Pace,
    ) -> Result<(), Fault> {
        let stream = pack.tail(offset).get(entry.header_size..).unwrap_or_default();
        let size = believable_size(entry.size, stream.len(), id)?;
        out.clear();
        if entry.size > limits::OBJECT_INLINE_MAX {
            return inflate_in_slices(stream, size, out, pace).await.ok_or(Fault::Inflate { id });
        }
        pace.work(size + COST_OF_STREAM).await;
        out.resize(size, 0);
        match self.inflater.zlib_decompress(stream, out) {
            Ok(written) if written == size => Ok(()),
            _ => Err(Fault::Inflate { id }),
        }
    }

    /// Bytes the object at `position` has when whole, found without resolving its chain.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub fn size(&mut self, store: &Store, position: u32) -> Result<u64, Fault> {
        let (_, pack, index) = store.place(position).ok_or_else(|| missing(store))?;
        let id = pack.id_at(index).ok_or_else(|| missing(store))?.to_owned();
        let offset = pack.offset_at(index).ok_or(Fault::Missing { id })?;
        let entry = pack.entry(offset).map_err(|error| Fault::Entry { id, error })?;
        if let EntryKind::Whole(_) = entry.kind {
            return Ok(entry.size);
        }
        let stream = pack.tail(offset).get(entry.header_size..).unwrap_or_default();
        // The two sizes at the start of a delta take at most 20 bytes.
        let mut start = [0u8; 20];
        let mut inflate = flate2::Decompress::new(true);
        let stream = stream.get(..stream.len().min(256)).unwrap_or_default();
        let _ = inflate.decompress(stream, &mut start, flate2::FlushDecompress::None);
        let seen = start.get(..usize::try_from(inflate.total_out()).unwrap_or(0)).unwrap_or_default();
        delta::sizes(seen).map(|sizes| sizes.1).map_err(|error| Fault::Delta { id, error })
    }

    /// Type of the object at `position`, found by following its chain without inflating.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub fn type_of(&self, store: &Store, position: u32) -> Result<ObjectType, Fault> {
        let (_, pack, index) = store.place(position).ok_or_else(|| missing(store))?;
        let id = pack.id_at(index).ok_or_else(|| missing(store))?.to_owned();
        let mut at = pack.offset_at(index).ok_or(Fault::Missing { id })?;
        for _ in 0..=limits::DELTA_DEPTH_MAX {
            let entry = pack.entry(at).map_err(|error| Fault::Entry { id, error })?;
            match entry.kind {
                EntryKind::Whole(object) => return Ok(object),
                _ => at = base_offset(pack, at, &entry).ok_or(Fault::NoBase { id })?,
            }
        }
        Err(Fault::Depth { id, limit: limits::DELTA_DEPTH_MAX })
    }
}

/// Where the base of the delta at `offset` starts: earlier for `OFS_DELTA`, anywhere in the same pack for `REF_DELTA`.
pub fn base_offset(pack: &Pack, offset: u64, entry: &Entry) -> Option<u64> {
    match &entry.kind {
        EntryKind::Whole(_) => None,
        EntryKind::OfsDelta { distance } => offset.checked_sub(*distance).filter(|base| *base >= 12 && *base < offset),
        EntryKind::RefDelta { base } => pack.find(base).and_then(|index| pack.offset_at(index)),
    }
}

/// Refuses a claimed size that the stream could not inflate to, or that would not fit in memory.
fn believable_size(claim: u64, stream: usize, id: ObjectId) -> Result<usize, Fault> {
    let possible = (stream as u64).saturating_mul(limits::INFLATE_RATIO_MAX);
    if claim > possible {
        return Err(Fault::Inflate { id });
    }
    if claim > limits::OBJECT_SIZE_MAX {
        return Err(Fault::TooLarge { id, size: claim, limit: limits::OBJECT_SIZE_MAX });
    }
    usize::try_from(claim).map_err(|_| Fault::Inflate { id })
}

async fn inflate_in_slices(stream: &[u8], size: usize, out: &mut Vec<u8>, pace: &Pace) -> Option<()> {
    let mut inflate = flate2::Decompress::new(true);
    out.reserve_exact(size);
    let mut chunk = vec![0u8; SLICE_OF_LARGE];
    loop {
        let (read, written) = (inflate.total_in(), inflate.total_out());
        let rest = stream.get(usize::try_from(read).ok()?..)?;
        let status = inflate.decompress(rest, &mut chunk, flate2::FlushDecompress::None).ok()?;
        let produced = usize::try_from(inflate.total_out() - written).ok()?;
        if out.len() + produced > size {
            return None;
        }
        out.extend_from_slice(chunk.get(..produced)?);
        pace.work(produced).await;
        match status {
            flate2::Status::StreamEnd => return (out.len() == size).then_some(()),
            _ if produced == 0 && inflate.total_in() == read => return None,
            _ => {}
        }
    }
}

fn missing(store: &Store) -> Fault {
    Fault::Missing { id: ObjectId::null(store.kind()) }
}

/// Bases by pack number and offset, second chance first in first out.
struct BaseCache {
    objects: FxHashMap<(usize, u64), Remembered>,
    queue: VecDeque<(usize, u64)>,
    size: usize,
    size_max: usize,
}

struct Remembered {
    object: Object,
    used: bool,
}

impl BaseCache {
    fn new(size_max: usize) -> Self {
        Self { objects: FxHashMap::default(), queue: VecDeque::new(), size: 0, size_max }
    }

    fn find(&mut self, at: (usize, u64)) -> Option<Object> {
        let remembered = self.objects.get_mut(&at)?;
        remembered.used = true;
        Some(remembered.object.clone())
    }

    fn insert(&mut self, at: (usize, u64), object: &Object) {
        let cost = object.bytes.len() + COST_OF_REMEMBERING;
        // One giant must not push out everything else.
        if cost > self.size_max / 4 {
            return;
        }
        if self.objects.insert(at, Remembered { object: object.clone(), used: false }).is_some() {
            return;
        }
        self.queue.push_back(at);
        self.size += cost;
        while self.size > self.size_max {
            let Some(oldest) = self.queue.pop_front() else { break };
            match self.objects.get_mut(&oldest) {
                Some(remembered) if remembered.used => {
                    remembered.used = false;
                    self.queue.push_back(oldest);
                }
                Some(_) => {
                    if let Some(gone) = self.objects.remove(&oldest) {
                        self.size -= gone.object.bytes.len() + COST_OF_REMEMBERING;
                    }
                }
                None => {}
            }
        }
    }
}

/// Units a zlib stream costs beside its bytes: setting up tables.
const COST_OF_STREAM: usize = 1_000;
/// Bytes of bookkeeping of one remembered base.
const COST_OF_REMEMBERING: usize = 128;
/// Instructions of a delta longer than this are not kept for the next one.
const SCRATCH_KEPT: usize = 1024 * 1024;
/// Bytes inflated between two looks at the pace.
const SLICE_OF_LARGE: usize = 64 * 1024;
