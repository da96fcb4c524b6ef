//! Private repositories: the command line, every status, stock git with every way to give a token, revocation, and what a
//! principal who may see some refs can get out of the server by asking cleverly.

mod support;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use support::{Access, Answer, Server, git, git_command, ids_of_pack, lines, pack_of, pkt, reachable};

/// `root/NAME.git` with a commit on main, a release, and a secret branch with objects of its own.
fn repository(root: &Path, name: &str) -> PathBuf {
    let work = root.join(format!("work-{}", name.replace('/', "-")));
    fs::create_dir_all(&work).unwrap();
    git(&work, &["init", "-q"]);
    let commit = |text: &str| {
        fs::write(work.join(text), format!("{name} {text}\n")).unwrap();
        git(&work, &["add", "."]);
        git(&work, &["commit", "-qm", text]);
    };
    commit("one");
    commit("two");
    git(&work, &["branch", "release/1"]);
    git(&work, &["checkout", "-qb", "secret"]);
    commit("hidden");
    commit("deeper");
    git(&work, &["tag", "-a", "-m", "a hidden tag on a visible commit", "private-tag", "release/1"]);
    git(&work, &["checkout", "-q", "main"]);
    let bare = root.join("served").join(format!("{name}.git"));
    fs::create_dir_all(bare.parent().unwrap()).unwrap();
    git(root, &["clone", "-q", "--mirror", work.to_str().unwrap(), bare.to_str().unwrap()]);
    bare
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Fields of a request in protocol version 2.
fn version_2(token: &str) -> String {
    format!("Git-Protocol: version=2\r\n{}", bearer(token))
}

fn refs_of(server: &Server, path: &str, fields: &str) -> Answer {
    server.get(&format!("{path}/info/refs?service=git-upload-pack"), fields)
}

fn ask(server: &Server, path: &str, token: &str, body: &[u8]) -> Answer {
    Answer::parse(&server.raw(&support::post(path, &version_2(token), body)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credential {
    Absent,
    Nonsense,
    Unknown,
    Expired,
    Revoked,
    Disabled,
    Ungranted,
    OutOfScope,
    Granted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Public,
    Private,
    Missing,
}

/// What HTTP has to say. No wildcard: a case that is added has to be answered here.
fn expected(credential: Credential, target: Target) -> u16 {
    use Credential::{Absent, Disabled, Expired, Granted, Nonsense, OutOfScope, Revoked, Ungranted, Unknown};
    match (credential, target) {
        (Absent, Target::Public) => 200,
        (Absent, Target::Private | Target::Missing) => 401,
        (Nonsense | Unknown | Expired | Revoked | Disabled, Target::Public | Target::Private | Target::Missing) => 401,
        (Ungranted | OutOfScope, Target::Public) => 200,
        (Ungranted | OutOfScope, Target::Private | Target::Missing) => 404,
        (Granted, Target::Public | Target::Private) => 200,
        (Granted, Target::Missing) => 404,
    }
}

#[test]
fn every_case_has_its_status() {
    use Credential::{Absent, Disabled, Expired, Granted, Nonsense, OutOfScope, Revoked, Ungranted, Unknown};
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "open/app");
    repository(root, "team/app");
    let access = Access::new(root);
    access.run(&["visibility", "set", "open/**", "public"]);
    let granted = access.principal("ann", &["team/*"]);
    let expired = access.token("ann", "expired", &["--expires", "2001-01-01"]);
    let narrow = access.token("ann", "narrow", &["--repo", "team/other"]);
    let revoked = access.token("ann", "revoked", &[]);
    access.run(&["token", "revoke", "ann", "revoked"]);
    let disabled = access.principal("bob", &["team/app"]);
    access.run(&["principal", "disable", "bob"]);
    let ungranted = access.principal("cid", &["elsewhere/**"]);
    let server = access.serve(&root.join("served"), &["--max-failures", "1000"]);
    let unknown = "pkr_00000000000000000000000000000000".to_owned() + &crc("00000000000000000000000000000000");

    let mut refused = BTreeSet::new();
    let mut missing = BTreeSet::new();
    for (credential, field) in [
        (Absent, String::new()),
        (Nonsense, "Authorization: Basic bm9uc2Vuc2U=\r\n".into()),
        (Unknown, bearer(&unknown)),
        (Expired, bearer(&expired)),
        (Revoked, bearer(&revoked)),
        (Disabled, bearer(&disabled)),
        (Ungranted, bearer(&ungranted)),
        (OutOfScope, bearer(&narrow)),
        (Granted, bearer(&granted)),
    ] {
        for (target, path) in
            [(Target::Public, "open/app"), (Target::Private, "team/app.git"), (Target::Missing, "team/none")]
        {
            for request in [format!("{path}/info/refs?service=git-upload-pack"), path.to_owned()] {
                let answer = server.get(&request, &field);
                assert_eq!(answer.status, expected(credential, target), "{credential:?} {request}: {}", answer.text());
                match answer.status {
                    401 => refused.insert((answer.head, answer.body)),
                    404 => missing.insert((answer.head, answer.body)),
                    _ => false,
                };
            }
        }
    }
    assert_eq!(refused.len(), 1, "one answer for whoever has no token that holds");
    assert_eq!(missing.len(), 1, "what may not be read cannot be told from what is not there");
    assert!(refused.first().unwrap().0.contains("WWW-Authenticate: Basic realm="));
}

/// The check of a token's form, as anybody can compute it.
fn crc(text: &str) -> String {
    let mut sum = !0u32;
    for byte in text.bytes() {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    let (mut sum, mut digits) = (!sum, Vec::new());
    for _ in 0..6 {
        let digit = (sum % 62) as u8;
        digits.push(match digit {
            0..=9 => b'0' + digit,
            10..=35 => b'A' + digit - 10,
            _ => b'a' + digit - 36,
        });
        sum /= 62;
    }
    digits.iter().rev().map(|byte| char::from(*byte)).collect()
}

#[test]
fn each_verb_of_access_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let access = Access::new(folder.path());
    let again = access.try_run(&["init"]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("there is a file already"));
    access.run(&["principal", "add", "ann"]);
    access.run(&["principal", "add", "bob"]);
    access.run(&["principal", "disable", "bob"]);
    let token = access.token("ann", "ci", &["--expires", "90d", "--repo", "team/**"]);
    assert!(token.starts_with("pkr_") && token.ends_with(&crc(&token[4..36])), "{token}");
    access.run(&["grant", "add", "ann", "team/app", "--refs", "refs/heads/release/*"]);
    access.run(&["grant", "add", "bob", "team/**"]);
    access.run(&["visibility", "set", "open/**", "public"]);

    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&access.run(&[arguments, &["--json"]].concat())).unwrap()
    };
    let principals = json(&["principal", "list"]);
    assert_eq!((&principals[0]["principal"], &principals[1]["disabled"]), (&"ann".into(), &true.into()));
    let tokens = json(&["token", "list"]);
    assert_eq!((&tokens[0]["token"], &tokens[0]["repositories"][0]), (&"ci".into(), &"team/**".into()));
    assert!(tokens[0]["expires"].as_str().unwrap().ends_with('Z') && tokens[0]["last_used"].is_null());
    assert!(!access.run(&["token", "list"]).contains(&token), "a token is shown once");
    assert_eq!(json(&["grant", "list"])[0]["only_refs"][0], "refs/heads/release/*");
    assert_eq!(json(&["visibility", "list"])[1]["visibility"], "private");
    let able = json(&["who-can", "team/app.git"]);
    assert_eq!((able.as_array().unwrap().len(), &able[0]["principal"]), (1, &"ann".into()));
    assert_eq!(json(&["who-can", "open/x"])[0]["principal"], "(everyone)");

    let explained = json(&["explain", "--token", &token, "team/app"]);
    assert_eq!(explained["reads"], true, "{explained}");
    assert!(explained["answer"].as_str().unwrap().contains("refs/heads/release/*"));
    for (arguments, words) in [
        (vec!["explain", "team/app"], "401: a token is needed"),
        (vec!["explain", "open/x"], "as everyone may"),
        (vec!["explain", "--token", &token, "other"], "404"),
        (vec!["explain", "--token", "pkr_x", "team/app"], "401: the token does not hold"),
    ] {
        assert!(access.run(&arguments).contains(words), "{arguments:?}: {}", access.run(&arguments));
    }
    let mut child = access.command(&["explain", "--token", "-", "team/app"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{token}\n").as_bytes()).unwrap();
    assert!(String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).contains("ann, by the token ci"));

    access.run(&["grant", "remove", "ann", "team/app"]);
    access.run(&["token", "revoke", "ann", "ci"]);
    access.run(&["visibility", "remove", "open/**"]);
    access.run(&["visibility", "default", "public"]);
    access.run(&["principal", "enable", "bob"]);
    assert!(
        json(&["grant", "list"]).as_array().unwrap().len() == 1 && json(&["token", "list"])[0]["revoked"].is_string()
    );
    for arguments in [
        vec!["grant", "remove", "ann", "team/app"],
        vec!["token", "revoke", "ann", "ci"],
        vec!["principal", "add", "ann"],
        vec!["principal", "disable", "nobody"],
        vec!["grant", "add", "ann", "a/../b"],
    ] {
        let output = access.try_run(&arguments);
        assert!(output.status.code() == Some(1) && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn stock_git_gives_its_token_in_every_way_it_knows() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let library = repository(root, "team/library");
    let app = repository(root, "team/app");
    let access = Access::new(root);
    let token = access.principal("ann", &["team/*"]);
    let server = access.serve(&root.join("served"), &[]);
    let url = server.url("team/app");
    let host = format!("127.0.0.1:{}", server.port);
    let with_user = |user: &str| format!("http://{user}@{host}/team/app.git");
    let helper = format!("!f() {{ echo username=x; echo password={token}; }}; f");
    let askpass = root.join("askpass");
    fs::write(&askpass, format!("#!/bin/sh\necho {token}\n")).unwrap();
    fs::set_permissions(&askpass, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ways: [(&str, Vec<String>, String); 5] = [
        ("password in the URL", vec![], with_user(&format!("ann:{token}"))),
        ("user in the URL", vec![], with_user(&format!("{token}:x-oauth-basic"))),
        ("extraHeader", vec!["-c".into(), format!("http.extraHeader=Authorization: Bearer {token}")], url.clone()),
        ("credential helper", vec!["-c".into(), format!("credential.helper={helper}")], url.clone()),
        ("askpass", vec!["-c".into(), format!("core.askPass={}", askpass.display())], url.clone()),
    ];
    for (number, (way, configuration, url)) in ways.iter().enumerate() {
        let clone = format!("clone-{number}");
        let run = |folder: &Path, arguments: &[&str]| {
            let output = git_command(folder).args(configuration).args(arguments).output().unwrap();
            assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        run(root, &["clone", "-q", "--mirror", url, &clone]);
        assert_eq!(support::objects(&root.join(&clone)), reachable(&app, &["--all"]), "{way}");
        assert_eq!(run(root, &["ls-remote", url]).lines().count(), 6, "{way}");
        git(&app, &["update-ref", &format!("refs/heads/new-{number}"), "main"]);
        run(&root.join(&clone), &["fetch", "-q"]);
        assert!(support::refs(&root.join(&clone)).contains(&format!("refs/heads/new-{number}")), "{way}");
        git(&app, &["update-ref", "-d", &format!("refs/heads/new-{number}")]);
    }
    let turned = git_command(root).args(["clone", "-q", &url, "no"]).output().unwrap();
    assert!(!turned.status.success());

    // A private repository that names another one as its submodule.
    let work = root.join("work-team-app");
    git(&work, &["-c", "protocol.file.allow=always", "submodule", "add", "-q", library.to_str().unwrap(), "library"]);
    git(&work, &["config", "-f", ".gitmodules", "submodule.library.url", "../library"]);
    git(&work, &["commit", "-qam", "submodule"]);
    git(&work, &["push", "-q", app.to_str().unwrap(), "main"]);
    let header = format!("http.extraHeader=Authorization: Bearer {token}");
    git(root, &["-c", &header, "clone", "-q", "--recurse-submodules", &url, "whole"]);
    assert_eq!(fs::read_to_string(root.join("whole/library/one")).unwrap(), "team/library one\n");
}

#[test]
fn no_spelling_of_a_path_opens_what_its_name_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "open/app");
    repository(root, "team/app");
    let served = root.join("served");
    std::os::unix::fs::symlink("../team/app.git", served.join("open/link.git")).unwrap();
    std::os::unix::fs::symlink("app.git", served.join("open/same.git")).unwrap();
    git(root, &["clone", "-q", "--bare", served.join("open/app.git").to_str().unwrap(), "outside.git"]);
    std::os::unix::fs::symlink(root.join("outside.git"), served.join("open/away.git")).unwrap();
    let access = Access::new(root);
    access.run(&["visibility", "set", "open/**", "public"]);
    let token = access.principal("ann", &["team/*"]);
    let other = access.principal("bob", &["else/*"]);
    let server = access.serve(&served, &[]);
    for path in [
        "team/app",
        "team/app.git",
        "team/app.git.git",
        "team/app/.git",
        "team%2fapp",
        "%74eam/app",
        "Team/app",
        "team/app.",
        "team/app..",
        "open/link",
        "open/link.git",
        "open/away",
        "access.db",
    ] {
        assert_eq!(refs_of(&server, path, "").status, 401, "{path}");
        assert_eq!(refs_of(&server, path, &bearer(&other)).status, 404, "{path}");
    }
    let tricks = [
        "team/app/",
        "open/../team/app",
        "open/%2e%2e/team/app",
        "team//app",
        "//team/app",
        "team/app%00",
        "team/./app",
    ];
    // At once: after such a path the server reads on for a moment before it closes.
    std::thread::scope(|scope| {
        for path in tricks {
            for field in [String::new(), bearer(&token)] {
                let server = &server;
                scope.spawn(move || {
                    assert_eq!(refs_of(server, path, &field).status, 404, "{path}: no such path, whoever asks");
                });
            }
        }
    });
    assert_eq!(refs_of(&server, "open/same", "").status, 200);
    assert_eq!(refs_of(&server, "open/link", &bearer(&token)).status, 200, "who may read what it leads to");
    let followed = access.serve(&served, &["--follow-symlinks"]);
    assert_eq!(refs_of(&followed, "open/away", "").status, 200);
    assert_eq!(refs_of(&followed, "open/link", "").status, 401, "a link within ROOT opens nothing more");
}

#[test]
fn malformed_credentials_are_refused_in_words_and_cost_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "open/app");
    let access = Access::new(root);
    access.run(&["visibility", "set", "open/**", "public"]);
    let token = access.principal("ann", &["**"]);
    let server = access.serve(&root.join("served"), &["--max-failures", "100"]);
    for field in [
        "Authorization: \r\n".to_owned(),
        "Authorization: Basic\r\n".into(),
        "Authorization: Digest username=\"x\"\r\n".into(),
        "Authorization: Bearer a b c\r\n".into(),
        "Authorization: Basic \u{ff}\u{fe}\r\n".into(),
        format!("Authorization: Basic {}\r\n", "QUFB".repeat(3000)),
        format!("{}{}", bearer(&token), bearer(&token)),
    ] {
        assert_eq!(refs_of(&server, "open/app", &field).status, 401, "{}", &field[..field.len().min(60)]);
    }
    let huge = format!("Authorization: Basic {}\r\n", "A".repeat(1 << 20));
    let mut stream = server.connect();
    let _ = stream.write_all(format!("GET /open/app/info/refs HTTP/1.1\r\nHost: x\r\n{huge}\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(refs_of(&server, "open/app", &bearer(&token)).status, 200);
}

#[test]
fn who_fails_too_often_is_told_when_to_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "team/app");
    let access = Access::new(root);
    let token = access.principal("ann", &["**"]);
    let wrong = bearer("pkr_wrong");
    let server = access.serve(&root.join("served"), &["--max-failures", "3"]);
    for number in 0..3 {
        let forged = format!("{wrong}X-Forwarded-For: 10.0.0.{number}\r\n");
        assert_eq!(refs_of(&server, "team/app", &forged).status, 401);
    }
    let answer = refs_of(&server, "team/app", &format!("{wrong}X-Forwarded-For: 10.0.0.9\r\n"));
    assert_eq!(answer.status, 429, "who is not trusted cannot say that it is somebody else");
    let wait = answer.head.lines().find_map(|line| line.strip_prefix("Retry-After: ")).unwrap();
    assert!((1..=60).contains(&wait.parse::<u64>().unwrap()));
    assert_eq!(refs_of(&server, "team/app", &bearer(&token)).status, 200, "whoever has a token is not locked out");

    let server = access.serve(&root.join("served"), &["--max-failures", "1", "--trusted-proxy", "127.0.0.0/8"]);
    let from = |source: &str| refs_of(&server, "team/app", &format!("{wrong}X-Forwarded-For: {source}\r\n")).status;
    assert_eq!([from("10.0.0.1"), from("10.0.0.2"), from("10.0.0.1"), from("9.9.9.9, 10.0.0.2")], [401, 401, 429, 429]);
}

#[test]
fn a_revoked_token_stops_working_in_every_loop_and_a_clone_in_flight_finishes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let path = repository(root, "team/app");
    // Large enough that the answer does not fit into the buffers of the connection, and does not shrink.
    let work = root.join("work-team-app");
    fs::write(work.join("noise"), support::noise(24_000_000)).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-qm", "noise"]);
    git(&work, &["push", "-q", path.to_str().unwrap(), "main"]);
    git(&path, &["repack", "-adq"]);
    let access = Access::new(root);
    let token = access.principal("ann", &["**"]);
    let server = access.serve(&root.join("served"), &[]);

    let tip = git(&path, &["rev-parse", "main"]);
    let body = pkt(&[
        "command=fetch",
        "object-format=sha1",
        "|",
        "ofs-delta",
        "no-progress",
        "done",
        &format!("want {}", tip.trim()),
        ".",
    ]);
    let mut flight = server.connect();
    flight.write_all(&support::post("team/app", &version_2(&token), &body)).unwrap();
    let mut answer = vec![0; 4096];
    flight.read_exact(&mut answer).unwrap();

    // Connections that stay, so that both loops are asked.
    let request =
        format!("GET /team/app/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n{}\r\n", bearer(&token));
    let mut kept: Vec<_> = (0..8).map(|_| server.connect()).collect();
    let mut status = |number: usize| {
        kept[number].write_all(request.as_bytes()).unwrap();
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let size = kept[number].read(&mut part).unwrap();
            bytes.extend_from_slice(&part[..size]);
            let end = support::find(&bytes, b"\r\n\r\n");
            let length = String::from_utf8_lossy(&bytes)
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: ").and_then(|length| length.parse::<usize>().ok()));
            if let (Some(end), Some(length)) = (end, length)
                && bytes.len() >= end + 4 + length
            {
                return Answer::parse(&bytes).status;
            }
            assert!(size > 0);
        }
    };
    assert!((0..8).all(|number| status(number) == 200));
    access.run(&["token", "revoke", "ann", "t"]);
    let since = Instant::now();
    while !(0..8).all(|number| status(number) == 401) {
        assert!(since.elapsed() < Duration::from_secs(20), "the revocation is not seen");
        std::thread::sleep(Duration::from_millis(20));
    }
    flight.read_to_end(&mut answer).unwrap();
    let (pack, fatal) = pack_of(&Answer::parse(&answer).body);
    assert!(fatal.is_empty(), "{fatal}");
    assert_eq!(ids_of_pack(&path, &pack), reachable(&path, &["main"]));
}

