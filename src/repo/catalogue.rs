//! The catalogue: a path of a URL becomes the repository it names, and the snapshot of it that still holds.
//!
//! Serves nothing outside ROOT. Invariants: two paths to one repository share one snapshot; a snapshot is handed out only
//! after its stamps were compared; the lock is held for map operations only.
//! Source: gitprotocol-http(5); the path rules of git-http-backend(1) and git-daemon(1).
//! Read first: `each_spelling_of_a_path_finds_its_repository`.

use std::{
    collections::HashMap,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Absent,
    layout::{Layout, path_of},
    packs::OpenPacks,
    seals::Seals,
    settings::Defaults,
    snapshot::Snapshot,
};
use crate::{limits, pack::Pack, stamp::Stamps};

/// Which repositories below ROOT are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Export {
    /// All of them.
    #[default]
    All,
    /// Those with a file `git-daemon-export-ok`.
    Marked,
}

/// How a catalogue is kept.
#[derive(Clone, Debug, Default)]
pub struct CatalogueOptions {
    /// Everything served is here or below.
    pub root: PathBuf,
    /// Which of it.
    pub export: Export,
    /// What is offered where no configuration says anything.
    pub defaults: Defaults,
    /// Text of the server's own configuration file.
    pub server_config: Option<Vec<u8>>,
    /// Paths below which each name is a namespace of one repository.
    pub namespaces: Vec<Namespaces>,
    /// Whether symbolic links may lead out of ROOT.
    pub follow_links: bool,
    /// Folder in which proofs about packs are kept.
    pub state: Option<PathBuf>,
}

/// Paths `PREFIX/NAME` that show the namespace NAME of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Of URL paths, without slashes at its ends.
    pub prefix: Vec<u8>,
    /// Path of the repository below ROOT.
    pub repository: Vec<u8>,
}

/// All repositories below one folder.
#[derive(Debug)]
pub struct Catalogue {
    options: CatalogueOptions,
    root: PathBuf,
    /// Name of ROOT itself, where that is a repository.
    root_name: Vec<u8>,
    packs: OpenPacks,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Where each path that was asked for leads.
    places: HashMap<Vec<u8>, Place>,
    snapshots: HashMap<PathBuf, (Arc<Snapshot>, u64)>,
    /// Namespaces by path, each with the number of the snapshot it is a part of.
    namespaces: HashMap<Vec<u8>, (u64, Arc<Snapshot>)>,
    /// What those may see who may not see all refs, by the number of the snapshot and the key of the limit.
    narrowed: HashMap<(u64, String), Arc<Snapshot>>,
    uses: u64,
}

/// Where a path leads, and the files that say so.
#[derive(Clone, Debug)]
struct Place {
    git_dir: PathBuf,
    stamps: Arc<Stamps>,
}

impl Catalogue {
    /// Opens ROOT.
    ///
    /// # Errors
    /// It is no folder, or may not be read; or the state folder cannot be written into.
    pub fn open(options: CatalogueOptions) -> io::Result<Self> {
        let root = options.root.canonicalize()?;
        std::fs::read_dir(&root)?;
        let root_name = root.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let root_name = root_name.strip_suffix(b".git").map(<[u8]>::to_vec).unwrap_or(root_name);
        let seals = Seals::open(options.state.as_deref())
            .map_err(|error| io::Error::new(error.kind(), format!("the state folder cannot be used: {error}")))?;
        Ok(Self { options, root, root_name, packs: OpenPacks::new(seals), known: Mutex::default() })
    }

