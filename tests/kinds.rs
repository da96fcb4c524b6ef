//! Odd kinds of packs, objects and refs: each is served, and equals a clone by file path.

mod support;

use std::{fs, path::Path};

use support::{Server, assert_same_clone, corpus, git, git_with, objects, reachable, refs, try_git};

fn packs(repository: &Path, end: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(repository.join("objects/pack")).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == end)).collect()
}

#[test]
fn indexes_of_version_1_and_with_wide_offsets_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let source = corpus::make(root, "a.git", corpus::SMALL);
    // A forced table of 8-byte offsets is what an index over 2 GiB has.
    for (name, version) in [("one.git", "1"), ("wide.git", "2,0x40")] {
        git(root, &["clone", "-q", "--bare", source.to_str().unwrap(), name]);
        let repository = root.join(name);
        git(&repository, &["repack", "-adq"]);
        let pack = packs(&repository, "pack").pop().unwrap();
        let index = pack.with_extension("idx");
        for file in ["idx", "rev", "bitmap"] {
            let _ = fs::remove_file(pack.with_extension(file));
        }
        let version = format!("--index-version={version}");
        git(&repository, &["index-pack", &version, "-o", index.to_str().unwrap(), pack.to_str().unwrap()]);
        let server = Server::start(root);
        assert_same_clone(root, &server.url(name), &repository, &["--mirror"]);
    }
}

#[test]
fn kept_promised_and_cruft_packs_are_read_and_serve_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    let expected = reachable(&repository, &["--all"]);
    let lost = git(&repository, &["commit-tree", "-m", "lost", "main^{tree}"]);
    git(&repository, &["repack", "--cruft", "-dq"]);
    assert_eq!(packs(&repository, "mtimes").len(), 1, "a cruft pack");
    for pack in packs(&repository, "pack") {
        fs::write(pack.with_extension("keep"), "").unwrap();
        fs::write(pack.with_extension("promisor"), "").unwrap();
    }
    let server = Server::start(root);
    git(root, &["clone", "-q", "--mirror", &server.url("a"), "c"]);
    assert_eq!(objects(&root.join("c")), expected);
    git(&root.join("c"), &["fetch", "-q", "origin", lost.trim()]);
}

#[test]
fn broken_files_beside_the_packs_cost_no_clone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    git(&repository, &["-c", "repack.writeBitmaps=true", "-c", "pack.writeBitmapLookupTable=true", "repack", "-adbq"]);
    git(&repository, &["commit-graph", "write", "--reachable"]);
    git(&repository, &["multi-pack-index", "write", "--bitmap"]);
    let expected = (reachable(&repository, &["--all"]), refs(&repository));
    let mut beside =
        vec![repository.join("objects/info/commit-graph"), repository.join("objects/pack/multi-pack-index")];
    beside.extend(packs(&repository, "bitmap"));
    beside.extend(packs(&repository, "rev"));
    assert!(beside.len() >= 5, "{beside:?}");
    let server = Server::start(root);
    let mut number = 0;
    for path in beside {
        let sound = fs::read(&path).unwrap();
        let mut broken: Vec<Vec<u8>> =
            (0..sound.len()).step_by(sound.len() / 6 + 1).map(|end| sound[..end].to_vec()).collect();
        for at in (0..sound.len()).step_by(sound.len() / 9 + 1) {
            let mut flipped = sound.clone();
            flipped[at] ^= 0x55;
            broken.push(flipped);
        }
        for bytes in broken {
            // As git replaces such a file, and as a failing disk shows it to the next snapshot.
            let _ = fs::remove_file(&path);
            fs::write(&path, bytes).unwrap();
            number += 1;
            let clone = root.join(format!("c{number}"));
            git(root, &["clone", "-q", "--mirror", &server.url("a"), clone.to_str().unwrap()]);
            assert_eq!((objects(&clone), refs(&clone)), expected, "{}", path.display());
            fs::remove_dir_all(&clone).unwrap();
        }
        let _ = fs::remove_file(&path);
        fs::write(&path, sound).unwrap();
    }
}

