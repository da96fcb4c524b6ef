//! Filter-specs: text becomes a list of bounds; combinations are taken apart.
//!
//! Applies nothing. Invariant: what is returned is allowed by the repository's policy, each part of a combination too.
//! Source: git-rev-list(1), "--filter"; `uploadpackfilter` in git-config(1).
//! Read first: `specs_are_read_as_git_reads_them`.

use super::violation::Violation;

/// One bound. A spec is all of its bounds together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// `blob:none`
    BlobNone,
    /// `blob:limit=`: blobs of at least so many bytes are left out.
    BlobLimit(u64),
    /// `tree:`: trees and blobs so deep below the root tree, or deeper, are left out.
    TreeDepth(u64),
    /// `object:type=`: everything else is left out.
    ObjectType(ObjectType),
    /// `sparse:oid=`: blobs are kept by the patterns in this blob, named by id or as `ref:path`.
    SparseOid(Vec<u8>),
}

/// The type named by `object:type=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectType {
    /// `commit`
    Commit,
    /// `tree`
    Tree,
    /// `blob`
    Blob,
    /// `tag`
    Tag,
}

/// All bounds of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec(pub Vec<Filter>);

/// Which filters a repository serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `uploadpackfilter.allow`: those that are not named below.
    pub others: bool,
    /// `uploadpackfilter.<kind>.allow`
    pub named: Vec<(String, bool)>,
    /// `uploadpackfilter.tree.maxDepth`
    pub tree_depth_max: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { others: true, named: Vec::new(), tree_depth_max: u64::MAX }
    }
}

impl Policy {
    fn check(&self, kind: &'static str) -> Result<(), Violation> {
        let named = self.named.iter().rev().find(|(name, _)| name == kind);
        if named.map_or(self.others, |named| named.1) { Ok(()) } else { Err(Violation::FilterNotSupported(kind)) }
    }
}

/// Reads a filter-spec.
///
/// # Errors
/// It cannot be read, or the policy does not allow it.
pub fn parse(text: &[u8], policy: &Policy) -> Result<Spec, Violation> {
    let mut spec = Spec::default();
    parse_into(text, policy, &mut spec, 0)?;
    Ok(spec)
}

fn parse_into(text: &[u8], policy: &Policy, spec: &mut Spec, depth: usize) -> Result<(), Violation> {
    let invalid = || Violation::InvalidFilter(text.to_vec());
    let (kind, filter) = if text == b"blob:none" {
        ("blob:none", Filter::BlobNone)
    } else if let Some(limit) = text.strip_prefix(b"blob:limit=") {
        ("blob:limit", Filter::BlobLimit(size(limit).ok_or_else(invalid)?))
    } else if let Some(depth) = text.strip_prefix(b"tree:") {
        ("tree", Filter::TreeDepth(size(depth).ok_or_else(invalid)?))
    } else if let Some(name) = text.strip_prefix(b"object:type=") {
        ("object:type", Filter::ObjectType(object_type(name).ok_or_else(invalid)?))
    } else if let Some(name) = text.strip_prefix(b"sparse:oid=") {
        ("sparse:oid", Filter::SparseOid(name.to_vec()))
    } else if let Some(parts) = text.strip_prefix(b"combine:") {
        return parse_combination(parts, policy, spec, depth);
    } else {
        return Err(invalid());
    };
    policy.check(kind)?;
    match filter {
        Filter::TreeDepth(asked) if asked > policy.tree_depth_max => {
            Err(Violation::TreeTooDeep { max: policy.tree_depth_max, asked })
        }
        filter => {
            spec.0.push(filter);
            Ok(())
        }
    }
}

fn parse_combination(parts: &[u8], policy: &Policy, spec: &mut Spec, depth: usize) -> Result<(), Violation> {
    let invalid = || Violation::InvalidFilter([b"combine:", parts].concat());
    if parts.is_empty() || depth >= NESTING_MAX {
        return Err(invalid());
    }
    policy.check("combine")?;
    for part in parts.split(|byte| *byte == b'+') {
        let escaped = |byte: &u8| *byte <= b' ' || !byte.is_ascii() || RESERVED.contains(byte);
        if part.iter().any(escaped) || spec.0.len() >= FILTERS_MAX {
            return Err(invalid());
        }
        parse_into(&percent_decoded(part), policy, spec, depth + 1)?;
    }
    Ok(())
}

