//! Closures: what a walk found is kept, so that the next walk of the same repository looks only at what is new.
//!
//! Walks nothing itself ([`super::walk`] does). A closure is all that some tips reach, as bits over packs; packs are immutable,
//! so it stays true as long as its packs are there. Invariants: a closure is used only for wants that reach all of its tips;
//! bytes held stay within the bound; the lock is held for list operations only.
//! Read first: `a_walk_beyond_a_closure_chooses_what_a_whole_walk_chooses`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashSet;

use super::{
    entry::ObjectType,
    fault::Fault,
    marks::Marks,
    objects::Objects,
    packfile::Pack,
    reach,
    store::Store,
    walk::{Question, Selection, select_beyond},
};
use crate::oid::ObjectId;

/// All that some tips reach.
#[derive(Debug)]
pub struct Closure {
    /// Commits.
    tips: Vec<ObjectId>,
    /// Other objects that were wanted by name: tags, trees, blobs.
    named: Vec<ObjectId>,
    /// Marked index positions of each pack, by the pack's trailer.
    parts: Vec<(ObjectId, Marks)>,
    objects: u64,
}

impl Closure {
    /// Keeps what was found for `question`. `None` when that is no closure, or when it has loose objects, which may be packed
    /// or gone the next time.
    ///
    /// # Errors
    /// A wanted object is damaged.
    pub async fn of(objects: &mut Objects, question: &Question, selection: &Selection) -> Result<Option<Self>, Fault> {
        let store = Arc::clone(objects.store());
        if objects.is_shallow() || !is_closure(question) || selection.chosen.iter_from(store.total()).next().is_some() {
            return Ok(None);
        }
        let (mut tips, mut named) = (Vec::new(), Vec::new());
        for want in &question.wants {
            let commit = objects.peel(*want).await?;
            if objects.type_of(commit)? == ObjectType::Commit {
                tips.push(objects.id(commit)?);
            }
            if commit != *want || objects.type_of(commit)? != ObjectType::Commit {
                named.push(objects.id(*want)?);
            }
        }
        for ids in [&mut tips, &mut named] {
            ids.sort_unstable();
            ids.dedup();
        }
        let part = |(number, pack): (usize, &Arc<super::Pack>)| {
            let start = store.start_of(number);
            let mut marks = Marks::default();
            let own = selection.chosen.iter_from(start).take_while(|position| *position < start + pack.count());
            for position in own {
                marks.insert(position - start);
            }
            (marks.count() > 0).then(|| (*pack.trailer(), marks))
        };
        let parts = store.packs().iter().enumerate().filter_map(part).collect();
        Ok(Some(Self { tips, named, parts, objects: selection.chosen.count() }))
    }

    /// All of a sealed pack.
    fn of_sealed(pack: &Pack) -> Option<Self> {
        let seal = pack.seal()?;
        let mut all = Marks::with_room(pack.count());
        for index in 0..pack.count() {
            all.insert(index);
        }
        Some(Self {
            tips: seal.commits.to_vec(),
            named: seal.tags.to_vec(),
            parts: vec![(*pack.trailer(), all)],
            objects: u64::from(pack.count()),
        })
    }

    /// The closure as positions of `store`; `None` when one of its packs is not there, or answers for other objects now.
    fn marks_in(&self, store: &Store) -> Option<Marks> {
        let mut marks = Marks::with_room(store.total());
        for (trailer, part) in &self.parts {
            let number = store.packs().iter().position(|pack| pack.trailer() == trailer)?;
            let (pack, start) = (store.packs().get(number)?, store.start_of(number));
            // An object that stands in several packs has one position; another pack may have come before this one.
            let may_be_elsewhere = number > 0;
            for index in part.iter_from(0) {
                let position = start + index;
                if may_be_elsewhere && store.find(pack.id_at(index)?)? != position {
                    return None;
                }
                marks.insert(position);
            }
        }
        (marks.count() == self.objects).then_some(marks)
    }

    fn held(&self) -> usize {
        let words: usize = self.parts.iter().map(|part| part.1.held()).sum();
        words + (self.tips.len() + self.named.len()) * size_of::<ObjectId>() + size_of::<Self>()
    }
}

/// Whether the answer to a question is all that its wants reach.
fn is_closure(question: &Question) -> bool {
    question.haves.is_empty() && question.cut.is_empty() && question.omit.is_nothing() && question.sparse.is_none()
}

