//! Selection by walking the graph: wants, haves and omissions become the set of objects to send.
//!
//! The way of last resort, always right. Knows no pack layout and sends nothing. Invariants: an object reachable from a
//! want and not from a have, by links that are not cut, is chosen unless it is omitted; what is chosen was named by a
//! want or by a chosen object; an explicit want is never omitted.
//! Source: git-rev-list(1), "--objects", "--objects-edge-aggressive", "--filter".
//! Read first: `tests/stock_git.rs`, and `walks_choose_what_rev_list_lists` in `tests` of this room.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    entry::ObjectType,
    fault::Fault,
    filter::Omit,
    line::{Line, parents_within},
    marks::Marks,
    objects::Objects,
    sparse::Sparse,
    tree::{EntryMode, TreeEntries},
};
use crate::oid::ObjectId;

/// What a client asks of the graph; all positions are those of [`Objects`].
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// What it wants: commits, tags, trees or blobs.
    pub wants: Vec<u32>,
    /// What it has, with all that is reachable from there (within `cut`).
    pub haves: Vec<u32>,
    /// Commits whose parents are not followed: the client's shallow boundary.
    pub cut: FxHashSet<u32>,
    /// What is left out.
    pub omit: Omit,
    /// Which blobs are kept, by path.
    pub sparse: Option<Sparse>,
    /// Whether everything in the trees of `haves` counts as had, not only what is next to what is chosen: for shallow
    /// clients, whose boundary says little.
    pub edges_in_full: bool,
}

/// What to send.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Positions to send.
    pub chosen: Marks,
    /// Positions the client is known to have: not all of them, but those next to what is chosen.
    pub common: Marks,
}

/// Walks from the wants to everything the client lacks.
///
/// # Errors
/// An object that should be there is missing or damaged.
pub async fn select(objects: &mut Objects, question: &Question) -> Result<Selection, Fault> {
    let room = objects.total();
    let selection = Selection { chosen: Marks::with_room(room), common: Marks::with_room(room) };
    let mut walk = Walk { objects, question, selection, depths: FxHashMap::default() };
    let mut line = Line::default();
    let mut roots = Vec::new();
    for have in &question.haves {
        walk.give_up(*have, &mut line).await?;
    }
    for want in &question.wants {
        walk.pick(*want, &mut line, &mut roots).await?;
    }
    let commits = line.walk(walk.objects, &question.cut, None).await?;
    walk.mark_edges(&commits, &line).await?;
    walk.trees(&commits, &roots).await?;
    if let Some(sparse) = &question.sparse {
        walk.thin_out(sparse, &commits, &roots).await?;
    }
    Ok(walk.selection)
}

/// The same for a question without haves, when all that `tips` (commits) reach is `known`, and the wants reach all of it: only
/// what is newer is walked. What is chosen includes what was known.
///
/// # Errors
/// An object that should be there is missing or damaged.
pub async fn select_beyond(
    objects: &mut Objects,
    question: &Question,
    tips: &[u32],
    known: Marks,
) -> Result<Selection, Fault> {
    let selection = Selection { chosen: known, common: Marks::default() };
    let mut walk = Walk { objects, question, selection, depths: FxHashMap::default() };
    let (mut line, mut roots) = (Line::default(), Vec::new());
    for tip in tips {
        let commit = walk.objects.commit(*tip).await?;
        line.have(*tip, commit.time);
    }
    for want in &question.wants {
        walk.pick(*want, &mut line, &mut roots).await?;
    }
    let commits = line.walk(walk.objects, &question.cut, None).await?;
    walk.trees(&commits, &roots).await?;
    Ok(walk.selection)
}

struct Walk<'a> {
    objects: &'a mut Objects,
    question: &'a Question,
    selection: Selection,
    /// Smallest depth each tree was entered at; only kept when the omission asks for depth.
    depths: FxHashMap<u32, u64>,
}

