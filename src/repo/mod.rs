//! The catalogue: a path becomes a repository, a repository becomes the snapshot that one request holds.
//!
//! The only room that touches files below ROOT; all of it by plain calls, which for files in the page cache cost
//! microseconds. Law: nothing named in a repository is executed or followed out of where it may lead; what changed on disk
//! is seen by the next request; a request in flight keeps what it started with.
//! Source: gitrepository-layout(5). Read first: the tests of [`catalogue`].

pub mod alternates;
pub mod catalogue;
pub mod charts;
pub mod hide;
pub mod layout;
pub mod loose;
pub mod name;
pub mod packed;
pub mod packs;
pub mod refs;
pub mod reftable;
pub mod seals;
pub mod settings;
pub mod snapshot;

pub use self::{
    catalogue::{Catalogue, CatalogueOptions, Export, Namespaces},
    loose::LooseStream,
    refs::{Head, Peeled, Ref, Refs},
    settings::{Defaults, Settings, Unborn},
    snapshot::Snapshot,
};

/// Why a path gives no repository to serve. Texts are for the log, not for clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// There is none at that path, or none below ROOT.
    #[error("no repository at that path")]
    NotFound,
    /// It is not marked for export (`git-daemon-export-ok`), and only marked ones are served.
    #[error("the repository has no git-daemon-export-ok; create that file, or start with --export all")]
    NotExported,
    /// Its configuration switches fetching off (`http.uploadpack`).
    #[error("http.uploadpack is false in the repository's configuration")]
    Disabled,
    /// It needs what this server does not know.
    #[error("{0}")]
    Unsupported(String),
    /// It cannot be read.
    #[error("{0}")]
    Broken(String),
}
