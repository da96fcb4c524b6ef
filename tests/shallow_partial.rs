//! Shallow and partial clones by stock git, and every kind of repository that keeps its refs or ids in another way.

mod support;

use std::{fs, path::Path};

use support::{Server, assert_same_clone, corpus, git, git_command, objects, refs, try_git};

fn small() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let repository = corpus::make(folder.path(), "a.git", corpus::SMALL);
    git(&repository, &["config", "uploadpack.allowFilter", "true"]);
    (folder, repository)
}

fn shallow_of(path: &Path) -> Vec<String> {
    let file = git(path, &["rev-parse", "--git-path", "shallow"]);
    let mut lines: Vec<String> =
        fs::read_to_string(path.join(file.trim())).unwrap_or_default().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Does the same in a clone from the server and in one by file path, and compares after each step.
fn side_by_side(folder: &Path, url: &str, source: &Path, clone: &[&str], steps: &[&[&str]]) {
    let (served, local) = (folder.join("served"), folder.join("local"));
    for path in [&served, &local] {
        let _ = fs::remove_dir_all(path);
    }
    let file = format!("file://{}", source.display());
    for (url, name) in [(url, "served"), (file.as_str(), "local")] {
        git(folder, &[&["-c", "transfer.fsckObjects=true", "clone", "-q"], clone, &[url, name]].concat());
    }
    for number in 0..=steps.len() {
        assert_eq!(refs(&served), refs(&local), "{clone:?} step {number}");
        assert_eq!(shallow_of(&served), shallow_of(&local), "{clone:?} step {number}");
        assert_eq!(objects(&served), objects(&local), "{clone:?} step {number}");
        git(&served, &["fsck", "--full"]);
        if let Some(step) = steps.get(number) {
            git(&served, step);
            git(&local, step);
        }
    }
}

#[test]
fn depths_are_cut_deepened_and_lifted_like_by_file_path() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    let url = server.url("a");
    for version in ["0", "2"] {
        let protocol = format!("protocol.version={version}");
        for clone in [&["--depth=1"][..], &["--depth=3", "--no-single-branch"], &["--depth=2", "--mirror"]] {
            let clone = [&["-c", &protocol], clone].concat();
            side_by_side(
                folder.path(),
                &url,
                &repository,
                &clone,
                &[
                    &["fetch", "-q", "--depth=2"],
                    &["fetch", "-q", "--deepen=2"],
                    &["fetch", "-q", "--depth=1"],
                    &["fetch", "-q", "--unshallow"],
                ],
            );
        }
    }
}

#[test]
fn times_and_refs_cut_history_like_by_file_path() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    let since = "--shallow-since=1600000400";
    for clone in [&[since][..], &["--shallow-exclude=v5"], &[since, "--shallow-exclude=light"]] {
        side_by_side(folder.path(), &server.url("a"), &repository, clone, &[]);
    }
    // Of the other two, stock git cannot be unshallowed: its client does not have what it is told to unshallow.
    let steps: &[&[&str]] = &[&["fetch", "-q", "--unshallow"]];
    side_by_side(folder.path(), &server.url("a"), &repository, &["--shallow-exclude=v5"], steps);
    let none = try_git(folder.path(), &["clone", "-q", "--shallow-since=2100000000", &server.url("a"), "none"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(!none.status.success() && said.contains("no commits selected for shallow requests"), "{said}");
}

#[test]
fn a_shallow_repository_is_served_with_its_boundary() {
    let (folder, repository) = small();
    let file = format!("file://{}", repository.display());
    git(folder.path(), &["clone", "-q", "--bare", "--depth=3", &file, "cut.git"]);
    let cut = folder.path().join("cut.git");
    let server = Server::start(folder.path());
    for version in ["0", "2"] {
        let protocol = format!("protocol.version={version}");
        side_by_side(folder.path(), &server.url("cut"), &cut, &["-c", &protocol], &[&["fetch", "-q"]]);
        side_by_side(
            folder.path(),
            &server.url("cut"),
            &cut,
            &["-c", &protocol, "--depth=1"],
            &[&["fetch", "-q", "--depth=2"]],
        );
    }
}

#[test]
fn filters_leave_out_what_they_leave_out_by_file_path() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    for version in ["0", "2"] {
        let protocol = format!("protocol.version={version}");
        for filter in [
            "blob:none",
            "blob:limit=600",
            "blob:limit=0",
            "tree:0",
            "tree:1",
            "tree:2",
            "object:type=commit",
            "combine:blob:none+tree:3",
        ] {
            let filter = format!("--filter={filter}");
            side_by_side(folder.path(), &server.url("a"), &repository, &["-c", &protocol, "--bare", &filter], &[]);
        }
    }
}

