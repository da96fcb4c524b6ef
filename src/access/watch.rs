//! The watch: a thread that reads the database anew when it changed, and writes down when tokens were used.
//!
//! The only thread beside the loops, and only where there is a database. Invariants: a directory that cannot be read leaves
//! the last good one hanging; a change is seen within [`LOOK_EVERY`] and the time of reading it; the loops never wait for
//! this thread.
//! Read first: `a_change_is_seen_and_a_broken_file_leaves_the_last_good_directory`.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    directory::Directory,
    gate::Gate,
    store::{Store, StoreFault},
};

/// How often the database is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often times of last use are written.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Watches until it is dropped; then writes what is not written yet.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Reads the database, hangs its directory up at the gate, and goes on watching.
    ///
    /// # Errors
    /// The database cannot be used; nothing is hung up then.
    pub fn start(path: &Path, gate: Arc<Gate>) -> Result<Self, StoreFault> {
        let mut watcher = Watcher::open(path, gate)?;
        watcher.read()?;
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("access".to_owned()).spawn(move || watcher.run(&stopped));
        let thread = thread.map_err(|error| StoreFault::Refused(format!("no thread to watch it: {error}")))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Watcher {
    path: PathBuf,
    gate: Arc<Gate>,
    store: Store,
    /// Device and inode of the open file: another file in its place is read anew.
    file: Option<(u64, u64)>,
    version: i64,
    /// Times of last use as they were written.
    written: Vec<(i64, u64)>,
    is_broken: bool,
}

impl Watcher {
    fn open(path: &Path, gate: Arc<Gate>) -> Result<Self, StoreFault> {
        let (store, file) = (Store::open(path)?, identity(path));
        let version = store.version()?;
        let path = path.to_owned();
        Ok(Self { path, gate, store, file, version, written: Vec::new(), is_broken: false })
    }

    fn run(mut self, stopped: &Receiver<()>) {
        let mut written = Instant::now();
        loop {
            let is_over = stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
            let looked = self.look();
            self.report(looked);
            if is_over || written.elapsed() >= WRITE_EVERY {
                written = Instant::now();
                let uses = self.write_uses();
                self.report(uses);
            }
            if is_over {
                return;
            }
        }
    }

    /// Says once that the database cannot be used, and once that it can again.
    fn report(&mut self, outcome: Result<(), StoreFault>) {
        match outcome {
            Ok(()) => {}
            Err(fault) => {
                self.gate.count_fault();
                if !std::mem::replace(&mut self.is_broken, true) {
                    let path = self.path.display();
                    tracing::error!(access = %path, "{fault}; what was read last goes on to hold");
                }
            }
        }
    }

    fn look(&mut self) -> Result<(), StoreFault> {
        let file = identity(&self.path);
        if file.is_none() {
            return Err(StoreFault::Missing);
        }
        if file != self.file {
            self.store = Store::open(&self.path)?;
            self.file = file;
            return self.read();
        }
        let version = self.store.version()?;
        if version != self.version || self.is_broken { self.read() } else { Ok(()) }
    }

    fn read(&mut self) -> Result<(), StoreFault> {
        // Before the records: a change between the two is then read once more.
        let version = self.store.version()?;
        let records = self.store.records()?;
        let before = self.gate.directory();
        self.gate.hang_up(Arc::new(Directory::new(records, before.as_deref())));
        self.version = version;
        if std::mem::replace(&mut self.is_broken, false) {
            tracing::info!(access = %self.path.display(), "the access database is read again");
        }
        Ok(())
    }

    fn write_uses(&mut self) -> Result<(), StoreFault> {
        let Some(directory) = self.gate.directory() else { return Ok(()) };
        let mut uses: Vec<(i64, u64)> = directory.last_uses().collect();
        uses.sort_unstable();
        let known = &self.written;
        let is_new = |&(id, time): &(i64, u64)| match known.binary_search_by_key(&id, |(known, _)| *known) {
            Ok(at) => known.get(at).is_none_or(|(_, written)| *written < time),
            Err(_) => time > 0,
        };
        let mut new = uses.iter().copied().filter(is_new).peekable();
        if new.peek().is_some() {
            self.store.write_uses(new)?;
        }
        self.written = uses;
        Ok(())
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_change_is_seen_and_a_broken_file_leaves_the_last_good_directory() {
        let folder = tempfile::tempdir().unwrap();
        // By a link, so that another file can take its place without its journal.
        let (path, real) = (folder.path().join("link"), folder.path().join("access.db"));
        std::os::unix::fs::symlink(&real, &path).unwrap();
        let mut store = Store::create(&real).unwrap();
        store.add_principal("ann", 1).unwrap();
        let token = store.create_token("ann", "t", None, &[], 1).unwrap();
        let gate = Arc::new(Gate::default());
        let watch = Watch::start(&path, Arc::clone(&gate)).unwrap();
        let holds = || gate.directory().unwrap().identify(&token, 77).is_ok();
        assert!(holds());
        store.revoke_token("ann", "t", 2).unwrap();
        wait_for("the revocation is seen", || !holds());
        let second = store.create_token("ann", "u", None, &[], 3).unwrap();
        let holds = || gate.directory().unwrap().identify(&second, 78).is_ok();
        wait_for("the new token is seen", holds);

        std::fs::remove_file(&path).unwrap();
        let faults = gate.faults();
        wait_for("the loss is counted", || gate.faults() > faults);
        assert!(holds());
        let nonsense = folder.path().join("nonsense");
        std::fs::write(&nonsense, b"this is no database").unwrap();
        std::os::unix::fs::symlink(&nonsense, &path).unwrap();
        let faults = gate.faults();
        // Twice: the first may still be about the missing link.
        wait_for("the nonsense is counted", || gate.faults() > faults + 1);
        assert!(holds());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        store.revoke_token("ann", "u", 4).unwrap();
        wait_for("the file that came back is read", || !holds());
        drop(watch);
    }

    #[test]
    fn uses_are_written_when_the_watch_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.db");
        let mut store = Store::create(&path).unwrap();
        store.add_principal("ann", 1).unwrap();
        let token = store.create_token("ann", "t", None, &[], 1).unwrap();
        let gate = Arc::new(Gate::default());
        let watch = Watch::start(&path, Arc::clone(&gate)).unwrap();
        gate.directory().unwrap().identify(&token, 4242).unwrap();
        assert_eq!(store.tokens().unwrap()[0].last_used, 0);
        drop(watch);
        assert_eq!(store.tokens().unwrap()[0].last_used, 4242);
    }

    #[test]
    fn a_database_that_cannot_be_used_is_an_error_at_start() {
        let folder = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        assert!(matches!(Watch::start(&folder.path().join("x"), Arc::clone(&gate)), Err(StoreFault::Missing)));
        assert!(gate.directory().is_none());
    }
}
