//! One connection: bytes are read when there are some, frames are written whole.
//!
//! Interprets nothing. Invariants: a connection that waits for its next request lends no memory to the kernel; a frame is
//! kept until the kernel is done with it; a write that ends short is continued where it ended.
//! Source: io_uring_prep_sendmsg(3), `MSG_WAITALL`: one completion for a whole window.
//! Read first: `a_frame_larger_than_all_buffers_arrives_whole`.

use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    rc::Rc,
    time::Duration,
};

use tokio::io::{Interest, unix::AsyncFd};

use super::{Io, frame::Frame, ledger::Ledger, op};

/// One accepted connection.
pub struct Socket {
    fd: Fd,
    place: usize,
    ledger: Rc<Ledger>,
}

enum Fd {
    Uring(OwnedFd),
    Epoll(AsyncFd<OwnedFd>),
}

/// What became of waiting for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Some came, and were appended.
    Bytes,
    /// None will come.
    End,
    /// None came in time.
    Deadline,
}

/// Why a frame was not written whole.
#[derive(Debug)]
pub enum Gone<F> {
    /// The peer left, or took nothing for too long.
    Peer,
    /// Memory of the frame could not be read (`EFAULT`): a mapped file was cut short. So many bytes had been written.
    Torn(usize, Box<F>),
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, ledger: &Rc<Ledger>) -> io::Result<Self> {
        let place = ledger.enter(fd.as_raw_fd());
        let entered = match ledger.io() {
            Io::Uring => Ok(Fd::Uring(fd)),
            Io::Epoll => op::watch(fd).map(Fd::Epoll),
        };
        match entered {
            Ok(fd) => Ok(Self { fd, place, ledger: Rc::clone(ledger) }),
            Err(error) => {
                ledger.leave(place);
                Err(error)
            }
        }
    }

    /// Time since the loop started: what deadlines are measured by.
    pub fn now(&self) -> Duration {
        self.ledger.now()
    }

    /// Which way bytes go.
    pub fn io(&self) -> Io {
        self.ledger.io()
    }

    /// Waits for bytes until `until` and appends them. An `idle` wait ends when the loop stops.
    pub async fn read(&mut self, into: &mut Vec<u8>, until: Duration, idle: bool) -> Read {
        if !self.ledger.begin_read(self.place, until, idle) {
            self.ledger.end_wait(self.place);
            return Read::End;
        }
        let count = match &self.fd {
            Fd::Uring(fd) => read_by_ring(fd.as_raw_fd(), &self.ledger, into).await,
            Fd::Epoll(fd) => read_by_epoll(fd, &self.ledger, into).await,
        };
        let expired = self.ledger.end_wait(self.place);
        match count {
            Ok(count) if count > 0 => Read::Bytes,
            _ if expired => Read::Deadline,
            _ => Read::End,
        }
    }

    /// Writes a whole frame.
    ///
    /// # Errors
    /// Less than all was written.
    pub async fn send<F: Frame>(&mut self, frame: Box<F>) -> Result<(), Gone<F>> {
        self.ledger.begin_write(self.place);
        let outcome = match &self.fd {
            Fd::Uring(fd) => send_by_ring(fd.as_raw_fd(), frame).await,
            Fd::Epoll(fd) => send_by_epoll(fd, frame).await,
        };
        if self.ledger.end_wait(self.place) { Err(Gone::Peer) } else { outcome }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Before the descriptor is closed: its number may be another connection's right after.
        self.ledger.leave(self.place);
    }
}

async fn read_by_ring(fd: RawFd, ledger: &Ledger, into: &mut Vec<u8>) -> io::Result<usize> {
    // First wait without a buffer, then read into one that others use in between.
    op::run(op::readable(fd), ()).await.0?;
    let mut buffer = ledger.lend_buffer();
    let entry = op::receive(fd, &mut buffer);
    let (received, mut buffer) = op::run(entry, buffer).await;
    let count = received.map(|count| usize::try_from(count).unwrap_or(0));
    if let Ok(count) = count {
        fill(&mut buffer, count);
        into.extend_from_slice(&buffer);
    }
    ledger.take_back(buffer);
    count
}

#[expect(unsafe_code, reason = "the kernel has filled memory the compiler believes empty")]
fn fill(buffer: &mut Vec<u8>, count: usize) {
    assert!(count <= buffer.capacity(), "this holds because the kernel was told the room there is");
    // SAFETY: the buffer was empty and the kernel has written `count` bytes to its start, no more than its capacity; the
    // buffer has not moved its bytes since (it was owned by the operation).
    unsafe { buffer.set_len(count) };
}

