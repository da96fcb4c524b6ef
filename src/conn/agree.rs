//! What both sides agree on before a pack is made: which wants exist, what is had in common, where history is cut.
//!
//! Reads the graph a little and sends nothing. Invariants: a want is agreed on only if this client may have it; an unknown
//! have or shallow line is no fault; what is agreed on is all that the pack depends on.
//! Source: gitprotocol-v2(5), "fetch"; gitprotocol-pack(5), "Packfile Negotiation".
//! Read first: `tests/differential.rs`.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{call::Call, fault::Fault, packing};
use crate::{
    oid::{ObjectId, from_hex},
    pack::{
        ObjectType, Objects, Omit, Pace, Question, Sparse,
        closure::Closures,
        depth::{self, Boundary, Cut},
        reach::{self, Haves},
        tree::TreeEntries,
    },
    proto::{Fetch, filter::Filter},
    repo::Snapshot,
};

/// One repository being read for one request.
pub struct Work {
    /// Its refs, settings and packs as this request sees them.
    pub snapshot: Arc<Snapshot>,
    /// Its objects.
    pub objects: Objects,
    /// The pace of all work on them.
    pub pace: Pace,
    /// Set where only what visible refs reach may be had: what earlier walks found, to tell what that is.
    pub strict: Option<Arc<Closures>>,
}

impl Work {
    /// Nothing is read yet.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        let pace = Pace::default();
        let mut objects = Objects::new(Arc::clone(&snapshot.store), &snapshot.shallow, pace.clone());
        if let Some(graph) = &snapshot.graph {
            objects = objects.with_graph(Arc::clone(graph));
        }
        Self { snapshot, objects, pace, strict: None }
    }

    /// The same, as the door settled it for this call.
    pub fn of(call: &Call<'_>, snapshot: Arc<Snapshot>) -> Self {
        let strict = call.pass.reachable.then(|| Arc::clone(&call.rules.closures));
        Self { strict, ..Self::new(snapshot) }
    }
}

/// Which wants a client may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Whatever exists: v2, and `allowAnySHA1InWant`.
    Any,
    /// Tips it was shown, and what is reachable from them.
    Shown,
    /// The same with hidden tips: `allowTipSHA1InWant`, `allowReachableSHA1InWant`.
    AllTips,
}

/// Where the wants, named by id and by ref, stand.
///
/// # Errors
/// One is not here, or not for this client; or the store is damaged.
pub async fn wants(work: &mut Work, fetch: &Fetch, door: Door) -> Result<Vec<u32>, Fault> {
    let mut positions = Vec::with_capacity(fetch.wants.len());
    for id in &fetch.wants {
        let position = work.objects.locate(id).await?.ok_or(Fault::NotOurRef(*id))?;
        positions.push(position);
        work.pace.work(COST_OF_LOCATING).await;
    }
    if work.strict.is_some() {
        let lost = lost(work, &positions).await?;
        if let Some(lost) = positions.iter().find(|position| lost.contains(position)) {
            return Err(Fault::NotOurRef(work.objects.id(*lost)?));
        }
    } else if door != Door::Any {
        let shown: FxHashSet<ObjectId> =
            work.snapshot.refs.iter().filter(|r| is_tip(r.hidden, door)).map(|r| r.id).collect();
        let head = work.snapshot.refs.head().id();
        let other: Vec<u32> = fetch
            .wants
            .iter()
            .zip(&positions)
            .filter(|(id, _)| !shown.contains(*id) && head.as_ref() != Some(*id))
            .map(|(_, position)| *position)
            .collect();
        if !other.is_empty() {
            let tips = tips(work, |hidden| is_tip(hidden, door)).await?;
            if let Some(lost) = reach::unreachable(&mut work.objects, &other, &tips).await?.first() {
                return Err(Fault::NotOurRef(work.objects.id(*lost)?));
            }
        }
    }
    for (_, id) in wanted_refs(work, fetch)? {
        positions.push(work.objects.demand(&id).await?);
    }
    Ok(positions)
}