    /// ROOT, without symbolic links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The repository at a decoded URL path. `fresh` distrusts what is remembered.
    ///
    /// # Errors
    /// There is none, or none that can be served.
    pub fn snapshot(&self, path: &[u8], fresh: bool) -> Result<Arc<Snapshot>, Absent> {
        let name = trimmed(path);
        for namespaces in &self.options.namespaces {
            let rest = name.strip_prefix(namespaces.prefix.as_slice()).and_then(|rest| rest.strip_prefix(b"/"));
            if let Some(namespace) = rest {
                return self.namespace(name, &namespaces.repository, namespace, fresh);
            }
        }
        let remembered = self.lock().remembered(name);
        if let Some((snapshot, place)) = remembered
            && !fresh
            && place.hold()
            && snapshot.holds()
        {
            return admit(snapshot);
        }
        let layout = self.find(name)?;
        let place = self.place(&layout)?;
        let known = self.lock().find(&layout.git_dir);
        if let Some(snapshot) = known.filter(|snapshot| !fresh && snapshot.holds()) {
            self.lock().places.insert(name.to_vec(), place);
            return admit(snapshot);
        }
        let shown = String::from_utf8_lossy(name);
        let place_of = |folder: &Path| self.place_below(folder);
        let snapshot = Arc::new(Snapshot::read(&shown, &layout, &self.options, &self.packs, place_of)?);
        self.lock().remember(name, place, &snapshot);
        admit(snapshot)
    }

    fn namespace(
        &self,
        name: &[u8],
        repository: &[u8],
        namespace: &[u8],
        fresh: bool,
    ) -> Result<Arc<Snapshot>, Absent> {
        let namespace = namespace.strip_suffix(b".git").unwrap_or(namespace);
        let of_ref = [b"refs/namespaces/".as_slice(), namespace].concat();
        if !is_sound(namespace) || <&gix_ref::FullNameRef>::try_from(gix_ref::bstr::BStr::new(&of_ref)).is_err() {
            return Err(Absent::NotFound);
        }
        let whole = self.snapshot(repository, fresh)?;
        let known =
            self.lock().namespaces.get(name).filter(|known| known.0 == whole.number).map(|known| Arc::clone(&known.1));
        if let Some(known) = known {
            return Ok(known);
        }
        let shown = Arc::new(whole.within(&String::from_utf8_lossy(name), namespace)?);
        let mut known = self.lock();
        if known.namespaces.len() >= limits::SNAPSHOTS_MAX {
            known.namespaces.clear();
        }
        known.namespaces.insert(name.to_vec(), (whole.number, Arc::clone(&shown)));
        Ok(shown)
    }

    /// The path of a folder below ROOT, links followed; the name of ROOT for ROOT itself.
    fn place_below(&self, folder: &Path) -> Option<Vec<u8>> {
        let real = folder.canonicalize().ok()?;
        let below = real.strip_prefix(&self.root).ok()?.as_os_str().as_bytes();
        Some(if matches!(below, b"" | b".git") { self.root_name.clone() } else { below.to_vec() })
    }

    /// A snapshot for someone who may see only the refs that `shows` says yes to; `key` is the same for the same answers.
    pub fn narrowed(&self, snapshot: &Arc<Snapshot>, key: &str, shows: impl Fn(&[u8]) -> bool) -> Arc<Snapshot> {
        let name = (snapshot.number, key.to_owned());
        let known = self.lock().narrowed.get(&name).map(Arc::clone);
        if let Some(known) = known {
            return known;
        }
        let shown = Arc::new(snapshot.narrowed(shows));
        let mut known = self.lock();
        if known.narrowed.len() >= limits::NARROWED_MAX {
            known.narrowed.clear();
        }
        known.narrowed.insert(name, Arc::clone(&shown));
        shown
    }

    /// Whether a repository is exported, and what that and its folders hang on.
    fn place(&self, layout: &Layout) -> Result<Place, Absent> {
        let mut stamps = Stamps::default();
        for path in &layout.said_by {
            stamps.watch(path);
        }
        let mark = layout.git_dir.join("git-daemon-export-ok");
        if self.options.export == Export::Marked && !stamps.watch(&mark).is_there() {
            return Err(Absent::NotExported);
        }
        Ok(Place { git_dir: layout.git_dir.clone(), stamps: Arc::new(stamps) })
    }

