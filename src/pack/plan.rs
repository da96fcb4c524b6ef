//! The plan of one answer: a selection becomes extents of mapped packs and a few bytes of our own.
//!
//! Small, immutable, and shared: it holds its packs alive, so a repack under a running clone cannot hurt it. Copies no
//! entry, writes to no socket. Invariants: a delta is copied only when its base is in the answer, from the same pack and
//! written before it, or is named by id and known to the client; offsets in the answer are those the client will count.
//! Source: gitformat-pack(5); design: docs/architecture.md, "The way of a clone".
//! Read first: `planned_packs_hold_exactly_the_selection` in `tests` of this room.

use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;

use super::{
    deflate::Deflater,
    delta,
    entry::{self, Entry, EntryKind, ObjectType},
    fault::Fault,
    objects::Objects,
    packfile::Pack,
    reader::base_offset,
    walk::Selection,
};
use crate::{
    limits,
    oid::{Kind, ObjectId},
};

/// Everything needed to stream one pack, and as often as one likes.
#[derive(Debug)]
pub struct Plan {
    kind: Kind,
    packs: Vec<Arc<Pack>>,
    pieces: Vec<Piece>,
    inline: Vec<u8>,
    size: u64,
    tail: Vec<Large>,
    trailer: OnceLock<ObjectId>,
    /// The pack's own trailer is part of the last extent.
    trailer_planned: bool,
    /// How its objects are said.
    pub counts: Counts,
}

/// How the objects of a plan are said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects in the pack.
    pub objects: u32,
    /// Deltas among them.
    pub deltas: u32,
    /// Entries sent as they stand on disk.
    pub copied: u32,
    /// Deltas whose base moved: new header, same stream.
    pub rewritten: u32,
    /// Deltas against an object the client has (thin pack).
    pub thin: u32,
    /// Deltas joined to one against an object further down the chain.
    pub retargeted: u32,
    /// Deltas made anew, against another object of the same family.
    pub compared: u32,
    /// Objects inflated and deflated anew.
    pub deflated: u32,
}

/// One part of the answer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of our own.
    Inline {
        /// Offset into the plan's own bytes.
        start: u64,
        /// How many.
        len: u64,
    },
    /// Bytes of a mapped pack.
    Extent {
        /// Which of the plan's packs.
        pack: u32,
        /// Offset into the pack file.
        start: u64,
        /// How many.
        len: u64,
    },
}

impl Piece {
    /// Bytes of the piece.
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline { len, .. } | Self::Extent { len, .. } => *len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part `from..from + len` of the piece.
    #[must_use]
    pub fn part(self, from: u64, len: u64) -> Self {
        match self {
            Self::Inline { start, .. } => Self::Inline { start: start + from, len },
            Self::Extent { pack, start, .. } => Self::Extent { pack, start: start + from, len },
        }
    }
}

/// An object too large to be deflated in one go; streamed behind the last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Its id.
    pub id: ObjectId,
    /// Its type.
    pub object: ObjectType,
    /// Bytes of its content.
    pub size: u64,
}

/// What the client can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// It understands `OFS_DELTA`.
    pub ofs_delta: bool,
    /// It completes a pack whose deltas rest on objects it has.
    pub thin: bool,
}

