//! Listeners become visits: one thread and one loop for each CPU we may use, until someone asks to stop.
//!
//! Starts no thread for a request and passes no connection between loops. Invariants: a visit's panic costs its
//! connection, any other aborts; draining finishes what runs, serves what was already accepted, and takes no longer
//! than it was given.
//! Source: `io_uring_setup(2)`, `IORING_SETUP_SINGLE_ISSUER`; accept(2), errors.
//! Read first: `tests::stop_serves_a_connection_that_was_accepted`.

use std::{
    any::Any,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Backend, Listener, Refusal, Socket, Stop, Tuning, epoll, place, probe,
    state::{Present, State},
    uring,
};

/// How [`run`] runs.
#[derive(Debug)]
pub struct Options {
    /// What runs the loops; see [`super::choose`].
    pub backend: Backend,
    /// Rings and sockets.
    pub tuning: Tuning,
    /// Where connections come from; every loop accepts from each.
    pub listeners: Vec<Listener>,
    /// Threads, each with a loop.
    pub loops: NonZeroUsize,
    /// CPUs to pin loops to, in turn; empty pins none.
    pub cpus: Vec<usize>,
    /// Time to finish what runs after a stop.
    pub drain: Duration,
    /// A peer that acknowledges nothing for this long, while we write, is given up.
    pub write_timeout: Duration,
    /// Visits at once in all loops together; more wait in the backlog.
    pub visits_max: NonZeroUsize,
}

impl Options {
    /// One loop, not pinned, 30 seconds to drain.
    pub fn new(backend: Backend, listeners: Vec<Listener>) -> Self {
        Self {
            backend,
            tuning: Tuning::default(),
            listeners,
            loops: NonZeroUsize::MIN,
            cpus: Vec::new(),
            drain: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            visits_max: NonZeroUsize::new(16_384).unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// What happened until all loops had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Connections accepted.
    pub visits: u64,
    /// Of these, broken because draining took too long or a second stop came.
    pub cut: u64,
    /// Of these, ended by a panic.
    pub panics: u64,
}

/// Why [`run`] could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The ring of a loop could not be set up.
    #[error("loop {number}: {refusal}")]
    Ring {
        /// Which loop.
        number: usize,
        /// Why, and what to do.
        refusal: Refusal,
    },
    /// A loop could not start or watch for the stop.
    #[error("loop {number} cannot run")]
    Loop {
        /// Which loop.
        number: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A loop could not be pinned.
    #[error("loop {number} cannot be pinned to CPU {cpu} (--pin never runs without)")]
    Pin {
        /// Which loop.
        number: usize,
        /// Where it should have run.
        cpu: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Serves until `stop` is asked for, with the calling thread as the first loop.
///
/// `make` is called once on each loop's thread with its number, and its result once for each connection. Nothing of a
/// visit has to be `Send`. See the example of [`super`].
///
/// # Errors
/// A loop could not start; the others were stopped.
pub fn run<M, V, F>(options: Options, stop: &Stop, make: M) -> Result<Ended, RunError>
where
    M: Fn(usize) -> V + Sync,
    V: Fn(Socket, SocketAddr) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    for listener in &options.listeners {
        listener.suit(options.backend).map_err(|source| RunError::Loop { number: 0, source })?;
    }
    let plan = Plan {
        backend: options.backend,
        tuning: options.tuning,
        cpus: options.cpus,
        drain: options.drain,
        write_timeout: options.write_timeout,
        visits_max: options.visits_max.get().div_ceil(options.loops.get()),
    };
    let listeners: Vec<_> = options.listeners.into_iter().map(Arc::new).collect();
    let mut shares = vec![listeners; options.loops.get()].into_iter();
    let first = shares.next().unwrap_or_default();
    let (plan, make) = (&plan, &make);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut failed = None;
        for (number, share) in (1..).zip(shares) {
            let builder = std::thread::Builder::new().name(format!("loop-{number}"));
            match builder.spawn_scoped(scope, move || run_loop(number, plan, share, stop, make)) {
                Ok(thread) => threads.push(thread),
                Err(source) => failed = Some(RunError::Loop { number, source }),
            }
        }
        if failed.is_some() {
            end_at_once(stop);
        }
        let mut ended = run_loop(0, plan, first, stop, make);
        for thread in threads {
            // `run_loop` does not unwind.
            let Ok(other) = thread.join() else { std::process::abort() };
            ended = ended.and_then(|sum| Ok(sum.plus(other?)));
        }
        failed.map_or(ended, Err)
    })
}

impl Ended {
    fn plus(self, other: Self) -> Self {
        Self { visits: self.visits + other.visits, cut: self.cut + other.cut, panics: self.panics + other.panics }
    }
}

/// [`Options`], as all loops see them.
struct Plan {
    backend: Backend,
    tuning: Tuning,
    cpus: Vec<usize>,
    drain: Duration,
    write_timeout: Duration,
    /// Of one loop.
    visits_max: usize,
}

/// What one loop holds of the listeners. When the last door of the last loop closes, the socket does, and newcomers are
/// refused instead of being kept waiting while the rest drains. No shutdown(2): it would end another holder's as well.
type Share = Vec<Arc<Listener>>;

fn end_at_once(stop: &Stop) {
    stop.request();
    stop.request();
}

/// One loop, start to end. A panic in here is nobody's connection, and leaves sockets nobody serves.
fn run_loop<M, V, F>(number: usize, plan: &Plan, share: Share, stop: &Stop, make: &M) -> Result<Ended, RunError>
where
    M: Fn(usize) -> V,
    V: Fn(Socket, SocketAddr) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    let outcome = catch_unwind(AssertUnwindSafe(|| start_loop(number, plan, share, stop, make)));
    let Ok(ended) = outcome else {
        tracing::error!(number, "a loop panicked outside of any visit");
        std::process::abort()
    };
    if ended.is_err() {
        end_at_once(stop);
    }
    ended
}