impl Walk<'_> {
    /// A have: what the client holds of it is not sent.
    async fn give_up(&mut self, have: u32, line: &mut Line) -> Result<(), Fault> {
        let mut position = have;
        loop {
            match self.objects.type_of(position)? {
                ObjectType::Tag => {
                    self.selection.common.insert(position);
                    let target = self.objects.tagged(position).await?;
                    // A have is the client's word: what it leads to need not be here.
                    let Some(next) = self.objects.locate(&target).await? else { return Ok(()) };
                    position = next;
                }
                ObjectType::Commit => {
                    let commit = self.objects.commit(position).await?;
                    line.have(position, commit.time);
                    return Ok(());
                }
                ObjectType::Tree => return self.mark_tree(position).await,
                ObjectType::Blob => {
                    self.selection.common.insert(position);
                    return Ok(());
                }
            }
        }
    }

    /// A want: it is sent, whatever is omitted, unless the client has it.
    async fn pick(&mut self, want: u32, line: &mut Line, roots: &mut Vec<u32>) -> Result<(), Fault> {
        let mut position = want;
        loop {
            if self.selection.common.contains(position) {
                return Ok(());
            }
            match self.objects.type_of(position)? {
                ObjectType::Tag => {
                    self.choose(position);
                    let target = self.objects.tagged(position).await?;
                    position = self.objects.demand(&target).await?;
                }
                ObjectType::Commit => {
                    let commit = self.objects.commit(position).await?;
                    line.want(position, commit.time);
                    return Ok(());
                }
                // Whether the client has these is known only when the trees of its commits are marked.
                ObjectType::Tree | ObjectType::Blob => {
                    roots.push(position);
                    return Ok(());
                }
            }
        }
    }

    fn choose(&mut self, position: u32) -> bool {
        let fresh = self.selection.chosen.insert(position);
        self.objects.pace().count(u64::from(fresh));
        fresh
    }

    /// Marks what the client has next to what it lacks: the trees of commits it has.
    async fn mark_edges(&mut self, commits: &[u32], line: &Line) -> Result<(), Fault> {
        let question = self.question;
        let mut edges = FxHashSet::default();
        let mut in_order = Vec::new();
        for position in commits {
            let commit = self.objects.commit(*position).await?;
            for parent in parents_within(self.objects, &question.cut, *position, &commit) {
                if line.is_had(parent) && edges.insert(parent) {
                    in_order.push(parent);
                }
            }
        }
        if self.question.edges_in_full {
            in_order.extend(line.had().iter().copied().filter(|position| edges.insert(*position)));
        }
        for position in in_order {
            self.selection.common.insert(position);
            let commit = self.objects.commit(position).await?;
            // What the client has of this edge need not be complete here either.
            if let Some(tree) = self.objects.locate(&commit.tree).await? {
                self.mark_tree(tree).await?;
            }
        }
        Ok(())
    }

    /// Marks a tree and everything below it as had.
    async fn mark_tree(&mut self, root: u32) -> Result<(), Fault> {
        let mut stack = vec![root];
        while let Some(tree) = stack.pop() {
            if !self.selection.common.insert(tree) {
                continue;
            }
            let object = match self.objects.read(tree).await {
                Ok(object) if object.object == ObjectType::Tree => object,
                Err(Fault::Missing { .. }) | Ok(_) => continue,
                Err(fault) => return Err(fault),
            };
            for entry in TreeEntries::new(self.objects.store().kind(), &object.bytes) {
                let Some((mode, id)) = entry else { break };
                if mode == EntryMode::Gitlink {
                    continue;
                }
                // Only packed objects are worth remembering as had: the walk meets loose ones again by id.
                let position = match self.objects.store().find(id) {
                    Some(position) => Some(position),
                    None => self.objects.locate_loose(id).await?,
                };
                match position {
                    Some(position) if mode == EntryMode::Tree => stack.push(position),
                    Some(position) => {
                        self.selection.common.insert(position);
                    }
                    None => {}
                }
            }
            self.objects.pace().work(object.bytes.len()).await;
        }
        Ok(())
    }

    /// Chooses the commits and all their trees bring, then the trees and blobs that were wanted by name.
    async fn trees(&mut self, commits: &[u32], wanted: &[u32]) -> Result<(), Fault> {
        let omit = self.question.omit;
        let explicit: FxHashSet<u32> = self.explicit().await?;
        for position in commits {
            if omit.sends(ObjectType::Commit) || explicit.contains(position) {
                self.choose(*position);
            }
            if omit.enters_trees() {
                let tree = self.objects.commit(*position).await?.tree;
                let tree = self.objects.demand(&tree).await?;
                self.descend(tree, 0).await?;
            }
        }
        for position in
            wanted.iter().filter(|position| !self.selection.common.contains(**position)).copied().collect::<Vec<_>>()
        {
            if self.objects.type_of(position)? == ObjectType::Blob {
                self.choose(position);
            } else {
                self.enter_wanted(position).await?;
            }
        }
        Ok(())
    }

    /// Takes out the blobs that no path keeps. A blob that was wanted by name stays.
    async fn thin_out(&mut self, sparse: &Sparse, commits: &[u32], wanted: &[u32]) -> Result<(), Fault> {
        let mut kept = FxHashSet::default();
        for want in &self.question.wants {
            kept.insert(self.objects.peel(*want).await?);
        }
        let (mut seen, mut stack) = (FxHashSet::default(), Vec::new());
        let mut met = FxHashSet::default();
        for position in commits {
            let tree = self.objects.commit(*position).await?.tree;
            stack.push((self.objects.demand(&tree).await?, Vec::new(), false));
        }
        for tree in wanted {
            if self.objects.type_of(*tree)? == ObjectType::Tree {
                stack.push((*tree, Vec::new(), false));
            }
        }
        while let Some((tree, path, keeps)) = stack.pop() {
            if self.selection.common.contains(tree) || !seen.insert((tree, path.clone())) {
                continue;
            }
            let object = self.objects.read(tree).await?;
            let mut entries = TreeEntries::new(self.objects.store().kind(), &object.bytes);
            while let Some(entry) = entries.next_named() {
                let (mode, name, id) = entry.ok_or(Fault::Malformed { id: self.objects.id(tree)? })?;
                if mode == EntryMode::Gitlink {
                    continue;
                }
                let position = self.objects.demand(id).await?;
                let below = if path.is_empty() { name.to_vec() } else { [&path, b"/".as_slice(), name].concat() };
                let keeps = sparse.keeps(&below, mode == EntryMode::Tree).unwrap_or(keeps);
                if mode == EntryMode::Tree {
                    stack.push((position, below, keeps));
                } else {
                    met.insert(position);
                    if keeps {
                        kept.insert(position);
                    }
                }
            }
            self.objects.pace().work(object.bytes.len() * 4).await;
        }
        for position in met.difference(&kept) {
            self.selection.chosen.remove(*position);
        }
        Ok(())
    }

    /// Commits that wants name, directly or through tags: these are sent whatever is omitted.
    async fn explicit(&mut self) -> Result<FxHashSet<u32>, Fault> {
        let mut explicit = FxHashSet::default();
        if self.question.omit.sends(ObjectType::Commit) {
            return Ok(explicit);
        }
        for want in &self.question.wants {
            // What a wanted tag finally names counts as wanted by name, as it does for stock git.
            let named = self.objects.peel(*want).await?;
            if self.objects.type_of(named)? == ObjectType::Commit {
                explicit.insert(named);
            }
        }
        Ok(explicit)
    }

    /// A tree wanted by name is sent itself, and its entries count as standing at depth 0.
    async fn enter_wanted(&mut self, tree: u32) -> Result<(), Fault> {
        self.choose(tree);
        let mut stack = Vec::new();
        self.scan(tree, 0, &mut stack).await?;
        while let Some((below, depth)) = stack.pop() {
            self.descend(below, depth).await?;
        }
        Ok(())
    }

    /// Chooses a tree met at `depth` and everything below it that is not omitted or had.
    async fn descend(&mut self, tree: u32, depth: u64) -> Result<(), Fault> {
        let mut stack = vec![(tree, depth)];
        while let Some((tree, depth)) = stack.pop() {
            if self.enters(tree, depth) {
                self.scan(tree, depth + 1, &mut stack).await?;
            }
        }
        Ok(())
    }

    /// Whether a tree is to be entered here; chooses it when it is to be sent.
    fn enters(&mut self, tree: u32, depth: u64) -> bool {
        if self.selection.common.contains(tree) {
            return false;
        }
        let omit = self.question.omit;
        if omit.depth_from.is_some_and(|limit| depth >= limit) {
            return false;
        }
        if omit.depth_from.is_none() && omit.sends(ObjectType::Tree) {
            return self.choose(tree);
        }
        // Entered before at this depth or a smaller one: nothing new below.
        let before = self.depths.insert(tree, depth);
        if let Some(before) = before.filter(|before| *before <= depth) {
            self.depths.insert(tree, before);
            return false;
        }
        if omit.sends(ObjectType::Tree) {
            self.choose(tree);
        }
        true
    }

    /// Chooses the blobs of a tree, which stand at `depth`, and stacks its subtrees.
    async fn scan(&mut self, tree: u32, depth: u64, stack: &mut Vec<(u32, u64)>) -> Result<(), Fault> {
        let object = self.objects.read(tree).await?;
        if object.object != ObjectType::Tree {
            return Err(Fault::WrongType { id: self.objects.id(tree)? });
        }
        let below = stack.len();
        for entry in TreeEntries::new(self.objects.store().kind(), &object.bytes) {
            let Some((mode, id)) = entry else {
                return Err(Fault::Malformed { id: self.objects.id(tree)? });
            };
            if mode == EntryMode::Gitlink {
                continue;
            }
            if mode == EntryMode::Blob && !self.question.omit.sends(ObjectType::Blob) {
                continue;
            }
            match self.objects.store().find(id) {
                Some(position) if mode == EntryMode::Tree => stack.push((position, depth)),
                Some(position) => self.blob(position, depth)?,
                None => self.scan_loose(mode, id.to_owned(), depth, stack).await?,
            }
        }
        // In the order they stand: neighbours in a tree are neighbours in the pack.
        if let Some(fresh) = stack.get_mut(below..) {
            fresh.reverse();
        }
        self.objects.pace().work(object.bytes.len()).await;
        Ok(())
    }

    async fn scan_loose(
        &mut self,
        mode: EntryMode,
        id: ObjectId,
        depth: u64,
        stack: &mut Vec<(u32, u64)>,
    ) -> Result<(), Fault> {
        let position = match self.objects.locate_loose(&id).await? {
            Some(position) => position,
            // An omitted blob need not be here: the repository may be a partial clone itself.
            None if mode == EntryMode::Blob && self.question.omit.blobs_from == Some(0) => return Ok(()),
            None => return Err(Fault::Missing { id }),
        };
        match mode {
            EntryMode::Tree => stack.push((position, depth)),
            _ => self.blob(position, depth)?,
        }
        Ok(())
    }

    fn blob(&mut self, position: u32, depth: u64) -> Result<(), Fault> {
        let omit = self.question.omit;
        if self.selection.common.contains(position) || omit.depth_from.is_some_and(|limit| depth >= limit) {
            return Ok(());
        }
        let omitted = match omit.blobs_from {
            None => false,
            Some(0) => true,
            Some(limit) => !self.selection.chosen.contains(position) && self.objects.size(position)? >= limit,
        };
        if !omitted {
            self.choose(position);
        }
        Ok(())
    }
}
