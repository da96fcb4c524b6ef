//! A connection as a visit sees it: plain, or through a TLS session.
//!
//! Decides nothing. Invariants: what a session has to say is sent before more is read; a plain frame is submitted as it is,
//! mapped bytes and all; only a sealed one is copied.
//! Read first: `tests/tls.rs`.

use std::{io::IoSlice, time::Duration, time::Instant};

use crate::{
    conn,
    ring::{self, Arrival, Broken, Socket},
    tls::Session,
};

/// A frame as the ring knows it.
pub struct Wire(pub conn::Frame);

impl ring::Frame for Wire {
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
        self.0.slices(out);
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}

/// Bytes of our own.
struct Sealed(Vec<u8>);

impl ring::Frame for Sealed {
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self.0));
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// One connection.
pub struct Line {
    socket: Socket,
    session: Option<Box<Session>>,
}

/// What became of a frame.
pub enum Sent {
    /// It is written.
    Whole,
    /// So many bytes of it were; the rest cannot be read from its mapping.
    Torn(conn::Frame, usize),
    /// The peer is gone.
    Gone(Broken),
}

impl Line {
    /// Of an accepted socket.
    pub fn new(socket: Socket, session: Option<Session>) -> Self {
        Self { socket, session: session.map(Box::new) }
    }

    /// Waits for bytes of requests; `None` when none will come. A handshake has `patience` to end.
    pub async fn read(
        &mut self,
        out: &mut Vec<u8>,
        deadline: Instant,
        idle: bool,
        patience: Duration,
    ) -> Option<Arrival> {
        let Some(session) = &mut self.session else {
            return arrive(&mut self.socket, out, deadline, idle).await;
        };
        let deadline = if session.is_handshaking() { deadline.min(Instant::now() + patience) } else { deadline };
        let mut input = Vec::new();
        loop {
            if session.is_closed() {
                return None;
            }
            match arrive(&mut self.socket, &mut input, deadline, idle).await {
                Some(Arrival::Bytes(_)) => {}
                other => return other,
            }
            let opened = session.open(&input, out);
            input = Vec::new();
            if !tell(&mut self.socket, session).await || opened.is_err() {
                return None;
            }
            if !out.is_empty() {
                return Some(Arrival::Bytes(out.len()));
            }
        }
    }

    /// Writes a whole frame.
    pub async fn send(&mut self, frame: conn::Frame) -> Sent {
        let Some(session) = &mut self.session else {
            return match self.socket.send(Box::new(Wire(frame))).await {
                (Ok(()), _) => Sent::Whole,
                (Err(broken), frame) if broken.is_torn() => Sent::Torn(frame.0, broken.written),
                (Err(broken), _) => Sent::Gone(broken),
            };
        };
        let mut slices = Vec::new();
        frame.slices(&mut slices);
        for slice in slices {
            let mut left: &[u8] = &slice;
            while !left.is_empty() {
                left = left.get(session.seal(left)..).unwrap_or_default();
                let sealed = session.take_sealed();
                if let (Err(broken), _) = self.socket.send(Box::new(Sealed(sealed))).await {
                    return Sent::Gone(broken);
                }
            }
        }
        Sent::Whole
    }

    /// Ends the connection; over TLS with a word that this is its end.
    pub async fn close(mut self) {
        if let Some(session) = &mut self.session {
            session.close();
            tell(&mut self.socket, session).await;
        }
    }
}

async fn arrive(socket: &mut Socket, out: &mut Vec<u8>, deadline: Instant, idle: bool) -> Option<Arrival> {
    let arrival = if idle { socket.idle(out, Some(deadline)).await } else { socket.read(out, Some(deadline)).await };
    arrival.ok()
}

/// Sends what the session itself has to say; false when the peer is gone.
async fn tell(socket: &mut Socket, session: &mut Session) -> bool {
    let sealed = session.take_sealed();
    sealed.is_empty() || socket.send(Box::new(Sealed(sealed))).await.0.is_ok()
}
