//! A snapshot: one repository's refs, settings and packs as one request sees them.
//!
//! Immutable; changes make a new one. Invariant: refs are read before packs are listed, so that what a ref names is in a
//! pack that was there when it was read, or loose.
//! Read first: the tests of [`super::catalogue`].

use std::{
    any::Any,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Absent, alternates,
    catalogue::CatalogueOptions,
    charts,
    layout::{self, Layout, read_small},
    loose::{self, LooseStream},
    packs::OpenPacks,
    refs::{self, Refs},
    reftable,
    settings::Settings,
};
use crate::{
    oid::{Kind, ObjectId, from_hex},
    pack::{Ask, Loose, Store, graph::CommitGraph},
    stamp::Stamps,
};

/// One repository as a request holds it.
pub struct Snapshot {
    /// Path below ROOT, for the log.
    pub name: String,
    /// Where it really lies: the path of its common folder below ROOT, links followed; nothing where that is outside ROOT,
    /// and for a namespace.
    pub place: Option<Vec<u8>>,
    /// Whether it is a namespace: others have objects in the same store.
    pub is_part: bool,
    /// The repositories whose objects it borrows, by the same kind of path; nothing in the place of one outside ROOT.
    pub pool: Vec<Option<Vec<u8>>>,
    /// No two snapshots of a server have the same.
    pub number: u64,
    /// Kind of all ids.
    pub kind: Kind,
    /// Its refs.
    pub refs: Refs,
    /// What its configuration comes to.
    pub settings: Settings,
    /// Its packs, and those of its alternates.
    pub store: Arc<Store>,
    /// Its commit-graph, if it has one.
    pub graph: Option<Arc<CommitGraph>>,
    /// Commits it has without their parents.
    pub shallow: Vec<ObjectId>,
    /// What others have found out of it and want to find again.
    pub cell: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Object folders, its own first.
    folders: Vec<PathBuf>,
    stamps: Stamps,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("name", &self.name).field("refs", &self.refs.len()).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Reads everything.
    ///
    /// # Errors
    /// The repository cannot be served, or not be read.
    pub fn read(
        name: &str,
        layout: &Layout,
        options: &CatalogueOptions,
        open: &OpenPacks,
        place_of: impl Fn(&Path) -> Option<Vec<u8>>,
    ) -> Result<Self, Absent> {
        let mut stamps = Stamps::default();
        let settings = read_settings(layout, options, &mut stamps)?;
        let kind = settings.kind;
        let told = if settings.reftable {
            reftable::read(layout, kind, &mut stamps)?
        } else {
            refs::read_files(layout, kind, &mut stamps).map_err(|error| broken("refs", &error))?
        };
        let refs = refs::arrange(&told, &settings.hidden).map_err(|error| broken("refs", &error))?;
        let shallow = read_shallow(layout, kind, &mut stamps)?;
        let folders = alternates::object_folders(&layout.objects_dir, &mut stamps)
            .map_err(|error| broken("objects/info/alternates", &error))?;
        let mut packs = Vec::new();
        for folder in &folders {
            packs.extend(open.of_folder(folder, kind, &mut stamps).map_err(|error| broken("objects/pack", &error))?);
        }
        let mut store = Store::new(kind, packs).map_err(|error| Absent::Broken(error.to_string()))?;
        charts::find_chart(&mut store, &folders);
        // A graph knows nothing of where a shallow repository ends.
        let graph = if shallow.is_empty() { charts::find_graph(&layout.objects_dir, kind, &mut stamps) } else { None };
        let lenders = folders.iter().skip(1).map(|folder| place_of(&folder.join("..")));
        Ok(Self {
            name: name.to_owned(),
            place: place_of(&layout.common_dir),
            is_part: false,
            pool: lenders.collect(),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            kind,
            refs,
            settings,
            store: Arc::new(store),
            graph,
            shallow,
            cell: OnceLock::new(),
            folders,
            stamps,
        })
    }