/// Those of `positions` that no visible ref reaches: neither as a commit, nor as a tag, tree or blob of one.
///
/// # Errors
/// The store is damaged.
pub async fn lost(work: &mut Work, positions: &[u32]) -> Result<FxHashSet<u32>, Fault> {
    let snapshot = Arc::clone(&work.snapshot);
    let visible = snapshot.refs.iter().filter(|found| !found.hidden).map(|found| found.id);
    let shown: FxHashSet<ObjectId> = visible.chain(snapshot.refs.head().id()).collect();
    let (mut commits, mut others) = (Vec::new(), Vec::new());
    for position in positions {
        if !shown.contains(&work.objects.id(*position)?) {
            let is_commit = work.objects.type_of(*position)? == ObjectType::Commit;
            if is_commit { &mut commits } else { &mut others }.push(*position);
        }
    }
    if commits.is_empty() && others.is_empty() {
        return Ok(FxHashSet::default());
    }
    let tips = tips(work, |hidden| !hidden).await?;
    let mut lost: FxHashSet<u32> = FxHashSet::default();
    if !commits.is_empty() {
        lost.extend(reach::unreachable(&mut work.objects, &commits, &tips).await?);
    }
    if !others.is_empty() {
        let closures = work.strict.clone().unwrap_or_else(|| Arc::new(Closures::new(0)));
        let question = Question { wants: tips, ..Question::default() };
        let (whole, _) = packing::choose(&mut work.objects, &question, &closures).await?;
        lost.extend(others.into_iter().filter(|position| !whole.chosen.contains(*position)));
    }
    Ok(lost)
}

fn is_tip(hidden: bool, door: Door) -> bool {
    !hidden || door == Door::AllTips
}

/// What the refs that were wanted by name point at, in the order they were named.
///
/// # Errors
/// One is not here, or hidden.
pub fn wanted_refs(work: &Work, fetch: &Fetch) -> Result<Vec<(Vec<u8>, ObjectId)>, Fault> {
    let find = |name: &Vec<u8>| {
        let id = if name == b"HEAD" {
            work.snapshot.refs.head().id()
        } else {
            work.snapshot.refs.find(name).filter(|found| !found.hidden).map(|found| found.id)
        };
        id.map(|id| (name.clone(), id)).ok_or_else(|| Fault::UnknownRef(name.clone()))
    };
    fetch.want_refs.iter().map(find).collect()
}

/// Positions of the tips that `shown` admits (it is given whether a ref is hidden); refs to nowhere are left out.
///
/// # Errors
/// The store is damaged.
pub async fn tips(work: &mut Work, shown: impl Fn(bool) -> bool) -> Result<Vec<u32>, Fault> {
    let snapshot = Arc::clone(&work.snapshot);
    let mut tips = Vec::with_capacity(snapshot.refs.len());
    let head = snapshot.refs.head().id();
    for id in snapshot.refs.iter().filter(|found| shown(found.hidden)).map(|found| found.id).chain(head) {
        if let Some(position) = work.objects.locate(&id).await? {
            tips.push(position);
        }
        work.pace.work(COST_OF_LOCATING).await;
    }
    Ok(tips)
}

/// What is known of the haves, in the order they were said.
///
/// # Errors
/// The store is damaged.
pub async fn haves(work: &mut Work, ids: impl Iterator<Item = ObjectId>) -> Result<Haves, Fault> {
    let mut haves = Haves::default();
    if work.strict.is_some() {
        // What only hidden refs reach is not here, as far as this client is told.
        let mut positions = Vec::new();
        for id in ids {
            positions.push(work.objects.locate(&id).await?);
            work.pace.work(COST_OF_LOCATING).await;
        }
        let found: Vec<u32> = positions.iter().copied().flatten().collect();
        let lost = lost(work, &found).await?;
        for position in positions {
            haves.push(&mut work.objects, position.filter(|position| !lost.contains(position))).await?;
        }
        return Ok(haves);
    }
    for id in ids {
        let position = work.objects.locate(&id).await?;
        haves.push(&mut work.objects, position).await?;
        work.pace.work(COST_OF_LOCATING).await;
    }
    Ok(haves)
}

/// The cut a client asked for, and what it already has cut.
#[derive(Clone, Debug, Default)]
pub struct Shallows {
    /// Commits the client has without their parents.
    pub client: Vec<u32>,
    /// The new boundary; `None` when nothing is to be said about boundaries.
    pub boundary: Option<Boundary>,
}

