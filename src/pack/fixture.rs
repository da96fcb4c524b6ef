//! Repositories for the tests of this room: made by git, mapped by us, judged by git.
//!
//! Histories are generated from a seed, so that a failure can be replayed: branches, merges, edits that make good deltas,
//! tags, tags of tags. Loose objects are answered by `git cat-file`.

use std::{
    fmt::Write as _,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use super::{Ask, Fault, Loose, Mapping, Objects, Pace, Pack, Store, entry::ObjectType};
use crate::oid::{Kind, ObjectId, from_hex};

/// A bare repository in a folder of its own.
pub struct Repository {
    folder: tempfile::TempDir,
    pub kind: Kind,
}

/// Numbers from a seed (xorshift).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % bound.max(1)
    }
}

impl Repository {
    pub fn empty(kind: Kind) -> Self {
        let repository = Self { folder: tempfile::tempdir().unwrap(), kind };
        let format = if kind == Kind::Sha256 { "sha256" } else { "sha1" };
        repository.git(&["init", "-q", "--bare", &format!("--object-format={format}")]);
        repository
    }

    /// `commits` commits of the history that belongs to `seed`, in one pack with a bitmap.
    pub fn packed(seed: u64, commits: usize) -> Self {
        let repository = Self::empty(Kind::Sha1);
        repository.grow(seed, commits);
        repository.git(&["repack", "-adbfq", "--window=20"]);
        repository
    }

    /// Adds `commits` commits of a generated history; git leaves fewer than 100 objects loose.
    pub fn grow(&self, seed: u64, commits: usize) {
        self.git_fed(&["fast-import", "--quiet", "--force"], &history(seed, commits));
    }

