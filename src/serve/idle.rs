//! What a loop does beside its visits: packs that left are let go, packs that could be sealed are proved.
//!
//! Never in the way: one slice at a time, and the loop is given back between two. Invariant: a pack is proved at most once.
//! Read first: `packs_that_left_their_repository_are_let_go` in `repo::catalogue`; `pack::ways`.

use std::{
    collections::HashSet,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    oid::ObjectId,
    pack::{Objects, Pace, shelf::Shelf, ways::prove_sealed},
    repo::{Catalogue, Snapshot},
    ring,
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

/// Proves of each pack with a bitmap that is in use whether it is sealed: holds exactly what its own commits and tags reach.
/// From then on a clone of all of it needs no walk of trees.
pub async fn seal_for_ever(catalogue: Arc<Catalogue>) {
    let mut tried: HashSet<ObjectId> = HashSet::new();
    loop {
        tokio::time::sleep(SEAL_EVERY).await;
        for snapshot in catalogue.snapshots() {
            let store = &snapshot.store;
            let pack = store.chart().and_then(|chart| chart.pack(store)).filter(|pack| !pack.is_sealed());
            if let Some(pack) = pack.filter(|pack| tried.insert(*pack.trailer())) {
                let (name, objects) = (pack.name().to_owned(), pack.count());
                let is_sealed = prove(&snapshot).await;
                tracing::debug!(repository = snapshot.name, pack = name, objects, is_sealed, "sealing tried");
            }
        }
        if tried.len() > TRIED_MAX {
            tried.clear();
        }
    }
}

async fn prove(snapshot: &Arc<Snapshot>) -> bool {
    let pace = Pace::default();
    let mut objects = Objects::new(Arc::clone(&snapshot.store), &snapshot.shallow, pace.clone());
    if let Some(graph) = &snapshot.graph {
        objects = objects.with_graph(Arc::clone(graph));
    }
    let mut work = pin!(prove_sealed(&mut objects));
    loop {
        pace.refill();
        if let Poll::Ready(proved) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return matches!(proved, Ok(Some(true)));
        }
        match pace.asked() {
            Some(ask) => pace.answer(snapshot.loose(ask)),
            None => ring::pause().await,
        }
    }
}

/// How often packs are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Packs looked at before the loop is given back: a look is one `stat`.
const LOOKS_AT_ONCE: usize = 100;
/// How often repositories in use are looked at for packs to prove.
const SEAL_EVERY: Duration = Duration::from_secs(1);
/// Packs remembered as tried.
const TRIED_MAX: usize = 100_000;
