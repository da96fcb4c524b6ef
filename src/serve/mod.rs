//! The switchboard: steps of visits become operations of a loop and looks into the catalogue.
//!
//! Decides nothing about requests. Invariants: a visit stays on the loop that accepted it; between two slices of one visit
//! the ring is served; whatever a visit needs is fetched here, by plain calls on files in the page cache.
//! Read first: `tests/stock_git.rs`.

pub mod idle;
mod record;
mod wire;

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    conn::{self, Counter, LargePart, Need, Rules, Step},
    repo::Catalogue,
    ring::{self, Arrival, Socket},
    tls::{Certificates, Session},
};
use wire::{Line, Sent};

/// Serves one connection to its end; through TLS where there are certificates for the door it came in by.
pub async fn serve(
    socket: Socket,
    peer: SocketAddr,
    rules: Rc<Rules>,
    catalogue: Arc<Catalogue>,
    certificates: Option<Arc<Certificates>>,
) {
    let session = match certificates.map(|certificates| Session::new(certificates.current())).transpose() {
        Ok(session) => session,
        Err(fault) => return tracing::error!(%peer, "no TLS session can be begun: {fault}"),
    };
    let (patience, secure) = (rules.head_timeout, session.is_some());
    let mut line = Line::new(socket, session);
    let mut counter = conn::visit(rules, conn::Peer { source: peer.ip(), secure });
    let (start, mut cpu) = (Instant::now(), Duration::ZERO);
    loop {
        let before = cpu_time();
        let step = counter.poll(start.elapsed());
        cpu += cpu_time().saturating_sub(before);
        for record in counter.take_records() {
            record::log(&record, peer, std::mem::take(&mut cpu));
        }
        match step {
            Step::Close => return line.close().await,
            Step::Slice => {
                ring::pause().await;
                counter.handle_turn();
            }
            Step::Read { until, idle } => {
                let mut input = Vec::new();
                match line.read(&mut input, start + until, idle, patience).await {
                    Some(Arrival::Bytes(_)) => counter.handle_bytes(&input),
                    Some(Arrival::Deadline) => counter.handle_deadline(),
                    Some(Arrival::End) | None => counter.handle_end(),
                }
            }
            Step::Send(frame) => match line.send(frame).await {
                Sent::Whole => counter.handle_sent(),
                Sent::Torn(frame, written) => counter.handle_torn(frame, written),
                Sent::Gone(broken) => {
                    tracing::debug!(%peer, "the client left before the end of its answer: {broken}");
                    return;
                }
            },
            Step::Wait(time) => {
                tokio::time::sleep(time).await;
                counter.handle_turn();
            }
            Step::Need(need) => fulfil(need, &mut counter, &catalogue),
        }
    }
}

/// CPU that this thread has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned() as u32)
}

fn fulfil(need: Need, counter: &mut Counter, catalogue: &Catalogue) {
    match need {
        Need::Snapshot { path, fresh } => counter.handle_snapshot(catalogue.snapshot(&path, fresh)),
        Need::Narrowed { snapshot, limit } => {
            let narrowed = catalogue.narrowed(&snapshot, &limit.key, |name| limit.shows(name));
            counter.handle_snapshot(Ok(narrowed));
        }
        Need::Loose { snapshot, ask } => counter.handle_loose(snapshot.loose(ask)),
        Need::Large { snapshot, id } => {
            let part = snapshot.large(&id).and_then(|stream| next_part(Box::new(stream)));
            counter.handle_part(part);
        }
        Need::Part(stream) => counter.handle_part(next_part(stream)),
    }
}

fn next_part(mut stream: Box<crate::repo::LooseStream>) -> Option<LargePart> {
    let bytes = stream.next_part(PART).ok()?;
    Some(LargePart { bytes, stream })
}

/// Bytes of a large object read at a time.
const PART: usize = 64 * 1024;