#[test]
fn partial_clones_fetch_what_a_checkout_needs() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    for filter in ["blob:none", "tree:0"] {
        let _ = fs::remove_dir_all(folder.path().join("c"));
        git(folder.path(), &["clone", "-q", "-n", &format!("--filter={filter}"), &server.url("a"), "c"]);
        let clone = folder.path().join("c");
        let before = objects(&clone).len();
        git(&clone, &["checkout", "-q", "main"]);
        assert!(objects(&clone).len() > before, "{filter}");
        assert_eq!(git(&clone, &["status", "--porcelain"]), "");
        assert_eq!(git(&clone, &["rev-parse", "HEAD^{tree}"]), git(&repository, &["rev-parse", "main^{tree}"]));
    }
}

#[test]
fn objects_are_fetched_by_id_where_mirrors_allow_it() {
    let (folder, repository) = small();
    let hidden = git(&repository, &["commit-tree", "-m", "unreachable", "main^{tree}"]);
    let mirror = Server::start(folder.path());
    let stock = Server::start_with(folder.path(), &["--defaults", "git"]);
    for (server, version, served) in
        [(&mirror, "0", true), (&mirror, "2", true), (&stock, "0", false), (&stock, "2", true)]
    {
        let clone = tempfile::tempdir().unwrap();
        let clone = clone.path();
        git(clone, &["init", "-q"]);
        let protocol = format!("protocol.version={version}");
        let fetched = try_git(clone, &["-c", &protocol, "fetch", "-q", &server.url("a"), hidden.trim()]);
        assert_eq!(fetched.status.success(), served, "{version}: {}", String::from_utf8_lossy(&fetched.stderr));
    }
}

#[test]
fn sha256_and_reftables_are_served() {
    let (folder, _) = small();
    let root = folder.path();
    for (name, flag) in [("sha256.git", "--object-format=sha256"), ("reftable.git", "--ref-format=reftable")] {
        if !try_git(root, &["init", "-q", "--bare", flag, name]).status.success() {
            eprintln!("SKIPPED: this git does not know {flag}");
            continue;
        }
        let repository = root.join(name);
        let tree = git(&repository, &["mktree"]);
        for branch in ["main", "other"] {
            let id = git(&repository, &["commit-tree", "-m", branch, tree.trim()]);
            git(&repository, &["update-ref", &format!("refs/heads/{branch}"), id.trim()]);
        }
        git(&repository, &["tag", "-a", "-m", "t", "v1", "main"]);
        let server = Server::start(root);
        for arguments in [&[][..], &["--mirror"], &["--depth=1"]] {
            assert_same_clone(root, &server.url(name), &repository, arguments);
        }
        git(&repository, &["update-ref", "refs/heads/later", "main"]);
        git(&repository, &["repack", "-adq"]);
        assert_same_clone(root, &server.url(name), &repository, &["--mirror"]);
    }
}

#[test]
fn linked_worktrees_and_hidden_refs_are_served_as_git_serves_them() {
    let (folder, repository) = small();
    let root = folder.path();
    git(root, &["clone", "-q", repository.to_str().unwrap(), "plain"]);
    git(&root.join("plain"), &["worktree", "add", "-q", "-b", "wt", "../linked"]);
    git(&repository, &["update-ref", "refs/secret/x", "main"]);
    git(&repository, &["config", "transfer.hideRefs", "refs/secret"]);
    git(&repository, &["config", "--add", "uploadpack.hideRefs", "refs/tags"]);
    git(&repository, &["config", "--add", "uploadpack.hideRefs", "!refs/tags/light"]);
    let server = Server::start_with(root, &["--defaults", "git"]);
    for (name, path) in [("linked", root.join("linked")), ("a.git", repository)] {
        for version in ["0", "2"] {
            let list = |url: &str| {
                let output = git_command(root)
                    .args(["-c", &format!("protocol.version={version}"), "ls-remote", url])
                    .output()
                    .unwrap();
                assert!(output.status.success());
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            assert_eq!(
                list(&server.url(name)),
                list(&format!("file://{}", path.display())),
                "{name} in version {version}"
            );
        }
    }
}
