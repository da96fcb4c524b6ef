//! Reftables: the stack of tables of a repository becomes the refs it says.
//!
//! A reader of whole tables, for a server that lists refs more often than it looks one up; indexes, object blocks and logs
//! are passed over, so nothing is inflated. Everything is hostile until bounded. Invariants: a later table wins over an
//! earlier one; a table that vanished under the reading (compaction) makes the reading start over.
//! Source: reftable in git's technical notes, "File format"; gix-ref has no reader. Read first: `stacks_are_read_as_git_reads_them`.

use std::{collections::BTreeMap, path::Path};

use super::{
    layout::{self, Layout, is_absence, read_small},
    name,
    refs::{OF_WORKTREES, Peeled, Said, Told},
};
use crate::{
    limits,
    oid::{Kind, ObjectId},
    repo::Absent,
    stamp::Stamps,
};

/// What each ref says.
pub type Names = BTreeMap<Vec<u8>, Said>;

/// Reads the stack of a repository: its refs, and what HEAD says. What is read is stamped.
///
/// # Errors
/// A table is damaged, or tables keep vanishing.
pub fn read(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> Result<Told, Absent> {
    let folder = layout.common_dir.join("reftable");
    for _ in 0..TRIES {
        let mut tried = stamps.clone();
        if let Some(mut refs) = read_stack(&folder, kind, &mut tried)? {
            let mut head = refs.remove(b"HEAD".as_slice());
            if layout.is_linked() {
                // A worktree keeps its own HEAD and its own few refs in a stack of its own.
                let own = read_stack(&layout.git_dir.join("reftable"), kind, &mut tried)?.unwrap_or_default();
                head = own.get(b"HEAD".as_slice()).cloned();
                refs.retain(|name, _| !is_of_worktree(name));
                refs.extend(own.into_iter().filter(|(name, _)| is_of_worktree(name)));
            }
            refs.retain(|name, _| is_kept(name));
            *stamps = tried;
            return Ok(Told { own: refs, head, ..Told::default() });
        }
    }
    Err(Absent::Broken("the reftables change faster than they can be read".to_owned()))
}

fn is_of_worktree(name: &[u8]) -> bool {
    OF_WORKTREES.iter().any(|own| name.strip_prefix(*own).is_some_and(|rest| rest.starts_with(b"/")))
}

/// Tables may hold names that no file could have.
fn is_kept(name: &[u8]) -> bool {
    let sound = name::is_sound(name);
    if !sound && name.starts_with(b"refs/") {
        tracing::warn!(name = %String::from_utf8_lossy(name), "ignoring ref with broken name");
    }
    sound
}

/// `None` when a table of the list is gone.
fn read_stack(folder: &Path, kind: Kind, stamps: &mut Stamps) -> Result<Option<Names>, Absent> {
    let list = folder.join("tables.list");
    stamps.watch(&list);
    let broken = |error: &dyn std::fmt::Display| Absent::Broken(format!("{}: {error}", list.display()));
    let names = read_small(&list).map_err(|error| broken(&error))?.unwrap_or_default();
    let mut refs = BTreeMap::new();
    let mut room = limits::REF_NAMES_SIZE_MAX;
    for name in names.split(|byte| *byte == b'\n').filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        if name.contains('/') {
            return Err(Absent::Broken("reftable/tables.list names a file elsewhere".to_owned()));
        }
        let bytes = match read_table(&folder.join(&name)) {
            Ok(bytes) => bytes,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(broken(&error)),
        };
        let table = Table::open(&bytes, kind);
        table
            .and_then(|table| table.read_into(&mut refs, &mut room))
            .ok_or_else(|| Absent::Broken(format!("reftable/{name} is damaged; `git refs verify` says more")))?;
    }
    Ok(Some(refs))
}

fn read_table(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut layout::open(path)?, &mut bytes)?;
    Ok(bytes)
}