#[test]
fn what_only_hidden_refs_reach_is_never_had() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let path = repository(root, "team/app");
    let access = Access::new(root);
    let whole = access.principal("ann", &["team/app"]);
    let limited = access.principal("bob", &["team/app", "refs/heads/main", "refs/heads/release/*"]);
    let id = |revision: &str| git(&path, &["rev-parse", revision]).trim().to_owned();
    let visible = reachable(&path, &["main", "release/1"]);
    let hidden: Vec<String> = reachable(&path, &["--all"]).into_iter().filter(|id| !visible.contains(id)).collect();
    assert!(hidden.len() >= 6, "a hidden branch of two commits, their trees and blobs, and a tag");

    for (packed, way) in [(false, "loose"), (true, "packed"), (true, "bitmaps")] {
        if packed {
            let bitmaps = if way == "bitmaps" { "--write-bitmap-index" } else { "--no-write-bitmap-index" };
            git(&path, &["repack", "-adq", bitmaps]);
        }
        let server = access.serve(&root.join("served"), &[]);
        let fetch = |token: &str, arguments: &[&str]| {
            let lines = [&["command=fetch", "object-format=sha1", "|", "no-progress"], arguments, &["."]].concat();
            ask(&server, "team/app", token, &pkt(&lines))
        };
        let refused = |answer: &Answer| String::from_utf8_lossy(&answer.body).contains("not our ref");
        for id in &hidden {
            let want = format!("want {id}");
            assert!(refused(&fetch(&limited, &[&want, "done"])), "{way}: {id}");
            assert!(refused(&fetch(&limited, &[&want, "filter blob:none", "done"])), "{way}: {id}");
            assert!(refused(&fetch(&limited, &[&want, "deepen 1", "done"])), "{way}: {id}");
            assert!(!refused(&fetch(&whole, &[&want, "done"])), "{way}: {id} is there for who may see it");
        }
        for id in &visible {
            assert!(!refused(&fetch(&limited, &[&format!("want {id}"), "done"])), "{way}: {id}");
        }
        let sent = |arguments: &[&str]| ids_of_pack(&path, &pack_of(&fetch(&limited, arguments).body).0);
        let want = format!("want {}", id("main"));
        for arguments in [
            vec!["done"],
            vec!["thin-pack", "include-tag", "ofs-delta", "done"],
            vec!["deepen 2147483647", "done"],
            vec!["deepen-relative", "deepen 5", "done"],
        ] {
            for shallow in [None, Some(id("secret")), Some(id("secret~1"))] {
                let shallow = shallow.map(|id| format!("shallow {id}"));
                let all: Vec<&str> =
                    [want.as_str()].into_iter().chain(shallow.as_deref()).chain(arguments.iter().copied()).collect();
                let sent = sent(&all);
                assert!(sent.is_subset(&visible), "{way}: {all:?} sent {:?}", sent.difference(&visible));
            }
        }
        // A have that is hidden is unknown: neither acknowledged nor a base.
        let talked = fetch(&limited, &[&want, &format!("have {}", id("secret"))]);
        assert!(talked.text().contains("NAK"), "{way}: {}", talked.text());
        assert_eq!(sent(&[&want, "thin-pack", &format!("have {}", id("secret")), "done"]), visible);
        // Neither names nor sizes are told.
        for arguments in [["want-ref refs/heads/secret", "done"], ["want-ref refs/tags/private-tag", "done"]] {
            assert!(fetch(&limited, &arguments).text().contains("unknown ref"), "{way}: {arguments:?}");
        }
        let not = fetch(&limited, &[&want, "deepen-not secret", "done"]);
        assert!(not.text().contains("is not a ref") || not.text().contains("ERR"), "{way}: {}", not.text());
        let object =
            |id: &str| pkt(&["command=object-info", "object-format=sha1", "|", "size", &format!("oid {id}"), "."]);
        let (some, other) = (
            ask(&server, "team/app", &limited, &object(&id("main"))),
            ask(&server, "team/app", &limited, &object(&id("secret"))),
        );
        assert!(
            some.text().trim_end_matches("0000").len() > other.text().trim_end_matches("0000").len(),
            "{}",
            other.text()
        );
        assert_eq!(
            other.text(),
            ask(&server, "team/app", &limited, &object(&"1".repeat(40))).text().replace(&"1".repeat(40), &id("secret"))
        );
        let listed = ask(
            &server,
            "team/app",
            &limited,
            &pkt(&["command=ls-refs", "object-format=sha1", "|", "peel", "symrefs", "."]),
        );
        let names: Vec<String> =
            lines(&listed.body).iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        let names: Vec<&str> = names.iter().filter_map(|line| line.trim().split(' ').nth(1)).collect();
        assert_eq!(names, ["HEAD", "refs/heads/main", "refs/heads/release/1"], "{way}");
    }
}

