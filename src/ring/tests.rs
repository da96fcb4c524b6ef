//! The ring against real sockets, each test with both back ends.

use std::{
    cell::Cell,
    future::Future,
    io::{ErrorKind, IoSlice, Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroUsize,
    rc::Rc,
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::*;

/// Slices of one size, so that a frame of any number of them is easy to check.
struct Parts(Vec<Vec<u8>>);

impl Frame for Parts {
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
        out.extend(self.0.iter().map(|part| IoSlice::new(part)));
    }
    fn size(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

#[expect(clippy::unnecessary_box_returns, reason = "sending takes a box")]
fn frame(bytes: &[u8]) -> Box<Parts> {
    Box::new(Parts(vec![bytes.to_vec()]))
}

/// Bytes in which no two places look alike.
fn pattern(size: usize) -> Vec<u8> {
    (0u64..).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).take(size).collect()
}

struct Server {
    address: SocketAddr,
    stop: Stop,
    thread: JoinHandle<Result<Ended, RunError>>,
}

impl Server {
    fn start<M, V, F>(backend: Backend, adjust: impl FnOnce(&mut Options), make: M) -> Self
    where
        M: Fn(usize) -> V + Sync + Send + 'static,
        V: Fn(Socket, SocketAddr) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &Tuning::default()).expect("a free port");
        let address = listener.address();
        let mut options = Options::new(backend, vec![listener]);
        adjust(&mut options);
        let stop = Stop::new().expect("descriptors");
        let asked = stop.clone();
        let thread = std::thread::spawn(move || run(options, &asked, make));
        Self { address, stop, thread }
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).expect("connected");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        client
    }

    fn end(self) -> Ended {
        self.stop.request();
        self.thread.join().expect("no panic").expect("it ran")
    }
}

fn with_both(test: impl Fn(Backend)) {
    test(Backend::Epoll);
    match choose(Choice::Uring, &Tuning::default()) {
        Ok(_) => test(Backend::Uring),
        Err(refusal) => eprintln!("SKIPPED with io_uring: {refusal}"),
    }
}

/// Answers each byte string with itself.
async fn echo(mut socket: Socket) {
    let mut bytes = Vec::new();
    while let Ok(Arrival::Bytes(_)) = socket.idle(&mut bytes, None).await {
        let (sent, _) = socket.send(frame(&std::mem::take(&mut bytes))).await;
        if sent.is_err() {
            return;
        }
    }
}

fn ask(client: &mut TcpStream, text: &[u8]) -> Vec<u8> {
    client.write_all(text).expect("written");
    let mut answer = vec![0; text.len()];
    client.read_exact(&mut answer).expect("answered");
    answer
}