/// Escapes that are none stay as they are, as in stock git.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let digit = |at: usize| text.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (*byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) if high + low > 0 => {
                out.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

fn object_type(name: &[u8]) -> Option<ObjectType> {
    match name {
        b"commit" => Some(ObjectType::Commit),
        b"tree" => Some(ObjectType::Tree),
        b"blob" => Some(ObjectType::Blob),
        b"tag" => Some(ObjectType::Tag),
        _ => None,
    }
}

/// A size as git-config(1) reads it: decimal, octal or hexadecimal, with k, m or g behind it.
fn size(text: &[u8]) -> Option<u64> {
    let (digits, factor) = match text.split_last()? {
        (b'k' | b'K', digits) => (digits, 1 << 10),
        (b'm' | b'M', digits) => (digits, 1 << 20),
        (b'g' | b'G', digits) => (digits, 1 << 30),
        _ => (text, 1),
    };
    super::number::unsigned(digits)?.checked_mul(factor)
}

/// Bytes that have to be escaped inside a combination.
const RESERVED: &[u8] = b"~`!@#$^&*()[]{}\\;'\",<>?";
/// Combinations of combinations that are taken apart.
const NESTING_MAX: usize = 16;
/// Bounds of one request. Beyond a few, each only repeats another.
const FILTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use Filter::{BlobLimit, BlobNone, TreeDepth};

    fn read(text: &str) -> Result<Vec<Filter>, Violation> {
        parse(text.as_bytes(), &Policy::default()).map(|spec| spec.0)
    }

    #[test]
    fn specs_are_read_as_git_reads_them() {
        for (text, expected) in [
            ("blob:none", vec![BlobNone]),
            ("blob:limit=0", vec![BlobLimit(0)]),
            ("blob:limit=10k", vec![BlobLimit(10_240)]),
            ("blob:limit=0x10M", vec![BlobLimit(16 << 20)]),
            ("blob:limit=010", vec![BlobLimit(8)]),
            ("tree:3", vec![TreeDepth(3)]),
            ("sparse:oid=main:x", vec![Filter::SparseOid(b"main:x".to_vec())]),
            ("object:type=tag", vec![Filter::ObjectType(ObjectType::Tag)]),
            ("combine:blob:none+tree:2", vec![BlobNone, TreeDepth(2)]),
            ("combine:blob%3anone+combine:tree%3A1%2bblob:limit=1g", vec![BlobNone, TreeDepth(1), BlobLimit(1 << 30)]),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "blob",
            "blob:limit=",
            "blob:limit=-1",
            "blob:limit=1x",
            "blob:limit=99999999999999999999",
            "tree:",
            "tree:x",
            "object:type=blobs",
            "sparse:path=x",
            "auto",
            "combine:",
            "combine:blob none",
            "combine:+",
            "combine:blob:none+",
            "combine:+blob:none",
            "combine:blob:none++tree:2",
            "combine:sparse:oid=\u{e9}",
            "combine:tree:1+blob:(none",
        ] {
            assert!(matches!(read(text), Err(Violation::InvalidFilter(_))), "{text}");
        }
        let nested = format!("combine:{}blob:none", "combine:".repeat(20));
        assert!(matches!(read(&nested), Err(Violation::InvalidFilter(_))));
    }

    #[test]
    fn each_part_has_to_be_allowed() {
        let named = vec![("blob:none".to_owned(), true), ("combine".to_owned(), true), ("tree".to_owned(), true)];
        let policy = Policy { others: false, named, tree_depth_max: 2 };
        assert_eq!(parse(b"combine:blob:none+tree:2", &policy).unwrap().0.len(), 2);
        assert_eq!(parse(b"combine:blob:none+tree:3", &policy), Err(Violation::TreeTooDeep { max: 2, asked: 3 }));
        assert_eq!(parse(b"combine:blob:none+blob:limit=1", &policy), Err(Violation::FilterNotSupported("blob:limit")));
        assert_eq!(parse(b"sparse:oid=main:x", &policy), Err(Violation::FilterNotSupported("sparse:oid")));
    }
}
