//! What does it cost to cut an answer into frames, and to plan a repository's pack? Not measured: sockets, disks (the corpus
//! is written fresh and in the page cache). Where is the cut below which a slice is better copied than listed?
#![allow(missing_docs, reason = "the macros of criterion document nothing")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{fs::File, hint::black_box, io::IoSlice, path::Path, sync::Arc};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use packring::{
    conn::cutter::{Cutter, Framing},
    oid::Kind,
    pack::{self, Dialect, Loose, Mapping, Objects, Pace, Pack, Plan, Question, Store},
    proto::pkt::Sideband,
};

fn store(repository: &Path) -> Arc<Store> {
    let packs = std::fs::read_dir(repository.join("objects/pack")).expect("packs").flatten();
    let index = packs
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "idx"))
        .expect("an index");
    let map = |path: &Path| Mapping::of(&File::open(path).expect("a file")).expect("a mapping");
    let pack = Pack::open("pack", Kind::Sha1, map(&index.with_extension("pack")), map(&index)).expect("a sound pack");
    Arc::new(Store::new(Kind::Sha1, vec![Arc::new(pack)]).expect("few objects"))
}

/// Plans a clone of everything `tip` reaches.
fn plan(store: &Arc<Store>, tip: &str) -> Plan {
    let pace = Pace::default();
    let mut objects = Objects::new(Arc::clone(store), &[], pace.clone());
    let id = packring::oid::from_hex(Kind::Sha1, tip.as_bytes()).expect("an id");
    let work = async {
        let want = objects.demand(&id).await.expect("it is there");
        let question = Question { wants: vec![want], ..Question::default() };
        let selection = pack::select(&mut objects, &question).await.expect("sound");
        pack::plan(&mut objects, &selection, Dialect { ofs_delta: true, thin: false }).await.expect("sound")
    };
    pace.run(work, |_| Loose::Absent)
}

fn cut(plan: &Arc<Plan>, window: usize) -> usize {
    let mut cutter = Cutter::new(window, Framing::Chunked, Sideband::Large, b"head".to_vec());
    cutter.start_pack(Arc::clone(plan), b"0000".to_vec());
    cutter.close_pack();
    cutter.end();
    let mut size = 0;
    while let Some(frame) = cutter.cut(false) {
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        frame.slices(&mut slices);
        size += slices.iter().map(|slice| slice.len()).sum::<usize>();
    }
    size
}

fn frames(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = support::corpus::make(folder.path(), "a.git", support::corpus::MEDIUM);
    let store = store(&repository);
    let whole = support::git(&repository, &["rev-parse", "main"]);
    let early = support::git(&repository, &["rev-parse", "main~400"]);
    let mut group = criterion.benchmark_group("frames");
    for (name, tip) in [("one extent after another", whole.trim()), ("scattered extents", early.trim())] {
        let plan = Arc::new(plan(&store, tip));
        cut(&plan, 262_144);
        group.throughput(Throughput::Bytes(plan.size()));
        for window in [16_384, 262_144, 1_048_576] {
            group.bench_function(format!("cut {name}, window {window}"), |bencher| {
                bencher.iter(|| assert!(cut(black_box(&plan), window) as u64 > plan.size()));
            });
        }
    }
    group.finish();
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(20);
    group.bench_function("select and plan 12 000 objects", |bencher| {
        bencher.iter(|| assert!(plan(&store, whole.trim()).counts.objects > 10_000));
    });
    group.finish();
}

criterion_group!(benches, frames);
criterion_main!(benches);
