//! Tree objects: bytes become entries, each a kind and an id. Names are passed over; no id is looked up.
//!
//! Source: gitformat of tree objects: mode in octal, space, name, NUL, raw id. Read first: the tests below.

use crate::oid::{Kind, oid};

/// What a tree entry points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMode {
    /// A subtree (mode 40000).
    Tree,
    /// A file or symbolic link.
    Blob,
    /// A commit of another repository (mode 160000): never sent.
    Gitlink,
}

/// Entries of one tree, in the order they stand.
pub struct TreeEntries<'a> {
    rest: &'a [u8],
    id_size: usize,
}

impl<'a> TreeEntries<'a> {
    /// Starts at the first byte of a tree object.
    pub fn new(kind: Kind, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, id_size: kind.len_in_bytes() }
    }

    /// The next entry with its name; `Some(None)` when the tree is malformed from here on.
    pub fn next_named(&mut self) -> Option<Option<(EntryMode, &'a [u8], &'a oid)>> {
        let before = self.rest;
        let entry = self.next()?;
        let name = |(mode, id)| {
            let line = before.get(..memchr::memchr(0, before)?)?;
            Some((mode, line.get(memchr::memchr(b' ', line)? + 1..)?, id))
        };
        Some(entry.and_then(name))
    }

    fn parse(&mut self) -> Option<(EntryMode, &'a oid)> {
        let nul = memchr::memchr(0, self.rest)?;
        let (line, rest) = self.rest.split_at_checked(nul + 1)?;
        let (id, rest) = rest.split_at_checked(self.id_size)?;
        let digits = memchr::memchr(b' ', line)?;
        let mut mode = 0u32;
        for digit in line.get(..digits)? {
            if !(b'0'..=b'7').contains(digit) {
                return None;
            }
            mode = mode << 3 | u32::from(digit - b'0');
        }
        self.rest = rest;
        let mode = match mode & 0o170_000 {
            0o040_000 => EntryMode::Tree,
            0o160_000 => EntryMode::Gitlink,
            _ => EntryMode::Blob,
        };
        Some((mode, oid::from_bytes_unchecked(id)))
    }
}

impl<'a> Iterator for TreeEntries<'a> {
    /// `None` inside: the tree is malformed from here on.
    type Item = Option<(EntryMode, &'a oid)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let entry = self.parse();
        if entry.is_none() {
            self.rest = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(entries: &[(&str, u8)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (head, fill) in entries {
            bytes.extend_from_slice(head.as_bytes());
            bytes.push(0);
            bytes.extend([*fill; 20]);
        }
        bytes
    }

    #[test]
    fn modes_tell_trees_blobs_and_gitlinks_apart() {
        let bytes = tree(&[("40000 a", 1), ("100644 b c", 2), ("120000 l", 3), ("160000 m", 4), ("040000 z", 5)]);
        let modes: Vec<_> = TreeEntries::new(Kind::Sha1, &bytes).map(|entry| entry.unwrap().0).collect();
        use EntryMode::{Blob, Gitlink, Tree};
        assert_eq!(modes, [Tree, Blob, Blob, Gitlink, Tree]);
        let ids: Vec<_> = TreeEntries::new(Kind::Sha1, &bytes).map(|entry| entry.unwrap().1.as_bytes()[7]).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_tree_cut_short_ends_in_one_malformed_entry() {
        let bytes = tree(&[("100644 b", 2), ("40000 a", 1)]);
        let first = "100644 b".len() + 1 + 20;
        for length in (1..bytes.len()).filter(|length| *length != first) {
            let entries: Vec<_> = TreeEntries::new(Kind::Sha1, &bytes[..length]).collect();
            assert_eq!(entries.iter().filter(|entry| entry.is_none()).count(), 1, "at {length}");
            assert_eq!(entries.last(), Some(&None), "at {length}");
        }
    }

    #[test]
    fn names_come_with_their_entries() {
        let bytes = tree(&[("40000 a", 1), ("100644 b c", 2)]);
        let mut entries = TreeEntries::new(Kind::Sha1, &bytes);
        assert_eq!(entries.next_named().unwrap().unwrap().1, b"a");
        assert_eq!(entries.next_named().unwrap().unwrap().1, b"b c");
        assert!(entries.next_named().is_none());
    }

    #[test]
    fn a_mode_that_is_no_octal_number_is_malformed() {
        for head in ["1006x4 a", "100648 a", "nomode"] {
            assert_eq!(TreeEntries::new(Kind::Sha1, &tree(&[(head, 1)])).next(), Some(None));
        }
    }
}
