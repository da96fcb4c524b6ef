//! Seals: the proof that a pack holds exactly what its own commits and tags reach, and those of them that reach it all.
//!
//! A pack never changes, so a seal holds for ever; it may be kept as text, beside which nothing of the pack is needed. Knows no
//! file. Invariant: a seal is made only from a selection that was compared with the pack object by object.
//! Read first: `only_a_pack_without_unreachable_objects_is_proved_sealed`.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{
    checksum::Checksum, entry::ObjectType, fault::Fault, marks::Marks, objects::Objects, packfile::Pack, store::Store,
    walk::Question, ways::select_far,
};
use crate::{
    limits,
    oid::{Kind, ObjectId, from_hex, push_hex},
};

/// What reaches all of a sealed pack and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// Commits.
    pub commits: Box<[ObjectId]>,
    /// Annotated tags.
    pub tags: Box<[ObjectId]>,
}

impl Seal {
    /// All its ids.
    pub fn tips(&self) -> impl Iterator<Item = &ObjectId> {
        self.commits.iter().chain(&self.tags)
    }

    /// As text, to be kept: lines of `commit <id>` and `tag <id>`, then the SHA-256 of them and of the pack's trailer.
    pub fn text(&self, pack: &ObjectId) -> Vec<u8> {
        let mut text = Vec::new();
        for (ids, name) in [(&self.commits, "commit "), (&self.tags, "tag ")] {
            for id in ids {
                text.extend_from_slice(name.as_bytes());
                push_hex(&mut text, id);
                text.push(b'\n');
            }
        }
        let sum = sum_of(&text, pack);
        text.extend_from_slice(b"seal ");
        push_hex(&mut text, &sum);
        text.push(b'\n');
        text
    }

    /// Reads what [`Self::text`] wrote for the pack with that trailer; nothing if a byte of it is another.
    pub fn parse(text: &[u8], pack: &ObjectId) -> Option<Self> {
        let last = text.len().checked_sub(b"seal \n".len() + Kind::Sha256.len_in_hex())?;
        let (body, end) = text.split_at_checked(last)?;
        let sum = from_hex(Kind::Sha256, end.strip_prefix(b"seal ")?.strip_suffix(b"\n")?)?;
        if sum != sum_of(body, pack) {
            return None;
        }
        let (mut commits, mut tags) = (Vec::new(), Vec::new());
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match line.strip_prefix(b"commit ") {
                Some(hex) => commits.push(from_hex(pack.kind(), hex)?),
                None => tags.push(from_hex(pack.kind(), line.strip_prefix(b"tag ")?)?),
            }
        }
        Some(Self { commits: commits.into(), tags: tags.into() })
    }
}

fn sum_of(body: &[u8], pack: &ObjectId) -> ObjectId {
    let mut sum = Checksum::new(Kind::Sha256);
    sum.update(pack.as_bytes());
    sum.update(body);
    sum.finish()
}

/// Proves, or not, that the pack of that number is sealed. Costs about a clone of it, so let it run when there is nothing else to
/// do; the pack remembers the proof. `None` when nothing can be proved: there is no such pack, or the repository is shallow.
///
/// # Errors
/// An object of the pack is damaged.
pub async fn prove_sealed(objects: &mut Objects, number: usize) -> Result<Option<bool>, Fault> {
    let store = Arc::clone(objects.store());
    let Some(pack) = store.packs().get(number).filter(|_| !objects.is_shallow()) else { return Ok(None) };
    if pack.is_sealed() {
        return Ok(Some(true));
    }
    let positions = positions_of(objects, &store, number).await;
    let (seal, wants) = tips_of(objects, &positions).await?;
    if seal.commits.len() > limits::SEAL_TIPS_MAX {
        return Ok(None);
    }
    let question = Question { wants, ..Question::default() };
    let chosen = match select_far(objects, &question).await {
        Ok((selection, _)) => selection.chosen,
        // What it names is elsewhere: then it is no whole.
        Err(Fault::Missing { .. }) => return Ok(Some(false)),
        Err(fault) => return Err(fault),
    };
    let is_sealed = holds_exactly(&chosen, &positions);
    if is_sealed {
        pack.learn_sealed(seal);
    }
    Ok(Some(is_sealed))
}

