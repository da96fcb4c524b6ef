//! Stock git as client of the real server: clones, fetches and listings of every kind of repository.
//!
//! After each: `git fsck`, and the same objects and refs as by file path.

mod support;

use std::{fs, path::Path};

use support::{
    Server, assert_same_clone, corpus, git, git_with, ids_of_pack, objects, pack_of, pkt, reachable, refs, try_git,
};

fn small() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let repository = corpus::make(folder.path(), "a.git", corpus::SMALL);
    (folder, repository)
}

/// Adds a commit with one file to a branch of a bare repository.
fn add_commit(repository: &Path, branch: &str, file: &str, content: &str) -> String {
    let text = format!(
        "commit refs/heads/{branch}\ncommitter C <c@x> 1700000000 +0000\ndata 2\nx\nfrom refs/heads/{branch}^0\n\
         M 100644 inline {file}\ndata {}\n{content}\n",
        content.len()
    );
    let done = git_with(repository, &["fast-import", "--quiet", "--force"], text.as_bytes());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    git(repository, &["rev-parse", branch]).trim().to_owned()
}

#[test]
fn the_corpus_is_the_same_at_every_run() {
    let (_folder, repository) = small();
    assert_eq!(git(&repository, &["rev-parse", "main"]).trim(), "019a7e7768b9b283a32037a7f75329fbba4095f1");
    let count = objects(&repository).len();
    assert!((60..110).contains(&count), "{count}");
}

#[test]
fn clones_of_every_shape_and_version_equal_those_by_file_path() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    for version in ["0", "1", "2"] {
        for arguments in [&[][..], &["--mirror"], &["--bare"], &["--single-branch"], &["--no-tags", "--branch", "side"]]
        {
            let protocol = format!("protocol.version={version}");
            assert_same_clone(
                folder.path(),
                &server.url("a.git"),
                &repository,
                &[&["-c", &protocol], arguments].concat(),
            );
        }
    }
}

#[test]
fn single_branch_sends_exactly_what_rev_list_lists() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    let tip = git(&repository, &["rev-parse", "side"]);
    let want = format!("want {}", tip.trim());
    let answer = server.post("a", 2, &pkt(&["command=fetch", "|", "ofs-delta", &want, "done", "."]));
    assert_eq!(ids_of_pack(&repository, &pack_of(&answer.body).0), reachable(&repository, &["side"]));
    // git itself asks for the tags of what it gets.
    git(folder.path(), &["clone", "-q", "--single-branch", "--branch", "side", &server.url("a"), "c"]);
    assert_eq!(objects(&folder.path().join("c")), reachable(&repository, &["side", "v5"]));
}

#[test]
fn fetches_bring_new_commits_forced_branches_and_tags() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    git(folder.path(), &["clone", "-q", "--mirror", &server.url("a"), "c"]);
    let clone = folder.path().join("c");
    let old = git(&repository, &["rev-parse", "main"]);
    for round in 0..3 {
        match round {
            0 => drop(add_commit(&repository, "main", "new.txt", "one")),
            1 => git(&repository, &["update-ref", "refs/heads/main", "main~3"]).truncate(0),
            _ => git(&repository, &["tag", "-a", "-m", "t", "later", old.trim()]).truncate(0),
        }
        git(&clone, &["fetch", "-q", "--prune"]);
        git(&clone, &["fsck", "--full", "--strict"]);
        assert_eq!(refs(&clone), refs(&repository), "round {round}");
    }
    assert_eq!(reachable(&clone, &["--all"]), reachable(&repository, &["--all"]));
}

