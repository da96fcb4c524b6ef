//! Refs: the files of a ref store become one sorted list.
//!
//! Reads names and ids, no object. Invariants: loose refs are read before packed ones, so that a ref moving from the one to
//! the other is never missed; broken refs are left out with a warning, as stock git leaves them out; names are sorted by
//! their bytes.
//! Source: gitrepository-layout(5), "refs", "packed-refs"; git-pack-refs(1).
//! Read first: `no_ref_is_ever_missing_while_they_are_packed`.

use std::{collections::BTreeMap, fs, os::unix::ffi::OsStrExt, path::Path};

use gix_ref::{FullNameRef, bstr::ByteSlice, packed};

use super::{
    hide::Hidden,
    layout::{Layout, read_small},
    stamp::{Stamp, Stamps},
};
use crate::{
    limits,
    oid::{Kind, ObjectId, from_hex},
};

/// All refs of a repository, sorted by name, held densely.
#[derive(Debug, Default)]
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
}

/// Reads the refs of a repository that keeps them in files. What is read is stamped.
pub fn read_files(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> BTreeMap<Vec<u8>, Said> {
    let mut loose = BTreeMap::new();
    let mut reader = LooseReader { kind, stamps, files: 0, found: &mut loose };
    if layout.is_linked() {
        reader.folder(&layout.common_dir.join("refs"), b"refs/", 0, &|name| !OF_WORKTREES.contains(&name));
        for name in OF_WORKTREES {
            let folder = layout.git_dir.join(String::from_utf8_lossy(name).as_ref());
            reader.folder(&folder, &[name, b"/".as_slice()].concat(), 1, &|_| true);
        }
    } else {
        reader.folder(&layout.common_dir.join("refs"), b"refs/", 0, &|_| true);
    }
    // Only now the packed ones: what was packed and pruned meanwhile stands there.
    let mut refs = read_packed(&layout.common_dir.join("packed-refs"), kind, stamps);
    refs.extend(loose);
    refs
}

/// Refs that belong to each worktree alone.
const OF_WORKTREES: [&[u8]; 3] = [b"refs/bisect", b"refs/worktree", b"refs/rewritten"];

struct LooseReader<'a> {
    kind: Kind,
    stamps: &'a mut Stamps,
    files: usize,
    found: &'a mut BTreeMap<Vec<u8>, Said>,
}

