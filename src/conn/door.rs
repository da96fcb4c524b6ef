//! The door of a request: who asks, for which repository, and what of it they are shown.
//!
//! Answers nothing itself. Invariants: no byte of a repository is read before its name was judged; the place where it really
//! lies is judged as well, so that no link and no spelling opens what its own name would not; whoever sent no token that holds
//! learns nothing of what exists, and whoever holds one learns nothing of what they may not read.
//! Read first: `every_case_has_its_status` in `tests/access.rs`.

use std::sync::Arc;

use super::call::Call;
use crate::{
    access::{Caller, Directory, Identity, RefLimit, Verdict, canonical},
    repo::{Absent, Snapshot},
};

/// What was settled about a request when it came in.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Everyone may read the repository.
    pub public: bool,
    /// Only what the visible refs reach may be had.
    pub reachable: bool,
}

impl Default for Pass {
    fn default() -> Self {
        Self { public: true, reachable: false }
    }
}

/// Why there is no repository for this request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    /// No token that holds was sent, and it takes one, or the one that was sent does not hold.
    Unknown,
    /// The same, too often.
    TooOften {
        /// Seconds to wait.
        wait: u64,
    },
    /// There is none, or none for this caller.
    Absent(Absent),
}

/// Opens the repository at `path` for whoever asks, as they may see it. `fresh` distrusts what is remembered.
///
/// # Errors
/// They may not read it, or it is not there.
pub async fn admit(call: &mut Call<'_>, path: &[u8], fresh: bool) -> Result<Arc<Snapshot>, Turned> {
    let name = canonical(path).to_vec();
    let Some(directory) = call.rules.gate.directory() else {
        let snapshot = call.desk.snapshot(path, fresh).await.map_err(Turned::Absent)?;
        call.pass.reachable = is_reachable_only(call, &name, &snapshot);
        return Ok(snapshot);
    };
    let caller = identify(call, &directory)?;
    let away = || if caller.is_none() { Turned::Unknown } else { Turned::Absent(Absent::NotFound) };
    let mut limits = Vec::new();
    let mut public = true;
    let mut judge = |name: &[u8]| match directory.judge(caller.as_ref(), name) {
        Verdict::Public => Ok(()),
        Verdict::Granted(limit) => {
            public = false;
            limits.extend(limit);
            Ok(())
        }
        Verdict::Denied => Err(away()),
    };
    // ROOT itself has no name until it is found to be a repository.
    if !name.is_empty() {
        judge(&name)?;
    }
    let snapshot = call.desk.snapshot(path, fresh).await.map_err(|absent| match absent {
        Absent::NotFound | Absent::NotExported => away(),
        absent => Turned::Absent(absent),
    })?;
    let place = snapshot.place.as_deref().map(|place| canonical(place).to_vec());
    if let Some(place) = place.filter(|place| *place != name) {
        judge(&place)?;
    }
    call.pass.public = public;
    call.pass.reachable =
        !limits.is_empty() || is_reachable_only(call, &name, &snapshot) || borrows_unseen(&directory, &snapshot);
    narrow(call, snapshot, limits).await
}

/// Who asks. A token that does not hold is refused even where none is needed, so that its owner hears of it.
fn identify(call: &mut Call<'_>, directory: &Arc<Directory>) -> Result<Option<Caller>, Turned> {
    if let Some(known) = &call.record.caller {
        return Ok(Some(known.clone()));
    }
    match call.rules.gate.identify(directory, call.head.authorization.as_deref()) {
        Identity::Anonymous => Ok(None),
        Identity::Known(caller) => {
            call.record.caller = Some(caller.clone());
            Ok(Some(caller))
        }
        Identity::Refused(refused) => {
            call.record.fault_of_token = Some(refused);
            let wait = call.record.source.and_then(|source| call.rules.gate.fail(source));
            Err(wait.map_or(Turned::Unknown, |wait| Turned::TooOften { wait }))
        }
    }
}

fn is_reachable_only(call: &Call<'_>, name: &[u8], snapshot: &Snapshot) -> bool {
    let of_place = |place: &Vec<u8>| call.rules.gate.is_reachable_only(canonical(place));
    call.rules.gate.is_reachable_only(name) || snapshot.place.as_ref().is_some_and(of_place)
}

/// Whether objects lie in reach that not everyone may read: those of a pool, or of other namespaces.
fn borrows_unseen(directory: &Directory, snapshot: &Snapshot) -> bool {
    let is_public = |lender: &Option<Vec<u8>>| lender.as_ref().is_some_and(|name| directory.is_public(canonical(name)));
    snapshot.is_part || !snapshot.pool.iter().all(is_public)
}

async fn narrow(
    call: &Call<'_>,
    mut snapshot: Arc<Snapshot>,
    limits: Vec<Arc<RefLimit>>,
) -> Result<Arc<Snapshot>, Turned> {
    for limit in limits {
        snapshot = call.desk.narrowed(snapshot, limit).await.map_err(Turned::Absent)?;
    }
    Ok(snapshot)
}

/// The field that makes a client ask for credentials.
pub const CHALLENGE: (&str, &str) = ("WWW-Authenticate", "Basic realm=\"packring\", charset=\"UTF-8\"");
/// The same for every reason.
pub const CHALLENGE_TEXT: &str = "a token is needed here: send it as the password, with any user name";
