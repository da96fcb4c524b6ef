//! Ticks while a frame is being written become "the peer takes nothing any more".
//!
//! Judges progress, not speed. Invariant: bytes acknowledged by the peer are the only progress there is; bytes the kernel
//! took from us are not, and with `MSG_WAITALL` a write says nothing before its end.
//! Source: tcp(7), `TCP_INFO` (`tcpi_bytes_acked`, Linux 4.1); `SIOCOUTQ`.
//! Read first: `no_acknowledged_byte_for_the_limit_is_a_stall`.

use std::{
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

/// Watches one write.
pub(super) struct Stall {
    limit: Duration,
    since: Instant,
    seen: Option<u64>,
}

impl Stall {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, since: now, seen: None }
    }

    /// How often to look.
    pub(super) fn tick(&self) -> Duration {
        (self.limit / 8).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }

    /// Takes note of the progress at `now`; whether there was none for the limit.
    pub(super) fn is_stalled(&mut self, progress: u64, now: Instant) -> bool {
        if self.seen != Some(progress) {
            self.seen = Some(progress);
            self.since = now;
        }
        now.duration_since(self.since) >= self.limit
    }
}

/// Offset of `tcpi_bytes_acked` in `struct tcp_info`: 8 bytes of small fields, 24 words, two rates.
const BYTES_ACKED: usize = 8 + 24 * 4 + 2 * 8;

/// A number that changes whenever the peer acknowledges bytes.
#[expect(unsafe_code, reason = "libc's tcp_info ends before tcpi_bytes_acked, and SIOCOUTQ has no safe form")]
pub(super) fn progress(fd: impl AsFd) -> u64 {
    let fd = fd.as_fd().as_raw_fd();
    let mut info = [0u8; 256];
    let mut size: libc::socklen_t = 256;
    // SAFETY: the kernel writes at most `size` bytes, which is how long `info` is, and then `size`, a live local.
    let failed =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut size) };
    let acked = info.get(BYTES_ACKED..BYTES_ACKED + 8).filter(|_| failed == 0 && size as usize >= BYTES_ACKED + 8);
    if let Some(Ok(acked)) = acked.map(<[u8; 8]>::try_from) {
        return u64::from_ne_bytes(acked);
    }
    let mut unsent: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the number is that of TIOCOUTQ) writes one int, to a live local.
    unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut unsent) };
    u64::try_from(unsent).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn no_acknowledged_byte_for_the_limit_is_a_stall() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut stall = Stall::new(Duration::from_millis(100), start);
        assert!(!stall.is_stalled(7, at(50)));
        assert!(!stall.is_stalled(7, at(149)));
        assert!(!stall.is_stalled(8, at(151)));
        assert!(!stall.is_stalled(8, at(250)));
        assert!(stall.is_stalled(8, at(251)));
    }

    #[test]
    fn progress_counts_what_the_peer_acknowledged() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut client = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        let before = progress(&server);
        server.write_all(&[1; 1000]).expect("written");
        let mut got = [0; 1000];
        client.read_exact(&mut got).expect("read");
        client.write_all(b"seen").expect("written");
        server.read_exact(&mut got[..4]).expect("the acknowledgement came with these bytes at the latest");
        assert_eq!(progress(&server), before + 1000);
    }
}