    /// The folders of the repository with that name.
    fn find(&self, name: &[u8]) -> Result<Layout, Absent> {
        if !is_sound(name) {
            return Err(Absent::NotFound);
        }
        let plain = name.strip_suffix(b".git").unwrap_or(name);
        if (name.is_empty() || plain == self.root_name)
            && let Some(layout) = self.look(&self.root, SUFFIXES)?
        {
            return Ok(layout);
        }
        if name.is_empty() {
            return Err(Absent::NotFound);
        }
        if let Some(layout) = self.look(&self.root.join(path_of(name)), SUFFIXES)? {
            return Ok(layout);
        }
        // `x.git` names `x` as well, as git hosts have it.
        let found = match plain {
            b"" => None,
            _ if plain == name => None,
            _ => self.look(&self.root.join(path_of(plain)), SUFFIXES)?,
        };
        found.ok_or(Absent::NotFound)
    }

    /// The repository that a path names, with one of the suffixes behind it.
    fn look(&self, path: &Path, suffixes: &[&str]) -> Result<Option<Layout>, Absent> {
        for suffix in suffixes {
            let mut candidate = path.as_os_str().to_owned();
            candidate.push(suffix);
            let found = Layout::of(Path::new(&candidate));
            let Some(layout) = found.map_err(|error| Absent::Broken(error.to_string()))? else { continue };
            // A link out of ROOT would serve what nobody meant to serve.
            let is_inside = |folder: &Path| {
                self.options.follow_links || folder.canonicalize().is_ok_and(|real| real.starts_with(&self.root))
            };
            if is_inside(&layout.git_dir) && is_inside(&layout.common_dir) && is_inside(&layout.objects_dir) {
                return Ok(Some(layout));
            }
        }
        Ok(None)
    }

    /// Paths of all packs that are open, to be given to [`Self::forget_gone`] one after the other.
    pub fn open_packs(&self) -> Vec<PathBuf> {
        self.packs.paths()
    }

    /// Snapshots that are remembered.
    pub fn snapshots(&self) -> Vec<Arc<Snapshot>> {
        self.lock().snapshots.values().map(|(snapshot, _)| Arc::clone(snapshot)).collect()
    }

    /// Lets go of a pack whose file was deleted or replaced: the snapshots that hold it are forgotten. Returns the pack, so
    /// that plans over it can be dropped as well.
    pub fn forget_gone(&self, path: &Path) -> Option<Arc<Pack>> {
        let pack = self.packs.forget_gone(path)?;
        self.packs.seals().forget(pack.trailer());
        self.forget_holders(&pack);
        Some(pack)
    }

    /// Serves nothing of a damaged pack any more, until its file is replaced: objects that are nowhere else are missing.
    pub fn condemn(&self, pack: &Arc<Pack>) {
        self.packs.condemn(pack);
        self.forget_holders(pack);
    }

    fn forget_holders(&self, pack: &Arc<Pack>) {
        let holds = |snapshot: &Snapshot| snapshot.store.packs().iter().any(|held| Arc::ptr_eq(held, pack));
        let mut known = self.lock();
        known.snapshots.retain(|_, (snapshot, _)| !holds(snapshot));
        known.namespaces.retain(|_, (_, snapshot)| !holds(snapshot));
        known.narrowed.retain(|_, snapshot| !holds(snapshot));
    }

