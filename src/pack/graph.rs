//! Commit-graphs: an id becomes a commit's tree, time, generation and parents without inflating anything.
//!
//! Opens no file: whoever may (`repo`) hands over a graph that is open. Says nothing of objects that are no commits, and
//! nothing a shallow repository could use: what it says of parents ignores every cut.
//! Source: gitformat-commit-graph(5). Read first: `the_graph_says_what_the_commits_say`.

use std::sync::OnceLock;

use super::{checksum::match_checksum, map::Mapping, pace::Pace};
use crate::oid::{Kind, ObjectId, oid};

/// An open commit-graph, one file or a chain.
pub struct CommitGraph {
    graph: gix_commitgraph::Graph,
    /// The bytes of its files.
    files: Vec<Mapping>,
    is_intact: OnceLock<bool>,
}

impl std::fmt::Debug for CommitGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitGraph").field("commits", &self.count()).finish_non_exhaustive()
    }
}

/// What the graph says of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphCommit {
    /// Its root tree.
    pub tree: ObjectId,
    /// Committer time, seconds since 1970; the file keeps 34 bits.
    pub time: u64,
    /// One more than the largest of its parents', 1 without parents, 0 when not known.
    pub generation: u32,
    /// Its parents in order.
    pub parents: Vec<ObjectId>,
}

impl CommitGraph {
    /// Takes a graph that is open, with the bytes of its files, if its ids are of the repository's kind.
    pub fn of(graph: gix_commitgraph::Graph, files: Vec<Mapping>, kind: Kind) -> Option<Self> {
        (graph.object_hash() == kind).then(|| Self { graph, files, is_intact: OnceLock::new() })
    }

    /// Whether its files match their checksums. The first call reads them in full: a flipped bit would lead a walk to another
    /// tree, and nothing that follows would notice.
    pub async fn is_intact(&self, pace: &Pace) -> bool {
        if let Some(known) = self.is_intact.get() {
            return *known;
        }
        let mut is_intact = true;
        for file in &self.files {
            is_intact &= match_checksum(file, self.graph.object_hash(), pace).await;
        }
        *self.is_intact.get_or_init(|| is_intact)
    }

    /// Whether it was found not to match its checksums.
    pub fn is_broken(&self) -> bool {
        self.is_intact.get() == Some(&false)
    }

    /// Commits in it.
    pub fn count(&self) -> u32 {
        self.graph.num_commits()
    }

    /// What it says of `id`. `None` when it does not have it, or has it damaged: then the commit itself must be read.
    pub fn find(&self, id: &oid) -> Option<GraphCommit> {
        let commit = self.graph.commit_by_id(id)?;
        let mut parents = Vec::with_capacity(2);
        for parent in commit.iter_parents() {
            let position = parent.ok().filter(|position| position.0 < self.count())?;
            parents.push(self.graph.id_at(position).to_owned());
            if parents.len() > PARENTS_MAX {
                return None;
            }
        }
        Some(GraphCommit {
            tree: commit.root_tree_id().to_owned(),
            time: commit.committer_timestamp(),
            generation: commit.generation(),
            parents,
        })
    }
}