/// What the lines of a request name about cuts, looked up.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Commits of the `shallow` lines that are here.
    shallow: Vec<u32>,
    /// What the refs of `deepen-not` point at.
    not: Vec<u32>,
}

/// Looks up what the lines about cuts name. Stock git does so while it reads them: what they name wrongly is refused even where
/// no boundary is due.
///
/// # Errors
/// A shallow line names no commit, a `deepen-not` no ref; or the store is damaged.
pub async fn named(work: &mut Work, fetch: &Fetch) -> Result<Named, Fault> {
    let mut named = Named::default();
    for id in &fetch.shallow {
        let Some(position) = work.objects.locate(id).await? else { continue };
        if work.objects.type_of(position)? != ObjectType::Commit {
            return Err(Fault::InvalidShallow(*id));
        }
        named.shallow.push(position);
    }
    if work.strict.is_some() {
        // Else the parents of a hidden commit would be had by saying that one has it cut.
        let lost = lost(work, &named.shallow).await?;
        named.shallow.retain(|position| !lost.contains(position));
    }
    for name in &fetch.not {
        let id = short_ref(work, name).ok_or_else(|| Fault::AmbiguousRef(name.clone()))?;
        named.not.push(work.objects.demand(&id).await?);
    }
    Ok(named)
}

/// Works out the new boundary. `tell_own` is set where a shallow repository tells everyone where it ends with each answer
/// (v2); in v0 the advertisement did.
///
/// # Errors
/// A depth beside a time or a ref; nothing is left within the cut; or the store is damaged.
pub async fn shallows(
    work: &mut Work,
    fetch: &Fetch,
    named: Named,
    wants: &[u32],
    tell_own: bool,
) -> Result<Shallows, Fault> {
    let client = named.shallow;
    let mut own = FxHashSet::default();
    for id in &Arc::clone(&work.snapshot).shallow {
        own.extend(work.objects.locate(id).await?);
    }
    let cut = match asked_cut(work, fetch, named.not).await? {
        Some(cut) => Some(cut),
        None if tell_own && !own.is_empty() => {
            // What the client has cut stays cut: it did not ask for more.
            own.extend(&client);
            Some(Cut::Depth(depth::INFINITE))
        }
        None => None,
    };
    let boundary = match cut {
        Some(cut) => Some(depth::boundary(&mut work.objects, wants, &client, &own, &cut).await?),
        None => (tell_own && !client.is_empty()).then(Boundary::default),
    };
    Ok(Shallows { client, boundary })
}

async fn asked_cut(work: &mut Work, fetch: &Fetch, not: Vec<u32>) -> Result<Option<Cut>, Fault> {
    fetch.check_cuts()?;
    Ok(match fetch.depth {
        Some(by) if fetch.relative => Some(Cut::Deeper { by, tips: tips(work, |hidden| !hidden).await? }),
        Some(depth) => Some(Cut::Depth(depth)),
        None => fetch.has_cut().then_some(Cut::Since { time: fetch.since, not }),
    })
}

