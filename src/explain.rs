//! Explains without a network: what a request would be answered with and why it costs what it costs; which repositories would
//! gain most from maintenance.
//!
//! Answers nobody and changes nothing. The only room beside `main` that looks at a clock, to tell how long a stage took.
//! Read first: `a_plan_is_explained_with_its_way_and_its_remedy`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    oid::{ObjectId, from_hex},
    pack::{
        self, Dialect, Fault, ObjectType, Objects, Pace, Plan, Question,
        plan::Piece,
        ways::{Way, Why, select_by_bitmap},
    },
    repo::{Absent, Catalogue, Snapshot},
};

/// What is to be explained.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Revisions wanted: ref names, full or short, or ids.
    pub wants: Vec<String>,
    /// Revisions the client has.
    pub haves: Vec<String>,
    /// Everything a mirror clone wants.
    pub all: bool,
}

/// What a request would be answered with.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// How the selection is found.
    pub way: String,
    /// Why there is no better way; nothing when there is none better.
    pub why: Option<String>,
    /// What would make it cheaper.
    pub remedies: Vec<String>,
    /// Objects by type: commits, trees, blobs, tags.
    pub objects: [u64; 4],
    /// Extents of mapped packs, and their bytes.
    pub extents: (usize, u64),
    /// Bytes of our own, and how many runs of them.
    pub own: (usize, u64),
    /// How the objects are said.
    pub counts: pack::plan::Counts,
    /// Objects that are streamed behind the plan.
    pub large: usize,
    /// Whether no byte has to be hashed.
    pub has_own_trailer: bool,
    /// To locate wants and haves, to select, to plan.
    pub took: [Duration; 3],
}

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    /// A revision that is no ref and no id.
    #[error("`{0}` is no ref of the repository and no id of an object in it")]
    NoSuchRevision(String),
    /// Nothing is wanted.
    #[error("nothing is wanted: name revisions with --want, or use --all")]
    NothingWanted,
    /// The repository cannot be served.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// The repository is damaged.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Explains one request of a repository.
///
/// # Errors
/// A revision is not there, or the repository is damaged.
pub fn explain(snapshot: &Arc<Snapshot>, asked: &Asked) -> Result<Explanation, Unexplained> {
    let pace = Pace::default();
    let mut objects = Objects::new(Arc::clone(&snapshot.store), &snapshot.shallow, pace.clone());
    if let Some(graph) = &snapshot.graph {
        objects = objects.with_graph(Arc::clone(graph));
    }
    let start = Instant::now();
    let question = question(snapshot, asked, &mut objects, &pace)?;
    let located = start.elapsed();
    let selected = pace.run(select_by_bitmap(&mut objects, &question), |ask| snapshot.loose(ask));
    let (selection, way) = selected?;
    let selecting = start.elapsed();
    let dialect = Dialect { ofs_delta: true, thin: !question.haves.is_empty() };
    let plan = pace.run(pack::plan(&mut objects, &selection, dialect), |ask| snapshot.loose(ask))?;
    let planning = start.elapsed();
    let mut types = [0; 4];
    for position in selection.chosen.iter_from(0) {
        let place = match objects.type_of(position)? {
            ObjectType::Commit => 0,
            ObjectType::Tree => 1,
            ObjectType::Blob => 2,
            ObjectType::Tag => 3,
        };
        types[place] += 1;
    }
    let (way, why) = words_of(&way);
    Ok(Explanation {
        remedies: remedies(snapshot, why.is_some()),
        way,
        why,
        objects: types,
        extents: bytes_of(&plan, |piece| matches!(piece, Piece::Extent { .. })),
        own: bytes_of(&plan, |piece| matches!(piece, Piece::Inline { .. })),
        counts: plan.counts,
        large: plan.tail().len(),
        has_own_trailer: plan.has_own_trailer(),
        took: [located, selecting.saturating_sub(located), planning.saturating_sub(selecting)],
    })
}