    /// Keeps the seal of a pack for the next start, where there is a state folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_seal(&self, pack: &Pack) -> io::Result<()> {
        self.packs.seals().keep(pack)
    }

    /// Names of all repositories below ROOT for people to read, sorted.
    pub fn names(&self) -> Vec<String> {
        self.discover().iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Paths of all repositories below ROOT as a URL has them, sorted by their bytes, without the first slash. Descends into
    /// folders that are no repositories and into ROOT, follows no links.
    pub fn discover(&self) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut queue = vec![(self.root.clone(), 0)];
        while let Some((folder, depth)) = queue.pop() {
            // Only what is this very folder: `x` beside `x.git` is a folder like any other.
            if self.look(&folder, OWN_SUFFIXES).is_ok_and(|found| found.is_some()) {
                let name = folder.strip_prefix(&self.root).unwrap_or(&folder).as_os_str().as_bytes();
                names.push(if name.is_empty() { self.root_name.clone() } else { name.to_vec() });
                if folder != self.root || folder.join("HEAD").exists() {
                    continue;
                }
            }
            if depth >= limits::REPOSITORY_DEPTH_MAX {
                continue;
            }
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let below = entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != ".git");
            queue.extend(below.map(|entry| (entry.path(), depth + 1)));
        }
        names.sort_unstable();
        names
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Maps of immutable snapshots are sound whatever happened to who held them.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn remembered(&mut self, name: &[u8]) -> Option<(Arc<Snapshot>, Arc<Stamps>)> {
        let Place { git_dir, stamps } = self.places.get(name)?.clone();
        self.find(&git_dir).map(|snapshot| (snapshot, stamps))
    }

    fn find(&mut self, folder: &Path) -> Option<Arc<Snapshot>> {
        self.uses += 1;
        let (snapshot, last_use) = self.snapshots.get_mut(folder)?;
        *last_use = self.uses;
        Some(Arc::clone(snapshot))
    }

    fn remember(&mut self, name: &[u8], place: Place, snapshot: &Arc<Snapshot>) {
        self.uses += 1;
        self.snapshots.insert(place.git_dir.clone(), (Arc::clone(snapshot), self.uses));
        self.places.insert(name.to_vec(), place);
        let mappings =
            |known: &Self| known.snapshots.values().map(|known| known.0.store.packs().len() * 2).sum::<usize>();
        while self.snapshots.len() > 1
            && (self.snapshots.len() > limits::SNAPSHOTS_MAX || mappings(self) > limits::MAPPINGS_MAX)
        {
            let oldest = self.snapshots.iter().min_by_key(|(_, (_, last_use))| *last_use);
            let Some(oldest) = oldest.map(|(folder, _)| folder.clone()) else { break };
            self.snapshots.remove(&oldest);
        }
        if self.places.len() > 4 * limits::SNAPSHOTS_MAX {
            let snapshots = &self.snapshots;
            self.places.retain(|_, place| snapshots.contains_key(&place.git_dir));
        }
    }
}

fn admit(snapshot: Arc<Snapshot>) -> Result<Arc<Snapshot>, Absent> {
    if snapshot.settings.upload_pack { Ok(snapshot) } else { Err(Absent::Disabled) }
}

fn trimmed(path: &[u8]) -> &[u8] {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.strip_suffix(b"/").unwrap_or(path)
}

/// What git tries behind a path, in this order (`enter_repo` in its path.c).
const SUFFIXES: &[&str] = &["/.git", "", ".git/.git", ".git"];
/// Those of them that stay within the folder.
const OWN_SUFFIXES: &[&str] = &["/.git", ""];

