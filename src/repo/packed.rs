//! The packed-refs file: its text becomes a sorted list of names, ids and what tags finally name.
//!
//! Opens nothing and copies no name. Refuses a file it cannot read to the end: half a list of refs would have every mirror
//! delete the other half. Invariant: names are sound, strictly ascending by their bytes, and lie within the text.
//! Source: gitrepository-layout(5), "packed-refs"; git-pack-refs(1); the header's traits as in refs/packed-backend.c.
//! Read first: `the_header_says_what_a_missing_peeled_line_means`.

use super::{name, refs::Peeled};
use crate::oid::{Kind, ObjectId, from_hex};

/// The refs of one packed-refs file.
#[derive(Debug, Default)]
pub struct Packed {
    text: Vec<u8>,
    lines: Vec<Line>,
}

/// One ref of the file.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    start: u32,
    size: u32,
    /// What it points at.
    pub id: ObjectId,
    /// What is known of that.
    pub peeled: Peeled,
}

/// A line that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packed-refs is damaged at byte {offset}; repair it, or restore it from a backup")]
pub struct Damaged {
    /// Where the line starts, in bytes from the start of the file.
    pub offset: usize,
}

impl Packed {
    /// Reads a whole file. Refs with broken names, and those that name no object, are left out with a warning.
    ///
    /// # Errors
    /// A line is neither a ref nor what its tag names, or the last one does not end.
    pub fn parse(text: Vec<u8>, kind: Kind) -> Result<Self, Damaged> {
        if u32::try_from(text.len()).is_err() {
            return Err(Damaged { offset: u32::MAX as usize });
        }
        let (mut at, unpeeled) = header(&text)?;
        let mut lines: Vec<Line> = Vec::with_capacity(text.len() / (kind.len_in_hex() + 24));
        // Whether the ref of the last line was kept, so that a `^` line finds its place.
        let mut kept = false;
        while at < text.len() {
            let damaged = Damaged { offset: at };
            let rest = text.get(at..).ok_or(damaged)?;
            let end = memchr::memchr(b'\n', rest).ok_or(damaged)?;
            let line = rest.get(..end).ok_or(damaged)?;
            if let Some(hex) = line.strip_prefix(b"^") {
                let peeled = from_hex(kind, hex).ok_or(damaged)?;
                if let Some(tag) = lines.last_mut().filter(|_| kept) {
                    tag.peeled = Peeled::To(peeled);
                }
            } else {
                let (hex, name) = line.split_at_checked(kind.len_in_hex()).ok_or(damaged)?;
                let (id, name) = from_hex(kind, hex).zip(name.strip_prefix(b" ")).ok_or(damaged)?;
                kept = keeps(name, &id);
                if kept {
                    let (start, size) = (at + kind.len_in_hex() + 1, name.len());
                    let bound = |value: usize| u32::try_from(value).map_err(|_| damaged);
                    lines.push(Line { start: bound(start)?, size: bound(size)?, id, peeled: unpeeled.of(name) });
                }
            }
            at += end + 1;
        }
        Ok(Self { text, lines }.sorted())
    }

    /// All refs, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Line)> {
        self.lines.iter().map(|line| (self.name(line), line))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The ref of that name.
    pub fn find(&self, name: &[u8]) -> Option<&Line> {
        self.lines.binary_search_by(|line| self.name(line).cmp(name)).ok().and_then(|at| self.lines.get(at))
    }

    fn name(&self, line: &Line) -> &[u8] {
        self.text.get(line.start as usize..(line.start + line.size) as usize).unwrap_or_default()
    }

    /// The header may promise an order; looking costs less than trusting. The last of equal names wins.
    fn sorted(mut self) -> Self {
        let name = |line: &Line| self.text.get(line.start as usize..(line.start + line.size) as usize);
        if !self.lines.is_sorted_by(|one, next| name(one) < name(next)) {
            self.lines.reverse();
            self.lines.sort_by_key(name);
            self.lines.dedup_by_key(|line| name(line));
        }
        self
    }
}

/// What it means that a ref has no `^` line.
#[derive(Clone, Copy)]
enum Unpeeled {
    /// It is no tag.
    NoTag,
    /// Below `refs/tags/`, it is no tag.
    NoTagAmongTags,
    /// Nothing.
    Unknown,
}

impl Unpeeled {
    fn of(self, name: &[u8]) -> Peeled {
        match self {
            Self::NoTag => Peeled::NoTag,
            Self::NoTagAmongTags if name.starts_with(b"refs/tags/") => Peeled::NoTag,
            Self::NoTagAmongTags | Self::Unknown => Peeled::Unknown,
        }
    }
}

