//! Stamps: what `stat` says of a path, to see by it whether anything changed.
//!
//! Reads no content. Invariant: a stamp that could hide a change (the path was changed within the clock's grain before it
//! was stamped) is never trusted. Source: racy-git, "Racy Git" in git's technical notes.
//! Read first: `a_change_within_the_grain_of_the_clock_is_seen`.

use std::{
    fs::{File, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What `stat` said of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Option<Seen>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    size: u64,
    /// Nanoseconds since 1970.
    modified: i128,
    changed: i128,
}

impl Stamp {
    /// Of a path; absence is a stamp too.
    pub fn of(path: &Path) -> Self {
        Self(std::fs::metadata(path).ok().map(|found| Seen::of(&found)))
    }

    /// Of an open file.
    pub fn of_file(file: &File) -> Self {
        Self(file.metadata().ok().map(|found| Seen::of(&found)))
    }

    /// Whether the path was there.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a change right after `now` could leave the stamp as it is.
    fn is_racy(&self, now: i128) -> bool {
        // Every change sets this time, and nobody can set it at will: a modification time in the future does no harm.
        self.0.is_some_and(|seen| seen.changed + GRAIN >= now)
    }
}

impl Seen {
    fn of(found: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: nanoseconds(found.mtime(), found.mtime_nsec()),
            changed: nanoseconds(found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Paths that something was read from.
#[derive(Clone, Debug, Default)]
pub struct Stamps {
    paths: Vec<(PathBuf, Stamp)>,
    racy: bool,
}

impl Stamps {
    /// Adds a path with the stamp taken before it was read.
    pub fn add(&mut self, path: PathBuf, stamp: Stamp) {
        self.racy |= stamp.is_racy(now());
        self.paths.push((path, stamp));
    }

    /// Stamps a path that is about to be read.
    pub fn watch(&mut self, path: &Path) -> Stamp {
        let stamp = Stamp::of(path);
        self.add(path.to_owned(), stamp);
        stamp
    }

    /// Whether nothing changed since, as far as one can tell.
    pub fn hold(&self) -> bool {
        !self.racy && self.unchanged()
    }

    /// Whether every path has the stamp it had.
    pub fn unchanged(&self) -> bool {
        self.paths.iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }
}

fn now() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
}

/// Nanoseconds within which two changes may get the same time: kernels stamp files by ticks of up to 10 ms.
const GRAIN: i128 = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN_DAYS: Duration = Duration::from_hours(72);

    #[test]
    fn a_change_within_the_grain_of_the_clock_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ref");
        std::fs::write(&path, "a").unwrap();
        let mut stamps = Stamps::default();
        stamps.watch(&path);
        assert!(!stamps.hold(), "a file written just now may be written again within the tick");
    }

    #[test]
    fn old_files_hold_until_they_change_or_vanish_or_appear() {
        let folder = tempfile::tempdir().unwrap();
        let (path, absent) = (folder.path().join("ref"), folder.path().join("other"));
        std::fs::write(&path, "a").unwrap();
        let later = Stamp::of(&path).0.unwrap().changed + GRAIN + 1;
        let mut stamps =
            Stamps { paths: vec![(path.clone(), Stamp::of(&path)), (absent.clone(), Stamp::of(&absent))], racy: false };
        assert!(!stamps.paths[0].1.is_racy(later) && stamps.paths[0].1.is_racy(later - 1));
        assert!(stamps.hold());
        std::fs::write(&absent, "b").unwrap();
        assert!(!stamps.hold());
        stamps.paths.truncate(1);
        assert!(stamps.hold());
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() + GRAIN_DAYS).unwrap();
        assert!(!Stamp::of(&path).is_racy(later + GRAIN * 1000), "a time in the future is trusted like any other");
        std::fs::write(&path, "bb").unwrap();
        assert!(!stamps.hold());
        std::fs::remove_file(&path).unwrap();
        assert!(!stamps.hold());
    }
}
