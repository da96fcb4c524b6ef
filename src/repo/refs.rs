//! Refs: the files of a ref store become one sorted list.
//!
//! Reads names and ids, no object. Invariants: loose refs are read before packed ones, so that a ref moving from the one to
//! the other is never missed; broken refs are left out with a warning, as stock git leaves them out; names are sorted by
//! their bytes.
//! Source: gitrepository-layout(5), "refs", "packed-refs"; git-pack-refs(1).
//! Read first: `no_ref_is_ever_missing_while_they_are_packed`.

use std::{
    collections::BTreeMap,
    fs, io,
    iter::Peekable,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    hide::Hidden,
    layout::{self, Layout, is_absence, is_trouble, lenient, read_small},
    name,
    packed::Packed,
};
use crate::{
    limits,
    oid::{Kind, ObjectId, from_hex},
    stamp::{Stamp, Stamps},
};

/// All refs of a repository, sorted by name, held densely.
#[derive(Clone, Debug, Default)]
pub struct Refs {
    names: Vec<u8>,
    entries: Vec<Entry>,
    /// What tags finally name, for those of which it is known.
    peeled: Vec<ObjectId>,
    symrefs: Vec<Vec<u8>>,
    head: Head,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name_start: u32,
    name_size: u32,
    id: ObjectId,
    /// Index into `peeled`, or one of the two marks below.
    peeled: u32,
    /// Index into `symrefs`, or [`NONE`].
    symref: u32,
    hidden: bool,
}

const UNKNOWN: u32 = u32::MAX;
const NO_TAG: u32 = u32::MAX - 1;
const NONE: u32 = u32::MAX;

/// One ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ref<'a> {
    /// Full name.
    pub name: &'a [u8],
    /// What it points at, symbolic refs followed.
    pub id: ObjectId,
    /// What that finally names, as far as the ref store knows.
    pub peeled: Peeled,
    /// The ref it stands for, all the way.
    pub symref: Option<&'a [u8]>,
    /// Whether it is never shown.
    pub hidden: bool,
    /// Its place among all refs.
    pub index: usize,
}

/// What a ref store knows of the object behind a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeled {
    /// Nothing.
    Unknown,
    /// It is no tag.
    NoTag,
    /// It is a tag that finally names this.
    To(ObjectId),
}

/// HEAD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// There is none that could be read.
    #[default]
    Missing,
    /// It names an object.
    Detached(ObjectId),
    /// It stands for a branch.
    Branch {
        /// Full name of the branch.
        target: Vec<u8>,
        /// What the branch points at; nothing as long as it is not born.
        id: Option<ObjectId>,
    },
}

impl Head {
    /// What HEAD comes to.
    pub fn id(&self) -> Option<ObjectId> {
        match self {
            Self::Missing => None,
            Self::Detached(id) => Some(*id),
            Self::Branch { id, .. } => *id,
        }
    }
}

