//! Golden conversations over raw HTTP: status, fields and bodies as gitprotocol-http(5) and git's clients want them.

mod support;

use std::{
    io::{Read, Write},
    net::Shutdown,
};

use support::{Answer, Server, corpus, git, lines, pkt};

fn small() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    corpus::make(folder.path(), "a.git", corpus::SMALL);
    let server = Server::start(folder.path());
    (folder, server)
}

const POST: &str =
    "POST /a.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-upload-pack-request\r\n";
const LIST: &[&str] = &["command=ls-refs", "|", "ref-prefix refs/heads/", "."];

fn post(fields: &str, body: &[u8]) -> Vec<u8> {
    [format!("{POST}Connection: close\r\n{fields}\r\n").as_bytes(), body].concat()
}

#[test]
fn the_probe_before_a_chunked_post_gets_200_and_nothing() {
    let (_folder, server) = small();
    for fields in ["", "Git-Protocol: version=2\r\n", "Git-Protocol: version=1\r\n"] {
        let answer = Answer::parse(&server.raw(&post(&format!("{fields}Content-Length: 4\r\n"), b"0000")));
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{fields}");
    }
}

#[test]
fn statuses_are_those_of_http_backend() {
    let (_folder, server) = small();
    let get = |path: &str| server.get(path, "");
    for (path, status) in [
        ("none.git/info/refs?service=git-upload-pack", 404),
        ("a.git/../a.git/info/refs?service=git-upload-pack", 404),
        ("a.git/info/refs?service=git-receive-pack", 403),
        ("a.git/info/refs?service=git-upload-archive", 403),
        ("a.git/info/refs", 403),
        ("a.git/HEAD", 403),
        ("a.git/git-upload-pack", 405),
        ("a.git/git-receive-pack", 405),
        ("a.git/nothing", 404),
        ("a.git", 200),
        ("a.git/info/lfs/locks", 501),
    ] {
        assert_eq!(get(path).status, status, "{path}");
    }
    assert!(get("a.git/git-upload-pack").head.contains("\r\nAllow: POST\r\n"));
    assert!(get("a.git/info/lfs/locks").head.contains("application/vnd.git-lfs+json"));
    let wrong = post("Content-Length: 4\r\n", b"0000");
    let wrong = String::from_utf8(wrong).unwrap().replace("x-git-upload-pack-request", "x-other");
    assert_eq!(Answer::parse(&server.raw(wrong.as_bytes())).status, 415);
    for request in [
        "POST /a.git/info/refs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "DELETE /a.git/HEAD HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ] {
        let answer = Answer::parse(&server.raw(request.as_bytes()));
        assert_eq!((answer.status, answer.head.contains("Allow: GET, HEAD")), (405, true), "{request}");
    }
    let old = server.raw(b"GET /a.git/git-upload-pack HTTP/1.0\r\n\r\n");
    assert!(old.starts_with(b"HTTP/1.0 400"));
}

#[test]
fn cache_fields_stand_before_the_type_in_stock_order() {
    let (_folder, server) = small();
    let names = |answer: &Answer| {
        let lines = answer.head.lines().skip(1).map(|line| line.split(':').next().unwrap().to_owned());
        lines.take(4).collect::<Vec<_>>()
    };
    let expected = ["Expires", "Pragma", "Cache-Control", "Content-Type"];
    let refs = server.get("a.git/info/refs?service=git-upload-pack", "");
    assert_eq!(names(&refs), expected);
    assert!(refs.head.contains("Content-Type: application/x-git-upload-pack-advertisement\r\n"));
    let list = server.post("a.git", 2, &pkt(LIST));
    assert_eq!(names(&list), expected);
    assert!(list.head.contains("Content-Type: application/x-git-upload-pack-result\r\n"));
    assert_eq!(lines(&list.body).len(), 3);
}

#[test]
fn the_highest_version_of_a_list_is_spoken() {
    let (_folder, server) = small();
    let advertised = |field: &str| server.get("a/info/refs?service=git-upload-pack&x=y", field).text();
    assert!(advertised("Git-Protocol: version=1:version=2\r\n").starts_with("000eversion 2\n"));
    assert!(advertised("").starts_with("001e# service=git-upload-pack\n0000"));
    assert!(advertised("Git-Protocol: version=9\r\n").starts_with("001e# service=git-upload-pack\n0000"));
}

