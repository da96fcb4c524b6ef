//! Reads, frames and accepts become one SQE each.
//!
//! Refuses operations with more than one completion: tokio-uring cannot carry them. Invariants: what an SQE points to, and
//! the descriptor it names, belong to the operation until its completion; an accept is never abandoned; a waiting read
//! holds no buffer, the kernel takes one of the loop's when bytes are there (`IOSQE_BUFFER_SELECT`, Linux 5.19 to give it
//! back while nothing arrives).
//! Source: `io_uring_enter(2)`, `IORING_OP_RECV`, `_SENDMSG`, `_ACCEPT`, `_POLL_ADD`, `_PROVIDE_BUFFERS`, `_ASYNC_CANCEL`.
//! Read first: `tests::frame_larger_than_the_socket_buffers_arrives_whole`.

use std::{
    cell::{Cell, UnsafeCell},
    io,
    marker::PhantomData,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use io_uring::{cqueue, opcode, squeue, types};
use rustix::{
    io::Errno,
    net::{RecvFlags, Shutdown},
};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

use super::{
    Arrival, Frame, Listener, Tuning,
    frame::Lent,
    stall::{Stall, progress},
    state::{State, abort},
};

/// Bytes a read may append at once when it does not use a shared buffer.
pub(super) const READ_ROOM: usize = 16 * 1024;

/// An operation that is queued or in flight, with what it points to.
type Operation<D> = InFlightOneshot<D, Plain<D>>;

/// A completion, and what the operation pointed to.
struct Done<D> {
    result: io::Result<u32>,
    flags: u32,
    data: D,
}

/// Hands out the completion as it came.
struct Plain<D>(PhantomData<fn() -> D>);

impl<D: 'static> OneshotOutputTransform for Plain<D> {
    type Output = Done<D>;
    type StoredData = D;

    fn transform_oneshot_output(self, data: D, entry: cqueue::Entry) -> Done<D> {
        let result = u32::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        Done { result, flags: entry.flags(), data }
    }
}

/// Queues an operation.
///
/// # Safety
/// `entry` has exactly one completion. Each pointer and each descriptor in it stays valid as long as `data` lives; moving
/// `data` does not change that.
#[expect(unsafe_code, reason = "submitting raw SQEs is safe in tokio-uring's eyes, and is not")]
unsafe fn submit<D: Unpin + 'static>(data: D, entry: squeue::Entry) -> Operation<D> {
    // Nothing checks what the entry points to; tokio-uring's part is to keep `data` until the completion, also when the
    // future is dropped (`Lifecycle::Ignored`), also when the runtime is (`Driver::drop` waits for each).
    UnsubmittedOneshot::new(data, Plain(PhantomData), entry).submit()
}

/// One turn through the ring.
#[expect(unsafe_code, reason = "submits an SQE")]
pub(super) async fn no_op() {
    // SAFETY: a no-op points to nothing and completes once.
    let _ = unsafe { submit((), opcode::Nop::new().build()) }.await;
}

/// Group of the shared read buffers; one for each ring.
const GROUP: u16 = 0;

/// Read buffers that the connections of one loop share.
pub(super) struct Pool {
    memory: Box<[UnsafeCell<u8>]>,
    size: u32,
    count: u16,
    /// Reads that found all buffers taken.
    misses: Cell<u64>,
}

impl Pool {
    pub(super) fn new(tuning: &Tuning) -> Rc<Self> {
        let length = usize::from(tuning.buffers) * tuning.buffer_size as usize;
        let memory = std::iter::repeat_with(|| UnsafeCell::new(0)).take(length).collect();
        let pool = Rc::new(Self { memory, size: tuning.buffer_size, count: tuning.buffers, misses: Cell::new(0) });
        pool.provide(0, pool.count);
        pool
    }

    /// Gives the kernel `count` buffers from number `first` on.
    #[expect(unsafe_code, reason = "submits an SQE")]
    fn provide(self: &Rc<Self>, first: u16, count: u16) {
        let start = self.bounds(first).start;
        // From the whole slice, so that the pointer may be used for all of the buffers; in bounds, as `first` is.
        let address = UnsafeCell::raw_get(self.memory.as_ptr().wrapping_add(start));
        let size = i32::try_from(self.size).unwrap_or(i32::MAX);
        let entry = opcode::ProvideBuffers::new(address, size, count, GROUP, first).build();
        // SAFETY: one completion. The memory is `self`'s, of interior mutability, never moved, and lives as long as the
        // operation's `Rc`. After it completes the kernel remembers the addresses, but writes there only for a RECV, and
        // each RECV holds the pool as well (`Stream::receive`). Later rings on this thread know nothing of this group.
        drop(unsafe { submit(Rc::clone(self), entry) });
    }