/// Answers a question by walking beyond a closure. `None` when it does not help: a pack of it is gone, or the wants do not
/// reach all of its tips.
///
/// # Errors
/// An object that should be there is missing or damaged.
pub async fn select_from(
    objects: &mut Objects,
    question: &Question,
    closure: &Closure,
) -> Result<Option<Selection>, Fault> {
    if objects.is_shallow() || !is_closure(question) {
        return Ok(None);
    }
    let wants: FxHashSet<u32> = question.wants.iter().copied().collect();
    for id in &closure.named {
        match objects.locate(id).await? {
            Some(position) if wants.contains(&position) => {}
            _ => return Ok(None),
        }
    }
    let mut tips = Vec::with_capacity(closure.tips.len());
    for id in &closure.tips {
        let Some(position) = objects.locate(id).await? else { return Ok(None) };
        tips.push(position);
    }
    // An update moves a few tips. Where many are not wanted any more, the question is another one, and finding out whether they
    // are reached would cost what the closure saves.
    let moved: Vec<u32> = tips.iter().copied().filter(|tip| !wants.contains(tip)).collect();
    if moved.len() > MOVED_MAX || !reach::unreachable(objects, &moved, &question.wants).await?.is_empty() {
        return Ok(None);
    }
    let Some(known) = closure.marks_in(objects.store()) else { return Ok(None) };
    // All that a known object reaches is known: only the others lead anywhere new, and where there are none nothing is read.
    let fresh: Vec<u32> = question.wants.iter().copied().filter(|want| !known.contains(*want)).collect();
    if fresh.is_empty() {
        return Ok(Some(Selection { chosen: known, common: Marks::default() }));
    }
    let beyond = Question { wants: fresh, ..question.clone() };
    select_beyond(objects, &beyond, &tips, known).await.map(Some)
}

/// Closures of all repositories, as many as may be held.
#[derive(Debug)]
pub struct Closures {
    /// Most lately used last.
    kept: Mutex<Vec<Arc<Closure>>>,
    held_max: usize,
}

impl Closures {
    /// None yet; `held_max` bytes at most.
    pub fn new(held_max: usize) -> Self {
        Self { kept: Mutex::default(), held_max }
    }

    /// Closures whose packs are all in `store`, largest first: those that were kept, and the largest sealed pack.
    pub fn find(&self, store: &Store) -> Vec<Arc<Closure>> {
        let fits = |closure: &Closure| {
            closure.parts.iter().all(|(trailer, _)| store.packs().iter().any(|pack| pack.trailer() == trailer))
        };
        let mut found: Vec<Arc<Closure>> = self.lock().iter().filter(|closure| fits(closure)).cloned().collect();
        let sealed = store.packs().iter().filter(|pack| pack.is_sealed()).max_by_key(|pack| pack.count());
        found.extend(sealed.and_then(|pack| Closure::of_sealed(pack)).map(Arc::new));
        found.sort_by_key(|closure| std::cmp::Reverse(closure.objects));
        found.truncate(TRIED_MAX);
        found
    }

    /// Notes that a closure was of use: it is dropped later than others.
    pub fn used(&self, closure: &Arc<Closure>) {
        let mut kept = self.lock();
        if let Some(found) = kept.iter().position(|other| Arc::ptr_eq(other, closure)) {
            let closure = kept.remove(found);
            kept.push(closure);
        }
    }

