//! The boiler room: loops, accepted sockets, deadlines, and frames written by io_uring (or, where that is forbidden, epoll).
//!
//! Has never heard of Git or HTTP. Law: memory lent to the kernel is kept by its operation until the last completion; an
//! accept is cancelled, never dropped; a loop gives way through the ring itself. One thread for each loop, none later.
//! Source: io_uring(7), io_uring_enter(2). Read first: `a_frame_larger_than_all_buffers_arrives_whole`.
//!
//! ```no_run
//! use packring::ring::{self, Io, Setup};
//!
//! let listeners = ring::listen(&["127.0.0.1:0".parse().unwrap()], Io::Uring).unwrap();
//! let setup = Setup::new(listeners, 2, Io::Uring);
//! ring::run(&setup, |_loop_number| {
//!     |mut socket: ring::Socket, _peer: std::net::SocketAddr| async move {
//!         let mut bytes = Vec::new();
//!         let until = socket.now() + std::time::Duration::from_secs(5);
//!         socket.read(&mut bytes, until, true).await;
//!         socket.send(Box::new(bytes)).await.ok();
//!     }
//! })
//! .unwrap();
//! ```

mod frame;
mod ledger;
mod listen;
mod op;
mod place;
mod probe;
mod socket;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

pub use self::{
    frame::Frame,
    listen::{Listener, listen},
    probe::{IoRefused, Knobs, probe},
    socket::{Gone, Read, Socket},
};
use ledger::Ledger;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// io_uring.
    Uring,
    /// epoll and plain system calls, for where io_uring is forbidden.
    Epoll,
}

/// How loops are run.
#[derive(Debug)]
pub struct Setup {
    /// All loops accept from all of them.
    pub listeners: Vec<Listener>,
    /// How many loops, at least one.
    pub loops: usize,
    /// CPU of each loop; empty when the kernel places them.
    pub cpus: Vec<usize>,
    /// Which way bytes go.
    pub io: Io,
    /// How the rings are made.
    pub knobs: Knobs,
    /// How long connections may go on after the first signal.
    pub drain: Duration,
    /// How long a peer may take no byte of a frame.
    pub write_timeout: Duration,
    /// Connections of all loops together.
    pub connections_max: usize,
}

impl Setup {
    /// The usual way of running `loops` loops.
    pub fn new(listeners: Vec<Listener>, loops: usize, io: Io) -> Self {
        Self {
            listeners,
            loops,
            cpus: Vec::new(),
            io,
            knobs: Knobs::default(),
            drain: Duration::from_secs(30),
            write_timeout: Duration::from_mins(2),
            connections_max: usize::MAX,
        }
    }
}

/// What a loop does with each connection it accepts.
pub trait Handler: 'static {
    /// The work of one connection.
    type Work: Future<Output = ()> + 'static;

    /// Starts it.
    fn accept(&self, socket: Socket, peer: SocketAddr) -> Self::Work;
}

impl<F: Fn(Socket, SocketAddr) -> W + 'static, W: Future<Output = ()> + 'static> Handler for F {
    type Work = W;

    fn accept(&self, socket: Socket, peer: SocketAddr) -> W {
        self(socket, peer)
    }
}

/// Runs all loops until a signal ends them; `make` makes the handler of each loop, on its own thread. The first loop runs
/// on the calling thread.
///
/// # Errors
/// A loop could not be started; or connections were still open when the time to drain was over
/// ([`io::ErrorKind::TimedOut`]).
pub fn run<H: Handler>(setup: &Setup, make: impl Fn(usize) -> H + Sync) -> io::Result<()> {
    let live = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut others = Vec::new();
        for number in 1..setup.loops {
            let (make, live) = (&make, Arc::clone(&live));
            let thread = std::thread::Builder::new().name(format!("loop-{number}"));
            others.push(thread.spawn_scoped(scope, move || run_loop(setup, number, &live, make))?);
        }
        let mut outcome = run_loop(setup, 0, &live, &make);
        for other in others {
            // A panic outside a visit is ours: it must not look like a clean end.
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(ended);
        }
        outcome
    })
}