impl Refs {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// HEAD.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// All refs, by name.
    pub fn iter(&self) -> impl Iterator<Item = Ref<'_>> {
        (0..self.entries.len()).filter_map(|index| self.at(index))
    }

    /// Refs whose name starts with `prefix`, by name.
    pub fn prefixed<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = Ref<'a>> + 'a {
        let start = self.entries.partition_point(|entry| self.name(entry) < prefix);
        (start..self.entries.len())
            .filter_map(|index| self.at(index))
            .take_while(move |found| found.name.starts_with(prefix))
    }

    /// The ref of that full name.
    pub fn find(&self, name: &[u8]) -> Option<Ref<'_>> {
        self.entries.binary_search_by(|entry| self.name(entry).cmp(name)).ok().and_then(|index| self.at(index))
    }

    /// The refs below `prefix`, named by what follows it; those whose name does not start with `refs/` are left out. HEAD is
    /// the ref of that name there.
    ///
    /// # Errors
    /// The names are too many.
    pub fn within(&self, prefix: &[u8], hidden: &Hidden) -> Result<Self, TooManyNames> {
        let stripped = |name: &[u8]| name.strip_prefix(prefix).map(<[u8]>::to_vec);
        let mut refs = Self::default();
        for found in self.prefixed(prefix) {
            let Some(shown) = stripped(found.name) else { continue };
            let symref = found.symref.map(|target| stripped(target).unwrap_or_else(|| target.to_vec()));
            if shown == b"HEAD" {
                refs.head = match symref {
                    Some(target) => Head::Branch { target, id: Some(found.id) },
                    None => Head::Detached(found.id),
                };
            } else if shown.starts_with(b"refs/") {
                refs.push(&shown, (found.id, found.peeled), symref.as_deref(), hidden)?;
                if let Some(entry) = refs.entries.last_mut() {
                    entry.hidden = hidden.hides_as(found.name, &shown);
                }
            }
        }
        Ok(refs)
    }

    /// The same refs, of which those that `shows` says no to are hidden too; HEAD is not there where its branch is hidden so,
    /// or where it has none.
    #[must_use]
    pub fn narrowed(&self, shows: impl Fn(&[u8]) -> bool) -> Self {
        let mut refs = self.clone();
        for (entry, before) in refs.entries.iter_mut().zip(&self.entries) {
            entry.hidden |= !shows(self.name(before));
            // Not even the name of what is hidden is told.
            let target = self.symrefs.get(before.symref as usize);
            if target.is_some_and(|target| !shows(target)) {
                entry.symref = NONE;
            }
        }
        let is_shown = matches!(&self.head, Head::Branch { target, .. } if shows(target));
        if !is_shown {
            refs.head = Head::Missing;
        }
        refs
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        let start = entry.name_start as usize;
        self.names.get(start..start + entry.name_size as usize).unwrap_or_default()
    }

    fn at(&self, index: usize) -> Option<Ref<'_>> {
        let entry = self.entries.get(index)?;
        Some(Ref {
            name: self.name(entry),
            id: entry.id,
            peeled: match entry.peeled {
                UNKNOWN => Peeled::Unknown,
                NO_TAG => Peeled::NoTag,
                at => self.peeled.get(at as usize).map_or(Peeled::Unknown, |id| Peeled::To(*id)),
            },
            symref: self.symrefs.get(entry.symref as usize).map(Vec::as_slice),
            hidden: entry.hidden,
            index,
        })
    }
}

/// What one ref says, before symbolic ones are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// An object, and what is known of it.
    Object(ObjectId, Peeled),
    /// Another ref.
    Symbolic(Vec<u8>),
    /// Nothing that makes sense. Shadows a packed ref of the same name, which is older.
    Broken,
}

/// What each ref says, as a ref store has it.
#[derive(Debug, Default)]
pub struct Told {
    /// Those in files of their own, or of a reftable.
    pub own: BTreeMap<Vec<u8>, Said>,
    /// Those of the packed-refs file, where there is no newer one.
    pub packed: Packed,
    /// HEAD.
    pub head: Option<Said>,
}