async fn read_by_epoll(fd: &AsyncFd<OwnedFd>, ledger: &Ledger, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        let mut ready = fd.readable().await?;
        let mut buffer = ledger.lend_buffer();
        let received = ready.try_io(|fd| {
            let count =
                rustix::net::recv(fd, rustix::buffer::spare_capacity(&mut buffer), rustix::net::RecvFlags::DONTWAIT);
            count.map(|count| count.1).map_err(io::Error::from)
        });
        into.extend_from_slice(&buffer);
        ledger.take_back(buffer);
        if let Ok(received) = received {
            return received;
        }
    }
}

/// A frame with what a write of it points to. Boxes keep their content in place when this value moves.
struct Sending<F> {
    frame: Box<F>,
    /// Into `frame`; the lifetime is this value's, which the compiler cannot say.
    slices: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
    /// Bytes of all slices.
    size: usize,
    written: usize,
}

impl<F: Frame> Sending<F> {
    #[expect(unsafe_code, reason = "a message header is plain numbers and null pointers")]
    fn new(frame: Box<F>) -> Self {
        let mut found: Vec<IoSlice<'_>> = Vec::new();
        frame.slices(&mut found);
        let size = found.iter().map(|slice| slice.len()).sum();
        let slices =
            found.iter().map(|slice| libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() });
        let slices = slices.collect();
        // SAFETY: all fields of `msghdr` are integers or pointers, for which zero is a value.
        let message = Box::new(unsafe { std::mem::zeroed() });
        Self { frame, slices, message, size, written: 0 }
    }

    /// Points the message at what is not written yet.
    fn aim(&mut self) -> *const libc::msghdr {
        let (mut skip, mut first) = (self.written, 0);
        while self.slices.get(first).is_some_and(|slice| slice.iov_len <= skip) {
            skip -= self.slices.get(first).map_or(0, |slice| slice.iov_len);
            first += 1;
        }
        self.slices.drain(..first);
        if let Some(slice) = self.slices.first_mut() {
            slice.iov_base = slice.iov_base.cast::<u8>().wrapping_add(skip).cast();
            slice.iov_len -= skip;
        }
        self.size -= self.written;
        self.written = 0;
        self.message.msg_iov = self.slices.as_mut_ptr();
        self.message.msg_iovlen = self.slices.len();
        &raw const *self.message
    }
}

async fn send_by_ring<F: Frame>(fd: RawFd, frame: Box<F>) -> Result<(), Gone<F>> {
    let mut sending = Sending::new(frame);
    let mut total = 0;
    while sending.size > 0 {
        // The entry points to the message, the message to the slices, the slices into the frame: all owned by `sending`,
        // all behind boxes, and `sending` is owned by the operation until its completion.
        let entry = op::send(fd, sending.aim());
        let (sent, back) = op::run(entry, sending).await;
        sending = back;
        match sent.map(|count| usize::try_from(count).unwrap_or(0)) {
            Ok(count) if count > 0 => {
                total += count;
                sending.written = count;
                if count == sending.size {
                    return Ok(());
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return Err(Gone::Torn(total, sending.frame)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
            _ => return Err(Gone::Peer),
        }
    }
    Ok(())
}

async fn send_by_epoll<F: Frame>(fd: &AsyncFd<OwnedFd>, frame: Box<F>) -> Result<(), Gone<F>> {
    let mut sending = Sending::new(frame);
    let mut total = 0;
    while sending.size > 0 {
        let message = sending.aim();
        let sent = fd.async_io(Interest::WRITABLE, |fd| send_now(fd.as_raw_fd(), message)).await;
        match sent {
            Ok(count) if count > 0 => {
                total += count;
                sending.written = count;
                if count == sending.size {
                    return Ok(());
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return Err(Gone::Torn(total, sending.frame)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(Gone::Peer),
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the same message serves both back ends")]
fn send_now(fd: RawFd, message: *const libc::msghdr) -> io::Result<usize> {
    // SAFETY: the message and all it points to are owned by the caller's `Sending`, which is not touched during the call;
    // the kernel only reads them, and keeps nothing after the call.
    let sent = unsafe { libc::sendmsg(fd, message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
