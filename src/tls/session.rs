//! One connection's session: ciphertext in, plaintext out, and back.
//!
//! Waits for nothing. Invariants: what is to be sent is taken by the caller before more is sealed; plaintext is handed over
//! whole, and nothing of it is kept.
//! Read first: `bytes_cross_a_session_in_any_split`.

use std::{
    fmt,
    io::{self, Read, Write},
    sync::Arc,
};

use rustls::{ServerConfig, ServerConnection};

use super::SEALED_MAX;

/// The peer does not speak TLS as we do; what [`Session::take_sealed`] gives tells it so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SessionFault(#[from] rustls::Error);

/// The server's end of one TLS connection.
pub struct Session {
    connection: ServerConnection,
    is_closed: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

impl Session {
    /// Waits for the peer's hello.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(config: Arc<ServerConfig>) -> Result<Self, SessionFault> {
        let mut connection = ServerConnection::new(config)?;
        connection.set_buffer_limit(Some(SEALED_MAX));
        Ok(Self { connection, is_closed: false })
    }

    /// Whether requests cannot arrive yet.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether the peer said that it will send no more.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes bytes from the network and appends what they say to `plain`.
    ///
    /// # Errors
    /// They are not TLS, or do not belong to this session: the connection is over.
    pub fn open(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), SessionFault> {
        while !bytes.is_empty() && !self.is_closed {
            // Reading from memory fails only where rustls takes no more; what it holds is handed over below.
            let taken = self.connection.read_tls(&mut bytes).unwrap_or(0);
            let state = self.connection.process_new_packets()?;
            self.is_closed |= state.peer_has_closed();
            let has_plain = state.plaintext_bytes_to_read() > 0;
            if has_plain {
                match self.connection.reader().read_to_end(plain) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => self.is_closed = true,
                }
            }
            if taken == 0 && !has_plain {
                break;
            }
        }
        Ok(())
    }

    /// Seals as much of `plain` as is made at once; returns how much that is. The rest is for after the next
    /// [`Self::take_sealed`].
    pub fn seal(&mut self, plain: &[u8]) -> usize {
        // Each record of 16 KiB costs 22 bytes more.
        let part = plain.get(..plain.len().min(SEALED_MAX / 4 * 3)).unwrap_or_default();
        self.connection.writer().write(part).unwrap_or(0)
    }

    /// Tells the peer that nothing follows.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }

    /// What is to be sent now; empty when there is nothing.
    pub fn take_sealed(&mut self) -> Vec<u8> {
        let mut sealed = Vec::new();
        while self.connection.wants_write() {
            // Writing into memory does not fail.
            if self.connection.write_tls(&mut sealed).unwrap_or(0) == 0 {
                break;
            }
        }
        sealed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificates::{Certificates, tests::write_pair};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    fn pair(version: &'static rustls::SupportedProtocolVersion) -> (Session, ClientConnection) {
        let folder = tempfile::tempdir().unwrap();
        let authority = write_pair(folder.path());
        let files = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let certificates = Certificates::open(&files.0, &files.1).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        (Session::new(certificates.current()).unwrap(), client)
    }

    /// Moves everything both have to say, in parts of `part` bytes; returns what the server heard.
    fn talk(session: &mut Session, client: &mut ClientConnection, part: usize) -> Vec<u8> {
        let mut heard = Vec::new();
        loop {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            for bytes in sent.chunks(part) {
                session.open(bytes, &mut heard).unwrap();
            }
            let back = session.take_sealed();
            for mut bytes in back.chunks(part) {
                while !bytes.is_empty() {
                    client.read_tls(&mut bytes).unwrap();
                    client.process_new_packets().unwrap();
                }
            }
            if sent.is_empty() && back.is_empty() {
                return heard;
            }
        }
    }

    #[test]
    fn bytes_cross_a_session_in_any_split() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            for part in [1, 7, 1000, 100_000] {
                let (mut session, mut client) = pair(version);
                assert!(session.is_handshaking());
                talk(&mut session, &mut client, part);
                assert!(!session.is_handshaking() && !session.is_closed());
                assert_eq!(client.alpn_protocol(), Some(&b"http/1.1"[..]));
                client.writer().write_all(&vec![b'x'; 40_000]).unwrap();
                assert_eq!(talk(&mut session, &mut client, part), vec![b'x'; 40_000]);
                let (text, mut heard) = (vec![b'y'; 200_000], Vec::new());
                let mut plain = text.as_slice();
                while !plain.is_empty() {
                    plain = &plain[session.seal(plain)..];
                    let sealed = session.take_sealed();
                    assert!(!sealed.is_empty() && sealed.len() <= SEALED_MAX, "{}", sealed.len());
                    for mut bytes in sealed.chunks(part) {
                        // It takes a part of what it is given at a time.
                        while !bytes.is_empty() {
                            client.read_tls(&mut bytes).unwrap();
                            client.process_new_packets().unwrap();
                            let _ = client.reader().read_to_end(&mut heard);
                        }
                    }
                }
                assert_eq!(heard, text);
                client.send_close_notify();
                talk(&mut session, &mut client, part);
                assert!(session.is_closed());
            }
        }
    }

    #[test]
    fn what_is_no_tls_is_refused_with_an_alert() {
        let (mut session, _) = pair(&rustls::version::TLS13);
        let mut plain = Vec::new();
        assert!(session.open(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &mut plain).is_err());
        assert!(plain.is_empty());
        let alert = session.take_sealed();
        assert_eq!(alert.first(), Some(&21), "{alert:?}");
    }
}
