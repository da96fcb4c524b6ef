//! What do the inner loops of the workshop cost: joining bitmaps, applying and composing deltas, finding a selection?
//!
//! Synthetic inputs from a fixed seed, each answer checked once before it is timed. Selections and plans are those of a
//! generated history, or of the bare repository (one pack, repacked with `-b`) that `PACKRING_BENCH_REPO` names; warm. Does
//! not measure cold pages, loose objects, or anything between a plan and a socket.
#![allow(missing_docs, reason = "the macros of criterion document nothing")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    fs::File,
    hint::black_box,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use packring::{
    oid::{Kind, ObjectId, from_hex},
    pack::{
        Ask, Chart, CommitGraph, Dialect, Loose, Mapping, Objects, Pace, Pack, Question, Selection, Store,
        deflate::Deflater,
        delta,
        depth::{Cut, boundary, reach_of},
        ewah::Ewah,
        plan, select, select_by_bitmap,
    },
};

use rustc_hash::FxHashSet;

/// Numbers from a fixed seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn run<T>(pace: &Pace, work: impl Future<Output = T>) -> T {
    pace.run(work, |_: Ask| Loose::Absent)
}

/// A set of 233 000 bits as a mirror's bitmaps are: runs of ones, runs of zeros, mixed words.
fn set() -> (Vec<u8>, Vec<u64>) {
    let mut dice = Dice(0x9e37_79b9);
    let (mut words, mut plain) = (Vec::new(), Vec::new());
    while plain.len() < 3_500 {
        let (ones, run, literals) = (dice.next() & 1, dice.next() % 40, dice.next() % 12);
        words.push(ones | run << 1 | literals << 33);
        plain.extend((0..run).map(|_| if ones == 1 { u64::MAX } else { 0 }));
        for _ in 0..literals {
            words.push(dice.next());
            plain.extend(words.last());
        }
    }
    let mut bytes = (plain.len() as u32 * 64).to_be_bytes().to_vec();
    bytes.extend((words.len() as u32).to_be_bytes());
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes.extend([0; 4]);
    (bytes, plain)
}

fn ewah(c: &mut Criterion) {
    let (bytes, plain) = set();
    let mut room = vec![0; plain.len()];
    Ewah::parse(&bytes).unwrap().0.or_into(&mut room).unwrap();
    assert_eq!(room, plain);
    let mut group = c.benchmark_group("ewah");
    group.throughput(Throughput::Elements(plain.len() as u64));
    group.bench_function("or", |b| b.iter(|| Ewah::parse(black_box(&bytes)).unwrap().0.or_into(&mut room)));
    group.bench_function("xor", |b| b.iter(|| Ewah::parse(black_box(&bytes)).unwrap().0.xor_into(&mut room)));
    group.bench_function("is_within", |b| b.iter(|| Ewah::parse(black_box(&bytes)).unwrap().0.is_within(&plain)));
    group.finish();
}

fn push_size(out: &mut Vec<u8>, mut size: usize) {
    while size > 0x7f {
        out.push(0x80 | (size & 0x7f) as u8);
        size >>= 7;
    }
    out.push(size as u8);
}

/// A delta as an edit of a source file makes it: `edits` copies of what stands in place, a few new bytes after each.
fn edited(dice: &mut Dice, base: usize, edits: usize) -> Vec<u8> {
    let (mut instructions, mut result) = (Vec::new(), 0);
    let step = base / edits;
    for edit in 0..edits {
        let (offset, size) = ((edit * step) as u32, (step - 5).min(0xffff) as u16);
        instructions.push(0xbf);
        instructions.extend(offset.to_le_bytes());
        instructions.extend(size.to_le_bytes());
        let new = 1 + (dice.next() % 9) as u8;
        instructions.push(new);
        instructions.extend((0..new).map(|at| at + b'a'));
        result += usize::from(size) + usize::from(new);
    }
    let mut delta = Vec::new();
    push_size(&mut delta, base);
    push_size(&mut delta, result);
    delta.extend(instructions);
    delta
}

