//! The same request bytes to stock `git upload-pack --stateless-rpc` and to the real server: sections compared line by line,
//! packs by the set of their objects.
//!
//! Where stock git dies without a word, any refusal of ours is right. The comparator itself is tested against answers that
//! are always empty.

mod support;

use std::{collections::BTreeSet, fmt, fs, path::Path, process::Stdio};

use support::{Server, corpus, git, git_command, ids_of_pack, lines, pkt};

/// What an answer comes to.
#[derive(Clone, PartialEq, Eq)]
enum Said {
    /// Nothing, and no fault.
    Empty,
    /// A refusal, with its words where there are some.
    Refused(String),
    /// Lines before the pack, and the ids in it.
    Lines(Vec<String>, Option<BTreeSet<String>>),
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "nothing"),
            Self::Refused(words) => write!(f, "refused: {words}"),
            Self::Lines(lines, pack) => write!(f, "{lines:?} pack of {:?}", pack.as_ref().map(BTreeSet::len)),
        }
    }
}

fn canonical(repository: &Path, body: &[u8], banded: bool, failed: bool) -> Said {
    if body.is_empty() {
        return if failed { Said::Refused(String::new()) } else { Said::Empty };
    }
    let (mut text, mut pack, mut in_pack, mut fatal) = (Vec::new(), Vec::new(), false, false);
    let mut rest = body;
    while !rest.is_empty() {
        if !banded && rest.starts_with(b"PACK") {
            (pack, in_pack) = (rest.to_vec(), true);
            break;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..4]).unwrap(), 16).unwrap().max(4);
        let Some(line) = lines(&rest[..size]).pop() else { break };
        rest = &rest[size..];
        let shown = String::from_utf8_lossy(&line).trim_end().to_owned();
        if let Some(words) = shown.strip_prefix("ERR ") {
            let words = words.trim_start_matches("git ").trim_start_matches("upload-pack: ");
            return Said::Refused(words.to_owned());
        }
        match line.first() {
            Some(1) if in_pack || line.get(1..5) == Some(b"PACK") => {
                in_pack = true;
                pack.extend_from_slice(&line[1..]);
            }
            Some(2) => {}
            Some(3) => fatal = true,
            _ => text.push(shown),
        }
    }
    if fatal || failed {
        return Said::Refused(String::new());
    }
    // The order of what a section lists says nothing, nor does that of two sections nobody depends on.
    let mut sections: Vec<Vec<String>> = text.split(|line| line == "|").map(<[String]>::to_vec).collect();
    let rank = |section: &Vec<String>| match section.first().map(String::as_str) {
        Some("acknowledgments") => 0,
        Some("shallow-info") => 1,
        Some("wanted-refs") => 2,
        _ => 3,
    };
    for section in &mut sections {
        if matches!(rank(section), 1 | 2) {
            section[1..].sort();
        } else if section.iter().all(|line| line.contains("shallow ") || line == ".") {
            section.sort();
        }
    }
    sections.sort_by_key(rank);
    let ids = in_pack.then(|| ids_of_pack(repository, &pack));
    Said::Lines(sections.concat(), ids)
}