impl Plan {
    /// The pieces in order, from the pack header on. The trailer is among them only if [`Self::has_own_trailer`].
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The bytes of a piece, or of a part of one.
    pub fn bytes(&self, piece: Piece) -> &[u8] {
        let (bytes, start, len) = match piece {
            Piece::Inline { start, len } => (self.inline.as_slice(), start, len),
            Piece::Extent { pack, start, len } => {
                (self.packs.get(pack as usize).map_or(&[][..], |pack| pack.bytes()), start, len)
            }
        };
        let end = start.saturating_add(len);
        usize::try_from(start)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(start, end)| bytes.get(start..end))
            .unwrap_or_default()
    }

    /// Bytes of all pieces.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Part of a pack's file as it stands, for those who fetch packs as files.
    pub fn of_file(pack: &Arc<Pack>, start: u64, len: u64) -> Self {
        Self {
            kind: pack.kind(),
            packs: vec![Arc::clone(pack)],
            pieces: vec![Piece::Extent { pack: 0, start, len }],
            inline: Vec::new(),
            size: len,
            tail: Vec::new(),
            trailer: OnceLock::from(*pack.trailer()),
            trailer_planned: true,
            counts: Counts::default(),
        }
    }

    /// The packs its extents lie in.
    pub fn packs(&self) -> &[Arc<Pack>] {
        &self.packs
    }

    /// Objects to be streamed behind the pieces.
    pub fn tail(&self) -> &[Large] {
        &self.tail
    }

    /// The hash function of the trailer.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the pieces end with the trailer of a whole pack, so that nothing needs to be hashed.
    pub fn has_own_trailer(&self) -> bool {
        self.trailer_planned
    }

    /// The trailer, once somebody has streamed the plan to its end.
    pub fn trailer(&self) -> Option<&ObjectId> {
        self.trailer.get()
    }

    /// Remembers the trailer for the next client.
    pub fn learn_trailer(&self, trailer: ObjectId) {
        let _ = self.trailer.set(trailer);
    }

    /// A plan of bytes alone, for tests of those who stream plans.
    #[cfg(test)]
    pub fn of_own_bytes(bytes: &[u8]) -> Self {
        let mut draft = Draft::new(Kind::Sha1, 0, Dialect::default());
        (draft.plan.inline, draft.plan.size) = (Vec::new(), 0);
        draft.plan.pieces.clear();
        draft.push_inline(bytes);
        draft.finish()
    }

    /// Bytes the plan holds itself, mappings not counted.
    pub fn held(&self) -> usize {
        self.inline.capacity() + self.pieces.capacity() * size_of::<Piece>() + size_of::<Self>()
    }
}

/// Plans how to say `selection`.
///
/// # Errors
/// An object that cannot be copied is damaged.
pub async fn plan(objects: &mut Objects, selection: &Selection, dialect: Dialect) -> Result<Plan, Fault> {
    let store = Arc::clone(objects.store());
    let total = u32::try_from(selection.chosen.count()).unwrap_or(u32::MAX);
    if let Some(plan) = whole_pack(objects, selection, dialect, total) {
        return Ok(plan);
    }
    let mut draft = Draft::new(store.kind(), total, dialect);
    for (number, pack) in store.packs().iter().enumerate() {
        let start = store.start_of(number);
        let chosen = selection.chosen.count_between(start, start + pack.count());
        if chosen > 0 {
            draft.begin_pack(Arc::clone(pack), number, start);
            if chosen == u64::from(pack.count()) && dialect.ofs_delta {
                draft.copy_all(pack);
            } else {
                draft.meet_had(objects, pack, selection).await?;
                draft.copy_chosen(objects, pack, selection).await?;
            }
        }
    }
    let loose: Vec<u32> = selection.chosen.iter_from(store.total()).collect();
    for position in loose {
        draft.deflate(objects, position).await?;
    }
    Ok(draft.finish())
}

/// The selection is one whole pack: then the answer is the file.
fn whole_pack(objects: &Objects, selection: &Selection, dialect: Dialect, total: u32) -> Option<Plan> {
    let store = objects.store();
    let (_, pack) = store.packs().iter().enumerate().find(|(number, pack)| {
        let start = store.start_of(*number);
        pack.count() == total && selection.chosen.count_between(start, start + total) == u64::from(total)
    })?;
    if !dialect.ofs_delta || total == 0 {
        return None;
    }
    let counts = Counts { objects: total, copied: total, ..Counts::default() };
    Some(Plan { counts, ..Plan::of_file(pack, 0, pack.bytes().len() as u64) })
}

