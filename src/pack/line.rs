//! Commits in line: from what is wanted and what is had to the commits that are wanted and not had, newest first.
//!
//! Knows no tree and no object but commits. Invariants: an ancestor of a had commit that the walk met is had, whenever
//! that is learnt; the walk ends when nothing wanted is left in line, and a little later, since clocks are wrong.
//! Source: git-rev-list(1), "Commit Limiting". Read first: `walks_choose_what_rev_list_lists` in `tests` of this room.

use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    fault::Fault,
    objects::{Commit, Objects},
};

/// Commits in line, newest first, and what is known of each.
#[derive(Debug, Default)]
pub struct Line {
    queue: BinaryHeap<(u64, u32)>,
    states: FxHashMap<u32, State>,
    /// Commits in the queue that are wanted and not had.
    open: usize,
    /// Commits named as had.
    had: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    had: bool,
    queued: bool,
    done: bool,
}

impl Line {
    /// Names a commit that is wanted.
    pub fn want(&mut self, position: u32, time: u64) {
        self.push(position, time, false);
    }

    /// Names a commit that is had, with all its ancestors.
    pub fn have(&mut self, position: u32, time: u64) {
        self.push(position, time, true);
        self.had.push(position);
    }

    /// The commits that were named as had.
    pub fn had(&self) -> &[u32] {
        &self.had
    }

    /// Whether the walk found a commit to be had.
    pub fn is_had(&self, position: u32) -> bool {
        self.states.get(&position).is_some_and(|state| state.had)
    }

    /// Walks to the commits that are wanted and not had. Parents of commits in `cut` are not followed; commits older than
    /// `since` (seconds since 1970) count as had.
    ///
    /// # Errors
    /// A commit on the wanted side is missing, or one is damaged.
    pub async fn walk(
        &mut self,
        objects: &mut Objects,
        cut: &FxHashSet<u32>,
        since: Option<u64>,
    ) -> Result<Vec<u32>, Fault> {
        let mut found = Vec::new();
        let (mut slop, mut last) = (SLOP, u64::MAX);
        while let Some((time, position)) = self.queue.pop() {
            let Some(had) = self.take(position, since.is_some_and(|since| time < since)) else { continue };
            let commit = objects.commit(position).await?;
            for parent in parents_within(objects, cut, position, &commit) {
                match objects.commit(parent).await {
                    Ok(commit) => self.push(parent, commit.time, had),
                    // The had side may end in what was never here.
                    Err(Fault::Missing { .. }) if had => {}
                    Err(fault) => return Err(fault),
                }
            }
            objects.pace().work(COST_OF_COMMIT).await;
            if !had {
                found.push(position);
                (slop, last) = (SLOP, time);
            } else if self.open == 0 {
                // Clocks are wrong now and then: look a little further than the dates demand, as stock git does.
                slop = if last <= self.queue.peek().map_or(0, |next| next.0) { SLOP } else { slop - 1 };
                if slop == 0 {
                    break;
                }
            }
        }
        found.retain(|position| !self.is_had(*position));
        Ok(found)
    }

    /// Takes a commit out of the line; tells whether it is had. `None` when it was taken before.
    fn take(&mut self, position: u32, too_old: bool) -> Option<bool> {
        let state = self.states.get_mut(&position).filter(|state| state.queued)?;
        self.open -= usize::from(!state.had);
        state.had |= too_old;
        (state.queued, state.done) = (false, true);
        Some(state.had)
    }

    /// Puts a commit in line, or marks one that already is, as had.
    fn push(&mut self, position: u32, time: u64, had: bool) {
        let state = self.states.entry(position).or_default();
        let learns = had && !state.had;
        if !state.queued && !state.done {
            state.queued = true;
            state.had |= had;
            self.open += usize::from(!state.had);
            self.queue.push((time, position));
        } else if learns {
            state.had = true;
            if state.queued {
                self.open -= 1;
            } else {
                // Seen as wanted before: its ancestors must learn too.
                state.done = false;
                state.queued = true;
                self.queue.push((time, position));
            }
        }
    }
}

/// The parents of a commit, none when it is in `cut`.
pub fn parents_within(objects: &Objects, cut: &FxHashSet<u32>, position: u32, commit: &Commit) -> Vec<u32> {
    if cut.contains(&position) { Vec::new() } else { objects.parents(commit).to_vec() }
}

/// Commits looked at after all that are left in line are had.
const SLOP: u32 = 5;
/// Units a commit costs beside reading it.
const COST_OF_COMMIT: usize = 300;