fn bytes_of(plan: &Plan, wanted: impl Fn(&Piece) -> bool) -> (usize, u64) {
    let pieces = plan.pieces().iter().filter(|piece| wanted(piece));
    pieces.fold((0, 0), |(count, bytes), piece| (count + 1, bytes + piece.len()))
}

fn question(snapshot: &Snapshot, asked: &Asked, objects: &mut Objects, pace: &Pace) -> Result<Question, Unexplained> {
    let mut ids = Vec::new();
    for name in &asked.wants {
        ids.push(revision(snapshot, name)?);
    }
    if asked.all {
        ids.extend(
            snapshot.refs.iter().filter(|found| !found.hidden).map(|found| found.id).chain(snapshot.refs.head().id()),
        );
    }
    if ids.is_empty() {
        return Err(Unexplained::NothingWanted);
    }
    let had = asked.haves.iter().map(|name| revision(snapshot, name)).collect::<Result<Vec<_>, _>>()?;
    let mut located = [Vec::new(), Vec::new()];
    for (ids, positions) in [ids, had].iter().zip(&mut located) {
        for id in ids {
            let found = pace.run(objects.locate(id), |ask| snapshot.loose(ask))?;
            positions.push(found.ok_or_else(|| Unexplained::NoSuchRevision(id.to_string()))?);
        }
    }
    let [wants, haves] = located;
    Ok(Question { wants, haves, ..Question::default() })
}

fn revision(snapshot: &Snapshot, name: &str) -> Result<ObjectId, Unexplained> {
    let of_ref = |full: String| snapshot.refs.find(full.as_bytes()).map(|found| found.id);
    let head = (name == "HEAD").then(|| snapshot.refs.head().id()).flatten();
    head.or_else(|| from_hex(snapshot.kind, name.as_bytes()))
        .or_else(|| {
            ["", "refs/", "refs/tags/", "refs/heads/", "refs/remotes/"]
                .iter()
                .find_map(|before| of_ref(format!("{before}{name}")))
        })
        .ok_or_else(|| Unexplained::NoSuchRevision(name.to_owned()))
}

fn words_of(way: &Way) -> (String, Option<String>) {
    match way {
        Way::Bitmaps(used) if used.sealed => ("a sealed pack as a whole".to_owned(), None),
        Way::Bitmaps(used) => {
            let (stored, merges, commits, trees) = (used.stored, used.merges, used.commits, used.trees);
            let words = format!(
                "{stored} bitmaps and {merges} pseudo-merges; {commits} commits and {trees} trees walked beside them"
            );
            (words, None)
        }
        Way::Walk(why) => ("a walk of commits and trees".to_owned(), Some(words_of_why(why))),
    }
}

fn words_of_why(why: &Why) -> String {
    match why {
        Why::NoBitmaps => "there is no bitmap".to_owned(),
        Why::Question => "bitmaps do not know filters and shallow boundaries".to_owned(),
        Why::Shallow => "the repository is shallow".to_owned(),
        Why::Near { commits } => format!("only {commits} commits are newer than the haves"),
        Why::Far { commits } => format!("the haves are {commits} commits and more away from every bitmap"),
        Why::Broken(error) => format!("the bitmap is of no use: {error}"),
    }
}

fn remedies(snapshot: &Snapshot, walked: bool) -> Vec<String> {
    let mut remedies = Vec::new();
    let store = &snapshot.store;
    if store.packs().len() > 1 && store.chart().is_none() {
        remedies.push(format!("git repack -adb  (one pack of {}, with a bitmap)", store.packs().len()));
    } else if walked && store.chart().is_none() {
        remedies.push("git repack -adb  (a bitmap)".to_owned());
    }
    if snapshot.graph.is_none() && snapshot.shallow.is_empty() {
        remedies.push("git commit-graph write --reachable  (commits without inflating them)".to_owned());
    }
    remedies
}

