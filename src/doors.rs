//! The doors: addresses of flags and sockets that were passed to us become listeners, some of them for TLS.
//!
//! Accepts nothing. Invariants: a socket that was passed is used and never bound anew, so that whoever passed it keeps its
//! queue over our restarts; with no word about doors there is one, on loopback.
//! Source: sd_listen_fds(3), sd_notify(3). Read first: `tests/upgrade.rs`.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use crate::{
    flags::Serve,
    ring::{Listener, Tuning},
};

/// A listener and what it is for.
#[derive(Debug)]
pub struct Door {
    /// Bound and listening.
    pub listener: Listener,
    /// Whether TLS is spoken here.
    pub tls: bool,
}

impl Door {
    /// As an address of the web.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.listener.address())
    }

    /// Whether what is said here can be read by others on the way.
    pub fn is_open(&self) -> bool {
        !self.tls && !self.listener.address().ip().to_canonical().is_loopback()
    }
}

/// Opens every door. Of sockets that were passed, those that `LISTEN_FDNAMES` calls `tls` are for TLS.
///
/// # Errors
/// An address cannot be listened on, or a socket that was passed is none.
pub fn open(flags: &Serve, tuning: &Tuning) -> io::Result<Vec<Door>> {
    let mut doors = passed(flags, tuning)?;
    let default = [SocketAddr::from(([127, 0, 0, 1], 8080))];
    let is_said = !flags.listen.is_empty() || !flags.tls_listen.is_empty() || !doors.is_empty();
    let plain = if is_said { flags.listen.as_slice() } else { &default };
    for (addresses, tls) in [(plain, false), (flags.tls_listen.as_slice(), true)] {
        for address in addresses {
            let listener = Listener::bind(*address, tuning)
                .map_err(|error| io::Error::other(format!("cannot listen on {address}: {error}")))?;
            doors.push(Door { listener, tls });
        }
    }
    Ok(doors)
}

fn passed(flags: &Serve, tuning: &Tuning) -> io::Result<Vec<Door>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = listenfd::ListenFd::from_env();
    let mut doors = Vec::new();
    for number in 0..sockets.len() {
        let tls = names.next() == Some("tls");
        let named =
            |error: io::Error| io::Error::other(format!("socket {number} that was passed (LISTEN_FDS): {error}"));
        let Some(socket) = sockets.take_tcp_listener(number).map_err(named)? else { continue };
        if tls && flags.tls_cert.is_none() {
            return Err(named(io::Error::other("it is named `tls`, which needs --tls-cert and --tls-key")));
        }
        doors.push(Door { listener: Listener::from_fd(OwnedFd::from(socket), tuning).map_err(named)?, tls });
    }
    Ok(doors)
}
