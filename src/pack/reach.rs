//! Questions of reach: is enough known in common to stop talking, and may a client have what no ref names?
//!
//! Answers about commits only, chooses nothing. Invariants: an answer never depends on the order of wants; no commit is
//! expanded twice; commits older than everything had are not expanded.
//! Source: gitprotocol-pack(5), "Packfile Negotiation"; gitprotocol-v2(5), "ready".
//! Read first: `ready_waits_for_every_want` in `tests` of this room.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{entry::ObjectType, fault::Fault, line::Line, objects::Objects};

/// What a server knows of one have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Not here.
    No,
    /// Here, and not implied by an earlier have.
    New(u32),
    /// Here, but the same as an earlier have or a parent of one.
    Implied(u32),
}

/// Haves in the order they were said, each with what is known of it.
#[derive(Clone, Debug, Default)]
pub struct Haves {
    /// One for each have.
    pub known: Vec<Known>,
    /// For each commit that counts as had (a have or a parent of one): after how many haves.
    since: FxHashMap<u32, usize>,
    /// Oldest committer time of a had commit, seconds since 1970.
    oldest: Option<u64>,
}

impl Haves {
    /// Takes the next have in; `position` is `None` when it is not here.
    ///
    /// # Errors
    /// The object is damaged.
    pub async fn push(&mut self, objects: &mut Objects, position: Option<u32>) -> Result<(), Fault> {
        let Some(position) = position else {
            self.known.push(Known::No);
            return Ok(());
        };
        let count = self.known.len() + 1;
        if objects.type_of(position)? != ObjectType::Commit {
            self.known.push(Known::New(position));
            return Ok(());
        }
        let commit = match objects.commit(position).await {
            Ok(commit) => commit,
            // A commit whose parents are not here is of no use as common ground.
            Err(Fault::Missing { .. }) => {
                self.known.push(Known::No);
                return Ok(());
            }
            Err(fault) => return Err(fault),
        };
        self.oldest = Some(self.oldest.map_or(commit.time, |oldest| oldest.min(commit.time)));
        let known = if self.since.contains_key(&position) { Known::Implied(position) } else { Known::New(position) };
        self.known.push(known);
        self.since.entry(position).or_insert(count);
        for parent in objects.parents(&commit).to_vec() {
            self.since.entry(parent).or_insert(count);
        }
        Ok(())
    }

    /// Positions of all haves that are here.
    pub fn positions(&self) -> Vec<u32> {
        let here = |known: &Known| match known {
            Known::No => None,
            Known::New(position) | Known::Implied(position) => Some(*position),
        };
        self.known.iter().filter_map(here).collect()
    }

    /// The number of haves after which every wanted commit has one of them (or a parent of one) as ancestor: then a client
    /// need not be asked for more. A little late when an ancestor was said before its descendant, which clients do not do.
    /// `None` when that is never so.
    ///
    /// # Errors
    /// A commit is missing or damaged.
    pub async fn ready_after(&self, objects: &mut Objects, wants: &[u32]) -> Result<Option<usize>, Fault> {
        let Some(first) = self.known.iter().position(|known| *known != Known::No) else { return Ok(None) };
        let mut ready = first + 1;
        let mut reached: FxHashMap<u32, Option<usize>> = FxHashMap::default();
        for want in wants {
            let want = objects.peel(*want).await?;
            if objects.type_of(want)? == ObjectType::Commit {
                match self.first_reached(objects, want, &mut reached).await? {
                    Some(count) => ready = ready.max(count),
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(ready))
    }

    /// After how many haves one is an ancestor of `want`; `reached` holds the answers for commits seen before.
    async fn first_reached(
        &self,
        objects: &mut Objects,
        want: u32,
        reached: &mut FxHashMap<u32, Option<usize>>,
    ) -> Result<Option<usize>, Fault> {
        // A want is looked at whatever its age, and again if another want's walk passed it by as too old.
        if reached.get(&want).is_some_and(Option::is_none) {
            reached.remove(&want);
        }
        let mut stack = vec![want];
        while let Some(position) = stack.last().copied() {
            if reached.contains_key(&position) {
                stack.pop();
                continue;
            }
            let commit = objects.commit(position).await?;
            objects.pace().work(COST_OF_LOOK).await;
            let own = self.since.get(&position).copied();
            let is_old = position != want && self.oldest.is_some_and(|oldest| commit.time < oldest);
            // A have's ancestors were said with it or later: they cannot be reached earlier.
            if own.is_some() || is_old {
                reached.insert(position, own);
                stack.pop();
                continue;
            }
            let parents = objects.parents(&commit).to_vec();
            let open = parents.iter().copied().find(|parent| !reached.contains_key(parent));
            if let Some(parent) = open {
                stack.push(parent);
                continue;
            }
            let best = parents.iter().filter_map(|parent| reached.get(parent).copied().flatten()).min();
            reached.insert(position, best);
            stack.pop();
        }
        Ok(reached.get(&want).copied().flatten())
    }
}

/// Those of `wants` that are commits (or tags of commits) and no ancestor of a tip. Trees and blobs count as reached, as
/// they do for stock git.
///
/// # Errors
/// A commit is missing or damaged.
pub async fn unreachable(objects: &mut Objects, wants: &[u32], tips: &[u32]) -> Result<Vec<u32>, Fault> {
    let mut line = Line::default();
    let mut asked = Vec::new();
    for (positions, is_tip) in [(tips, true), (wants, false)] {
        for position in positions {
            let commit = objects.peel(*position).await?;
            if objects.type_of(commit)? == ObjectType::Commit {
                let time = objects.commit(commit).await?.time;
                if is_tip {
                    line.have(commit, time);
                } else {
                    line.want(commit, time);
                    asked.push((*position, commit));
                }
            }
        }
    }
    let outside: FxHashSet<u32> = line.walk(objects, &FxHashSet::default(), None).await?.into_iter().collect();
    Ok(asked.into_iter().filter(|(_, commit)| outside.contains(commit)).map(|(want, _)| want).collect())
}

/// Units of looking at one commit again.
const COST_OF_LOOK: usize = 100;