#[test]
fn odd_objects_and_names_are_sent_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    git(root, &["init", "-q", "--bare", "odd.git"]);
    let repository = root.join("odd.git");
    let tree = git(&repository, &["mktree"]);
    let tree = tree.trim();
    let write = |kind: &str, content: &[u8]| {
        let done = git_with(&repository, &["hash-object", "-t", kind, "-w", "--stdin", "--literally"], content);
        assert!(done.status.success());
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    let commits = [
        write(
            "commit",
            format!("tree {tree}\nauthor A <a@x> 1 +0000\ncommitter C <c@x> 1 +0000\n\nno newline").as_bytes(),
        ),
        write(
            "commit",
            [
                format!("tree {tree}\nauthor \u{e9} <a@x> 1 +0000\ncommitter C <c@x> 1 +0000\nencoding latin1\n\n")
                    .as_bytes(),
                b"\xe9\n",
            ]
            .concat()
            .as_slice(),
        ),
        write(
            "commit",
            format!("tree {tree}\nauthor A <a@x> 1 +0000\ncommitter C <c@x> 99999999999 +1400\n\n").as_bytes(),
        ),
    ];
    let blob = write("blob", b"");
    let with_blob = git_with(&repository, &["mktree"], format!("100644 blob {blob}\t.hidden\n").as_bytes());
    let with_blob = String::from_utf8_lossy(&with_blob.stdout).trim().to_owned();
    git(&repository, &["update-ref", "refs/heads/main", &commits[0]]);
    git(&repository, &["update-ref", "refs/heads/m\u{e4}in", &commits[1]]);
    git(&repository, &["update-ref", "refs/heads/later", &commits[2]]);
    git(&repository, &["update-ref", "refs/tags/tree", &with_blob]);
    // A name that is no UTF-8, as old repositories have them.
    let packed = [
        format!("# pack-refs with: peeled fully-peeled sorted \n{} refs/heads/", commits[0]).into_bytes(),
        b"\xe9\n".to_vec(),
    ]
    .concat();
    fs::write(repository.join("packed-refs"), packed).unwrap();
    let server = Server::start(root);
    for pass in 0..2 {
        git(root, &["clone", "-q", "--mirror", &server.url("odd"), &format!("c{pass}")]);
        let clone = root.join(format!("c{pass}"));
        assert_eq!(reachable(&clone, &["--all"]), reachable(&repository, &["--all"]));
        assert_eq!(refs(&clone), refs(&repository));
        git(&repository, &["-c", "repack.writeBitmaps=false", "repack", "-adq"]);
    }
}

#[test]
fn replaced_and_grafted_objects_are_served_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    let expected = reachable(&repository, &["main", "side", "--tags"]);
    git(&repository, &["replace", "main~3", "main~5"]);
    let tip = git(&repository, &["rev-parse", "main"]);
    fs::create_dir_all(repository.join("info")).unwrap();
    fs::write(repository.join("info/grafts"), &tip).unwrap();
    let server = Server::start(root);
    git(root, &["clone", "-q", "--bare", &server.url("a"), "c"]);
    assert_eq!(objects(&root.join("c")), expected);
}

#[test]
fn an_object_missing_by_promise_is_named_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    git(&repository, &["config", "uploadpack.allowFilter", "true"]);
    git(
        root,
        &["clone", "-q", "--bare", "--filter=blob:none", &format!("file://{}", repository.display()), "partial.git"],
    );
    let server = Server::start(root);
    let failed = try_git(root, &["clone", "-q", "--bare", &server.url("partial"), "c"]);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && said.contains("is missing"), "{said}");
    git(root, &["clone", "-q", "--bare", "--filter=blob:none", &server.url("partial"), "d"]);
}

