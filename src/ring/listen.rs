//! An address becomes one listening socket that every loop accepts from.
//!
//! No `SO_REUSEPORT`: the kernel would deal connections to loops by hash, and reset those of a loop that ends. Invariant:
//! what a connection needs (no delay, bounded unsent bytes) is set here once and inherited, so accepting costs one call.
//! Source: listen(2), tcp(7), socket(7), `sd_listen_fds(3)`.
//! Read first: `accepted_socket_inherits_what_the_listener_was_given`.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use socket2::{Domain, Protocol, Type};

use super::{Backend, Tuning};

/// A bound, listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: socket2::Socket,
    address: SocketAddr,
}

impl Listener {
    /// Binds and listens; port 0 takes a free one, see [`Self::address`]. An IPv6 address takes no IPv4 connections.
    ///
    /// # Errors
    /// The address is taken, not ours, or needs a privilege.
    pub fn bind(address: SocketAddr, tuning: &Tuning) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        Self::listen(socket, tuning)
    }

    /// Takes a bound socket from whoever started us (`LISTEN_FDS`, or a predecessor that hands over).
    ///
    /// # Errors
    /// It is no TCP socket, or cannot listen.
    pub fn from_fd(fd: OwnedFd, tuning: &Tuning) -> io::Result<Self> {
        Self::listen(fd.into(), tuning)
    }

    fn listen(socket: socket2::Socket, tuning: &Tuning) -> io::Result<Self> {
        socket.set_tcp_nodelay(tuning.nodelay)?;
        if let Some(size) = tuning.sndbuf {
            socket.set_send_buffer_size(size as usize)?;
        }
        if let Some(size) = tuning.lowat {
            socket.set_tcp_notsent_lowat(size)?;
        }
        socket.listen(tuning.backlog)?;
        let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { socket, address })
    }

    /// Where it really listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// An accept SQE on a non-blocking socket ends with EAGAIN at once; readiness needs the opposite.
    pub(super) fn suit(&self, backend: Backend) -> io::Result<()> {
        self.socket.set_nonblocking(backend == Backend::Epoll)
    }

    /// Whether a connection waits to be accepted.
    pub(super) fn has_waiting(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        matches!(poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&Timespec::default())), Ok(1..))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_socket_inherits_what_the_listener_was_given() {
        let tuning = Tuning { sndbuf: Some(20_000), lowat: Some(30_000), ..Tuning::default() };
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &tuning).expect("a free port");
        assert_ne!(listener.address().port(), 0);
        assert!(!listener.has_waiting());
        let _client = std::net::TcpStream::connect(listener.address()).expect("connected");
        assert!(listener.has_waiting());
        let (accepted, _) = listener.socket.accept().expect("accepted");
        assert!(accepted.tcp_nodelay().expect("an option"));
        assert_eq!(accepted.tcp_notsent_lowat().expect("an option"), 30_000);
        assert_eq!(accepted.send_buffer_size().expect("an option"), 40_000);
    }

    #[test]
    fn taken_address_is_an_error() {
        let tuning = Tuning::default();
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &tuning).expect("a free port");
        let again = Listener::bind(listener.address(), &tuning);
        assert_eq!(again.map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::AddrInUse));
    }
}
