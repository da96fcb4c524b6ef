//! What a served clone costs in calls, counted by strace: no thread is started, and futexes do not grow with objects.

mod support;

use std::{path::Path, process::Command};

use support::{Server, corpus, git};

/// Calls of one kind in a trace.
fn count(trace: &str, call: &str) -> usize {
    trace.lines().filter(|line| line.contains(&format!("{call}(")) && !line.contains("resumed")).count()
}

/// Traces the server while `work` runs.
fn traced(server: &Server, folder: &Path, work: impl FnOnce()) -> Option<String> {
    let file = folder.join("trace");
    let mut tracer = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=clone,clone3,futex,sendmsg,write,writev", "-o"])
        .arg(&file)
        .args(["-p", &server.id().to_string()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .inspect_err(|_| eprintln!("SKIPPED: strace is not installed; nothing was counted"))
        .ok()?;
    // Attached when it shows in the status of the traced process.
    let status = format!("/proc/{}/status", server.id());
    let is_traced =
        || std::fs::read_to_string(&status).unwrap_or_default().contains(&format!("TracerPid:\t{}\n", tracer.id()));
    for _ in 0..1000 {
        if is_traced() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    if !is_traced() {
        eprintln!("SKIPPED: strace may not attach here; nothing was counted");
        let _ = tracer.kill();
        let _ = tracer.wait();
        return None;
    }
    work();
    let stopped = Command::new("kill").args(["-s", "INT", &tracer.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    tracer.wait().unwrap();
    Some(std::fs::read_to_string(&file).unwrap())
}

#[test]
fn a_clone_starts_no_thread_and_its_futexes_do_not_grow_with_objects() {
    let folder = tempfile::tempdir().unwrap();
    corpus::make(folder.path(), "small.git", corpus::SMALL);
    corpus::make(folder.path(), "medium.git", corpus::MEDIUM);
    let server = Server::start_with(folder.path(), &["--io", "uring"]);
    let mut futexes = Vec::new();
    for name in ["small", "medium"] {
        let clone =
            || drop(git(folder.path(), &["clone", "-q", "--mirror", &server.url(name), &format!("{name}-clone")]));
        let Some(trace) = traced(&server, folder.path(), clone) else { return };
        assert_eq!((count(&trace, "clone3"), count(&trace, "clone")), (0, 0), "{name} started a thread");
        assert_eq!(count(&trace, "sendmsg") + count(&trace, "writev"), 0, "{name}: frames go through the ring");
        futexes.push(count(&trace, "futex"));
    }
    assert!(futexes.iter().all(|count| *count <= 4), "futexes of a small and a medium clone: {futexes:?}");
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().count();
    assert_eq!(threads, 2, "one for each loop, those of the kernel counted");
}

#[test]
fn slow_clients_cost_no_buffer_each() {
    let folder = tempfile::tempdir().unwrap();
    let repository = corpus::make(folder.path(), "a.git", corpus::MEDIUM);
    let server = Server::start(folder.path());
    let tip = git(&repository, &["rev-parse", "main"]);
    let body = support::pkt(&["command=fetch", "|", "ofs-delta", &format!("want {}", tip.trim()), "done", "."]);
    let head = format!(
        "POST /a/git-upload-pack HTTP/1.1\r\nHost: x\r\nGit-Protocol: version=2\r\n\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), &body].concat();
    let anonymous = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .to_owned();
        line.parse::<usize>().unwrap() * 1024
    };
    let slow = |count: usize| {
        let streams: Vec<_> = (0..count)
            .map(|_| {
                let mut stream = server.connect();
                std::io::Write::write_all(&mut stream, &request).unwrap();
                // The first bytes are here: the answer is on its way, and stuck behind a reader that reads no more.
                let mut first = [0; 1000];
                std::io::Read::read_exact(&mut stream, &mut first).unwrap();
                stream
            })
            .collect();
        (streams, anonymous())
    };
    let (_few, before) = slow(20);
    let (_many, after) = slow(200);
    let each = after.saturating_sub(before) / 200;
    assert!(each <= 64 * 1024, "{each} bytes for each slow client");
}
