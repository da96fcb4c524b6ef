//! An upgrade: the sockets stay with whoever started us, one server ends and the next one begins, and no client notices.

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use support::{Answer, git, ids_of_pack, noisy_mirror, pack_of, pkt, post, reachable};

/// Holds a listening socket and starts servers that get it as descriptor 3, as systemd would.
const HOLDER: &str = r#"
import os, signal, socket, subprocess, sys
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(128)
os.dup2(listener.fileno(), 3)
print(listener.getsockname()[1], flush=True)
started = []
for line in sys.stdin:
    word, _, which = line.strip().partition(" ")
    if word == "start":
        script = 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"'
        child = subprocess.Popen(["sh", "-c", script] + sys.argv[1:], pass_fds=(3,), stdout=subprocess.PIPE)
        child.stdout.readline()
        started.append(child)
        print("started", flush=True)
    elif word == "term":
        started[int(which)].send_signal(signal.SIGTERM)
        print("told", flush=True)
    elif word == "wait":
        print(started[int(which)].wait(), flush=True)
for child in started:
    child.kill()
"#;

struct Holder {
    child: Child,
    port: u16,
    orders: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Holder {
    fn new(folder: &Path, arguments: &[&str]) -> Self {
        let script = folder.join("holder.py");
        fs::write(&script, HOLDER).unwrap();
        let mut command = Command::new("python3");
        command.arg(script).arg(env!("CARGO_BIN_EXE_packring")).arg("serve").args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, lines) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut holder = Self { child, port: 0, orders, lines };
        holder.port = holder.line().parse().unwrap();
        holder
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn order(&mut self, word: &str) -> String {
        writeln!(self.orders.as_mut().unwrap(), "{word}").unwrap();
        self.line()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The end of its orders is its order to end what still runs.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own; what went wrong, if anything did.
fn ask(port: u16) -> Result<(), String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let request = b"GET /app/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).map_err(|error| format!("write: {error}"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|error| format!("read: {error}"))?;
    if answer.starts_with(b"HTTP/1.1 200 ") { Ok(()) } else { Err(format!("{} bytes", answer.len())) }
}

#[test]
fn no_connection_is_lost_while_one_server_follows_another() {
    if Command::new("python3").arg("-V").output().is_err() {
        println!("NOTICE: python3 is not installed; this test is skipped");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let path = noisy_mirror(root, 24_000_000);
    let served = root.join("served");
    let mut holder =
        Holder::new(root, &[served.to_str().unwrap(), "--loops", "2", "--pin", "never", "--drain", "120s", "-q"]);
    assert_eq!(holder.order("start"), "started");
    let port = holder.port;

    let tip = git(&path, &["rev-parse", "HEAD"]);
    let want = format!("want {}", tip.trim());
    let body = pkt(&["command=fetch", "object-format=sha1", "|", "no-progress", "done", &want, "."]);
    let mut flight = TcpStream::connect(("127.0.0.1", port)).unwrap();
    flight.write_all(&post("app", "Git-Protocol: version=2\r\n", &body)).unwrap();
    let mut answer = vec![0; 4096];
    flight.read_exact(&mut answer).unwrap();

    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        ask(port)?;
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        let wait_for_more = || {
            let until = asked.load(Ordering::Relaxed) + 50;
            while asked.load(Ordering::Relaxed) < until
                && !clients.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        wait_for_more();
        let mut said = Vec::new();
        // The first server is told to end while a clone hangs on it; four more follow it and each other meanwhile.
        for follower in 1..=4 {
            said.push(holder.order("start"));
            said.push(holder.order(&format!("term {}", follower - 1)));
            wait_for_more();
            if follower > 1 {
                said.push(holder.order(&format!("wait {}", follower - 1)));
            }
            wait_for_more();
        }
        over.store(true, Ordering::Relaxed);
        // Judged only now: a thread that nobody tells to end would hold a failing test for ever.
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok(()));
        }
        assert_eq!(said, ["started", "told", "started", "told", "0", "started", "told", "0", "started", "told", "0"]);
    });
    flight.read_to_end(&mut answer).unwrap();
    let (pack, fatal) = pack_of(&Answer::parse(&answer).body);
    assert!(fatal.is_empty(), "{fatal}");
    assert_eq!(ids_of_pack(&path, &pack), reachable(&path, &["--all"]));
    assert_eq!(holder.order("wait 0"), "0");
    assert!(asked.load(Ordering::Relaxed) > 300);
}

#[test]
fn a_socket_for_tls_needs_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import os, socket, sys
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(1)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="tls")
os.execv(sys.argv[1], sys.argv[1:])
"#;
    let mut command = Command::new("python3");
    command.args(["-c", script, env!("CARGO_BIN_EXE_packring"), "serve"]).arg(folder.path());
    let Ok(output) = command.output() else {
        println!("NOTICE: python3 is not installed; this test is skipped");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("--tls-cert"), "{text}");
}
