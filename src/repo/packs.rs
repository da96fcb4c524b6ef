//! Packs on disk become mapped packs, each opened once for all snapshots that hold it.
//!
//! Reads no object. Invariant: a pack is recognised by path and stamp, so one that was replaced under the same name is
//! opened anew; a broken one is reported once and left out.
//! Source: gitrepository-layout(5), "objects/pack". Read first: `a_pack_is_mapped_once_for_all_snapshots`.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::stamp::{Stamp, Stamps};
use crate::{
    oid::Kind,
    pack::{Mapping, Pack},
};

/// All packs that are open.
#[derive(Debug, Default)]
pub struct OpenPacks(Mutex<HashMap<PathBuf, Known>>);

#[derive(Debug)]
struct Known {
    data: Stamp,
    index: Stamp,
    /// Nothing when it is broken.
    pack: Option<Weak<Pack>>,
}

impl OpenPacks {
    /// The packs of one object folder, largest first. The folder is stamped.
    ///
    /// # Errors
    /// Mappings or descriptors ran out.
    pub fn of_folder(&self, objects: &Path, kind: Kind, stamps: &mut Stamps) -> io::Result<Vec<Arc<Pack>>> {
        let folder = objects.join("pack");
        stamps.watch(&folder);
        let mut packs = Vec::new();
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(packs) };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "idx") {
                packs.extend(self.open(&path, kind)?);
            }
        }
        packs.sort_by(|a, b| b.count().cmp(&a.count()).then_with(|| a.name().cmp(b.name())));
        Ok(packs)
    }

    /// The pack with that index, or nothing when it is broken or going away.
    fn open(&self, index: &Path, kind: Kind) -> io::Result<Option<Arc<Pack>>> {
        let data = index.with_extension("pack");
        let (data_stamp, index_stamp) = (Stamp::of(&data), Stamp::of(index));
        if !data_stamp.is_there() || !index_stamp.is_there() {
            return Ok(None);
        }
        let mut open = self.lock();
        if let Some(known) = open.get(index).filter(|known| known.data == data_stamp && known.index == index_stamp) {
            match &known.pack {
                None => return Ok(None),
                Some(pack) => {
                    if let Some(pack) = pack.upgrade() {
                        return Ok(Some(pack));
                    }
                }
            }
        }
        let opened = match (map(&data)?, map(index)?) {
            (Some(data), Some(index_map)) => {
                let name = index.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let reverse = map(&index.with_extension("rev"))?;
                Pack::open(&name, kind, data, index_map).map(|pack| with_order(pack, reverse, index))
            }
            _ => return Ok(None),
        };
        let pack = match opened {
            Ok(pack) => Some(Arc::new(pack)),
            Err(error) => {
                tracing::error!(file = %index.display(), "{error}");
                None
            }
        };
        let weak = pack.as_ref().map(Arc::downgrade);
        open.retain(|_, known| known.pack.as_ref().is_none_or(|pack| pack.strong_count() > 0));
        open.insert(index.to_owned(), Known { data: data_stamp, index: index_stamp, pack: weak });
        Ok(pack)
    }
}

impl OpenPacks {
    /// Paths of the indexes of all packs that are open.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().keys().cloned().collect()
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a pack the order its `.rev` file tells; a broken one is reported and done without.
fn with_order(mut pack: Pack, reverse: Option<Mapping>, index: &Path) -> Pack {
    if let Some(Err(error)) = reverse.map(|reverse| pack.read_order_from(reverse)) {
        tracing::warn!(file = %index.with_extension("rev").display(), "{error}");
    }
    pack
}

/// Maps a file; nothing when it is not there any more or may not be read.
///
/// # Errors
/// Descriptors, mappings or memory ran out.
pub fn map(path: &Path) -> io::Result<Option<Mapping>> {
    let ran_out = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if ran_out(&error) => return Err(error),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::error!(file = %path.display(), "cannot be opened: {error}");
            }
            return Ok(None);
        }
    };
    Mapping::of(&file).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::git;

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
}