fn stock(repository: &Path, version: u8, body: &[u8], banded: bool) -> Said {
    let mut command = git_command(repository.parent().unwrap());
    if version > 0 {
        command.env("GIT_PROTOCOL", format!("version={version}"));
    }
    command.args(["-c", "safe.directory=*", "upload-pack", "--stateless-rpc"]).arg(repository);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = body.to_vec();
    let writer = std::thread::spawn(move || drop(std::io::Write::write_all(&mut stdin, &bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    canonical(repository, &output.stdout, banded, !output.status.success())
}

fn agree(stock: &Said, ours: &Said) -> bool {
    match (stock, ours) {
        // Without words stock git leaves the client guessing; ours says what is wrong.
        (Said::Refused(words), Said::Refused(said)) if words.is_empty() => !said.is_empty(),
        (stock, ours) => stock == ours,
    }
}

struct World {
    _folder: tempfile::TempDir,
    root: std::path::PathBuf,
    ids: Vec<(String, String)>,
}

/// Repositories of several kinds with the same history, and names for their objects.
fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let main = corpus::make(&root, "main.git", corpus::SMALL);
    let id = |revision: &str| git(&main, &["rev-parse", revision]).trim().to_owned();
    git(&main, &["update-ref", "refs/hidden/h", git(&main, &["commit-tree", "-m", "hidden", "main^{tree}"]).trim()]);
    git(&main, &["tag", "-a", "-m", "tag of tag", "vv5", "v5"]);
    git(&main, &["tag", "-a", "-m", "tag of blob", "tblob", "main:file-0.txt"]);
    git(&main, &["tag", "ttree", "main^{tree}"]);
    // With a bitmap stock git leaves out more than it promises to.
    git(&main, &["-c", "repack.writeBitmaps=false", "repack", "-adkq"]);
    let lost = git(&main, &["commit-tree", "-m", "lost", "main^{tree}"]).trim().to_owned();
    git(&main, &["config", "transfer.hideRefs", "refs/hidden"]);
    let mut ids: Vec<(String, String)> = [
        ("tip", "main"),
        ("one", "main~1"),
        ("two", "main~2"),
        ("four", "main~4"),
        ("side", "side"),
        ("root", "light~2"),
        ("tag", "v5"),
        ("tagtag", "vv5"),
        ("tblob", "tblob"),
        ("blob", "main:file-0.txt"),
        ("tree", "main^{tree}"),
        ("hidden", "refs/hidden/h"),
    ]
    .iter()
    .map(|(name, revision)| ((*name).to_owned(), id(revision)))
    .collect();
    ids.push(("lost".to_owned(), lost));
    ids.push(("none".to_owned(), "1234567890123456789012345678901234567890".to_owned()));
    let variant = |name: &str, settings: &[(&str, &str)]| {
        let copied = std::process::Command::new("cp").arg("-r").arg(&main).arg(root.join(name)).status().unwrap();
        assert!(copied.success());
        for (key, value) in settings {
            git(&root.join(name), &["config", key, value]);
        }
    };
    variant("any.git", &[("uploadpack.allowAnySHA1InWant", "true")]);
    variant("tip.git", &[("uploadpack.allowTipSHA1InWant", "true")]);
    variant("reach.git", &[("uploadpack.allowReachableSHA1InWant", "true")]);
    variant("filter.git", &[("uploadpack.allowFilter", "true")]);
    variant(
        "policy.git",
        &[
            ("uploadpack.allowFilter", "true"),
            ("uploadpackfilter.allow", "false"),
            ("uploadpackfilter.blob:none.allow", "true"),
            ("uploadpackfilter.tree.maxDepth", "2"),
            ("uploadpackfilter.combine.allow", "true"),
        ],
    );
    variant("refwant.git", &[("uploadpack.allowRefInWant", "true")]);
    variant("all.git", &[("uploadpack.allowSidebandAll", "true"), ("transfer.advertiseObjectInfo", "true")]);
    variant(
        "bundle.git",
        &[("uploadpack.advertiseBundleURIs", "true"), ("bundle.version", "1"), ("bundle.mode", "all")],
    );
    git(
        &root,
        &["clone", "-q", "--bare", "--no-local", "--depth=3", &format!("file://{}", main.display()), "shallow.git"],
    );
    git(&root, &["init", "-q", "--bare", "empty.git"]);
    World { _folder: folder, root, ids }
}

impl World {
    /// Puts ids in for names in braces.
    fn fill(&self, line: &str) -> String {
        let fill = |line: String, (name, id): &(String, String)| line.replace(&format!("{{{name}}}"), id);
        self.ids.iter().fold(line.to_owned(), fill)
    }

    fn body(&self, script: &[String]) -> Vec<u8> {
        let filled: Vec<String> = script.iter().map(|line| self.fill(line)).collect();
        pkt(&filled.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Asks both; returns how often they disagree, having said so.
    fn compare(&self, server: &Server, name: &str, version: u8, script: &[String]) -> Option<String> {
        let body = self.body(script);
        let banded = version == 2 || script.iter().any(|line| line.contains("side-band"));
        let repository = self.root.join(name);
        let expected = stock(&repository, version, &body, banded);
        let answer = server.post(name, version, &body);
        let ours = canonical(&repository, &answer.body, banded, answer.status != 200);
        let wrong = !agree(&expected, &ours);
        wrong.then(|| format!("{name} v{version} {script:?}\n   git: {expected:?}\n  ours: {ours:?}"))
    }
}

fn v2(arguments: &[&str]) -> Vec<String> {
    let head = ["command=fetch", "agent=x", "object-format=sha1", "|"];
    head.iter().chain(arguments).chain(&["."]).map(ToString::to_string).collect()
}

fn script(lines: &[&str]) -> Vec<String> {
    lines.iter().map(ToString::to_string).collect()
}

fn disagreements(version: u8, scripts: &[(&str, Vec<String>)]) -> Vec<String> {
    let world = world();
    let server = Server::start_with(&world.root, &["--defaults", "git"]);
    scripts.iter().filter_map(|(name, script)| world.compare(&server, name, version, script)).collect()
}

fn assert_agreement(version: u8, scripts: &[(&str, Vec<String>)]) {
    let wrong = disagreements(version, scripts);
    assert!(wrong.is_empty(), "{} of {} scripts disagree:\n{}", wrong.len(), scripts.len(), wrong.join("\n"));
}

/// Arguments of a fetch, each to be tried in version 2.
const FETCHES: &[&[&str]] = &[
    &["want {tip}", "done"],
    &["want {tip}"],
    &["want {tip}", "want {side}", "want {tip}", "done"],
    &["want {root}", "done"],
    &["want {one}", "done"],
    &["want {hidden}", "done"],
    &["want {lost}", "done"],
    &["want {none}", "done"],
    &["want {blob}", "done"],
    &["want {tree}", "done"],
    &["want {tag}", "done"],
    &["want {tagtag}", "done"],
    &["want {tblob}", "done"],
    &["done"],
    &[],
    &["want {tip}", "have {one}", "done"],
    &["want {tip}", "have {one}"],
    &["want {tip}", "have {none}"],
    &["want {tip}", "have {tip}"],
    &["want {tip}", "have {none}", "have {two}"],
    &["want {tip}", "have {root}"],
    &["want {tip}", "want {side}", "have {one}"],
    &["want {tip}", "have {side}", "done"],
    &["want {tip}", "have {hidden}", "done"],
    &["want {side}", "have {tip}", "done"],
    &["want {tip}", "have {tag}", "done"],
    &["want {tip}", "have {blob}", "done"],
    &["want {tip}", "have {tree}", "done"],
    &["want {tip}", "have {one}", "have {one}"],
    &["have {one}"],
    &["have {one}", "wait-for-done"],
    &["have {none}", "wait-for-done"],
    &["want {tip}", "have {one}", "wait-for-done"],
    &["want {tip}", "include-tag", "done"],
    &["want {root}", "include-tag", "done"],
    &["want {tip}", "have {two}", "include-tag", "done"],
    &["want {tip}", "thin-pack", "have {two}", "done"],
    &["want {tip}", "thin-pack", "ofs-delta", "have {two}", "done"],
    &["want {tip}", "ofs-delta", "no-progress", "done"],
    &["want {tip}", "deepen 1", "done"],
    &["want {tip}", "deepen 2", "done"],
    &["want {tip}", "deepen 100", "done"],
    &["want {tip}", "deepen 2147483647", "done"],
    &["want {tip}", "want {side}", "deepen 2", "done"],
    &["want {tag}", "deepen 1", "done"],
    &["want {tip}", "deepen 0", "done"],
    &["want {tip}", "deepen -1", "done"],
    &["want {tip}", "deepen 0x2", "done"],
    &["want {tip}", "deepen 010", "done"],
    &["want {tip}", "deepen x", "done"],
    &["want {tip}", "deepen 1", "deepen-since 1600000100", "done"],
    &["want {tip}", "shallow {one}", "deepen 1", "done"],
    &["want {tip}", "shallow {one}", "deepen 3", "have {tip}", "done"],
    &["want {tip}", "shallow {one}", "have {tip}", "deepen-relative", "deepen 1", "done"],
    &["want {tip}", "shallow {one}", "done"],
    &["want {tip}", "shallow {one}", "deepen 2147483647", "have {tip}", "done"],
    &["want {tip}", "shallow {none}", "done"],
    &["want {tip}", "shallow {blob}", "done"],
    &["want {tip}", "shallow x", "done"],
    &["want {tip}", "shallow {two}", "have {two}", "done"],
    &["want {tip}", "deepen-since 1600000400", "done"],
    &["want {tip}", "deepen-since 1", "done"],
    &["want {tip}", "deepen-since 2100000000", "done"],
    &["want {tip}", "deepen-since x", "done"],
    &["want {tip}", "deepen-not refs/tags/v5", "done"],
    &["want {tip}", "deepen-not v5", "done"],
    &["want {tip}", "deepen-not none", "done"],
    &["want {tip}", "deepen-not main", "done"],
    &["want {tip}", "deepen-since 1600000200", "deepen-not light", "done"],
    &["want {tip}", "deepen 1", "deepen-not v5", "done"],
    &["want {tip}", "deepen 1", "deepen-since 1600000100", "have {none}"],
    &["want {tip}", "deepen 1", "deepen-not v5", "have {one}"],
    &["want {side}", "deepen 1", "deepen-not v5", "have {root}"],
    &["deepen 1", "deepen-since 1600000100", "done"],
    &["deepen 1", "deepen-since 1600000100", "wait-for-done"],
    &["have {one}", "deepen 1", "deepen-not v5", "wait-for-done"],
    &["deepen-not nowhere"],
    &["deepen-not nowhere", "wait-for-done"],
    &["want {tip}", "deepen-not nowhere", "have {none}"],
    &["want {tip}", "shallow {blob}", "have {none}"],
    &["shallow {blob}"],
    &["want {tip}", "want {none}", "deepen-not nowhere", "done"],
    &["want {tip}", "deepen-since -", "done"],
    &["want {tip}", "deepen-since +", "done"],
    &["want {tip}", "deepen-since ", "done"],
    &["want {tip}", "deepen-since 0", "done"],
    &["want {tip}", "deepen -", "done"],
    &["want {tip}", "deepen ", "done"],
    &["want {tip}", "filter blob:none", "done"],
    &["want {tip}", "want-ref refs/heads/main", "done"],
    &["want {tip}", "sideband-all", "done"],
    &["want {tip}", "packfile-uris https", "done"],
    &["want {tip}", "nonsense", "done"],
    &["want", "done"],
    &["want ", "done"],
    &["want {tip} trailing", "done"],
    &["want {tip}x", "done"],
    &["WANT {tip}", "done"],
    &["have", "done"],
    &["have x", "done"],
    &["want {tip}", "done", "done"],
    &["done", "want {tip}"],
    &["want {tip}", "have {one} x", "done"],
];

#[test]
fn version_2_fetches_answer_like_stock_git() {
    let scripts: Vec<_> = FETCHES.iter().map(|arguments| ("main.git", v2(arguments))).collect();
    assert!(scripts.len() >= 85, "{}", scripts.len());
    assert_agreement(2, &scripts);
}

#[test]
fn shallow_repositories_answer_like_stock_git() {
    let known = |arguments: &&&[&str]| {
        !arguments.iter().any(|line| line.contains("root}") || line.contains("four}") || line.contains("light"))
    };
    let scripts: Vec<_> = FETCHES.iter().filter(known).map(|arguments| ("shallow.git", v2(arguments))).collect();
    assert_agreement(2, &scripts);
}

#[test]
fn filters_answer_like_stock_git() {
    let mut scripts = Vec::new();
    for filter in [
        "blob:none",
        "blob:limit=0",
        "blob:limit=500",
        "blob:limit=1k",
        "blob:limit=x",
        "tree:0",
        "tree:1",
        "tree:2",
        "tree:9",
        "tree:x",
        "object:type=blob",
        "object:type=tree",
        "object:type=commit",
        "object:type=tag",
        "object:type=x",
        "combine:blob:none+tree:2",
        "combine:tree:1+object:type=tree",
        "combine:blob%3anone+tree:0",
        "combine:",
        "combine:+",
        "combine:blob:none+",
        "combine:+blob:none",
        "combine:blob:none++tree:2",
        "combine:blob:none+tree:2+",
        "combine:sparse:oid={blob}\u{e9}",
        "combine:sparse:oid=%c3%a9",
        "combine:blob:none%2b+tree:1",
        "combine:combine:blob:none+tree:1",
        "combine:combine:blob:none%2btree:1",
        "combine:tree:%31",
        "combine:tree:1%00",
        "combine:tree:1%",
        "sparse:path=x",
        "sparse:oid={blob}",
        "x",
        "",
    ] {
        let filter = format!("filter {filter}");
        for wants in
            [&["want {tip}", "want {tagtag}"][..], &["want {tree}"], &["want {blob}", "want {tip}", "have {two}"]]
        {
            let arguments = [wants, &[filter.as_str(), "done"]].concat();
            scripts.push(("filter.git", v2(&arguments)));
        }
        scripts.push(("policy.git", v2(&["want {tip}", &filter, "done"])));
    }
    scripts.push(("filter.git", v2(&["want {tip}", "filter blob:none", "filter tree:0", "done"])));
    scripts.push(("filter.git", v2(&["want {tip}", "filter blob:none", "deepen 1", "include-tag", "done"])));
    assert_agreement(2, &scripts);
}

#[test]
fn what_repositories_offer_is_answered_like_stock_git() {
    let command = |name: &str, lines: &[&str]| {
        let head = [format!("command={name}"), "object-format=sha1".to_owned(), "|".to_owned()];
        head.into_iter().chain(lines.iter().map(ToString::to_string)).chain([".".to_owned()]).collect::<Vec<_>>()
    };
    let mut scripts = vec![
        ("refwant.git", v2(&["want-ref refs/heads/main", "done"])),
        (
            "refwant.git",
            v2(&["want-ref refs/heads/main", "want-ref refs/tags/v5", "want {side}", "have {two}", "done"]),
        ),
        ("refwant.git", v2(&["want-ref refs/heads/none", "done"])),
        ("refwant.git", v2(&["want-ref refs/hidden/h", "done"])),
        ("refwant.git", v2(&["want-ref main", "done"])),
        ("refwant.git", v2(&["want-ref refs/heads/main", "want-ref refs/heads/main", "done"])),
        ("refwant.git", v2(&["want-ref refs/heads/main", "deepen 1", "done"])),
        ("refwant.git", v2(&["want-ref HEAD", "done"])),
        ("all.git", command("object-info", &["size", "oid {tip}", "oid {blob}", "oid {none}"])),
        ("all.git", command("object-info", &["oid {tip}"])),
        ("all.git", command("object-info", &["size"])),
        ("all.git", command("object-info", &[])),
        ("all.git", command("object-info", &["x"])),
        ("main.git", command("object-info", &["size", "oid {tip}"])),
        ("bundle.git", command("bundle-uri", &[])),
        ("bundle.git", command("bundle-uri", &["x"])),
        ("main.git", command("bundle-uri", &[])),
        ("main.git", script(&["command=fetch", "."])),
        ("main.git", script(&["."])),
        ("main.git", script(&[])),
        ("main.git", script(&["agent=x", "."])),
        ("main.git", script(&["command=fetch"])),
        ("main.git", script(&["command=none", "."])),
        ("main.git", script(&["command=", "."])),
        ("main.git", script(&["command=fetch", "command=fetch", "."])),
        ("main.git", script(&["x=y", "command=fetch", "."])),
        ("main.git", script(&["command=fetch", "object-format=sha256", "|", "want {tip}", "done", "."])),
        ("main.git", script(&["command=fetch", "object-format", "|", "want {tip}", "done", "."])),
        ("main.git", script(&["command=fetch", "server-option=x", "session-id=y", "|", "want {tip}", "done", "."])),
        ("main.git", script(&["command=fetch", "|", "want {tip}", "done", "|"])),
        ("main.git", script(&["command=fetch", "|", "want {tip}", "done"])),
        ("empty.git", v2(&["want {tip}", "done"])),
    ];
    for repository in ["main.git", "empty.git", "shallow.git"] {
        for lines in [
            &[][..],
            &["peel"],
            &["symrefs"],
            &["peel", "symrefs", "unborn"],
            &["ref-prefix refs/heads/"],
            &["peel", "ref-prefix refs/tags/v"],
            &["ref-prefix HEAD", "symrefs"],
            &["ref-prefix refs/h", "ref-prefix refs/heads/main"],
            &["ref-prefix none"],
            &["ref-prefix "],
            &["unborn", "ref-prefix refs/"],
            &["x"],
            &["ref-prefix"],
            &["peel "],
        ] {
            scripts.push((repository, command("ls-refs", lines)));
        }
    }
    assert_agreement(2, &scripts);
}

#[test]
fn versions_0_and_1_answer_like_stock_git() {
    let mut scripts = Vec::new();
    let words = [
        "",
        " side-band-64k",
        " side-band ofs-delta",
        " multi_ack side-band-64k thin-pack ofs-delta",
        " multi_ack_detailed side-band-64k ofs-delta include-tag no-progress",
        " multi_ack_detailed no-done side-band-64k thin-pack",
    ];
    for word in words {
        let want = format!("want {{tip}}{word}");
        for talk in [
            &["done"][..],
            &["."],
            &[],
            &["have {one}", "done"],
            &["have {one}", "."],
            &["have {none}", "."],
            &["have {none}", "done"],
            &["have {none}", "have {two}", "."],
            &["have {two}", "have {none}", "."],
            &["have {one}", "have {two}", "."],
            &["have {one}", "have {two}", "done"],
            &["have {root}", "have {none}", "."],
            &["have x", "done"],
            &["x", "done"],
        ] {
            scripts.push(("main.git", script(&[&[want.as_str(), "."], talk].concat())));
        }
    }
    for needs in [
        &["want {one} side-band-64k"][..],
        &["want {hidden} side-band-64k"],
        &["want {lost} side-band-64k"],
        &["want {none} side-band-64k"],
        &["want {tag} side-band-64k"],
        &["want {blob} side-band-64k"],
        &["want {tip} side-band-64k", "want {side}"],
        &["want x"],
        &["x"],
        &[],
        &["want {tip} side-band-64k", "deepen 1"],
        &["want {tip} side-band-64k", "deepen 3"],
        &["want {tip} side-band-64k", "deepen 0"],
        &["want {tip} side-band-64k", "shallow {one}", "deepen 3"],
        &["want {tip} side-band-64k deepen-relative", "shallow {one}", "deepen 1"],
        &["want {tip} side-band-64k", "shallow {one}"],
        &["want {tip} side-band-64k", "deepen-since 1600000400"],
        &["want {tip} side-band-64k", "deepen-not v5"],
        &["want {tip} side-band-64k", "filter blob:none"],
        &["want {tip} side-band-64k filter", "filter blob:none"],
        &["want {tip} side-band-64k filter", "filter tree:0"],
    ] {
        for repository in ["main.git", "any.git", "tip.git", "reach.git", "filter.git"] {
            scripts.push((repository, script(&[needs, &[".", "done"]].concat())));
        }
    }
    assert!(scripts.len() >= 150, "{}", scripts.len());
    assert_agreement(0, &scripts);
    let again: Vec<_> = scripts.into_iter().step_by(9).collect();
    assert_agreement(1, &again);
}

#[test]
fn advertisements_are_those_of_stock_git() {
    let world = world();
    let server = Server::start_with(&world.root, &["--defaults", "git"]);
    let names =
        fs::read_dir(&world.root).unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    for name in names.collect::<BTreeSet<_>>() {
        for version in [0, 1, 2] {
            let mut command = git_command(&world.root);
            if version > 0 {
                command.env("GIT_PROTOCOL", format!("version={version}"));
            }
            let stock =
                command.args(["upload-pack", "--http-backend-info-refs"]).arg(world.root.join(&name)).output().unwrap();
            let fields = format!("Git-Protocol: version={version}\r\n");
            let ours = server.get(&format!("{name}/info/refs?service=git-upload-pack"), &fields);
            let shown = |body: &[u8]| {
                let lines = lines(body).into_iter().map(|line| String::from_utf8_lossy(&line).into_owned());
                lines.map(|line| line.split("agent=").next().unwrap().to_owned()).collect::<Vec<_>>()
            };
            let body = ours.body.strip_prefix(b"001e# service=git-upload-pack\n0000".as_slice()).unwrap_or(&ours.body);
            assert_eq!(shown(body), shown(&stock.stdout), "{name} in version {version}");
        }
    }
}

#[test]
fn an_answer_that_is_always_empty_agrees_with_almost_nothing() {
    let world = world();
    let mut agreed = 0;
    for arguments in FETCHES {
        let expected = stock(&world.root.join("main.git"), 2, &world.body(&v2(arguments)), true);
        agreed += usize::from(agree(&expected, &Said::Empty));
        assert!(!agree(&expected, &Said::Refused(String::new())), "{arguments:?}: a refusal without words");
    }
    assert!(agreed <= 4, "{agreed} scripts pass against an empty answer");
}