impl LooseReader<'_> {
    fn folder(&mut self, folder: &Path, prefix: &[u8], depth: usize, wanted: &dyn Fn(&[u8]) -> bool) {
        self.stamps.watch(folder);
        let Ok(entries) = fs::read_dir(folder) else { return };
        if depth > limits::REPOSITORY_DEPTH_MAX {
            tracing::warn!(folder = %folder.display(), "refs nest too deep; the rest is ignored");
            return;
        }
        for entry in entries.flatten() {
            let file_name = entry.file_name();
            let name = [prefix, file_name.as_bytes()].concat();
            if name.ends_with(b".lock") || !wanted(&name) {
                continue;
            }
            let path = entry.path();
            if path.is_dir() {
                self.folder(&path, &[name.as_slice(), b"/"].concat(), depth + 1, wanted);
            } else {
                self.file(&path, name);
            }
        }
    }

    fn file(&mut self, path: &Path, name: Vec<u8>) {
        let stamp = Stamp::of(path);
        // git writes a ref by renaming a file into its folder, which changes the folder's stamp. Few enough files are
        // stamped as well, for those who write into them by hand.
        if self.files < FILES_STAMPED_MAX {
            self.stamps.add(path.to_owned(), stamp);
        }
        self.files += 1;
        // Gone since the folder was listed: deleted, or packed, and then it is found there.
        let Some(text) = read_small(path) else { return };
        if <&FullNameRef>::try_from(name.as_bstr()).is_err() {
            tracing::warn!(path = %path.display(), "ignoring ref with broken name");
            return;
        }
        match parse(&text, self.kind) {
            Some(said) => {
                self.found.insert(name, said);
            }
            None => tracing::warn!(path = %path.display(), "ignoring broken ref"),
        }
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

fn read_packed(path: &Path, kind: Kind, stamps: &mut Stamps) -> BTreeMap<Vec<u8>, Said> {
    let mut refs = BTreeMap::new();
    let stamp = Stamp::of(path);
    stamps.add(path.to_owned(), stamp);
    let Ok(text) = fs::read(path) else { return refs };
    let traits = text.strip_prefix(b"# pack-refs with:").and_then(|rest| rest.lines().next()).unwrap_or_default();
    let has = |name: &[u8]| traits.split(|byte| *byte == b' ').any(|word| word == name);
    let (all, tags) = (has(b"fully-peeled"), has(b"peeled"));
    let Ok(packed) = packed::Iter::new(&text, kind) else {
        tracing::warn!(path = %path.display(), "the header cannot be read; packed refs are ignored");
        return refs;
    };
    for found in packed {
        let Ok(found) = found else {
            tracing::warn!(path = %path.display(), "ignoring a broken line");
            continue;
        };
        let name = found.name.as_bstr();
        let peeled = match found.object {
            Some(hex) => from_hex(kind, hex).map_or(Peeled::Unknown, Peeled::To),
            None if all || (tags && name.starts_with(b"refs/tags/")) => Peeled::NoTag,
            None => Peeled::Unknown,
        };
        match from_hex(kind, found.target).filter(|id| !id.is_null()) {
            Some(id) => {
                refs.insert(name.to_vec(), Said::Object(id, peeled));
            }
            None => tracing::warn!(path = %path.display(), "ignoring a broken line"),
        }
    }
    refs
}

/// What the HEAD of a repository in files says.
pub fn read_head(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> Option<Said> {
    let path = layout.git_dir.join("HEAD");
    stamps.watch(&path);
    if let Ok(target) = fs::read_link(&path) {
        return Some(Said::Symbolic(target.as_os_str().as_bytes().to_vec()));
    }
    parse(&read_small(&path)?, kind)
}

/// Follows symbolic refs and packs everything densely.
pub fn arrange(said: &BTreeMap<Vec<u8>, Said>, head: Option<Said>, hidden: &Hidden) -> Refs {
    let mut refs = Refs { head: resolve_head(said, head), ..Refs::default() };
    for (name, one) in said {
        let (id, peeled, target) = match one {
            Said::Object(id, peeled) => (*id, *peeled, None),
            Said::Symbolic(target) => match follow(said, target) {
                Some((target, id, peeled)) => (id, peeled, Some(target)),
                None => {
                    tracing::warn!(name = %name.as_bstr(), "ignoring dangling symbolic ref");
                    continue;
                }
            },
        };
        let (Ok(name_start), Ok(name_size)) = (u32::try_from(refs.names.len()), u32::try_from(name.len())) else {
            break;
        };
        refs.names.extend_from_slice(name);
        let peeled = match peeled {
            Peeled::Unknown => UNKNOWN,
            Peeled::NoTag => NO_TAG,
            Peeled::To(id) => {
                refs.peeled.push(id);
                u32::try_from(refs.peeled.len() - 1).unwrap_or(UNKNOWN)
            }
        };
        let symref = target.map_or(NONE, |target| {
            refs.symrefs.push(target.to_vec());
            u32::try_from(refs.symrefs.len() - 1).unwrap_or(NONE)
        });
        refs.entries.push(Entry { name_start, name_size, id, peeled, symref, hidden: hidden.hides(name) });
    }
    refs.names.shrink_to_fit();
    refs.entries.shrink_to_fit();
    refs
}

fn resolve_head(said: &BTreeMap<Vec<u8>, Said>, head: Option<Said>) -> Head {
    match head {
        None => Head::Missing,
        Some(Said::Object(id, _)) => Head::Detached(id),
        Some(Said::Symbolic(target)) => match follow(said, &target) {
            Some((target, id, _)) => Head::Branch { target: target.to_vec(), id: Some(id) },
            None => Head::Branch { target, id: None },
        },
    }
}

/// The end of a chain of symbolic refs.
fn follow<'a>(said: &'a BTreeMap<Vec<u8>, Said>, target: &'a [u8]) -> Option<(&'a [u8], ObjectId, Peeled)> {
    let mut target = target;
    for _ in 0..limits::SYMREF_DEPTH_MAX {
        match said.get(target)? {
            Said::Object(id, peeled) => return Some((target, *id, *peeled)),
            Said::Symbolic(next) => target = next,
        }
    }
    None
}

/// Loose ref files that are stamped one by one, beside their folders.
const FILES_STAMPED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::{commit, git};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn refs_of(path: &Path, hidden: &Hidden) -> Refs {
        let layout = Layout::of(path).unwrap();
        let mut stamps = Stamps::default();
        let said = read_files(&layout, Kind::Sha1, &mut stamps);
        let head = read_head(&layout, Kind::Sha1, &mut stamps);
        arrange(&said, head, hidden)
    }

    fn listed(refs: &Refs) -> Vec<String> {
        let line = |found: Ref<'_>| format!("{} {}", found.id, found.name.as_bstr());
        refs.iter().map(line).collect()
    }

    #[test]
    fn loose_and_packed_refs_are_those_of_for_each_ref() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let (a, b) = (commit(&path, "a"), commit(&path, "b"));
        for name in ["refs/heads/m", "refs/heads/n/o", "refs/notes/commits", "refs/tags/light"] {
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
    fn no_ref_is_ever_missing_while_they_are_packed() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let id = commit(&path, "a");
        let names: Vec<String> = (0..20).map(|number| format!("refs/heads/b{number}")).collect();
        let unpack = || {
            for name in &names {
                fs::write(path.join(name), format!("{id}\n")).unwrap();
            }
        };
        unpack();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..25 {
                    git(&path, &["pack-refs", "--all", "--prune"]);
                    unpack();
                }
                done.store(true, Ordering::Release);
            });
            let mut rounds = 0;
            while !done.load(Ordering::Acquire) {
                // A file that is being written by hand may be empty for a moment; git itself renames whole files.
                let refs = refs_of(&path, &Hidden::default());
                let torn = names.iter().filter(|name| refs.find(name.as_bytes()).is_none()).count();
                assert!(torn <= 1, "{torn} refs missing in round {rounds}");
                rounds += 1;
            }
            assert!(rounds > 10);
        });
    }
}