#[test]
fn head_is_get_without_its_body() {
    let (_folder, server) = small();
    let get = server.raw(b"GET /a/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let head =
        server.raw(b"HEAD /a/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(head.ends_with(b"\r\n\r\n") && get.starts_with(&head) && get.len() > head.len());
    let none = server.raw(b"HEAD /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(none.starts_with(b"HTTP/1.1 404") && none.ends_with(b"\r\n\r\n"));
}

#[test]
fn bodies_may_be_zipped_and_chunked_and_split_anywhere() {
    let (_folder, server) = small();
    let body = pkt(LIST);
    let plain = server.post("a.git", 2, &body).body;
    let mut zipped = flate2::GzBuilder::new().write(Vec::new(), flate2::Compression::default());
    zipped.write_all(&body).unwrap();
    let zipped = zipped.finish().unwrap();
    let chunked = |bytes: &[u8]| {
        let chunks =
            bytes.chunks(7).flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        [chunks.collect::<Vec<_>>().as_slice(), b"0\r\n\r\n"].concat()
    };
    let requests = [
        post(
            &format!("Git-Protocol: version=2\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n", zipped.len()),
            &zipped,
        ),
        post(
            "Git-Protocol: version=2\r\nContent-Encoding: x-gzip\r\nTransfer-Encoding: chunked\r\n",
            &chunked(&zipped),
        ),
        post("Git-Protocol: version=2\r\nTransfer-Encoding: chunked\r\n", &chunked(&body)),
    ];
    for request in &requests {
        assert_eq!(Answer::parse(&server.raw(request)).body, plain);
    }
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    for byte in &requests[1] {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(Answer::parse(&answer).body, plain);
}

#[test]
fn a_client_that_waits_with_its_body_is_told_to_go_on() {
    let (_folder, server) = small();
    let body = pkt(LIST);
    let mut stream = server.connect();
    let fields = format!("Git-Protocol: version=2\r\nExpect: 100-continue\r\nContent-Length: {}\r\n", body.len());
    stream.write_all(&post(&fields, b"")).unwrap();
    let mut word = [0; 25];
    stream.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(Answer::parse(&answer).status, 200);
}

#[test]
fn one_connection_answers_many_requests_in_turn() {
    let (_folder, server) = small();
    let body = pkt(LIST);
    let one = format!("{POST}Git-Protocol: version=2\r\nContent-Length: {}\r\n\r\n", body.len());
    let request = [one.as_bytes(), &body].concat();
    let mut stream = server.connect();
    stream.write_all(&request.repeat(20)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let (mut rest, mut count) = (answers.as_slice(), 0);
    while !rest.is_empty() {
        let (answer, more) = Answer::parse_first(rest);
        assert_eq!((answer.status, lines(&answer.body).len()), (200, 3));
        (rest, count) = (more, count + 1);
    }
    assert_eq!(count, 20);
}

#[test]
fn nonsense_gets_a_word_and_never_silence() {
    let (_folder, server) = small();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "400"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505"),
        (b"\x16\x03\x01\x02\x00", "400"),
        (b"GET /\r\n\r\n", "400"),
        (
            b"POST /a/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "400",
        ),
        (b"POST /a/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", "413"),
        (b"POST /a/git-upload-pack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "400"),
    ] {
        let mut stream = server.connect();
        stream.write_all(request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let said = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status} ")) && said.contains("Connection: close"),
            "{request:?}: {said}"
        );
    }
    for body in [&b"zzzz"[..], b"0003", b"0011command=none0000", b"0012command=fetch\n00010009x\n0000"] {
        let text = server.post("a.git", 2, body).text();
        assert!(text.contains("ERR "), "{body:?}: {text}");
    }
}

#[test]
fn answers_of_http_1_0_end_with_the_connection() {
    let (folder, server) = small();
    let body = pkt(LIST);
    let head = POST.replace("HTTP/1.1", "HTTP/1.0");
    let request = format!("{head}Git-Protocol: version=2\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = Answer::parse(&server.raw(&[request.as_bytes(), &body].concat()));
    assert!(answer.head.starts_with("HTTP/1.0 200") && lines(&answer.body).len() == 3);
    let id = git(&folder.path().join("a.git"), &["rev-parse", "main"]);
    let body = pkt(&["command=fetch", "|", &format!("want {}", id.trim()), "done", "."]);
    let request = format!("{head}Git-Protocol: version=2\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = Answer::parse(&server.raw(&[request.as_bytes(), &body].concat()));
    assert!(!answer.head.contains("chunked") && lines(&answer.body).last() == Some(&b".".to_vec()));
}

#[test]
fn dumb_files_are_given_where_the_repository_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    let repository = corpus::make(folder.path(), "a.git", corpus::SMALL);
    let server = Server::start_with(folder.path(), &["--defaults", "git"]);
    assert_eq!(server.get("a.git/HEAD", "").text(), "ref: refs/heads/main\n");
    git(&repository, &["update-server-info"]);
    let on_disk = std::fs::read_to_string(repository.join("info/refs")).unwrap();
    assert_eq!(server.get("a.git/info/refs", "").text(), on_disk);
    let packs = server.get("a.git/objects/info/packs", "").text();
    let name = packs.trim().strip_prefix("P ").unwrap().to_owned();
    let pack = server.get(&format!("a.git/objects/pack/{name}"), "");
    assert_eq!(pack.body, std::fs::read(repository.join("objects/pack").join(&name)).unwrap());
    assert!(pack.head.contains("immutable") && pack.head.contains("Accept-Ranges: bytes"));
    let part = server.get(&format!("a.git/objects/pack/{name}"), "Range: bytes=10-29\r\n");
    assert_eq!((part.status, part.body.as_slice()), (206, &pack.body[10..30]));
    assert!(part.head.contains(&format!("Content-Range: bytes 10-29/{}\r\n", pack.body.len())));
    assert_eq!(server.get(&format!("a.git/objects/pack/{name}"), "Range: bytes=99999999-\r\n").status, 416);
    assert_eq!(server.get("a.git/objects/pack/pack-0000.pack", "").status, 404);
    git(folder.path(), &["-c", "http.emptyAuth=false", "clone", "-q", &server.url("a.git"), "c"]);
}
