//! The desk of one visit: what the visit needs goes out, what it was given comes in; neither side ever blocks.
//!
//! Carries, decides nothing. The visit is an `async fn` without a runtime, which stops only here; whoever drives it takes
//! the [`Step`], fulfils it, hands the outcome in and polls again. Invariants: one step is open at a time; bytes handed in
//! are kept until the visit takes them; the time is the one given at the last poll.
//! Read first: `a_visit_gives_the_same_answer_for_bytes_split_anywhere` in `tests` of this room.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{frame::Frame, record::Record};
use crate::{
    access::RefLimit,
    oid::ObjectId,
    pack::{Ask, Loose, Pace},
    repo::{Absent, LooseStream, Snapshot},
};

/// What a visit waits for.
#[derive(Debug)]
pub enum Step {
    /// Bytes from the peer, no later than `until`.
    Read {
        /// Since the start of the loop's clock.
        until: Duration,
        /// Nothing of a next request has arrived: the connection should hold no memory, and may be ended at any time.
        idle: bool,
    },
    /// The whole frame is to be written.
    Send(Frame),
    /// Something only files can tell.
    Need(Need),
    /// Its slice of CPU is used up: others first.
    Slice,
    /// Somebody else does what it waits for: look again after so long.
    Wait(Duration),
    /// The connection ends.
    Close,
}

/// What only the room with the files can tell.
#[derive(Debug)]
pub enum Need {
    /// The repository at that URL path.
    Snapshot {
        /// As the request names it.
        path: Vec<u8>,
        /// What is remembered of it was found wanting.
        fresh: bool,
    },
    /// A snapshot that shows only some refs.
    Narrowed {
        /// Of which repository.
        snapshot: Arc<Snapshot>,
        /// Which refs.
        limit: Arc<RefLimit>,
    },
    /// A loose object.
    Loose {
        /// Of which repository.
        snapshot: Arc<Snapshot>,
        /// Which, and how much of it.
        ask: Ask,
    },
    /// A loose object too large to be held, from its start.
    Large {
        /// Of which repository.
        snapshot: Arc<Snapshot>,
        /// Which.
        id: ObjectId,
    },
    /// The next part of one.
    Part(Box<LooseStream>),
}

/// What became of a step.
#[derive(Debug)]
enum Outcome {
    Bytes,
    End,
    Deadline,
    Sent,
    Torn(Frame, usize),
    Turn,
    Snapshot(Result<Arc<Snapshot>, Absent>),
    Loose(Loose),
    Part(Option<LargePart>),
}

/// A part of a large loose object, and where the rest of it comes from.
#[derive(Debug)]
pub struct LargePart {
    /// Content, in order. Empty at its end.
    pub bytes: Vec<u8>,
    /// For the next part.
    pub stream: Box<LooseStream>,
}

/// The peer is gone, or has nothing more to say, or took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It ended its side.
    End,
    /// Nothing came in time.
    Deadline,
}

/// A mapped file was cut short under a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

/// What lies between a visit and who drives it.
#[derive(Debug, Default)]
pub struct Desk {
    now: Cell<Duration>,
    step: RefCell<Option<Step>>,
    outcome: RefCell<Option<Outcome>>,
    input: RefCell<Vec<u8>>,
    ended: Cell<bool>,
    last_sent: Cell<Duration>,
    sent: Cell<u64>,
    records: RefCell<Vec<Record>>,
}

impl Desk {
    /// The time as the driver gave it last.
    pub fn now(&self) -> Duration {
        self.now.get()
    }

    /// When the last frame was fully written.
    pub fn last_sent(&self) -> Duration {
        self.last_sent.get()
    }

    /// Bytes written so far.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Leaves a record for the log.
    pub fn note(&self, record: Record) {
        self.records.borrow_mut().push(record);
    }

    /// Whether nothing the peer sent is left to be looked at.
    pub fn is_drained(&self) -> bool {
        self.input.borrow().is_empty()
    }

    /// Lends what has arrived to `take`, which tells how much of it it used.
    pub fn look<T>(&self, take: impl FnOnce(&[u8]) -> (usize, T)) -> T {
        let mut input = self.input.borrow_mut();
        let (used, answer) = take(&input);
        if used >= input.len() {
            // An idle connection holds no buffer.
            *input = Vec::new();
        } else {
            input.drain(..used);
        }
        answer
    }

    /// Waits for more bytes.
    ///
    /// # Errors
    /// None will come, or none came in time.
    pub async fn read_more(&self, until: Duration, idle: bool) -> Result<(), Silence> {
        if self.ended.get() {
            return Err(Silence::End);
        }
        match self.step(Step::Read { until, idle }).await {
            Outcome::Deadline => Err(Silence::Deadline),
            Outcome::Bytes => Ok(()),
            _ => {
                self.ended.set(true);
                Err(Silence::End)
            }
        }
    }

    /// Has a frame written. A peer that is gone is learnt by never coming back from here: the driver drops the visit.
    ///
    /// # Errors
    /// Some of the frame could not be read from its mapping. Zeros were sent in its place, so that the framing still holds;
    /// what the pack says is lost.
    pub async fn send(&self, frame: Frame) -> Result<(), Torn> {
        if frame.is_empty() {
            return Ok(());
        }
        self.sent.set(self.sent.get() + frame.size() as u64);
        let outcome = self.step(Step::Send(frame)).await;
        self.last_sent.set(self.now());
        let Outcome::Torn(frame, written) = outcome else { return Ok(()) };
        self.step(Step::Send(frame.mended(written))).await;
        self.last_sent.set(self.now());
        Err(Torn)
    }