#[test]
fn an_ordinary_fetch_sends_only_what_is_new() {
    let (folder, repository) = small();
    let server = Server::start(folder.path());
    git(folder.path(), &["clone", "-q", &server.url("a"), "c"]);
    let clone = folder.path().join("c");
    let before = objects(&clone);
    add_commit(&repository, "main", "new.txt", "one");
    git(&clone, &["-c", "fetch.unpackLimit=1", "fetch", "-q"]);
    let new: Vec<String> = objects(&clone).difference(&before).cloned().collect();
    assert_eq!(new.len(), 3, "a commit, a tree, a blob: {new:?}");
    let packs = fs::read_dir(clone.join(".git/objects/pack")).unwrap().flatten();
    let smallest = packs
        .filter(|entry| entry.path().extension().unwrap() == "pack")
        .map(|entry| entry.metadata().unwrap().len())
        .min();
    assert!(smallest.unwrap() < 4096, "{smallest:?}");
}

#[test]
fn ls_remote_lists_what_for_each_ref_lists() {
    let (folder, repository) = small();
    git(&repository, &["symbolic-ref", "refs/heads/alias", "refs/heads/side"]);
    let server = Server::start(folder.path());
    let file = format!("file://{}", repository.display());
    for version in ["0", "2"] {
        for arguments in [&[][..], &["--symref"], &["--tags"], &["--heads", "--refs"]] {
            let list = |url: &str| {
                let protocol = format!("protocol.version={version}");
                git(folder.path(), &[&["-c", &protocol, "ls-remote"], arguments, &[url]].concat())
            };
            assert_eq!(list(&server.url("a.git")), list(&file), "version {version} {arguments:?}");
        }
    }
}

#[test]
fn empty_detached_and_unborn_repositories_are_cloned() {
    let (folder, repository) = small();
    git(folder.path(), &["init", "-q", "--bare", "empty.git"]);
    git(folder.path(), &["clone", "-q", "--bare", repository.to_str().unwrap(), "detached.git"]);
    git(&folder.path().join("detached.git"), &["update-ref", "--no-deref", "HEAD", "main~1"]);
    git(folder.path(), &["clone", "-q", "--bare", repository.to_str().unwrap(), "unborn.git"]);
    git(&folder.path().join("unborn.git"), &["symbolic-ref", "HEAD", "refs/heads/none"]);
    let server = Server::start(folder.path());
    for name in ["empty", "detached", "unborn"] {
        let source = folder.path().join(format!("{name}.git"));
        let served = assert_same_clone(folder.path(), &server.url(name), &source, &[]);
        let head = |path: &Path| fs::read_to_string(path.join(".git/HEAD")).unwrap();
        assert_eq!(head(&served), head(&folder.path().join("local")), "{name}");
    }
}

#[test]
fn loose_objects_many_packs_and_alternates_are_served() {
    let (folder, repository) = small();
    let root = folder.path();
    git(root, &["init", "-q", "--bare", "loose.git"]);
    let loose = root.join("loose.git");
    let pack = fs::read_dir(repository.join("objects/pack"))
        .unwrap()
        .flatten()
        .find(|entry| entry.path().extension().unwrap() == "pack");
    let unpacked = git_with(&loose, &["unpack-objects", "-q"], &fs::read(pack.unwrap().path()).unwrap());
    assert!(unpacked.status.success());
    git(root, &["init", "-q", "--bare", "packs.git"]);
    let packs = root.join("packs.git");
    for revision in ["main~6", "main~3", "main", "side", "light", "v5"] {
        let refspec =
            format!("{}:refs/x/{}", git(&repository, &["rev-parse", revision]).trim(), revision.replace('~', "-"));
        git(&packs, &["-c", "fetch.unpackLimit=1", "fetch", "-q", repository.to_str().unwrap(), &refspec]);
    }
    assert!(fs::read_dir(packs.join("objects/pack")).unwrap().count() >= 9, "several packs");
    git(root, &["init", "-q", "--bare", "fork.git"]);
    fs::write(root.join("fork.git/objects/info/alternates"), "../../a.git/objects\n").unwrap();
    for line in refs(&repository).lines() {
        let mut words = line.split(' ');
        let (id, name) = (words.next().unwrap(), words.next().unwrap());
        for other in [&loose, &packs, &root.join("fork.git")] {
            if try_git(other, &["cat-file", "-e", id]).status.success() {
                git(other, &["update-ref", name, id]);
            }
        }
    }
    add_commit(&root.join("fork.git"), "main", "fork.txt", "only here");
    let server = Server::start(root);
    for name in ["loose.git", "packs.git", "fork.git"] {
        assert_same_clone(root, &server.url(name), &root.join(name), &["--mirror"]);
    }
}