/// Whether a name stays below ROOT by its spelling, and out of the insides of repositories.
fn is_sound(name: &[u8]) -> bool {
    let mut inside = false;
    name.is_empty()
        || name.split(|byte| *byte == b'/').all(|segment| {
            let sound = !inside && !segment.is_empty() && segment != b"." && segment != b".." && !segment.contains(&0);
            inside = segment == b".git";
            sound
        })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::{fs, process::Command};

    /// Runs git with a configuration of its own; an argument `<file` is standard input. Returns what it prints.
    pub fn git(folder: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        for (who, name) in [("AUTHOR", "A"), ("COMMITTER", "C")] {
            command.env(format!("GIT_{who}_NAME"), name).env(format!("GIT_{who}_EMAIL"), "x@y");
            command.env(format!("GIT_{who}_DATE"), "1700000000 +0000");
        }
        command.args(["-c", "init.defaultBranch=main"]);
        command.stdin(std::process::Stdio::null());
        for argument in arguments {
            match argument.strip_prefix('<') {
                Some(file) => command.stdin(fs::File::open(folder.join(file)).unwrap()),
                None => command.arg(argument),
            };
        }
        let output = command.output().unwrap();
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {talk}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A commit without files in a bare repository; returns its id.
    pub fn commit(repository: &Path, message: &str) -> String {
        let tree = git(repository, &["mktree"]);
        git(repository, &["commit-tree", "-m", message, tree.trim()]).trim().to_owned()
    }

    fn catalogue(root: &Path, export: Export) -> Catalogue {
        let options = CatalogueOptions { root: root.to_owned(), export, ..CatalogueOptions::default() };
        Catalogue::open(options).unwrap()
    }

    #[test]
    fn each_spelling_of_a_path_finds_its_repository() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["a.git", "nest/deep/b.git", "c"] {
            git(root, &["init", "-q", "--bare", name]);
        }
        git(root, &["init", "-q", "plain"]);
        let found = catalogue(root, Export::All);
        for path in [
            "/a.git",
            "/a",
            "a",
            "/nest/deep/b",
            "/nest/deep/b.git/",
            "/c",
            "/c.git",
            "/plain",
            "/plain/.git",
            "/plain.git",
        ] {
            assert!(found.snapshot(path.as_bytes(), false).is_ok(), "{path}");
        }
        for path in ["/", "/nest", "/none", "/a/../a", "/./a", "//a", "/plain/.git/objects", "/a.git/refs", "/a\0"] {
            assert_eq!(found.snapshot(path.as_bytes(), false).err(), Some(Absent::NotFound), "{path}");
        }
        assert_eq!(found.names(), ["a.git", "c", "nest/deep/b.git", "plain"]);
    }

    #[test]
    fn root_itself_may_be_a_repository() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("project");
        git(folder.path(), &["init", "-q", "project"]);
        let found = catalogue(&root, Export::All);
        for path in ["/project", "/project.git", "/"] {
            assert!(found.snapshot(path.as_bytes(), false).is_ok(), "{path}");
        }
        assert_eq!(found.names(), ["project"]);
        git(folder.path(), &["init", "-q", "--bare", "mirror.git"]);
        let found = catalogue(&folder.path().join("mirror.git"), Export::All);
        assert!(found.snapshot(b"/mirror", false).is_ok() && found.snapshot(b"/mirror.git", false).is_ok());
    }

    #[test]
    fn links_out_of_root_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        git(folder.path(), &["init", "-q", "--bare", "secret.git"]);
        git(&root, &["init", "-q", "--bare", "real.git"]);
        std::os::unix::fs::symlink("../secret.git", root.join("link.git")).unwrap();
        std::os::unix::fs::symlink("real.git", root.join("alias.git")).unwrap();
        fs::create_dir(root.join("file")).unwrap();
        fs::write(root.join("file/.git"), "gitdir: ../../secret.git\n").unwrap();
        let found = catalogue(&root, Export::All);
        assert_eq!(found.snapshot(b"/link.git", false).err(), Some(Absent::NotFound));
        assert_eq!(found.snapshot(b"/file", false).err(), Some(Absent::NotFound));
        assert!(found.snapshot(b"/alias", false).is_ok());
        fs::rename(root.join("real.git/objects"), folder.path().join("objects")).unwrap();
        std::os::unix::fs::symlink("../../objects", root.join("real.git/objects")).unwrap();
        assert_eq!(found.snapshot(b"/real", true).err(), Some(Absent::NotFound));
    }

    #[test]
    fn only_marked_or_enabled_repositories_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        let marked = catalogue(root, Export::Marked);
        assert_eq!(marked.snapshot(b"/a", false).err(), Some(Absent::NotExported));
        fs::write(root.join("a.git/git-daemon-export-ok"), "").unwrap();
        settle();
        let first = marked.snapshot(b"/a", false).unwrap();
        assert!(Arc::ptr_eq(&first, &marked.snapshot(b"/a", false).unwrap()), "it is remembered");
        fs::remove_file(root.join("a.git/git-daemon-export-ok")).unwrap();
        assert_eq!(marked.snapshot(b"/a", false).err(), Some(Absent::NotExported), "the mark was taken away");
        fs::write(root.join("a.git/git-daemon-export-ok"), "").unwrap();
        git(&root.join("a.git"), &["config", "http.uploadpack", "false"]);
        assert_eq!(marked.snapshot(b"/a", true).err(), Some(Absent::Disabled));
    }

    #[test]
    fn names_beside_a_repository_are_folders_of_their_own() {
        use std::ffi::OsStr;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "group.git"]);
        git(root, &["init", "-q", "--bare", "group/one.git"]);
        let odd = root.join(OsStr::from_bytes(b"\xff.git"));
        fs::rename(root.join("group/one.git"), &odd).unwrap();
        git(root, &["init", "-q", "--bare", "group/one.git"]);
        let found = catalogue(root, Export::All);
        assert_eq!(found.discover(), [&b"group.git"[..], b"group/one.git", b"\xff.git"]);
        for name in found.discover() {
            assert!(found.snapshot(&name, false).is_ok());
        }
    }

    #[test]
    fn a_git_file_that_points_elsewhere_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["one", "two"] {
            git(root, &["init", "-q", "--bare", name]);
            git(&root.join(name), &["update-ref", "refs/heads/main", &commit(&root.join(name), name)]);
        }
        fs::create_dir(root.join("x")).unwrap();
        let found = catalogue(root, Export::All);
        let id = || found.snapshot(b"/x", false).unwrap().refs.head().id().unwrap();
        fs::write(root.join("x/.git"), "gitdir: ../one\n").unwrap();
        // Long ago, as far as a server can tell: nothing is reread because it is new.
        settle();
        let first = id();
        assert_eq!(first, id());
        fs::write(root.join("x/.git"), "gitdir: ../two\n").unwrap();
        assert_ne!(first, id());
    }

    /// Waits until what was written is older than the grain of the clock.
    fn settle() {
        let start = std::time::SystemTime::now();
        while start.elapsed().unwrap_or_default() < std::time::Duration::from_millis(60) {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn an_unchanged_repository_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        let path = root.join("a.git");
        git(&path, &["update-ref", "refs/heads/main", &commit(&path, "x")]);
        settle();
        let found = catalogue(root, Export::All);
        let first = found.snapshot(b"/a", false).unwrap();
        for name in [&b"/a"[..], b"/a.git", b"a/"] {
            assert!(Arc::ptr_eq(&first, &found.snapshot(name, false).unwrap()));
        }
        let fresh = found.snapshot(b"/a", true).unwrap();
        assert!(!Arc::ptr_eq(&first, &fresh) && first.number != fresh.number);
        // Each of these is seen at once, without a wait.
        let id = commit(&path, "y");
        let steps: [&[&str]; 5] = [
            &["update-ref", "refs/heads/main", &id],
            &["update-ref", "refs/heads/new/nested", &id],
            &["pack-refs", "--all"],
            &["update-ref", "-d", "refs/heads/new/nested"],
            &["config", "uploadpack.allowFilter", "false"],
        ];
        let mut last = fresh;
        for step in steps {
            settle();
            last = found.snapshot(b"/a", false).unwrap();
            assert!(Arc::ptr_eq(&last, &found.snapshot(b"/a", false).unwrap()));
            git(&path, step);
            assert!(!Arc::ptr_eq(&last, &found.snapshot(b"/a", false).unwrap()), "{step:?}");
        }
        assert!(last.settings.allow_filter && !found.snapshot(b"/a", false).unwrap().settings.allow_filter);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        fs::remove_file(root.join("a.git/config")).unwrap();
        assert!(catalogue(root, Export::All).snapshot(b"/a", false).is_ok(), "without one, all is default");
        fs::create_dir(root.join("a.git/config")).unwrap();
        let found = catalogue(root, Export::All).snapshot(b"/a", false);
        assert!(matches!(found, Err(Absent::Broken(_))), "it may have hidden refs");
        fs::remove_dir(root.join("a.git/config")).unwrap();
        fs::write(root.join("a.git/shallow"), "no id\n").unwrap();
        assert!(matches!(catalogue(root, Export::All).snapshot(b"/a", false), Err(Absent::Broken(_))));
    }

    #[test]
    fn configuration_of_a_worktree_is_read_where_it_is_switched_on() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "a"]);
        fs::write(root.join("a/.git/config.worktree"), "[uploadpack]\nallowFilter = false\n").unwrap();
        let allows = |found: &Catalogue| found.snapshot(b"/a", false).unwrap().settings.allow_filter;
        let found = catalogue(root, Export::All);
        assert!(allows(&found));
        git(&root.join("a"), &["config", "extensions.worktreeConfig", "true"]);
        assert!(!allows(&found));
    }

    #[test]
    fn hidden_refs_are_those_upload_pack_does_not_show() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        let path = root.join("a.git");
        let id = commit(&path, "x");
        for name in ["heads/main", "heads/mainly", "pull/1/head", "pull/1/merge", "pull/12/head", "pullover", "tags/v1"]
        {
            git(&path, &["update-ref", &format!("refs/{name}"), &id]);
        }
        let sets: [&[&str]; 6] = [
            &["refs/pull"],
            &["refs/pull/", "!refs/pull/1"],
            &["!refs/pull/1", "refs/pull"],
            &["refs", "!refs/heads/main"],
            &["^refs/pull", "!^refs/pull/12"],
            &["refs/heads/main", "refs/tags/v1", ""],
        ];
        for patterns in sets {
            let text: Vec<String> = patterns.iter().map(|pattern| format!("\thideRefs = {pattern}\n")).collect();
            let (first, rest) = text.split_at(1);
            // Two sections, one order.
            let sections = format!("[transfer]\n{}[uploadpack]\n{}", first.concat(), rest.concat());
            fs::write(path.join("config"), format!("[core]\nrepositoryformatversion = 0\nbare = true\n{sections}"))
                .unwrap();
            let snapshot = catalogue(root, Export::All).snapshot(b"/a", false).unwrap();
            let own: Vec<_> = snapshot.refs.iter().filter(|found| !found.hidden).map(|found| found.name).collect();
            let stock = git(&path, &["ls-remote", "."]);
            let stock: Vec<&[u8]> = stock
                .lines()
                .filter_map(|line| line.split_once('\t').map(|(_, name)| name.as_bytes()))
                .filter(|name| name.starts_with(b"refs/"))
                .collect();
            assert_eq!(own, stock, "{patterns:?}");
        }
    }

    #[test]
    fn changes_are_seen_by_the_next_request_and_not_by_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        let path = root.join("a.git");
        let found = catalogue(root, Export::All);
        let before = found.snapshot(b"/a", false).unwrap();
        assert!(before.refs.is_empty() && before.store.packs().is_empty());
        let id = commit(&path, "x");
        git(&path, &["update-ref", "refs/heads/main", &id]);
        let loose = found.snapshot(b"/a", false).unwrap();
        assert_eq!((loose.refs.len(), loose.store.packs().len(), before.refs.len()), (1, 0, 0));
        git(&path, &["repack", "-adq"]);
        let packed = found.snapshot(b"/a", false).unwrap();
        assert_eq!(packed.store.packs().len(), 1);
        let id = commit(&path, "y");
        git(&path, &["update-ref", "refs/heads/main", &id]);
        git(&path, &["gc", "-q", "--prune=now"]);
        let collected = found.snapshot(b"/a", false).unwrap();
        assert_eq!(collected.refs.find(b"refs/heads/main").unwrap().id.to_string(), id);
        assert_ne!(collected.store.packs()[0].name(), packed.store.packs()[0].name());
        assert_eq!(packed.store.packs()[0].count(), 2, "mapped packs outlive their files");
    }

    #[test]
    fn packs_that_left_their_repository_are_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        let path = root.join("a.git");
        git(&path, &["update-ref", "refs/heads/main", &commit(&path, "x")]);
        git(&path, &["repack", "-adq"]);
        let found = catalogue(root, Export::All);
        let held = Arc::downgrade(&found.snapshot(b"/a", false).unwrap().store.packs()[0]);
        let sweep = || found.open_packs().iter().filter(|path| found.forget_gone(path).is_some()).count();
        assert_eq!(sweep(), 0);
        git(&path, &["update-ref", "refs/heads/main", &commit(&path, "y")]);
        git(&path, &["gc", "-q", "--prune=now"]);
        assert_eq!(sweep(), 1);
        assert!(held.upgrade().is_none(), "nobody streams it, nobody holds it");
    }
}