/// Where the first ref stands, and what the header promises.
fn header(text: &[u8]) -> Result<(usize, Unpeeled), Damaged> {
    if text.first() != Some(&b'#') {
        return Ok((0, Unpeeled::Unknown));
    }
    let damaged = Damaged { offset: 0 };
    let end = memchr::memchr(b'\n', text).ok_or(damaged)?;
    let traits = text.get(..end).and_then(|line| line.strip_prefix(b"# pack-refs with:")).ok_or(damaged)?;
    let has = |name: &[u8]| traits.split(|byte| *byte == b' ').any(|word| word == name);
    let unpeeled = match (has(b"fully-peeled"), has(b"peeled")) {
        (true, _) => Unpeeled::NoTag,
        (false, true) => Unpeeled::NoTagAmongTags,
        (false, false) => Unpeeled::Unknown,
    };
    Ok((end + 1, unpeeled))
}

fn keeps(name: &[u8], id: &ObjectId) -> bool {
    let sound = name::is_sound(name) && !id.is_null();
    if !sound {
        tracing::warn!(name = %String::from_utf8_lossy(name), "ignoring a broken packed ref");
    }
    sound
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn parse(text: &str) -> Result<Packed, Damaged> {
        Packed::parse(text.replace('A', A).replace('B', B).into_bytes(), Kind::Sha1)
    }

    fn names(packed: &Packed) -> Vec<&str> {
        packed.iter().map(|(name, _)| std::str::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn the_header_says_what_a_missing_peeled_line_means() {
        let refs = "A refs/heads/x\nA refs/tags/light\nA refs/tags/tag\n^B\n";
        for (header, head, light) in [
            ("# pack-refs with: peeled fully-peeled sorted \n", Peeled::NoTag, Peeled::NoTag),
            ("# pack-refs with: peeled \n", Peeled::Unknown, Peeled::NoTag),
            ("# pack-refs with: sorted \n", Peeled::Unknown, Peeled::Unknown),
            ("", Peeled::Unknown, Peeled::Unknown),
        ] {
            let packed = parse(&format!("{header}{refs}")).unwrap();
            let peeled = |name: &str| packed.find(name.as_bytes()).unwrap().peeled;
            let b = from_hex(Kind::Sha1, B.as_bytes()).unwrap();
            assert_eq!((peeled("refs/heads/x"), peeled("refs/tags/light")), (head, light), "{header}");
            assert_eq!(peeled("refs/tags/tag"), Peeled::To(b));
        }
    }

    #[test]
    fn names_out_of_order_are_sorted_and_the_last_of_equals_wins() {
        let packed = parse("# pack-refs with: sorted \nA refs/heads/z\nA refs/heads/a\nB refs/heads/z\n").unwrap();
        assert_eq!(names(&packed), ["refs/heads/a", "refs/heads/z"]);
        assert_eq!(packed.find(b"refs/heads/z").unwrap().id.to_string(), B);
    }

    #[test]
    fn broken_refs_are_left_out_with_what_their_tag_names() {
        let packed = parse("A refs/heads/a\nA refs/heads/b..c\n^B\nA HEAD\nA refs/tags/t\n^B\n").unwrap();
        assert_eq!(names(&packed), ["refs/heads/a", "refs/tags/t"]);
        assert_eq!(packed.find(b"refs/heads/a").unwrap().peeled, Peeled::Unknown);
        let none = "0".repeat(40);
        assert!(parse(&format!("{none} refs/heads/a\n")).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_to_its_end_is_refused() {
        for (text, offset) in [
            ("A refs/heads/a\nA refs/heads/b", 54),
            ("A refs/heads/a\n\nA refs/heads/b\n", 54),
            ("A refs/heads/a\n# comment\n", 54),
            ("A\trefs/heads/a\n", 0),
            ("# other header\n", 0),
            ("# pack-refs with: peeled", 0),
            ("A refs/heads/a\n^A0\n", 54),
            ("\0\0\0\0\0\0\n", 0),
        ] {
            assert_eq!(parse(text).err(), Some(Damaged { offset }), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(raw in any::<Vec<u8>>(), lines in "([Aa^# \n\0]|refs/|heads){0,40}") {
            let _ = Packed::parse(raw, Kind::Sha1);
            if let Ok(packed) = parse(&lines) {
                prop_assert!(packed.iter().is_sorted_by(|one, next| one.0 < next.0));
            }
        }
    }
}
