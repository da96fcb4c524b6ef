//! An accepted connection: bytes arrive, frames leave whole.
//!
//! Knows nothing of what the bytes mean. Invariants: while it waits for bytes it holds no buffer; a frame is sent whole
//! or the connection is over; at most one read and one write are in flight, and neither outlives its memory.
//! Source: recv(2), sendmsg(2), shutdown(2).
//! Read first: `tests::deadline_on_read_leaves_the_writing_side_open`.

use std::{
    fmt, io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::net::Shutdown;

use super::{
    epoll,
    frame::{Frame, Lent},
    stall::Stall,
    state::{Seat, State},
    uring,
};

/// How waiting for bytes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// So many bytes were appended; never 0.
    Bytes(usize),
    /// The peer will send no more, or the loop drains and the visit was idle.
    End,
    /// The deadline passed; nothing more will be read on this connection, but writing goes on.
    Deadline,
}

/// Why a frame was not written whole.
#[derive(Debug, thiserror::Error)]
#[error("{error} after {written} bytes")]
pub struct Broken {
    /// What the kernel said.
    pub error: io::Error,
    /// Bytes of the frame it took.
    pub written: usize,
}

impl Broken {
    /// Whether memory of the frame could not be read (`EFAULT`): a mapped file was cut short. The connection goes on.
    pub fn is_torn(&self) -> bool {
        self.error.raw_os_error() == Some(libc::EFAULT)
    }
}

/// One connection on the loop that accepted it. Dropping it closes it.
///
/// A future of [`Self::read`], [`Self::idle`] or [`Self::send`] has to be awaited to its end. One that is dropped before
/// costs the connection, and at worst one of the loop's read buffers (never a descriptor, never memory that is in use):
/// deadlines are arguments for that reason.
pub struct Socket {
    seat: Rc<Seat>,
    state: Rc<State>,
    io: Io,
    door: usize,
}

enum Io {
    Uring(uring::Stream),
    Epoll(epoll::Stream),
}

impl Socket {
    pub(super) fn uring(fd: OwnedFd, pool: Rc<uring::Pool>, state: Rc<State>, door: usize) -> Self {
        let fd = Rc::new(fd);
        let io = Io::Uring(uring::Stream::new(Rc::clone(&fd), pool));
        Self { seat: state.sit(fd), state, io, door }
    }

    pub(super) fn epoll(fd: OwnedFd, state: Rc<State>, door: usize) -> io::Result<Self> {
        let fd = Rc::new(fd);
        let io = Io::Epoll(epoll::Stream::new(Rc::clone(&fd))?);
        Ok(Self { seat: state.sit(fd), state, io, door })
    }

    /// Which of the listeners it came from, in the order they were given to [`super::run()`].
    pub fn door(&self) -> usize {
        self.door
    }

    /// Waits for bytes and appends them to `out`, whose room is only used once they are there.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn read(&mut self, out: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Arrival> {
        match &mut self.io {
            Io::Uring(stream) => stream.arrive(out, deadline).await,
            Io::Epoll(stream) => stream.arrive(out, deadline).await,
        }
    }

    /// As [`Self::read`], between two requests: draining ends it, after what has already arrived.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn idle(&mut self, out: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Arrival> {
        if self.state.is_draining() {
            let _ = rustix::net::shutdown(&self.seat.fd, Shutdown::Read);
        }
        self.seat.idle.set(true);
        let arrival = self.read(out, deadline).await;
        self.seat.idle.set(false);
        arrival
    }

    /// Sends the whole frame and gives it back. On uring one SQE and one completion, however slow the peer.
    ///
    /// The second part is the frame, to be used again.
    ///
    /// # Errors
    /// [`Broken`]: less than all was written.
    pub async fn send<F: Frame>(&mut self, frame: Box<F>) -> (Result<(), Broken>, Box<F>) {
        let mut lent = Lent::new(frame);
        let size = lent.left();
        let mut stall = Stall::new(self.state.write_timeout, Instant::now());
        while lent.left() > 0 {
            let (written, back) = match &mut self.io {
                Io::Uring(stream) => stream.send(lent, &mut stall).await,
                Io::Epoll(stream) => stream.send(lent, &mut stall).await,
            };
            lent = back;
            let error = match written {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                // Short: a signal, or a page that is not there any more; the latter fails the next time.
                Ok(count) => {
                    lent.advance(count);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            return (Err(Broken { error, written: size - lent.left() }), lent.into_frame());
        }
        (Ok(()), lent.into_frame())
    }

    /// Whether the loop ends: answer this request, then close.
    pub fn is_draining(&self) -> bool {
        self.state.is_draining()
    }

    /// Closes; what was sent still arrives, unless the peer sent bytes that nobody read (see [`Self::linger`]).
    pub fn close(self) {}

    /// Says that no more follows, then reads and forgets what the peer still sends, until it closes, for at most `limit`.
    ///
    /// Without this, closing while request bytes are unread resets the connection, and the answer may never be seen.
    pub async fn linger(mut self, limit: Duration) {
        if rustix::net::shutdown(&self.seat.fd, Shutdown::Write).is_err() {
            return;
        }
        let deadline = Instant::now() + limit;
        let mut bytes = Vec::new();
        while let Ok(Arrival::Bytes(_)) = self.idle(&mut bytes, Some(deadline)).await {
            bytes.clear();
            if Instant::now() >= deadline {
                break;
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.state.leave(&self.seat);
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("fd", &self.seat.fd.as_raw_fd()).finish_non_exhaustive()
    }
}
