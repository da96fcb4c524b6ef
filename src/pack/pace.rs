//! How long work is cut: the only thing a walk knows of the loop it runs on.
//!
//! Work in this room is written as plain `async` functions without a runtime. They stop for two reasons only: their slice
//! of CPU is used up, or they need a loose object, which this room cannot read. Whoever polls them looks here for the
//! reason, answers it, and polls again. No clock, no waker, no thread: units of work are counted, a unit being about
//! what one byte of inflating costs.
//! Read first: `work_stops_when_its_slice_is_used_up`.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::pin,
    rc::Rc,
    task::Poll,
};

use super::{entry::ObjectType, fault::Fault};
use crate::oid::ObjectId;

/// Units of one slice: about 300 microseconds of inflating at 500 MB/s.
pub const SLICE_UNITS: u32 = 150_000;

/// Something only the caller can fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Is there a loose object of that id, and of what type and size?
    Look(ObjectId),
    /// The content of that loose object.
    Read(ObjectId),
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loose {
    /// There is none.
    Absent,
    /// It exists; its content was not asked for, or is too large to be handed over whole.
    Seen {
        /// Its type.
        object: ObjectType,
        /// Bytes of its content.
        size: u64,
    },
    /// Its content.
    Whole {
        /// Its type.
        object: ObjectType,
        /// Its bytes without the loose header.
        bytes: Vec<u8>,
    },
    /// It is there and cannot be read.
    Broken,
}

/// One end is held by the work, the other by who polls it.
#[derive(Clone, Debug, Default)]
pub struct Pace(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    left: Cell<u32>,
    ask: Cell<Option<Ask>>,
    answer: RefCell<Option<Loose>>,
    /// Objects counted so far, for the progress a person sees.
    counted: Cell<u64>,
}

impl Pace {
    /// Takes `units` from the slice; true when nothing is left and the work should [`Self::breathe`].
    #[must_use]
    pub fn spend(&self, units: usize) -> bool {
        let left = self.0.left.get().saturating_sub(u32::try_from(units).unwrap_or(u32::MAX));
        self.0.left.set(left);
        left == 0
    }

    /// Gives the loop back once.
    pub async fn breathe(&self) {
        let mut stopped = false;
        std::future::poll_fn(|_| if std::mem::replace(&mut stopped, true) { Poll::Ready(()) } else { Poll::Pending })
            .await;
    }

    /// Spends, and breathes when that used the slice up.
    pub async fn work(&self, units: usize) {
        if self.spend(units) {
            self.breathe().await;
        }
    }

    /// Has the caller look for a loose object.
    ///
    /// # Errors
    /// The object is there and broken.
    pub async fn ask(&self, ask: Ask) -> Result<Loose, Fault> {
        self.0.ask.set(Some(ask));
        let answer =
            std::future::poll_fn(|_| self.0.answer.borrow_mut().take().map_or(Poll::Pending, Poll::Ready)).await;
        match (answer, ask) {
            (Loose::Broken, Ask::Look(id) | Ask::Read(id)) => Err(Fault::BrokenLoose { id }),
            (answer, _) => Ok(answer),
        }
    }

    /// Adds to what was counted.
    pub fn count(&self, objects: u64) {
        self.0.counted.set(self.0.counted.get() + objects);
    }

    /// Objects counted so far.
    pub fn counted(&self) -> u64 {
        self.0.counted.get()
    }

    /// For the poller: a new slice.
    pub fn refill(&self) {
        self.0.left.set(SLICE_UNITS);
    }

    /// For the poller, after `Pending`: what is asked for; nothing means the slice was used up.
    pub fn asked(&self) -> Option<Ask> {
        self.0.ask.take()
    }

    /// For the poller: answers what was asked.
    pub fn answer(&self, answer: Loose) {
        *self.0.answer.borrow_mut() = Some(answer);
    }

    /// Runs work to its end on this thread, answering each ask by `loose`: for command line, benches and tests.
    pub fn run<T>(&self, work: impl Future<Output = T>, mut loose: impl FnMut(Ask) -> Loose) -> T {
        let mut work = pin!(work);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            self.refill();
            if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
                return done;
            }
            if let Some(ask) = self.asked() {
                self.answer(loose(ask));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_stops_when_its_slice_is_used_up() {
        let pace = Pace::default();
        let own = pace.clone();
        let mut work = pin!(async move {
            for _ in 0..10 {
                own.work(SLICE_UNITS as usize / 4).await;
            }
        });
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut slices = 0;
        loop {
            pace.refill();
            slices += 1;
            if work.as_mut().poll(&mut context).is_ready() {
                break;
            }
            assert_eq!(pace.asked(), None);
        }
        assert_eq!(slices, 3);
    }

    #[test]
    fn an_ask_is_answered_by_whoever_polls() {
        let id = ObjectId::null(gix_hash::Kind::Sha1);
        let pace = Pace::default();
        let own = pace.clone();
        let work = async move { (own.ask(Ask::Look(id)).await, own.ask(Ask::Read(id)).await) };
        let answers = pace.run(work, |ask| match ask {
            Ask::Look(_) => Loose::Seen { object: ObjectType::Blob, size: 3 },
            Ask::Read(_) => Loose::Broken,
        });
        assert_eq!(answers.0, Ok(Loose::Seen { object: ObjectType::Blob, size: 3 }));
        assert_eq!(answers.1, Err(Fault::BrokenLoose { id }));
    }
}
