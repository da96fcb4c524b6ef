//! The ledger of one loop: what each of its connections waits for, and until when.
//!
//! Reads and writes no byte. Deadlines cost nothing while they are kept: one tick looks at all connections, and whose time
//! is over is shut down, so that its pending operation completes (a pending operation is never dropped).
//! Source: shutdown(2); tcp(7), `TCP_INFO`. Read first: `a_silent_peer_is_told_when_its_time_is_over`.

use std::{
    cell::{Cell, RefCell},
    net::Shutdown,
    os::fd::{BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use super::Io;

/// All connections of one loop.
pub struct Ledger {
    io: Io,
    write_timeout: Duration,
    start: Instant,
    slots: RefCell<Vec<Option<Slot>>>,
    free: RefCell<Vec<usize>>,
    connections: Cell<usize>,
    stopping: Cell<bool>,
    stop: tokio::sync::Notify,
    /// Buffers that are lent for one read at a time.
    buffers: RefCell<Vec<Vec<u8>>>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    fd: RawFd,
    waits: Waits,
    expired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// For the loop.
    Not,
    /// For bytes.
    Read { until: Duration, idle: bool },
    /// For its frame to be written: bytes the peer had confirmed at a time.
    Write { confirmed: u64, since: Duration },
}

impl Ledger {
    pub fn new(io: Io, write_timeout: Duration) -> Self {
        Self {
            io,
            write_timeout,
            start: Instant::now(),
            slots: RefCell::default(),
            free: RefCell::default(),
            connections: Cell::new(0),
            stopping: Cell::new(false),
            stop: tokio::sync::Notify::new(),
            buffers: RefCell::default(),
        }
    }

    pub fn io(&self) -> Io {
        self.io
    }

    /// Time since the loop started.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Ends when the loop stops.
    pub async fn stopped(&self) {
        while !self.is_stopping() {
            self.stop.notified().await;
        }
    }

    /// No more connections; those between two requests end.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.stop.notify_waiters();
        self.tick();
    }

    /// Enters a connection.
    pub fn enter(&self, fd: RawFd) -> usize {
        self.connections.set(self.connections.get() + 1);
        let slot = Some(Slot { fd, waits: Waits::Not, expired: false });
        let mut slots = self.slots.borrow_mut();
        match self.free.borrow_mut().pop() {
            Some(at) => {
                if let Some(place) = slots.get_mut(at) {
                    *place = slot;
                }
                at
            }
            None => {
                slots.push(slot);
                slots.len() - 1
            }
        }
    }

    /// Strikes a connection out, before its descriptor is closed.
    pub fn leave(&self, at: usize) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(at).and_then(Option::take) {
            debug_assert!(slot.fd >= 0);
            self.free.borrow_mut().push(at);
            self.connections.set(self.connections.get() - 1);
        }
    }

    /// The connection waits for bytes. False when it need not: its loop stops and it is idle.
    pub fn begin_read(&self, at: usize, until: Duration, idle: bool) -> bool {
        self.set(at, Waits::Read { until, idle });
        !(idle && self.is_stopping())
    }

    /// The connection waits for its frame to be written.
    pub fn begin_write(&self, at: usize) {
        self.set(at, Waits::Write { confirmed: u64::MAX, since: self.now() });
    }

    /// It waits no more. True when its time was over.
    pub fn end_wait(&self, at: usize) -> bool {
        self.set(at, Waits::Not);
        self.slots
            .borrow_mut()
            .get_mut(at)
            .and_then(Option::as_mut)
            .is_some_and(|slot| std::mem::take(&mut slot.expired))
    }

    fn set(&self, at: usize, waits: Waits) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(at).and_then(Option::as_mut) {
            slot.waits = waits;
        }
    }

    /// Ticks until the loop ends.
    pub async fn tick_for_ever(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            self.tick();
        }
    }

    /// Looks at all connections once.
    fn tick(&self) {
        let now = self.now();
        for slot in self.slots.borrow_mut().iter_mut().flatten() {
            match slot.waits {
                Waits::Read { until, idle } if now >= until || (idle && self.is_stopping()) => {
                    slot.expired = true;
                    slot.waits = Waits::Not;
                    // The answer that says why can still be written.
                    shut(slot.fd, Shutdown::Read);
                }
                Waits::Write { confirmed, since } => {
                    let confirmed_now = confirmed_bytes(slot.fd).unwrap_or(confirmed);
                    if confirmed_now != confirmed {
                        slot.waits = Waits::Write { confirmed: confirmed_now, since: now };
                    } else if now.saturating_sub(since) >= self.write_timeout {
                        slot.expired = true;
                        shut(slot.fd, Shutdown::Both);
                    }
                }
                Waits::Read { .. } | Waits::Not => {}
            }
        }
    }

    /// A buffer for one read.
    pub fn lend_buffer(&self) -> Vec<u8> {
        self.buffers.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_SIZE))
    }

    /// Takes a buffer back.
    pub fn take_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < BUFFERS_KEPT {
            buffers.push(buffer);
        }
    }
}

#[expect(unsafe_code, reason = "the ledger holds descriptors as numbers")]
fn shut(fd: RawFd, how: Shutdown) {
    // SAFETY: a connection leaves the ledger before its descriptor is closed, so the number in a slot is always that of the
    // open socket that entered; it is borrowed for this call only.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // A peer that left already cannot be shut down; then the pending operation has completed by itself.
    let _ = socket2::SockRef::from(&fd).shutdown(how);
}

/// Bytes the peer has confirmed in all.
#[expect(unsafe_code, reason = "no wrapper reads tcpi_bytes_acked")]
fn confirmed_bytes(fd: RawFd) -> Option<u64> {
    let mut info = [0u64; 32];
    let mut size = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the descriptor is open (see `shut`); the kernel writes at most `size` bytes to `info`, which is that large and
    // of a type for which every bit pattern is a value.
    let outcome =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut size) };
    (outcome == 0 && size as usize >= (CONFIRMED_AT + 1) * 8).then(|| info[CONFIRMED_AT])
}

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(500);
/// Bytes of one read.
const BUFFER_SIZE: usize = 32 * 1024;
/// Buffers a loop keeps for later reads.
const BUFFERS_KEPT: usize = 16;
/// Where `tcpi_bytes_acked` stands in `struct tcp_info` (linux/tcp.h), counted in 8 bytes.
const CONFIRMED_AT: usize = 15;