/// A plan in the making.
struct Draft {
    plan: Plan,
    dialect: Dialect,
    deflater: Deflater,
    /// Number of the pack among the store's, its first position.
    number: usize,
    start: u32,
    /// Verbatim ranges of the pack at hand, ascending.
    runs: Vec<Run>,
    /// Of each family (objects whose chains end at one entry): the last that was not copied.
    families: FxHashMap<u64, Relative>,
    /// Of each family whose whole entry is to be sent: the nearest object the client has, and how many deltas away it is.
    had: FxHashMap<u64, (u32, usize)>,
}

/// An object of a family, as it stands in the answer.
#[derive(Clone, Copy, Debug)]
struct Relative {
    position: u32,
    out: u64,
    /// Deltas made anew below it.
    depth: u32,
}

/// Bytes `start..end` of the pack stand at `out` in the answer.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    out: u64,
}

/// How one chosen entry is to be said.
enum Saying {
    AsItStands,
    /// The bytes of our own that replace the header.
    NewHeader(Vec<u8>),
    /// It cannot be copied.
    Otherwise,
}

impl Draft {
    fn new(kind: Kind, objects: u32, dialect: Dialect) -> Self {
        let plan = Plan {
            kind,
            packs: Vec::new(),
            pieces: Vec::new(),
            inline: Vec::new(),
            size: 0,
            tail: Vec::new(),
            trailer: OnceLock::new(),
            trailer_planned: false,
            counts: Counts { objects, ..Counts::default() },
        };
        let mut draft = Self {
            plan,
            dialect,
            deflater: Deflater::new(),
            number: 0,
            start: 0,
            runs: Vec::new(),
            families: FxHashMap::default(),
            had: FxHashMap::default(),
        };
        let mut header = *b"PACK\0\0\0\x02\0\0\0\0";
        header[8..].copy_from_slice(&objects.to_be_bytes());
        draft.push_inline(&header);
        draft
    }

    fn begin_pack(&mut self, pack: Arc<Pack>, number: usize, start: u32) {
        self.plan.packs.push(pack);
        (self.number, self.start) = (number, start);
        self.runs.clear();
        self.families.clear();
        self.had.clear();
    }

    /// All entries of the pack: distances between them stay as they are.
    fn copy_all(&mut self, pack: &Pack) {
        self.push_extent(PACK_HEADER_SIZE, pack.end().saturating_sub(PACK_HEADER_SIZE));
        self.plan.counts.copied += pack.count();
    }

    /// Finds relatives of what is to be sent among what the client has. git stores the newest version of a file whole and
    /// older ones as deltas against it, so that a client that is a few commits behind would get the newest ones whole.
    async fn meet_had(&mut self, objects: &mut Objects, pack: &Pack, selection: &Selection) -> Result<(), Fault> {
        let end = self.start + pack.count();
        if !self.dialect.thin || selection.common.count_between(self.start, end) > HAD_MAX {
            return Ok(());
        }
        for position in selection.common.iter_from(self.start).take_while(|position| *position < end) {
            let Some(offset) = pack.offset_at(position - self.start) else { continue };
            let id = objects.id(position)?;
            let (root, depth) = objects.root_of(pack, offset, id)?;
            if self.had.get(&root).is_none_or(|known| known.1 > depth) {
                self.had.insert(root, (position, depth));
            }
            objects.pace().work(COST_OF_ENTRY * (depth + 1)).await;
        }
        Ok(())
    }

    /// Says a delta against an object of the family that the client has, where that is much smaller than the entry.
    async fn compare_had(
        &mut self,
        objects: &mut Objects,
        pack: &Pack,
        run: &Run,
        position: u32,
    ) -> Result<bool, Fault> {
        let Some((had, _)) = self.had.get(&run.start).copied() else { return Ok(false) };
        let entry_size = usize::try_from(run.end - run.start).unwrap_or(usize::MAX);
        let entry = pack.entry(run.start).map_err(|error| Fault::Entry { id: ObjectId::null(pack.kind()), error })?;
        if !matches!(entry.kind, EntryKind::Whole(_)) || entry_size < WORTH_COMPARING {
            return Ok(false);
        }
        self.say_fresh(objects, (had, None), position, entry_size / 2).await
    }

