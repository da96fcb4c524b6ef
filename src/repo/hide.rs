//! Hidden refs: the patterns of a repository tell which refs are never shown.
//!
//! Source: `transfer.hideRefs` in git-config(1). Read first: `the_last_pattern_that_matches_decides`.

/// Patterns in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hidden(Vec<Vec<u8>>);

impl Hidden {
    /// Adds a pattern: `refs/x`, `!refs/x`, `^refs/x` or `!^refs/x`.
    pub fn push(&mut self, pattern: &[u8]) {
        let end = pattern.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        self.0.push(pattern.get(..end).unwrap_or_default().to_vec());
    }

    /// Whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a ref of that full name is hidden.
    pub fn hides(&self, name: &[u8]) -> bool {
        self.hides_as(name, name)
    }

    /// The same within a namespace, where the ref is shown as `shown`: patterns with `^` are about the full name.
    pub fn hides_as(&self, name: &[u8], shown: &[u8]) -> bool {
        for pattern in self.0.iter().rev() {
            let (shows, pattern) = match pattern.strip_prefix(b"!") {
                Some(rest) => (true, rest),
                None => (false, pattern.as_slice()),
            };
            let rest = match pattern.strip_prefix(b"^") {
                Some(pattern) => name.strip_prefix(pattern),
                None => shown.strip_prefix(pattern),
            };
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
                return !shows;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let mut hidden = Hidden::default();
        for pattern in ["refs/pull//", "!refs/pull/7", "refs/pull/7/merge", "^refs/notes", "!^refs/notes/shown"] {
            hidden.push(pattern.as_bytes());
        }
        for (name, hides) in [
            ("refs/pull/1/head", true),
            ("refs/pull", true),
            ("refs/pull/7/head", false),
            ("refs/pull/7/merge", true),
            ("refs/pull/77/head", true),
            ("refs/pullover", false),
            ("refs/notes/commits", true),
            ("refs/notes/shown", false),
            ("refs/heads/a", false),
        ] {
            assert_eq!(hidden.hides(name.as_bytes()), hides, "{name}");
        }
    }
}
