//! All objects of one snapshot as a walk sees them: packed ones by position, loose ones by positions behind those.
//!
//! Turns ids into positions and positions into commits, tags and bytes; decides nothing. Loose objects come from whoever
//! polls the work ([`Pace::ask`]). Invariants: a position is given once and never changes its meaning; a commit is parsed
//! once; the parents of a commit in the repository's own `shallow` file are as good as absent.
//! Source: gitformat-commit and tag objects as `git cat-file -p` shows them.
//! Read first: `commits_of_a_loose_repository_are_walked` in `tests` of this room.

use std::{rc::Rc, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    entry::ObjectType,
    fault::Fault,
    graph::{CommitGraph, GraphCommit},
    pace::{Ask, Loose, Pace},
    packfile::Pack,
    reader::{Object, Reader},
    store::Store,
};
use crate::oid::{Kind, ObjectId, from_hex, oid};

/// One snapshot's objects, with what this piece of work has learnt of them.
pub struct Objects {
    store: Arc<Store>,
    reader: Reader,
    pace: Pace,
    loose: FxHashMap<ObjectId, Option<u32>>,
    loose_list: Vec<LooseObject>,
    /// Commits of the repository's own `shallow` file.
    cut: FxHashSet<ObjectId>,
    graph: Option<Arc<CommitGraph>>,
    commits: FxHashMap<u32, Commit>,
    parents: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct LooseObject {
    id: ObjectId,
    object: ObjectType,
    size: u64,
}

/// What a walk needs of a commit.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Its root tree.
    pub tree: ObjectId,
    /// Committer time, seconds since 1970.
    pub time: u64,
    parents: (u32, u32),
}

impl Objects {
    /// Looks at `store`; `shallow` are the commits whose parents this repository does not have.
    pub fn new(store: Arc<Store>, shallow: &[ObjectId], pace: Pace) -> Self {
        Self {
            store,
            reader: Reader::default(),
            pace,
            loose: FxHashMap::default(),
            loose_list: Vec::new(),
            cut: shallow.iter().copied().collect(),
            graph: None,
            commits: FxHashMap::default(),
            parents: Vec::new(),
        }
    }

    /// Lets commits come from a commit-graph. It is ignored in a shallow repository: it knows of no cut.
    #[must_use]
    pub fn with_graph(mut self, graph: Arc<CommitGraph>) -> Self {
        self.graph = Some(graph).filter(|_| !self.is_shallow());
        self
    }

    /// Whether the repository itself lacks the parents of some commits.
    pub fn is_shallow(&self) -> bool {
        !self.cut.is_empty()
    }

    /// The packed part.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The pace all work on these objects keeps.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The position of `id`, or `None` when the repository does not have it.
    ///
    /// # Errors
    /// A loose object of that id is damaged.
    pub async fn locate(&mut self, id: &oid) -> Result<Option<u32>, Fault> {
        match self.store.find(id) {
            Some(position) => Ok(Some(position)),
            None => self.locate_loose(id).await,
        }
    }

    /// The position of an object that others name.
    ///
    /// # Errors
    /// [`Fault::Missing`] when it is not there.
    pub async fn demand(&mut self, id: &oid) -> Result<u32, Fault> {
        self.locate(id).await?.ok_or_else(|| Fault::Missing { id: id.to_owned() })
    }

    /// The part of [`Self::locate`] behind the packs.
    ///
    /// # Errors
    /// A loose object of that id is damaged.
    pub async fn locate_loose(&mut self, id: &oid) -> Result<Option<u32>, Fault> {
        if let Some(known) = self.loose.get(id) {
            return Ok(*known);
        }
        let id = id.to_owned();
        let found = match self.pace.ask(Ask::Look(id)).await? {
            Loose::Absent | Loose::Broken => None,
            Loose::Seen { object, size } => Some((object, size)),
            Loose::Whole { object, bytes } => Some((object, bytes.len() as u64)),
        };
        let position = match found {
            None => None,
            Some((object, size)) => {
                let number = u32::try_from(self.loose_list.len()).ok();
                let position = number.and_then(|number| self.store.total().checked_add(number));
                self.loose_list.push(LooseObject { id, object, size });
                position
            }
        };
        self.loose.insert(id, position);
        Ok(position)
    }