    /// Appends the bytes the kernel put into buffer `number`, and gives the buffer back to it.
    #[expect(unsafe_code, reason = "reads memory the kernel wrote")]
    fn take(self: &Rc<Self>, number: u16, count: usize, out: &mut Vec<u8>) {
        assert!(number < self.count && count <= self.size as usize, "the kernel names a buffer it was given");
        let bounds = self.bounds(number);
        if let Some(cells) = self.memory.get(bounds).and_then(|cells| cells.get(..count)) {
            // SAFETY: the cells are `count` initialised bytes (UnsafeCell<u8> has the layout of u8). A completion named
            // this buffer, so the kernel gave it up and will not write before `provide` below; no `&mut` to it exists.
            let bytes = unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), count) };
            out.extend_from_slice(bytes);
        }
        self.provide(number, 1);
    }

    fn bounds(&self, number: u16) -> std::ops::Range<usize> {
        let start = usize::from(number) * self.size as usize;
        start..start + self.size as usize
    }
}

/// One connection.
pub(super) struct Stream {
    fd: Rc<OwnedFd>,
    pool: Rc<Pool>,
    /// An operation was queued and its completion not yet seen.
    busy: Cell<bool>,
}

impl Stream {
    /// `fd` must be blocking: on a non-blocking one the ring answers EAGAIN instead of waiting.
    pub(super) fn new(fd: Rc<OwnedFd>, pool: Rc<Pool>) -> Self {
        Self { fd, pool, busy: Cell::new(false) }
    }