fn is_at_end(client: &mut TcpStream) -> bool {
    loop {
        match client.read(&mut [0; 1]) {
            Ok(count) => return count == 0,
            // Probing sets up a ring on this thread, and its end is a task that interrupts.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn frame_larger_than_the_socket_buffers_arrives_whole() {
    with_both(|backend| {
        let whole = pattern(48 << 20);
        let parts: Vec<Vec<u8>> = whole.chunks(5 << 20).map(<[u8]>::to_vec).collect();
        let server = Server::start(
            backend,
            |_| {},
            move |_| {
                let parts = parts.clone();
                move |mut socket, _| {
                    let frame = Box::new(Parts(parts.clone()));
                    async move {
                        let (sent, frame) = socket.send(frame).await;
                        assert!(sent.is_ok());
                        assert_eq!(frame.size(), 48 << 20, "the frame comes back");
                        socket.close();
                    }
                }
            },
        );
        let mut got = Vec::new();
        server.connect().read_to_end(&mut got).expect("all of it");
        assert!(got == whole, "{backend}");
        assert_eq!(server.end(), Ended { visits: 1, ..Ended::default() });
    });
}

#[test]
fn frame_of_more_slices_than_one_write_takes_arrives_whole() {
    with_both(|backend| {
        let whole = pattern(3 * 3333);
        let parts: Vec<Vec<u8>> = whole.chunks(3).map(<[u8]>::to_vec).collect();
        let server = Server::start(
            backend,
            |_| {},
            move |_| {
                let parts = parts.clone();
                move |mut socket, _| {
                    let frame = Box::new(Parts(parts.clone()));
                    async move { assert!(socket.send(frame).await.0.is_ok()) }
                }
            },
        );
        let mut got = Vec::new();
        server.connect().read_to_end(&mut got).expect("all of it");
        assert!(got == whole, "{backend}");
        assert_eq!(server.end().panics, 0);
    });
}

#[test]
fn idle_connections_hold_no_buffer() {
    with_both(|backend| {
        // One buffer for sixty visits that wait: if one held it, the others would starve; if all bytes come at once,
        // most find it taken.
        let server = Server::start(
            backend,
            |options| (options.tuning.buffers, options.tuning.buffer_size) = (1, 512),
            |_| |socket, _| echo(socket),
        );
        let mut clients: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
        for client in clients.iter_mut().rev() {
            assert_eq!(ask(client, b"alone"), b"alone");
        }
        for round in 0..3 {
            let text = pattern(300 + round);
            for client in &mut clients {
                client.write_all(&text).expect("written");
            }
            for client in &mut clients {
                let mut answer = vec![0; text.len()];
                client.read_exact(&mut answer).expect("answered");
                assert!(answer == text, "{backend}");
            }
        }
        drop(clients);
        assert_eq!(server.end(), Ended { visits: 60, ..Ended::default() });
    });
}

#[test]
fn bytes_of_many_reads_arrive_in_order() {
    with_both(|backend| {
        let server = Server::start(backend, |_| {}, |_| |socket, _| echo(socket));
        let text = pattern(3 << 20);
        let mut client = server.connect();
        let mut writer = client.try_clone().expect("a second handle");
        let sent = text.clone();
        let writing = std::thread::spawn(move || writer.write_all(&sent));
        let mut got = vec![0; text.len()];
        client.read_exact(&mut got).expect("all of it");
        writing.join().expect("no panic").expect("written");
        assert!(got == text, "{backend}");
        drop(client);
        assert_eq!(server.end().panics, 0);
    });
}

#[test]
fn stop_serves_a_connection_that_was_accepted() {
    with_both(|backend| {
        let (said, heard) = mpsc::channel();
        let server = Server::start(
            backend,
            |_| {},
            move |_| {
                let said = said.clone();
                move |mut socket: Socket, _| {
                    let said = said.clone();
                    async move {
                        let mut bytes = Vec::new();
                        while bytes.len() < 8 {
                            let Ok(Arrival::Bytes(_)) = socket.read(&mut bytes, None).await else { return };
                            let _ = said.send(());
                        }
                        let _ = socket.send(frame(&bytes)).await;
                    }
                }
            },
        );
        let mut client = server.connect();
        client.write_all(b"half").expect("written");
        heard.recv().expect("the visit has the first half");
        server.stop.request();
        // Newcomers are refused while this one is still being served.
        while TcpStream::connect(server.address).is_ok() {
            std::thread::yield_now();
        }
        client.write_all(b"half").expect("written");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("answered");
        assert_eq!(answer, b"halfhalf");
        let ended = server.thread.join().expect("no panic").expect("it ran");
        assert_eq!((ended.cut, ended.panics), (0, 0), "{backend}");
    });
}

#[test]
fn stop_serves_what_waits_in_the_backlog() {
    with_both(|backend| {
        let server =
            Server::start(backend, |options| options.visits_max = NonZeroUsize::MIN, |_| |socket, _| echo(socket));
        let mut inside = server.connect();
        assert_eq!(ask(&mut inside, b"here"), b"here");
        let mut waiting = server.connect();
        waiting.write_all(b"me too").expect("written");
        server.stop.request();
        let mut answer = Vec::new();
        waiting.read_to_end(&mut answer).expect("answered");
        assert_eq!(answer, b"me too");
        assert!(is_at_end(&mut inside), "an idle visit ends");
        let ended = server.thread.join().expect("no panic").expect("it ran");
        assert_eq!(ended, Ended { visits: 2, ..Ended::default() }, "{backend}");
    });
}

#[test]
fn idle_visits_end_when_draining_starts() {
    with_both(|backend| {
        let server = Server::start(backend, |_| {}, |_| |socket, _| echo(socket));
        let mut clients: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
        for client in &mut clients {
            assert_eq!(ask(client, b"hello"), b"hello");
        }
        server.stop.request();
        assert!(clients.iter_mut().all(is_at_end));
        let ended = server.thread.join().expect("no panic").expect("it ran");
        assert_eq!(ended, Ended { visits: 10, ..Ended::default() }, "{backend}");
    });
}

#[test]
fn second_stop_and_the_end_of_draining_cut() {
    with_both(|backend| {
        for requests in [1, 2] {
            let server = Server::start(
                backend,
                |options| options.drain = Duration::from_millis(if requests == 1 { 100 } else { 60_000 }),
                |_| {
                    |mut socket: Socket, _| async move {
                        let _ = socket.send(frame(b"!")).await;
                        let _ = socket.read(&mut Vec::new(), None).await;
                    }
                },
            );
            let mut client = server.connect();
            client.read_exact(&mut [0]).expect("the visit has begun");
            let start = Instant::now();
            for _ in 0..requests {
                server.stop.request();
            }
            assert!(is_at_end(&mut client));
            let ended = server.thread.join().expect("no panic").expect("it ran");
            assert_eq!(ended, Ended { visits: 1, cut: 1, panics: 0 }, "{backend}");
            assert!(start.elapsed() < Duration::from_secs(10));
        }
    });
}

#[test]
fn two_loops_share_one_listener() {
    with_both(|backend| {
        let server = Server::start(
            backend,
            |options| {
                options.loops = NonZeroUsize::new(2).expect("two");
                options.visits_max = options.loops;
            },
            |number| {
                move |mut socket: Socket, _| async move {
                    assert!(socket.send(frame(&[b'0' + u8::try_from(number).expect("small")])).await.0.is_ok());
                    let _ = socket.idle(&mut Vec::new(), None).await;
                }
            },
        );
        // One visit for each loop at a time: the second connection must be the other loop's.
        let mut both = [server.connect(), server.connect()].map(|mut client| {
            let mut number = [0];
            client.read_exact(&mut number).expect("greeted");
            (number, client)
        });
        both.sort_by_key(|(number, _)| *number);
        assert_eq!([both[0].0, both[1].0], [*b"0", *b"1"], "{backend}");
        drop(both);
        assert_eq!(server.end(), Ended { visits: 2, ..Ended::default() });
    });
}

#[test]
fn panic_costs_its_connection_only() {
    with_both(|backend| {
        let server = Server::start(
            backend,
            |_| {},
            |_| {
                |mut socket: Socket, _| async move {
                    let mut bytes = Vec::new();
                    while let Ok(Arrival::Bytes(_)) = socket.idle(&mut bytes, None).await {
                        assert_ne!(bytes, b"bomb", "as the test wants it");
                        let _ = socket.send(frame(&std::mem::take(&mut bytes))).await;
                    }
                }
            },
        );
        let (mut calm, mut other) = (server.connect(), server.connect());
        assert_eq!(ask(&mut calm, b"one"), b"one");
        other.write_all(b"bomb").expect("written");
        assert!(is_at_end(&mut other));
        assert_eq!(ask(&mut calm, b"two"), b"two");
        drop(calm);
        assert_eq!(server.end(), Ended { visits: 2, cut: 0, panics: 1 }, "{backend}");
    });
}

#[test]
fn deadline_on_read_leaves_the_writing_side_open() {
    with_both(|backend| {
        let server = Server::start(
            backend,
            |_| {},
            |_| {
                |mut socket: Socket, _| async move {
                    let mut bytes = Vec::new();
                    let deadline = Some(Instant::now() + Duration::from_millis(50));
                    while let Ok(Arrival::Bytes(_)) = socket.read(&mut bytes, deadline).await {}
                    assert!(matches!(socket.read(&mut bytes, deadline).await, Ok(Arrival::Deadline | Arrival::End)));
                    bytes.extend(b" is late");
                    assert!(socket.send(frame(&bytes)).await.0.is_ok());
                }
            },
        );
        let mut clients: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.write_all(b"half").expect("written");
        }
        for client in &mut clients {
            // The end comes only when the last holder of the descriptor is gone, an operation in flight included.
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).expect("answered and closed");
            assert_eq!(answer, b"half is late");
        }
        assert_eq!(server.end(), Ended { visits: 20, ..Ended::default() }, "{backend}");
    });
}

