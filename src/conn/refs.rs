//! Which refs a client sees: the advertisements of versions 0 and 1, `ls-refs` of version 2, and the sizes of objects.
//!
//! Reads the snapshot, changes nothing. Invariants: hidden refs are never shown; HEAD comes first and once; refs come in
//! the order of their bytes.
//! Source: gitprotocol-pack(5), "Reference Discovery"; gitprotocol-v2(5), "ls-refs", "object-info".
//! Read first: `tests/differential.rs`.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{
    agree::{self, Work},
    call::{Call, protocol_version},
    fault::Fault,
    fetch::refuse,
    offers::offers,
    vet::{self, Peel, Vetted},
};
use crate::{
    http::Cache,
    limits,
    oid::ObjectId,
    proto::{
        answer::{self, ListedRef},
        offer::{self, AdvertisedRef},
        pkt,
        request::{LsRefs, ObjectInfo},
    },
    repo::{Head, Snapshot},
};

/// Answers `GET info/refs?service=git-upload-pack`.
pub async fn advertise(call: &mut Call<'_>, snapshot: Arc<Snapshot>) {
    let offers = offers(&snapshot, call);
    let mut text = Vec::new();
    match protocol_version(call.head.git_protocol.as_deref()) {
        2 => offer::push_v2(&mut text, &offers),
        version => {
            let mut work = Work::of(call, Arc::clone(&snapshot));
            let vetted = match look(call, &mut work).await {
                Ok(vetted) => vetted,
                Err(fault) => return broken(call, &fault).await,
            };
            offer::push_service(&mut text);
            let head = head_to_show(&snapshot);
            let target = match &head {
                Some((_, target)) => target.clone(),
                None => None,
            };
            let refs = old_refs(&snapshot, &vetted, head.map(|head| head.0));
            offer::push_old(&mut text, &offers, version == 1, refs, target.as_deref(), &snapshot.shallow);
        }
    }
    call.text(ADVERTISEMENT, Cache::Never, text.into()).await;
}

/// HEAD as it is shown, with the ref it stands for; nothing when it leads nowhere.
fn head_to_show(snapshot: &Snapshot) -> Option<(ObjectId, Option<Vec<u8>>)> {
    match snapshot.refs.head() {
        Head::Missing | Head::Branch { id: None, .. } => None,
        Head::Detached(id) => Some((*id, None)),
        Head::Branch { target, id: Some(id) } => Some((*id, Some(target.clone()))),
    }
}

fn old_refs<'s>(
    snapshot: &'s Snapshot,
    vetted: &'s Vetted,
    head: Option<ObjectId>,
) -> impl Iterator<Item = AdvertisedRef<'s>> {
    let head = head.map(|id| AdvertisedRef { name: b"HEAD", id, peeled: None });
    let refs = snapshot.refs.iter().filter(|found| !found.hidden).filter_map(|found| {
        let peeled = match vetted.peel(found.index) {
            Peel::Gone => return None,
            Peel::Not => None,
            Peel::To(id) => Some(id),
        };
        Some(AdvertisedRef { name: found.name, id: found.id, peeled })
    });
    head.into_iter().chain(refs)
}

async fn look(call: &Call<'_>, work: &mut Work) -> Result<Arc<Vetted>, Fault> {
    let (pace, snapshot) = (work.pace.clone(), Arc::clone(&work.snapshot));
    call.desk.finish(&pace, &snapshot, vet::vetted(work)).await
}

async fn broken(call: &mut Call<'_>, fault: &Fault) {
    super::fetch::note(call, fault);
    call.refuse(
        crate::http::Status::INTERNAL_SERVER_ERROR,
        "this repository is damaged; the log of the server says where",
    )
    .await;
}

/// Answers `ls-refs`.
pub async fn list(call: &mut Call<'_>, snapshot: Arc<Snapshot>, asked: &LsRefs) {
    call.record.command = "ls-refs";
    let mut work = Work::of(call, Arc::clone(&snapshot));
    let vetted = match look(call, &mut work).await {
        Ok(vetted) => vetted,
        Err(fault) => return refuse(call, &fault).await,
    };
    let mut text = Vec::new();
    list_head(&mut text, &snapshot, asked);
    let mut push = |found: crate::repo::Ref<'_>| {
        let peeled = match vetted.peel(found.index) {
            Peel::Gone => return,
            Peel::Not => None,
            Peel::To(id) => Some(id),
        };
        if !found.hidden {
            let (peeled, symref) = (peeled.filter(|_| asked.peel), found.symref.filter(|_| asked.symrefs));
            answer::push_listed_ref(&mut text, &ListedRef { name: found.name, id: Some(found.id), symref, peeled });
        }
    };
    for (number, found) in snapshot.refs.iter().filter(|found| is_asked_for(&asked.prefixes, found.name)).enumerate() {
        push(found);
        if number % REFS_PER_SLICE == REFS_PER_SLICE - 1 {
            call.desk.breathe().await;
        }
    }
    text.extend_from_slice(pkt::FLUSH);
    call.text("application/x-git-upload-pack-result", Cache::Never, text.into()).await;
}

fn list_head(text: &mut Vec<u8>, snapshot: &Snapshot, asked: &LsRefs) {
    if !is_asked_for(&asked.prefixes, b"HEAD") {
        return;
    }
    let (id, target) = match snapshot.refs.head() {
        Head::Missing => return,
        Head::Detached(id) => (Some(*id), None),
        Head::Branch { target, id } => (*id, Some(target.as_slice())),
    };
    // A branch that is not born yet is only told to who asked for it, and then always with its name.
    let symref = target.filter(|_| asked.symrefs || id.is_none());
    if id.is_some() || asked.unborn {
        answer::push_listed_ref(text, &ListedRef { name: b"HEAD", id, symref, peeled: None });
    }
}

/// Whether one of the prefixes fits; without any, or with too many, everything does.
fn is_asked_for(prefixes: &[Vec<u8>], name: &[u8]) -> bool {
    prefixes.is_empty()
        || prefixes.len() > limits::REF_PREFIXES_MAX
        || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Answers `object-info`.
pub async fn object_info(call: &mut Call<'_>, snapshot: Arc<Snapshot>, asked: &ObjectInfo) {
    call.record.command = "object-info";
    let mut work = Work::of(call, Arc::clone(&snapshot));
    let pace = work.pace.clone();
    let sizes = call.desk.finish(&pace, &snapshot, sizes(&mut work, &asked.ids)).await;
    match sizes {
        Ok(sizes) => {
            let mut text = Vec::new();
            answer::push_object_info(&mut text, asked.size, asked.ids.iter().copied().zip(sizes));
            call.result(&text).await;
        }
        Err(fault) => refuse(call, &fault).await,
    }
}

async fn sizes(work: &mut Work, ids: &[ObjectId]) -> Result<Vec<Option<u64>>, Fault> {
    let mut positions = Vec::with_capacity(ids.len());
    for id in ids {
        positions.push(work.objects.locate(id).await?);
        work.pace.work(COST_OF_SIZE).await;
    }
    let found: Vec<u32> = positions.iter().copied().flatten().collect();
    let lost = if work.strict.is_some() { agree::lost(work, &found).await? } else { FxHashSet::default() };
    let mut sizes = Vec::with_capacity(ids.len());
    for position in positions {
        let position = position.filter(|position| !lost.contains(position));
        sizes.push(position.map(|position| work.objects.size(position)).transpose()?);
    }
    Ok(sizes)
}

const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
/// Refs listed between two looks at the others.
const REFS_PER_SLICE: usize = 5_000;
/// Units of finding one object's size.
const COST_OF_SIZE: usize = 600;