    /// Keeps a closure; those that were not used the longest make room for it.
    pub fn keep(&self, closure: Closure) {
        let mut kept = self.lock();
        kept.retain(|other| {
            (&other.tips, &other.named, other.objects) != (&closure.tips, &closure.named, closure.objects)
        });
        kept.push(Arc::new(closure));
        while kept.len() > 1
            && (kept.len() > KEPT_MAX || kept.iter().map(|closure| closure.held()).sum::<usize>() > self.held_max)
        {
            kept.remove(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Closure>>> {
        // A list of immutable closures is sound whatever happened to who held it.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tips of a closure that may have moved.
const MOVED_MAX: usize = 256;
/// Closures tried for one question: each costs a look at its tips.
const TRIED_MAX: usize = 4;
/// Closures kept at most: finding one looks at all.
const KEPT_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{Pace, fixture::Repository, seal::prove_sealed, walk::select};

    fn tips(repository: &Repository) -> Vec<ObjectId> {
        repository.ids(&["for-each-ref", "--format=%(objectname)"])
    }

    fn question(objects: &mut Objects, repository: &Repository, tips: &[ObjectId]) -> Question {
        Question { wants: repository.locate(objects, tips), ..Question::default() }
    }

    #[test]
    fn a_walk_beyond_a_closure_chooses_what_a_whole_walk_chooses() {
        for seed in 40..46 {
            let repository = Repository::packed(seed, 30);
            let mut objects = repository.objects();
            let pace = objects.pace().clone();
            let asked = question(&mut objects, &repository, &tips(&repository));
            let found = repository.run(&pace, select(&mut objects, &asked)).unwrap();
            let closure = repository.run(&pace, Closure::of(&mut objects, &asked, &found)).unwrap().unwrap();
            repository.go_on(seed, 8);
            repository.git(&["repack", "-q"]);
            let after = tips(&repository);
            let mut objects = repository.objects();
            let pace = objects.pace().clone();
            let asked = question(&mut objects, &repository, &after);
            let whole = repository.run(&pace, select(&mut objects, &asked)).unwrap();
            let beyond = repository.run(&pace, select_from(&mut objects, &asked, &closure)).unwrap();
            let beyond = beyond.expect("the tips are reached and the packs are there");
            let ids = |selection: &Selection| selection.chosen.iter_from(0).collect::<Vec<_>>();
            assert_eq!(ids(&beyond), ids(&whole), "seed {seed}");
            assert!(whole.chosen.count() > found.chosen.count(), "something is new");
            // Wants that do not reach every tip of the closure must not get it.
            let asked = question(&mut objects, &repository, &after[..1]);
            let part = repository.run(&pace, select_from(&mut objects, &asked, &closure)).unwrap();
            assert!(part.is_none(), "seed {seed}: what one tip does not reach would be sent");
        }
    }

    #[test]
    fn the_largest_closure_that_answers_is_found_behind_larger_ones() {
        let repository = Repository::packed(47, 30);
        let (store, kept) = (repository.store(), Closures::new(1 << 20));
        let mut objects = Objects::new(Arc::clone(&store), &[], Pace::default());
        let pace = objects.pace().clone();
        repository.run(&pace, prove_sealed(&mut objects, 0)).unwrap().unwrap();
        let part = question(&mut objects, &repository, &tips(&repository)[..1]);
        let found = repository.run(&pace, select(&mut objects, &part)).unwrap();
        kept.keep(repository.run(&pace, Closure::of(&mut objects, &part, &found)).unwrap().unwrap());
        let candidates = kept.find(&store);
        assert_eq!(candidates.len(), 2);
        let all = question(&mut objects, &repository, &tips(&repository));
        for (asked, answers) in [(&part, [false, true]), (&all, [true, true])] {
            for (closure, answers) in candidates.iter().zip(answers) {
                let selection = repository.run(&pace, select_from(&mut objects, asked, closure)).unwrap();
                let expected = repository.run(&pace, select(&mut objects, asked)).unwrap().chosen;
                assert_eq!(selection.map(|selection| selection.chosen), answers.then_some(expected));
            }
        }
    }

    #[test]
    fn a_shallow_repository_takes_no_closure() {
        let repository = Repository::packed(48, 30);
        let store = repository.store();
        let mut objects = Objects::new(Arc::clone(&store), &[], Pace::default());
        let pace = objects.pace().clone();
        repository.run(&pace, prove_sealed(&mut objects, 0)).unwrap().unwrap();
        let cut = repository.ids(&["rev-list", "--all", "--max-count=1"]);
        let mut objects = Objects::new(Arc::clone(&store), &cut, Pace::default());
        let pace = objects.pace().clone();
        let asked = question(&mut objects, &repository, &tips(&repository));
        let sealed = Closures::new(0).find(&store);
        assert!(repository.run(&pace, select_from(&mut objects, &asked, &sealed[0])).unwrap().is_none());
    }

    #[test]
    fn closures_are_dropped_when_they_are_too_many() {
        let closure = |number: u8| Closure {
            tips: vec![ObjectId::from([number; 20])],
            named: Vec::new(),
            parts: vec![(ObjectId::from([number; 20]), Marks::with_room(64_000))],
            objects: 0,
        };
        let kept = Closures::new(30_000);
        for number in 0..9 {
            kept.keep(closure(number));
        }
        assert_eq!(kept.lock().len(), 3);
        // The same once more takes the place of the first.
        kept.keep(closure(8));
        assert_eq!(kept.lock().len(), 3);
    }
}
