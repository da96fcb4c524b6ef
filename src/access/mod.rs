//! The door: who asks, and may they read what they name.
//!
//! Knows no HTTP and no Git. The loops ask a [`Directory`], which never changes; [`store`] reads new ones from the database,
//! on a thread of its own. Law: what is not allowed is denied; a token is known by its digest alone; nothing that a request
//! asks here touches a file.
//! Read first: `every_case_of_visibility_credential_and_grant_has_its_verdict` in [`directory`].

pub mod attempts;
pub mod directory;
pub mod gate;
pub mod pattern;
pub mod store;
pub mod token;
pub mod watch;

/// Where a request comes from.
pub use std::net::IpAddr as Source;

pub use self::{
    directory::{Caller, Directory, RefLimit, Verdict, canonical},
    gate::{Gate, Identity, WantsRule},
    pattern::Pattern,
    store::{Store, StoreFault},
    token::Token,
};
