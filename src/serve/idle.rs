//! What a loop does beside its visits: packs that left are let go, packs in use are compared with their checksums, and
//! those that could be sealed are proved.
//!
//! Never in the way: one slice at a time, and the loop is given back between two. Invariant: a pack is proved at most once.
//! Read first: `packs_that_left_their_repository_are_let_go` in `repo::catalogue`; `pack::ways`.

use std::{
    collections::HashSet,
    future::Future,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    oid::ObjectId,
    pack::{Chart, Objects, Pace, Pack, seal::prove_sealed, shelf::Shelf},
    repo::{Catalogue, Snapshot},
    ring,
    tls::Certificates,
};

/// Drops what is remembered of packs that left their repositories, again and again: deleted packs would fill the disk.
pub async fn sweep_for_ever(catalogue: Arc<Catalogue>, shelf: Arc<Shelf>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        for (number, path) in catalogue.open_packs().iter().enumerate() {
            if let Some(pack) = catalogue.forget_gone(path) {
                shelf.sweep(|plan| plan.packs().iter().any(|held| Arc::ptr_eq(held, &pack)));
            }
            if number % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

/// Takes renewed certificates into use.
pub async fn renew_for_ever(certificates: Arc<Certificates>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        match certificates.refresh() {
            Ok(false) => {}
            Ok(true) => tracing::info!("a renewed certificate is in use"),
            Err(fault) => tracing::error!("{fault}; the last good certificate stays in use"),
        }
    }
}

/// Proves of the largest pack of each repository in use whether it is sealed: holds exactly what its own commits and tags
/// reach. From then on a clone of all of it needs no walk of trees. Proofs are kept where there is a state folder.
pub async fn seal_for_ever(catalogue: Arc<Catalogue>) {
    let (mut tried, mut kept): (HashSet<ObjectId>, HashSet<ObjectId>) = Default::default();
    let mut reported = HashSet::new();
    loop {
        tokio::time::sleep(SEAL_EVERY).await;
        let snapshots = catalogue.snapshots();
        reported.retain(|number| snapshots.iter().any(|snapshot| snapshot.number == *number));
        for snapshot in snapshots {
            let faults = faults(&snapshot);
            if !faults.is_empty() && reported.insert(snapshot.number) {
                for fault in faults {
                    tracing::warn!(repository = snapshot.name, "{fault}");
                }
            }
            let packs = snapshot.store.packs();
            let Some((number, pack)) = packs.iter().enumerate().max_by_key(|(_, pack)| pack.count()) else { continue };
            if !pack.is_sealed() && tried.insert(*pack.trailer()) {
                let is_sealed = prove(&snapshot, number).await;
                let objects = pack.count();
                tracing::debug!(repository = snapshot.name, pack = pack.name(), objects, is_sealed, "sealing tried");
            }
            if pack.is_sealed()
                && kept.insert(*pack.trailer())
                && let Err(error) = catalogue.keep_seal(pack)
            {
                tracing::warn!(pack = pack.name(), "the proof that this pack is sealed cannot be kept: {error}");
            }
        }
        for known in [&mut tried, &mut kept] {
            if known.len() > TRIED_MAX {
                known.clear();
            }
        }
    }
}

async fn prove(snapshot: &Arc<Snapshot>, number: usize) -> bool {
    let pace = Pace::default();
    let mut objects = Objects::new(Arc::clone(&snapshot.store), &snapshot.shallow, pace.clone());
    if let Some(graph) = &snapshot.graph {
        objects = objects.with_graph(Arc::clone(graph));
    }
    matches!(beside(&pace, snapshot, prove_sealed(&mut objects, number)).await, Ok(Some(true)))
}

/// What was found wrong with files beside the packs when they were first used.
fn faults(snapshot: &Snapshot) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(fault) = snapshot.store.chart().and_then(Chart::fault) {
        faults.push(format!("the bitmaps are done without: {fault}"));
    }
    if snapshot.graph.as_ref().is_some_and(|graph| graph.is_broken()) {
        let remedy = "`git commit-graph write --reachable` makes it anew";
        faults.push(format!("the commit-graph does not match its checksum and is done without; {remedy}"));
    }
    for pack in snapshot.store.packs() {
        if let Some(fault) = pack.order_fault() {
            faults.push(format!("pack {}: the reverse index is done without: {fault}", pack.name()));
        }
    }
    faults
}

/// Compares each pack in use with its trailer, once; a damaged one is served no more.
pub async fn verify_for_ever(catalogue: Arc<Catalogue>, shelf: Arc<Shelf>) {
    let mut intact: Vec<Weak<Pack>> = Vec::new();
    loop {
        tokio::time::sleep(SEAL_EVERY).await;
        intact.retain(|pack| pack.strong_count() > 0);
        for snapshot in catalogue.snapshots() {
            for pack in snapshot.store.packs() {
                if intact.iter().any(|known| known.as_ptr() == Arc::as_ptr(pack)) {
                    continue;
                }
                let pace = Pace::default();
                if beside(&pace, &snapshot, pack.is_intact(&pace)).await {
                    intact.push(Arc::downgrade(pack));
                    continue;
                }
                tracing::error!(
                    repository = snapshot.name,
                    pack = pack.name(),
                    "the pack does not match its checksum and is served no more; run `git fsck` and fetch it anew"
                );
                catalogue.condemn(pack);
                shelf.sweep(|plan| plan.packs().iter().any(|held| Arc::ptr_eq(held, pack)));
            }
        }
    }
}

/// Does work in slices, and gives the loop back between two.
async fn beside<T>(pace: &Pace, snapshot: &Arc<Snapshot>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        pace.refill();
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        match pace.asked() {
            Some(ask) => pace.answer(snapshot.loose(ask)),
            None => ring::pause().await,
        }
    }
}

/// How often the files of certificates are looked at.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// How often packs are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Packs looked at before the loop is given back: a look is one `stat`.
const LOOKS_AT_ONCE: usize = 100;
/// How often repositories in use are looked at for packs to prove.
const SEAL_EVERY: Duration = Duration::from_secs(1);
/// Packs remembered as tried.
const TRIED_MAX: usize = 100_000;