    async fn copy_chosen(&mut self, objects: &mut Objects, pack: &Pack, selection: &Selection) -> Result<(), Fault> {
        for (at, index) in pack.order().iter().enumerate() {
            let position = self.start + index;
            if !selection.chosen.contains(position) {
                continue;
            }
            // Looked up only for what is not copied: in this order each id is a cache miss.
            let id = || pack.id_at(*index).map_or_else(|| ObjectId::null(pack.kind()), ToOwned::to_owned);
            let (Some(offset), Some(end)) =
                (pack.offset_at(*index), pack.offset_in_order(u32::try_from(at + 1).unwrap_or(u32::MAX)))
            else {
                return Err(Fault::NoBase { id: id() });
            };
            let entry = pack.entry(offset).map_err(|error| Fault::Entry { id: id(), error })?;
            let size = end.checked_sub(offset).filter(|size| *size >= entry.header_size as u64);
            let size = size.ok_or_else(|| Fault::Inflate { id: id() })?;
            match self.say(objects, pack, offset, &entry, selection) {
                Saying::AsItStands => {
                    let run = Run { start: offset, end, out: self.plan.size };
                    if self.compare_had(objects, pack, &run, position).await? {
                        self.runs.push(run);
                    } else {
                        self.copy(offset, size);
                    }
                }
                Saying::NewHeader(header) => {
                    self.push_inline(&header);
                    let used = entry.header_size as u64;
                    self.push_extent(offset + used, size - used);
                    self.runs.push(Run { start: offset, end, out: self.plan.size - size + used - header.len() as u64 });
                }
                Saying::Otherwise => {
                    let run = Run { start: offset, end, out: self.plan.size };
                    if self.retarget(objects, pack, &run, selection, id()).await?
                        || self.compare(objects, pack, offset, position, id()).await?
                        || self.deflate(objects, position).await?
                    {
                        // Later deltas may rest on it as if it had been copied.
                        self.runs.push(run);
                    }
                }
            }
            objects.pace().work(COST_OF_ENTRY).await;
        }
        Ok(())
    }

    /// Copies an entry, growing the last run when the two touch.
    fn copy(&mut self, offset: u64, size: u64) {
        let out = self.plan.size;
        self.push_extent(offset, size);
        self.plan.counts.copied += 1;
        match self.runs.last_mut() {
            Some(run) if run.end == offset && run.out + (run.end - run.start) == out => run.end += size,
            _ => self.runs.push(Run { start: offset, end: offset + size, out }),
        }
    }

    /// Where an entry of the pack at hand stands in the answer, if it was written already.
    fn out_of(&self, offset: u64) -> Option<u64> {
        let at = self.runs.partition_point(|run| run.start <= offset).checked_sub(1)?;
        let run = self.runs.get(at)?;
        (offset < run.end).then(|| run.out + (offset - run.start))
    }

    fn say(&mut self, objects: &Objects, pack: &Pack, offset: u64, entry: &Entry, selection: &Selection) -> Saying {
        let Some(base) = base_offset(pack, offset, entry) else { return Saying::AsItStands };
        if let Some(base_out) = self.out_of(base) {
            return self.say_delta(pack, offset, entry, base, base_out);
        }
        let base_id = id_of(pack, base);
        let had = |id: &&crate::oid::oid| {
            objects.store().find(id).is_some_and(|position| selection.common.contains(position))
        };
        let Some(base_id) = base_id.filter(|_| self.dialect.thin).filter(had) else { return Saying::Otherwise };
        self.plan.counts.thin += 1;
        self.plan.counts.deltas += 1;
        if matches!(entry.kind, EntryKind::RefDelta { .. }) {
            return Saying::AsItStands;
        }
        let mut header = Vec::with_capacity(40);
        entry::push_ref_delta(&mut header, &base_id.to_owned(), entry.size);
        Saying::NewHeader(header)
    }