/// One table.
struct Table<'a> {
    bytes: &'a [u8],
    kind: Kind,
    header_size: usize,
    /// Blocks start at multiples of this; 0 when they follow each other closely.
    block_size: usize,
    /// Where the footer starts.
    end: usize,
}

impl<'a> Table<'a> {
    fn open(bytes: &'a [u8], kind: Kind) -> Option<Self> {
        let header = bytes.strip_prefix(b"REFT")?;
        let (header_size, footer_size, own) = match *header.first()? {
            1 => (24, 68, Kind::Sha1),
            2 => match bytes.get(24..28)? {
                b"sha1" => (28, 72, Kind::Sha1),
                b"s256" => (28, 72, Kind::Sha256),
                _ => return None,
            },
            _ => return None,
        };
        let end = bytes.len().checked_sub(footer_size)?;
        let footer = bytes.get(end..)?;
        // The footer repeats the header and ends with a sum over itself.
        let (content, sum) = footer.split_at_checked(footer_size - 4)?;
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let is_sound = content.get(..header_size)? == bytes.get(..header_size)? && sum == crc.sum().to_be_bytes();
        (is_sound && own == kind).then_some(Self { bytes, kind, header_size, block_size: uint24(bytes, 5)?, end })
    }

    /// Adds what the table says; deletions take away. `room` is how many bytes the names of all tables may still take: each
    /// repeats the start of the one before, so that four bytes on disk can claim a name of any size.
    fn read_into(&self, refs: &mut Names, room: &mut usize) -> Option<()> {
        let mut start = 0;
        loop {
            let at = if start == 0 { self.header_size } else { start };
            if at >= self.end || self.bytes.get(at) != Some(&b'r') {
                return Some(());
            }
            let size = uint24(self.bytes, at + 1)?;
            let block_end = start.checked_add(size).filter(|end| *end <= self.end && *end >= at + 4)?;
            self.read_block(at + 4, block_end, refs, room)?;
            start = match self.block_size {
                0 => block_end,
                step => block_end.max(start + 1).div_ceil(step).checked_mul(step)?,
            };
        }
    }

    fn read_block(&self, mut at: usize, end: usize, refs: &mut Names, room: &mut usize) -> Option<()> {
        let restarts = self.bytes.get(end.checked_sub(2)?..end)?;
        let restarts = usize::from(u16::from_be_bytes(restarts.try_into().ok()?));
        let records_end = end.checked_sub(2 + 3 * restarts)?;
        let mut name = Vec::new();
        while at < records_end {
            let bytes = self.bytes.get(..records_end)?;
            let prefix = usize::try_from(varint(bytes, &mut at)?).ok()?;
            let suffix = varint(bytes, &mut at)?;
            let (suffix, value_type) = (usize::try_from(suffix >> 3).ok()?, suffix & 7);
            if prefix > name.len() || prefix.checked_add(suffix)? > limits::REF_NAME_MAX {
                return None;
            }
            name.truncate(prefix);
            name.extend_from_slice(take(bytes, &mut at, suffix)?);
            *room = room.checked_sub(name.len())?;
            varint(bytes, &mut at)?;
            let said = self.read_value(value_type, bytes, &mut at)?;
            match said {
                Value::Said(said) => refs.insert(name.clone(), said),
                Value::Deleted => refs.remove(&name),
            };
        }
        Some(())
    }

    fn read_value(&self, value_type: u64, bytes: &[u8], at: &mut usize) -> Option<Value> {
        let mut id = || ObjectId::try_from(take(bytes, at, self.kind.len_in_bytes())?).ok();
        match value_type {
            0 => Some(Value::Deleted),
            // A reftable says of every tag what it finally names, so what has no such value is no tag.
            1 => Some(Value::Said(Said::Object(id()?, Peeled::NoTag))),
            2 => {
                let tag = id()?;
                Some(Value::Said(Said::Object(tag, Peeled::To(id()?))))
            }
            3 => {
                let size = usize::try_from(varint(bytes, at)?).ok()?;
                Some(Value::Said(Said::Symbolic(take(bytes, at, size)?.to_vec())))
            }
            _ => None,
        }
    }
}

