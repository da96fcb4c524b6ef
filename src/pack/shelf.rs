//! Plans kept for whoever asks the same again: a key becomes a plan, made once however many ask at a time.
//!
//! Makes nothing and knows no request: a key is a hash that others computed. The only lock that loops share; it is held
//! for a few map operations and never across work. Invariants: bytes held stay within the bound; a plan that is being
//! made has one maker, and when that one gives up, the next who asks becomes it.
//! Read first: `one_makes_while_others_wait`.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use super::plan::Plan;

/// SHA-256 of everything an answer depends on.
pub type PlanKey = [u8; 32];

/// Plans by what they answer.
#[derive(Debug)]
pub struct Shelf(Mutex<Shelves>);

#[derive(Debug)]
struct Shelves {
    places: FxHashMap<PlanKey, Place>,
    /// Keys of kept plans, oldest use first; a key may stand here more than once.
    queue: VecDeque<(PlanKey, u64)>,
    held: usize,
    held_max: usize,
    uses: u64,
    tally: Tally,
}

#[derive(Debug)]
enum Place {
    Making,
    Kept { plan: Arc<Plan>, last_use: u64 },
}

/// What became of all askings so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Plans found ready.
    pub hits: u64,
    /// Plans that had to be made.
    pub builds: u64,
    /// Plans pushed out by others, or dropped with their packs.
    pub dropped: u64,
    /// Plans kept now.
    pub kept: u64,
    /// Bytes they hold.
    pub held: u64,
}

/// What the shelf says to a key.
#[derive(Debug)]
pub enum Found {
    /// Here it is.
    Ready(Arc<Plan>),
    /// Somebody is making it: ask again.
    InTheMaking,
    /// Nobody is: you are the maker.
    Yours(Promise),
}

/// Held by the maker of a plan. Dropped without [`Promise::keep`], it makes room for the next maker.
#[derive(Debug)]
pub struct Promise {
    shelf: Arc<Shelf>,
    key: PlanKey,
    kept: bool,
}

impl Shelf {
    /// An empty shelf for plans of `held_max` bytes in all, mappings not counted.
    pub fn new(held_max: usize) -> Self {
        Self(Mutex::new(Shelves {
            places: FxHashMap::default(),
            queue: VecDeque::new(),
            held: 0,
            held_max,
            uses: 0,
            tally: Tally::default(),
        }))
    }

    /// The plan for `key`, or who makes it.
    pub fn find(self: &Arc<Self>, key: PlanKey) -> Found {
        let mut shelves = self.lock();
        shelves.uses += 1;
        let uses = shelves.uses;
        match shelves.places.get_mut(&key) {
            Some(Place::Kept { plan, last_use }) => {
                *last_use = uses;
                let plan = Arc::clone(plan);
                shelves.queue.push_back((key, uses));
                shelves.tally.hits += 1;
                shelves.compact();
                Found::Ready(plan)
            }
            Some(Place::Making) => Found::InTheMaking,
            None => {
                shelves.places.insert(key, Place::Making);
                shelves.tally.builds += 1;
                Found::Yours(Promise { shelf: Arc::clone(self), key, kept: false })
            }
        }
    }

    /// Drops plans whose packs `is_gone` says are gone, so that deleted files are let go.
    pub fn sweep(&self, is_gone: impl Fn(&Plan) -> bool) {
        let mut shelves = self.lock();
        let gone = shelves.places.iter().filter_map(|(key, place)| match place {
            Place::Kept { plan, .. } if is_gone(plan) => Some(*key),
            _ => None,
        });
        let gone: Vec<PlanKey> = gone.collect();
        for key in gone {
            shelves.drop_plan(&key);
        }
    }

