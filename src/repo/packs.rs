//! Packs on disk become mapped packs, each opened once for all snapshots that hold it.
//!
//! Reads no object. Invariant: a pack is recognised by path and stamp, so one that was replaced under the same name is
//! opened anew; a broken one is reported once and left out.
//! Source: gitrepository-layout(5), "objects/pack". Read first: `a_pack_is_mapped_once_for_all_snapshots`.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::{
    layout::{self, is_absence, is_trouble},
    seals::Seals,
};
use crate::{
    oid::Kind,
    pack::{Mapping, Pack},
    stamp::{Stamp, Stamps},
};

/// All packs that are open.
#[derive(Debug, Default)]
pub struct OpenPacks {
    known: Mutex<HashMap<PathBuf, Known>>,
    seals: Seals,
}

#[derive(Debug)]
struct Known {
    data: Stamp,
    index: Stamp,
    /// Nothing when it is broken.
    pack: Option<Weak<Pack>>,
}

impl OpenPacks {
    /// None yet; seals that were kept are given to the packs they belong to.
    pub fn new(seals: Seals) -> Self {
        Self { known: Mutex::default(), seals }
    }

    /// Where seals are kept.
    pub fn seals(&self) -> &Seals {
        &self.seals
    }

    /// The packs of one object folder, largest first. The folder is stamped.
    ///
    /// # Errors
    /// Mappings or descriptors ran out, or packs come and go faster than they can be opened.
    pub fn of_folder(&self, objects: &Path, kind: Kind, stamps: &mut Stamps) -> io::Result<Vec<Arc<Pack>>> {
        let folder = objects.join("pack");
        for _ in 0..TRIES {
            let stamp = Stamp::of(&folder);
            let packs = self.list(&folder, kind)?;
            // A repack puts its pack in place before it takes the old ones away. Listed in between, neither may have been seen.
            if let Some(mut packs) = packs.filter(|_| Stamp::of(&folder) == stamp) {
                stamps.add(folder, stamp);
                packs.sort_by(|a, b| b.count().cmp(&a.count()).then_with(|| a.name().cmp(b.name())));
                return Ok(packs);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// All packs of a folder; `None` when one of them vanished meanwhile.
    fn list(&self, folder: &Path, kind: Kind) -> io::Result<Option<Vec<Arc<Pack>>>> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if is_absence(&error) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error),
        };
        let mut packs = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "idx") {
                continue;
            }
            match self.open(&path, kind)? {
                Opened::Pack(pack) => packs.push(pack),
                Opened::Broken => {}
                Opened::Gone => return Ok(None),
            }
        }
        Ok(Some(packs))
    }

    /// The pack with that index.
    fn open(&self, index: &Path, kind: Kind) -> io::Result<Opened> {
        let data = index.with_extension("pack");
        let stamps = (Stamp::of(&data), Stamp::of(index));
        if !stamps.1.is_there() {
            return Ok(Opened::Gone);
        }
        if let Some(known) = self.known(index, stamps) {
            return Ok(known);
        }
        // Not under the lock: this touches each page of the index, and other loops have packs to look up.
        let pack = match (map(&data), map(index)) {
            (Ok(data), Ok(index_map)) => {
                let name = index.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let reverse = map(&index.with_extension("rev")).ok();
                let opened = Pack::open(&name, kind, data, index_map).map(|pack| with_order(pack, reverse, index));
                opened.map_err(|error| error.to_string())
            }
            (Err(error), _) | (_, Err(error)) => match error {
                error if is_trouble(&error) => return Err(error),
                // An index without its pack is what a removal leaves behind, for a moment or for ever.
                error if is_absence(&error) && Stamp::of(index).is_there() => Err("its pack is not there".to_owned()),
                error if is_absence(&error) => return Ok(Opened::Gone),
                error => Err(error.to_string()),
            },
        };
        match &pack {
            Ok(pack) => drop(self.seals.load(pack.trailer()).map(|seal| pack.learn_sealed(seal))),
            Err(error) => tracing::error!(file = %index.display(), "pack left out: {error}"),
        }
        Ok(self.remember(index, stamps, pack.ok().map(Arc::new)))
    }

    fn known(&self, index: &Path, (data, index_stamp): (Stamp, Stamp)) -> Option<Opened> {
        let open = self.lock();
        let known = open.get(index).filter(|known| known.data == data && known.index == index_stamp)?;
        match &known.pack {
            None => Some(Opened::Broken),
            Some(pack) => pack.upgrade().map(Opened::Pack),
        }
    }

    /// Remembers a pack, unless another loop was faster; then theirs is taken.
    fn remember(&self, index: &Path, (data, index_stamp): (Stamp, Stamp), pack: Option<Arc<Pack>>) -> Opened {
        if let Some(known) = self.known(index, (data, index_stamp)) {
            return known;
        }
        let weak = pack.as_ref().map(Arc::downgrade);
        let mut open = self.lock();
        // Looked through when there is no room left, so that opening costs the same however many are open.
        if open.len() == open.capacity() {
            open.retain(|_, known| known.pack.as_ref().is_none_or(|pack| pack.strong_count() > 0));
        }
        open.insert(index.to_owned(), Known { data, index: index_stamp, pack: weak });
        pack.map_or(Opened::Broken, Opened::Pack)
    }
}