#[test]
fn a_folder_that_is_a_repository_serves_itself() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("project");
    git(folder.path(), &["init", "-q", "project"]);
    fs::write(root.join("file"), "x").unwrap();
    git(&root, &["add", "."]);
    git(&root, &["commit", "-qm", "x"]);
    let server = Server::start(&root);
    for name in ["project", "project.git", ""] {
        assert_same_clone(folder.path(), &server.url(name), &root, &[]);
    }
}

#[test]
fn nested_repositories_are_found_with_and_without_suffix() {
    let (folder, repository) = small();
    fs::create_dir_all(folder.path().join("x/y")).unwrap();
    git(folder.path(), &["clone", "-q", "--bare", repository.to_str().unwrap(), "x/y/deep.git"]);
    git(folder.path(), &["clone", "-q", repository.to_str().unwrap(), "x/plain"]);
    let server = Server::start(folder.path());
    for name in ["x/y/deep", "x/y/deep.git", "x/y/deep.git/", "x/plain", "x/plain.git", "x/plain/.git"] {
        assert!(try_git(folder.path(), &["ls-remote", "-q", &server.url(name)]).status.success(), "{name}");
    }
    for name in ["x", "x/y", "x/none", "x/y/deep.git/objects"] {
        assert!(!try_git(folder.path(), &["ls-remote", "-q", &server.url(name)]).status.success(), "{name}");
    }
}

#[test]
fn repacks_and_collections_hurt_no_clone_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let repository = corpus::make(folder.path(), "a.git", corpus::Size { commits: 400, files: 80, lines: 60, refs: 5 });
    let server = Server::start(folder.path());
    let expected = reachable(&repository, &["--all"]);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clones: Vec<_> = (0..8)
            .map(|number| {
                let (server, folder, expected) = (&server, folder.path(), &expected);
                scope.spawn(move || {
                    for round in 0..3 {
                        let name = format!("c{number}-{round}");
                        git(folder, &["clone", "-q", "--mirror", &server.url("a"), &name]);
                        assert_eq!(&objects(&folder.join(&name)), expected);
                    }
                })
            })
            .collect();
        let (repository, done) = (&repository, &done);
        scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                git(repository, &["repack", "-adfq", "--window=3"]);
                git(repository, &["gc", "-q", "--prune=now"]);
            }
        });
        for clone in clones {
            clone.join().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
    });
}

#[test]
fn objects_of_every_size_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    git(root, &["init", "-q", "work"]);
    let work = root.join("work");
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(5_000_000)
    .collect();
    for (name, size) in [("empty", 0), ("one", 1), ("inline", 1 << 20), ("over", (1 << 20) + 1), ("large", noise.len())]
    {
        fs::write(work.join(name), &noise[..size]).unwrap();
    }
    git(&work, &["add", "."]);
    git(&work, &["commit", "-qm", "loose"]);
    let server = Server::start(root);
    assert_same_clone(root, &server.url("work"), &work, &["--bare"]);
    // The same again as deltas of large objects whose base is not sent.
    let mut edited = noise.clone();
    edited.splice(1000..1000, *b"an edit");
    fs::write(work.join("large"), &edited).unwrap();
    git(&work, &["commit", "-qam", "edited"]);
    git(&work, &["repack", "-adfq"]);
    assert_same_clone(root, &server.url("work"), &work, &["--bare"]);
    assert_same_clone(root, &server.url("work"), &work, &["--bare", "--depth=1"]);
}