    /// The id at a position that was given out.
    ///
    /// # Errors
    /// [`Fault::Missing`] for a position that never was.
    pub fn id(&self, position: u32) -> Result<ObjectId, Fault> {
        match self.loose_at(position) {
            Some(loose) => Some(loose.id),
            None => self.store.id(position),
        }
        .ok_or_else(|| Fault::Missing { id: ObjectId::null(self.store.kind()) })
    }

    /// Whether the object stands behind the packs.
    pub fn is_loose(&self, position: u32) -> bool {
        position >= self.store.total()
    }

    fn loose_at(&self, position: u32) -> Option<&LooseObject> {
        position.checked_sub(self.store.total()).and_then(|number| self.loose_list.get(number as usize))
    }

    /// Positions given out so far, packed and loose: one more than the highest.
    pub fn total(&self) -> u32 {
        self.store.total().saturating_add(u32::try_from(self.loose_list.len()).unwrap_or(u32::MAX))
    }

    /// The object at a position.
    ///
    /// # Errors
    /// It is damaged, or a loose one has vanished or is too large to be handed over whole.
    pub async fn read(&mut self, position: u32) -> Result<Object, Fault> {
        let Some(LooseObject { id, size, .. }) = self.loose_at(position).copied() else {
            return self.reader.read(&self.store, position, &self.pace).await;
        };
        match self.pace.ask(Ask::Read(id)).await? {
            Loose::Whole { object, bytes } => {
                self.pace.work(bytes.len()).await;
                Ok(Object { object, bytes: Rc::new(bytes) })
            }
            Loose::Seen { .. } => Err(Fault::TooLarge { id, size, limit: crate::limits::OBJECT_INLINE_MAX }),
            Loose::Absent | Loose::Broken => Err(Fault::Missing { id }),
        }
    }

    /// See [`Reader::retarget`]; the entry stands in a pack of the store.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub async fn retarget(
        &mut self,
        pack: &Pack,
        offset: u64,
        id: ObjectId,
        is_base: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        self.reader.retarget(pack, offset, id, is_base, &self.pace).await
    }

    /// See [`Reader::root_of`].
    ///
    /// # Errors
    /// The pack is damaged there.
    pub fn root_of(&self, pack: &Pack, offset: u64, id: ObjectId) -> Result<(u64, usize), Fault> {
        self.reader.root_of(pack, offset, id)
    }

    /// Type of the object at a position, without inflating it.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub fn type_of(&self, position: u32) -> Result<ObjectType, Fault> {
        match self.loose_at(position) {
            Some(loose) => Ok(loose.object),
            None => self.reader.type_of(&self.store, position),
        }
    }

    /// Bytes of the object at a position, without inflating more than its start.
    ///
    /// # Errors
    /// The pack is damaged there.
    pub fn size(&mut self, position: u32) -> Result<u64, Fault> {
        match self.loose_at(position) {
            Some(loose) => Ok(loose.size),
            None => self.reader.size(&self.store, position),
        }
    }

    /// The commit at a position.
    ///
    /// # Errors
    /// It is no commit, or malformed, or one of its parents is missing.
    pub async fn commit(&mut self, position: u32) -> Result<Commit, Fault> {
        if let Some(known) = self.commits.get(&position) {
            return Ok(*known);
        }
        let id = self.id(position)?;
        if let Some(graph) = &self.graph
            && !graph.is_intact(&self.pace).await
        {
            self.graph = None;
        }
        if let Some(known) = self.graph.as_ref().and_then(|graph| graph.find(&id)) {
            return self.remember_from_graph(position, &known).await;
        }
        let object = self.read(position).await?;
        if object.object != ObjectType::Commit {
            return Err(Fault::WrongType { id });
        }
        let parsed = ParsedCommit::parse(self.store.kind(), &object.bytes).ok_or(Fault::Malformed { id })?;
        let is_cut = self.cut.contains(&id);
        let mut parents = Vec::with_capacity(2);
        for parent in parsed.parents(self.store.kind()).take_while(|_| !is_cut) {
            parents.push(self.demand(&parent).await?);
        }
        Ok(self.remember(position, parsed.tree, parsed.time, &parents))
    }

    async fn remember_from_graph(&mut self, position: u32, known: &GraphCommit) -> Result<Commit, Fault> {
        let mut parents = Vec::with_capacity(known.parents.len());
        for parent in &known.parents {
            parents.push(self.demand(parent).await?);
        }
        Ok(self.remember(position, known.tree, known.time, &parents))
    }

    fn remember(&mut self, position: u32, tree: ObjectId, time: u64, parents: &[u32]) -> Commit {
        let start = u32::try_from(self.parents.len()).unwrap_or(u32::MAX);
        self.parents.extend_from_slice(parents);
        let end = u32::try_from(self.parents.len()).unwrap_or(u32::MAX);
        let commit = Commit { tree, time, parents: (start, end) };
        self.commits.insert(position, commit);
        commit
    }

    /// Positions of the parents of a commit that [`Self::commit`] returned.
    pub fn parents(&self, commit: &Commit) -> &[u32] {
        self.parents.get(commit.parents.0 as usize..commit.parents.1 as usize).unwrap_or_default()
    }

    /// What the tag at a position names.
    ///
    /// # Errors
    /// It is no tag, or malformed.
    pub async fn tagged(&mut self, position: u32) -> Result<ObjectId, Fault> {
        let id = self.id(position)?;
        let object = self.read(position).await?;
        if object.object != ObjectType::Tag {
            return Err(Fault::WrongType { id });
        }
        tag_target(self.store.kind(), &object.bytes).ok_or(Fault::Malformed { id })
    }

    /// Follows tags to what they finally name.
    ///
    /// # Errors
    /// A tag is malformed, or its object is missing.
    pub async fn peel(&mut self, mut position: u32) -> Result<u32, Fault> {
        for _ in 0..crate::limits::TAG_DEPTH_MAX {
            if self.type_of(position)? != ObjectType::Tag {
                return Ok(position);
            }
            let target = self.tagged(position).await?;
            position = self.demand(&target).await?;
        }
        Err(Fault::Malformed { id: self.id(position)? })
    }
}

