//! The best way to a selection: stored bitmaps where there are any, a walk where not.
//!
//! Wants are joined, haves subtracted; tips without a bitmap are walked only until they meet what is reached already. A
//! sealed pack, all commits and tags of which are reached, is reached as a whole.
//! Invariant: what is chosen is reachable from a want and from no have, exactly; a walk may choose a little more, since it
//! looks only at what is next to it. A broken bitmap file costs a walk, never an answer.
//! Source: gitformat-bitmap(5); git-config(1), "bitmapPseudoMerge".
//! Read first: `bitmaps_and_walks_choose_what_rev_list_lists`.

use std::{collections::BinaryHeap, sync::Arc};

use rustc_hash::FxHashSet;

use super::{
    bitmap::{BitmapError, Resolver, Stored},
    chart::{Chart, ChartError},
    entry::ObjectType,
    fault::Fault,
    marks::Marks,
    objects::Objects,
    seal,
    store::Store,
    tree::{EntryMode, TreeEntries},
    walk::{Question, Selection, select},
};
use crate::{
    limits,
    oid::{Kind, ObjectId, oid},
};

/// How a selection was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From stored bitmaps.
    Bitmaps(Used),
    /// By walking.
    Walk(Why),
}

/// What a selection from bitmaps took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Stored bitmaps joined.
    pub stored: u32,
    /// Pseudo-merges joined.
    pub merges: u32,
    /// Commits walked.
    pub commits: u32,
    /// Trees read.
    pub trees: u32,
    /// A sealed pack was reached as a whole.
    pub sealed: bool,
}

/// Why there was no better way than a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The store has no bitmap file.
    NoBitmaps,
    /// The question has a cut or leaves objects out.
    Question,
    /// The repository itself is shallow.
    Shallow,
    /// So few commits are newer than the haves that a walk is cheaper.
    Near {
        /// How many.
        commits: u32,
    },
    /// The haves are so many commits away from every stored bitmap that a walk is cheaper.
    Far {
        /// Commits walked before giving up.
        commits: u32,
    },
    /// The bitmap file is of no use.
    Broken(ChartError),
}

/// Finds what to send: from stored bitmaps if it can be, else by [`select`].
///
/// # Errors
/// An object that should be there is missing or damaged.
pub async fn select_by_bitmap(objects: &mut Objects, question: &Question) -> Result<(Selection, Way), Fault> {
    if !question.haves.is_empty()
        && objects.store().chart().is_some()
        && let Some(commits) = few_commits(objects, question).await?
    {
        return Ok((select(objects, question).await?, Way::Walk(Why::Near { commits })));
    }
    select_far(objects, question).await
}

/// How many commits are newer than the oldest have and not below another, if they are few: then a walk of those is cheaper
/// than the way from the haves to their nearest bitmaps.
async fn few_commits(objects: &mut Objects, question: &Question) -> Result<Option<u32>, Fault> {
    let (mut seen, mut oldest) = (FxHashSet::default(), u64::MAX);
    for have in &question.haves {
        if objects.type_of(*have)? == ObjectType::Commit
            && let Ok(commit) = objects.commit(*have).await
        {
            seen.insert(*have);
            oldest = oldest.min(commit.time);
        }
    }
    let (mut stack, mut commits) = (Vec::new(), 0);
    for want in &question.wants {
        stack.push(objects.peel(*want).await?);
    }
    while let Some(position) = stack.pop() {
        if !seen.insert(position) || objects.type_of(position)? != ObjectType::Commit {
            continue;
        }
        let commit = objects.commit(position).await?;
        if commit.time < oldest {
            continue;
        }
        commits += 1;
        if commits > limits::FEW_COMMITS {
            return Ok(None);
        }
        stack.extend_from_slice(objects.parents(&commit));
        objects.pace().work(COST_OF_COMMIT).await;
    }
    Ok((oldest != u64::MAX).then_some(commits))
}

