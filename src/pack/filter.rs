//! Which objects a partial clone leaves out: the sum of all filter-specs of one request.
//!
//! Parses nothing (`proto` does) and names no capability. Every filter git serves is one of three bounds, and a
//! combination of filters is the tighter of each, so the sum needs no tree of filters.
//! Source: git-rev-list(1), "--filter". Read first: `combining_keeps_the_tighter_bound`.

use super::entry::ObjectType;

/// What is left out. The default leaves out nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Omit {
    /// Blobs of at least this many bytes (`blob:limit`; 0 is `blob:none`).
    pub blobs_from: Option<u64>,
    /// Trees and blobs at this depth below a root tree or deeper (`tree`; the root tree has depth 0).
    pub depth_from: Option<u64>,
    /// Everything that is not of this type (`object:type`).
    pub all_but: Option<ObjectType>,
    /// Two `object:type` of different types: everything that was not asked for by name.
    pub everything: bool,
}

impl Omit {
    /// Leaves out what either leaves out.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let tighter = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        };
        let clash = matches!((self.all_but, other.all_but), (Some(a), Some(b)) if a != b);
        Self {
            blobs_from: tighter(self.blobs_from, other.blobs_from),
            depth_from: tighter(self.depth_from, other.depth_from),
            all_but: self.all_but.or(other.all_but),
            everything: self.everything || other.everything || clash,
        }
    }

    /// Whether nothing is left out.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether objects of that type may be sent at all when met on a walk.
    pub fn sends(&self, object: ObjectType) -> bool {
        !self.everything && self.all_but.is_none_or(|only| only == object)
    }

    /// Whether a walk needs to enter trees: not when neither trees nor blobs can come of it.
    pub fn enters_trees(&self) -> bool {
        self.depth_from != Some(0) && (self.sends(ObjectType::Tree) || self.sends(ObjectType::Blob))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combining_keeps_the_tighter_bound() {
        let limit = |bytes| Omit { blobs_from: Some(bytes), ..Omit::default() };
        let depth = |depth| Omit { depth_from: Some(depth), ..Omit::default() };
        assert_eq!(limit(5).and(limit(3)), limit(3));
        assert_eq!(depth(1).and(limit(0)), Omit { blobs_from: Some(0), depth_from: Some(1), ..Omit::default() });
        assert_eq!(Omit::default().and(depth(2)), depth(2));
    }

    #[test]
    fn two_types_at_once_send_nothing() {
        let only = |object| Omit { all_but: Some(object), ..Omit::default() };
        let both = only(ObjectType::Blob).and(only(ObjectType::Tree));
        assert!(!both.sends(ObjectType::Blob) && !both.sends(ObjectType::Tree) && !both.enters_trees());
        assert!(only(ObjectType::Blob).and(only(ObjectType::Blob)).sends(ObjectType::Blob));
    }

    #[test]
    fn trees_are_entered_only_when_something_may_come_of_it() {
        assert!(Omit::default().enters_trees());
        assert!(Omit { blobs_from: Some(0), ..Omit::default() }.enters_trees());
        assert!(!Omit { depth_from: Some(0), ..Omit::default() }.enters_trees());
        assert!(!Omit { all_but: Some(ObjectType::Tag), ..Omit::default() }.enters_trees());
    }
}
