//! The desk: one connection as a state machine without I/O. Bytes and the time go in, steps come out.
//!
//! The only place where `access`, `http`, `proto`, `pack` and `repo` meet. No socket, file, clock, thread or `unsafe` is used here;
//! files are asked for ([`desk::Need`]), time is an argument ([`desk::Counter::poll`]). Law: one answer for each request,
//! in the order of requests; a fault of a repository ends its own answer with words the client shows.
//!
//! ```text
//! bytes -> visit -> call -> route -> door -> refs | fetch | old | files
//!                                     fetch, old: agree -> packing -> cutter -> frame -> Step::Send
//! ```
//! Read first: `a_visit_gives_the_same_answer_for_bytes_split_anywhere`.

pub mod agree;
pub mod call;
pub mod cutter;
pub mod desk;
pub mod door;
pub mod fault;
pub mod fetch;
pub mod files;
pub mod frame;
pub mod offers;
pub mod old;
pub mod packing;
pub mod record;
pub mod refs;
pub mod route;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod vet;
pub mod visit;

pub use self::{
    desk::{Counter, LargePart, Need, Step},
    frame::Frame,
    record::Record,
    rules::Rules,
    visit::{Peer, visit},
};
