//! Certificates: a chain and a key in PEM files become what new connections are answered with, and are read again when
//! the files change.
//!
//! Invariant: a pair that does not fit together never replaces one that does.
//! Read first: `a_renewed_certificate_is_used_and_a_broken_one_is_not`.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::stamp::Stamp;

/// Why a pair of files is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFault {
    /// A file cannot be read, or holds nothing of the kind.
    #[error("{path}: {why}; it should be a PEM file with {what}")]
    Unreadable {
        /// Which.
        path: String,
        /// What is wrong with it.
        why: String,
        /// What should be in it.
        what: &'static str,
    },
    /// Chain and key do not fit together, or are of a kind that is not served.
    #[error("the certificate and its key cannot be used: {0}")]
    Unfit(#[from] rustls::Error),
}

/// A certificate in two files.
#[derive(Debug)]
pub struct Certificates {
    chain: PathBuf,
    key: PathBuf,
    current: ArcSwap<ServerConfig>,
    seen: Mutex<[Stamp; 2]>,
}

impl Certificates {
    /// Reads both files.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn open(chain: &Path, key: &Path) -> Result<Self, CertificateFault> {
        let seen = Mutex::new([Stamp::of(chain), Stamp::of(key)]);
        let current = ArcSwap::from_pointee(read(chain, key)?);
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), current, seen })
    }

    /// What a new connection is answered with.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Reads the files again if they changed; says whether another certificate is in use now.
    ///
    /// # Errors
    /// They changed and cannot be used; the last good one stays. Not said again until they change again.
    pub fn refresh(&self) -> Result<bool, CertificateFault> {
        let now = [Stamp::of(&self.chain), Stamp::of(&self.key)];
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return Ok(false);
        }
        *seen = now;
        self.current.store(Arc::new(read(&self.chain, &self.key)?));
        Ok(true)
    }
}

fn read(chain_path: &Path, key_path: &Path) -> Result<ServerConfig, CertificateFault> {
    let unreadable = |path: &Path, what| {
        let path = path.display().to_string();
        move |why: String| CertificateFault::Unreadable { path: path.clone(), why, what }
    };
    let of_chain = unreadable(chain_path, "the certificate and those between it and its authority");
    let read = CertificateDer::pem_file_iter(chain_path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| of_chain(error.to_string()))?;
    if chain.is_empty() {
        return Err(of_chain(io::Error::from(io::ErrorKind::UnexpectedEof).to_string()));
    }
    let of_key = unreadable(key_path, "the private key of the certificate");
    let key = PrivateKeyDer::from_pem_file(key_path).map_err(|error| of_key(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // git opens a connection for each command: a ticket saves it half of the handshake.
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    Ok(config)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A certificate for `localhost` and its key, in files.
    pub fn write_pair(folder: &Path) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    }

    #[test]
    fn a_renewed_certificate_is_used_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        write_pair(folder.path());
        let (chain, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let certificates = Certificates::open(&chain, &key).unwrap();
        assert!(!certificates.refresh().unwrap());
        let first = certificates.current();
        assert_eq!(first.alpn_protocols, [b"http/1.1"]);
        let replace = |path: &Path, text: &[u8]| {
            let new = folder.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(new, path).unwrap();
        };
        replace(&chain, b"nonsense");
        assert!(certificates.refresh().unwrap_err().to_string().contains("cert.pem"));
        assert!(Arc::ptr_eq(&certificates.current(), &first));
        assert!(!certificates.refresh().unwrap(), "said once");
        // Longer than a tick of the clock that files are stamped by.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let open_to_us = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&chain, open_to_us).unwrap();
        assert!(certificates.refresh().is_err(), "a file may have become readable");
        let other = tempfile::tempdir().unwrap();
        write_pair(other.path());
        replace(&chain, &std::fs::read(other.path().join("cert.pem")).unwrap());
        assert!(matches!(certificates.refresh(), Err(CertificateFault::Unfit(_))), "the key is still the old one's");
        replace(&key, &std::fs::read(other.path().join("key.pem")).unwrap());
        assert!(certificates.refresh().unwrap() && !Arc::ptr_eq(&certificates.current(), &first));
    }

    #[test]
    fn files_that_hold_no_certificate_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("empty"), "").unwrap();
        write_pair(folder.path());
        for (chain, key, named) in
            [("none", "key.pem", "none"), ("empty", "key.pem", "empty"), ("cert.pem", "empty", "empty")]
        {
            let text = Certificates::open(&path(chain), &path(key)).unwrap_err().to_string();
            assert!(text.contains(named) && text.contains("PEM"), "{text}");
        }
    }
}