/// The same without a look at how near the haves are.
///
/// # Errors
/// An object that should be there is missing or damaged.
pub(super) async fn select_far(objects: &mut Objects, question: &Question) -> Result<(Selection, Way), Fault> {
    let store = Arc::clone(objects.store());
    let why = match store.chart() {
        None => Why::NoBitmaps,
        Some(_) if objects.is_shallow() => Why::Shallow,
        Some(_) if !is_whole(question) => Why::Question,
        Some(chart) => match cover(objects, &store, chart, question).await {
            Ok((selection, used)) => return Ok((selection, Way::Bitmaps(used))),
            Err(Stop::Fault(fault)) => return Err(fault),
            Err(Stop::Chart(fault)) => Why::Broken(fault),
            Err(Stop::Far { commits }) => Why::Far { commits },
        },
    };
    Ok((select(objects, question).await?, Way::Walk(why)))
}

/// Whether everything reachable is asked for.
fn is_whole(question: &Question) -> bool {
    question.cut.is_empty() && question.omit.is_nothing() && question.sparse.is_none() && !question.edges_in_full
}

/// Why bitmaps do not give the answer.
enum Stop {
    Fault(Fault),
    Chart(ChartError),
    Far { commits: u32 },
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ChartError> for Stop {
    fn from(fault: ChartError) -> Self {
        Self::Chart(fault)
    }
}

impl From<BitmapError> for Stop {
    fn from(fault: BitmapError) -> Self {
        Self::Chart(fault.into())
    }
}

async fn cover(
    objects: &mut Objects,
    store: &Store,
    chart: &Chart,
    question: &Question,
) -> Result<(Selection, Used), Stop> {
    let pace = objects.pace().clone();
    let positions = chart.positions(store, &pace).await?;
    let reached = Marks::with_room(objects.total());
    let resolver = Resolver::new(chart.bitmaps());
    let (used, recent) = (Used::default(), Recent::new(store.kind()));
    let mut cover = Cover {
        objects,
        store,
        chart,
        positions,
        resolver,
        bits: Marks::default(),
        reached,
        recent,
        used,
        is_had: true,
    };
    cover.reach(&question.haves).await?;
    let common = cover.reached.clone();
    cover.is_had = false;
    cover.reach(&question.wants).await?;
    let (mut chosen, used) = (cover.reached, cover.used);
    if question.haves.is_empty() {
        seal::learn_from(objects, &question.wants, &chosen).await?;
    }
    chosen.subtract(&common);
    pace.count(chosen.count());
    Ok((Selection { chosen, common }, used))
}

/// What was reached so far: first from the haves, then from the wants.
struct Cover<'a> {
    objects: &'a mut Objects,
    store: &'a Store,
    chart: &'a Chart,
    /// Position for each bit.
    positions: &'a [u32],
    resolver: Resolver<'a>,
    /// The part of `reached` that came from bitmaps, as bits.
    bits: Marks,
    reached: Marks,
    recent: Recent,
    used: Used,
    /// Whether haves are at hand: what they lead to need not be here.
    is_had: bool,
}

