//! Listening sockets: one for each address, shared by all loops, each of which keeps one accept in its own ring.
//!
//! Measured against SO_REUSEPORT (docs/decisions.md, "One listening socket"): sharing spreads connections evenly, and a
//! loop that ends takes no queue with it. Invariant: an accept is cancelled by descriptor and then awaited; what it still
//! brings is served. Source: io_uring_prep_accept(3), io_uring_prep_cancel_fd(3).
//! Read first: `connections_accepted_while_stopping_are_served`.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    rc::Rc,
};

use socket2::{Domain, Protocol, SockAddr, Type};
use tokio::io::unix::AsyncFd;

use super::{Io, ledger::Ledger, op};

/// A socket that listens.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// A socket that somebody else made: for example systemd.
    pub fn from_socket(listener: TcpListener) -> Self {
        Self(listener)
    }

    /// The address, with the real port.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The same socket as one loop uses it.
    pub(super) fn for_loop(&self, io: Io) -> io::Result<LoopListener> {
        let listener = self.0.try_clone()?;
        Ok(match io {
            Io::Uring => LoopListener::Uring(listener),
            Io::Epoll => LoopListener::Epoll(op::watch(listener)?),
        })
    }
}

/// Listens on each address.
///
/// # Errors
/// An address cannot be taken.
pub fn listen(addresses: &[SocketAddr], io: Io) -> io::Result<Vec<Listener>> {
    let one = |address: &SocketAddr| {
        let socket = socket2::Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // Inherited by what is accepted. Little waits unsent in the kernel, so that a slow client pins little; the frame
        // behind it stays in the page cache.
        socket.set_tcp_nodelay(true)?;
        set_unsent_low_water(&socket)?;
        socket.bind(&SockAddr::from(*address))?;
        socket.listen(BACKLOG)?;
        // A ring would answer EAGAIN for a socket that does not block.
        socket.set_nonblocking(io == Io::Epoll)?;
        Ok(Listener(socket.into()))
    };
    addresses
        .iter()
        .map(|address| {
            one(address).map_err(|error: io::Error| {
                io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
            })
        })
        .collect()
}

#[expect(unsafe_code, reason = "neither socket2 nor rustix sets TCP_NOTSENT_LOWAT")]
fn set_unsent_low_water(socket: &socket2::Socket) -> io::Result<()> {
    let value: libc::c_int = UNSENT_LOW_WATER;
    let size = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(4);
    // SAFETY: the descriptor is that of a live socket we hold a reference to; the kernel reads `size` bytes, which is the
    // size of `value`, from a pointer to `value` and keeps nothing of it.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast(),
            size,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A listening socket in one loop.
pub(super) enum LoopListener {
    Uring(TcpListener),
    Epoll(AsyncFd<TcpListener>),
}

impl LoopListener {
    /// The next connection; nothing when the loop stops.
    pub async fn accept(&self, ledger: &Rc<Ledger>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
        loop {
            let accepted = match self {
                Self::Uring(listener) => accept_by_ring(listener, ledger).await,
                Self::Epoll(listener) => accept_by_epoll(listener, ledger).await,
            };
            match accepted {
                Ok(Some(fd)) => {
                    let peer = socket2::SockRef::from(&fd).peer_addr().ok().and_then(|peer| peer.as_socket());
                    // A peer that left already has no address.
                    if let Some(peer) = peer {
                        return Ok(Some((fd, peer)));
                    }
                }
                Ok(None) => return Ok(None),
                Err(error) if is_of_one_connection(&error) && !ledger.is_stopping() => {}
                Err(_) if ledger.is_stopping() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

async fn accept_by_ring(listener: &TcpListener, ledger: &Rc<Ledger>) -> io::Result<Option<OwnedFd>> {
    let entry = op::accept(listener.as_raw_fd());
    let mut accepting = std::pin::pin!(op::run(entry, ()));
    let accepted = tokio::select! {
        biased;
        (accepted, ()) = accepting.as_mut() => accepted,
        () = ledger.stopped() => {
            let (_, ()) = op::run(op::cancel(listener.as_raw_fd()), ()).await;
            accepting.await.0
        }
    };
    match accepted {
        Ok(fd) => Ok(Some(owned(fd))),
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Ok(None),
        Err(error) => Err(error),
    }
}

#[expect(unsafe_code, reason = "a completion hands a descriptor over as a number")]
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the number is the result of an accept that succeeded, seen here for the first and only time (a completion is
    // taken once), so nobody else owns or closes it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

async fn accept_by_epoll(listener: &AsyncFd<TcpListener>, ledger: &Rc<Ledger>) -> io::Result<Option<OwnedFd>> {
    loop {
        let mut ready = tokio::select! {
            biased;
            ready = listener.readable() => ready?,
            () = ledger.stopped() => return Ok(None),
        };
        match ready.try_io(|listener| listener.get_ref().accept()) {
            Ok(Ok((stream, _))) => {
                stream.set_nonblocking(true)?;
                return Ok(Some(stream.into()));
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
}

/// Errors that say something about the connection that was to be accepted, accept(2), and not about us.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EINTR
                | libc::EPERM
        )
    )
}

/// Connections that wait to be accepted: a CI fleet starts all at once. The kernel takes no more than `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Bytes the kernel holds that it has not sent yet, before it asks for more.
const UNSENT_LOW_WATER: libc::c_int = 32 * 1024;
