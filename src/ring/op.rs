//! Operations of io_uring that tokio-uring has no function for.
//!
//! Each entry is made here and points only into memory that [`run`] keeps until its completion. Invariant: what an
//! operation's entry points to is owned by the `memory` it is run with, behind a box that is not touched meanwhile.
//! Source: io_uring_enter(2). Kernel 5.19 for cancelling by descriptor.

use std::{
    future::Future,
    io,
    marker::PhantomData,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use io_uring::{cqueue, opcode, squeue, types};
use tokio::io::unix::AsyncFd;
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot};

/// Submits `entry` and waits for its completion; `memory` is kept until then, even if the future is dropped.
pub fn run<M: Unpin + 'static>(entry: squeue::Entry, memory: M) -> impl Future<Output = (io::Result<i32>, M)> {
    UnsubmittedOneshot::new(memory, GiveBack(PhantomData), entry).submit()
}

struct GiveBack<M>(PhantomData<M>);

impl<M> OneshotOutputTransform for GiveBack<M> {
    type Output = (io::Result<i32>, M);
    type StoredData = M;

    fn transform_oneshot_output(self, memory: M, completion: cqueue::Entry) -> Self::Output {
        let result = completion.result();
        (if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }, memory)
    }
}

/// Registers an owned descriptor with the epoll of the calling thread's runtime.
#[expect(unsafe_code, reason = "the safe constructor is deprecated for descriptors that may be closed by others")]
pub fn watch<T: OwnsFd>(fd: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: only types that own their descriptor are OwnsFd, and AsyncFd owns the value until it is dropped, which
    // deregisters it first; nobody can close the descriptor before.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Types that own the descriptor they tell, alone.
pub trait OwnsFd: AsRawFd {}
impl OwnsFd for OwnedFd {}
impl OwnsFd for std::net::TcpListener {}

/// Takes a connection off a listening socket; no address is asked for, so nothing is pointed to.
pub fn accept(listener: RawFd) -> squeue::Entry {
    opcode::Accept::new(types::Fd(listener), std::ptr::null_mut(), std::ptr::null_mut())
        .flags(libc::SOCK_CLOEXEC)
        .build()
}

/// Cancels all operations of this ring on a descriptor.
pub fn cancel(fd: RawFd) -> squeue::Entry {
    opcode::AsyncCancel2::new(types::CancelBuilder::fd(types::Fd(fd)).all()).build()
}

/// Waits until a socket can be read.
pub fn readable(fd: RawFd) -> squeue::Entry {
    let events = u32::try_from(libc::POLLIN | libc::POLLRDHUP).unwrap_or(1);
    opcode::PollAdd::new(types::Fd(fd), events).build()
}

/// Reads into the spare room of a buffer. Run it with that buffer as memory: its bytes are on the heap and stay there.
pub fn receive(fd: RawFd, buffer: &mut Vec<u8>) -> squeue::Entry {
    let room = buffer.spare_capacity_mut();
    let size = u32::try_from(room.len()).unwrap_or(u32::MAX);
    opcode::Recv::new(types::Fd(fd), room.as_mut_ptr().cast(), size).build()
}

/// Writes everything a message points to. Run it with what owns the message and what that points to.
pub fn send(fd: RawFd, message: *const libc::msghdr) -> squeue::Entry {
    let flags = u32::try_from(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).unwrap_or(0);
    opcode::SendMsg::new(types::Fd(fd), message).flags(flags).build()
}