/// Reads the refs and the HEAD of a repository that keeps them in files. What is read is stamped.
///
/// # Errors
/// The packed refs are damaged or unreadable, or the machine is in trouble: nothing is better than some of the refs.
pub fn read_files(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> io::Result<Told> {
    let mut loose = LooseReader { kind, stamps, files: 0, links: 0, queue: Vec::new(), found: BTreeMap::new() };
    loose.queue.push((layout.common_dir.join("refs"), b"refs/".to_vec(), 0));
    loose.read_all(|name| layout.is_linked() && OF_WORKTREES.contains(&name))?;
    if layout.is_linked() {
        let own =
            OF_WORKTREES.iter().map(|name| (layout.git_dir.join(layout::path_of(name)), [name, &b"/"[..]].concat(), 1));
        loose.queue.extend(own);
        loose.read_all(|_| false)?;
    }
    let own = loose.found;
    // Only now the packed ones: what was packed and pruned meanwhile stands there.
    let path = layout.common_dir.join("packed-refs");
    stamps.watch(&path);
    let text = match layout::open(&path) {
        Ok(mut file) => {
            let mut text = Vec::new();
            io::Read::read_to_end(&mut file, &mut text)?;
            text
        }
        Err(error) if is_absence(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    let packed = Packed::parse(text, kind).map_err(|damaged| io::Error::new(io::ErrorKind::InvalidData, damaged))?;
    Ok(Told { own, packed, head: read_head(layout, kind, stamps)? })
}

/// Refs that belong to each worktree alone.
pub const OF_WORKTREES: [&[u8]; 3] = [b"refs/bisect", b"refs/worktree", b"refs/rewritten"];

struct LooseReader<'a> {
    kind: Kind,
    stamps: &'a mut Stamps,
    files: usize,
    /// Folders that were entered by a symbolic link.
    links: usize,
    /// Folders to be read: path, prefix of the names below, depth.
    queue: Vec<(PathBuf, Vec<u8>, usize)>,
    found: BTreeMap<Vec<u8>, Said>,
}

impl LooseReader<'_> {
    fn read_all(&mut self, is_foreign: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        while let Some((folder, prefix, depth)) = self.queue.pop() {
            if depth > limits::REPOSITORY_DEPTH_MAX || self.links > limits::REF_LINKS_MAX {
                tracing::warn!(folder = %folder.display(), "refs nest too deep, or in circles; the rest is ignored");
                continue;
            }
            self.folder(&folder, &prefix, depth, &is_foreign)?;
        }
        Ok(())
    }

    fn folder(
        &mut self,
        folder: &Path,
        prefix: &[u8],
        depth: usize,
        is_foreign: &impl Fn(&[u8]) -> bool,
    ) -> io::Result<()> {
        self.stamps.watch(folder);
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if is_trouble(&error) => return Err(error),
            Err(error) => {
                if !is_absence(&error) {
                    tracing::warn!(folder = %folder.display(), "its refs are ignored: {error}");
                }
                return Ok(());
            }
        };
        for entry in entries {
            let entry = entry?;
            let file_name = entry.file_name();
            let name = [prefix, file_name.as_bytes()].concat();
            if file_name.as_bytes().starts_with(b".") || name.ends_with(b".lock") || is_foreign(&name) {
                continue;
            }
            let (path, mut found) = (entry.path(), entry.file_type()?);
            if found.is_symlink() {
                let Ok(target) = fs::metadata(&path) else { continue };
                found = target.file_type();
                self.links += usize::from(found.is_dir());
            }
            if found.is_dir() {
                self.queue.push((path, [name.as_slice(), b"/"].concat(), depth + 1));
            } else if found.is_file() {
                self.file(&path, name)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, name: Vec<u8>) -> io::Result<()> {
        let stamp = Stamp::of(path);
        // git writes a ref by renaming a file into its folder, which changes the folder's stamp. Few enough files are
        // stamped as well, for those who write into them by hand.
        if self.files < FILES_STAMPED_MAX {
            self.stamps.add(path.to_owned(), stamp);
        }
        self.files += 1;
        if !name::is_sound(&name) {
            tracing::warn!(path = %path.display(), "ignoring ref with broken name");
            return Ok(());
        }
        let said = match read_small(path) {
            // Gone since the folder was listed: deleted, or packed, and then it is found there.
            Ok(None) => return Ok(()),
            Ok(Some(text)) => parse(&text, self.kind),
            Err(error) if is_trouble(&error) => return Err(error),
            Err(_) => None,
        };
        if said.is_none() {
            tracing::warn!(path = %path.display(), "ignoring broken ref");
        }
        self.found.insert(name, said.unwrap_or(Said::Broken));
        Ok(())
    }
}

/// What a ref file says.
pub fn parse(text: &[u8], kind: Kind) -> Option<Said> {
    if let Some(target) = text.strip_prefix(b"ref:") {
        return Some(Said::Symbolic(target.trim_ascii().to_vec()));
    }
    let hex = text.get(..kind.len_in_hex())?;
    let rest = text.get(kind.len_in_hex()..).unwrap_or_default();
    if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
        return None;
    }
    let id = from_hex(kind, hex).filter(|id| !id.is_null())?;
    Some(Said::Object(id, Peeled::Unknown))
}

/// What the HEAD of a repository in files says.
fn read_head(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> io::Result<Option<Said>> {
    let path = layout.git_dir.join("HEAD");
    stamps.watch(&path);
    if let Ok(target) = fs::read_link(&path) {
        return Ok(Some(Said::Symbolic(target.as_os_str().as_bytes().to_vec())));
    }
    Ok(lenient(read_small(&path))?.and_then(|text| parse(&text, kind)))
}

/// More names than one repository may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the names of the refs take more than {} bytes", limits::REF_NAMES_SIZE_MAX)]
pub struct TooManyNames;

/// Follows symbolic refs and packs everything densely.
///
/// # Errors
/// The names take more room than [`limits::REF_NAMES_SIZE_MAX`].
pub fn arrange(told: &Told, hidden: &Hidden) -> Result<Refs, TooManyNames> {
    let mut refs = Refs { head: told.resolve_head(), ..Refs::default() };
    refs.entries.reserve(told.own.len() + told.packed.len());
    let mut packed = told.packed.iter().peekable();
    for (name, said) in &told.own {
        while let Some((name, line)) = packed.next_if(|(packed, _)| *packed < name.as_slice()) {
            refs.push(name, (line.id, line.peeled), None, hidden)?;
        }
        skip(&mut packed, name);
        match said {
            Said::Object(id, peeled) => refs.push(name, (*id, *peeled), None, hidden)?,
            Said::Symbolic(target) => match told.follow(target) {
                Some((target, id, peeled)) => refs.push(name, (id, peeled), Some(target), hidden)?,
                None => tracing::warn!(name = %String::from_utf8_lossy(name), "ignoring dangling symbolic ref"),
            },
            Said::Broken => {}
        }
    }
    for (name, line) in packed {
        refs.push(name, (line.id, line.peeled), None, hidden)?;
    }
    refs.names.shrink_to_fit();
    refs.entries.shrink_to_fit();
    Ok(refs)
}

fn skip<'a, T>(packed: &mut Peekable<impl Iterator<Item = (&'a [u8], T)>>, name: &[u8]) {
    packed.next_if(|(packed, _)| *packed == name);
}