    /// Adds `commits` commits on top of the refs of `seed`, and a tag `t<seed>-more` of the first of them.
    pub fn go_on(&self, seed: u64, commits: usize) {
        let mut dice = Dice::new(seed ^ 0xabcd);
        let mut tips = self.git(&["for-each-ref", "--format=%(objectname)", "refs/heads"]);
        tips.push('\n');
        let tips: Vec<&str> = tips.lines().collect();
        let mut stream = String::new();
        for commit in 1..=commits {
            let time = 1_650_000_000 + commit * 100;
            let branch = commit % 3;
            writeln!(stream, "commit refs/heads/on{seed}-{branch}\nmark :{commit}").unwrap();
            writeln!(stream, "committer N <n@x> {time} +0000\ndata <<E\non {commit} of {seed}\nE").unwrap();
            if commit <= 3 {
                writeln!(stream, "from {}", tips[dice.below(tips.len())]).unwrap();
            }
            writeln!(stream, "M 100644 inline d1/e{}/n{}\ndata <<E", dice.below(5), dice.below(9)).unwrap();
            writeln!(stream, "value {} of {seed}\nE", dice.below(50)).unwrap();
            if commit == 1 {
                writeln!(stream, "tag t{seed}-more\nfrom :1\ntagger N <n@x> {time} +0000\ndata 2\nt").unwrap();
            }
        }
        self.git_fed(&["fast-import", "--quiet", "--force"], stream.as_bytes());
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What git says, without the newline at the end. Panics when git fails.
    pub fn git(&self, arguments: &[&str]) -> String {
        self.git_fed(arguments, b"")
    }

    pub fn git_fed(&self, arguments: &[&str], input: &[u8]) -> String {
        String::from_utf8(self.git_bytes(arguments, input)).unwrap().trim_end().to_owned()
    }

    pub fn git_bytes(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("git")
            .args(arguments)
            .current_dir(self.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_COMMITTER_NAME", "C")
            .env("GIT_COMMITTER_EMAIL", "c@x")
            .env("GIT_COMMITTER_DATE", "1700000000 +0000")
            .env("GIT_AUTHOR_NAME", "A")
            .env("GIT_AUTHOR_EMAIL", "a@x")
            .env("GIT_AUTHOR_DATE", "1700000000 +0000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        assert!(output.status.success(), "git {arguments:?}");
        output.stdout
    }

    pub fn ids(&self, arguments: &[&str]) -> Vec<ObjectId> {
        self.parse_ids(&self.git(arguments))
    }

    /// The id at the start of each line.
    pub fn parse_ids(&self, lines: &str) -> Vec<ObjectId> {
        let hex = self.kind.len_in_hex();
        lines.lines().map(|line| from_hex(self.kind, &line.as_bytes()[..hex]).unwrap()).collect()
    }

    /// Paths of all files of `objects/pack` with that ending, sorted.
    pub fn pack_files(&self, ending: &str) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(self.path().join("objects/pack")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == ending));
        paths.sort();
        paths
    }

    pub fn pack_of(&self, path: &Path) -> Pack {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let data = map(&path.with_extension("pack"));
        Pack::open(name, self.kind, data, map(&path.with_extension("idx"))).unwrap()
    }

    /// All packs.
    pub fn store(&self) -> Arc<Store> {
        let packs = self.pack_files("pack").iter().map(|path| Arc::new(self.pack_of(path))).collect();
        Arc::new(Store::new(self.kind, packs).unwrap())
    }

    pub fn objects(&self) -> Objects {
        Objects::new(self.store(), &[], Pace::default())
    }

    /// Runs `work` to its end, with git answering for loose objects.
    pub fn run<T>(&self, pace: &Pace, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        pace.run(work, |ask| self.loose(ask))
    }

    /// The positions of `ids`, which must be there.
    pub fn locate(&self, objects: &mut Objects, ids: &[ObjectId]) -> Vec<u32> {
        let pace = objects.pace().clone();
        ids.iter().map(|id| self.run(&pace, objects.demand(id)).unwrap()).collect()
    }

    pub fn loose(&self, ask: Ask) -> Loose {
        let (Ask::Look(id) | Ask::Read(id)) = ask;
        let answer = self.git_bytes(&["cat-file", "--batch"], format!("{id}\n").as_bytes());
        let line = answer.split(|byte| *byte == b'\n').next().unwrap();
        let line = std::str::from_utf8(line).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let [_, object, size] = words[..] else { return Loose::Absent };
        let object = [ObjectType::Commit, ObjectType::Tree, ObjectType::Blob, ObjectType::Tag]
            .into_iter()
            .find(|object_type| object_type.name() == object)
            .unwrap();
        let size: u64 = size.parse().unwrap();
        match ask {
            Ask::Look(_) => Loose::Seen { object, size },
            Ask::Read(_) => {
                let start = line.len() + 1;
                Loose::Whole { object, bytes: answer[start..start + size as usize].to_vec() }
            }
        }
    }
}

pub fn map(path: &Path) -> Mapping {
    Mapping::of(&File::open(path).unwrap()).unwrap()
}

/// A mapping of bytes that never were in a repository.
pub fn map_bytes(bytes: &[u8]) -> Mapping {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Mapping::of(&file).unwrap()
}

/// A stream for `git fast-import`.
fn history(seed: u64, commits: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut stream = String::new();
    let files = 3 + commits / 4;
    let mut lines: Vec<Vec<usize>> = (0..files).map(|file| (0..30).map(|line| line * 7 + file).collect()).collect();
    let branches = 2 + commits / 8;
    let mut tips: Vec<Option<usize>> = vec![None; branches];
    for commit in 1..=commits {
        let branch = dice.below(branches);
        writeln!(stream, "commit refs/heads/b{seed}-{branch}\nmark :{commit}").unwrap();
        // Now and then the clock runs backwards.
        let time = 1_600_000_000 + commit * 100 - if dice.below(9) == 0 { 950 } else { 0 };
        writeln!(stream, "committer N <n@x> {time} +0000\ndata <<E\nno {commit} of {seed}\nE").unwrap();
        let other = tips[dice.below(branches)];
        match (tips[branch], other) {
            (Some(tip), _) => writeln!(stream, "from :{tip}").unwrap(),
            (None, Some(other)) => writeln!(stream, "from :{other}").unwrap(),
            (None, None) => {}
        }
        if let (Some(tip), Some(other)) = (tips[branch], other)
            && tip != other
            && dice.below(3) == 0
        {
            writeln!(stream, "merge :{other}").unwrap();
        }
        for _ in 0..=dice.below(3) {
            let file = dice.below(files);
            let at = dice.below(30);
            lines[file][at] = dice.below(1000);
            writeln!(stream, "M 100644 inline d{}/e{}/f{file}\ndata <<E", file % 3, file % 5).unwrap();
            for (number, value) in lines[file].iter().enumerate() {
                writeln!(stream, "line {number} of the file holds the value {value}").unwrap();
            }
            stream.push_str("E\n");
        }
        tips[branch] = Some(commit);
        if dice.below(6) == 0 {
            writeln!(stream, "tag t{seed}-{commit}\nfrom :{commit}\ntagger N <n@x> {time} +0000\ndata 2\nt").unwrap();
        }
    }
    stream.into_bytes()
}
