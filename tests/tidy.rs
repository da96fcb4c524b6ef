//! The rules of the house that a machine can hold: arrows between rooms, headers, where `unsafe` may stand, short functions.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut queue = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = queue.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                queue.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 50, "{} files", found.len());
    found
}

/// The room a file belongs to: its folder below `src`, or its own name.
fn room(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Code without its tests and comments.
fn code(text: &str) -> String {
    let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let own = own.split("#[cfg(test)]\npub(crate) mod tests {").next().unwrap();
    own.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn arrows_between_rooms_go_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = [
        ("access", &[][..]),
        ("accounts", &["access", "flags"]),
        ("http", &[]),
        ("proto", &[]),
        ("pack", &[]),
        ("ring", &[]),
        ("repo", &["pack", "stamp"]),
        ("conn", &["access", "http", "proto", "pack", "repo"]),
        ("serve", &["conn", "ring", "repo", "pack", "tls"]),
        ("explain", &["pack", "repo"]),
        ("tls", &["stamp"]),
        ("oid", &[]),
        ("limits", &[]),
        ("stamp", &[]),
        ("log", &[]),
        ("budget", &[]),
        ("doors", &["flags", "ring"]),
        ("flags", &["access", "budget", "log", "repo", "ring"]),
        ("lib", &[]),
    ]
    .into();
    let rooms: Vec<&str> = allowed.keys().copied().filter(|room| !["oid", "limits", "lib"].contains(room)).collect();
    for (path, text) in sources() {
        let own = room(&path);
        if own == "main" || path.ends_with("conn/tests.rs") {
            continue;
        }
        let may = allowed.get(own.as_str()).unwrap_or_else(|| panic!("{} belongs to no room", path.display()));
        let flat = code(&text).replace(['\n', ' '], "");
        for other in rooms.iter().filter(|other| **other != own && !may.contains(other)) {
            let uses = flat.contains(&format!("crate::{other}"))
                || flat.split("usecrate::{").skip(1).any(|list| {
                    let list = list.split("};").next().unwrap_or_default();
                    list.starts_with(&format!("{other}::"))
                        || list.contains(&format!(",{other}::"))
                        || list.contains(&format!(",{other},"))
                        || list.starts_with(&format!("{other},"))
                });
            assert!(!uses, "{} uses `{other}`", path.display());
        }
    }
}

#[test]
fn pure_rooms_use_no_file_socket_clock_or_thread() {
    for (path, text) in
        sources().into_iter().filter(|(path, _)| ["http", "proto", "conn", "pack"].contains(&room(path).as_str()))
    {
        if path.ends_with("conn/tests.rs") || path.ends_with("pack/tests.rs") || path.ends_with("pack/fixture.rs") {
            continue;
        }
        let code = code(&text);
        for word in ["std::fs", "std::net", "Instant::now", "SystemTime", "std::thread", "tokio", "io_uring"] {
            let is_mapping = path.ends_with("pack/map.rs") && word == "std::fs";
            assert!(is_mapping || !code.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn unsafe_stands_only_where_memory_is_lent_and_says_why() {
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if !line.contains("unsafe {") || line.trim_start().starts_with("//") {
                continue;
            }
            let allowed = room(&path) == "ring" || path.ends_with("pack/map.rs");
            assert!(allowed, "{}:{} is no place for unsafe", path.display(), number + 1);
            let before = &lines[number.saturating_sub(12)..=number];
            assert!(
                before.iter().any(|line| line.contains("SAFETY:")),
                "{}:{} has no SAFETY note",
                path.display(),
                number + 1
            );
        }
    }
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    for (path, text) in sources() {
        assert!(text.starts_with("//! "), "{} has no header", path.display());
        let header = text.lines().take_while(|line| line.starts_with("//!"));
        let prose = header.take_while(|line| !line.contains("```")).count();
        assert!(prose <= 16, "the header of {} has {prose} lines", path.display());
    }
}

#[test]
fn functions_fit_on_a_screen() {
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        let mut start = None;
        for (number, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let words = line.trim_start();
            let opens = [
                "fn ",
                "pub fn ",
                "async fn ",
                "pub async fn ",
                "pub(super) fn ",
                "pub(super) async fn ",
                "pub(crate) fn ",
            ];
            if opens.iter().any(|open| words.starts_with(open)) {
                start = Some((number, indent));
            }
            if let Some((first, own)) = start.filter(|(_, own)| *line == format!("{}}}", " ".repeat(*own))) {
                let size = number - first + 1;
                assert!(size <= 70, "{}:{} is a function of {size} lines", path.display(), first + 1);
                let _ = own;
                start = None;
            }
        }
    }
}