#[test]
fn abandoned_read_leaks_no_descriptor() {
    with_both(|backend| {
        let server = Server::start(
            backend,
            |_| {},
            |_| {
                |mut socket: Socket, _| async move {
                    let mut bytes = Vec::new();
                    let given_up = tokio::time::timeout(Duration::from_millis(20), socket.read(&mut bytes, None)).await;
                    assert!(given_up.is_err());
                }
            },
        );
        let mut clients: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
        assert!(clients.iter_mut().all(is_at_end));
        assert_eq!(server.end(), Ended { visits: 20, ..Ended::default() }, "{backend}");
    });
}

#[test]
fn peer_that_takes_nothing_is_given_up() {
    with_both(|backend| {
        let (said, heard) = mpsc::channel();
        let server = Server::start(
            backend,
            |options| options.write_timeout = Duration::from_millis(200),
            move |_| {
                let said = said.clone();
                move |mut socket: Socket, _| {
                    let said = said.clone();
                    async move {
                        let (sent, frame) = socket.send(Box::new(Parts(vec![pattern(32 << 20)]))).await;
                        let _ = said.send((sent.map_err(|error| error.error.kind()), frame.size()));
                    }
                }
            },
        );
        let client = server.connect();
        let outcome = heard.recv_timeout(Duration::from_secs(20)).expect("given up");
        assert_eq!(outcome, (Err(ErrorKind::TimedOut), 32 << 20), "{backend}");
        drop(client);
        assert_eq!(server.end().panics, 0);
    });
}

