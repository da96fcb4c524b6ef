//! Readiness becomes calls: the back end that runs where `io_uring` is forbidden.
//!
//! The same visits, frames and deadlines as [`super::uring`]; one sendmsg(2) for each part of a frame that fits the socket.
//! Invariant: descriptors here are non-blocking, so no call waits.
//! Source: epoll(7), recv(2), sendmsg(2), accept4(2).
//! Read first: `tests::frame_larger_than_the_socket_buffers_arrives_whole`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use rustix::{io::Errno, net::RecvFlags};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    Arrival, Frame, Listener,
    frame::Lent,
    stall::{Stall, progress},
    state::{State, abort},
    uring::READ_ROOM,
};

/// Registers a descriptor with the loop of the calling thread.
#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor that AsFd makes for us")]
pub(super) fn watch<T: AsFd + AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: an implementor of AsFd lends a descriptor that is open as long as it lives, and the AsyncFd owns it. The
    // three there are (an `Rc<OwnedFd>`, an `Arc<Listener>`, a `BorrowedFd`) never change which one it is.
    Ok(unsafe { AsyncFd::register_with_interest(owner, interest) }?)
}

/// One connection.
pub(super) struct Stream {
    fd: AsyncFd<Rc<OwnedFd>>,
}

impl Stream {
    pub(super) fn new(fd: Rc<OwnedFd>) -> io::Result<Self> {
        Ok(Self { fd: watch(fd, Interest::READABLE | Interest::WRITABLE)? })
    }

    pub(super) async fn arrive(&mut self, out: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Arrival> {
        loop {
            let ready = match deadline {
                None => self.fd.readable().await,
                Some(at) => match tokio::time::timeout_at(at.into(), self.fd.readable()).await {
                    Ok(ready) => ready,
                    Err(_) => return Ok(Arrival::Deadline),
                },
            };
            let mut ready = ready?;
            out.reserve(READ_ROOM);
            let room = rustix::buffer::spare_capacity(out);
            match rustix::net::recv(self.fd.get_ref(), room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(Arrival::End),
                Ok((count, _)) => return Ok(Arrival::Bytes(count)),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) async fn send<F: Frame>(&mut self, lent: Lent<F>, stall: &mut Stall) -> (io::Result<usize>, Lent<F>) {
        loop {
            let Ok(ready) = tokio::time::timeout(stall.tick(), self.fd.writable()).await else {
                if stall.is_stalled(progress(self.fd.get_ref()), Instant::now()) {
                    abort(self.fd.get_ref());
                    return (Err(io::ErrorKind::TimedOut.into()), lent);
                }
                continue;
            };
            let mut ready = match ready {
                Ok(ready) => ready,
                Err(error) => return (Err(error), lent),
            };
            match send_some(self.fd.get_ref(), &lent) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                written => return (written, lent),
            }
        }
    }
}

#[expect(unsafe_code, reason = "the message is the one the ring would be given")]
fn send_some<F: Frame>(fd: &OwnedFd, lent: &Lent<F>) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` is valid as long as `lent`, which is borrowed for the call; sendmsg only reads through it.
    let written = unsafe { libc::sendmsg(fd.as_raw_fd(), lent.message(), flags) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// One listener as one loop sees it.
pub(super) struct Acceptor(AsyncFd<Arc<Listener>>);

impl Acceptor {
    pub(super) fn new(listener: Arc<Listener>) -> io::Result<Self> {
        Ok(Self(watch(listener, Interest::READABLE)?))
    }

    /// The next connection; `None` once draining has begun and no more wait.
    pub(super) async fn accept(&self, state: &State) -> io::Result<Option<OwnedFd>> {
        loop {
            if state.is_shut() {
                return Ok(None);
            }
            let mut ready = tokio::select! {
                biased;
                () = state.drained() => return accept_now(self.0.get_ref()),
                ready = self.0.readable() => ready?,
            };
            match accept_now(self.0.get_ref()) {
                Ok(None) => ready.clear_ready(),
                found => return found,
            }
        }
    }
}

#[expect(unsafe_code, reason = "accept4 through rustix would name the peer's address type; the peer is asked later")]
fn accept_now(listener: &Listener) -> io::Result<Option<OwnedFd>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (no_address, no_size) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: accept4 allows both pointers to be null: no address is written.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), no_address, no_size, flags) };
    if fd >= 0 {
        // SAFETY: accept4 returned this descriptor just now, so it is open and nobody else has it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        error => Err(error),
    }
}