    /// Gives the loop back once.
    pub async fn breathe(&self) {
        self.step(Step::Slice).await;
    }

    /// Lets others work for so long.
    pub async fn pause(&self, time: Duration) {
        self.step(Step::Wait(time)).await;
    }

    /// Asks for a snapshot.
    ///
    /// # Errors
    /// There is no such repository, or none that can be served.
    pub async fn snapshot(&self, path: &[u8], fresh: bool) -> Result<Arc<Snapshot>, Absent> {
        match self.step(Step::Need(Need::Snapshot { path: path.to_vec(), fresh })).await {
            Outcome::Snapshot(answer) => answer,
            _ => Err(Absent::NotFound),
        }
    }

    /// Asks for a snapshot that shows only some refs.
    ///
    /// # Errors
    /// None was made.
    pub async fn narrowed(&self, snapshot: Arc<Snapshot>, limit: Arc<RefLimit>) -> Result<Arc<Snapshot>, Absent> {
        match self.step(Step::Need(Need::Narrowed { snapshot, limit })).await {
            Outcome::Snapshot(answer) => answer,
            _ => Err(Absent::NotFound),
        }
    }

    /// Asks for a loose object.
    pub async fn loose(&self, snapshot: &Arc<Snapshot>, ask: Ask) -> Loose {
        match self.step(Step::Need(Need::Loose { snapshot: Arc::clone(snapshot), ask })).await {
            Outcome::Loose(answer) => answer,
            _ => Loose::Broken,
        }
    }

    /// The first part of a large loose object, or the next one. `None` when it cannot be read.
    pub async fn part(&self, need: Need) -> Option<LargePart> {
        match self.step(Step::Need(need)).await {
            Outcome::Part(part) => part,
            _ => None,
        }
    }

    /// Runs a slice of `work`; `None` when it needs more. What it asks for is answered in between.
    pub async fn slice<T>(
        &self,
        pace: &Pace,
        snapshot: &Arc<Snapshot>,
        work: std::pin::Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let mut work = work;
        pace.refill();
        loop {
            let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            if let Poll::Ready(done) = polled {
                return Some(done);
            }
            match pace.asked() {
                Some(ask) => {
                    let answer = self.loose(snapshot, ask).await;
                    pace.answer(answer);
                }
                None => return None,
            }
        }
    }

    /// Runs `work` to its end, a slice at a time.
    pub async fn finish<T>(&self, pace: &Pace, snapshot: &Arc<Snapshot>, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            if let Some(done) = self.slice(pace, snapshot, work.as_mut()).await {
                return done;
            }
            self.breathe().await;
        }
    }

    async fn step(&self, step: Step) -> Outcome {
        *self.step.borrow_mut() = Some(step);
        std::future::poll_fn(|_| self.outcome.borrow_mut().take().map_or(Poll::Pending, Poll::Ready)).await
    }
}

/// One visit and its desk, as the driver holds them.
pub struct Counter {
    desk: Rc<Desk>,
    visit: std::pin::Pin<Box<dyn Future<Output = ()>>>,
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counter").field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl Counter {
    /// Sets `visit` up at a new desk.
    pub fn new<V: Future<Output = ()> + 'static>(visit: impl FnOnce(Rc<Desk>) -> V) -> Self {
        let desk = Rc::new(Desk::default());
        Self { visit: Box::pin(visit(Rc::clone(&desk))), desk }
    }

    /// Bytes came.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.desk.input.borrow_mut().extend_from_slice(bytes);
        self.hand_in(Outcome::Bytes);
    }

    /// The peer will send nothing more.
    pub fn handle_end(&mut self) {
        self.hand_in(Outcome::End);
    }

    /// Nothing came until the deadline.
    pub fn handle_deadline(&mut self) {
        self.hand_in(Outcome::Deadline);
    }

    /// The frame is fully written.
    pub fn handle_sent(&mut self) {
        self.hand_in(Outcome::Sent);
    }

    /// Only so many bytes of the frame were written: the rest cannot be read from its mapping.
    pub fn handle_torn(&mut self, frame: Frame, written: usize) {
        self.hand_in(Outcome::Torn(frame, written));
    }

    /// Others had their turn.
    pub fn handle_turn(&mut self) {
        self.hand_in(Outcome::Turn);
    }

    /// The repository that was asked for.
    pub fn handle_snapshot(&mut self, snapshot: Result<Arc<Snapshot>, Absent>) {
        self.hand_in(Outcome::Snapshot(snapshot));
    }

    /// The loose object that was asked for.
    pub fn handle_loose(&mut self, loose: Loose) {
        self.hand_in(Outcome::Loose(loose));
    }

    /// The part of a large object that was asked for; `None` when it cannot be read.
    pub fn handle_part(&mut self, part: Option<LargePart>) {
        self.hand_in(Outcome::Part(part));
    }

    /// Records of requests that were answered since the last call.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.desk.records.borrow_mut())
    }

    fn hand_in(&mut self, outcome: Outcome) {
        *self.desk.outcome.borrow_mut() = Some(outcome);
    }

    /// Lets the visit go on to its next step. `now` is the time since the start of the driver's clock.
    pub fn poll(&mut self, now: Duration) -> Step {
        self.desk.now.set(now);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match self.visit.as_mut().poll(&mut context) {
            Poll::Ready(()) => Step::Close,
            Poll::Pending => self.desk.step.borrow_mut().take().unwrap_or(Step::Slice),
        }
    }
}