impl Explanation {
    /// For people.
    pub fn text(&self) -> String {
        let [commits, trees, blobs, tags] = self.objects;
        let [locate, select, plan] = self.took.map(|time| time.as_secs_f64() * 1e3);
        let pack::plan::Counts { objects, deltas, copied, rewritten, thin, retargeted, compared, deflated } =
            self.counts;
        let mut text = format!(
            "selection  {objects} objects: {commits} commits, {trees} trees, {blobs} blobs, {tags} tags\n\
             way        {}\n",
            self.way
        );
        if let Some(why) = &self.why {
            text += &format!("           because {why}\n");
        }
        text += &format!(
            "plan       {} extents of {} bytes, {} runs of our own of {} bytes{}\n\
             entries    {copied} copied, {rewritten} with a new header, {thin} against what the client has,\n           \
             {retargeted} re-targeted, {compared} made anew, {deflated} deflated ({deltas} deltas known)\n\
             trailer    {}\n\
             time       {locate:.1} ms to locate, {select:.1} ms to select, {plan:.1} ms to plan\n",
            self.extents.0,
            self.extents.1,
            self.own.0,
            self.own.1,
            if self.large > 0 { format!(", {} large objects behind them", self.large) } else { String::new() },
            if self.has_own_trailer {
                "that of the pack: nothing is hashed"
            } else {
                "hashed while it is sent the first time"
            },
        );
        for remedy in &self.remedies {
            text += &format!("cheaper    {remedy}\n");
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> serde_json::Value {
        let [commits, trees, blobs, tags] = self.objects;
        let micros = self.took.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let counts = self.counts;
        serde_json::json!({
            "way": self.way,
            "because": self.why,
            "objects": { "all": counts.objects, "commits": commits, "trees": trees, "blobs": blobs, "tags": tags },
            "extents": { "count": self.extents.0, "bytes": self.extents.1 },
            "own": { "count": self.own.0, "bytes": self.own.1 },
            "entries": {
                "copied": counts.copied, "rewritten": counts.rewritten, "thin": counts.thin, "retargeted": counts.retargeted,
                "compared": counts.compared, "deflated": counts.deflated, "large": self.large,
            },
            "hashed": !self.has_own_trailer,
            "micros": { "locate": micros[0], "select": micros[1], "plan": micros[2] },
            "cheaper": self.remedies,
        })
    }
}

/// The short form for one repository of many.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Path below ROOT.
    pub name: String,
    /// What is wrong with it, if it cannot be served.
    pub fault: Option<String>,
    /// Packed objects, packs, refs.
    pub size: (u32, usize, usize),
    /// Objects a first clone would have to walk over.
    pub walked: u32,
    /// What would make it cheaper.
    pub remedies: Vec<String>,
}

/// Looks at every repository below ROOT; those that would gain most come first.
pub fn check(catalogue: &Catalogue) -> Vec<Checked> {
    let look = |name: String| match catalogue.snapshot(name.as_bytes(), false) {
        Ok(snapshot) => {
            let store = &snapshot.store;
            let walked = if store.chart().is_some() { 0 } else { store.total() };
            Checked {
                fault: None,
                size: (store.total(), store.packs().len(), snapshot.refs.len()),
                walked,
                remedies: remedies(&snapshot, walked > 0),
                name,
            }
        }
        Err(absent) => {
            Checked { name, fault: Some(absent.to_string()), size: (0, 0, 0), walked: 0, remedies: Vec::new() }
        }
    };
    let mut checked: Vec<Checked> = catalogue.names().into_iter().map(look).collect();
    checked.sort_by_key(|one| (one.fault.is_none(), u32::MAX - one.walked));
    checked
}

/// The table of a check, for people.
pub fn table(checked: &[Checked]) -> String {
    let width = checked.iter().map(|one| one.name.len()).max().unwrap_or(0).max(10);
    let mut text = format!(
        "{:width$}  {:>9}  {:>5}  {:>7}  {:>9}  cheaper by\n",
        "repository", "objects", "packs", "refs", "walked"
    );
    for Checked { name, fault, size: (objects, packs, refs), walked, remedies } in checked {
        let advice = fault.as_ref().map_or_else(|| remedies.join("; "), |fault| format!("NOT SERVED: {fault}"));
        text += &format!("{name:width$}  {objects:>9}  {packs:>5}  {refs:>7}  {walked:>9}  {advice}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{
        CatalogueOptions,
        catalogue::tests::{commit, git},
    };

    fn catalogue(root: &std::path::Path) -> Catalogue {
        Catalogue::open(CatalogueOptions { root: root.to_owned(), ..CatalogueOptions::default() }).unwrap()
    }

    #[test]
    fn a_plan_is_explained_with_its_way_and_its_remedy() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "a.git"]);
        let path = folder.path().join("a.git");
        git(&path, &["update-ref", "refs/heads/main", &commit(&path, "x")]);
        git(&path, &["tag", "-a", "-m", "t", "v1", "main"]);
        git(&path, &["-c", "repack.writeBitmaps=false", "repack", "-adq"]);
        let look = || {
            let snapshot = catalogue(folder.path()).snapshot(b"/a", true).unwrap();
            explain(&snapshot, &Asked { all: true, ..Asked::default() }).unwrap()
        };
        let walked = look();
        assert_eq!((walked.objects, walked.counts.objects), ([1, 1, 0, 1], 3));
        assert!(walked.has_own_trailer && walked.extents.0 == 1 && walked.own.0 == 0);
        assert_eq!(walked.why.as_deref(), Some("there is no bitmap"));
        assert!(walked.remedies.iter().any(|remedy| remedy.starts_with("git repack -adb")), "{:?}", walked.remedies);
        assert!(walked.text().contains("3 objects: 1 commits, 1 trees, 0 blobs, 1 tags"), "{}", walked.text());
        git(&path, &["-c", "repack.writeBitmaps=true", "repack", "-adbq"]);
        git(&path, &["commit-graph", "write", "--reachable"]);
        let found = look();
        assert!(found.why.is_none() && found.remedies.is_empty() && found.way.contains("bitmaps"), "{found:?}");
        assert_eq!(found.json()["objects"]["all"], 3);
    }

    #[test]
    fn revisions_are_found_by_name_and_id_or_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "a.git"]);
        let path = folder.path().join("a.git");
        let id = commit(&path, "x");
        git(&path, &["update-ref", "refs/heads/main", &id]);
        let snapshot = catalogue(folder.path()).snapshot(b"/a", false).unwrap();
        let want = |name: &str| explain(&snapshot, &Asked { wants: vec![name.to_owned()], ..Asked::default() });
        for name in ["main", "heads/main", "refs/heads/main", "HEAD", &id] {
            assert_eq!(want(name).unwrap().counts.objects, 2, "{name}");
        }
        assert!(matches!(want("none"), Err(Unexplained::NoSuchRevision(name)) if name == "none"));
        assert!(matches!(explain(&snapshot, &Asked::default()), Err(Unexplained::NothingWanted)));
    }

    #[test]
    fn a_check_puts_first_what_is_not_served_and_then_what_would_gain_most() {
        let folder = tempfile::tempdir().unwrap();
        for (name, commits) in [("small.git", 1), ("large.git", 4)] {
            git(folder.path(), &["init", "-q", "--bare", name]);
            let path = folder.path().join(name);
            for number in 0..commits {
                let id = commit(&path, &number.to_string());
                git(&path, &["update-ref", &format!("refs/heads/b{number}"), &id]);
            }
            git(&path, &["-c", "repack.writeBitmaps=false", "repack", "-adq"]);
        }
        git(folder.path(), &["init", "-q", "--bare", "odd.git"]);
        git(&folder.path().join("odd.git"), &["config", "core.repositoryFormatVersion", "9"]);
        let checked = check(&catalogue(folder.path()));
        let names: Vec<&str> = checked.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["odd.git", "large.git", "small.git"]);
        assert!(table(&checked).contains("NOT SERVED: core.repositoryFormatVersion 9"));
    }
}