fn deltas(c: &mut Criterion) {
    let mut group = c.benchmark_group("delta");
    let pace = Pace::default();
    for (name, size, edits) in [("10 KB", 10_000, 5), ("100 KB", 100_000, 200), ("8 MB", 8_000_000, 2_000)] {
        let mut dice = Dice(7);
        let base: Vec<u8> = (0..size).map(|_| dice.next() as u8).collect();
        let inner = edited(&mut dice, size, edits);
        let made = run(&pace, delta::apply_paced(&base, &inner, 1 << 30, &pace)).unwrap();
        let outer = edited(&mut dice, made.len(), edits);
        let both = run(&pace, delta::apply_paced(&made, &outer, 1 << 30, &pace)).unwrap();
        let composed = delta::compose(&outer, &inner, 1 << 20).unwrap().unwrap();
        assert_eq!(run(&pace, delta::apply_paced(&base, &composed, 1 << 30, &pace)).unwrap(), both);
        group.throughput(Throughput::Bytes(made.len() as u64));
        group.bench_function(format!("apply, {name}"), |b| {
            b.iter(|| run(&pace, delta::apply_paced(black_box(&base), &inner, 1 << 30, &pace)));
        });
        group.throughput(Throughput::Elements(2 * edits as u64));
        group.bench_function(format!("compose, {name}"), |b| {
            b.iter(|| delta::compose(black_box(&outer), &inner, 1 << 20));
        });
    }
    group.finish();
}

/// The repository selections are made of.
fn repository() -> PathBuf {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    if let Some(named) = std::env::var_os("PACKRING_BENCH_REPO") {
        return named.into();
    }
    let folder = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let made = support::corpus::make(folder.path(), "a.git", support::corpus::MEDIUM);
        support::git(&made, &["-c", "repack.writeBitmaps=true", "repack", "-adbq"]);
        support::git(&made, &["commit-graph", "write", "--reachable"]);
        folder
    });
    folder.path().join("a.git")
}

/// The one pack of a repository with its bitmap, and what its refs name.
fn opened(repository: &Path) -> (Arc<Store>, Vec<ObjectId>, Option<Arc<CommitGraph>>) {
    let folder = repository.join("objects/pack");
    let bitmap = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let bitmap = bitmap.into_iter().find(|path| path.extension().is_some_and(|found| found == "bitmap")).unwrap();
    let map = |path: &Path| Mapping::of(&File::open(path).unwrap()).unwrap();
    let (data, index) = (map(&bitmap.with_extension("pack")), map(&bitmap.with_extension("idx")));
    let mut pack = Pack::open("pack", Kind::Sha1, data, index).unwrap();
    if bitmap.with_extension("rev").exists() {
        pack.read_order_from(map(&bitmap.with_extension("rev"))).unwrap();
    }
    let mut store = Store::new(Kind::Sha1, vec![Arc::new(pack)]).unwrap();
    store.set_chart(Chart::of_pack(&store, 0, map(&bitmap)).unwrap());
    let refs = std::fs::read_to_string(repository.join("packed-refs")).unwrap();
    let ids = refs.lines().filter_map(|line| from_hex(Kind::Sha1, line.as_bytes().get(..40)?)).collect();
    let graph = gix_commitgraph::at(repository.join("objects/info"), Kind::Sha1, None).ok();
    let file = repository.join("objects/info/commit-graph");
    let files = file.exists().then(|| map(&file)).into_iter().collect();
    (Arc::new(store), ids, graph.and_then(|graph| CommitGraph::of(graph, files, Kind::Sha1)).map(Arc::new))
}