    /// What became of all askings so far.
    pub fn tally(&self) -> Tally {
        let shelves = self.lock();
        let kept = shelves.places.values().filter(|place| matches!(place, Place::Kept { .. })).count();
        Tally { kept: kept as u64, held: shelves.held as u64, ..shelves.tally }
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        // No code panics while holding it; if one did, a map of immutable plans is still sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Promise {
    /// Puts the plan on the shelf for the others. One that is too large for it is passed on only by its maker.
    pub fn keep(mut self, plan: &Arc<Plan>) {
        self.kept = true;
        let mut shelves = self.shelf.lock();
        let cost = plan.held() + COST_OF_KEEPING;
        if cost > shelves.held_max / 2 {
            shelves.places.remove(&self.key);
            return;
        }
        let last_use = shelves.uses;
        shelves.places.insert(self.key, Place::Kept { plan: Arc::clone(plan), last_use });
        shelves.queue.push_back((self.key, last_use));
        shelves.held += cost;
        shelves.shrink();
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.kept {
            self.shelf.lock().places.remove(&self.key);
        }
    }
}

impl Shelves {
    /// Drops the plans that were not asked for the longest until the bound holds.
    fn shrink(&mut self) {
        while self.held > self.held_max {
            let Some((key, use_at)) = self.queue.pop_front() else { break };
            if matches!(self.places.get(&key), Some(Place::Kept { last_use, .. }) if *last_use == use_at) {
                self.drop_plan(&key);
            }
        }
    }

    fn drop_plan(&mut self, key: &PlanKey) {
        if let Some(Place::Kept { plan, .. }) = self.places.remove(key) {
            self.held = self.held.saturating_sub(plan.held() + COST_OF_KEEPING);
            self.tally.dropped += 1;
        }
    }

    /// Forgets uses that later ones have outdated, so that the queue stays in proportion to the plans.
    fn compact(&mut self) {
        if self.queue.len() > 2 * self.places.len() + 64 {
            let places = &self.places;
            self.queue.retain(
                |(key, use_at)| matches!(places.get(key), Some(Place::Kept { last_use, .. }) if last_use == use_at),
            );
        }
    }
}

/// Bytes of bookkeeping of one kept plan.
const COST_OF_KEEPING: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(size: usize) -> Arc<Plan> {
        Arc::new(Plan::of_own_bytes(&vec![1; size]))
    }

    fn build(shelf: &Arc<Shelf>, name: u8, size: usize) {
        let Found::Yours(promise) = shelf.find([name; 32]) else { panic!("somebody else made it") };
        promise.keep(&plan(size));
    }

    #[test]
    fn one_makes_while_others_wait() {
        let shelf = Arc::new(Shelf::new(1_000_000));
        let Found::Yours(promise) = shelf.find([1; 32]) else { panic!() };
        assert!(matches!(shelf.find([1; 32]), Found::InTheMaking));
        let made = plan(10);
        promise.keep(&made);
        let Found::Ready(found) = shelf.find([1; 32]) else { panic!() };
        assert!(Arc::ptr_eq(&made, &found));
        assert_eq!((shelf.tally().hits, shelf.tally().builds), (1, 1));
    }

    #[test]
    fn a_maker_who_gives_up_makes_room_for_the_next() {
        let shelf = Arc::new(Shelf::new(1_000_000));
        drop(shelf.find([1; 32]));
        assert!(matches!(shelf.find([1; 32]), Found::Yours(_)));
    }

    #[test]
    fn the_bound_holds_and_what_is_asked_for_stays() {
        let shelf = Arc::new(Shelf::new(100_000));
        for name in 0..8 {
            build(&shelf, name, 20_000);
            let _ = shelf.find([0; 32]);
            assert!(shelf.tally().held <= 100_000);
        }
        assert!(matches!(shelf.find([0; 32]), Found::Ready(_)));
        assert!(matches!(shelf.find([7; 32]), Found::Ready(_)));
        assert!(matches!(shelf.find([1; 32]), Found::Yours(_)));
        assert!(shelf.tally().dropped >= 3);
    }

    #[test]
    fn a_plan_larger_than_half_the_shelf_is_not_kept() {
        let shelf = Arc::new(Shelf::new(10_000));
        build(&shelf, 1, 9_000);
        assert_eq!((shelf.tally().kept, shelf.tally().held), (0, 0));
    }

    #[test]
    fn many_uses_of_one_plan_hold_no_memory() {
        let shelf = Arc::new(Shelf::new(10_000));
        build(&shelf, 1, 100);
        for _ in 0..10_000 {
            assert!(matches!(shelf.find([1; 32]), Found::Ready(_)));
        }
        assert!(shelf.lock().queue.len() < 200);
    }

    #[test]
    fn a_sweep_drops_plans_of_packs_that_are_gone() {
        let shelf = Arc::new(Shelf::new(10_000));
        build(&shelf, 1, 100);
        build(&shelf, 2, 200);
        shelf.sweep(|plan| plan.size() == 100);
        assert_eq!(shelf.tally().kept, 1);
        assert!(matches!(shelf.find([2; 32]), Found::Ready(_)));
    }
}
