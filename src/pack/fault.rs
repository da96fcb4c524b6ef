//! What can be wrong with a repository's objects while an answer is made.
//!
//! Facts only: ids, offsets, limits. `conn` decides how a client hears of it, `serve` what the log says.

use super::{delta::DeltaError, entry::EntryError};
use crate::oid::ObjectId;

/// Why an answer cannot be made from these objects. All but `Aborted` are the store's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An object that others name is neither in a pack nor loose.
    #[error("object {id} is missing; run `git fsck` in the repository")]
    Missing {
        /// The object.
        id: ObjectId,
    },
    /// An object is of another type than its place demands.
    #[error("object {id} is of the wrong type; run `git fsck` in the repository")]
    WrongType {
        /// The object.
        id: ObjectId,
    },
    /// A commit, tree or tag that does not follow its format.
    #[error("object {id} is malformed; run `git fsck` in the repository")]
    Malformed {
        /// The object.
        id: ObjectId,
    },
    /// The entry's header cannot be read.
    #[error("object {id} has a damaged pack entry ({error}); run `git fsck` in the repository")]
    Entry {
        /// The object asked for.
        id: ObjectId,
        /// What is wrong.
        error: EntryError,
    },
    /// The zlib stream is damaged, or inflates to another size than its entry says.
    #[error("object {id} does not inflate; run `git fsck` in the repository")]
    Inflate {
        /// The object asked for.
        id: ObjectId,
    },
    /// Delta instructions that do not fit their base.
    #[error("object {id} has a damaged delta ({error}); run `git fsck` in the repository")]
    Delta {
        /// The object asked for.
        id: ObjectId,
        /// What is wrong.
        error: DeltaError,
    },
    /// The base of a delta is not where the entry says.
    #[error("object {id} has no base; run `git fsck` in the repository")]
    NoBase {
        /// The object asked for.
        id: ObjectId,
    },
    /// A chain of deltas that runs in a circle, or is longer than any git writes.
    #[error("object {id} sits on more than {limit} deltas; repack the repository")]
    Depth {
        /// The object asked for.
        id: ObjectId,
        /// Deltas allowed.
        limit: usize,
    },
    /// An object that would have to be held whole and is too large for that.
    #[error("object {id} of {size} bytes is larger than the {limit} bytes this server holds at once")]
    TooLarge {
        /// The object.
        id: ObjectId,
        /// Its size in bytes, as claimed.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A loose object that is there and cannot be read.
    #[error("loose object {id} is damaged; run `git fsck` in the repository")]
    BrokenLoose {
        /// The object.
        id: ObjectId,
    },
}

impl Fault {
    /// The object at fault.
    pub fn id(&self) -> &ObjectId {
        match self {
            Self::Missing { id }
            | Self::WrongType { id }
            | Self::Malformed { id }
            | Self::Entry { id, .. }
            | Self::Inflate { id }
            | Self::Delta { id, .. }
            | Self::NoBase { id }
            | Self::Depth { id, .. }
            | Self::TooLarge { id, .. }
            | Self::BrokenLoose { id } => id,
        }
    }
}
