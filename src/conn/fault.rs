//! Everything that can stop an answer, and how a client hears of it.
//!
//! The only place that turns faults into words for clients. Three classes: the peer asked for what it may not have or
//! could not say it; the store is damaged; we have met a bound of our own. No path of the server ever stands in a text.
//! Read first: `a_client_never_reads_a_path`.

use super::desk::Torn;
use crate::{
    oid::ObjectId,
    pack::{self, depth::CutFault},
    proto::Violation,
};

/// Why there is no answer, or only the start of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer's: what it sent breaks the protocol.
    Violation(Violation),
    /// The peer's: a want that it may not have, or that is not here.
    NotOurRef(ObjectId),
    /// The peer's: a ref that it named and that is not here.
    UnknownRef(Vec<u8>),
    /// The peer's: a name that is no ref, or more than one.
    AmbiguousRef(Vec<u8>),
    /// The peer's: a shallow line that names no commit.
    InvalidShallow(ObjectId),
    /// The peer's: a sparse filter whose patterns are not here.
    NoSparseBlob(Vec<u8>),
    /// The peer's: its cut leaves nothing.
    NothingWithin,
    /// The store's.
    Store(pack::Fault),
    /// The store's: a pack was cut short while it was sent.
    Torn,
}

impl Fault {
    /// The words for the client, behind `ERR ` or in band 3.
    pub fn text(&self) -> Vec<u8> {
        let named = |before: &str, name: &[u8]| [before.as_bytes(), name].concat();
        match self {
            Self::Violation(violation) => violation.to_string().into_bytes(),
            Self::NotOurRef(id) => format!("upload-pack: not our ref {id}").into_bytes(),
            Self::UnknownRef(name) => named("unknown ref ", name),
            Self::AmbiguousRef(name) => named("git upload-pack: ambiguous deepen-not: ", name),
            Self::InvalidShallow(id) => format!("invalid shallow object {id}").into_bytes(),
            Self::NoSparseBlob(name) => [b"unable to access sparse blob in '".as_slice(), name, b"'"].concat(),
            Self::NothingWithin => b"no commits selected for shallow requests".to_vec(),
            Self::Store(fault) => fault.to_string().into_bytes(),
            Self::Torn => b"a pack of the repository was cut short while it was sent; fetch again".to_vec(),
        }
    }

    /// Whether the repository may have been replaced under the request, so that a fresh look is worth it.
    pub fn may_be_stale(&self) -> bool {
        matches!(self, Self::Store(pack::Fault::Missing { .. } | pack::Fault::BrokenLoose { .. }) | Self::NotOurRef(_))
    }

    /// Whether an operator has to do something.
    pub fn is_of_the_store(&self) -> bool {
        matches!(self, Self::Store(_) | Self::Torn)
    }
}

impl From<Torn> for Fault {
    fn from(_: Torn) -> Self {
        Self::Torn
    }
}

impl From<pack::Fault> for Fault {
    fn from(fault: pack::Fault) -> Self {
        Self::Store(fault)
    }
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<CutFault> for Fault {
    fn from(fault: CutFault) -> Self {
        match fault {
            CutFault::NothingLeft => Self::NothingWithin,
            CutFault::Store(fault) => Self::Store(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oid::Kind;

    #[test]
    fn a_client_never_reads_a_path() {
        let id = ObjectId::null(Kind::Sha1);
        for fault in [
            Fault::NotOurRef(id),
            Fault::UnknownRef(b"refs-heads-x".to_vec()),
            Fault::AmbiguousRef(b"x".to_vec()),
            Fault::InvalidShallow(id),
            Fault::NothingWithin,
            Fault::Store(pack::Fault::Missing { id }),
            Fault::Store(pack::Fault::BrokenLoose { id }),
        ] {
            let text = String::from_utf8(fault.text()).unwrap();
            assert!(!text.is_empty() && !text.contains('/') && !text.contains('\n'), "{text}");
        }
    }
}
