//! Sparse filters: the text of a sparse-checkout file becomes a test of paths.
//!
//! Walks nothing ([`super::walk`] does). Invariants: the last pattern that matches decides; what no pattern decides is as its
//! folder is; the root is left out.
//! Source: git-sparse-checkout(1), "INTERNALS -- FULL PATTERN SET"; gitignore(5). gix-glob parses and matches.
//! Read first: `the_last_pattern_that_matches_decides`.

use gix_glob::{Pattern, pattern::Case, wildmatch};

/// Patterns, in order.
#[derive(Clone, Debug, Default)]
pub struct Sparse(Vec<Pattern>);

impl Sparse {
    /// Reads the text of a file; comments and empty lines are no patterns.
    pub fn parse(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        Self(lines.filter(|line| !line.starts_with(b"#")).filter_map(gix_glob::parse).collect())
    }

    /// Whether a path is kept; nothing when no pattern decides. `path` has no slash at either end.
    pub fn keeps(&self, path: &[u8], is_folder: bool) -> Option<bool> {
        let name_start = memchr::memrchr(b'/', path).map(|at| at + 1);
        let matches = |pattern: &&Pattern| {
            pattern.matches_repo_relative_path(
                path.into(),
                name_start,
                Some(is_folder),
                Case::Sensitive,
                wildmatch::Mode::NO_MATCH_SLASH_LITERAL,
            )
        };
        self.0.iter().rev().find(matches).map(|pattern| !pattern.is_negative())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let sparse = Sparse::parse(b"# docs\n/*\n!/*/\n/docs/\n!*.png\n\n");
        for (path, is_folder, keeps) in [
            ("README", false, Some(true)),
            ("src", true, Some(false)),
            ("src/main.rs", false, None),
            ("docs", true, Some(true)),
            ("docs/a.md", false, None),
            ("docs/a.png", false, Some(false)),
        ] {
            assert_eq!(sparse.keeps(path.as_bytes(), is_folder), keeps, "{path}");
        }
    }
}
