//! Histories like real ones, the same at every run: text files in nested folders, edited, renamed, merged and tagged.
//!
//! Written by `git fast-import`, so that a large one takes a second. Everything comes from a seed; no clock is read.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use super::{git, git_with};

/// How large a history is to be.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub commits: usize,
    pub files: usize,
    /// Lines of each file when it is new.
    pub lines: usize,
    /// Refs beside main, side and tags.
    pub refs: usize,
}

/// About 70 objects.
pub const SMALL: Size = Size { commits: 12, files: 8, lines: 20, refs: 0 };
/// About 12 000 objects.
pub const MEDIUM: Size = Size { commits: 1_600, files: 300, lines: 40, refs: 20 };
/// About 29 000 objects.
pub const LARGE: Size = Size { commits: 4_000, files: 700, lines: 40, refs: 50 };
/// A small history with 50 000 refs.
pub const MANY_REFS: Size = Size { commits: 300, files: 40, lines: 20, refs: 50_000 };

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end.max(1) as u64) as usize
    }
}

const WORDS: [&str; 16] = [
    "ring", "frame", "window", "pack", "delta", "base", "entry", "want", "have", "tip", "plan", "extent", "commit",
    "tree", "blob", "tag",
];

fn line(dice: &mut Dice) -> String {
    let words: Vec<&str> = (0..3 + dice.below(6)).map(|_| WORDS[dice.below(WORDS.len())]).collect();
    format!("{} {}", words.join(" "), dice.below(100_000))
}

fn path(number: usize) -> String {
    let word = |at: usize| WORDS[(number / 7 + at * 5) % WORDS.len()];
    match number % 4 {
        0 => format!("file-{number}.txt"),
        1 => format!("{}/file-{number}.rs", word(0)),
        2 => format!("{}/{}/file-{number}.rs", word(0), word(1)),
        _ => format!("{}/{}/{}/file-{number}.md", word(0), word(1), word(2)),
    }
}

/// Makes a bare repository at `folder/name`, packed as `git repack` packs it.
pub fn make(folder: &Path, name: &str, size: Size) -> std::path::PathBuf {
    git(folder, &["init", "-q", "--bare", name]);
    let repository = folder.join(name);
    let stream = history(size, 0x9e37_79b9_7f4a_7c15);
    let imported = git_with(&repository, &["fast-import", "--quiet", "--date-format=raw"], &stream);
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    git(&repository, &["-c", "repack.writeBitmaps=false", "repack", "-adq", "--threads=1"]);
    git(&repository, &["pack-refs", "--all"]);
    add_refs(&repository, size.refs);
    repository
}

/// Adds refs like those of pull requests, straight into the packed ones: one file each would take a while.
fn add_refs(repository: &Path, count: usize) {
    let commits = git(repository, &["rev-list", "--reverse", "main"]);
    let commits: Vec<&str> = commits.lines().collect();
    let path = repository.join("packed-refs");
    let packed = std::fs::read_to_string(&path).unwrap();
    let (header, known) = packed.split_once('\n').unwrap();
    // A line that starts with ^ belongs to the one before it.
    let mut refs: Vec<String> = known.replace("\n^", "\0^").lines().map(str::to_owned).collect();
    refs.extend((0..count).map(|number| format!("{} refs/pull/{number}/head", commits[number % commits.len()])));
    refs.sort_by(|a, b| a.split(' ').nth(1).cmp(&b.split(' ').nth(1)));
    std::fs::write(&path, format!("{header}\n{}\n", refs.join("\n").replace('\0', "\n"))).unwrap();
}

/// The stream for `git fast-import`.
fn history(size: Size, seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut out = String::new();
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut newest = 0;
    for number in 1..=size.commits {
        let branch = if number % 11 == 7 { "refs/heads/side" } else { "refs/heads/main" };
        let message = format!("change {number}\n");
        let _ = writeln!(
            out,
            "commit {branch}\nmark :{number}\ncommitter C <c@example.com> {} +0000",
            1_600_000_000 + number * 60
        );
        let _ = write!(out, "data {}\n{message}", message.len());
        if branch == "refs/heads/side" {
            let _ = writeln!(out, "from :{newest}");
        } else {
            if newest > 0 {
                let _ = writeln!(out, "from :{newest}");
            }
            if number % 11 == 8 {
                let _ = writeln!(out, "merge :{}", number - 1);
            }
            newest = number;
        }
        change(&mut dice, &mut files, size, number, branch == "refs/heads/main", &mut out);
        if number % 50 == 0 || number == 5 {
            let (tag, note) = (format!("v{number}"), format!("release {number}\n"));
            let _ = write!(
                out,
                "tag {tag}\nfrom :{number}\ntagger T <t@example.com> 1600000000 +0000\ndata {}\n{note}",
                note.len()
            );
        }
    }
    let _ = writeln!(out, "reset refs/tags/light\nfrom :{}", size.commits.min(3));
    out.push_str("done\n");
    out.into_bytes()
}

fn change(
    dice: &mut Dice,
    files: &mut BTreeMap<String, Vec<String>>,
    size: Size,
    number: usize,
    on_main: bool,
    out: &mut String,
) {
    if number == 1 {
        for file in 0..size.files {
            files.insert(path(file), (0..size.lines).map(|_| line(dice)).collect());
        }
        for (name, content) in files.iter() {
            write_file(out, name, content);
        }
        return;
    }
    let names: Vec<String> = files.keys().cloned().collect();
    for _ in 0..=dice.below(3) {
        let name = &names[dice.below(names.len())];
        let Some(content) = files.get(name) else { continue };
        let mut content = content.clone();
        let at = dice.below(content.len());
        content.insert(at, line(dice));
        if content.len() > 4 && dice.below(3) == 0 {
            content.remove(dice.below(content.len()));
        }
        write_file(out, name, &content);
        if on_main {
            files.insert(name.clone(), content);
        }
    }
    if on_main && number.is_multiple_of(40) {
        let name = &names[dice.below(names.len())];
        if let Some(content) = files.remove(name) {
            let renamed = format!("moved-{number}/{name}");
            let _ = writeln!(out, "R \"{name}\" \"{renamed}\"");
            files.insert(renamed, content);
        }
    }
}

fn write_file(out: &mut String, name: &str, content: &[String]) {
    let text = content.join("\n") + "\n";
    let _ = write!(out, "M 100644 inline \"{name}\"\ndata {}\n{text}", text.len());
}
