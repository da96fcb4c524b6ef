//! Other clients than stock git: dulwich, libgit2 (pygit2), isomorphic-git. Each that is missing is skipped, and says so.

mod support;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use support::{Server, corpus, git, git_with, reachable};

/// Runs one client; nothing when it is not installed.
struct Client {
    name: &'static str,
    program: &'static str,
    script: PathBuf,
}

impl Client {
    fn find(name: &'static str, program: &'static str, script: &str, probe: &[&str]) -> Option<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        let found = Command::new(program).args(probe).current_dir(&folder).output();
        if found.is_ok_and(|output| output.status.success()) {
            return Some(Self { name, program, script: folder.join(script) });
        }
        eprintln!("SKIPPED: {name} is not installed");
        None
    }

    fn run(&self, verb: &str, url: &str, folder: &Path) {
        let output = Command::new(self.program).arg(&self.script).args([verb, url]).arg(folder).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{} {verb}: {said}", self.name);
    }
}

fn installed() -> Vec<Client> {
    let clients = [
        Client::find("dulwich", "python3", "dulwich_client.py", &["-c", "import dulwich.porcelain"]),
        Client::find("libgit2", "python3", "pygit2_client.py", &["-c", "import pygit2"]),
        Client::find(
            "isomorphic-git",
            "node",
            "isomorphic_client.mjs",
            &["--input-type=module", "-e", "import 'isomorphic-git'"],
        ),
    ];
    clients.into_iter().flatten().collect()
}

#[test]
fn other_clients_clone_cut_and_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    for defaults in ["mirror", "git"] {
        let server = Server::start_with(root, &["--defaults", defaults]);
        for client in installed() {
            let clone = root.join(format!("{}-{defaults}", client.name));
            client.run("clone", &server.url("a.git"), &clone);
            git(&clone, &["fsck", "--full", "--strict"]);
            assert_eq!(reachable(&clone, &["--all"]), reachable(&repository, &["--all"]), "{}", client.name);
            let cut = root.join(format!("{}-{defaults}-cut", client.name));
            client.run("shallow", &server.url("a.git"), &cut);
            git(&cut, &["fsck", "--full", "--strict"]);
            let shallow = git(&cut, &["rev-parse", "--is-shallow-repository"]);
            assert_eq!(shallow.trim(), "true", "{}", client.name);
            let text = format!(
                "commit refs/heads/main\ncommitter C <c@x> 1700000000 +0000\ndata 1\nx\nfrom refs/heads/main^0\n\
                 M 100644 inline {}\ndata 1\nx\n",
                client.name
            );
            assert!(git_with(&repository, &["fast-import", "--quiet"], text.as_bytes()).status.success());
            client.run("fetch", &server.url("a.git"), &clone);
            let tip = git(&repository, &["rev-parse", "main"]);
            git(&clone, &["cat-file", "-e", tip.trim()]);
            git(&clone, &["fsck", "--full"]);
        }
    }
}