impl Refs {
    /// Adds the ref that comes behind all others.
    fn push(
        &mut self,
        name: &[u8],
        (id, peeled): (ObjectId, Peeled),
        symref: Option<&[u8]>,
        hidden: &Hidden,
    ) -> Result<(), TooManyNames> {
        if self.names.len() + name.len() > limits::REF_NAMES_SIZE_MAX {
            return Err(TooManyNames);
        }
        let bound = |value: usize| u32::try_from(value).map_err(|_| TooManyNames);
        let (name_start, name_size) = (bound(self.names.len())?, bound(name.len())?);
        self.names.extend_from_slice(name);
        let peeled = match peeled {
            Peeled::Unknown => UNKNOWN,
            Peeled::NoTag => NO_TAG,
            Peeled::To(id) => {
                self.peeled.push(id);
                bound(self.peeled.len() - 1)?
            }
        };
        let symref = match symref {
            None => NONE,
            Some(target) => {
                self.symrefs.push(target.to_vec());
                bound(self.symrefs.len() - 1)?
            }
        };
        self.entries.push(Entry { name_start, name_size, id, peeled, symref, hidden: hidden.hides(name) });
        Ok(())
    }
}

impl Told {
    fn resolve_head(&self) -> Head {
        match &self.head {
            None | Some(Said::Broken) => Head::Missing,
            Some(Said::Object(id, _)) => Head::Detached(*id),
            Some(Said::Symbolic(target)) => match self.follow(target) {
                Some((target, id, _)) => Head::Branch { target: target.to_vec(), id: Some(id) },
                None => Head::Branch { target: target.clone(), id: None },
            },
        }
    }

    /// The end of a chain of symbolic refs.
    fn follow<'a>(&'a self, target: &'a [u8]) -> Option<(&'a [u8], ObjectId, Peeled)> {
        let mut target = target;
        for _ in 0..limits::SYMREF_DEPTH_MAX {
            let said = if target == b"HEAD" { self.head.as_ref() } else { self.own.get(target) };
            match said {
                Some(Said::Object(id, peeled)) => return Some((target, *id, *peeled)),
                Some(Said::Symbolic(next)) => target = next,
                Some(Said::Broken) => return None,
                None => return self.packed.find(target).map(|line| (target, line.id, line.peeled)),
            }
        }
        None
    }
}