    /// A delta whose base stands at `base_out` in the answer.
    fn say_delta(&mut self, pack: &Pack, offset: u64, entry: &Entry, base: u64, base_out: u64) -> Saying {
        self.plan.counts.deltas += 1;
        let EntryKind::OfsDelta { distance } = entry.kind else { return Saying::AsItStands };
        let mut header = Vec::with_capacity(40);
        if !self.dialect.ofs_delta {
            let Some(base_id) = id_of(pack, base) else { return Saying::Otherwise };
            entry::push_ref_delta(&mut header, &base_id.to_owned(), entry.size);
        } else if self.plan.size - base_out == distance {
            return Saying::AsItStands;
        } else {
            // The type-and-size bytes stay, long-winded or not.
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let kept = pack.bytes().get(start..start.saturating_add(entry.size_bytes)).unwrap_or_default();
            header.extend_from_slice(kept);
            entry::push_distance(&mut header, self.plan.size - base_out);
        }
        self.plan.counts.rewritten += 1;
        Saying::NewHeader(header)
    }

    /// Says a delta against an object further down its chain, if one of these is written or had. False when none is.
    async fn retarget(
        &mut self,
        objects: &mut Objects,
        pack: &Pack,
        run: &Run,
        selection: &Selection,
        id: ObjectId,
    ) -> Result<bool, Fault> {
        let store = Arc::clone(objects.store());
        let had = |base: u64| {
            let id = id_of(pack, base)?;
            store.find(id).is_some_and(|position| selection.common.contains(position)).then(|| id.to_owned())
        };
        let thin = self.dialect.thin;
        let is_base = |base: u64| self.out_of(base).is_some() || (thin && had(base).is_some());
        let Some((base, delta)) = objects.retarget(pack, run.start, id, is_base).await? else { return Ok(false) };
        let mut entry = Vec::with_capacity(delta.len() + 40);
        match self.out_of(base) {
            Some(out) if self.dialect.ofs_delta => {
                entry::push_ofs_delta(&mut entry, self.plan.size - out, delta.len() as u64);
            }
            _ => {
                let Some(base) = id_of(pack, base) else { return Ok(false) };
                entry::push_ref_delta(&mut entry, &base.to_owned(), delta.len() as u64);
            }
        }
        objects.pace().work(delta.len() * COST_OF_DEFLATING).await;
        self.deflater.append(&delta, &mut entry);
        self.push_inline(&entry);
        self.plan.counts.retargeted += 1;
        self.plan.counts.deltas += 1;
        Ok(true)
    }

    /// Says a delta against the last object of the family that was not copied, or one that the client has. False when there is
    /// none, or it would not pay; then the object is to be said whole, and becomes that relative.
    async fn compare(
        &mut self,
        objects: &mut Objects,
        pack: &Pack,
        offset: u64,
        position: u32,
        id: ObjectId,
    ) -> Result<bool, Fault> {
        let (root, _) = objects.root_of(pack, offset, id)?;
        let (out, size_max) = (self.plan.size, usize::try_from(objects.size(position)? / 2).unwrap_or(0));
        let relative = self.families.get(&root).copied().filter(|relative| relative.depth < COMPARED_DEPTH_MAX);
        if let Some(Relative { position: base, out: base_out, depth }) = relative
            && self.say_fresh(objects, (base, Some(base_out)), position, size_max).await?
        {
            self.families.insert(root, Relative { position, out, depth: depth + 1 });
            return Ok(true);
        }
        if let Some((had, _)) = self.had.get(&root).copied()
            && self.say_fresh(objects, (had, None), position, size_max).await?
        {
            self.families.insert(root, Relative { position, out, depth: 1 });
            return Ok(true);
        }
        self.families.insert(root, Relative { position, out, depth: 0 });
        Ok(false)
    }

