//! One connection from its first byte to its last: requests are read one after the other and answered in turn.
//!
//! Knows HTTP and no Git. Invariants: an answer is fully written before the next request is looked at (pipelined bytes
//! wait); after a request that could not be read to its end the connection is closed, never resynchronised.
//! Source: RFC 9112, 9.3 "Persistence", 9.3.2 "Pipelining". Read first: `pipelined_requests_are_answered_in_turn`.

use std::{rc::Rc, time::Duration};

use super::{
    call::{self, Call, Refusal},
    desk::{Counter, Desk, Silence},
    frame::Frame,
    rules::Rules,
};
use crate::{
    access::Source,
    http::{self, BodyReader, Head, HeadReader, Status},
};

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub source: Source,
    /// Whether nobody between can read what is said.
    pub secure: bool,
}

/// Sets a visit up; `peer` is who connected.
pub fn visit(rules: Rc<Rules>, peer: Peer) -> Counter {
    Counter::new(move |desk| converse(desk, rules, peer))
}

async fn converse(desk: Rc<Desk>, rules: Rc<Rules>, peer: Peer) {
    loop {
        match read_request(&desk, &rules).await {
            Ok((head, body)) => {
                let call = Call::new(&desk, &rules, peer, head, body);
                if !call::answer(call).await {
                    return;
                }
            }
            Err(Unread::Gone) => return,
            Err(Unread::Bad(status, text)) => {
                refuse_and_linger(&desk, &rules, status, &text).await;
                return;
            }
        }
    }
}

/// Why there is no request to answer.
enum Unread {
    /// The peer left, or never said anything.
    Gone,
    /// What it said cannot be read on from; the text is for the person behind it.
    Bad(Status, String),
}

async fn read_request(desk: &Desk, rules: &Rules) -> Result<(Head, Vec<u8>), Unread> {
    let head = read_head(desk, rules).await?;
    let mut body = Vec::new();
    let mut reader = BodyReader::new(&head);
    let until = desk.now() + rules.body_timeout;
    if !reader.is_done() && head.expects_continue {
        let _ = desk.send(Frame::of(http::CONTINUE)).await;
    }
    while !reader.is_done() {
        let taken = desk.look(|bytes| match reader.take(bytes, &mut body) {
            Ok(used) => (used, Ok(used)),
            Err(error) => (bytes.len(), Err(error)),
        });
        match taken {
            Err(error) => return Err(Unread::Bad(error.status(), error.to_string())),
            Ok(_) if reader.is_done() => break,
            Ok(_) => desk.read_more(until, false).await.map_err(|silence| cut_short(silence, "body"))?,
        }
    }
    Ok((head, body))
}

async fn read_head(desk: &Desk, rules: &Rules) -> Result<Head, Unread> {
    let mut reader = HeadReader::new();
    let mut until = desk.now() + rules.idle_timeout;
    let mut idle = true;
    loop {
        if !desk.is_drained() {
            let taken = desk.look(|bytes| match reader.take(bytes) {
                Ok((used, head)) => (used, Ok(head)),
                Err(error) => (bytes.len(), Err(error)),
            });
            match taken {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(error) => return Err(Unread::Bad(error.status(), error.to_string())),
            }
        }
        if idle && !reader.is_empty() {
            // The clock of a head starts with its first byte, so that a trickle of bytes does not keep us here.
            (idle, until) = (false, desk.now() + rules.head_timeout);
        }
        match desk.read_more(until, idle).await {
            Ok(()) => {}
            Err(_) if idle => return Err(Unread::Gone),
            Err(silence) => return Err(cut_short(silence, "head")),
        }
    }
}

fn cut_short(silence: Silence, what: &str) -> Unread {
    match silence {
        Silence::Deadline => {
            Unread::Bad(Status::REQUEST_TIMEOUT, format!("the {what} of the request did not arrive in time"))
        }
        Silence::End => Unread::Bad(Status::BAD_REQUEST, format!("the {what} of the request was cut short")),
    }
}

/// Says why, then reads on for a moment: closing over unread bytes would reset the connection and take the answer away
/// before the peer has read it.
async fn refuse_and_linger(desk: &Desk, rules: &Rules, status: Status, text: &str) {
    let answer = Refusal::of(status, text).bytes(http::Version::Http11, false, false);
    let _ = desk.send(Frame::of(&answer)).await;
    let until = desk.now() + rules.head_timeout.min(LINGER);
    let mut left = LINGER_SIZE;
    while left > 0 && desk.read_more(until, false).await.is_ok() {
        left = left.saturating_sub(desk.look(|bytes| (bytes.len(), bytes.len())));
    }
}

/// How long to go on reading after a refusal.
const LINGER: Duration = Duration::from_secs(2);
/// How many bytes to go on reading after a refusal.
const LINGER_SIZE: usize = 1024 * 1024;
