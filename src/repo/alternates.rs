//! Alternates: an object folder becomes the list of all object folders that answer for it.
//!
//! Source: gitrepository-layout(5), "objects/info/alternates". Read first: `alternates_are_followed_in_order_and_once`.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::layout::{path_of, read_small};
use crate::{limits, stamp::Stamps};

/// `objects` and all its alternates, nested ones too, each once; its own first. Each file that is read is stamped, and so is
/// each folder that is not there yet.
///
/// # Errors
/// A file is there and cannot be read: the objects behind it would be missing.
pub fn object_folders(objects: &Path, stamps: &mut Stamps) -> io::Result<Vec<PathBuf>> {
    let mut folders = vec![objects.to_owned()];
    let mut seen = vec![objects.canonicalize().unwrap_or_else(|_| objects.to_owned())];
    let mut queue = vec![(objects.to_owned(), 0)];
    while let Some((folder, depth)) = queue.pop() {
        let path = folder.join("info/alternates");
        stamps.watch(&path);
        let Some(text) = read_small(&path)? else { continue };
        // Stock git counts from the first borrowed folder.
        if depth > limits::ALTERNATE_DEPTH_MAX {
            tracing::warn!(folder = %folder.display(), "alternates nest too deep; the rest is ignored");
            continue;
        }
        for line in text.split(|byte| *byte == b'\n') {
            let Some(named) = named_folder(line) else { continue };
            let named = folder.join(named);
            let Ok(real) = named.canonicalize() else {
                stamps.watch(&named);
                tracing::warn!(folder = %named.display(), "an alternate is not there; its objects will be missed");
                continue;
            };
            if seen.len() >= limits::OBJECT_FOLDERS_MAX {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
            if !seen.contains(&real) {
                seen.push(real);
                folders.push(named.clone());
                queue.push((named, depth + 1));
            }
        }
    }
    Ok(folders)
}

/// The folder one line names; none for comments and empty lines.
fn named_folder(line: &[u8]) -> Option<PathBuf> {
    if line.is_empty() || line.starts_with(b"#") {
        return None;
    }
    // What opens with a quote and is not quoted soundly is taken as it stands, as stock git takes it.
    let unquoted = line.strip_prefix(b"\"").and_then(unquoted);
    Some(unquoted.map_or_else(|| path_of(line), |folder| path_of(&folder)))
}

/// Undoes C-style quoting up to the closing quote.
fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    loop {
        match bytes.next()? {
            b'"' => return Some(out),
            b'\\' => out.push(match bytes.next()? {
                b'a' => 0x07,
                b'b' => 0x08,
                b'f' => 0x0c,
                b'v' => 0x0b,
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                digit @ b'0'..=b'3' => {
                    let mut value = digit - b'0';
                    for _ in 0..2 {
                        let digit = bytes.next().filter(|digit| (b'0'..=b'7').contains(digit))?;
                        value = value << 3 | (digit - b'0');
                    }
                    value
                }
                other @ (b'"' | b'\\') => other,
                _ => return None,
            }),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::catalogue::tests::{commit, git};
    use std::fs;

    #[test]
    fn alternates_are_followed_in_order_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["a", "b", "c d", "e"] {
            fs::create_dir_all(root.join(name).join("info")).unwrap();
        }
        let absolute = root.join("e");
        fs::write(root.join("a/info/alternates"), format!("# pool\n\n../b\n{}\n../gone\n", absolute.display()))
            .unwrap();
        fs::write(root.join("b/info/alternates"), "\"../c\\040d\"\n../a\n").unwrap();
        let mut stamps = Stamps::default();
        let found = object_folders(&root.join("a"), &mut stamps).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.canonicalize().unwrap()).collect();
        let real = root.canonicalize().unwrap();
        assert_eq!(names, [real.join("a"), real.join("b"), real.join("e"), real.join("c d")]);
    }

    #[test]
    fn nesting_ends_where_it_ends_for_git() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let name = |number: usize| root.join(number.to_string());
        let mut ids = Vec::new();
        for number in 0..9 {
            git(root, &["init", "-q", "--bare", &number.to_string()]);
            ids.push(commit(&name(number), &number.to_string()));
            fs::write(name(number).join("objects/info/alternates"), format!("../../{}/objects\n", number + 1)).unwrap();
        }
        let found = object_folders(&name(0).join("objects"), &mut Stamps::default()).unwrap();
        for (number, id) in ids.iter().enumerate() {
            let mut stock = std::process::Command::new("git");
            stock.args(["cat-file", "-e", id]).current_dir(name(0)).stderr(std::process::Stdio::null());
            assert_eq!(stock.status().unwrap().success(), number < found.len(), "{number} of {}", found.len());
        }
    }

    #[test]
    fn quotes_are_those_of_git() {
        for (line, folder) in [
            (&b"\"a\\040\\tb\\\"\\\\\""[..], &b"a \tb\"\\"[..]),
            (b"\"open", b"\"open"),
            (b"\"a\\qb\"", b"\"a\\qb\""),
            (b"plain # text", b"plain # text"),
            (b"\xff", b"\xff"),
        ] {
            assert_eq!(named_folder(line), Some(path_of(folder)), "{line:?}");
        }
        assert_eq!((named_folder(b""), named_folder(b"# a")), (None, None));
    }

    #[test]
    fn a_folder_that_appears_later_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let info = folder.path().join("a/info");
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("alternates"), "../b\n").unwrap();
        let mut stamps = Stamps::default();
        assert_eq!(object_folders(&folder.path().join("a"), &mut stamps).unwrap().len(), 1);
        fs::create_dir(folder.path().join("b")).unwrap();
        assert!(!stamps.unchanged());
    }
}
