//! What the tests that run the real binary share: a server, stock git with a configuration of its own, a raw client.
//!
//! Every server listens on a port of its own and ends with its test; every repository is in a temporary folder.
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod corpus;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

/// The real binary. Benches, which share this file, have none.
pub fn packring() -> Command {
    Command::new(option_env!("CARGO_BIN_EXE_packring").unwrap_or("packring"))
}

/// A server that ends with its test.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    /// Serves `root`.
    pub fn start(root: &Path) -> Self {
        Self::start_with(root, &[])
    }

    /// Serves `root` with more flags.
    pub fn start_with(root: &Path, flags: &[&str]) -> Self {
        let mut command = packring();
        command
            .arg("serve")
            .arg(root)
            .args(["--listen", "127.0.0.1:0", "--loops", "2", "--pin", "never", "-q"])
            .args(flags);
        Self::spawn(command)
    }

    /// Runs a command that serves.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_with_doors(command, ["http"]).0
    }

    /// Runs a command that serves, and reads the port of each of its doors, whose schemes are these. The first is the one that
    /// requests go to.
    pub fn spawn_with_doors<const N: usize>(mut command: Command, schemes: [&str; N]) -> (Self, [u16; N]) {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut server = Self { child, port: 0 };
        let mut lines = BufReader::new(server.child.stdout.take().unwrap()).lines();
        let ports = schemes.map(|scheme| {
            let line = lines.next().and_then(Result::ok).unwrap_or_default();
            let address = line.strip_prefix(&format!("listening on {scheme}://"));
            let port = address.and_then(|address| address.rsplit(':').next()?.parse().ok());
            port.unwrap_or_else(|| panic!("the server did not say where it listens: {line:?}"))
        });
        server.port = ports.first().copied().unwrap();
        (server, ports)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end and returns its exit code.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        stream
    }

    /// Sends bytes on a connection of its own and reads until the server closes it.
    pub fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    /// A POST to `git-upload-pack` of a repository.
    pub fn post(&self, repository: &str, version: u8, body: &[u8]) -> Answer {
        let protocol = if version == 0 { String::new() } else { format!("Git-Protocol: version={version}\r\n") };
        Answer::parse(&self.raw(&post(repository, &protocol, body)))
    }

    /// A GET.
    pub fn get(&self, path: &str, fields: &str) -> Answer {
        Answer::parse(
            &self.raw(format!("GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n").as_bytes()),
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A POST to `git-upload-pack` on a connection that is closed after it; each of `fields` ends its line.
pub fn post(repository: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /{repository}/git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\
         Content-Type: application/x-git-upload-pack-request\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// An access database beside the repositories, driven by the real command.
pub struct Access {
    pub path: PathBuf,
}

impl Access {
    pub fn new(folder: &Path) -> Self {
        let access = Self { path: folder.join("access.db") };
        access.run(&["init"]);
        access
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = packring();
        command.arg("access").args(arguments).arg("--access").arg(&self.path);
        command
    }

    pub fn try_run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A principal with one grant (with refs behind it) and one token, which is returned.
    pub fn principal(&self, name: &str, grant: &[&str]) -> String {
        self.run(&["principal", "add", name]);
        if let Some((pattern, refs)) = grant.split_first() {
            let refs = refs.iter().flat_map(|pattern| ["--refs", pattern]);
            let arguments: Vec<&str> = ["grant", "add", name, pattern].into_iter().chain(refs).collect();
            self.run(&arguments);
        }
        self.token(name, "t", &[])
    }

    pub fn token(&self, principal: &str, name: &str, more: &[&str]) -> String {
        self.run(&[&["token", "create", principal, name], more].concat()).trim().to_owned()
    }

    pub fn serve(&self, root: &Path, flags: &[&str]) -> Server {
        Server::start_with(root, &[&["--access", self.path.to_str().unwrap()], flags].concat())
    }
}

/// One HTTP answer, its chunks undone.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// Parses the one answer in `bytes`.
    pub fn parse(bytes: &[u8]) -> Self {
        let (answer, rest) = Self::parse_first(bytes);
        assert!(rest.is_empty(), "bytes behind the answer: {:?}", String::from_utf8_lossy(rest));
        answer
    }

    /// Parses the first answer in `bytes`, and returns what follows it.
    pub fn parse_first(bytes: &[u8]) -> (Self, &[u8]) {
        let end = find(bytes, b"\r\n\r\n").unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end + 2]).into_owned();
        let mut rest = &bytes[end + 4..];
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut body = Vec::new();
        if head.contains("Transfer-Encoding: chunked") {
            loop {
                let end = find(rest, b"\r\n").expect("a chunk head");
                let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
                rest = &rest[end + 2..];
                body.extend_from_slice(&rest[..size]);
                assert_eq!(&rest[size..size + 2], b"\r\n");
                rest = &rest[size + 2..];
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")) {
            let length: usize = length.parse().unwrap();
            body = rest[..length].to_vec();
            rest = &rest[length..];
        } else {
            body = rest.to_vec();
            rest = &[];
        }
        (Self { status, head, body }, rest)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// git with nothing of this machine's configuration.
pub fn git_command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder).stdin(Stdio::null());
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    // It would win over http.sslCAInfo.
    command.env_remove("GIT_SSL_CAINFO");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "A U Thor").env(format!("GIT_{who}_EMAIL"), "a@example.com");
        command.env(format!("GIT_{who}_DATE"), "1700000000 +0000");
    }
    command.args([
        "-c",
        "init.defaultBranch=main",
        "-c",
        "protocol.file.allow=always",
        "-c",
        "advice.detachedHead=false",
    ]);
    command
}