#[test]
fn pause_lets_others_go_on() {
    with_both(|backend| {
        let server = Server::start(
            backend,
            |_| {},
            |_| {
                let go = Rc::new(Cell::new(false));
                move |mut socket: Socket, _| {
                    let go = Rc::clone(&go);
                    async move {
                        let mut bytes = Vec::new();
                        let _ = socket.read(&mut bytes, None).await;
                        match &bytes[..] {
                            b"work" => {
                                while !go.get() {
                                    pause().await;
                                }
                            }
                            _ => go.set(true),
                        }
                        let _ = socket.send(frame(&bytes)).await;
                    }
                }
            },
        );
        let (mut busy, mut other) = (server.connect(), server.connect());
        busy.write_all(b"work").expect("written");
        assert_eq!(ask(&mut other, b"free"), b"free");
        busy.read_exact(&mut [0; 4]).expect("answered after the other");
        assert_eq!(server.end().panics, 0, "{backend}");
    });
}

#[test]
fn answer_is_not_lost_when_the_peer_still_sends() {
    with_both(|backend| {
        let server = Server::start(
            backend,
            |_| {},
            |_| {
                |mut socket: Socket, _| async move {
                    let mut bytes = Vec::new();
                    let _ = socket.read(&mut bytes, None).await;
                    assert!(socket.send(frame(b"no")).await.0.is_ok());
                    socket.linger(Duration::from_secs(5)).await;
                }
            },
        );
        let mut client = server.connect();
        client.write_all(&pattern(1 << 20)).expect("taken to the end");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("no reset");
        assert_eq!(answer, b"no");
        drop(client);
        assert_eq!(server.end().panics, 0, "{backend}");
    });
}