    /// Makes a delta of at most `size_max` bytes against an object that stands at an offset of the answer, or that the client
    /// has. False when it would be larger, or one of the two is too large to be held.
    async fn say_fresh(
        &mut self,
        objects: &mut Objects,
        (base, base_out): (u32, Option<u64>),
        position: u32,
        size_max: usize,
    ) -> Result<bool, Fault> {
        if objects.size(base)?.max(objects.size(position)?) > limits::OBJECT_INLINE_MAX {
            return Ok(false);
        }
        let (base_object, target) = (objects.read(base).await?, objects.read(position).await?);
        objects.pace().work(base_object.bytes.len() / 2 + target.bytes.len()).await;
        let Some(delta) = delta::make(&base_object.bytes, &target.bytes, size_max) else { return Ok(false) };
        let mut entry = Vec::with_capacity(delta.len() + 40);
        match base_out {
            Some(out) if self.dialect.ofs_delta => {
                entry::push_ofs_delta(&mut entry, self.plan.size - out, delta.len() as u64);
            }
            _ => entry::push_ref_delta(&mut entry, &objects.id(base)?, delta.len() as u64),
        }
        objects.pace().work(delta.len() * COST_OF_DEFLATING).await;
        self.deflater.append(&delta, &mut entry);
        self.push_inline(&entry);
        self.plan.counts.compared += 1;
        self.plan.counts.deltas += 1;
        Ok(true)
    }

    /// Says an object whole: small ones now, large ones behind everything else (then false is returned).
    async fn deflate(&mut self, objects: &mut Objects, position: u32) -> Result<bool, Fault> {
        self.plan.counts.deflated += 1;
        let size = objects.size(position)?;
        if size > limits::OBJECT_INLINE_MAX {
            let (id, object) = (objects.id(position)?, objects.type_of(position)?);
            self.plan.tail.push(Large { id, object, size });
            return Ok(false);
        }
        let object = objects.read(position).await?;
        objects.pace().work(object.bytes.len() * COST_OF_DEFLATING).await;
        let mut entry = Vec::new();
        entry::push_whole(&mut entry, object.object, object.bytes.len() as u64);
        self.deflater.append(&object.bytes, &mut entry);
        self.push_inline(&entry);
        Ok(true)
    }

    fn push_inline(&mut self, bytes: &[u8]) {
        let (start, len) = (self.plan.inline.len() as u64, bytes.len() as u64);
        self.plan.inline.extend_from_slice(bytes);
        self.plan.size += len;
        match self.plan.pieces.last_mut() {
            Some(Piece::Inline { start: before, len: had }) if *before + *had == start => *had += len,
            _ => self.plan.pieces.push(Piece::Inline { start, len }),
        }
    }

    fn push_extent(&mut self, start: u64, len: u64) {
        let pack = u32::try_from(self.plan.packs.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.plan.size += len;
        match self.plan.pieces.last_mut() {
            Some(Piece::Extent { pack: same, start: before, len: had }) if *same == pack && *before + *had == start => {
                *had += len;
            }
            _ => self.plan.pieces.push(Piece::Extent { pack, start, len }),
        }
    }

    fn finish(mut self) -> Plan {
        self.plan.pieces.shrink_to_fit();
        self.plan.inline.shrink_to_fit();
        self.plan
    }
}

/// The id of the entry that starts at `offset`.
fn id_of(pack: &Pack, offset: u64) -> Option<&crate::oid::oid> {
    let at = pack.position_of_offset(offset)?;
    pack.order().get(at as usize).and_then(|index| pack.id_at(*index))
}

/// Bytes of a pack before its first entry.
const PACK_HEADER_SIZE: u64 = 12;
/// Objects a client has that are looked at for relatives: those next to a fetch of a few commits, not a whole history.
const HAD_MAX: u64 = 20_000;
/// Bytes of an entry below which a delta saves nothing worth its making.
const WORTH_COMPARING: usize = 256;
/// Deltas made anew that may rest on each other: as many as git lets.
const COMPARED_DEPTH_MAX: u32 = 50;
/// Units of parsing one entry header.
const COST_OF_ENTRY: usize = 60;
/// Units of deflating one byte.
const COST_OF_DEFLATING: usize = 4;