/// Bytes that no deflate makes smaller, the same each time.
pub fn noise(size: usize) -> Vec<u8> {
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    (0..size).map(|_| next()).collect()
}

/// A mirror at `root/served/app.git` whose one file is `size` bytes of noise.
pub fn noisy_mirror(root: &Path, size: usize) -> PathBuf {
    let (work, bare) = (root.join("work"), root.join("served/app.git"));
    git(root, &["init", "-q", "work"]);
    fs::write(work.join("noise"), noise(size)).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-qm", "noise"]);
    git(root, &["clone", "-q", "--mirror", "work", bare.to_str().unwrap()]);
    bare
}

/// Runs git, which has to succeed; returns what it prints.
pub fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = git_command(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs git, which may fail.
pub fn try_git(folder: &Path, arguments: &[&str]) -> Output {
    git_command(folder).args(arguments).output().unwrap()
}

/// Runs git with bytes as its input.
pub fn git_with(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = git_command(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // git may leave before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Ids of all objects a repository holds.
pub fn objects(repository: &Path) -> BTreeSet<String> {
    let listed = git(repository, &["cat-file", "--batch-all-objects", "--batch-check=%(objectname)", "--unordered"]);
    listed.lines().map(str::to_owned).collect()
}

/// Ids of all objects reachable from the given revisions.
pub fn reachable(repository: &Path, revisions: &[&str]) -> BTreeSet<String> {
    let listed = git(repository, &[&["rev-list", "--objects", "--no-object-names"], revisions].concat());
    listed.lines().map(str::to_owned).collect()
}

/// All refs with what they point at.
pub fn refs(repository: &Path) -> String {
    git(repository, &["for-each-ref", "--format=%(objectname) %(refname) %(symref)"])
}

/// Checks a clone against one of the same repository by file path, made with the same arguments.
pub fn assert_same_clone(folder: &Path, url: &str, source: &Path, arguments: &[&str]) -> PathBuf {
    let (served, local) = (folder.join("served"), folder.join("local"));
    for path in [&served, &local] {
        let _ = fs::remove_dir_all(path);
    }
    let file = format!("file://{}", source.display());
    git(folder, &[&["clone", "-q"], arguments, &[url, "served"]].concat());
    git(folder, &[&["clone", "-q"], arguments, &[&file, "local"]].concat());
    git(&served, &["fsck", "--full", "--strict"]);
    assert_eq!(refs(&served), refs(&local));
    assert_eq!(objects(&served), objects(&local));
    served
}

/// Writes pkt-lines: `.` is a flush, `|` a delim, anything else a line.
pub fn pkt(lines: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        match *line {
            "." => out.extend_from_slice(b"0000"),
            "|" => out.extend_from_slice(b"0001"),
            line => out.extend_from_slice(format!("{:04x}{line}\n", line.len() + 5).as_bytes()),
        }
    }
    out
}

/// Reads pkt-lines back; marks become `.`, `|` and `r`.
pub fn lines(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let size = std::str::from_utf8(&bytes[..4]).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let size =
            size.unwrap_or_else(|| panic!("no length in {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)])));
        match size {
            0 => lines.push(b".".to_vec()),
            1 => lines.push(b"|".to_vec()),
            2 => lines.push(b"r".to_vec()),
            _ => lines.push(bytes[4..size].to_vec()),
        }
        bytes = &bytes[size.max(4)..];
    }
    lines
}

/// The pack in a banded answer, and what band 3 said.
pub fn pack_of(answer: &[u8]) -> (Vec<u8>, String) {
    let (mut pack, mut fatal) = (Vec::new(), String::new());
    for line in lines(answer) {
        match line.first() {
            Some(1) => pack.extend_from_slice(&line[1..]),
            Some(3) => fatal.push_str(&String::from_utf8_lossy(&line[1..])),
            _ => {}
        }
    }
    (pack, fatal)
}

/// Ids of the objects in a pack that may rest on objects of `repository`.
pub fn ids_of_pack(repository: &Path, pack: &[u8]) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let format = format!("--object-format={}", git(repository, &["rev-parse", "--show-object-format"]).trim());
    git(folder.path(), &["init", "-q", "--bare", &format, "x"]);
    let own = folder.path().join("x");
    let objects = git(repository, &["rev-parse", "--path-format=absolute", "--git-path", "objects"]);
    fs::create_dir_all(own.join("objects/info")).unwrap();
    fs::write(own.join("objects/info/alternates"), objects).unwrap();
    let indexed = git_with(&own, &["index-pack", "--stdin", "--fix-thin"], pack);
    assert!(indexed.status.success(), "{}", String::from_utf8_lossy(&indexed.stderr));
    let name = String::from_utf8_lossy(&indexed.stdout).trim().rsplit('\t').next().unwrap().to_owned();
    let index = fs::read(own.join(format!("objects/pack/pack-{name}.idx"))).unwrap();
    let shown = git_with(&own, &["show-index"], &index);
    let trailer = if format.ends_with("sha256") { 32 } else { 20 };
    let ids = String::from_utf8_lossy(&shown.stdout).into_owned();
    // Bases that were added stand behind what was sent.
    ids.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let offset: usize = words.next()?.parse().ok()?;
            (offset < pack.len() - trailer).then(|| words.next().unwrap_or_default().to_owned())
        })
        .collect()
}
