//! What does the door cost: a request with a token among 100 000 tokens and 100 000 grants, against the same request where
//! everything is public. Not measured: sockets, TLS, reading the database.
//!
//! Ends with a failure when a request costs 20 microseconds of CPU more, or when one was not judged.
#![allow(missing_docs, reason = "the macros of criterion document nothing")]

use std::{path::Path, process::Command, rc::Rc, sync::Arc, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use packring::{
    access::{
        Directory, Gate, Pattern, Source, Token,
        directory::{PrincipalRecord, Records, TokenRecord},
    },
    conn::{Need, Peer, Rules, Step, visit},
    repo::{Catalogue, CatalogueOptions},
};

const MANY: usize = 100_000;
/// CPU that a request with a token may cost more than one without.
const MOST: Duration = Duration::from_micros(20);
/// Requests of each kind in one sample of the guard.
const REQUESTS: usize = 200;
/// Samples of the guard, taken in turn; their median counts.
const SAMPLES: usize = 31;

/// How the same number of tokens and grants is spread.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// 1 000 principals, each with 100 tokens and 100 grants.
    Company,
    /// One principal with all of them.
    Robot,
}

fn pattern(number: usize) -> Pattern {
    let text = match number % 4 {
        0 => format!("team{number}/app"),
        1 => format!("team{number}/*"),
        2 => format!("team{number}/**"),
        _ => format!("team{number}/old-*/app"),
    };
    Pattern::of_repositories(&text).expect("a pattern")
}

/// A directory of that shape, and a token in the middle of it that may read `team/app`.
fn directory(shape: Shape) -> (Directory, Token) {
    let principals = match shape {
        Shape::Company => 1000,
        Shape::Robot => 1,
    };
    let (each, ours) = (MANY / principals, Token::random().expect("random bytes"));
    let mut records = Records::default();
    for number in 0..principals {
        let mut principal = PrincipalRecord { name: format!("principal-{number}"), ..PrincipalRecord::default() };
        for at in 0..each {
            let is_ours = number == principals / 2 && at == each / 2;
            let token = if is_ours { ours.clone() } else { Token::random().expect("random bytes") };
            principal.tokens.push(TokenRecord {
                id: i64::try_from(number * each + at).expect("a small number"),
                name: format!("token-{at}"),
                digest: token.digest(),
                expires: Some(u64::MAX),
                last_used: 0,
                scope: if is_ours { vec![Pattern::of_repositories("team/**").expect("a pattern")] } else { Vec::new() },
            });
            let ours = is_ours.then(|| Pattern::of_repositories("team/app").expect("a pattern"));
            principal.grants.push((ours.unwrap_or_else(|| pattern(number * each + at)), Vec::new()));
        }
        records.principals.push(principal);
    }
    (Directory::new(records, None), ours)
}

/// Asks `requests` times for the refs on one connection and returns the statuses that were logged.
fn ask(catalogue: &Catalogue, rules: &Rc<Rules>, authorization: &str, requests: usize) -> Vec<u16> {
    let request = format!("GET /team/app/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n{authorization}\r\n");
    let peer = Peer { source: Source::from([127, 0, 0, 1]), secure: false };
    let mut counter = visit(Rc::clone(rules), peer);
    let (mut statuses, mut left) = (Vec::with_capacity(requests), requests);
    loop {
        let step = counter.poll(Duration::ZERO);
        statuses.extend(counter.take_records().iter().map(|record| record.status));
        match step {
            Step::Close => return statuses,
            Step::Read { .. } if left > 0 => {
                left -= 1;
                counter.handle_bytes(request.as_bytes());
            }
            Step::Read { .. } => counter.handle_end(),
            Step::Send(_) => counter.handle_sent(),
            Step::Slice | Step::Wait(_) => counter.handle_turn(),
            Step::Need(Need::Snapshot { path, fresh }) => counter.handle_snapshot(catalogue.snapshot(&path, fresh)),
            Step::Need(Need::Loose { snapshot, ask }) => counter.handle_loose(snapshot.loose(ask)),
            Step::Need(_) => unreachable!("a list of refs needs no more"),
        }
    }
}

fn rules(directory: Option<Directory>) -> Rc<Rules> {
    let gate = Gate::default();
    if let Some(directory) = directory {
        gate.hang_up(Arc::new(directory));
    }
    Rc::new(Rules { gate: Arc::new(gate), ..Rules::default() })
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn repository(root: &Path) {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=x", "-c", "user.email=x@x"]).args(arguments).current_dir(root);
        assert!(command.status().expect("git is installed").success(), "{arguments:?}");
    };
    git(&["init", "-q", "-b", "main", "team/app"]);
    git(&["-C", "team/app", "commit", "-q", "--allow-empty", "-m", "one"]);
}

fn doors(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    repository(folder.path());
    let options = CatalogueOptions { root: folder.path().to_owned(), ..CatalogueOptions::default() };
    let catalogue = Catalogue::open(options).expect("a catalogue");
    let public = rules(None);
    // What was written a moment ago is not trusted yet; that would be measured as well.
    std::thread::sleep(Duration::from_millis(200));
    let mut group = criterion.benchmark_group("door");
    group.bench_function("public", |bencher| {
        bencher.iter(|| assert_eq!(ask(&catalogue, &public, "", 1), [200]));
    });
    for shape in [Shape::Company, Shape::Robot] {
        let (directory, token) = directory(shape);
        let guarded = rules(Some(directory));
        let field = format!("Authorization: Bearer {}\r\n", token.reveal());
        assert_eq!(ask(&catalogue, &guarded, "", 1), [401], "the door is open");
        group.bench_function(format!("{shape:?}"), |bencher| {
            bencher.iter(|| assert_eq!(ask(&catalogue, &guarded, &field, 1), [200]));
        });
        guard(shape, &catalogue, (&public, ""), (&guarded, &field));
    }
    group.finish();
}

/// Fails when the second costs too much more than the first.
fn guard(shape: Shape, catalogue: &Catalogue, public: (&Rc<Rules>, &str), guarded: (&Rc<Rules>, &str)) {
    let sample = |(rules, field): (&Rc<Rules>, &str)| {
        let before = cpu();
        let statuses = ask(catalogue, rules, field, REQUESTS);
        let spent = cpu().saturating_sub(before);
        assert!(statuses.len() == REQUESTS && statuses.iter().all(|status| *status == 200), "{statuses:?}");
        spent / REQUESTS as u32
    };
    let (mut without, mut with): (Vec<_>, Vec<_>) = (0..SAMPLES).map(|_| (sample(public), sample(guarded))).unzip();
    without.sort_unstable();
    with.sort_unstable();
    let (without, with) = (without[SAMPLES / 2], with[SAMPLES / 2]);
    let more = with.saturating_sub(without);
    println!("{shape:?}: {with:?} of CPU with a token, {without:?} without: {more:?} more (at most {MOST:?})");
    assert!(more <= MOST, "a token costs too much");
}

criterion_group!(benches, doors);
criterion_main!(benches);
