//! A signal, or a call, becomes "drain" and then "end at once" in every loop.
//!
//! Ends nothing itself. Invariant: asking is one write to an event counter that is never read, so it stays readable and
//! no loop can miss it, whenever it starts to look.
//! Source: eventfd(2), signal-safety(7), sigaction(2).
//! Read first: `second_request_cuts`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use tokio::io::Interest;

/// Asks all loops of [`super::run()`] to end. Clones ask the same loops.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    drain: OwnedFd,
    cut: OwnedFd,
}

impl Stop {
    /// A stop that nobody has asked for yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (drain, cut) = (rustix::event::eventfd(0, flags)?, rustix::event::eventfd(0, flags)?);
        Ok(Self(Arc::new(Inner { drain, cut })))
    }

    /// The first call makes the loops stop accepting and finish what runs; the second ends at once.
    pub fn request(&self) {
        let fd = if self.is_requested() { &self.0.cut } else { &self.0.drain };
        // The only failure is a full counter, which is as readable as one can be.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }

    /// Whether someone asked.
    pub fn is_requested(&self) -> bool {
        let mut fds = [PollFd::new(&self.0.drain, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Makes SIGTERM and SIGINT ask. The last call in a process wins.
    ///
    /// # Errors
    /// The kernel refuses the handler.
    pub fn on_signals(&self) -> io::Result<()> {
        // The handler may run at any later time, so what it uses must never be freed.
        let forever: &'static Inner = Box::leak(Box::new(Self(Arc::clone(&self.0)))).0.as_ref();
        DRAIN.store(forever.drain.as_raw_fd(), Ordering::SeqCst);
        CUT.store(forever.cut.as_raw_fd(), Ordering::SeqCst);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            install(signal)?;
        }
        Ok(())
    }

    /// Returns once a first request was made.
    pub(super) async fn drain(&self) -> io::Result<()> {
        readable(&self.0.drain).await
    }

    /// Returns once a second request was made.
    pub(super) async fn cut(&self) -> io::Result<()> {
        readable(&self.0.cut).await
    }
}

/// Waits without consuming, so that every loop sees it.
async fn readable(fd: &OwnedFd) -> io::Result<()> {
    let fd = super::epoll::watch(fd.as_fd(), Interest::READABLE)?;
    fd.readable().await?.retain_ready();
    Ok(())
}

static DRAIN: AtomicI32 = AtomicI32::new(-1);
static CUT: AtomicI32 = AtomicI32::new(-1);

#[expect(unsafe_code, reason = "sigaction has no safe form, and the handler may only use write(2)")]
fn install(signal: libc::c_int) -> io::Result<()> {
    extern "C" fn handler(_signal: libc::c_int) {
        // SAFETY: __errno_location is async-signal-safe and returns this thread's own errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the pointer is valid for the life of the thread.
        let before = unsafe { *errno };
        let mut asked = libc::pollfd { fd: DRAIN.load(Ordering::SeqCst), events: libc::POLLIN, revents: 0 };
        // SAFETY: poll(2) is async-signal-safe; one entry on this stack is passed, and 0 does not wait.
        let fd = if unsafe { libc::poll(&raw mut asked, 1, 0) } > 0 { &CUT } else { &DRAIN };
        let one = 1u64.to_ne_bytes();
        // SAFETY: write(2) is async-signal-safe; the buffer is on this stack; a descriptor of -1 only gives EBADF. The
        // descriptors behind DRAIN and CUT were leaked, so their numbers never come to mean something else.
        unsafe { libc::write(fd.load(Ordering::SeqCst), one.as_ptr().cast(), one.len()) };
        // SAFETY: as for the read above.
        unsafe { *errno = before };
    }
    // SAFETY: sigaction is a C struct for which all zero is a valid value (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is valid for the call and `handler` has the type that a handler without SA_SIGINFO needs.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_set(fd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1))
    }

    #[test]
    fn second_request_cuts() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let stop = Stop::new().expect("a stop");
        assert!(!stop.is_requested());
        runtime.block_on(async {
            assert!(!is_set(&stop.0.drain));
            stop.request();
            stop.drain().await.expect("drained");
            assert!(!is_set(&stop.0.cut));
            stop.request();
            stop.cut().await.expect("cut");
            stop.drain().await.expect("still readable for loops that look late");
        });
        assert!(stop.is_requested());
    }
}