fn run_loop<H: Handler>(
    setup: &Setup,
    number: usize,
    live: &Arc<AtomicUsize>,
    make: &impl Fn(usize) -> H,
) -> io::Result<()> {
    if let Some(cpu) = setup.cpus.get(number) {
        place::pin(*cpu)?;
    }
    let main = async {
        let handler = Rc::new(make(number));
        Loop { ledger: Rc::new(Ledger::new(setup.io, setup.write_timeout)), live: Arc::clone(live) }
            .live(setup, &handler)
            .await
    };
    match setup.io {
        Io::Uring => {
            let (entries, builder) = setup.knobs.builder();
            // What can be refused was tried by the probe; here it would be a panic.
            Ok(tokio_uring::builder().entries(entries).uring_builder(&builder).start(main))
        }
        Io::Epoll => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(tokio::task::LocalSet::new().block_on(&runtime, main))
        }
    }
    .and_then(|drained: bool| if drained { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) })
}

struct Loop {
    ledger: Rc<Ledger>,
    live: Arc<AtomicUsize>,
}

impl Loop {
    /// Accepts until the first signal, then waits for what runs; false when that took too long.
    async fn live<H: Handler>(&self, setup: &Setup, handler: &Rc<H>) -> bool {
        let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
            tracing::error!("signals cannot be heard; the loop does not start");
            return false;
        };
        let mut accepting = Vec::new();
        for listener in &setup.listeners {
            let Ok(listener) = listener.for_loop(setup.io) else { return false };
            let (ledger, live, handler) = (Rc::clone(&self.ledger), Arc::clone(&self.live), Rc::clone(handler));
            let connections_max = setup.connections_max;
            accepting.push(tokio::task::spawn_local(async move {
                accept_all(listener, ledger, live, handler, connections_max).await;
            }));
        }
        let ledger = Rc::clone(&self.ledger);
        let ticker = tokio::task::spawn_local(async move { ledger.tick_for_ever().await });
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        tracing::info!("stopping: no new connections, running ones may finish");
        self.ledger.stop();
        let drained = async {
            for task in accepting {
                let _ = task.await;
            }
            while self.ledger.connections() > 0 {
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        };
        let drained = tokio::select! {
            () = drained => true,
            () = tokio::time::sleep(setup.drain) => false,
            _ = term.recv() => false,
            _ = int.recv() => false,
        };
        ticker.abort();
        drained
    }
}

use tokio::signal::unix::{SignalKind, signal};

async fn accept_all<H: Handler>(
    listener: listen::LoopListener,
    ledger: Rc<Ledger>,
    live: Arc<AtomicUsize>,
    handler: Rc<H>,
    connections_max: usize,
) {
    while !ledger.is_stopping() {
        if live.load(Ordering::Relaxed) >= connections_max {
            tokio::time::sleep(FULL_PAUSE).await;
            continue;
        }
        match listener.accept(&ledger).await {
            Ok(Some((fd, peer))) => {
                let Ok(socket) = Socket::new(fd, &ledger) else { continue };
                let guard = Live::count(Arc::clone(&live));
                let work = handler.accept(socket, peer);
                tokio::task::spawn_local(async move {
                    let _guard = guard;
                    survive(work).await;
                });
            }
            Ok(None) => return,
            Err(error) => {
                // Descriptors or memory ran out: others may give some back. The queue of the listener keeps who waits.
                tracing::warn!("accepting pauses: {error}; raise RLIMIT_NOFILE if this lasts");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

/// One connection among those of all loops.
struct Live(Arc<AtomicUsize>);

impl Live {
    fn count(live: Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::Relaxed);
        Self(live)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs one connection's work; a panic in it ends only that connection.
async fn survive(work: impl Future<Output = ()>) {
    let mut work = Box::pin(work);
    let caught = std::future::poll_fn(|context| {
        let step = std::panic::catch_unwind(AssertUnwindSafe(|| Pin::new(&mut work).poll(context)));
        match step {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(true),
            Err(_) => Poll::Ready(false),
        }
    });
    if !caught.await {
        tracing::error!("a connection met a defect of packring and was closed; please report the panic above");
    }
}

/// Gives the loop back once, through the ring: completions of others are seen before this returns.
pub async fn give_way(io: Io) {
    match io {
        Io::Uring => {
            let _ = tokio_uring::no_op().await;
        }
        Io::Epoll => tokio::task::yield_now().await,
    }
}

/// How often a draining loop looks whether it is empty.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How long accepting pauses when there are as many connections as may be.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// How long accepting pauses when descriptors or memory ran out.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
