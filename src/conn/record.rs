//! What one request came to: a record for the log, filled while the answer is made.
//!
//! Formats nothing and writes nothing. Read first: `tests/wire.rs`, `each_request_leaves_one_record`.

use std::time::Duration;

use crate::{
    access::{Caller, Source, directory::Refused},
    pack::plan::Counts,
};

/// One request and its outcome.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The path of the repository as the request named it; empty when it named none.
    pub path: Vec<u8>,
    /// Where the request came from, as far as proxies are believed.
    pub source: Option<Source>,
    /// Who asked, and by which of their tokens.
    pub caller: Option<Caller>,
    /// Why their token did not hold.
    pub fault_of_token: Option<Refused>,
    /// What was asked: `fetch`, `ls-refs`, `advertise`, ...
    pub command: &'static str,
    /// HTTP status of the answer.
    pub status: u16,
    /// What the client was told went wrong inside a 200.
    pub refusal: Option<String>,
    /// What is wrong with the repository.
    pub fault: Option<String>,
    /// Bytes written to the connection.
    pub bytes: u64,
    /// From the end of the request to the end of the answer.
    pub took: Duration,
    /// Of it, until the first byte of a pack was handed over.
    pub planned_after: Option<Duration>,
    /// How the objects of the pack were said.
    pub counts: Option<Counts>,
    /// How the selection was found.
    pub way: Option<&'static str>,
}
