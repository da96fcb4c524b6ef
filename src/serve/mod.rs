//! The switchboard: steps of visits become operations of a loop and looks into the catalogue.
//!
//! Decides nothing about requests. Invariants: a visit stays on the loop that accepted it; between two slices of one visit
//! the ring is served; whatever a visit needs is fetched here, by plain calls on files in the page cache.
//! Read first: `tests/stock_git.rs`.

pub mod idle;
mod record;

use std::{
    io::IoSlice,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    conn::{self, Counter, LargePart, Need, Rules, Step},
    repo::Catalogue,
    ring::{self, Arrival, Socket},
};

/// A frame as the ring knows it.
struct Wire(conn::Frame);

impl ring::Frame for Wire {
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
        self.0.slices(out);
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}

/// Serves one connection to its end.
pub async fn serve(mut socket: Socket, peer: SocketAddr, rules: Rc<Rules>, catalogue: Arc<Catalogue>) {
    let mut counter = conn::visit(rules, peer.ip());
    let (start, mut cpu) = (Instant::now(), Duration::ZERO);
    loop {
        let before = cpu_time();
        let step = counter.poll(start.elapsed());
        cpu += cpu_time().saturating_sub(before);
        for record in counter.take_records() {
            record::log(&record, peer, std::mem::take(&mut cpu));
        }
        match step {
            Step::Close => return,
            Step::Slice => {
                ring::pause().await;
                counter.handle_turn();
            }
            Step::Read { until, idle } => {
                let (mut input, deadline) = (Vec::new(), Some(start + until));
                let arrival = if idle {
                    socket.idle(&mut input, deadline).await
                } else {
                    socket.read(&mut input, deadline).await
                };
                match arrival {
                    Ok(Arrival::Bytes(_)) => counter.handle_bytes(&input),
                    Ok(Arrival::Deadline) => counter.handle_deadline(),
                    Ok(Arrival::End) | Err(_) => counter.handle_end(),
                }
            }
            Step::Send(frame) => match socket.send(Box::new(Wire(frame))).await {
                (Ok(()), _) => counter.handle_sent(),
                (Err(broken), frame) if broken.is_torn() => counter.handle_torn(frame.0, broken.written),
                (Err(broken), _) => {
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