/// The object a tag names: the value of its first line.
pub fn tag_target(kind: Kind, bytes: &[u8]) -> Option<ObjectId> {
    let hex = bytes.strip_prefix(b"object ")?.get(..kind.len_in_hex())?;
    from_hex(kind, hex)
}

/// The lines of a commit that a walk reads.
struct ParsedCommit<'a> {
    tree: ObjectId,
    /// All `parent` lines.
    parents: &'a [u8],
    time: u64,
}

impl<'a> ParsedCommit<'a> {
    /// `None` when the bytes are no commit. A committer line without a readable time is time 0, as in stock git.
    fn parse(kind: Kind, bytes: &'a [u8]) -> Option<Self> {
        let hex = kind.len_in_hex();
        let rest = bytes.strip_prefix(b"tree ")?;
        let tree = from_hex(kind, rest.get(..hex)?)?;
        let rest = rest.get(hex..)?.strip_prefix(b"\n")?;
        let line = b"parent \n".len() + hex;
        let mut size = 0;
        while rest.get(size..)?.starts_with(b"parent ") {
            from_hex(kind, rest.get(size + 7..size + 7 + hex)?)?;
            size += line;
        }
        let (parents, rest) = rest.split_at_checked(size)?;
        Some(Self { tree, parents, time: committer_time(rest).unwrap_or(0) })
    }

    fn parents(&self, kind: Kind) -> impl Iterator<Item = ObjectId> + use<'a> {
        let hex = kind.len_in_hex();
        self.parents.chunks_exact(hex + 8).filter_map(move |line| from_hex(kind, line.get(7..7 + hex)?))
    }
}

fn committer_time(rest: &[u8]) -> Option<u64> {
    let line = rest.split(|byte| *byte == b'\n').find(|line| line.starts_with(b"committer "))?;
    let mail_end = line.iter().rposition(|byte| *byte == b'>')?;
    let digits = line.get(mail_end + 1..)?.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}
