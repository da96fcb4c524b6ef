//! What one loop knows of its visits: who is here, who idles, whether it drains.
//!
//! Never shared between loops. Invariants: a seat is in the list exactly as long as its socket lives; once draining, no
//! idle visit waits for bytes any more.
//! Source: shutdown(2); tcp(7).
//! Read first: `tests::idle_visits_end_when_draining_starts`.

use std::{
    cell::{Cell, RefCell},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    rc::Rc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;
use rustix::net::Shutdown;
use tokio::sync::Notify;

use super::Backend;

thread_local! {
    static BACKEND: Cell<Option<Backend>> = const { Cell::new(None) };
}

/// What runs the loop of the calling thread, if one does.
pub(super) fn backend_here() -> Option<Backend> {
    BACKEND.get()
}

/// For this long after a stop, connections that the kernel has completed are still accepted.
const BACKLOG_TIME: Duration = Duration::from_millis(100);

/// One loop.
pub(super) struct State {
    pub(super) number: usize,
    /// A peer that takes no byte for this long is given up.
    pub(super) write_timeout: Duration,
    /// Visits at once.
    pub(super) visits_max: usize,
    pub(super) visits: Cell<u64>,
    pub(super) panics: Cell<u64>,
    pub(super) cut: Cell<u64>,
    live: Cell<usize>,
    draining: Cell<Option<Instant>>,
    /// A visit ended, or draining began.
    changed: Notify,
    seats: RefCell<FxHashMap<RawFd, Rc<Seat>>>,
}

/// One socket of this loop.
pub(super) struct Seat {
    pub(super) fd: Rc<OwnedFd>,
    /// Waits for a next request, of which nothing has arrived.
    pub(super) idle: Cell<bool>,
}

impl State {
    pub(super) fn new(number: usize, backend: Backend, write_timeout: Duration, visits_max: usize) -> Self {
        BACKEND.set(Some(backend));
        Self {
            number,
            write_timeout,
            visits_max,
            visits: Cell::new(0),
            panics: Cell::new(0),
            cut: Cell::new(0),
            live: Cell::new(0),
            draining: Cell::new(None),
            changed: Notify::new(),
            seats: RefCell::default(),
        }
    }

    pub(super) fn sit(&self, fd: Rc<OwnedFd>) -> Rc<Seat> {
        let number = fd.as_raw_fd();
        let seat = Rc::new(Seat { fd, idle: Cell::new(false) });
        let before = self.seats.borrow_mut().insert(number, Rc::clone(&seat));
        assert!(before.is_none(), "an open descriptor belongs to one socket");
        seat
    }

    pub(super) fn leave(&self, seat: &Seat) {
        self.seats.borrow_mut().remove(&seat.fd.as_raw_fd());
    }

    /// Counts a visit until the returned guard is dropped.
    pub(super) fn enter(self: &Rc<Self>) -> Present {
        self.visits.set(self.visits.get() + 1);
        self.live.set(self.live.get() + 1);
        Present(Rc::clone(self))
    }

    pub(super) fn live(&self) -> usize {
        self.live.get()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// Whether doors close even though more connections wait: newcomers must not keep them open for ever.
    pub(super) fn is_shut(&self) -> bool {
        self.draining.get().is_some_and(|since| since.elapsed() > BACKLOG_TIME)
    }

    /// Ends the waiting of idle visits: they read what has already arrived, then the end.
    pub(super) fn begin_draining(&self) {
        self.draining.set(Some(Instant::now()));
        for seat in self.seats.borrow().values().filter(|seat| seat.idle.get()) {
            let _ = rustix::net::shutdown(&seat.fd, Shutdown::Read);
        }
        self.changed.notify_waiters();
    }

    /// Breaks every connection, so that each operation in flight completes and each visit ends.
    pub(super) fn cut_all(&self) {
        self.cut.set(self.cut.get() + self.live.get() as u64);
        for seat in self.seats.borrow().values() {
            abort(&seat.fd);
        }
    }

    /// Returns once draining has begun.
    pub(super) async fn drained(&self) {
        self.until(|| self.is_draining()).await;
    }

    /// Returns once one more visit may come, or draining has begun.
    pub(super) async fn room(&self) {
        self.until(|| self.live() < self.visits_max || self.is_draining()).await;
    }

    /// Returns once no visit is left.
    pub(super) async fn emptied(&self) {
        self.until(|| self.live() == 0).await;
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_so() {
                return;
            }
            changed.await;
        }
    }
}

/// A visit that is under way.
pub(super) struct Present(Rc<State>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.live.set(self.0.live.get() - 1);
        self.0.changed.notify_waiters();
    }
}

/// Ends a connection the hard way: what waits in the kernel is thrown away, what waits for it completes.
pub(super) fn abort(fd: &OwnedFd) {
    let _ = socket2::SockRef::from(fd).set_linger(Some(Duration::ZERO));
    let _ = rustix::net::shutdown(fd, Shutdown::Both);
}
