//! Alternates: an object folder becomes the list of all object folders that answer for it.
//!
//! Source: gitrepository-layout(5), "objects/info/alternates". Read first: `alternates_are_followed_in_order_and_once`.

use std::path::{Path, PathBuf};

use super::{
    layout::{path_of, read_small},
    stamp::Stamps,
};
use crate::limits;

/// `objects` and all its alternates, nested ones too, each once; its own first. Each file that is read is stamped.
pub fn object_folders(objects: &Path, stamps: &mut Stamps) -> Vec<PathBuf> {
    let mut folders = vec![objects.to_owned()];
    let mut seen = vec![objects.canonicalize().unwrap_or_else(|_| objects.to_owned())];
    let mut queue = vec![(objects.to_owned(), 0)];
    while let Some((folder, depth)) = queue.pop() {
        let path = folder.join("info/alternates");
        stamps.watch(&path);
        let Some(text) = read_small(&path) else { continue };
        if depth >= limits::ALTERNATE_DEPTH_MAX {
            tracing::warn!(folder = %folder.display(), "alternates nest too deep; the rest is ignored");
            continue;
        }
        for line in text.split(|byte| *byte == b'\n') {
            let Some(named) = named_folder(line) else { continue };
            let named = folder.join(named);
            let Ok(real) = named.canonicalize() else {
                tracing::warn!(folder = %named.display(), "an alternate is not there; its objects will be missed");
                continue;
            };
            if !seen.contains(&real) {
                seen.push(real);
                folders.push(named.clone());
                queue.push((named, depth + 1));
            }
        }
    }
    folders
}

/// The folder one line names; none for comments and empty lines.
fn named_folder(line: &[u8]) -> Option<PathBuf> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() || line.starts_with(b"#") {
        return None;
    }
    match line.strip_prefix(b"\"") {
        Some(quoted) => Some(path_of(&unquoted(quoted)?)),
        None => Some(path_of(line)),
    }
}

/// Undoes C-style quoting up to the closing quote.
fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    loop {
        match bytes.next()? {
            b'"' => return Some(out),
            b'\\' => out.push(match bytes.next()? {
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
                other => other,
            }),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let found = object_folders(&root.join("a"), &mut stamps);
        let names: Vec<_> = found.iter().map(|path| path.canonicalize().unwrap()).collect();
        let real = root.canonicalize().unwrap();
        assert_eq!(names, [real.join("a"), real.join("b"), real.join("e"), real.join("c d")]);
    }

    #[test]
    fn nesting_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..20 {
            let info = folder.path().join(number.to_string()).join("info");
            fs::create_dir_all(&info).unwrap();
            fs::write(info.join("alternates"), format!("../{}\n", number + 1)).unwrap();
        }
        let found = object_folders(&folder.path().join("0"), &mut Stamps::default());
        assert_eq!(found.len(), limits::ALTERNATE_DEPTH_MAX + 1);
    }
}