/// The value of one record.
enum Value {
    Said(Said),
    Deleted,
}

fn take<'a>(bytes: &'a [u8], at: &mut usize, size: usize) -> Option<&'a [u8]> {
    let end = at.checked_add(size)?;
    let taken = bytes.get(*at..end)?;
    *at = end;
    Some(taken)
}

fn uint24(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 3)?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

/// The same coding as base distances in packs.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut next = || {
        let byte = *bytes.get(*at)?;
        *at += 1;
        Some(byte)
    };
    let mut byte = next()?;
    let mut value = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = next()?;
        value = value.checked_add(1).filter(|value| value >> 57 == 0)? << 7 | u64::from(byte & 0x7f);
    }
    Some(value)
}

/// How often a stack is read anew when its tables vanish.
const TRIES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::{commit, git};
    use std::{
        fmt::Write,
        fs,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    /// Whether this git can do that; says so when it cannot.
    fn git_may(folder: &Path, arguments: &[&str]) -> bool {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "init.defaultBranch=main"]).args(arguments).current_dir(folder);
        let made = command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").status().unwrap();
        if !made.success() {
            eprintln!("SKIPPED: this git has no reftables");
        }
        made.success()
    }

    fn repository(kind: &str) -> Option<(tempfile::TempDir, std::path::PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let format = format!("--object-format={kind}");
        if !git_may(folder.path(), &["init", "-q", "--bare", "--ref-format=reftable", &format, "x"]) {
            return None;
        }
        let path = folder.path().join("x");
        Some((folder, path))
    }

    #[test]
    fn stacks_are_read_as_git_reads_them() {
        for (name, kind) in [("sha1", Kind::Sha1), ("sha256", Kind::Sha256)] {
            let Some((_folder, path)) = repository(name) else { return };
            let id = commit(&path, "a");
            let mut batch = String::new();
            for number in 0..700 {
                writeln!(batch, "create refs/heads/some/branch-{number} {id}").unwrap();
            }
            fs::write(path.join("batch"), &batch).unwrap();
            git(&path, &["update-ref", "--stdin", "--create-reflog", "<batch"]);
            git(&path, &["tag", "-a", "-m", "t", "v1", &id]);
            git(&path, &["symbolic-ref", "refs/heads/sym", "refs/heads/some/branch-7"]);
            git(&path, &["update-ref", "-d", "refs/heads/some/branch-9"]);
            let layout = Layout::of(&path).unwrap().unwrap();
            let Told { own: refs, head, .. } = read(&layout, kind, &mut Stamps::default()).unwrap();
            let stock = git(&path, &["for-each-ref", "--format=%(refname) %(objectname) %(*objectname) %(symref)"]);
            let id = |hex: &str| crate::oid::from_hex(kind, hex.as_bytes());
            let mut expected = BTreeMap::new();
            for line in stock.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [name, object, peeled, symref] = words[..] else { panic!("{line}") };
                let said = match (symref, id(peeled)) {
                    ("", None) => Said::Object(id(object).unwrap(), Peeled::NoTag),
                    ("", Some(peeled)) => Said::Object(id(object).unwrap(), Peeled::To(peeled)),
                    (target, _) => Said::Symbolic(target.as_bytes().to_vec()),
                };
                expected.insert(name.as_bytes().to_vec(), said);
            }
            assert_eq!(refs.len(), 701);
            assert_eq!(refs, expected);
            assert_eq!(head, Some(Said::Symbolic(b"refs/heads/main".to_vec())));
        }
    }

    #[test]
    fn worktrees_have_a_head_and_a_few_refs_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("main");
        if !git_may(folder.path(), &["init", "-q", "--ref-format=reftable", "main"]) {
            return;
        }
        git(&main, &["commit", "-q", "--allow-empty", "-m", "x"]);
        git(&main, &["worktree", "add", "-q", "-b", "side", "../linked"]);
        let linked = folder.path().join("linked");
        git(&main, &["update-ref", "refs/bisect/one", "HEAD"]);
        git(&linked, &["update-ref", "refs/bisect/two", "HEAD"]);
        for at in [&main, &linked] {
            let layout = Layout::of(&at.join(".git")).unwrap().unwrap();
            let told = read(&layout, Kind::Sha1, &mut Stamps::default()).unwrap();
            let names: Vec<_> = told.own.keys().map(|name| String::from_utf8_lossy(name)).collect();
            let stock = git(at, &["for-each-ref", "--format=%(refname)"]);
            assert_eq!(names, stock.lines().collect::<Vec<_>>());
            let branch = git(at, &["symbolic-ref", "HEAD"]);
            assert_eq!(told.head, Some(Said::Symbolic(branch.trim().as_bytes().to_vec())));
        }
    }

    #[test]
    fn no_ref_is_ever_missing_while_tables_are_compacted() {
        let Some((_folder, path)) = repository("sha1") else { return };
        let id = commit(&path, "a");
        let layout = Layout::of(&path).unwrap().unwrap();
        let (born, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Each update writes a table, and most of them compact some.
                for number in 0..150 {
                    git(&path, &["update-ref", &format!("refs/heads/b{number}"), &id]);
                    born.store(number + 1, Ordering::Release);
                    if number % 10 == 0 {
                        git(&path, &["pack-refs", "--all"]);
                    }
                }
                done.store(true, Ordering::Release);
            });
            let mut rounds = 0;
            while !done.load(Ordering::Acquire) {
                let born = born.load(Ordering::Acquire);
                let told = read(&layout, Kind::Sha1, &mut Stamps::default()).unwrap();
                let has = |number: usize| told.own.contains_key(format!("refs/heads/b{number}").as_bytes());
                assert!((0..born).all(has) && told.head.is_some(), "of {born} in round {rounds}");
                rounds += 1;
            }
            assert!(rounds > 10);
        });
    }

    #[test]
    fn names_that_no_file_could_have_are_left_out() {
        for name in ["refs/heads/a\n0000", "refs/heads/a b", "refs/../../x", "HEAD", "refs/heads/a\0b"] {
            assert!(!is_kept(name.as_bytes()), "{name:?}");
        }
        assert!(is_kept(b"refs/heads/a") && is_of_worktree(b"refs/bisect/a") && !is_of_worktree(b"refs/bisected/a"));
    }

    #[test]
    fn names_that_blow_up_are_refused() {
        let Some((_folder, path)) = repository("sha1") else { return };
        let id = commit(&path, "a");
        git(&path, &["update-ref", "refs/heads/a-rather-long-name", &id]);
        let list = fs::read_to_string(path.join("reftable/tables.list")).unwrap();
        let bytes = fs::read(path.join("reftable").join(list.lines().next_back().unwrap())).unwrap();
        let table = Table::open(&bytes, Kind::Sha1).unwrap();
        let room = |mut room: usize| table.read_into(&mut BTreeMap::new(), &mut room).map(|()| room);
        let needed = 1000 - room(1000).unwrap();
        assert!(needed >= "refs/heads/a-rather-long-name".len());
        assert_eq!((room(needed), room(needed - 1)), (Some(0), None));
    }

    #[test]
    fn damaged_tables_are_refused_and_never_panic() {
        let Some((_folder, path)) = repository("sha1") else { return };
        let id = commit(&path, "a");
        git(&path, &["update-ref", "refs/heads/a", &id]);
        let list = fs::read_to_string(path.join("reftable/tables.list")).unwrap();
        let bytes = fs::read(path.join("reftable").join(list.lines().next_back().unwrap())).unwrap();
        for size in 0..bytes.len() {
            assert!(Table::open(&bytes[..size], Kind::Sha1).is_none(), "cut at {size}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                if let Some(table) = Table::open(&flipped, Kind::Sha1) {
                    let _ = table.read_into(&mut BTreeMap::new(), &mut 1000);
                }
            }
        }
        assert!(Table::open(&bytes, Kind::Sha256).is_none());
    }
}