    /// The same repository as one namespace of it shows it, gitnamespaces(7).
    ///
    /// # Errors
    /// Its refs are too many.
    pub fn within(&self, name: &str, namespace: &[u8]) -> Result<Self, Absent> {
        let mut prefix = Vec::new();
        for segment in namespace.split(|byte| *byte == b'/') {
            prefix.extend_from_slice(b"refs/namespaces/");
            prefix.extend_from_slice(segment);
            prefix.push(b'/');
        }
        let refs =
            self.refs.within(&prefix, &self.settings.hidden).map_err(|error| Absent::Broken(error.to_string()))?;
        Ok(Self { name: name.to_owned(), place: None, is_part: true, ..self.with_refs(refs) })
    }

    /// The same repository for someone who may see only the refs that `shows` says yes to.
    #[must_use]
    pub fn narrowed(&self, shows: impl Fn(&[u8]) -> bool) -> Self {
        let mut narrowed = self.with_refs(self.refs.narrowed(shows));
        // A bundle holds what it holds, whoever asks.
        narrowed.settings.bundle.clear();
        narrowed.settings.advertise_bundle_uris = false;
        narrowed
    }

    fn with_refs(&self, refs: Refs) -> Self {
        Self {
            name: self.name.clone(),
            place: self.place.clone(),
            is_part: self.is_part,
            pool: self.pool.clone(),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            kind: self.kind,
            refs,
            settings: self.settings.clone(),
            store: Arc::clone(&self.store),
            graph: self.graph.clone(),
            shallow: self.shallow.clone(),
            cell: OnceLock::new(),
            folders: self.folders.clone(),
            stamps: Stamps::default(),
        }
    }

    /// Whether nothing it was read from has changed.
    pub fn holds(&self) -> bool {
        self.stamps.hold()
    }

    /// Answers what work on its objects asks.
    pub fn loose(&self, ask: Ask) -> Loose {
        loose::answer(&self.folders, ask)
    }

    /// A loose object too large to be held, part by part.
    pub fn large(&self, id: &ObjectId) -> Option<LooseStream> {
        loose::stream(&self.folders, id)
    }

    /// A file of the dumb protocol, which the caller has checked the name of: HEAD, below `objects/info/`, a loose object or
    /// a pack's index. Packs are mapped already: see [`Store::packs`].
    pub fn file(&self, name: &[u8]) -> Option<Arc<[u8]>> {
        if name == b"HEAD" {
            let text = match self.refs.head() {
                refs::Head::Missing => return None,
                refs::Head::Detached(id) => format!("{id}\n").into_bytes(),
                refs::Head::Branch { target, .. } => [b"ref: ".as_slice(), target, b"\n"].concat(),
            };
            return Some(text.into());
        }
        let name = std::str::from_utf8(name).ok()?.strip_prefix("objects/")?;
        let is_sound = |segment: &str| !matches!(segment, "" | "." | "..") && !segment.contains('\0');
        if !name.split('/').all(is_sound) {
            return None;
        }
        let mut bytes = Vec::new();
        layout::open(&self.folders.first()?.join(name)).ok()?.read_to_end(&mut bytes).ok()?;
        Some(bytes.into())
    }
}

fn broken(what: &str, error: &dyn std::fmt::Display) -> Absent {
    Absent::Broken(format!("{what}: {error}"))
}

/// A configuration that is there and cannot be read is a fault: it may hide refs, or demand what this server cannot do.
fn read_settings(layout: &Layout, options: &CatalogueOptions, stamps: &mut Stamps) -> Result<Settings, Absent> {
    let path = layout.common_dir.join("config");
    stamps.watch(&path);
    let text = read_small(&path).map_err(|error| broken("config", &error))?.unwrap_or_default();
    let settings = Settings::read(options.defaults, options.server_config.as_deref(), &text)?;
    if !settings.worktree_config {
        return Ok(settings);
    }
    let path = layout.git_dir.join("config.worktree");
    stamps.watch(&path);
    let own = read_small(&path).map_err(|error| broken("config.worktree", &error))?.unwrap_or_default();
    settings.with_worktree(&own)
}

