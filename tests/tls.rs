//! TLS: stock git with an authority of its own, a renewed certificate, a hello that never ends, and doors that speak only one
//! tongue.

mod support;

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{Access, Server, git, noisy_mirror, objects, packring, reachable};

/// A test authority, whose certificate is in `ca.pem`.
struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { folder: folder.to_owned(), issuer }
    }

    /// Puts a certificate for `name` and its key in place, each by a rename.
    fn certify(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (file, text) in [("key.pem", key.serialize_pem()), ("cert.pem", certificate.pem())] {
            fs::write(self.folder.join("new"), text).unwrap();
            fs::rename(self.folder.join("new"), self.folder.join(file)).unwrap();
        }
    }

    /// A server with a plain door and one for TLS.
    fn serve(&self, root: &Path, flags: &[&str]) -> Tls {
        let mut command = packring();
        command.arg("serve").arg(root).args(["--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "-q"]);
        command.args(["--loops", "2", "--pin", "never"]).args(flags);
        for (flag, file) in [("--tls-cert", "cert.pem"), ("--tls-key", "key.pem")] {
            command.arg(flag).arg(self.folder.join(file));
        }
        let (plain, [_, tls]) = Server::spawn_with_doors(command, ["http", "https"]);
        Tls { plain, tls }
    }
}

struct Tls {
    /// Known by its plain door.
    plain: Server,
    tls: u16,
}

impl Tls {
    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.tls)
    }
}

#[test]
fn stock_git_clones_over_tls_with_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let path = noisy_mirror(root, 3_000_000);
    let authority = Authority::new(root);
    authority.certify("localhost");
    let access = Access::new(root);
    let token = access.principal("ann", &["app"]);
    let server = authority.serve(&root.join("served"), &["--access", access.path.to_str().unwrap()]);
    let ca = format!("http.sslCAInfo={}", root.join("ca.pem").display());
    let header = format!("http.extraHeader=Authorization: Bearer {token}");
    for (version, name) in [("tlsv1.2", "one"), ("tlsv1.3", "two")] {
        let version = format!("http.sslVersion={version}");
        git(root, &["-c", &ca, "-c", &header, "-c", &version, "clone", "-q", "--mirror", &server.url("app"), name]);
        assert_eq!(objects(&root.join(name)), reachable(&path, &["--all"]));
        git(&root.join(name), &["fsck", "--full", "--strict"]);
    }
    let turned = support::try_git(root, &["-c", &ca, "ls-remote", &server.url("app")]);
    assert!(!turned.status.success(), "no token");
    let distrusted = support::try_git(root, &["-c", &header, "ls-remote", &server.url("app")]);
    assert!(!distrusted.status.success(), "an authority nobody knows");
    let old = support::try_git(
        root,
        &["-c", &ca, "-c", &header, "-c", "http.sslVersion=tlsv1.1", "ls-remote", &server.url("app")],
    );
    // Without an upper bound the client takes the newest both know.
    assert!(old.status.success(), "{}", String::from_utf8_lossy(&old.stderr));
}

#[test]
fn a_renewed_certificate_is_taken_into_use_while_serving() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    noisy_mirror(root, 3_000_000);
    let authority = Authority::new(root);
    authority.certify("elsewhere");
    let server = authority.serve(&root.join("served"), &[]);
    let ca = format!("http.sslCAInfo={}", root.join("ca.pem").display());
    let works = || support::try_git(root, &["-c", &ca, "ls-remote", &server.url("app")]).status.success();
    assert!(!works(), "a certificate for another name");
    authority.certify("localhost");
    let since = Instant::now();
    while !works() {
        assert!(since.elapsed() < Duration::from_secs(20), "the renewed certificate is not used");
        std::thread::sleep(Duration::from_millis(100));
    }
    fs::write(root.join("cert.pem"), "nonsense").unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(works(), "a broken one replaces nothing");
}

#[test]
fn each_door_speaks_its_own_tongue_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    noisy_mirror(root, 3_000_000);
    let authority = Authority::new(root);
    authority.certify("localhost");
    let server = authority.serve(&root.join("served"), &["--head-timeout", "1s"]);
    let heard = |port: u16, said: &[u8]| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(said).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert_eq!(heard(server.tls, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").first(), Some(&21), "an alert");
    assert!(heard(server.plain.port, b"\x16\x03\x01\x02\x00\x01").starts_with(b"HTTP/1.1 400 "));
    // A hello that never ends is given up.
    assert!(matches!(heard(server.tls, b"\x16\x03\x01\x02\x00\x01").first(), None | Some(&21)));
    assert!(support::try_git(root, &["ls-remote", &server.plain.url("app")]).status.success());
}

#[test]
fn flags_that_need_each_other_are_asked_for_together() {
    for flags in [&["--tls-listen", "127.0.0.1:0"][..], &["--tls-cert", "x"], &["--tls-key", "x"]] {
        let mut command = packring();
        let output = command.args(["serve", "."]).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
    }
}
