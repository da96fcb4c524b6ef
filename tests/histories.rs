//! Random histories: a random graph, a client with a random boundary and filter, random new commits, then a fetch. The client
//! is sound, and equals one that did the same over a file path. Seeds that failed are kept in `SEEDS`.

mod support;

use std::{fmt::Write as _, path::Path};

use support::{Server, git, git_with, objects, refs, try_git};

/// Seeds that are always tried; one that ever failed stays here.
const SEEDS: &[u64] = &[1, 2, 3, 5, 8, 13, 21, 34];

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// Adds commits `from..to`: each on one of three branches, with one or two parents among all before it.
fn grow(repository: &Path, dice: &mut Dice, from: u64, to: u64) {
    let mut text = String::new();
    for number in from..to {
        let branch = dice.below(3);
        // Clocks are wrong now and then.
        let time = 1_600_000_000 + number * 100 - dice.below(5) / 4 * 5_000;
        let _ =
            writeln!(text, "commit refs/heads/b{branch}\nmark :{number}\ncommitter C <c@x> {time} +0000\ndata 2\nm");
        if number > 1 {
            let parent = number - 1 - dice.below(number.min(6) - 1);
            let _ = writeln!(text, "from {}", mark(parent, from));
            let other = 1 + dice.below(number - 1);
            if dice.below(4) == 0 && other != parent {
                let _ = writeln!(text, "merge {}", mark(other, from));
            }
        }
        let content = "line\n".repeat(dice.below(40) as usize) + &number.to_string();
        let _ =
            writeln!(text, "M 100644 inline d{}/f{}\ndata {}\n{content}", dice.below(3), dice.below(5), content.len());
        if dice.below(5) == 0 {
            let _ = writeln!(text, "tag t{number}\nfrom :{number}\ntagger T <t@x> 1600000000 +0000\ndata 2\nt");
        }
        let _ = writeln!(text, "reset refs/marks/{number}\nfrom :{number}\n");
    }
    let done = git_with(repository, &["fast-import", "--quiet", "--force"], text.as_bytes());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A commit by its number: by mark in this stream, by ref when it is older.
fn mark(number: u64, from: u64) -> String {
    if number >= from { format!(":{number}") } else { format!("refs/marks/{number}^0") }
}

fn shallow_of(clone: &Path) -> String {
    let mut lines: Vec<String> =
        std::fs::read_to_string(clone.join("shallow")).unwrap_or_default().lines().map(str::to_owned).collect();
    lines.sort();
    lines.join(" ")
}

fn try_seed(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    git(root, &["init", "-q", "--bare", "a.git"]);
    let repository = root.join("a.git");
    git(&repository, &["config", "uploadpack.allowFilter", "true"]);
    git(&repository, &["config", "uploadpack.hideRefs", "refs/marks"]);
    git(&repository, &["config", "repack.writeBitmaps", if dice.below(2) == 0 { "true" } else { "false" }]);
    let size = 4 + dice.below(20);
    grow(&repository, &mut dice, 1, size);
    git(&repository, &["symbolic-ref", "HEAD", "refs/heads/b0"]);
    if dice.below(3) > 0 {
        git(&repository, &["repack", "-adq"]);
    }
    let server = Server::start_with(root, &["--defaults", "git"]);
    let version = format!("protocol.version={}", if dice.below(2) == 0 { 2 } else { 0 });
    let depth = format!("--depth={}", 1 + dice.below(5));
    let filters = ["--filter=blob:none", "--filter=tree:1", "--filter=blob:limit=50"];
    let mut clone = vec!["-c", &version, "clone", "-q", "--bare", "--no-single-branch"];
    if dice.below(3) > 0 {
        clone.push(&depth);
    }
    if dice.below(3) == 0 {
        clone.push(filters[dice.below(3) as usize]);
    }
    let file = format!("file://{}", repository.display());
    let url = server.url("a");
    for (url, name) in [(&url, "served"), (&file, "local")] {
        git(root, &[clone.as_slice(), &[url, name]].concat());
    }
    let (served, local) = (root.join("served"), root.join("local"));
    let same = |step: &str| {
        let seen = |path: &Path| (refs(path), shallow_of(path), objects(path));
        let (ours, theirs) = (seen(&served), seen(&local));
        assert_eq!(ours.0, theirs.0, "refs after {step}, seed {seed}");
        assert_eq!(ours.1, theirs.1, "boundary after {step}, seed {seed}");
        assert!(ours.2 == theirs.2, "objects after {step}, seed {seed}");
        assert!(try_git(&served, &["fsck", "--full"]).status.success(), "fsck after {step}, seed {seed}");
    };
    same("the clone");
    for round in 0..3 {
        let before = 1 + objects(&repository).len() as u64 + round * 1000;
        let more = dice.below(6);
        grow_again(&repository, &mut dice, before, more);
        if dice.below(3) == 0 {
            git(&repository, &["repack", "-adq"]);
        }
        let deepen = format!("--deepen={}", 1 + dice.below(3));
        let cut = format!("--depth={}", 1 + dice.below(6));
        let fetch = match dice.below(4) {
            0 => vec!["fetch", "-q", &deepen],
            1 => vec!["fetch", "-q", &cut],
            _ => vec!["fetch", "-q"],
        };
        let arguments = [&["-c", &version][..], &fetch, &["origin", "+refs/heads/*:refs/heads/*"]].concat();
        let (ours, theirs) = (try_git(&served, &arguments), try_git(&local, &arguments));
        assert_eq!(
            ours.status.success(),
            theirs.status.success(),
            "{fetch:?}, seed {seed}: {}",
            String::from_utf8_lossy(&ours.stderr)
        );
        same(&fetch.join(" "));
    }
}

/// Adds `count` commits on top of branches.
fn grow_again(repository: &Path, dice: &mut Dice, from: u64, count: u64) {
    let mut text = String::new();
    let branches = git(repository, &["for-each-ref", "--format=%(refname)", "refs/heads"]);
    let branches: Vec<&str> = branches.lines().collect();
    for number in from..from + count {
        let branch = branches[dice.below(branches.len() as u64) as usize];
        let parent = branches[dice.below(branches.len() as u64) as usize];
        let time = 1_700_000_000 + number * 10;
        let _ = writeln!(text, "commit {branch}\ncommitter C <c@x> {time} +0000\ndata 2\nm\nfrom {branch}^0");
        if parent != branch && dice.below(3) == 0 {
            let _ = writeln!(text, "merge {parent}^0");
        }
        let _ = writeln!(
            text,
            "M 100644 inline d{}/f{}\ndata {}\n{number}",
            dice.below(3),
            dice.below(5),
            number.to_string().len()
        );
    }
    let done = git_with(repository, &["fast-import", "--quiet", "--force"], text.as_bytes());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn seeds_that_are_kept_agree_with_stock_git() {
    for seed in SEEDS {
        try_seed(*seed);
    }
}

#[test]
fn a_fresh_seed_agrees_with_stock_git() {
    // The commit is the seed, so that each change tries others and every run of it the same; or PACKRING_SEED.
    let given = std::env::var("PACKRING_SEED").ok().and_then(|seed| seed.parse().ok());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let head = try_git(here, &["rev-parse", "HEAD"]);
    let of_commit = std::str::from_utf8(&head.stdout).ok().and_then(|hex| u64::from_str_radix(hex.get(..12)?, 16).ok());
    let first = given.or(of_commit).unwrap_or(77);
    let count = std::env::var("PACKRING_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(4);
    for seed in first..first + count {
        println!("seed {seed}");
        try_seed(seed);
    }
}