/// All ids of a pack in random order, found by guessing and, for comparison, by halving.
fn find(c: &mut Criterion) {
    let repository = repository();
    let (store, _, _) = opened(&repository);
    let pack = &store.packs()[0];
    let mut ids: Vec<ObjectId> =
        (0..pack.count()).filter_map(|index| pack.id_at(index).map(ToOwned::to_owned)).collect();
    let mut dice = Dice(11);
    for at in (1..ids.len()).rev() {
        ids.swap(at, (dice.next() >> 16) as usize % (at + 1));
    }
    let path =
        std::fs::read_dir(Path::new(&repository).join("objects/pack")).unwrap().map(|entry| entry.unwrap().path());
    let path = path.into_iter().find(|path| path.extension().is_some_and(|found| found == "idx")).unwrap();
    let index = gix_pack::index::File::at(path, Kind::Sha1).unwrap();
    assert!(ids.iter().all(|id| pack.find(id) == index.lookup(id) && pack.find(id).is_some()));
    let mut group = c.benchmark_group("finding every id of a pack");
    group.sample_size(20).throughput(Throughput::Elements(ids.len() as u64));
    group.bench_function("guessing", |b| {
        b.iter(|| ids.iter().filter_map(|id| pack.find(id)).map(u64::from).sum::<u64>());
    });
    group.bench_function("halving", |b| {
        b.iter(|| ids.iter().filter_map(|id| index.lookup(id)).map(u64::from).sum::<u64>());
    });
    group.finish();
}

fn selection(c: &mut Criterion) {
    let repository = repository();
    let (store, ids, graph) = opened(&repository);
    let objects_of = |store: &Arc<Store>| match &graph {
        Some(graph) => Objects::new(Arc::clone(store), &[], Pace::default()).with_graph(Arc::clone(graph)),
        None => Objects::new(Arc::clone(store), &[], Pace::default()),
    };
    let objects = || objects_of(&store);
    // A pack that nothing is known of yet.
    let fresh = || objects_of(&opened(Path::new(&repository)).0);
    let wants: Vec<u32> = ids.iter().filter_map(|id| store.find(id)).collect();
    let question = Question { wants, ..Question::default() };
    let by_bitmap = |mut objects: Objects| {
        let pace = objects.pace().clone();
        run(&pace, select_by_bitmap(&mut objects, &question)).unwrap()
    };
    let by_walk = |mut objects: Objects| {
        let pace = objects.pace().clone();
        run(&pace, select(&mut objects, &question)).unwrap()
    };
    let (found, way) = by_bitmap(objects());
    assert_eq!(found.chosen, by_walk(objects()).chosen);
    println!("{} wants, {} objects, {way:?}", question.wants.len(), found.chosen.count());
    let mut group = c.benchmark_group("selection");
    group.sample_size(10);
    group.bench_function("mirror clone by bitmap", |b| b.iter_batched(fresh, by_bitmap, BatchSize::PerIteration));
    let (again, way) = by_bitmap(objects());
    assert_eq!(again.chosen, found.chosen);
    println!("again: {way:?}");
    group.bench_function("mirror clone by bitmap, sealed", |b| {
        b.iter_batched(objects, by_bitmap, BatchSize::PerIteration);
    });
    group.bench_function("mirror clone by walk", |b| b.iter_batched(objects, by_walk, BatchSize::PerIteration));
    // What a client lacks who was here twenty commits ago.
    let mut looking = objects();
    let pace = looking.pace().clone();
    let newest = question
        .wants
        .iter()
        .copied()
        .filter(|want| store.chart().is_some_and(|chart| chart.stored(&store, *want).is_some()));
    let tip = newest.max_by_key(|want| run(&pace, looking.commit(*want)).unwrap().time).unwrap();
    let mut had = tip;
    for _ in 0..20 {
        let commit = run(&pace, looking.commit(had)).unwrap();
        had = looking.parents(&commit).first().copied().unwrap_or(had);
    }
    let fetch = Question { wants: vec![tip], haves: vec![had], ..Question::default() };
    let by_bitmap = |mut objects: Objects| {
        let pace = objects.pace().clone();
        run(&pace, select_by_bitmap(&mut objects, &fetch)).unwrap()
    };
    let by_walk = |mut objects: Objects| {
        let pace = objects.pace().clone();
        run(&pace, select(&mut objects, &fetch)).unwrap()
    };
    let (found, way) = by_bitmap(objects());
    println!("fetch: {} objects, by walk {}, {way:?}", found.chosen.count(), by_walk(objects()).chosen.count());
    group.bench_function("fetch of 20 commits by bitmap", |b| {
        b.iter_batched(objects, by_bitmap, BatchSize::PerIteration);
    });
    group.bench_function("fetch of 20 commits by walk", |b| b.iter_batched(objects, by_walk, BatchSize::PerIteration));
    let chart = || opened(Path::new(&repository)).0;
    group.bench_function("chart, first use", |b| {
        let pace = Pace::default();
        let first = |store: Arc<Store>| run(&pace, store.chart().unwrap().positions(&store, &pace)).unwrap().len();
        b.iter_batched(chart, first, BatchSize::PerIteration);
    });
    group.finish();
}

