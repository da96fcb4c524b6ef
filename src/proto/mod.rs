//! The counter: pkt-lines become typed requests, answers become sections. Versions 0, 1 and 2 of upload-pack.
//!
//! Pure: no file, no socket, no object. Law: what is advertised and what is accepted come from one value ([`Offers`]); a
//! request is read whole or refused whole, with the words stock git has for it.
//! Source: gitprotocol-v2(5), gitprotocol-pack(5), gitprotocol-capabilities(5).
//! Read first: the tests of [`request`].

pub mod answer;
pub mod filter;
pub mod number;
pub mod offer;
pub mod old;
pub mod pkt;
pub mod request;
pub mod violation;

pub use self::{
    filter::Policy as FilterPolicy,
    offer::{Offers, Unborn},
    request::{Command, Fetch},
    violation::Violation,
};