fn start_loop<M, V, F>(number: usize, plan: &Plan, share: Share, stop: &Stop, make: &M) -> Result<Ended, RunError>
where
    M: Fn(usize) -> V,
    V: Fn(Socket, SocketAddr) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    if let Some(cpu) = place::cpu_of(number, &plan.cpus) {
        place::pin(cpu).map_err(|source| RunError::Pin { number, cpu, source })?;
    }
    let state = Rc::new(State::new(number, plan.backend, plan.write_timeout, plan.visits_max));
    // Made inside the loop, so that it may start work of its own there.
    let visit = || Rc::new(make(number));
    let failed = |source| RunError::Loop { number, source };
    match plan.backend {
        Backend::Uring => {
            let mut builder = tokio_uring::builder();
            builder.entries(plan.tuning.entries).uring_builder(&probe::ring_builder(&plan.tuning));
            let runtime = tokio_uring::Runtime::new(&builder)
                .map_err(|error| RunError::Ring { number, refusal: probe::refusal_here(&error) })?;
            runtime.block_on(serve(plan, share, stop, Rc::clone(&state), visit)).map_err(failed)?;
        }
        Backend::Epoll => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, serve(plan, share, stop, Rc::clone(&state), visit)).map_err(failed)?;
        }
    }
    Ok(Ended { visits: state.visits.get(), cut: state.cut.get(), panics: state.panics.get() })
}

/// How long visits that were cut may take to notice.
const CUT_TIME: Duration = Duration::from_secs(1);

async fn serve<V, F>(
    plan: &Plan,
    share: Share,
    stop: &Stop,
    state: Rc<State>,
    visit: impl FnOnce() -> Rc<V>,
) -> io::Result<()>
where
    V: Fn(Socket, SocketAddr) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    let source = match plan.backend {
        Backend::Uring => Source::Uring(uring::Pool::new(&plan.tuning)),
        Backend::Epoll => Source::Epoll,
    };
    let visit = visit();
    let mut doors = Vec::new();
    for (number, listener) in share.into_iter().enumerate() {
        let door = source.door(listener)?;
        doors.push(tokio::task::spawn_local(keep_door(number, door, Rc::clone(&state), Rc::clone(&visit))));
    }
    stop.drain().await?;
    state.begin_draining();
    let finished = async {
        for door in doors {
            // A door that panicked has no more connections to bring.
            let _ = door.await;
        }
        state.emptied().await;
    };
    tokio::select! {
        () = finished => return Ok(()),
        () = tokio::time::sleep(plan.drain) => {}
        cut = stop.cut() => cut?,
    }
    state.cut_all();
    let _ = tokio::time::timeout(CUT_TIME, state.emptied()).await;
    Ok(())
}

/// What the doors of a loop have in common.
enum Source {
    Uring(Rc<uring::Pool>),
    Epoll,
}