impl Cover<'_> {
    /// Reaches everything below `tips`.
    async fn reach(&mut self, tips: &[u32]) -> Result<(), Stop> {
        let (mut commits, roots) = self.peel(tips).await?;
        // Newest first: what a bitmap of many covers, none of few is needed for.
        commits.sort_unstable_by(|one, other| other.cmp(one));
        self.add_merges(&commits)?;
        for (_, position) in &commits {
            if let Some(stored) = self.stored_and_new(*position) {
                self.add(stored).await?;
            }
        }
        self.add_merges(&commits)?;
        let trees = self.walk_commits(commits).await?;
        self.reach_sealed().await;
        for tree in trees.into_iter().chain(roots) {
            self.descend(tree).await?;
        }
        Ok(())
    }

    /// Follows tags; tells the commits with their times, and the trees.
    async fn peel(&mut self, tips: &[u32]) -> Result<(Vec<(u64, u32)>, Vec<u32>), Fault> {
        let (mut commits, mut roots) = (Vec::new(), Vec::new());
        for tip in tips {
            let mut position = *tip;
            for _ in 0..limits::TAG_DEPTH_MAX {
                match self.objects.type_of(position)? {
                    ObjectType::Tag => self.reached.insert(position),
                    ObjectType::Commit => {
                        commits.extend(self.time_of(position).await?.map(|time| (time, position)));
                        break;
                    }
                    ObjectType::Tree => {
                        roots.push(position);
                        break;
                    }
                    ObjectType::Blob => {
                        self.reached.insert(position);
                        break;
                    }
                };
                let target = self.objects.tagged(position).await?;
                match self.objects.locate(&target).await? {
                    Some(next) => position = next,
                    None if self.is_had => break,
                    None => return Err(Fault::Missing { id: target }),
                }
            }
        }
        Ok((commits, roots))
    }

    /// `None` for a had commit that is not wholly here: of such a have nothing is known.
    async fn time_of(&mut self, position: u32) -> Result<Option<u64>, Fault> {
        match self.objects.commit(position).await {
            Ok(commit) => Ok(Some(commit.time)),
            Err(Fault::Missing { .. }) if self.is_had => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The stored bitmap of a commit that is not reached yet.
    fn stored_and_new(&self, position: u32) -> Option<Stored> {
        if self.reached.contains(position) { None } else { self.chart.stored(self.store, position) }
    }

    /// Joins the pseudo-merges all of whose commits are tips or reached.
    fn add_merges(&mut self, commits: &[(u64, u32)]) -> Result<(), Stop> {
        let bitmaps = self.chart.bitmaps();
        if bitmaps.merges() == 0 {
            return Ok(());
        }
        let mut tips = Marks::default();
        for (_, position) in commits {
            tips.insert(*position);
        }
        let mut roots = Marks::with_room(bitmaps.count());
        for (bit, position) in (0..).zip(self.positions) {
            if tips.contains(*position) {
                roots.insert(bit);
            }
        }
        let before = self.bits.clone();
        let mut left: Vec<usize> = (0..bitmaps.merges()).collect();
        loop {
            let mut still = Vec::new();
            for number in &left {
                if bitmaps.add_merge(*number, &roots, &mut self.bits)? {
                    self.used.merges += 1;
                } else {
                    still.push(*number);
                }
            }
            // What one reached may complete another.
            if still.len() == left.len() || still.is_empty() {
                break;
            }
            left = still;
        }
        self.chart_new(&before);
        Ok(())
    }

    /// Joins a stored bitmap.
    async fn add(&mut self, stored: Stored) -> Result<(), Stop> {
        let pace = self.objects.pace().clone();
        let marks = self.resolver.reachable(stored, &pace).await?;
        let before = self.bits.clone();
        self.bits.join(&marks);
        self.chart_new(&before);
        self.used.stored += 1;
        pace.work(before.words().len() + COST_OF_COMMIT).await;
        Ok(())
    }

    /// Marks the positions of the bits that `before` has not.
    fn chart_new(&mut self, before: &Marks) {
        let mut fresh = self.bits.clone();
        fresh.subtract(before);
        for bit in fresh.iter_from(0) {
            if let Some(position) = self.positions.get(bit as usize) {
                self.reached.insert(*position);
            }
        }
    }

    /// Walks from commits to what is reached, newest first; tells their trees.
    async fn walk_commits(&mut self, commits: Vec<(u64, u32)>) -> Result<Vec<u32>, Stop> {
        let mut queue = BinaryHeap::from(commits);
        let mut trees = Vec::new();
        while let Some((_, position)) = queue.pop() {
            if self.reached.contains(position) {
                continue;
            }
            if let Some(stored) = self.stored_and_new(position) {
                self.add(stored).await?;
                continue;
            }
            self.reached.insert(position);
            self.used.commits += 1;
            if self.is_had && self.used.commits > limits::HAVES_WALKED_MAX {
                return Err(Stop::Far { commits: self.used.commits });
            }
            let commit = self.objects.commit(position).await?;
            match self.objects.locate(&commit.tree).await? {
                Some(tree) => trees.push(tree),
                None if self.is_had => {}
                None => return Err(Fault::Missing { id: commit.tree }.into()),
            }
            for parent in self.objects.parents(&commit).to_vec() {
                if !self.reached.contains(parent)
                    && let Some(time) = self.time_of(parent).await?
                {
                    queue.push((time, parent));
                }
            }
            self.objects.pace().work(COST_OF_COMMIT).await;
        }
        Ok(trees)
    }

    /// Reaches all of each sealed pack all tips of which are reached.
    async fn reach_sealed(&mut self) {
        for (number, pack) in self.store.packs().iter().enumerate() {
            let Some(seal) = pack.seal() else { continue };
            let is_reached =
                |tip: &ObjectId| self.store.find(tip).is_some_and(|position| self.reached.contains(position));
            if !seal.tips().all(is_reached) {
                continue;
            }
            for position in seal::positions_of(self.objects, self.store, number).await {
                self.reached.insert(position);
            }
            self.used.sealed = true;
        }
    }

    /// Reaches a tree and all below it that is not reached.
    async fn descend(&mut self, root: u32) -> Result<(), Fault> {
        let kind = self.store.kind();
        let mut stack = vec![root];
        while let Some(tree) = stack.pop() {
            if !self.reached.insert(tree) {
                continue;
            }
            let object = match self.objects.read(tree).await {
                Ok(object) if object.object == ObjectType::Tree => object,
                Ok(_) if !self.is_had => return Err(Fault::WrongType { id: self.objects.id(tree)? }),
                Ok(_) => continue,
                Err(Fault::Missing { .. }) if self.is_had => continue,
                Err(fault) => return Err(fault),
            };
            self.used.trees += 1;
            for entry in TreeEntries::new(kind, &object.bytes) {
                let (mode, id) = match entry {
                    Some(entry) => entry,
                    None if self.is_had => break,
                    None => return Err(Fault::Malformed { id: self.objects.id(tree)? }),
                };
                if mode == EntryMode::Gitlink {
                    continue;
                }
                if !self.recent.is_new(id) {
                    continue;
                }
                let position = match self.store.find(id) {
                    Some(position) => Some(position),
                    None => self.objects.locate_loose(id).await?,
                };
                match position {
                    Some(position) if self.reached.contains(position) => {}
                    Some(position) if mode == EntryMode::Tree => stack.push(position),
                    Some(position) => {
                        self.reached.insert(position);
                    }
                    None if self.is_had => {}
                    None => return Err(Fault::Missing { id: id.to_owned() }),
                }
            }
            self.objects.pace().work(object.bytes.len()).await;
        }
        Ok(())
    }
}

/// Ids met lately in trees: most of a tree stands in the tree before it, and is not worth another look at an index.
struct Recent(Vec<ObjectId>);

impl Recent {
    fn new(kind: Kind) -> Self {
        Self(vec![ObjectId::null(kind); RECENT_COUNT])
    }

    /// Whether the id was not met lately; from now on it was.
    fn is_new(&mut self, id: &oid) -> bool {
        let place = id.as_bytes().last_chunk::<4>().map_or(0, |raw| u32::from_le_bytes(*raw)) as usize % RECENT_COUNT;
        match self.0.get_mut(place) {
            Some(met) if **met == *id => false,
            Some(met) => {
                *met = id.to_owned();
                true
            }
            None => true,
        }
    }
}

/// Ids of [`Recent`]: 270 KB, which a core keeps at hand.
const RECENT_COUNT: usize = 8192;
/// Units a commit costs beside reading it.
const COST_OF_COMMIT: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{
        Midx, Omit,
        fixture::{Dice, Repository, map, map_bytes},
        graph::CommitGraph,
        seal::prove_sealed,
        tests::{chosen, listed, some, tagged, tips, walk},
    };
    use std::collections::BTreeSet;

    /// The repository's packs, with the bitmap of one of them or of the multi-pack-index.
    fn charted(repository: &Repository) -> Arc<Store> {
        let folder = repository.path().join("objects/pack");
        let mut store = Arc::into_inner(repository.store()).unwrap();
        let chart = if folder.join("multi-pack-index").exists() {
            let midx = Midx::open(map(&folder.join("multi-pack-index")), repository.kind).unwrap();
            let bitmap = map(&folder.join(format!("multi-pack-index-{}.bitmap", midx.checksum())));
            Chart::of_midx(&store, midx, bitmap).unwrap()
        } else {
            let path = &repository.pack_files("bitmap")[0];
            let name = path.file_stem().unwrap().to_str().unwrap();
            let number = store.packs().iter().position(|pack| pack.name() == name).unwrap();
            Chart::of_pack(&store, number, map(path)).unwrap()
        };
        store.set_chart(chart);
        Arc::new(store)
    }

    fn by_bitmap(
        repository: &Repository,
        objects: &mut Objects,
        wants: &[ObjectId],
        haves: &[ObjectId],
    ) -> (Selection, Way) {
        let question = Question {
            wants: repository.locate(objects, wants),
            haves: repository.locate(objects, haves),
            ..Question::default()
        };
        let pace = objects.pace().clone();
        repository.run(&pace, select_far(objects, &question)).unwrap()
    }

    /// Compares bitmaps, walk and git for random questions.
    fn compare(repository: &Repository, seed: u64, rounds: usize) -> Used {
        let store = charted(repository);
        let tips = tips(repository);
        let commits = repository.ids(&["rev-list", "--all"]);
        let all = [&tips[..], &commits].concat();
        let mut dice = Dice::new(seed);
        let mut most = Used::default();
        for round in 0..rounds {
            let (wants, haves) = match round {
                0 => (tips.clone(), Vec::new()),
                1 => (tips.clone(), some(&mut dice, &commits, 4)),
                _ => (some(&mut dice, &all, 4), some(&mut dice, &all, 3)),
            };
            let mut objects = Objects::new(Arc::clone(&store), &[], crate::pack::Pace::default());
            let (selection, way) = by_bitmap(repository, &mut objects, &wants, &haves);
            let Way::Bitmaps(used) = way else { panic!("{way:?}") };
            let found = chosen(&objects, &selection);
            let had = listed(repository, &haves, &[]);
            let expected: BTreeSet<ObjectId> = listed(repository, &wants, &[]).difference(&had).copied().collect();
            assert_eq!(found, expected, "seed {seed} round {round}: {wants:?} not {haves:?}");
            let common: BTreeSet<ObjectId> =
                selection.common.iter_from(0).map(|position| objects.id(position).unwrap()).collect();
            assert_eq!(common, had);
            let walked = walk(repository, &mut objects, &wants, &haves);
            let walked = chosen(&objects, &walked);
            assert!(walked.is_superset(&found) && walked.difference(&found).all(|id| had.contains(id)));
            most.stored = most.stored.max(used.stored);
            most.merges = most.merges.max(used.merges);
            most.commits = most.commits.max(used.commits);
        }
        most
    }

    #[test]
    fn bitmaps_and_walks_choose_what_rev_list_lists() {
        for seed in 80..84 {
            assert!(compare(&tagged(seed), seed, 14).stored > 1);
        }
    }

    #[test]
    fn stale_bitmaps_under_newer_packs_and_loose_objects_choose_right() {
        for seed in 84..87 {
            let repository = tagged(seed);
            // The same branches go on, in a pack and then loose, and one object stands in both packs.
            repository.go_on(seed, 40);
            repository.git(&["repack", "-q"]);
            let tip = repository.git(&["rev-parse", &format!("t{seed}-more")]);
            repository.git_fed(&["pack-objects", "-q", "--revs", "objects/pack/pack"], tip.as_bytes());
            repository.go_on(seed + 100, 6);
            assert!(!repository.git(&["count-objects"]).starts_with("0 "));
            let used = compare(&repository, seed, 14);
            assert!(used.commits > 0 && used.stored > 0);
        }
    }

    #[test]
    fn bitmaps_over_many_packs_choose_right() {
        for seed in 87..89 {
            let repository = tagged(seed);
            repository.go_on(seed, 40);
            repository.git(&["repack", "-q"]);
            repository.git(&["multi-pack-index", "write", "--bitmap"]);
            repository.go_on(seed + 100, 40);
            repository.git(&["repack", "-q"]);
            assert!(compare(&repository, seed, 14).stored > 0);
        }
    }

    #[test]
    fn pseudo_merges_stand_for_many_tips() {
        let repository = tagged(89);
        repository.git(&["config", "bitmapPseudoMerge.all.pattern", "refs/"]);
        repository.git(&["config", "bitmapPseudoMerge.all.threshold", "now"]);
        repository.git(&["config", "bitmapPseudoMerge.all.stableThreshold", "never"]);
        repository.grow(90, 100);
        repository.git(&["repack", "-adbfq"]);
        assert!(compare(&repository, 89, 14).merges > 0);
    }

    #[test]
    fn objects_no_ref_names_are_never_chosen() {
        let repository = tagged(91);
        let refs = repository.git(&["for-each-ref", "--format=delete %(refname)", "--exclude=refs/heads/b91-0"]);
        repository.git_fed(&["update-ref", "--stdin"], (refs + "\n").as_bytes());
        let mut objects = Objects::new(charted(&repository), &[], crate::pack::Pace::default());
        let tips = tips(&repository);
        let (selection, _) = by_bitmap(&repository, &mut objects, &tips, &[]);
        assert_eq!(chosen(&objects, &selection), listed(&repository, &tips, &[]));
        assert!(selection.chosen.count() < u64::from(objects.total()));
    }

    #[test]
    fn a_sealed_pack_is_reached_as_a_whole() {
        let repository = tagged(95);
        let store = charted(&repository);
        let objects = || Objects::new(Arc::clone(&store), &[], crate::pack::Pace::default());
        let tips = tips(&repository);
        assert!(!store.packs()[0].is_sealed());
        let (first, way) = by_bitmap(&repository, &mut objects(), &tips, &[]);
        assert!(matches!(way, Way::Bitmaps(Used { sealed: false, .. })));
        // The first clone of everything is a proof by itself.
        assert!(store.packs()[0].is_sealed());
        let (second, way) = by_bitmap(&repository, &mut objects(), &tips, &[]);
        assert!(matches!(way, Way::Bitmaps(Used { sealed: true, trees: 0, .. })), "{way:?}");
        assert_eq!(first.chosen, second.chosen);
        // Whoever wants less gets less.
        let (less, way) = by_bitmap(&repository, &mut objects(), &tips[..1], &[]);
        assert!(matches!(way, Way::Bitmaps(Used { sealed: false, .. })));
        assert_eq!(chosen(&objects(), &less), listed(&repository, &tips[..1], &[]));
        compare(&repository, 95, 10);
    }

    #[test]
    fn only_a_pack_without_unreachable_objects_is_proved_sealed() {
        let prove = |repository: &Repository| {
            let store = charted(repository);
            let mut objects = Objects::new(Arc::clone(&store), &[], crate::pack::Pace::default());
            let pace = objects.pace().clone();
            let number = (0..store.packs().len()).max_by_key(|number| store.packs()[*number].count()).unwrap();
            let proved = repository.run(&pace, prove_sealed(&mut objects, number)).unwrap();
            (proved, store.packs()[number].is_sealed())
        };
        let repository = tagged(96);
        assert_eq!(prove(&repository), (Some(true), true));
        // New packs on top change nothing.
        repository.go_on(96, 40);
        repository.git(&["repack", "-q"]);
        assert_eq!(prove(&repository), (Some(true), true));
        // A commit that no ref names is a tip of its own pack all the same; a blob that nothing names is not.
        repository.git_fed(&["hash-object", "-w", "--stdin"], b"nobody names me");
        repository.git(&["repack", "-adbfkq"]);
        assert_eq!(prove(&repository), (Some(false), false));
    }

    #[test]
    fn questions_that_bitmaps_cannot_answer_are_walked() {
        let repository = Repository::packed(92, 30);
        let pace = crate::pack::Pace::default();
        let store = charted(&repository);
        let way = |mut objects: Objects, question: &Question| {
            let mut question = question.clone();
            question.wants = repository.locate(&mut objects, &tips(&repository));
            let pace = objects.pace().clone();
            repository.run(&pace, select_by_bitmap(&mut objects, &question)).unwrap().1
        };
        let plain = Question::default();
        let omit = Question { omit: Omit { blobs_from: Some(0), ..Omit::default() }, ..Question::default() };
        assert_eq!(way(repository.objects(), &plain), Way::Walk(Why::NoBitmaps));
        assert_eq!(way(Objects::new(Arc::clone(&store), &[], pace.clone()), &omit), Way::Walk(Why::Question));
        let cut = repository.ids(&["rev-list", "--all", "--max-parents=0"]);
        assert_eq!(way(Objects::new(Arc::clone(&store), &cut, pace.clone()), &plain), Way::Walk(Why::Shallow));
        let mut bytes = std::fs::read(&repository.pack_files("bitmap")[0]).unwrap();
        bytes[100] ^= 1;
        let mut broken = Arc::into_inner(repository.store()).unwrap();
        let Ok(chart) = Chart::of_pack(&broken, 0, map_bytes(&bytes)) else { return };
        broken.set_chart(chart);
        let checksum = ChartError::Bitmap(BitmapError::Checksum);
        assert_eq!(way(Objects::new(Arc::new(broken), &[], pace), &plain), Way::Walk(Why::Broken(checksum)));
    }

    #[test]
    fn a_fetch_of_few_commits_is_walked() {
        let repository = Repository::packed(97, 40);
        let store = charted(&repository);
        let ids = repository.ids(&["rev-list", "--first-parent", "b97-0"]);
        let mut objects = Objects::new(store, &[], crate::pack::Pace::default());
        let wants = repository.locate(&mut objects, &ids[..1]);
        let haves = repository.locate(&mut objects, &ids[1..2]);
        let pace = objects.pace().clone();
        let question = Question { wants, haves, ..Question::default() };
        let (selection, way) = repository.run(&pace, select_by_bitmap(&mut objects, &question)).unwrap();
        assert!(matches!(way, Way::Walk(Why::Near { commits: 1.. })), "{way:?}");
        assert_eq!(chosen(&objects, &selection), listed(&repository, &ids[..1], &ids[1..2]));
        let question = Question { haves: Vec::new(), ..question };
        let way = repository.run(&pace, select_by_bitmap(&mut objects, &question)).unwrap().1;
        assert!(matches!(way, Way::Bitmaps(_)), "{way:?}");
    }

    #[test]
    fn haves_far_from_every_bitmap_are_walked() {
        let repository = Repository::packed(93, 20);
        let mut stream = String::from("reset refs/heads/far\n");
        for number in 0..=limits::HAVES_WALKED_MAX + 1 {
            let time = 1_700_000_000 + number;
            stream += &format!("commit refs/heads/far\ncommitter N <n@x> {time} +0000\ndata 1\nx\n");
        }
        repository.git_fed(&["-c", "fastimport.unpackLimit=0", "fast-import", "--quiet"], stream.as_bytes());
        let mut objects = Objects::new(charted(&repository), &[], crate::pack::Pace::default());
        let far = repository.ids(&["rev-parse", "far", "far~1"]);
        let (selection, way) = by_bitmap(&repository, &mut objects, &far[..1], &far[1..]);
        assert_eq!(way, Way::Walk(Why::Far { commits: limits::HAVES_WALKED_MAX + 1 }));
        assert_eq!(chosen(&objects, &selection), BTreeSet::from([far[0]]));
    }

    #[test]
    fn a_commit_graph_changes_no_selection() {
        let repository = tagged(94);
        repository.go_on(94, 30);
        repository.git(&["commit-graph", "write", "--reachable", "--no-progress"]);
        let graph = gix_commitgraph::at(repository.path().join("objects/info"), Kind::Sha1, None).unwrap();
        let files = vec![map(&repository.path().join("objects/info/commit-graph"))];
        let graph = Arc::new(CommitGraph::of(graph, files, Kind::Sha1).unwrap());
        let store = charted(&repository);
        let tips = tips(&repository);
        let commits = repository.ids(&["rev-list", "--all"]);
        let mut dice = Dice::new(94);
        for _ in 0..6 {
            let haves = some(&mut dice, &commits, 3);
            let plain = Objects::new(Arc::clone(&store), &[], crate::pack::Pace::default());
            let graphed = Objects::new(Arc::clone(&store), &[], crate::pack::Pace::default()).with_graph(graph.clone());
            let [one, other] = [plain, graphed].map(|mut objects| {
                let walked = walk(&repository, &mut objects, &tips, &haves);
                let (mapped, _) = by_bitmap(&repository, &mut objects, &tips, &haves);
                (chosen(&objects, &walked), chosen(&objects, &mapped))
            });
            assert_eq!(one, other);
        }
    }
}
