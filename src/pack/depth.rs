//! Shallow boundaries: a depth, a time or a set of refs becomes the commits where history is cut.
//!
//! Sends nothing and chooses no objects. Invariant: a commit is `shallow` when it is sent and some of its parents are
//! not; a commit that the client has as shallow and that is inside the new boundary is `unshallow`.
//! Source: gitprotocol-pack(5), "shallow-update"; git-fetch-pack(1), "--depth".
//! Read first: `tests/shallow_partial.rs`, `depth_counts_the_shortest_way` in `tests` of this room.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::{
    entry::ObjectType,
    fault::Fault,
    line::{Line, parents_within},
    objects::Objects,
    reach,
};

/// How a client wants its history cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// So many commits on each way down from a want; [`INFINITE`] is everything.
    Depth(u32),
    /// So many commits below the client's present boundary; `tips` are the refs it may see.
    Deeper {
        /// How many commits more.
        by: u32,
        /// Positions of all refs the client may see.
        tips: Vec<u32>,
    },
    /// Commits since a time, and not reachable from some refs.
    Since {
        /// Seconds since 1970.
        time: Option<u64>,
        /// Positions whose history is left out.
        not: Vec<u32>,
    },
}

/// A depth that means all of history.
pub const INFINITE: u32 = 0x7fff_ffff;

/// The new boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boundary {
    /// Commits to be cut that the client does not know as cut.
    pub shallow: Vec<u32>,
    /// Commits that were cut and are no more.
    pub unshallow: Vec<u32>,
}

/// Nothing is left of the wants within the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutFault {
    /// `deepen-since` or `deepen-not` leave no commit.
    NothingLeft,
    /// The store's fault.
    Store(Fault),
}

impl From<Fault> for CutFault {
    fn from(fault: Fault) -> Self {
        Self::Store(fault)
    }
}

/// Finds the boundary for `wants`, given the client's present one. `own` are the commits in the repository's own
/// `shallow` file.
///
/// # Errors
/// Nothing is left within the cut, or a commit is missing or damaged.
pub async fn boundary(
    objects: &mut Objects,
    wants: &[u32],
    client: &[u32],
    own: &FxHashSet<u32>,
    cut: &Cut,
) -> Result<Boundary, CutFault> {
    let (edge, inside) = match cut {
        Cut::Depth(INFINITE) | Cut::Deeper { by: INFINITE, .. } if own.is_empty() => {
            let unshallow = client.to_vec();
            return Ok(Boundary { shallow: Vec::new(), unshallow });
        }
        Cut::Depth(depth) => by_depth(objects, wants, own, *depth).await?,
        Cut::Deeper { by, tips } => {
            let lost: FxHashSet<u32> = reach::unreachable(objects, client, tips).await?.into_iter().collect();
            let from: Vec<u32> = client.iter().copied().filter(|commit| !lost.contains(commit)).collect();
            by_depth(objects, &from, own, by.saturating_add(1)).await?
        }
        Cut::Since { time, not } => by_line(objects, wants, *time, not).await?,
    };
    let known: FxHashSet<u32> = client.iter().copied().collect();
    Ok(Boundary {
        shallow: edge.into_iter().filter(|commit| !known.contains(commit) && !inside.contains(commit)).collect(),
        unshallow: client.iter().copied().filter(|commit| inside.contains(commit)).collect(),
    })
}

/// Commits at `depth`, and those nearer. The wants have depth 1.
async fn by_depth(
    objects: &mut Objects,
    wants: &[u32],
    own: &FxHashSet<u32>,
    depth: u32,
) -> Result<(Vec<u32>, FxHashSet<u32>), Fault> {
    // Breadth first, so the first visit of a commit is by the shortest way.
    let mut queue = VecDeque::new();
    let mut seen = FxHashSet::default();
    let (mut edge, mut inside) = (Vec::new(), FxHashSet::default());
    for want in wants {
        let commit = objects.peel(*want).await?;
        if objects.type_of(commit)? == ObjectType::Commit && seen.insert(commit) {
            queue.push_back((commit, 1));
        }
    }
    while let Some((position, at)) = queue.pop_front() {
        let commit = objects.commit(position).await?;
        let parents = objects.parents(&commit).to_vec();
        objects.pace().work(COST_OF_LOOK).await;
        if (depth != INFINITE && at >= depth) || own.contains(&position) {
            edge.push(position);
            continue;
        }
        inside.insert(position);
        queue.extend(parents.into_iter().filter(|parent| seen.insert(*parent)).map(|parent| (parent, at + 1)));
    }
    Ok((edge, inside))
}

/// Commits of a limited history that have a parent outside, and those that do not.
async fn by_line(
    objects: &mut Objects,
    wants: &[u32],
    since: Option<u64>,
    not: &[u32],
) -> Result<(Vec<u32>, FxHashSet<u32>), CutFault> {
    let mut line = Line::default();
    for (positions, is_had) in [(not, true), (wants, false)] {
        for position in positions {
            let commit = objects.peel(*position).await?;
            if objects.type_of(commit)? == ObjectType::Commit {
                let time = objects.commit(commit).await?.time;
                if is_had {
                    line.have(commit, time);
                } else {
                    line.want(commit, time);
                }
            }
        }
    }
    let none = FxHashSet::default();
    let mut inside: FxHashSet<u32> = line.walk(objects, &none, since).await?.into_iter().collect();
    if inside.is_empty() {
        return Err(CutFault::NothingLeft);
    }
    let mut edge = Vec::new();
    for position in &inside {
        let commit = objects.commit(*position).await?;
        if parents_within(objects, &none, *position, &commit).iter().any(|parent| !inside.contains(parent)) {
            edge.push(*position);
        }
    }
    for position in &edge {
        inside.remove(position);
    }
    Ok((edge, inside))
}

/// What the pack of a shallow answer is made from, once the boundary is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Commits whose parents are not followed.
    pub cut: FxHashSet<u32>,
    /// Parents of commits that are no longer cut: wanted.
    pub more_wants: Vec<u32>,
    /// Commits that are no longer cut: the client has them.
    pub more_haves: Vec<u32>,
}

/// Turns a boundary into what the selection needs. `client` is the client's present boundary.
///
/// # Errors
/// A commit is missing or damaged.
pub async fn reach_of(objects: &mut Objects, client: &[u32], boundary: &Boundary) -> Result<Reach, Fault> {
    let mut reach = Reach::default();
    reach.cut.extend(client.iter().chain(&boundary.shallow));
    for position in &boundary.unshallow {
        let commit = objects.commit(*position).await?;
        reach.more_haves.push(*position);
        reach.more_wants.extend_from_slice(objects.parents(&commit));
    }
    Ok(reach)
}

/// Units of looking at one commit.
const COST_OF_LOOK: usize = 100;