/// Loose ref files that are stamped one by one, beside their folders.
const FILES_STAMPED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::{commit, git};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    fn refs_of(path: &Path, hidden: &Hidden) -> Refs {
        refs_of_kind(path, Kind::Sha1, hidden)
    }

    fn refs_of_kind(path: &Path, kind: Kind, hidden: &Hidden) -> Refs {
        let layout = Layout::of(path).unwrap().unwrap();
        arrange(&read_files(&layout, kind, &mut Stamps::default()).unwrap(), hidden).unwrap()
    }

    fn listed(refs: &Refs) -> Vec<String> {
        let line = |found: Ref<'_>| format!("{} {}", found.id, String::from_utf8_lossy(found.name));
        refs.iter().map(line).collect()
    }

    #[test]
    fn loose_and_packed_refs_are_those_of_for_each_ref() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let (a, b) = (commit(&path, "a"), commit(&path, "b"));
        for name in ["refs/heads/m", "refs/heads/n/o", "refs/notes/commits", "refs/tags/light", "refs/heads/old"] {
            git(&path, &["update-ref", name, &a]);
        }
        git(&path, &["tag", "-a", "-m", "t", "v1", &a]);
        git(&path, &["pack-refs", "--all"]);
        git(&path, &["update-ref", "refs/heads/m", &b]);
        git(&path, &["update-ref", "-d", "refs/notes/commits"]);
        git(&path, &["update-ref", "refs/heads/loose", &b]);
        git(&path, &["symbolic-ref", "refs/heads/sym", "refs/heads/m"]);
        git(&path, &["symbolic-ref", "refs/heads/nowhere", "refs/heads/none"]);
        fs::write(path.join("refs/heads/broken"), "nothing\n").unwrap();
        // A broken file hides the packed ref behind it, which is older than what the file once said.
        fs::write(path.join("refs/heads/old"), "").unwrap();
        fs::write(path.join("refs/heads/m.lock"), "").unwrap();
        git(&path, &["symbolic-ref", "HEAD", "refs/heads/sym"]);
        let mut hidden = Hidden::default();
        hidden.push(b"refs/heads/n");
        let refs = refs_of(&path, &hidden);
        let stock = git(&path, &["for-each-ref", "--format=%(objectname) %(refname)"]);
        assert_eq!(listed(&refs), stock.lines().collect::<Vec<_>>());
        assert_eq!(refs.find(b"refs/heads/sym").unwrap().symref, Some(&b"refs/heads/m"[..]));
        assert!(refs.find(b"refs/heads/n/o").unwrap().hidden && !refs.find(b"refs/heads/m").unwrap().hidden);
        let peeled = from_hex(Kind::Sha1, a.as_bytes()).unwrap();
        assert_eq!(refs.find(b"refs/tags/v1").unwrap().peeled, Peeled::To(peeled));
        assert_eq!(refs.find(b"refs/tags/light").unwrap().peeled, Peeled::NoTag);
        assert_eq!(refs.find(b"refs/heads/loose").unwrap().peeled, Peeled::Unknown);
        assert_eq!(refs.prefixed(b"refs/tags/").count(), 2);
        let b = from_hex(Kind::Sha1, b.as_bytes()).unwrap();
        assert_eq!(refs.head(), &Head::Branch { target: b"refs/heads/m".to_vec(), id: Some(b) });
    }

    #[test]
    fn heads_are_unborn_detached_or_a_circle() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let unborn = Head::Branch { target: b"refs/heads/main".to_vec(), id: None };
        assert_eq!(refs_of(&path, &Hidden::default()).head(), &unborn);
        let id = commit(&path, "a");
        git(&path, &["update-ref", "--no-deref", "HEAD", &id]);
        let detached = Head::Detached(from_hex(Kind::Sha1, id.as_bytes()).unwrap());
        assert_eq!(refs_of(&path, &Hidden::default()).head(), &detached);
        fs::write(path.join("HEAD"), "ref: refs/heads/a\n").unwrap();
        fs::write(path.join("refs/heads/a"), "ref: refs/heads/b\n").unwrap();
        fs::write(path.join("refs/heads/b"), "ref: refs/heads/a\n").unwrap();
        let refs = refs_of(&path, &Hidden::default());
        assert_eq!((refs.head().id(), refs.len()), (None, 0));
    }

    #[test]
    fn refs_of_worktrees_are_those_stock_git_lists_there() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "main"]);
        let main = folder.path().join("main");
        git(&main, &["commit", "-q", "--allow-empty", "-m", "x"]);
        git(&main, &["worktree", "add", "-q", "-b", "side", "../linked"]);
        let linked = folder.path().join("linked");
        for (at, name) in [(&main, "refs/bisect/one"), (&linked, "refs/bisect/two"), (&linked, "refs/worktree/a/b")] {
            git(at, &["update-ref", name, "HEAD"]);
        }
        for at in [&main, &linked] {
            let stock = git(at, &["for-each-ref", "--format=%(objectname) %(refname)"]);
            let refs = refs_of(&at.join(".git"), &Hidden::default());
            assert_eq!(listed(&refs), stock.lines().collect::<Vec<_>>());
            let branch = git(at, &["symbolic-ref", "HEAD"]);
            let Head::Branch { target, .. } = refs.head() else { panic!("{:?}", refs.head()) };
            assert_eq!(target, branch.trim().as_bytes());
        }
    }

    #[test]
    fn names_of_any_bytes_and_ids_of_sha256_are_read() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "--object-format=sha256", "x"]);
        let path = folder.path().join("x");
        let id = commit(&path, "a");
        let batch = |name: &[u8]| [b"create refs/heads/".as_slice(), name, b" ", id.as_bytes(), b"\n"].concat();
        fs::write(path.join("batch"), [batch(b"\xff\xfe"), batch("\u{e9}".as_bytes())].concat()).unwrap();
        git(&path, &["update-ref", "--stdin", "<batch"]);
        for _ in ["loose", "packed"] {
            let refs = refs_of_kind(&path, Kind::Sha256, &Hidden::default());
            let names: Vec<_> = refs.iter().map(|found| found.name).collect();
            assert_eq!(names, [&b"refs/heads/\xc3\xa9"[..], b"refs/heads/\xff\xfe"]);
            assert_eq!(refs.find(b"refs/heads/\xff\xfe").unwrap().id.to_string(), id);
            git(&path, &["pack-refs", "--all"]);
        }
        assert!(path.join("packed-refs").exists() && !path.join("refs/heads").join("\u{e9}").exists());
    }

    #[test]
    fn links_among_refs_are_followed_and_circles_end() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let id = commit(&path, "a");
        git(&path, &["update-ref", "refs/heads/n/a", &id]);
        std::os::unix::fs::symlink("n", path.join("refs/heads/m")).unwrap();
        assert!(refs_of(&path, &Hidden::default()).find(b"refs/heads/m/a").is_some());
        for name in ["up", "again"] {
            std::os::unix::fs::symlink("..", path.join("refs/heads").join(name)).unwrap();
        }
        assert!(refs_of(&path, &Hidden::default()).find(b"refs/heads/n/a").is_some());
    }

    #[test]
    fn damaged_packed_refs_are_a_fault_and_never_some_of_the_refs() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let id = commit(&path, "a");
        git(&path, &["update-ref", "refs/heads/a", &id]);
        git(&path, &["update-ref", "refs/heads/b", &id]);
        git(&path, &["pack-refs", "--all"]);
        let text = fs::read(path.join("packed-refs")).unwrap();
        let layout = Layout::of(&path).unwrap().unwrap();
        let read = || read_files(&layout, Kind::Sha1, &mut Stamps::default());
        assert_eq!(read().unwrap().packed.len(), 2);
        fs::write(path.join("packed-refs"), &text[..text.len() - 5]).unwrap();
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn no_ref_is_ever_missing_while_they_are_packed() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let id = commit(&path, "a");
        // New names each round: a ref that was packed before would be found there whatever the order of reading.
        let name = |number: usize| format!("refs/heads/d{}/b{number}", number / 10);
        let born = AtomicUsize::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..80 {
                    for number in round * 30..(round + 1) * 30 {
                        let file = path.join(name(number));
                        fs::create_dir_all(file.parent().unwrap()).unwrap();
                        // As git writes a ref: a whole file, renamed to its place.
                        fs::write(path.join("fresh"), format!("{id}\n")).unwrap();
                        fs::rename(path.join("fresh"), file).unwrap();
                        born.store(number + 1, Ordering::Release);
                    }
                    git(&path, &["pack-refs", "--all", "--prune"]);
                }
                done.store(true, Ordering::Release);
            });
            let mut rounds = 0;
            while !done.load(Ordering::Acquire) {
                let born = born.load(Ordering::Acquire);
                let refs = refs_of(&path, &Hidden::default());
                let missing: Vec<_> =
                    (0..born).filter(|number| refs.find(name(*number).as_bytes()).is_none()).collect();
                assert!(missing.is_empty(), "{missing:?} of {born} missing in round {rounds}");
                rounds += 1;
            }
            assert!(rounds > 10);
        });
    }
}