    pub(super) async fn arrive(&mut self, out: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Arrival> {
        let (done, late) = self.within(self.receive()?, deadline).await;
        let count = done.result.as_ref().map_or(0, |count| *count as usize);
        if let Some(number) = cqueue::buffer_select(done.flags) {
            self.pool.take(number, count, out);
        }
        match done.result {
            Ok(0) if late => Ok(Arrival::Deadline),
            Ok(0) => Ok(Arrival::End),
            Ok(_) => Ok(Arrival::Bytes(count)),
            // All buffers hold bytes that others have not fetched yet.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.pool.misses.set(self.pool.misses.get() + 1);
                self.arrive_without_pool(out, deadline).await
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for readiness, then reads straight into `out`.
    async fn arrive_without_pool(&mut self, out: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Arrival> {
        loop {
            let (done, late) = self.within(self.poll()?, deadline).await;
            done.result?;
            out.reserve(READ_ROOM);
            let room = rustix::buffer::spare_capacity(out);
            match rustix::net::recv(&self.fd, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) if late => return Ok(Arrival::Deadline),
                Ok((0, _)) => return Ok(Arrival::End),
                Ok((count, _)) => return Ok(Arrival::Bytes(count)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends what is left of the frame; the count is short only when something went wrong.
    pub(super) async fn send<F: Frame>(&mut self, lent: Lent<F>, stall: &mut Stall) -> (io::Result<usize>, Lent<F>) {
        if let Err(error) = self.begin() {
            return (Err(error), lent);
        }
        let mut operation = pin!(self.write(lent));
        let mut stalled = false;
        let done = loop {
            match tokio::time::timeout(stall.tick(), &mut operation).await {
                Ok(done) => break done,
                Err(_) if !stalled && stall.is_stalled(progress(&self.fd), Instant::now()) => {
                    // Completes it: with what was written so far, or EPIPE.
                    abort(&self.fd);
                    stalled = true;
                }
                Err(_) => {}
            }
        };
        self.busy.set(false);
        let written = match done.result {
            _ if stalled => Err(io::ErrorKind::TimedOut.into()),
            result => result.map(|count| count as usize),
        };
        (written, done.data.0)
    }

    #[expect(unsafe_code, reason = "submits an SQE")]
    fn write<F: Frame>(&self, lent: Lent<F>) -> Operation<(Lent<F>, Rc<OwnedFd>)> {
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL).cast_unsigned();
        let entry = opcode::SendMsg::new(types::Fd(self.fd.as_raw_fd()), lent.message()).flags(flags).build();
        // SAFETY: one completion (no zero-copy). The message, its slices and the frame are `lent`'s, behind pointers that
        // do not move with it; the `Rc` keeps the descriptor open until then, so its number means this socket.
        unsafe { submit((lent, Rc::clone(&self.fd)), entry) }
    }

    #[expect(unsafe_code, reason = "submits an SQE")]
    fn receive(&self) -> io::Result<Operation<(Rc<OwnedFd>, Rc<Pool>)>> {
        self.begin()?;
        let entry = opcode::Recv::new(types::Fd(self.fd.as_raw_fd()), std::ptr::null_mut(), self.pool.size)
            .buf_group(GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT);
        // SAFETY: one completion (no multishot). The null pointer is not used: the kernel picks a buffer of the group,
        // all of which lie in the pool that the operation keeps alive; the `Rc` keeps the descriptor.
        Ok(unsafe { submit((Rc::clone(&self.fd), Rc::clone(&self.pool)), entry) })
    }

    #[expect(unsafe_code, reason = "submits an SQE")]
    fn poll(&self) -> io::Result<Operation<Rc<OwnedFd>>> {
        self.begin()?;
        let events = u32::from((libc::POLLIN | libc::POLLRDHUP).cast_unsigned());
        let entry = opcode::PollAdd::new(types::Fd(self.fd.as_raw_fd()), events).build();
        // SAFETY: one completion (not multi); points to nothing; the `Rc` keeps the descriptor.
        Ok(unsafe { submit(Rc::clone(&self.fd), entry) })
    }

    /// Awaits a read. When the deadline passes, ends reading for good, which completes the operation, and awaits that.
    async fn within<D: Unpin + 'static>(&self, operation: Operation<D>, deadline: Option<Instant>) -> (Done<D>, bool) {
        let mut operation = pin!(operation);
        let in_time = match deadline {
            None => None,
            Some(at) => tokio::time::timeout_at(at.into(), &mut operation).await.ok(),
        };
        let late = deadline.is_some() && in_time.is_none();
        if late {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
        }
        let done = match in_time {
            Some(done) => done,
            None => operation.await,
        };
        self.busy.set(false);
        (done, late)
    }

    /// One operation at a time: a completion nobody waits for would take bytes away from the next.
    fn begin(&self) -> io::Result<()> {
        if self.busy.replace(true) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The operation has the descriptor as well: without this it would wait for the peer as long as that pleases.
        if self.busy.get() {
            abort(&self.fd);
        }
    }
}

/// How long an accept may take that was begun because a connection waited; another loop may have been faster.
const LAST_ACCEPT: Duration = Duration::from_millis(10);

/// The next connection; `None` once draining has begun and no more wait.
pub(super) async fn accept(listener: &Arc<Listener>, state: &State) -> io::Result<Option<OwnedFd>> {
    loop {
        if state.is_shut() || (state.is_draining() && !listener.has_waiting()) {
            return Ok(None);
        }
        let mut operation = pin!(accept_one(listener));
        let enough = async {
            if state.is_draining() {
                tokio::time::sleep(LAST_ACCEPT).await;
            } else {
                state.drained().await;
            }
        };
        let first = tokio::select! {
            biased;
            done = &mut operation => Some(done),
            () = enough => None,
        };
        let done = if let Some(done) = first {
            done
        } else {
            cancel(listener).await;
            // Never dropped: it may have brought a connection before the cancel found it.
            operation.await
        };
        match accepted(done) {
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            found => return found.map(Some),
        }
    }
}

#[expect(unsafe_code, reason = "submits an SQE")]
fn accept_one(listener: &Arc<Listener>) -> Operation<Arc<Listener>> {
    let no_address = std::ptr::null_mut();
    let entry = opcode::Accept::new(types::Fd(listener.as_raw_fd()), no_address, std::ptr::null_mut())
        .flags(libc::SOCK_CLOEXEC)
        .build();
    // SAFETY: one completion (no multishot); null pointers ask for no address; the `Arc` keeps the descriptor.
    unsafe { submit(Arc::clone(listener), entry) }
}

#[expect(unsafe_code, reason = "a completion's number becomes a descriptor")]
fn accepted(done: Done<Arc<Listener>>) -> io::Result<OwnedFd> {
    let fd = i32::try_from(done.result?).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel opened this descriptor for this completion, which is handed out once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Cancels what this ring waits for on the listener, and waits until the kernel has looked (Linux 5.19).
#[expect(unsafe_code, reason = "submits an SQE")]
async fn cancel(listener: &Arc<Listener>) {
    let target = types::CancelBuilder::fd(types::Fd(listener.as_raw_fd())).all();
    // SAFETY: one completion; points to nothing; the `Arc` keeps the descriptor.
    let done = unsafe { submit(Arc::clone(listener), opcode::AsyncCancel2::new(target).build()) }.await;
    // ENOENT: it completed by itself, or another ring has it. Either way its completion comes.
    drop(done);
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn buffer_goes_back_after_each_read() {
        let tuning = Tuning { buffers: 1, buffer_size: 512, ..Tuning::default() };
        let mut builder = tokio_uring::builder();
        builder.uring_builder(&crate::ring::probe::ring_builder(&tuning));
        let Ok(runtime) = tokio_uring::Runtime::new(&builder) else {
            eprintln!("SKIPPED: this host has no io_uring");
            return;
        };
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        runtime.block_on(async {
            let pool = Pool::new(&tuning);
            let mut stream = Stream::new(Rc::new(ours.into()), Rc::clone(&pool));
            for round in 0..10u8 {
                let mut got = Vec::new();
                theirs.write_all(&[round; 300]).expect("written");
                assert!(matches!(stream.arrive(&mut got, None).await, Ok(Arrival::Bytes(300))));
                assert_eq!(got, [round; 300]);
            }
            assert_eq!(pool.misses.get(), 0);
            drop(theirs);
            assert!(matches!(stream.arrive(&mut Vec::new(), None).await, Ok(Arrival::End)));
        });
    }
}
