//! Reftables: the stack of tables of a repository becomes the refs it says.
//!
//! A reader of whole tables, for a server that lists refs more often than it looks one up; indexes, object blocks and logs
//! are passed over, so nothing is inflated. Everything is hostile until bounded. Invariants: a later table wins over an
//! earlier one; a table that vanished under the reading (compaction) makes the reading start over.
//! Source: reftable in git's technical notes, "File format"; gix-ref has no reader. Read first: `stacks_are_read_as_git_reads_them`.

use std::{collections::BTreeMap, path::Path};

use super::{
    layout::{Layout, read_small},
    refs::{Peeled, Said},
    stamp::Stamps,
};
use crate::{
    limits,
    oid::{Kind, ObjectId},
    repo::Absent,
};

/// What each ref says.
pub type Names = BTreeMap<Vec<u8>, Said>;

/// Reads the stack of a repository: its refs, and what HEAD says. What is read is stamped.
///
/// # Errors
/// A table is damaged, or tables keep vanishing.
pub fn read(layout: &Layout, kind: Kind, stamps: &mut Stamps) -> Result<(Names, Option<Said>), Absent> {
    let folder = layout.common_dir.join("reftable");
    for _ in 0..TRIES {
        let mut tried = stamps.clone();
        if let Some(mut refs) = read_stack(&folder, kind, &mut tried)? {
            let mut head = refs.remove(b"HEAD".as_slice());
            if layout.is_linked() {
                // A worktree keeps its own HEAD and its own few refs in a stack of its own.
                let own = read_stack(&layout.git_dir.join("reftable"), kind, &mut tried)?.unwrap_or_default();
                head = own.get(b"HEAD".as_slice()).cloned();
                refs.extend(own.into_iter().filter(|(name, _)| name.starts_with(b"refs/")));
            }
            refs.retain(|name, _| name.starts_with(b"refs/"));
            *stamps = tried;
            return Ok((refs, head));
        }
    }
    Err(Absent::Broken("the reftables change faster than they can be read".to_owned()))
}

/// `None` when a table of the list is gone.
fn read_stack(folder: &Path, kind: Kind, stamps: &mut Stamps) -> Result<Option<Names>, Absent> {
    let list = folder.join("tables.list");
    stamps.watch(&list);
    let names = read_small(&list).unwrap_or_default();
    let mut refs = BTreeMap::new();
    for name in names.split(|byte| *byte == b'\n').filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        if name.contains('/') {
            return Err(Absent::Broken("reftable/tables.list names a file elsewhere".to_owned()));
        }
        let Ok(bytes) = std::fs::read(folder.join(&name)) else { return Ok(None) };
        let table = Table::open(&bytes, kind);
        table
            .and_then(|table| table.read_into(&mut refs))
            .ok_or_else(|| Absent::Broken(format!("reftable/{name} is damaged; `git refs verify` says more")))?;
    }
    Ok(Some(refs))
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

    /// Adds what the table says; deletions take away.
    fn read_into(&self, refs: &mut Names) -> Option<()> {
        let mut start = 0;
        loop {
            let at = if start == 0 { self.header_size } else { start };
            if at >= self.end || self.bytes.get(at) != Some(&b'r') {
                return Some(());
            }
            let size = uint24(self.bytes, at + 1)?;
            let block_end = start.checked_add(size).filter(|end| *end <= self.end && *end >= at + 4)?;
            self.read_block(at + 4, block_end, refs)?;
            start = match self.block_size {
                0 => block_end,
                step => block_end.max(start + 1).div_ceil(step).checked_mul(step)?,
            };
        }
    }

    fn read_block(&self, mut at: usize, end: usize, refs: &mut Names) -> Option<()> {
        let restarts = self.bytes.get(end.checked_sub(2)?..end)?;
        let restarts = usize::from(u16::from_be_bytes(restarts.try_into().ok()?));
        let records_end = end.checked_sub(2 + 3 * restarts)?;
        let mut name = Vec::new();
        while at < records_end {
            let bytes = self.bytes.get(..records_end)?;
            let prefix = usize::try_from(varint(bytes, &mut at)?).ok()?;
            let suffix = varint(bytes, &mut at)?;
            let (suffix, value_type) = (usize::try_from(suffix >> 3).ok()?, suffix & 7);
            if prefix > name.len() || prefix.checked_add(suffix)? > limits::PKT_SIZE_MAX {
                return None;
            }
            name.truncate(prefix);
            name.extend_from_slice(take(bytes, &mut at, suffix)?);
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
    use std::{fmt::Write, fs};

    fn repository(kind: &str) -> Option<(tempfile::TempDir, std::path::PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let format = format!("--object-format={kind}");
        let made = std::process::Command::new("git")
            .args(["-c", "init.defaultBranch=main", "init", "-q", "--bare", "--ref-format=reftable", &format, "x"])
            .current_dir(folder.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .status()
            .unwrap();
        if !made.success() {
            eprintln!("SKIPPED: this git has no reftables");
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
            let layout = Layout::of(&path).unwrap();
            let (refs, head) = read(&layout, kind, &mut Stamps::default()).unwrap();
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
                    let _ = table.read_into(&mut BTreeMap::new());
                }
            }
        }
        assert!(Table::open(&bytes, Kind::Sha256).is_none());
    }
}