/// The position that answers for each object of a pack, in index order.
pub(super) async fn positions_of(objects: &Objects, store: &Store, number: usize) -> Vec<u32> {
    let Some(pack) = store.packs().get(number) else { return Vec::new() };
    let start = store.start_of(number);
    let mut positions = Vec::with_capacity(pack.count() as usize);
    for index in 0..pack.count() {
        // The first pack answers for all it holds.
        let found = if number == 0 { None } else { pack.id_at(index).and_then(|id| store.find(id)) };
        positions.push(found.unwrap_or(start + index));
        objects.pace().work(COST_OF_LOOK).await;
    }
    positions
}

/// Commits that are no parent of another, tags no other tag names, and the commits these name.
async fn tips_of(objects: &mut Objects, positions: &[u32]) -> Result<(Seal, Vec<u32>), Fault> {
    let (mut commits, mut tags, mut tagged) = (Vec::new(), Vec::new(), Vec::new());
    let mut below = FxHashSet::default();
    for position in positions {
        match objects.type_of(*position)? {
            ObjectType::Commit => {
                let commit = objects.commit(*position).await?;
                below.extend(objects.parents(&commit));
                commits.push(*position);
            }
            ObjectType::Tag => {
                let target = objects.tagged(*position).await?;
                if let Some(tag) = objects.locate(&target).await?
                    && objects.type_of(tag)? == ObjectType::Tag
                {
                    below.insert(tag);
                }
                tags.push(*position);
                tagged.push(objects.peel(*position).await?);
            }
            ObjectType::Tree | ObjectType::Blob => {}
        }
        objects.pace().work(COST_OF_LOOK).await;
    }
    for found in [&mut commits, &mut tags] {
        found.retain(|position| !below.contains(position));
    }
    // A walk that begins at a tag has to meet a known commit at once.
    for position in tagged {
        if objects.type_of(position)? == ObjectType::Commit {
            commits.push(position);
        }
    }
    commits.sort_unstable();
    commits.dedup();
    let ids = |found: &[u32]| found.iter().map(|position| objects.id(*position)).collect::<Result<Box<[_]>, _>>();
    Ok((Seal { commits: ids(&commits)?, tags: ids(&tags)? }, [commits, tags].concat()))
}

/// The seal that wants have found, if what they chose is exactly one of these packs: then that was the proof, for nothing.
///
/// # Errors
/// A want is not here, or damaged.
pub async fn learn_from(objects: &mut Objects, wants: &[u32], chosen: &Marks) -> Result<(), Fault> {
    let store = Arc::clone(objects.store());
    let Some((number, pack)) = whole_of(&store, chosen).filter(|(_, pack)| !pack.is_sealed()) else { return Ok(()) };
    if objects.is_shallow() || wants.len() > limits::SEAL_TIPS_MAX || store.start_of(number) > 0 {
        return Ok(());
    }
    let (mut commits, mut tags) = (Vec::new(), Vec::new());
    for want in wants {
        match objects.type_of(*want)? {
            ObjectType::Commit => commits.push(objects.id(*want)?),
            ObjectType::Tag => {
                tags.push(objects.id(*want)?);
                let named = objects.peel(*want).await?;
                if objects.type_of(named)? == ObjectType::Commit {
                    commits.push(objects.id(named)?);
                }
            }
            // A tree or blob somebody asked for by name is reached by no commit of the pack, perhaps.
            ObjectType::Tree | ObjectType::Blob => return Ok(()),
        }
    }
    for ids in [&mut commits, &mut tags] {
        ids.sort_unstable();
        ids.dedup();
    }
    pack.learn_sealed(Seal { commits: commits.into(), tags: tags.into() });
    Ok(())
}

/// The first pack, if all of it was chosen and nothing else.
fn whole_of<'s>(store: &'s Store, chosen: &Marks) -> Option<(usize, &'s Arc<Pack>)> {
    let pack = store.packs().first()?;
    let count = u64::from(pack.count());
    (count > 0 && chosen.count() == count && chosen.count_between(0, pack.count()) == count).then_some((0, pack))
}

fn holds_exactly(marks: &Marks, positions: &[u32]) -> bool {
    marks.count() == positions.len() as u64 && positions.iter().all(|position| marks.contains(*position))
}

