//! packring serves Git repositories over smart HTTP: mapped packs on one side, an io_uring loop per CPU on the other.
//!
//! This file is the map. Arrows go one way: `main -> serve -> {ring, conn}`, `conn -> {access, http, proto, pack, repo}`,
//! `repo -> pack`; everything may use [`oid`] and [`limits`]. `docs/architecture.md` draws it, `tests/tidy.rs` holds it.
//!
//! | room | what becomes what |
//! | --- | --- |
//! | [`http`] | bytes in any split become request heads and bodies; response heads and chunks |
//! | [`proto`] | pkt-lines become wants and haves; answers become sections |
//! | [`pack`] | mapped bytes become a selection, then a plan |
//! | [`access`] | a token and a name become a verdict |
//! | [`repo`] | a path becomes a snapshot: refs, configuration, packs |
//! | [`conn`] | one visit as a state machine: bytes in, frames out |
//! | [`ring`] | frames become write SQEs |
//! | [`tls`] | bytes of the network become bytes of requests |
//! | [`serve`] | one visit per connection, one loop per CPU of the budget |

pub mod access;
pub mod accounts;
pub mod budget;
pub mod conn;
pub mod doors;
pub mod explain;
pub mod flags;
pub mod http;
pub mod limits;
pub mod log;
pub mod oid;
pub mod pack;
pub mod proto;
pub mod repo;
pub mod ring;
pub mod serve;
pub mod stamp;
pub mod tls;
