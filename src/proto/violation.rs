//! What a request can get wrong, in the words of stock git where it has words.
//!
//! Read first: the tests of [`super::request`] and [`super::old`], which produce each.

use super::pkt::PktError;
use crate::oid::Kind;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not even lines.
    #[error("protocol error: {0}")]
    Pkt(#[from] PktError),
    /// The request ends before it is complete.
    #[error("the remote end hung up unexpectedly")]
    Unfinished,
    /// Version 2: a line before the arguments that is no capability.
    #[error("unknown capability '{}'", shown(.0))]
    UnknownCapability(Vec<u8>),
    /// Version 2: a command that is not offered.
    #[error("invalid command '{}'", shown(.0))]
    InvalidCommand(Vec<u8>),
    /// Version 2: capabilities without a command.
    #[error("no command requested")]
    NoCommand,
    /// Version 2: a second command.
    #[error("command '{}' requested after already requesting command '{first}'", shown(.again))]
    TwoCommands {
        /// The first.
        first: &'static str,
        /// The other.
        again: Vec<u8>,
    },
    /// A hash function nobody knows.
    #[error("unknown object format '{}'", shown(.0))]
    UnknownObjectFormat(Vec<u8>),
    /// `object-format` without a value.
    #[error("object-format capability requires an argument")]
    NoObjectFormat,
    /// The client means to speak of ids of another kind.
    #[error("mismatched object format: server {server}; client {client}")]
    MismatchedObjectFormat {
        /// Of the repository.
        server: Kind,
        /// Of the request.
        client: Kind,
    },
    /// An argument that the command does not have, or that is not offered.
    #[error("unexpected line: '{}'", shown(.0))]
    UnexpectedLine(Vec<u8>),
    /// Something else than a flush behind the arguments.
    #[error("expected flush after {0} arguments")]
    NoFlush(&'static str),
    /// A want without an id (version 2).
    #[error("git upload-pack: protocol error, expected to get oid, not '{}'", shown(.0))]
    NoWantedId(Vec<u8>),
    /// A line among the wants that is none (versions 0 and 1).
    #[error("git upload-pack: protocol error, expected to get object ID, not '{}'", shown(.0))]
    NoWant(Vec<u8>),
    /// A have without an id.
    #[error("git upload-pack: expected SHA1 object, got '{}'", shown(.0))]
    NoHadId(Vec<u8>),
    /// A line among the haves that is none (versions 0 and 1).
    #[error("git upload-pack: expected SHA1 list, got '{}'", shown(.0))]
    NoHave(Vec<u8>),
    /// A shallow line without an id.
    #[error("invalid shallow line: {}", shown(.0))]
    InvalidShallow(Vec<u8>),
    /// A depth that is no positive number.
    #[error("Invalid deepen: {}", shown(.0))]
    InvalidDeepen(Vec<u8>),
    /// A time that is no number.
    #[error("Invalid deepen-since: {}", shown(.0))]
    InvalidDeepenSince(Vec<u8>),
    /// A depth beside a time or a ref.
    #[error("git upload-pack: deepen and deepen-since (or deepen-not) cannot be used together")]
    TwoCuts,
    /// The same ref wanted twice.
    #[error("duplicate want-ref {}", shown(.0))]
    DuplicateWantRef(Vec<u8>),
    /// A second line of protocols for packfile-uris.
    #[error("multiple packfile-uris lines forbidden")]
    TwoUriLines,
    /// A second filter.
    #[error("multiple filter-specs cannot be combined")]
    TwoFilters,
    /// A filter without the capability (versions 0 and 1).
    #[error("git upload-pack: filtering capability not negotiated")]
    FilterNotNegotiated,
    /// A filter-spec that cannot be read.
    #[error("invalid filter-spec '{}'", shown(.0))]
    InvalidFilter(Vec<u8>),
    /// A kind of filter that this repository does not serve.
    #[error("filter '{0}' not supported")]
    FilterNotSupported(&'static str),
    /// A tree filter deeper than this repository serves.
    #[error("tree filter allows max depth {max}, but got {asked}")]
    TreeTooDeep {
        /// Deepest that is served.
        max: u64,
        /// Asked for.
        asked: u64,
    },
    /// An argument of object-info that is none.
    #[error("object-info: unexpected line: '{}'", shown(.0))]
    ObjectInfoLine(Vec<u8>),
    /// An object of object-info that has no id.
    #[error("object-info: protocol error, expected to get oid, not '{}'", shown(.0))]
    ObjectInfoId(Vec<u8>),
    /// An argument of bundle-uri, which has none.
    #[error("bundle-uri: unexpected argument: '{}'", shown(.0))]
    BundleUriLine(Vec<u8>),
    /// More wants or haves than any client sends.
    #[error("the request names more than {limit} objects")]
    TooMany {
        /// Ids allowed.
        limit: usize,
    },
}

/// A line as it may stand in a message: no control bytes, and not all of a long one.
fn shown(line: &[u8]) -> String {
    let line = line.get(..line.len().min(SHOWN_MAX)).unwrap_or_default();
    String::from_utf8_lossy(line).chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Bytes of a stranger's line that are repeated to it.
const SHOWN_MAX: usize = 200;
