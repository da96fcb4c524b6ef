//! Behind nginx and HAProxy, with the configurations of deploy/: stock git clones, fetches and sends large bodies through it.

mod support;

use std::{fs, process::Command};

use support::{Server, assert_same_clone, corpus, git};

#[test]
fn clones_and_large_fetches_pass_through_nginx() {
    if Command::new("nginx").arg("-v").output().is_err() {
        eprintln!("SKIPPED: nginx is not installed; nothing was served through a proxy");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::Size { commits: 2_500, files: 20, lines: 5, refs: 2_000 });
    let server = Server::start(root);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let deployed = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/nginx.conf")).unwrap();
    let plain = deployed
        .replace("listen 443 ssl;", &format!("listen 127.0.0.1:{port};"))
        .replace("server 127.0.0.1:8080;", &format!("server 127.0.0.1:{};", server.port))
        .lines()
        .filter(|line| !line.contains("ssl_certificate"))
        .collect::<Vec<_>>()
        .join("\n");
    let config = root.join("nginx.conf");
    let scratch = root.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {scratch}/{name};"))
        .join("\n");
    let text = format!(
        "daemon off; master_process off; pid {scratch}/nginx.pid; error_log {scratch}/error.log;\n\
         events {{ worker_connections 64; }}\nhttp {{ access_log off;\n{paths}\n{plain}\n}}\n"
    );
    fs::write(&config, text).unwrap();
    let mut proxy = Command::new("nginx").arg("-c").arg(&config).arg("-e").arg(root.join("error.log")).spawn().unwrap();
    for _ in 0..500 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let url = format!("http://127.0.0.1:{port}/a.git");
    let outcome = std::panic::catch_unwind(|| {
        for version in ["0", "2"] {
            let protocol = format!("protocol.version={version}");
            // 2 000 wants make a body that is gzipped; a small post buffer makes it chunked, with a probe before it.
            for buffer in ["1048576", "70000"] {
                let post = format!("http.postBuffer={buffer}");
                assert_same_clone(root, &url, &repository, &["--mirror", "-c", &protocol, "-c", &post]);
            }
        }
        let clone = root.join("served");
        let tree = git(&repository, &["rev-parse", "main^{tree}"]);
        let id = git(&repository, &["commit-tree", "-m", "new", "-p", "main", tree.trim()]);
        git(&repository, &["update-ref", "refs/heads/main", id.trim()]);
        git(&clone, &["fetch", "-q"]);
        assert_eq!(git(&clone, &["rev-parse", "main"]), id);
    });
    let _ = proxy.kill();
    let _ = proxy.wait();
    outcome.unwrap();
}

#[test]
fn clones_pass_through_haproxy() {
    if Command::new("haproxy").arg("-v").output().is_err() {
        eprintln!("SKIPPED: haproxy is not installed; nothing was served through it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::MEDIUM);
    let server = Server::start(root);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let deployed = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/haproxy.cfg")).unwrap();
    let plain = deployed
        .replace("bind :443 ssl crt /etc/haproxy/git.example.com.pem", &format!("bind 127.0.0.1:{port}"))
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", server.port));
    fs::write(root.join("haproxy.cfg"), plain).unwrap();
    let mut proxy = Command::new("haproxy").arg("-db").arg("-f").arg(root.join("haproxy.cfg")).spawn().unwrap();
    for _ in 0..500 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let url = format!("http://127.0.0.1:{port}/a.git");
    let outcome = std::panic::catch_unwind(|| {
        assert_same_clone(root, &url, &repository, &["--mirror"]);
        assert_same_clone(root, &url, &repository, &["--depth=1"]);
    });
    let _ = proxy.kill();
    let _ = proxy.wait();
    outcome.unwrap();
}
