//! Which refs can be shown, and what their tags finally name: looked up once for each snapshot.
//!
//! Shows nothing. Invariants: a ref whose object is not here is not shown, as stock git does not show it; what a ref is
//! peeled to comes from `packed-refs` where that says it, else from the tag itself.
//! Source: git-pack-refs(1); `peel` in gitprotocol-v2(5). Read first: `tests/differential.rs`.

use std::sync::Arc;

use super::{agree::Work, fault::Fault};
use crate::{
    oid::ObjectId,
    pack::{self, ObjectType},
    repo::Peeled,
};

/// What was found of each ref, by its index.
#[derive(Debug, Default)]
pub struct Vetted(Vec<Peel>);

/// What was found of one ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peel {
    /// Its object is not here.
    Gone,
    /// Its object is no tag, or a tag that leads nowhere.
    Not,
    /// Its object is a tag, which finally names this.
    To(ObjectId),
}

impl Vetted {
    /// What was found of the ref with that index.
    pub fn peel(&self, index: usize) -> Peel {
        self.0.get(index).copied().unwrap_or(Peel::Gone)
    }
}

/// Looks at every ref of the snapshot, unless that was done before.
///
/// # Errors
/// The store is damaged.
pub async fn vetted(work: &mut Work) -> Result<Arc<Vetted>, Fault> {
    let snapshot = Arc::clone(&work.snapshot);
    if let Some(known) = snapshot.cell.get().and_then(|cell| cell.downcast_ref::<Arc<Vetted>>()) {
        return Ok(Arc::clone(known));
    }
    let mut peels = Vec::with_capacity(snapshot.refs.len());
    for found in snapshot.refs.iter() {
        peels.push(look(work, &found.id, found.peeled).await?);
        work.pace.work(COST_OF_LOOK).await;
    }
    let vetted = Arc::new(Vetted(peels));
    let _ = snapshot.cell.set(Box::new(Arc::clone(&vetted)));
    Ok(vetted)
}

async fn look(work: &mut Work, id: &ObjectId, peeled: Peeled) -> Result<Peel, Fault> {
    let Some(position) = work.objects.locate(id).await? else { return Ok(Peel::Gone) };
    match peeled {
        Peeled::NoTag => Ok(Peel::Not),
        Peeled::To(object) => Ok(Peel::To(object)),
        Peeled::Unknown if work.objects.type_of(position)? != ObjectType::Tag => Ok(Peel::Not),
        Peeled::Unknown => match work.objects.peel(position).await {
            Ok(object) => Ok(Peel::To(work.objects.id(object)?)),
            Err(pack::Fault::Missing { .. } | pack::Fault::Malformed { .. }) => Ok(Peel::Not),
            Err(fault) => Err(fault.into()),
        },
    }
}

/// Units of looking one ref up.
const COST_OF_LOOK: usize = 150;
