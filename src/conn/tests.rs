//! Whole visits without a socket: bytes in at every split, frames out, a repository on disk behind them.

use std::{io::IoSlice, path::Path, rc::Rc, time::Duration};

use super::*;
use crate::repo::{
    Catalogue, CatalogueOptions,
    catalogue::tests::{commit, git},
};

/// Where visits come from.
const HERE: Peer = Peer { source: crate::access::Source::V4(std::net::Ipv4Addr::LOCALHOST), secure: false };

/// What became of a visit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Visited {
    bytes: Vec<u8>,
    frames: Vec<usize>,
    records: Vec<(&'static str, u16)>,
    reads: usize,
    closed: bool,
}

/// Drives a visit: each read gets the next part, then the end (or a deadline when `silent` is set).
fn visit_with(catalogue: &Catalogue, parts: &[&[u8]], window: usize, silent: bool) -> Visited {
    let mut counter = visit(Rc::new(Rules { window, ..Rules::default() }), HERE);
    let (mut parts, mut now, mut visited) = (parts.iter(), Duration::ZERO, Visited::default());
    for _ in 0..100_000 {
        now += Duration::from_micros(10);
        let step = counter.poll(now);
        visited.records.extend(counter.take_records().iter().map(|record| (record.command, record.status)));
        match step {
            Step::Close => {
                visited.closed = true;
                return visited;
            }
            Step::Read { until, .. } => {
                visited.reads += 1;
                match parts.next() {
                    Some(part) => counter.handle_bytes(part),
                    None if silent => {
                        now = until;
                        counter.handle_deadline();
                    }
                    None => counter.handle_end(),
                }
            }
            Step::Send(frame) => {
                let mut slices: Vec<IoSlice<'_>> = Vec::new();
                frame.slices(&mut slices);
                visited.frames.push(frame.size());
                visited.bytes.extend(slices.iter().flat_map(|slice| slice.iter()));
                counter.handle_sent();
            }
            Step::Slice | Step::Wait(_) => counter.handle_turn(),
            Step::Need(Need::Snapshot { path, fresh }) => counter.handle_snapshot(catalogue.snapshot(&path, fresh)),
            Step::Need(Need::Loose { snapshot, ask }) => counter.handle_loose(snapshot.loose(ask)),
            Step::Need(_) => counter.handle_part(None),
        }
    }
    panic!("a visit that never ends");
}

fn repository(root: &Path) -> String {
    git(root, &["init", "-q", "--bare", "a.git"]);
    let path = root.join("a.git");
    let id = commit(&path, "one");
    git(&path, &["update-ref", "refs/heads/main", &id]);
    git(&path, &["repack", "-adq"]);
    id
}

fn catalogue(root: &Path) -> Catalogue {
    Catalogue::open(CatalogueOptions { root: root.to_owned(), ..CatalogueOptions::default() }).unwrap()
}

fn fetch(id: &str) -> Vec<u8> {
    let mut body = b"0011command=fetch0001".to_vec();
    for line in [&format!("want {id}"), "ofs-delta", "no-progress", "done"] {
        body.extend(format!("{:04x}{line}", line.len() + 4).into_bytes());
    }
    body.extend(b"0000");
    let head = format!(
        "POST /a/git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: version=2\r\n\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

const REFS: &[u8] = b"GET /a/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_visit_gives_the_same_answer_for_bytes_split_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let request = fetch(&repository(folder.path()));
    let catalogue = catalogue(folder.path());
    let whole = visit_with(&catalogue, &[&request], 65_536, false);
    assert_eq!(whole.records, [("fetch", 200)]);
    assert!(whole.bytes.windows(4).any(|window| window == b"PACK") && whole.bytes.ends_with(b"0\r\n\r\n"));
    for cut in 1..request.len() {
        let split = visit_with(&catalogue, &[&request[..cut], &request[cut..]], 65_536, false);
        assert_eq!((split.bytes, split.records), (whole.bytes.clone(), whole.records.clone()), "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = request.chunks(1).collect();
    assert_eq!(visit_with(&catalogue, &bytes, 65_536, false).bytes, whole.bytes);
}

#[test]
fn pipelined_requests_are_answered_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let request = fetch(&repository(folder.path()));
    let catalogue = catalogue(folder.path());
    let one = visit_with(&catalogue, &[REFS], 65_536, false).bytes;
    let other = visit_with(&catalogue, &[&request], 65_536, false).bytes;
    let both = [REFS, &request, REFS].concat();
    let visited = visit_with(&catalogue, &[&both], 65_536, false);
    assert_eq!(visited.bytes, [one.as_slice(), &other, &one].concat());
    assert_eq!(visited.records, [("advertise", 200), ("fetch", 200), ("advertise", 200)]);
    assert_eq!(visited.reads, 2, "what is there is not waited for");
}

#[test]
fn a_visit_that_stops_talking_is_ended_with_a_word_or_without() {
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path());
    let catalogue = catalogue(folder.path());
    let idle = visit_with(&catalogue, &[], 65_536, true);
    assert!(idle.closed && idle.bytes.is_empty(), "a connection that never asked gets no answer");
    for (parts, status) in [(&REFS[..20], "408"), (&fetch("x")[..190], "408")] {
        let visited = visit_with(&catalogue, &[parts], 65_536, true);
        let said = String::from_utf8_lossy(&visited.bytes).into_owned();
        assert!(visited.closed && said.starts_with(&format!("HTTP/1.1 {status}")), "{said}");
    }
    let cut = visit_with(&catalogue, &[&REFS[..20]], 65_536, false);
    assert!(cut.bytes.starts_with(b"HTTP/1.1 400"));
}

#[test]
fn a_want_that_is_not_here_is_refused_and_the_visit_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path());
    let catalogue = catalogue(folder.path());
    let request = fetch(&"1".repeat(40));
    let visited = visit_with(&catalogue, &[&[request.as_slice(), REFS].concat()], 65_536, false);
    let said = String::from_utf8_lossy(&visited.bytes).into_owned();
    assert!(said.contains("ERR upload-pack: not our ref 1111"), "{said}");
    assert_eq!(visited.records, [("fetch", 200), ("advertise", 200)]);
}

