//! Where the parts of a repository are: a folder becomes its git folder, common folder and object folder.
//!
//! Opens no object and no ref. Source: gitrepository-layout(5), "commondir", "gitfile".
//! Read first: `bare_ordinary_and_linked_worktrees_are_found`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::limits;

/// The folders of one repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// HEAD and what belongs to one worktree.
    pub git_dir: PathBuf,
    /// Refs, configuration and objects; the git folder itself, unless the repository is a linked worktree.
    pub common_dir: PathBuf,
    /// Loose objects and `pack/`.
    pub objects_dir: PathBuf,
}

impl Layout {
    /// The repository whose git folder is at `path`, or whose git file is.
    pub fn of(path: &Path) -> Option<Self> {
        let git_dir = if path.is_file() { gitfile(path)? } else { path.to_owned() };
        let common_dir = match read_small(&git_dir.join("commondir")) {
            Some(text) => git_dir.join(path_of(text.trim_ascii())),
            None => git_dir.clone(),
        };
        let objects_dir = common_dir.join("objects");
        let is_repository = objects_dir.is_dir() && common_dir.join("refs").is_dir() && has_head(&git_dir);
        is_repository.then_some(Self { git_dir, common_dir, objects_dir })
    }

    /// Whether this is a linked worktree of another repository.
    pub fn is_linked(&self) -> bool {
        self.git_dir != self.common_dir
    }
}

/// Where a `.git` file points.
fn gitfile(path: &Path) -> Option<PathBuf> {
    let text = read_small(path)?;
    let target = text.strip_prefix(b"gitdir:")?.trim_ascii();
    Some(path.parent()?.join(path_of(target)))
}

fn has_head(git_dir: &Path) -> bool {
    let path = git_dir.join("HEAD");
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
        return fs::read_link(&path).is_ok_and(|target| target.starts_with("refs"));
    }
    read_small(&path).is_some_and(|text| {
        let text = text.trim_ascii();
        text.strip_prefix(b"ref:").is_some_and(|target| target.trim_ascii().starts_with(b"refs/"))
            || (matches!(text.len(), 40 | 64) && text.iter().all(u8::is_ascii_hexdigit))
    })
}

/// A path from the bytes of a file.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// The content of a file that should be small; `None` when it is not there, or not small.
pub fn read_small(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut content = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(limits::SMALL_FILE_MAX + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 <= limits::SMALL_FILE_MAX).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::git;

    #[test]
    fn bare_ordinary_and_linked_worktrees_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "bare"]);
        git(root, &["init", "-q", "plain"]);
        git(&root.join("plain"), &["commit", "-q", "--allow-empty", "-m", "x"]);
        git(&root.join("plain"), &["worktree", "add", "-q", "../linked"]);
        assert!(!Layout::of(&root.join("bare")).unwrap().is_linked());
        assert_eq!(Layout::of(&root.join("plain")), None);
        assert!(!Layout::of(&root.join("plain/.git")).unwrap().is_linked());
        let linked = Layout::of(&root.join("linked/.git")).unwrap();
        assert!(linked.is_linked());
        let objects = root.join("plain/.git/objects");
        assert_eq!(linked.objects_dir.canonicalize().unwrap(), objects.canonicalize().unwrap());
    }

    #[test]
    fn a_folder_without_a_sound_head_is_no_repository() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "x"]);
        for head in ["", "ref: elsewhere", "123", "ref:"] {
            fs::write(root.join("x/HEAD"), head).unwrap();
            assert_eq!(Layout::of(&root.join("x")), None, "{head:?}");
        }
        fs::write(root.join("x/HEAD"), "ref: refs/heads/y\n").unwrap();
        assert!(Layout::of(&root.join("x")).is_some());
    }
}
