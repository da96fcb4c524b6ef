//! The command line from outside: flags, errors, exit codes, signals.

mod support;

use std::{io::Write, process::Command};

use support::{Server, corpus, git, try_git};

fn packring(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_packring")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn wrong_flags_are_explained_and_end_with_2() {
    for (arguments, word) in [
        (&["serve", "--window", "0"][..], "a window is"),
        (&["serve", "--window", "1KiB"], "a window is"),
        (&["serve", "--window", "many"], "size"),
        (&["serve", "--loops", "0"], "from 1 on"),
        (&["serve", "--listen", "nowhere"], "invalid socket address"),
        (&["serve", "--ring", "defer-taskrun=on"], "hangs"),
        (&["serve", "--ring", "entries=1"], "takes a number from 8"),
        (&["serve", "--drain", "5d"], "no unit of time"),
        (&["serve", "--nothing"], "unexpected argument"),
        (&["nothing"], "unrecognized subcommand"),
        (&[], "Usage"),
    ] {
        let (code, _, said) = packring(arguments);
        assert_eq!(code, Some(2), "{arguments:?}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}

#[test]
fn what_cannot_be_served_ends_with_1_and_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    std::fs::write(folder.path().join("config"), "[uploadpack]\nallowFilter = perhaps\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = format!("{root}/config");
    for (arguments, word) in [
        (&["serve", "/no/such/folder"][..], "/no/such/folder"),
        (&["serve", &format!("{root}/file")], "Not a directory"),
        (&["serve", root, "--listen", &address], &address),
        (&["serve", root, "--config", &config], "uploadpack.allowfilter"),
        (&["serve", root, "--config", "/no/such/file"], "/no/such/file"),
    ] {
        let (code, _, said) = packring(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}

#[test]
fn help_shows_every_default() {
    let (code, said, _) = packring(&["serve", "--help"]);
    assert_eq!(code, Some(0));
    for word in ["127.0.0.1:8080", "256KiB", "[default: auto]", "[default: mirror]", "[default: 30s]", "Exit codes"] {
        assert!(said.contains(word) || packring(&["--help"]).1.contains(word), "{word}");
    }
}

#[test]
fn a_signal_lets_running_clones_finish_and_a_second_cuts_them() {
    let folder = tempfile::tempdir().unwrap();
    corpus::make(folder.path(), "a.git", corpus::MEDIUM);
    for (signals, code) in [(1, 0), (2, 3)] {
        let server = Server::start(folder.path());
        let idle = server.connect();
        // A request whose body is half there: it runs.
        let mut busy = server.connect();
        busy.write_all(b"POST /a/git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n")
            .unwrap();
        busy.write_all(b"Content-Type: application/x-git-upload-pack-request\r\n\r\n00").unwrap();
        assert!(try_git(folder.path(), &["ls-remote", &server.url("a")]).status.success());
        server.signal("TERM");
        let mut end = [0; 1];
        assert_eq!(std::io::Read::read(&mut &idle, &mut end).unwrap(), 0, "idle connections end at once");
        if signals == 2 {
            server.signal("TERM");
        } else {
            busy.write_all(b"00").unwrap();
            let mut answer = String::new();
            std::io::Read::read_to_string(&mut busy, &mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert_eq!(server.wait(), Some(code));
    }
}

#[test]
fn serving_needs_no_program() {
    let folder = tempfile::tempdir().unwrap();
    corpus::make(folder.path(), "a.git", corpus::SMALL);
    for io in ["uring", "epoll"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_packring"));
        command
            .arg("serve")
            .arg(folder.path())
            .args(["--listen", "127.0.0.1:0", "-q", "--io", io])
            .env_clear()
            .env("PATH", "");
        let server = Server::spawn(command);
        let _ = std::fs::remove_dir_all(folder.path().join("c"));
        git(folder.path(), &["clone", "-q", "--mirror", &server.url("a"), "c"]);
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().flatten();
        let has_ring = open
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|link| link.to_string_lossy().contains("io_uring"));
        assert_eq!(has_ring, io == "uring");
    }
}

#[test]
fn proofs_about_packs_outlive_a_restart_where_there_is_a_state_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (root, state) = (folder.path().join("root"), folder.path().join("state"));
    std::fs::create_dir(&root).unwrap();
    let source = corpus::make(&root, "a.git", corpus::SMALL);
    git(&source, &["-c", "repack.writeBitmaps=false", "repack", "-adq"]);
    let mut ways = Vec::new();
    for round in 0..2 {
        let log = folder.path().join(format!("log{round}"));
        let script = "exec \"$0\" serve \"$1\" --state \"$2\" --listen 127.0.0.1:0 --log-format json 2>\"$3\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_packring")]).args([&root, &state, &log]);
        let server = Server::spawn(command);
        support::assert_same_clone(folder.path(), &server.url("a"), &source, &["--mirror"]);
        let is_kept = || {
            let files = std::fs::read_dir(state.join("seals")).into_iter().flatten().flatten();
            files.filter(|file| file.path().extension().is_some_and(|ending| ending == "seal")).count() == 1
        };
        let patience = std::time::Instant::now();
        while !is_kept() {
            assert!(patience.elapsed().as_secs() < 60, "the proof of round {round} is kept");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        let log = std::fs::read_to_string(log).unwrap();
        ways.push(["\"way\":\"walk\"", "\"way\":\"sealed pack\""].map(|way| log.contains(way)));
    }
    assert_eq!(ways, [[true, false], [false, true]]);
}
