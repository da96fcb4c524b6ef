//! Patterns over paths: `*` within a segment, `**` for any number of segments.
//!
//! Matches bytes, knows nothing of what they name. Invariants: a pattern has no empty segment; matching takes at most
//! `pattern x path` steps, whatever the two hold, and both are bounded.
//! Read first: `patterns_match_as_the_naive_ones_do`.

use rustc_hash::FxHashMap;

/// Bytes of a pattern.
pub const PATTERN_SIZE_MAX: usize = 256;
/// Bytes of a path that is matched; longer ones match nothing.
pub const PATH_SIZE_MAX: usize = 1024;

/// A pattern such as `team/*/mirror` or `public/**`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Box<str>,
}

/// Why a text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// Nothing is left of it.
    #[error("a pattern names something: a path such as team/app, team/* or team/**")]
    Empty,
    /// Longer than [`PATTERN_SIZE_MAX`].
    #[error("a pattern has at most {PATTERN_SIZE_MAX} bytes")]
    Long,
    /// An empty segment, `.` or `..`, or a control character.
    #[error("a pattern has no empty segment, no `.` or `..` and no control characters")]
    Segment,
    /// `**` beside something else in a segment.
    #[error("`**` stands alone between slashes, as in team/**")]
    Stars,
}

impl Pattern {
    /// Reads a pattern; slashes at its ends do not count.
    ///
    /// # Errors
    /// It is none.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        let text = text.trim_matches('/');
        if text.is_empty() {
            return Err(BadPattern::Empty);
        }
        if text.len() > PATTERN_SIZE_MAX {
            return Err(BadPattern::Long);
        }
        for segment in text.split('/') {
            if matches!(segment, "" | "." | "..") || segment.chars().any(char::is_control) {
                return Err(BadPattern::Segment);
            }
            if segment.contains("**") && segment != "**" {
                return Err(BadPattern::Stars);
            }
        }
        Ok(Self { text: text.into() })
    }

    /// The same for repositories, whose suffix `.git` does not count.
    ///
    /// # Errors
    /// It is none.
    pub fn of_repositories(text: &str) -> Result<Self, BadPattern> {
        let mut text = text.trim_matches('/');
        while let Some(rest) = text.strip_suffix(".git") {
            text = rest.trim_end_matches('/');
        }
        Self::new(text)
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Bytes that match only themselves: of two patterns that match, the one with more of them says more.
    pub fn literal_size(&self) -> usize {
        self.text.bytes().filter(|byte| *byte != b'*').count()
    }

    /// Whether the path, which has no slash at its ends, is one of those meant.
    pub fn matches(&self, path: &[u8]) -> bool {
        path.len() <= PATH_SIZE_MAX && matches_segments(self.text.as_bytes(), path)
    }

    /// The segments before the first one with a star, joined.
    fn literal_head(&self) -> &str {
        let Some(star) = self.text.find('*') else { return &self.text };
        let head = self.text.get(..star).unwrap_or_default();
        head.rfind('/').and_then(|slash| head.get(..slash)).unwrap_or_default()
    }

    fn is_literal(&self) -> bool {
        !self.text.contains('*')
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Greedy with one way back: the last `**` takes one segment more when what follows it does not fit. `**` in the middle or
/// in front stands for no segment as well; at the end for one or more.
fn matches_segments(pattern: &[u8], path: &[u8]) -> bool {
    let (mut pattern, mut path) = (Some(pattern), Some(path));
    let mut back: Option<(Option<&[u8]>, Option<&[u8]>)> = None;
    loop {
        let step = match (pattern.map(first), path.map(first)) {
            (None, None) => return true,
            (Some((b"**", None)), Some(_)) => return true,
            (Some((b"**", None)), None) => false,
            (Some((b"**", rest)), _) => {
                (pattern, back) = (rest, Some((rest, path)));
                true
            }
            (Some((wanted, wanted_rest)), Some((found, found_rest))) if matches_segment(wanted, found) => {
                (pattern, path) = (wanted_rest, found_rest);
                true
            }
            _ => false,
        };
        if step {
            continue;
        }
        match back {
            Some((rest, Some(from))) => {
                let from = first(from).1;
                (pattern, path, back) = (rest, from, Some((rest, from)));
            }
            _ => return false,
        }
    }
}

/// The first segment and what follows its slash.
fn first(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'/', text) {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    }
}

fn matches_segment(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                back = Some((at + 1, from));
                at += 1;
            }
            Some(byte) if text.get(from) == Some(byte) => (at, from) = (at + 1, from + 1),
            _ => match back {
                Some((rest, taken)) => {
                    (at, from) = (rest, taken + 1);
                    back = Some((rest, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// Values by pattern, found without looking at every pattern: those without a star by their text, the others by the segments
/// before their first star. Only patterns that begin with a star are looked at for every path.
#[derive(Clone, Debug)]
pub struct PatternMap<T> {
    literal: FxHashMap<Box<str>, Vec<T>>,
    starred: FxHashMap<Box<str>, Vec<(Pattern, T)>>,
}

impl<T> Default for PatternMap<T> {
    fn default() -> Self {
        Self { literal: FxHashMap::default(), starred: FxHashMap::default() }
    }
}

impl<T> PatternMap<T> {
    /// Adds a value.
    pub fn insert(&mut self, pattern: Pattern, value: T) {
        if pattern.is_literal() {
            self.literal.entry(pattern.text).or_default().push(value);
        } else {
            self.starred.entry(pattern.literal_head().into()).or_default().push((pattern, value));
        }
    }

    /// Values of all patterns that match, with how many bytes of the pattern match only themselves.
    pub fn matching<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = (usize, &'a T)> + 'a {
        // Patterns are text; what is not can only be matched by their stars.
        let is_bounded = path.len() <= PATH_SIZE_MAX;
        let literal = std::str::from_utf8(path).ok().filter(|_| is_bounded).and_then(|path| self.literal.get(path));
        let literal = literal.into_iter().flatten().map(move |value| (path.len(), value));
        let ends = std::iter::once(0).chain(memchr::memchr_iter(b'/', path));
        let heads = ends.filter_map(move |end| std::str::from_utf8(path.get(..end)?).ok()).filter(move |_| is_bounded);
        let starred = heads.filter_map(|head| self.starred.get(head)).flatten();
        let starred = starred.filter(move |(pattern, _)| pattern.matches(path));
        literal.chain(starred.map(|(pattern, value)| (pattern.literal_size(), value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By trying everything, as one would on paper.
    fn naive(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern.split_first(), path.split_first()) {
            (None, None) => true,
            (Some((&"**", [])), _) => !path.is_empty(),
            (Some((&"**", rest)), _) => (0..=path.len()).any(|skipped| naive(rest, &path[skipped..])),
            (Some((wanted, rest)), Some((found, others))) => {
                naive_segment(wanted.as_bytes(), found.as_bytes()) && naive(rest, others)
            }
            _ => false,
        }
    }

    fn naive_segment(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=text.len()).any(|skipped| naive_segment(rest, &text[skipped..])),
            (Some((wanted, rest)), Some((found, others))) => wanted == found && naive_segment(rest, others),
            _ => false,
        }
    }

    #[test]
    fn patterns_match_as_people_expect() {
        for (pattern, path, matches) in [
            ("team/app", "team/app", true),
            ("team/app", "team/apps", false),
            ("team/app", "team/app/x", false),
            ("team/*", "team/app", true),
            ("team/*", "team/a/b", false),
            ("team/*", "team", false),
            ("team/**", "team/a/b", true),
            ("team/**", "team", false),
            ("team/**", "teams/a", false),
            ("**", "a/b/c", true),
            ("**/app", "app", true),
            ("**/app", "a/b/app", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/z/**/q", "a/z/b/q", true),
            ("*-mirror", "x-mirror", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("Team/app", "team/app", false),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(path.as_bytes()), matches, "{pattern} on {path}");
        }
        assert!(Pattern::new("team/*").unwrap().matches(b"team/\xff\xfe"));
        assert!(!Pattern::new("**").unwrap().matches(&[b'a'; PATH_SIZE_MAX + 1]));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (text, error) in [
            ("", BadPattern::Empty),
            ("/", BadPattern::Empty),
            ("a//b", BadPattern::Segment),
            ("a/../b", BadPattern::Segment),
            ("./a", BadPattern::Segment),
            ("a\nb", BadPattern::Segment),
            ("a**", BadPattern::Stars),
            ("a/***", BadPattern::Stars),
        ] {
            assert_eq!(Pattern::new(text), Err(error), "{text:?}");
        }
        assert_eq!(Pattern::new(&"a".repeat(PATTERN_SIZE_MAX + 1)), Err(BadPattern::Long));
        assert_eq!(Pattern::of_repositories("/a/b.git/.git/").unwrap().as_str(), "a/b");
        assert_eq!(Pattern::of_repositories(".git"), Err(BadPattern::Empty));
    }

    #[test]
    fn a_bomb_of_stars_costs_a_bounded_number_of_steps() {
        let bomb = Pattern::new(&["a*"; 100].concat()).unwrap();
        let deep = Pattern::new(&vec!["**/a*a"; 30].join("/")).unwrap();
        let (flat, nested) = ("a".repeat(PATH_SIZE_MAX - 1) + "b", "aa/".repeat(PATH_SIZE_MAX / 3 - 1) + "b");
        // Exponential matching would not end.
        assert!(bomb.matches(flat.as_bytes()) && !deep.matches(nested.as_bytes()));
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_naive_ones_do(
            pattern in proptest::collection::vec("[ab*]{1,4}|\\*\\*", 1..5),
            path in proptest::collection::vec("[ab]{1,4}", 1..6),
        ) {
            let text = pattern.join("/");
            if let Ok(read) = Pattern::new(&text) {
                let segments: Vec<&str> = pattern.iter().map(String::as_str).collect();
                let found: Vec<&str> = path.iter().map(String::as_str).collect();
                prop_assert_eq!(read.matches(path.join("/").as_bytes()), naive(&segments, &found), "{}", text);
            }
        }

        #[test]
        fn a_map_finds_what_each_pattern_alone_would(
            patterns in proptest::collection::vec("[ab*]{1,2}(/[ab*]{1,2}){0,2}", 0..12),
            path in "[ab]{1,2}(/[ab]{1,2}){0,3}",
        ) {
            let patterns: Vec<Pattern> = patterns.iter().filter_map(|text| Pattern::new(text).ok()).collect();
            let mut map = PatternMap::default();
            for (number, pattern) in patterns.iter().enumerate() {
                map.insert(pattern.clone(), number);
            }
            let mut found: Vec<(usize, usize)> = map.matching(path.as_bytes()).map(|(size, at)| (size, *at)).collect();
            found.sort_by_key(|(_, number)| *number);
            let fits = |(_, pattern): &(usize, &Pattern)| pattern.matches(path.as_bytes());
            let expected: Vec<(usize, usize)> =
                patterns.iter().enumerate().filter(fits).map(|(at, pattern)| (pattern.literal_size(), at)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