/// Units of one look at an index or an entry's head.
const COST_OF_LOOK: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{
        Pace,
        fixture::Repository,
        tests::{tagged, tips},
        walk::select,
    };

    fn prove(repository: &Repository) -> (Option<bool>, Arc<Store>) {
        let store = repository.store();
        let mut objects = Objects::new(Arc::clone(&store), &[], Pace::default());
        let pace = objects.pace().clone();
        (repository.run(&pace, prove_sealed(&mut objects, 0)).unwrap(), store)
    }

    #[test]
    fn packs_without_a_bitmap_are_proved_by_a_walk() {
        let repository = tagged(96);
        let (proved, store) = prove(&repository);
        assert_eq!(proved, Some(true));
        let seal = store.packs()[0].seal().unwrap();
        let named = [tips(&repository), repository.ids(&["rev-list", "--no-walk", "--all"])].concat();
        assert!(seal.tips().all(|tip| named.contains(tip)), "each tip of the pack is named by a ref: {seal:?}");
        assert!(!seal.tags.is_empty() && !seal.commits.is_empty());
        // A commit that no ref names is a tip of its own pack all the same; a blob that nothing names is not.
        repository.git_fed(&["hash-object", "-w", "--stdin"], b"nobody names me");
        repository.git(&["repack", "-adbfkq"]);
        let (proved, store) = prove(&repository);
        assert!(proved == Some(false) && !store.packs()[0].is_sealed());
    }

    #[test]
    fn a_pack_that_needs_another_is_not_sealed() {
        let repository = tagged(97);
        repository.go_on(97, 40);
        repository.git(&["repack", "-q"]);
        let store = repository.store();
        assert_eq!(store.packs().len(), 2);
        let largest = (0..2).max_by_key(|number| store.packs()[*number].count()).unwrap();
        for (number, expected) in [(1 - largest, Some(false)), (largest, Some(true)), (2, None)] {
            let mut objects = Objects::new(Arc::clone(&store), &[], Pace::default());
            let pace = objects.pace().clone();
            let proved = repository.run(&pace, prove_sealed(&mut objects, number)).unwrap();
            assert_eq!(proved, expected, "pack {number}");
        }
    }

    #[test]
    fn a_clone_of_one_whole_pack_seals_it() {
        let repository = tagged(98);
        let store = repository.store();
        for (wants, sealed) in [(&tips(&repository)[..1], false), (&tips(&repository)[..], true)] {
            let mut objects = Objects::new(Arc::clone(&store), &[], Pace::default());
            let pace = objects.pace().clone();
            let question = Question { wants: repository.locate(&mut objects, wants), ..Question::default() };
            let found = repository.run(&pace, select(&mut objects, &question)).unwrap();
            repository.run(&pace, learn_from(&mut objects, &question.wants, &found.chosen)).unwrap();
            assert_eq!(store.packs()[0].is_sealed(), sealed);
        }
    }

    #[test]
    fn a_blob_that_was_wanted_by_name_proves_nothing() {
        let repository = tagged(99);
        let store = repository.store();
        let mut objects = Objects::new(Arc::clone(&store), &[], Pace::default());
        let mut wants = repository.locate(&mut objects, &tips(&repository));
        wants.push((0..store.total()).find(|at| objects.type_of(*at) == Ok(ObjectType::Blob)).unwrap());
        let mut all = Marks::default();
        for position in 0..store.total() {
            all.insert(position);
        }
        let pace = objects.pace().clone();
        repository.run(&pace, learn_from(&mut objects, &wants, &all)).unwrap();
        assert!(!store.packs()[0].is_sealed());
    }

    #[test]
    fn a_seal_is_read_as_it_was_written_and_no_other() {
        let pack = ObjectId::from([7; 20]);
        let seal = Seal {
            commits: vec![ObjectId::from([1; 20]), ObjectId::from([2; 20])].into(),
            tags: vec![ObjectId::from([3; 20])].into(),
        };
        let text = seal.text(&pack);
        assert_eq!(Seal::parse(&text, &pack), Some(seal));
        assert_eq!(Seal::parse(&text, &ObjectId::from([8; 20])), None);
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 1;
            assert_eq!(Seal::parse(&other, &pack), None, "byte {at}");
            assert_eq!(Seal::parse(&text[..at], &pack), None, "{at} bytes");
        }
        let none = Seal::default();
        assert_eq!(Seal::parse(&none.text(&pack), &pack), Some(none));
    }
}
