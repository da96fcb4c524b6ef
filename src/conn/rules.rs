//! What the operator has settled for every visit, before the doors open.

use std::{sync::Arc, time::Duration};

use crate::{
    access::Gate,
    limits,
    pack::{closure::Closures, shelf::Shelf},
};

/// The same for all visits of a server.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Bytes of one write, at most.
    pub window: usize,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How long the head of a request may take from its first byte.
    pub head_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
    /// What the server calls itself: `agent=` and the `Server` field.
    pub agent: String,
    /// Names this run of the server in traces (`transfer.advertiseSID`).
    pub session_id: String,
    /// Who may read what.
    pub gate: Arc<Gate>,
    /// Plans of all loops.
    pub shelf: Arc<Shelf>,
    /// What walks of all loops found.
    pub closures: Arc<Closures>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            window: limits::WINDOW_DEFAULT,
            idle_timeout: Duration::from_secs(75),
            head_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_mins(2),
            agent: concat!("packring/", env!("CARGO_PKG_VERSION")).to_owned(),
            session_id: "packring".to_owned(),
            gate: Arc::default(),
            shelf: Arc::new(Shelf::new(64 * 1024 * 1024)),
            closures: Arc::new(Closures::new(16 * 1024 * 1024)),
        }
    }
}