#[test]
fn namespaces_are_shown_as_git_shows_them() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "pool.git", corpus::SMALL);
    for (name, revision) in [("one", "main"), ("one/refs/namespaces/two", "main~2")] {
        let prefix = format!("refs/namespaces/{name}");
        git(&repository, &["update-ref", &format!("{prefix}/refs/heads/main"), revision]);
        git(&repository, &["update-ref", &format!("{prefix}/refs/tags/v"), "v5"]);
        git(&repository, &["update-ref", &format!("{prefix}/refs/secret/s"), "side"]);
        git(&repository, &["symbolic-ref", &format!("{prefix}/HEAD"), &format!("{prefix}/refs/heads/main")]);
    }
    git(&repository, &["config", "transfer.hideRefs", "refs/secret"]);
    git(&repository, &["config", "--add", "transfer.hideRefs", "^refs/namespaces/one/refs/tags"]);
    let server = Server::start_with(root, &["--namespaces", "/forks=pool.git", "--defaults", "git"]);
    for (path, namespace) in [("forks/one", "one"), ("forks/one/two.git", "one/two"), ("forks/none", "none")] {
        let stock = support::git_command(root)
            .env("GIT_NAMESPACE", namespace)
            .args(["upload-pack", "--http-backend-info-refs"])
            .arg(&repository)
            .output()
            .unwrap();
        let ours = server.get(&format!("{path}/info/refs?service=git-upload-pack"), "");
        let shown = |body: &[u8]| {
            let lines = support::lines(body).into_iter().map(|line| String::from_utf8_lossy(&line).into_owned());
            lines.map(|line| line.split("agent=").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let body = ours.body.strip_prefix(b"001e# service=git-upload-pack\n0000".as_slice()).unwrap();
        assert_eq!(shown(body), shown(&stock.stdout), "{path}");
    }
    git(root, &["clone", "-q", "--bare", &server.url("forks/one"), "c"]);
    assert_eq!(refs(&root.join("c")).lines().count(), 1);
    git(&repository, &["update-ref", "refs/namespaces/one/refs/heads/new", "side"]);
    assert!(git(root, &["ls-remote", &server.url("forks/one")]).contains("refs/heads/new"), "changes are seen");
    assert_eq!(server.get("forks/../pool/info/refs?service=git-upload-pack", "").status, 404);
    assert_eq!(server.get("forks/a..b/info/refs?service=git-upload-pack", "").status, 404, "no name of a ref");
}

#[test]
fn an_empty_pack_beside_others_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    let made = git_with(&repository, &["pack-objects", "-q", "objects/pack/pack"], b"");
    assert!(made.status.success());
    let before = packs(&repository, "pack").len();
    if before < 2 {
        // This git writes no empty pack; then it is written by hand.
        let bytes = [
            b"PACK\0\0\0\x02\0\0\0\0".as_slice(),
            &[
                0x02, 0x9d, 0x08, 0x82, 0x3b, 0xd8, 0xa8, 0xea, 0xb5, 0x10, 0xad, 0x6a, 0xc7, 0x5c, 0x82, 0x3c, 0xfd,
                0x3e, 0xd3, 0x1e,
            ],
        ]
        .concat();
        fs::write(repository.join("objects/pack/pack-029d08823bd8a8eab510ad6ac75c823cfd3ed31e.pack"), bytes).unwrap();
        git(&repository, &["index-pack", "objects/pack/pack-029d08823bd8a8eab510ad6ac75c823cfd3ed31e.pack"]);
    }
    assert_eq!(packs(&repository, "idx").len(), 2);
    let server = Server::start(root);
    assert_same_clone(root, &server.url("a"), &repository, &["--mirror"]);
}

#[test]
fn a_pack_with_a_flipped_bit_is_found_and_served_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let source = corpus::make(folder.path(), "a.git", corpus::SMALL);
    git(&source, &["repack", "-adq"]);
    let packs = std::fs::read_dir(source.join("objects/pack")).unwrap().flatten().map(|entry| entry.path());
    let pack = packs.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "pack")).unwrap();
    let sound = std::fs::read(&pack).unwrap();
    let mut flipped = sound.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    // Git writes packs read-only and puts them in place by a rename.
    let put = |bytes: &[u8]| {
        let draft = pack.with_extension("draft");
        std::fs::write(&draft, bytes).unwrap();
        std::fs::rename(&draft, &pack).unwrap();
    };
    put(&flipped);
    let server = Server::start(folder.path());
    let cloned = |name: &str| {
        let output = try_git(folder.path(), &["clone", "-q", "--mirror", &server.url("a"), name]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let patience = std::time::Instant::now();
    while !(cloned("bad").1.contains("missing")) {
        assert!(patience.elapsed().as_secs() < 60, "{:?}", cloned("bad"));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    put(&sound);
    let (is_sound, said) = cloned("good.git");
    assert!(is_sound, "{said}");
    assert!(objects(&folder.path().join("good.git")) == reachable(&source, &["--all"]), "the clone is whole");
}