fn read_shallow(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> Result<Vec<ObjectId>, Absent> {
    let path = layout.common_dir.join("shallow");
    stamps.watch(&path);
    let text = read_small(&path).map_err(|error| broken("shallow", &error))?.unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let ids: Option<Vec<_>> = lines.map(|line| from_hex(kind, line.trim_ascii())).collect();
    let mut ids = ids.ok_or_else(|| broken("shallow", &"a line is no id; `git fsck` says more"))?;
    // Stock git tells them in this order, whatever the file's.
    ids.sort_unstable();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{
        catalogue::{
            Catalogue,
            tests::{commit, git},
        },
        refs::Head,
    };

    fn snapshot(root: &Path, name: &str) -> Arc<Snapshot> {
        let options = CatalogueOptions { root: root.to_owned(), ..CatalogueOptions::default() };
        Catalogue::open(options).unwrap().snapshot(name.as_bytes(), false).unwrap()
    }

    #[test]
    fn files_are_those_below_objects_and_nothing_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "a.git"]);
        let path = folder.path().join("a.git");
        let id = commit(&path, "x");
        git(&path, &["update-ref", "refs/heads/main", &id]);
        let found = snapshot(folder.path(), "a");
        let object = format!("objects/{}/{}", &id[..2], &id[2..]);
        assert_eq!(found.file(object.as_bytes()).unwrap()[..], std::fs::read(path.join(&object)).unwrap());
        assert_eq!(found.file(b"HEAD").unwrap()[..], *b"ref: refs/heads/main\n");
        let absolute = format!("objects/{}", path.join("config").display());
        for name in
            ["objects/../config", "config", "objects/", "objects/info", &absolute, "objects//info/x", "objects/\0"]
        {
            assert_eq!(found.file(name.as_bytes()), None, "{name:?}");
        }
    }

    #[test]
    fn objects_of_a_pool_are_found_packed_and_loose() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "pool.git"]);
        let pool = root.join("pool.git");
        let packed = commit(&pool, "packed");
        git(&pool, &["update-ref", "refs/heads/main", &packed]);
        git(&pool, &["repack", "-adq"]);
        git(&pool, &["prune-packed"]);
        let loose = commit(&pool, "loose");
        git(root, &["init", "-q", "--bare", "fork.git"]);
        std::fs::write(root.join("fork.git/objects/info/alternates"), "../../pool.git/objects\n").unwrap();
        let id = |hex: &str| from_hex(Kind::Sha1, hex.as_bytes()).unwrap();
        let fork = snapshot(root, "fork");
        assert!(fork.store.contains(&id(&packed)) && !fork.store.contains(&id(&loose)));
        assert!(matches!(fork.loose(Ask::Look(id(&loose))), Loose::Seen { .. }));
        assert_eq!(fork.loose(Ask::Look(id(&packed))), Loose::Absent);
        assert!(fork.refs.is_empty(), "a pool lends objects and no refs");
    }

    #[test]
    fn shallow_repositories_of_sha256_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "--object-format=sha256", "b.git"]);
        let path = root.join("b.git");
        let (one, two) = (commit(&path, "one"), commit(&path, "two"));
        git(&path, &["update-ref", "refs/heads/main", &one]);
        git(&path, &["repack", "-adq"]);
        std::fs::write(path.join("shallow"), format!("{two}\n{one}\n")).unwrap();
        let found = snapshot(root, "b");
        let mut ids: Vec<_> = [&one, &two].map(|hex| from_hex(Kind::Sha256, hex.as_bytes()).unwrap()).into();
        ids.sort_unstable();
        assert_eq!((found.kind, &found.shallow, found.store.packs().len()), (Kind::Sha256, &ids, 1));
        let Head::Branch { id: Some(head), .. } = found.refs.head() else { panic!("{:?}", found.refs.head()) };
        assert_eq!(head.to_string(), one);
    }
}