#[test]
fn an_object_that_is_missing_is_named_in_band_3() {
    let folder = tempfile::tempdir().unwrap();
    git(folder.path(), &["init", "-q", "--bare", "a.git"]);
    let path = folder.path().join("a.git");
    let id = commit(&path, "one");
    git(&path, &["update-ref", "refs/heads/main", &id]);
    let tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    std::fs::remove_file(path.join("objects").join(&tree[..2]).join(&tree[2..])).unwrap();
    let visited = visit_with(&catalogue(folder.path()), &[&[&fetch(&id), REFS].concat()], 65_536, false);
    let said = String::from_utf8_lossy(&visited.bytes).into_owned();
    assert!(said.contains(&format!("\x03object {tree} is missing")), "{said}");
    assert!(!said.contains("PACK") && visited.records.len() == 2);
}

#[test]
fn frames_of_a_visit_are_windows() {
    let folder = tempfile::tempdir().unwrap();
    git(folder.path(), &["init", "-q", "--bare", "a.git"]);
    let path = folder.path().join("a.git");
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(100_000)
    .collect();
    std::fs::write(path.join("noise"), noise).unwrap();
    let blob = git(&path, &["hash-object", "-w", "noise"]);
    git(&path, &["tag", "noise", blob.trim()]);
    let visited = visit_with(&catalogue(folder.path()), &[&fetch(blob.trim())], 8_192, false);
    let (_, full) = visited.frames.split_last().unwrap();
    assert!(full.len() >= 12 && full.iter().all(|size| (8_187..=8_192).contains(size)), "{:?}", visited.frames);
}

#[test]
fn a_quiet_selection_gives_signs_of_life() {
    let folder = tempfile::tempdir().unwrap();
    git(folder.path(), &["init", "-q", "--bare", "a.git"]);
    let path = folder.path().join("a.git");
    let mut stream = String::new();
    for number in 1..1_500 {
        let content = format!("{number}\n").repeat(80);
        stream += &format!("commit refs/heads/main\ncommitter C <c@x> {number} +0000\ndata 1\nm\n");
        stream += &format!("M 100644 inline d{}/f\ndata {}\n{content}\n", number % 7, content.len());
    }
    std::fs::write(path.join("stream"), stream).unwrap();
    git(&path, &["fast-import", "--quiet", "<stream"]);
    git(&path, &["-c", "repack.writeBitmaps=false", "repack", "-adq"]);
    let id = git(&path, &["rev-parse", "main"]);
    let catalogue = catalogue(folder.path());
    let request = fetch(id.trim());
    // Of each slice the driver says that a second went by.
    let mut counter = visit(Rc::new(Rules::default()), HERE);
    let (mut now, mut sent_at, mut longest, mut alive, mut slices) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO, 0, 0);
    let mut asked = false;
    loop {
        match counter.poll(now) {
            Step::Close => break,
            Step::Read { .. } if asked => counter.handle_end(),
            Step::Read { .. } => {
                asked = true;
                counter.handle_bytes(&request);
            }
            Step::Send(frame) => {
                let mut bytes: Vec<IoSlice<'_>> = Vec::new();
                frame.slices(&mut bytes);
                let bytes: Vec<u8> = bytes.iter().flat_map(|slice| slice.iter().copied()).collect();
                alive += usize::from(bytes.windows(5).any(|part| part == b"0005\x01"));
                longest = longest.max(now.saturating_sub(sent_at));
                sent_at = now;
                counter.handle_sent();
            }
            Step::Slice => {
                slices += 1;
                now += Duration::from_secs(1);
                counter.handle_turn();
            }
            Step::Wait(_) => counter.handle_turn(),
            Step::Need(Need::Snapshot { path, fresh }) => counter.handle_snapshot(catalogue.snapshot(&path, fresh)),
            Step::Need(Need::Loose { snapshot, ask }) => counter.handle_loose(snapshot.loose(ask)),
            Step::Need(_) => counter.handle_part(None),
        }
    }
    assert!(slices > 10, "{slices} slices: too few to be quiet in");
    let said = alive;
    assert!(said >= slices / 6 - 1, "{said} signs of life in {slices} seconds");
    assert!(longest <= Duration::from_secs(6), "quiet for {longest:?}");
}