#[test]
fn a_limited_principal_clones_what_git_would_serve_with_the_other_refs_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let path = repository(root, "team/app");
    let access = Access::new(root);
    let limited = access.principal("bob", &["team/app", "refs/heads/main", "refs/heads/release/*"]);
    let server = access.serve(&root.join("served"), &[]);
    let header = format!("http.extraHeader=Authorization: Bearer {limited}");
    git(root, &["-c", &header, "clone", "-q", "--mirror", &server.url("team/app"), "ours"]);
    git(root, &["clone", "-q", "--mirror", path.to_str().unwrap(), "hiding.git"]);
    let hiding = root.join("hiding.git");
    git(&hiding, &["config", "--add", "transfer.hideRefs", "refs/heads/secret"]);
    git(&hiding, &["config", "--add", "transfer.hideRefs", "refs/tags"]);
    git(root, &["clone", "-q", "--mirror", &format!("file://{}", hiding.display()), "theirs"]);
    assert_eq!(support::refs(&root.join("ours")), support::refs(&root.join("theirs")));
    assert_eq!(support::objects(&root.join("ours")), support::objects(&root.join("theirs")));
    // Partial clones fetch blobs by id: those that are reachable have to come.
    git(
        root,
        &["-c", &header, "clone", "-q", "--filter=blob:none", "--no-checkout", &server.url("team/app"), "partial"],
    );
    git(&root.join("partial"), &["-c", &header, "checkout", "-q", "main"]);
    assert!(root.join("partial/two").exists());
}