/// Parents of one commit that are believed from the graph; an octopus with more is read from the pack.
const PARENTS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{
        Objects, Pace,
        fixture::{Repository, map, map_bytes},
    };
    use std::sync::Arc;

    fn graph_of(repository: &Repository, files_count: usize) -> CommitGraph {
        let mode = if files_count == 1 { "--no-progress" } else { "--split=no-merge" };
        repository.git(&["commit-graph", "write", "--reachable", mode]);
        let path = repository.path().join("objects/info");
        let graph = gix_commitgraph::at(&path, repository.kind, None).unwrap();
        let mut files = vec![path.join("commit-graph")];
        if files_count > 1 {
            let chain = std::fs::read_to_string(path.join("commit-graphs/commit-graph-chain")).unwrap();
            files = chain.lines().map(|hash| path.join(format!("commit-graphs/graph-{hash}.graph"))).collect();
        }
        CommitGraph::of(graph, files.iter().map(|file| map(file)).collect(), repository.kind).unwrap()
    }

    /// Tree, time and parents of every commit, by id.
    fn commits(repository: &Repository, mut objects: Objects) -> Vec<(ObjectId, u64, Vec<ObjectId>)> {
        let pace = objects.pace().clone();
        let mut found = Vec::new();
        for id in repository.ids(&["rev-list", "--all"]) {
            let position = objects.store().find(&id).unwrap();
            let commit = repository.run(&pace, objects.commit(position)).unwrap();
            let parents = objects.parents(&commit).iter().map(|parent| objects.id(*parent).unwrap()).collect();
            found.push((commit.tree, commit.time, parents));
        }
        found
    }

    #[test]
    fn the_graph_says_what_the_commits_say() {
        for kind in [Kind::Sha1, Kind::Sha256] {
            for files in [1, 2] {
                let repository = Repository::empty(kind);
                repository.grow(60, 40);
                drop(graph_of(&repository, files));
                repository.grow(61, 40);
                repository.git(&["repack", "-adq"]);
                let graph = Arc::new(graph_of(&repository, files));
                assert_eq!(graph.count() as usize, repository.ids(&["rev-list", "--all"]).len());
                let plain = commits(&repository, repository.objects());
                assert_eq!(commits(&repository, repository.objects().with_graph(Arc::clone(&graph))), plain);
                for id in repository.ids(&["rev-list", "--all", "--max-parents=0"]) {
                    assert_eq!(graph.find(&id).unwrap().generation, 1);
                }
                assert_eq!(graph.find(&ObjectId::null(kind)), None);
            }
        }
    }

    #[test]
    fn a_graph_is_ignored_in_a_shallow_repository() {
        let repository = Repository::packed(62, 20);
        let graph = Arc::new(graph_of(&repository, 1));
        let cut = repository.ids(&["rev-list", "--all"]);
        let mut objects = Objects::new(repository.store(), &cut, Pace::default()).with_graph(graph);
        let pace = objects.pace().clone();
        for id in &cut {
            let position = objects.store().find(id).unwrap();
            let commit = repository.run(&pace, objects.commit(position)).unwrap();
            assert_eq!(objects.parents(&commit), &[] as &[u32]);
        }
    }

    #[test]
    fn damaged_graphs_are_refused_or_read_within_bounds() {
        let repository = Repository::packed(63, 30);
        drop(graph_of(&repository, 1));
        let path = repository.path().join("objects/info/commit-graph");
        let right = std::fs::read(&path).unwrap();
        let ids = repository.ids(&["rev-list", "--all"]);
        let other = repository.path().join("damaged");
        let look = |bytes: &[u8]| {
            std::fs::write(&other, bytes).unwrap();
            let graph = gix_commitgraph::File::at(&other).and_then(|file| gix_commitgraph::Graph::new(vec![file]));
            let graph = graph.ok().and_then(|graph| CommitGraph::of(graph, vec![map_bytes(bytes)], Kind::Sha1));
            graph.map(|graph| ids.iter().map(|id| graph.find(id)).collect::<Vec<_>>())
        };
        assert!(look(&right).unwrap().iter().all(Option::is_some));
        for length in (0..right.len()).step_by(64) {
            assert_eq!(look(&right[..length]), None, "cut at {length}");
        }
        for at in 0..right.len() {
            let mut bytes = right.clone();
            bytes[at] ^= 1 << (at % 8);
            let _ = look(&bytes);
        }
    }

    #[test]
    fn a_graph_with_a_flipped_bit_is_not_asked() {
        let repository = Repository::packed(64, 30);
        let sound = graph_of(&repository, 1);
        let plain = commits(&repository, repository.objects());
        let path = repository.path().join("objects/info/commit-graph");
        let mut bytes = std::fs::read(&path).unwrap();
        // The last commit's data: its time, or a parent.
        let at = bytes.len() - 40;
        bytes[at] ^= 1;
        let other = repository.path().join("damaged");
        std::fs::write(&other, &bytes).unwrap();
        let open = gix_commitgraph::Graph::new(vec![gix_commitgraph::File::at(&other).unwrap()]).unwrap();
        let flipped = Arc::new(CommitGraph::of(open, vec![map_bytes(&bytes)], Kind::Sha1).unwrap());
        assert_eq!(commits(&repository, repository.objects().with_graph(Arc::clone(&flipped))), plain);
        assert!(flipped.is_broken() && !sound.is_broken());
        let sound = Arc::new(sound);
        assert_eq!(commits(&repository, repository.objects().with_graph(Arc::clone(&sound))), plain);
        assert!(!sound.is_broken() && sound.is_intact.get().is_some());
    }
}
