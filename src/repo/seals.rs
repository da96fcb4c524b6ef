//! The state folder: seals of packs, kept over restarts under the packs' trailers.
//!
//! Nothing here is needed: what is missing, damaged or cannot be written costs another proof. Invariants: a file is put in place
//! whole or not at all; what is read is used only if it carries its own checksum, made with the pack's trailer.
//! Read first: `seals_outlive_a_restart`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    limits,
    oid::{ObjectId, push_hex},
    pack::{Pack, Seal},
};

/// Seals on disk, or nowhere.
#[derive(Debug, Default)]
pub struct Seals {
    folder: Option<PathBuf>,
}

impl Seals {
    /// Makes the folder if it is not there, and clears away what was not proved for a long time.
    ///
    /// # Errors
    /// It cannot be made, or not be written into.
    pub fn open(state: Option<&Path>) -> io::Result<Self> {
        let Some(state) = state else { return Ok(Self::default()) };
        let folder = state.join("seals");
        fs::create_dir_all(&folder)?;
        let probe = folder.join("probe.tmp");
        fs::write(&probe, b"")?;
        fs::remove_file(&probe)?;
        for entry in fs::read_dir(&folder)?.flatten() {
            let age = entry.metadata().and_then(|it| it.modified()).ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > KEPT_FOR) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Self { folder: Some(folder) })
    }

    /// The seal of the pack with that trailer, if one was kept.
    pub fn load(&self, pack: &ObjectId) -> Option<Seal> {
        let path = self.path(pack)?;
        let size = fs::metadata(&path).ok()?.len();
        if size > limits::SEAL_SIZE_MAX {
            return None;
        }
        let seal = Seal::parse(&fs::read(&path).ok()?, pack);
        if seal.is_none() {
            tracing::warn!(file = %path.display(), "a damaged seal is done without; it is proved and written anew");
        }
        seal
    }

    /// Keeps the seal of a pack, if it has one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, pack: &Pack) -> io::Result<()> {
        let Some((path, seal)) = self.path(pack.trailer()).zip(pack.seal()) else { return Ok(()) };
        let draft = path.with_extension("tmp");
        let written = fs::write(&draft, seal.text(pack.trailer())).and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }

    /// Forgets the seal of a pack that is gone.
    pub fn forget(&self, pack: &ObjectId) {
        if let Some(path) = self.path(pack) {
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, pack: &ObjectId) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        let mut hex = Vec::with_capacity(64);
        push_hex(&mut hex, pack);
        Some(folder.join(String::from_utf8_lossy(&hex).as_ref()).with_extension("seal"))
    }
}

/// Packs that were deleted while nobody watched leave their seals behind; one that is still there is proved again.
const KEPT_FOR: Duration = Duration::from_hours(24 * 90);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{
        Catalogue, CatalogueOptions,
        catalogue::tests::{commit, git},
    };

    #[test]
    fn seals_outlive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (root, state) = (folder.path().join("root"), folder.path().join("state"));
        fs::create_dir(&root).unwrap();
        git(&root, &["init", "-q", "--bare", "x"]);
        let path = root.join("x");
        git(&path, &["update-ref", "refs/heads/a", &commit(&path, "a")]);
        git(&path, &["repack", "-adq"]);
        let open = || {
            let options =
                CatalogueOptions { root: root.clone(), state: Some(state.clone()), ..CatalogueOptions::default() };
            Catalogue::open(options).unwrap()
        };
        let sealed = |catalogue: &Catalogue| {
            let store = &catalogue.snapshot(b"x", false).unwrap().store;
            store.packs()[0].seal().cloned()
        };
        let catalogue = open();
        let store = &catalogue.snapshot(b"x", false).unwrap().store;
        let tip = store.packs()[0].id_at(0).unwrap().to_owned();
        assert_eq!(sealed(&catalogue), None);
        let seal = Seal { commits: vec![tip].into(), ..Seal::default() };
        store.packs()[0].learn_sealed(seal.clone());
        catalogue.keep_seal(&store.packs()[0]).unwrap();
        assert_eq!(sealed(&open()), Some(seal.clone()));
        // A damaged file is no seal, and is replaced by the next proof.
        let file = fs::read_dir(state.join("seals")).unwrap().next().unwrap().unwrap().path();
        let text = fs::read(&file).unwrap();
        fs::write(&file, &text[..text.len() - 1]).unwrap();
        assert_eq!(sealed(&open()), None);
        catalogue.keep_seal(&store.packs()[0]).unwrap();
        assert_eq!(sealed(&open()), Some(seal));
        // A pack that leaves takes its seal with it.
        git(&path, &["update-ref", "refs/heads/a", &commit(&path, "b")]);
        git(&path, &["repack", "-adq"]);
        git(&path, &["prune-packed"]);
        for pack in catalogue.open_packs() {
            let _ = fs::remove_file(pack.with_extension("pack"));
            catalogue.forget_gone(&pack);
        }
        assert_eq!(fs::read_dir(state.join("seals")).unwrap().count(), 0);
    }

    #[test]
    fn a_state_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(Seals::open(Some(&file)).is_err());
        assert!(Seals::open(Some(&folder.path().join("a/b"))).is_ok());
        assert!(Seals::open(None).is_ok());
    }
}