#[test]
fn reachable_can_be_asked_for_without_any_database() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let path = repository(root, "team/app");
    git(&path, &["config", "transfer.hideRefs", "refs/heads/secret"]);
    git(&path, &["config", "http.getanyfile", "true"]);
    let secret = git(&path, &["rev-parse", "secret"]);
    let body = pkt(&[
        "command=fetch",
        "object-format=sha1",
        "|",
        "no-progress",
        "done",
        &format!("want {}", secret.trim()),
        ".",
    ]);
    let served = root.join("served");
    let gives = |flags: &[&str]| {
        let server = Server::start_with(&served, flags);
        assert_eq!(server.get("team/app/HEAD", "").status, 403, "files know nothing of hidden refs");
        !server.post("team/app", 2, &body).text().contains("not our ref")
    };
    assert!(gives(&[]) && gives(&["--wants", "as-git"]) && gives(&["--wants", "other/*=reachable"]));
    assert!(!gives(&["--wants", "reachable"]) && !gives(&["--wants", "team/**=reachable"]));
    assert!(gives(&["--wants", "reachable", "--wants", "team/app=as-git"]));
}

#[test]
fn a_fork_does_not_give_away_its_private_pool() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let pool = repository(root, "private/pool");
    let fork = root.join("served/open/fork.git");
    git(
        root,
        &["clone", "-q", "--bare", "--shared", "--single-branch", pool.to_str().unwrap(), fork.to_str().unwrap()],
    );
    let access = Access::new(root);
    access.run(&["visibility", "set", "open/**", "public"]);
    let server = access.serve(&root.join("served"), &[]);
    let fetch = |revision: &str| {
        let id = git(&pool, &["rev-parse", revision]);
        let want = format!("want {}", id.trim());
        server.post(
            "open/fork",
            2,
            &pkt(&["command=fetch", "object-format=sha1", "|", "no-progress", "done", &want, "."]),
        )
    };
    assert!(fetch("secret").text().contains("not our ref"));
    assert_eq!(ids_of_pack(&pool, &pack_of(&fetch("main").body).0), reachable(&pool, &["main"]));
    access.run(&["visibility", "set", "private/pool", "public"]);
    let since = Instant::now();
    while fetch("secret").text().contains("not our ref") {
        assert!(since.elapsed() < Duration::from_secs(20), "a pool that everyone may read hides nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_database_that_cannot_be_used_is_an_error_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let nonsense = root.join("nonsense.db");
    fs::write(&nonsense, "no database").unwrap();
    for (path, words) in [(root.join("none.db"), "access init"), (nonsense, "no access database")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_packring"));
        let command = command.arg("serve").arg(root).args(["--listen", "127.0.0.1:0", "--access"]).arg(&path);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(words), "{text}");
        assert!(!path.exists() || fs::read(&path).unwrap() == b"no database", "it is left as it was");
    }
}