/// The one ref that a short name stands for; none when it stands for none or for several. gitrevisions(7), "refname".
fn short_ref(work: &Work, name: &[u8]) -> Option<ObjectId> {
    const FORMS: [(&[u8], &[u8]); 6] = [
        (b"", b""),
        (b"refs/", b""),
        (b"refs/tags/", b""),
        (b"refs/heads/", b""),
        (b"refs/remotes/", b""),
        (b"refs/remotes/", b"/HEAD"),
    ];
    let mut found = FORMS.iter().filter_map(|(before, after)| {
        let name = [before, name, after].concat();
        if name == b"HEAD" {
            return work.snapshot.refs.head().id();
        }
        let found = work.snapshot.refs.find(&name).filter(|found| !found.hidden || work.strict.is_none());
        found.map(|found| found.id)
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The question a pack answers, from everything that was agreed on.
///
/// # Errors
/// A commit at the boundary is missing or damaged.
pub async fn question(
    work: &mut Work,
    fetch: &Fetch,
    wants: Vec<u32>,
    haves: &Haves,
    shallows: &Shallows,
) -> Result<Question, Fault> {
    let none = Boundary::default();
    let boundary = shallows.boundary.as_ref().unwrap_or(&none);
    let reach = depth::reach_of(&mut work.objects, &shallows.client, boundary).await?;
    let is_cut = !reach.cut.is_empty();
    let sparse = sparse_of(work, fetch).await?;
    let mut question = Question {
        wants,
        sparse,
        haves: haves.positions(),
        cut: reach.cut,
        omit: omission(fetch),
        edges_in_full: fetch.thin_pack && is_cut,
    };
    question.wants.extend(reach.more_wants);
    question.haves.extend(reach.more_haves);
    Ok(question)
}

/// The filters of a request as one bound.
fn omission(fetch: &Fetch) -> Omit {
    let mut omit = Omit::default();
    for filter in fetch.filter.iter().flat_map(|spec| &spec.0) {
        omit = omit.and(match filter {
            Filter::BlobNone => Omit { blobs_from: Some(0), ..Omit::default() },
            Filter::BlobLimit(size) => Omit { blobs_from: Some(*size), ..Omit::default() },
            Filter::TreeDepth(depth) => Omit { depth_from: Some(*depth), ..Omit::default() },
            Filter::ObjectType(object) => Omit { all_but: Some(type_of(*object)), ..Omit::default() },
            Filter::SparseOid(_) => Omit::default(),
        });
    }
    omit
}

/// The patterns of a sparse filter.
async fn sparse_of(work: &mut Work, fetch: &Fetch) -> Result<Option<Sparse>, Fault> {
    let named = fetch.filter.iter().flat_map(|spec| &spec.0).find_map(|filter| match filter {
        Filter::SparseOid(name) => Some(name),
        _ => None,
    });
    let Some(name) = named else { return Ok(None) };
    let unreadable = || Fault::NoSparseBlob(name.clone());
    let position = match from_hex(work.snapshot.kind, name) {
        // The paths a hidden blob lists would show in what is left out.
        Some(_) if work.strict.is_some() => None,
        Some(id) => work.objects.locate(&id).await?,
        None => blob_at(work, name).await?,
    };
    let object = work.objects.read(position.ok_or_else(unreadable)?).await?;
    if object.object != ObjectType::Blob {
        return Err(unreadable());
    }
    Ok(Some(Sparse::parse(&object.bytes)))
}

/// The object that `ref:path` names.
async fn blob_at(work: &mut Work, name: &[u8]) -> Result<Option<u32>, Fault> {
    let Some(at) = memchr::memchr(b':', name) else { return Ok(None) };
    let (revision, path) = (name.get(..at).unwrap_or_default(), name.get(at + 1..).unwrap_or_default());
    let by_id = from_hex(work.snapshot.kind, revision).filter(|_| work.strict.is_none());
    let id = by_id.or_else(|| short_ref(work, revision));
    let Some(id) = id else { return Ok(None) };
    let Some(tip) = work.objects.locate(&id).await? else { return Ok(None) };
    let mut position = work.objects.peel(tip).await?;
    if work.objects.type_of(position)? == ObjectType::Commit {
        let tree = work.objects.commit(position).await?.tree;
        position = work.objects.demand(&tree).await?;
    }
    for segment in path.split(|byte| *byte == b'/') {
        let tree = work.objects.read(position).await?;
        if tree.object != ObjectType::Tree {
            return Ok(None);
        }
        let mut entries = TreeEntries::new(work.snapshot.kind, &tree.bytes);
        let found = loop {
            match entries.next_named() {
                Some(Some((_, name, id))) if name == segment => break id.to_owned(),
                Some(Some(_)) => {}
                Some(None) | None => return Ok(None),
            }
        };
        position = work.objects.demand(&found).await?;
    }
    Ok(Some(position))
}

fn type_of(object: crate::proto::filter::ObjectType) -> ObjectType {
    use crate::proto::filter::ObjectType as Named;
    match object {
        Named::Commit => ObjectType::Commit,
        Named::Tree => ObjectType::Tree,
        Named::Blob => ObjectType::Blob,
        Named::Tag => ObjectType::Tag,
    }
}

/// Units of looking one id up.
const COST_OF_LOCATING: usize = 150;
