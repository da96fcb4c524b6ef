//! Where the parts of a repository are: a folder becomes its git folder, common folder and object folder.
//!
//! Opens no object and no ref. Source: gitrepository-layout(5), "commondir", "gitfile".
//! Read first: `bare_ordinary_and_linked_worktrees_are_found`.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
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
    /// Files that say where the folders are: a `.git` file, and `commondir`.
    pub said_by: Vec<PathBuf>,
}

impl Layout {
    /// The repository whose git folder is at `path`, or whose git file is.
    ///
    /// # Errors
    /// The machine is in trouble ([`is_trouble`]), so that nobody can say whether there is one.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let mut said_by = Vec::new();
        let git_dir = if path.is_file() {
            said_by.push(path.to_owned());
            let Some(target) = gitfile(path)? else { return Ok(None) };
            target
        } else {
            path.to_owned()
        };
        let commondir = git_dir.join("commondir");
        let common_dir = match lenient(read_small(&commondir))? {
            Some(text) => {
                said_by.push(commondir);
                git_dir.join(path_of(text.trim_ascii()))
            }
            None => git_dir.clone(),
        };
        let objects_dir = common_dir.join("objects");
        let is_repository = objects_dir.is_dir() && common_dir.join("refs").is_dir() && has_head(&git_dir)?;
        Ok(is_repository.then_some(Self { git_dir, common_dir, objects_dir, said_by }))
    }

    /// Whether this is a linked worktree of another repository.
    pub fn is_linked(&self) -> bool {
        self.git_dir != self.common_dir
    }
}

/// Where a `.git` file points.
fn gitfile(path: &Path) -> io::Result<Option<PathBuf>> {
    let text = lenient(read_small(path))?.unwrap_or_default();
    let target = text.strip_prefix(b"gitdir:").map(<[u8]>::trim_ascii);
    Ok(target.and_then(|target| Some(path.parent()?.join(path_of(target)))))
}

fn has_head(git_dir: &Path) -> io::Result<bool> {
    let path = git_dir.join("HEAD");
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
        return Ok(fs::read_link(&path).is_ok_and(|target| target.starts_with("refs")));
    }
    let text = lenient(read_small(&path))?.unwrap_or_default();
    let text = text.trim_ascii();
    Ok(text.strip_prefix(b"ref:").is_some_and(|target| target.trim_ascii().starts_with(b"refs/"))
        || (matches!(text.len(), 40 | 64) && text.iter().all(u8::is_ascii_hexdigit)))
}

/// A path from the bytes of a file.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// The content of a file that should be small; `None` when there is no such file.
///
/// # Errors
/// It is there and cannot be read, is no plain file, or is larger than [`limits::SMALL_FILE_MAX`].
pub fn read_small(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if is_absence(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() > limits::SMALL_FILE_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut content = Vec::new();
    file.take(limits::SMALL_FILE_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limits::SMALL_FILE_MAX {
        Err(io::ErrorKind::FileTooLarge.into())
    } else {
        Ok(Some(content))
    }
}

/// Opens a plain file. A pipe or device that somebody put in its place is refused, and never waited for.
///
/// # Errors
/// What `open(2)` reports, and `InvalidInput` for what is no plain file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Whether an error means that nothing is at a path.
pub fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether an error is about the machine and says nothing of the file: descriptors, memory or the disk failed. Whoever took
/// that for absence would serve a repository without some of its refs, and mirrors would delete them.
pub fn is_trouble(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO))
}

/// Takes a file that cannot be read for an absent one, as stock git does, unless the machine is in trouble.
///
/// # Errors
/// The machine is in trouble.
pub fn lenient(read: io::Result<Option<Vec<u8>>>) -> io::Result<Option<Vec<u8>>> {
    read.or_else(|error| if is_trouble(&error) { Err(error) } else { Ok(None) })
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
        let of = |name: &str| Layout::of(&root.join(name)).unwrap();
        assert!(!of("bare").unwrap().is_linked());
        assert_eq!(of("plain"), None);
        assert!(!of("plain/.git").unwrap().is_linked());
        let linked = of("linked/.git").unwrap();
        assert!(linked.is_linked());
        assert_eq!(linked.said_by, [root.join("linked/.git"), linked.git_dir.join("commondir")]);
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
            assert_eq!(Layout::of(&root.join("x")).unwrap(), None, "{head:?}");
        }
        fs::write(root.join("x/HEAD"), "ref: refs/heads/y\n").unwrap();
        assert!(Layout::of(&root.join("x")).unwrap().is_some());
    }

    #[test]
    fn a_pipe_is_refused_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(read_small(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(lenient(read_small(&path)).unwrap(), None);
        assert_eq!(read_small(&folder.path().join("none")).unwrap(), None);
        assert_eq!(read_small(&folder.path().join("none/below")).unwrap(), None);
    }

    #[test]
    fn exhausted_descriptors_are_no_absence() {
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO] {
            assert!(lenient(Err(io::Error::from_raw_os_error(number))).is_err());
        }
        assert_eq!(lenient(Err(io::Error::from_raw_os_error(libc::EACCES))).unwrap(), None);
    }
}