#[test]
fn authorised_requests_write_nothing_to_disk() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("NOTICE: strace is not installed; this test is skipped");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "team/app");
    let access = Access::new(root);
    let token = access.principal("ann", &["team/app"]);
    let server = access.serve(&root.join("served"), &[]);
    let tasks = || -> Vec<(String, String)> {
        let listed = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().flatten();
        let named = listed.map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), name.trim().to_owned())
        });
        named.collect()
    };
    // It says where it listens before its second loop has begun.
    let since = Instant::now();
    while !["access", "loop-1"].iter().all(|wanted| tasks().iter().any(|(_, name)| name == wanted)) {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", tasks());
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = root.join("strace.log");
    let mut trace = Command::new("strace");
    trace
        .args(["-qq", "-e", "trace=write,pwrite64,pwritev,fsync,fdatasync,openat,unlink,rename,futex"])
        .arg("-o")
        .arg(&log);
    for (id, name) in tasks() {
        if name != "access" {
            trace.args(["-p", &id]);
        }
    }
    let mut trace = trace.stderr(Stdio::piped()).spawn().unwrap();
    // Attached once it traces every thread.
    let traced = |id: &str| {
        let status = fs::read_to_string(format!("/proc/{}/task/{id}/status", server.id())).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    let since = Instant::now();
    while !tasks().iter().filter(|(_, name)| name != "access").all(|(id, _)| traced(id)) {
        assert!(since.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..50 {
        assert_eq!(refs_of(&server, "team/app", &bearer(&token)).status, 200);
    }
    let _ = Command::new("kill").args(["-s", "INT", &trace.id().to_string()]).status();
    trace.wait().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let on_disk = |line: &&str| {
        let is_write = ["pwrite", "fsync", "fdatasync", "unlink", "rename"].iter().any(|call| line.contains(call));
        is_write
            || (line.contains("write(") && !line.contains("write(2,"))
            || line.contains("O_WRONLY")
            || line.contains("O_RDWR")
    };
    let mut found: Vec<&str> = text.lines().filter(on_disk).collect();
    // The wake-up of a loop is a write to an eventfd, 8 bytes.
    found.retain(|line| !line.contains(", 8)"));
    assert!(found.is_empty(), "{found:#?}");
    assert!(!text.contains("access.db"), "the database is touched on the way of a request:\n{text}");
    // Killed before the other thread wrote: so nothing was written on the way.
    drop(server);
    assert!(access.run(&["token", "list", "--json"]).contains("\"last_used\": null"));
}

#[test]
fn the_last_use_is_written_when_the_server_ends() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "team/app");
    let access = Access::new(root);
    let token = access.principal("ann", &["team/app"]);
    let server = access.serve(&root.join("served"), &[]);
    assert_eq!(refs_of(&server, "team/app", &bearer(&token)).status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(!access.run(&["token", "list", "--json"]).contains("\"last_used\": null"));
}

#[test]
fn a_log_line_names_the_principal_and_the_token_and_never_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    repository(root, "team/app");
    let access = Access::new(root);
    let token = access.principal("ann", &["team/app"]);
    let log = root.join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_packring"));
    command.arg("serve").arg(root.join("served")).args(["--listen", "127.0.0.1:0", "--loops", "1", "--pin", "never"]);
    command.args(["--log-format", "json", "-vv", "--trusted-proxy", "127.0.0.1/32", "--access"]).arg(&access.path);
    // Standard error is inherited by `spawn`: a shell sends it into a file.
    let mut shell = Command::new("sh");
    let line: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    shell.arg("-c").arg(format!("exec {} 2>'{}'", line.join(" "), log.display()));
    let server = Server::spawn(shell);
    let field = format!("{}X-Forwarded-For: 192.0.2.7\r\n", bearer(&token));
    assert_eq!(refs_of(&server, "team/app", &field).status, 200);
    assert_eq!(refs_of(&server, "team/app", &bearer("pkr_wrong")).status, 401);
    server.signal("TERM");
    server.wait();
    let text = fs::read_to_string(&log).unwrap();
    let line = text.lines().find(|line| line.contains("\"status\":200")).unwrap();
    for part in [
        "\"principal\":\"ann\"",
        "\"token\":\"t\"",
        "\"source\":\"192.0.2.7\"",
        "\"repository\":\"/team/app\"",
        "\"cpu_us\":",
        "\"bytes\":",
        "\"took_us\":",
        "\"command\":\"advertise\"",
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    assert!(text.contains("no such token"), "why a token was refused is for the log");
    assert!(!text.contains(&token) && !text.contains(&token[4..]), "the token is in the log");
}

#[test]
fn commands_that_are_killed_lose_nothing_they_reported_and_leave_nothing_torn() {
    let folder = tempfile::tempdir().unwrap();
    let access = Access::new(folder.path());
    let mut seed = 7u64;
    let mut reported = BTreeSet::new();
    for number in 0..60 {
        let name = format!("p{number}");
        let mut child = access.command(&["principal", "add", &name]).stdout(Stdio::piped()).spawn().unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(seed >> 33 & 0x3fff));
        let _ = child.kill();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        child.wait().unwrap();
        if said.contains("is there") {
            reported.insert(name);
        }
    }
    let listed = access.run(&["principal", "list"]);
    let there: BTreeSet<String> =
        listed.lines().skip(1).filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert!(reported.is_subset(&there), "lost: {:?}", reported.difference(&there));
    access.run(&["principal", "add", "after"]);
}