/// Saying what was selected: a whole pack, all that main reaches, and one commit deep.
fn planning(c: &mut Criterion) {
    let (store, ids, _) = opened(&repository());
    let objects = || Objects::new(Arc::clone(&store), &[], Pace::default());
    let mut looking = objects();
    let pace = looking.pace().clone();
    let wants: Vec<u32> = ids.iter().filter_map(|id| store.find(id)).collect();
    let all = Question { wants, ..Question::default() };
    let one = Question { wants: all.wants[..1].to_vec(), ..Question::default() };
    let shallow = run(&pace, async {
        let cut = boundary(&mut looking, &all.wants, &[], &FxHashSet::default(), &Cut::Depth(1)).await.unwrap();
        let reach = reach_of(&mut looking, &[], &cut).await.unwrap();
        Question { cut: reach.cut, ..all.clone() }
    });
    let mut group = c.benchmark_group("planning");
    group.sample_size(10);
    for (name, question) in [("everything", &all), ("all below one ref", &one), ("one commit deep", &shallow)] {
        let selection = run(&pace, select(&mut looking, question)).unwrap();
        let say = |mut objects: Objects, selection: &Selection| {
            let pace = objects.pace().clone();
            run(&pace, plan(&mut objects, selection, Dialect { ofs_delta: true, thin: false })).unwrap()
        };
        let said = say(objects(), &selection);
        assert_eq!(u64::from(said.counts.objects), selection.chosen.count());
        println!("{name}: {:?}, {} bytes", said.counts, said.size());
        group.throughput(Throughput::Elements(selection.chosen.count()));
        group.bench_function(name, |b| {
            b.iter_batched(objects, |objects| say(objects, &selection), BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// What is deflated in one go: text like that of sources, as large as most blobs are.
fn deflate(c: &mut Criterion) {
    let mut dice = Dice(0x51);
    let words = ["ring", "frame", "window", "pack", "delta", "base", "entry", "{\n", "}\n", "    ", ";\n", "let "];
    let mut group = c.benchmark_group("deflate");
    for size in [300usize, 8_000, 200_000] {
        let mut text = Vec::with_capacity(size + 8);
        while text.len() < size {
            text.extend_from_slice(words[(dice.next() >> 20) as usize % words.len()].as_bytes());
        }
        let (mut deflater, mut out) = (Deflater::new(), Vec::new());
        deflater.append(&text, &mut out);
        let mut back = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&out[..]), &mut back).unwrap();
        assert!(back == text && out.len() < size);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(format!("{size} bytes"), |b| {
            b.iter(|| {
                out.clear();
                deflater.append(black_box(&text), &mut out);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, ewah, deltas, deflate, find, selection, planning);
criterion_main!(benches);