/// One listener as one loop sees it.
enum Door {
    Uring(Arc<Listener>, Rc<uring::Pool>),
    Epoll(epoll::Acceptor),
}

impl Source {
    fn door(&self, listener: Arc<Listener>) -> io::Result<Door> {
        Ok(match self {
            Self::Uring(pool) => Door::Uring(listener, Rc::clone(pool)),
            Self::Epoll => Door::Epoll(epoll::Acceptor::new(listener)?),
        })
    }
}

impl Door {
    async fn accept(&self, state: &State) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Uring(listener, _) => uring::accept(listener, state).await,
            Self::Epoll(acceptor) => acceptor.accept(state).await,
        }
    }

    fn socket(&self, fd: OwnedFd, state: &Rc<State>, number: usize) -> io::Result<(Socket, SocketAddr)> {
        let peer = socket2::SockRef::from(&fd).peer_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let socket = match self {
            Self::Uring(_, pool) => Socket::uring(fd, Rc::clone(pool), Rc::clone(state), number),
            Self::Epoll(_) => Socket::epoll(fd, Rc::clone(state), number)?,
        };
        Ok((socket, peer))
    }
}

/// How long accepting rests when there are no descriptors or no memory: at once it would fail again.
const PAUSE: Duration = Duration::from_millis(100);

async fn keep_door<V, F>(number: usize, door: Door, state: Rc<State>, visit: Rc<V>)
where
    V: Fn(Socket, SocketAddr) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    loop {
        state.room().await;
        match door.accept(&state).await {
            Ok(Some(fd)) => {
                // A peer that is gone already is no visit.
                let Ok((socket, peer)) = door.socket(fd, &state, number) else { continue };
                // Counted before the next accept is thought of.
                let present = state.enter();
                tokio::task::spawn_local(attend(present, Rc::clone(&state), Rc::clone(&visit), socket, peer));
            }
            Ok(None) => return,
            Err(error) if is_shortage(&error) => {
                tracing::warn!(number = state.number, %error, "accepting pauses");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) if is_over(&error) => {
                tracing::error!(number = state.number, %error, "a listener ended");
                return;
            }
            // The connection broke before it was accepted (accept(2), "Error handling").
            Err(error) => tracing::debug!(number = state.number, %error, "a connection was lost before it began"),
        }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn is_over(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP))
}

/// One visit, whose panic ends it and nothing else.
async fn attend<V, F>(_present: Present, state: Rc<State>, visit: Rc<V>, socket: Socket, peer: SocketAddr)
where
    V: Fn(Socket, SocketAddr) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    let mut visit = Box::pin(async move { visit(socket, peer).await });
    let panic = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| visit.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(())) => Poll::Ready(None),
        Err(panic) => Poll::Ready(Some(panic)),
    })
    .await;
    let Err(panic) = panic.map_or(Ok(()), Err).and_then(|()| catch_unwind(AssertUnwindSafe(|| drop(visit)))) else {
        return;
    };
    state.panics.set(state.panics.get() + 1);
    tracing::error!(number = state.number, %peer, panic = message(&*panic), "a visit panicked");
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_pauses_a_door_and_a_dead_listener_ends_it() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(is_shortage(&error) && !is_over(&error), "{error}");
        }
        for errno in [libc::EBADF, libc::EINVAL, libc::ENOTSOCK, libc::EOPNOTSUPP] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(!is_shortage(&error) && is_over(&error), "{error}");
        }
        for errno in [libc::ECONNABORTED, libc::EPROTO, libc::EINTR, libc::ENETDOWN] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(!is_shortage(&error) && !is_over(&error), "{error}");
        }
    }

    #[test]
    fn loop_that_cannot_start_ends_the_others() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &Tuning::default()).expect("a free port");
        let mut options = Options::new(Backend::Epoll, vec![listener]);
        options.loops = NonZeroUsize::new(2).expect("two");
        let here = rustix::thread::sched_getaffinity(None).expect("a mask");
        let ours = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| here.is_set(*cpu)).expect("one CPU");
        options.cpus = vec![ours, usize::MAX];
        let stop = Stop::new().expect("descriptors");
        let outcome = std::thread::spawn(move || run(options, &stop, |_| |_, _| async {})).join().expect("no panic");
        assert!(matches!(outcome, Err(RunError::Pin { number: 1, cpu: usize::MAX, .. })), "{outcome:?}");
    }
}