/// What became of an index that was listed.
enum Opened {
    Pack(Arc<Pack>),
    /// Reported, and not looked at again before it changes.
    Broken,
    /// Deleted since.
    Gone,
}

impl OpenPacks {
    /// Paths of the indexes of all packs that are open.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().keys().cloned().collect()
    }

    /// Leaves a pack out from now on, as if it had not been readable, until its file is another.
    pub fn condemn(&self, pack: &Arc<Pack>) {
        let mut open = self.lock();
        for known in open.values_mut() {
            if known.pack.as_ref().is_some_and(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(pack))) {
                known.pack = None;
            }
        }
    }

    /// Forgets the pack with that index if its file is gone or another, and returns it if somebody still holds it.
    pub fn forget_gone(&self, index: &Path) -> Option<Arc<Pack>> {
        let stamp = Stamp::of(&index.with_extension("pack"));
        let mut open = self.lock();
        if open.get(index).is_none_or(|known| known.data == stamp) {
            return None;
        }
        open.remove(index).and_then(|known| known.pack).and_then(|pack| pack.upgrade())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, Known>> {
        // A map of weak references is sound whatever happened to who held it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a pack the order its `.rev` file tells; a broken one is reported and done without.
fn with_order(mut pack: Pack, reverse: Option<Mapping>, index: &Path) -> Pack {
    if let Some(Err(error)) = reverse.map(|reverse| pack.read_order_from(reverse)) {
        tracing::warn!(file = %index.with_extension("rev").display(), "{error}");
    }
    pack
}

/// Maps a file.
///
/// # Errors
/// It is not there or cannot be read, or descriptors, mappings or memory ran out.
pub fn map(path: &Path) -> io::Result<Mapping> {
    Mapping::of(&layout::open(path)?)
}

/// How often a folder is listed anew when packs come and go.
const TRIES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::{commit, git};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_pack_is_mapped_once_for_all_snapshots() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "x"]);
        let repository = root.join("x");
        let tree = git(&repository, &["mktree"]);
        git(&repository, &["commit-tree", "-m", "x", tree.trim()]);
        git(
            &repository,
            &["update-ref", "refs/heads/a", git(&repository, &["commit-tree", "-m", "y", tree.trim()]).trim()],
        );
        git(&repository, &["repack", "-adq"]);
        let open = OpenPacks::default();
        let objects = repository.join("objects");
        let first = open.of_folder(&objects, Kind::Sha1, &mut Stamps::default()).unwrap();
        let second = open.of_folder(&objects, Kind::Sha1, &mut Stamps::default()).unwrap();
        assert_eq!((first.len(), first[0].count()), (1, 2));
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        let index = fs::read_dir(objects.join("pack"))
            .unwrap()
            .flatten()
            .find(|entry| entry.path().extension().unwrap() == "idx");
        let index = index.unwrap().path();
        fs::remove_file(&index).unwrap();
        fs::write(&index, b"no index").unwrap();
        assert_eq!(open.of_folder(&objects, Kind::Sha1, &mut Stamps::default()).unwrap().len(), 0);
        assert_eq!(first[0].count(), 2, "a request in flight keeps its packs");
    }

    #[test]
    fn objects_are_found_whatever_is_repacked_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let id = commit(&path, "a");
        git(&path, &["update-ref", "refs/heads/a", &id]);
        git(&path, &["repack", "-adq"]);
        let id = crate::oid::from_hex(Kind::Sha1, id.as_bytes()).unwrap();
        let (open, done) = (OpenPacks::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..25 {
                    // Another object each time, so that the pack gets another name.
                    git(&path, &["update-ref", "refs/heads/b", &commit(&path, &number.to_string())]);
                    git(&path, &["repack", "-adq"]);
                }
                done.store(true, Ordering::Release);
            });
            let mut rounds = 0;
            while !done.load(Ordering::Acquire) {
                let packs = open.of_folder(&path.join("objects"), Kind::Sha1, &mut Stamps::default()).unwrap();
                assert!(packs.iter().any(|pack| pack.find(&id).is_some()), "round {rounds} of {}", packs.len());
                rounds += 1;
            }
            assert!(rounds > 10);
        });
    }

    #[test]
    fn companions_of_packs_are_tolerated_and_an_index_alone_is_no_pack() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        git(&path, &["update-ref", "refs/heads/a", &commit(&path, "a")]);
        git(&path, &["repack", "-adq"]);
        let packs = path.join("objects/pack");
        let index = fs::read_dir(&packs).unwrap().flatten().map(|entry| entry.path());
        let index = index.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "idx")).unwrap();
        for ending in ["keep", "promisor", "mtimes", "bitmap"] {
            fs::write(index.with_extension(ending), "whatever").unwrap();
        }
        fs::write(packs.join("tmp_idx_x1"), "").unwrap();
        fs::copy(&index, packs.join("pack-lonely.idx")).unwrap();
        let found = OpenPacks::default().of_folder(&path.join("objects"), Kind::Sha1, &mut Stamps::default()).unwrap();
        assert_eq!(found.len(), 1);
    }
}
