//! TLS without I/O: bytes of the network become bytes of requests, and the other way round.
//!
//! Knows no socket and no HTTP; rustls does the cryptography. Invariants: what is sealed at once never exceeds
//! [`SEALED_MAX`] bytes of ciphertext, so a slow client pins little; a certificate that cannot be read leaves the last good
//! one in use.
//! Source: RFC 8446, RFC 7301 (ALPN). Read first: `bytes_cross_a_session_in_any_split`.

pub mod certificates;
pub mod session;

pub use self::{
    certificates::{CertificateFault, Certificates},
    session::{Session, SessionFault},
};

/// Bytes of ciphertext that are made at once. They are our own, unlike the mapped bytes of a plain connection.
pub const SEALED_MAX: usize = 64 * 1024;
