//! What this room promises as a whole, with git as the judge.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    fixture::{Dice, Repository, map_bytes},
    *,
};
use crate::{
    oid::{Kind, ObjectId},
    pack::{
        depth::{Boundary, Cut, boundary},
        entry::EntryKind,
        reach::Haves,
    },
};

/// Ids a selection chose.
pub fn chosen(objects: &Objects, selection: &Selection) -> BTreeSet<ObjectId> {
    selection.chosen.iter_from(0).map(|position| objects.id(position).unwrap()).collect()
}

/// What `git rev-list --objects` lists.
pub fn listed(repository: &Repository, wants: &[ObjectId], haves: &[ObjectId]) -> BTreeSet<ObjectId> {
    let input: String =
        wants.iter().map(|id| format!("{id}\n")).chain(haves.iter().map(|id| format!("^{id}\n"))).collect();
    let lines = repository.git_fed(&["rev-list", "--objects", "--stdin"], input.as_bytes());
    repository.parse_ids(&lines).into_iter().collect()
}

/// All ids refs name, tags of tags and of trees and blobs among them.
pub fn tips(repository: &Repository) -> Vec<ObjectId> {
    repository.ids(&["for-each-ref", "--format=%(objectname)"])
}

pub fn walk(repository: &Repository, objects: &mut Objects, wants: &[ObjectId], haves: &[ObjectId]) -> Selection {
    let question = Question {
        wants: repository.locate(objects, wants),
        haves: repository.locate(objects, haves),
        ..Question::default()
    };
    let pace = objects.pace().clone();
    repository.run(&pace, select(objects, &question)).unwrap()
}

/// The bytes of a plan with its trailer.
fn written(plan: &Plan) -> Vec<u8> {
    assert!(plan.tail().is_empty());
    let mut bytes: Vec<u8> = plan.pieces().iter().flat_map(|piece| plan.bytes(*piece)).copied().collect();
    if !plan.has_own_trailer() {
        let mut sum = Checksum::new(plan.kind());
        sum.update(&bytes);
        bytes.extend_from_slice(sum.finish().as_bytes());
    }
    bytes
}

/// A few of `from`.
pub fn some(dice: &mut Dice, from: &[ObjectId], most: usize) -> Vec<ObjectId> {
    (0..dice.below(most + 1)).map(|_| from[dice.below(from.len())]).collect()
}

/// A repository with tags of a tag, a tree and a blob.
pub fn tagged(seed: u64) -> Repository {
    let repository = Repository::packed(seed, 40);
    for (name, of) in [("of-tag", format!("t{seed}-")), ("of-tree", format!("b{seed}-")), ("of-blob", String::new())] {
        let what = match name {
            "of-tag" => {
                let tags = repository.git(&["tag", "--list", &format!("{of}*")]);
                tags.lines().next().unwrap_or("HEAD").to_owned()
            }
            "of-tree" => {
                repository.git(&["rev-parse", &format!("{}^{{tree}}", repository.ids(&["rev-list", "--all"])[0])])
            }
            _ => {
                let commit = repository.ids(&["rev-list", "--all"])[0];
                let blobs = repository.git(&["ls-tree", "-r", &commit.to_string()]);
                blobs.split_whitespace().nth(2).unwrap().to_owned()
            }
        };
        repository.git(&["-c", "advice.nestedTag=false", "tag", "-a", "-m", name, name, &what]);
    }
    repository.git(&["repack", "-adbfq"]);
    repository
}

#[test]
fn an_object_in_two_packs_has_one_position() {
    let repository = Repository::packed(1, 30);
    let tip = tips(&repository)[0];
    repository.git_fed(&["pack-objects", "-q", "--revs", "objects/pack/pack"], format!("{tip}\n").as_bytes());
    let store = repository.store();
    assert_eq!(store.packs().len(), 2);
    let mut seen = 0;
    for position in 0..store.total() {
        let id = store.id(position).unwrap();
        let found = store.find(&id).unwrap();
        assert_eq!(store.id(found), Some(id));
        seen += usize::from(found != position);
    }
    // Every object of one pack is in the other, and is found there or here but not in both.
    assert_eq!(seen as u32, store.packs().iter().map(|pack| pack.count()).min().unwrap());
    assert_eq!(store.place(store.total()).map(|place| place.0), None);
}

#[test]
fn ids_are_found_where_the_index_has_them() {
    for version in ["1", "2"] {
        let repository = Repository::packed(6, 60);
        let path = &repository.pack_files("pack")[0];
        let name = path.to_str().unwrap();
        repository.git(&["index-pack", &format!("--index-version={version}"), "-o", "x.idx", name]);
        std::fs::rename(repository.path().join("x.idx"), path.with_extension("idx")).unwrap();
        let pack = repository.pack_of(path);
        let mut dice = Dice::new(6);
        for index in 0..pack.count() {
            let id = pack.id_at(index).unwrap().to_owned();
            assert_eq!(pack.find(&id), Some(index));
            // Neighbours: the same but for the last byte, or but for a few in the middle.
            for at in [1, 2, 4, 5, 19] {
                let mut raw = id.as_bytes().to_vec();
                raw[at] = raw[at].wrapping_add(1 + dice.below(255) as u8);
                assert_eq!(pack.find(&ObjectId::try_from(raw.as_slice()).unwrap()), None);
            }
        }
        for byte in 0..=255 {
            assert_eq!(pack.find(&ObjectId::try_from([byte; 20].as_slice()).unwrap()), None);
        }
    }
}

#[test]
fn every_entry_ends_where_the_next_begins() {
    for kind in [Kind::Sha1, Kind::Sha256] {
        let repository = Repository::empty(kind);
        repository.grow(2, 30);
        repository.git(&["repack", "-adfq"]);
        let store = repository.store();
        let pack = &store.packs()[0];
        let mut deltas = 0;
        for position in 0..pack.count() {
            let offset = pack.offset_in_order(position).unwrap();
            assert_eq!(pack.position_of_offset(offset), Some(position));
            assert_eq!(pack.position_of_offset(offset + 1), None);
            let entry = pack.entry(offset).unwrap();
            deltas += usize::from(!matches!(entry.kind, EntryKind::Whole(_)));
            let mut inflate = flate2::Decompress::new(true);
            let mut out = vec![0; entry.size as usize + 1];
            let stream = &pack.tail(offset)[entry.header_size..];
            inflate.decompress(stream, &mut out, flate2::FlushDecompress::Finish).unwrap();
            assert_eq!(inflate.total_out(), entry.size);
            let end = offset + entry.header_size as u64 + inflate.total_in();
            assert_eq!(pack.offset_in_order(position + 1), Some(end));
        }
        assert!(deltas > 10);
        assert_eq!(pack.offset_in_order(pack.count() + 1), None);
    }
}

#[test]
fn objects_read_equal_those_of_git_cat_file() {
    for kind in [Kind::Sha1, Kind::Sha256] {
        let repository = Repository::empty(kind);
        repository.grow(3, 60);
        repository.git(&["repack", "-adfq", "--depth=200", "--window=50"]);
        let answers = repository.git_bytes(&["cat-file", "--batch-all-objects", "--batch", "--unordered"], b"");
        let mut objects = repository.objects();
        let pace = objects.pace().clone();
        let (mut rest, mut count) = (answers.as_slice(), 0);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let words: Vec<&str> = std::str::from_utf8(&rest[..end]).unwrap().split(' ').collect();
            let size: usize = words[2].parse().unwrap();
            let position = objects.store().find(&ObjectId::from_hex(words[0].as_bytes()).unwrap()).unwrap();
            let object = repository.run(&pace, objects.read(position)).unwrap();
            assert_eq!(object.object.name(), words[1]);
            assert_eq!(objects.type_of(position).unwrap(), object.object);
            assert_eq!(objects.size(position).unwrap(), size as u64);
            assert!(*object.bytes == rest[end + 1..][..size], "{}", words[0]);
            rest = &rest[end + 1 + size + 1..];
            count += 1;
        }
        assert_eq!(count, objects.store().total());
    }
}

#[test]
fn walks_choose_what_rev_list_lists() {
    for seed in 10..14 {
        let repository = tagged(seed);
        let tips = tips(&repository);
        let commits = repository.ids(&["rev-list", "--all"]);
        let all = [&tips[..], &commits].concat();
        let mut dice = Dice::new(seed);
        let mut objects = repository.objects();
        let selection = walk(&repository, &mut objects, &tips, &[]);
        assert_eq!(chosen(&objects, &selection), listed(&repository, &tips, &[]));
        for round in 0..12 {
            let (wants, haves) = (some(&mut dice, &all, 3), some(&mut dice, &commits, 3));
            let mut objects = repository.objects();
            let selection = walk(&repository, &mut objects, &wants, &haves);
            assert_eq!(
                chosen(&objects, &selection),
                listed(&repository, &wants, &haves),
                "seed {seed} round {round}: {wants:?} not {haves:?}"
            );
        }
    }
}

#[test]
fn commits_of_a_loose_repository_are_walked() {
    let repository = Repository::empty(Kind::Sha1);
    repository.grow(4, 9);
    assert!(repository.pack_files("pack").is_empty());
    let tips = tips(&repository);
    let mut objects = repository.objects();
    let selection = walk(&repository, &mut objects, &tips, &[]);
    assert_eq!(chosen(&objects, &selection), listed(&repository, &tips, &[]));
    assert!(selection.chosen.count() > 20);
}

#[test]
fn planned_packs_hold_exactly_the_selection() {
    let repository = tagged(20);
    // A second pack and loose objects on top, some of them in both.
    repository.grow(21, 40);
    repository.git(&["repack", "-q"]);
    repository.grow(22, 5);
    let tips = tips(&repository);
    let commits = repository.ids(&["rev-list", "--all"]);
    let mut dice = Dice::new(20);
    let dialects = [(false, false), (true, false), (false, true), (true, true)];
    for round in 0..12 {
        let (wants, haves) = if round < 4 {
            (tips.clone(), Vec::new())
        } else {
            (some(&mut dice, &tips, 4), some(&mut dice, &commits, 2))
        };
        let (ofs_delta, thin) = dialects[round % 4];
        let mut objects = repository.objects();
        let selection = walk(&repository, &mut objects, &wants, &haves);
        let pace = objects.pace().clone();
        let plan = plan(&mut objects, &selection, Dialect { ofs_delta, thin });
        let plan = repository.run(&pace, plan).unwrap();
        let sent = chosen(&objects, &selection);
        assert_eq!(plan.counts.objects as usize, sent.len());
        let pack = written(&plan);
        assert_eq!(pack.len() as u64, plan.size() + if plan.has_own_trailer() { 0 } else { 20 });
        let client = client_with(&repository, &haves);
        client.git_fed(&["index-pack", "--strict", "--fix-thin", "--stdin", "x.pack"], &pack);
        let held: BTreeSet<_> = client.parse_ids(&shown(&client)).into_iter().collect();
        if haves.is_empty() {
            assert_eq!(held, sent, "round {round}");
        } else {
            assert!(held.is_superset(&sent), "round {round}");
            let count = u32::from_be_bytes(pack[8..12].try_into().unwrap());
            assert_eq!(count as usize, sent.len());
        }
    }
}

/// Ids in `x.idx`.
fn shown(client: &Repository) -> String {
    let index = std::fs::read(client.path().join("x.idx")).unwrap();
    let lines = client.git_fed(&["show-index"], &index);
    lines.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned() + "\n").collect()
}

/// A repository that holds all that is reachable from `haves`.
fn client_with(server: &Repository, haves: &[ObjectId]) -> Repository {
    let client = Repository::empty(server.kind);
    let input = haves.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n";
    if !haves.is_empty() {
        let pack = server.git_bytes(&["pack-objects", "-q", "--revs", "--stdout"], input.as_bytes());
        client.git_bytes(&["index-pack", "--stdin"], &pack);
    }
    client
}

/// Two lines of history, four commits each, without a common ancestor; the ids of both, oldest first.
fn two_lines() -> (Repository, [Vec<ObjectId>; 2]) {
    let repository = Repository::empty(Kind::Sha1);
    let line = |name: &str| {
        let mut stream = String::new();
        for number in 0..4 {
            let time = 1_600_000_000 + number * 100;
            stream += &format!("commit refs/heads/{name}\ncommitter N <n@x> {time} +0000\ndata 4\n{name}{number}\n");
        }
        repository.git_fed(&["fast-import", "--quiet"], stream.as_bytes());
        repository.ids(&["rev-list", "--reverse", name])
    };
    let lines = [line("one"), line("two")];
    repository.git(&["repack", "-adq"]);
    (repository, lines)
}

#[test]
fn ready_waits_for_every_want() {
    let (repository, [one, two]) = two_lines();
    let mut objects = repository.objects();
    let wants = repository.locate(&mut objects, &[one[3], two[3]]);
    let said = repository.locate(&mut objects, &[one[2], two[2], one[1]]);
    let pace = objects.pace().clone();
    let mut haves = Haves::default();
    let mut ready = Vec::new();
    for have in [None, Some(said[0]), Some(said[1]), Some(said[2])] {
        repository.run(&pace, haves.push(&mut objects, have)).unwrap();
        ready.push(repository.run(&pace, haves.ready_after(&mut objects, &wants)).unwrap());
    }
    assert_eq!(ready, [None, None, Some(3), Some(3)]);
}

#[test]
fn depth_counts_the_shortest_way() {
    let repository = Repository::empty(Kind::Sha1);
    // 1 <- 2 <- 3 <- 4 <- 5, and 5 is a merge of 4 and 1.
    let mut stream = String::new();
    for number in 1..=5 {
        let time = 1_600_000_000 + number * 100;
        stream += &format!("commit refs/heads/m\nmark :{number}\ncommitter N <n@x> {time} +0000\ndata 1\n{number}\n");
        if number == 5 {
            stream += "from :4\nmerge :1\n";
        }
    }
    repository.git_fed(&["fast-import", "--quiet"], stream.as_bytes());
    repository.git(&["repack", "-adq"]);
    let ids = repository.ids(&["rev-list", "--reverse", "m"]);
    let mut objects = repository.objects();
    let at = repository.locate(&mut objects, &ids);
    let pace = objects.pace().clone();
    let mut cut = |depth, client: &[u32]| {
        let cut = Cut::Depth(depth);
        let none = rustc_hash::FxHashSet::default();
        let boundary = pace.run(boundary(&mut objects, &[at[4]], client, &none, &cut), |_| unreachable!());
        let Boundary { mut shallow, mut unshallow } = boundary.unwrap();
        shallow.sort_unstable_by_key(|position| at.iter().position(|known| known == position));
        unshallow.sort_unstable();
        (shallow, unshallow)
    };
    assert_eq!(cut(1, &[]), (vec![at[4]], vec![]));
    assert_eq!(cut(2, &[at[4]]), (vec![at[0], at[3]], vec![at[4]]));
    // The oldest commit is 2 away by the short way, so nothing of it is cut at 3.
    assert_eq!(cut(3, &[at[3]]), (vec![at[2]], vec![at[3]]));
    assert_eq!(cut(5, &[]), (vec![], vec![]));
}

#[test]
fn stores_are_shared_between_pieces_of_work() {
    fn is_shared<T: Send + Sync>(value: Arc<T>) -> Arc<T> {
        value
    }
    let repository = Repository::packed(5, 10);
    assert!(is_shared(repository.store()).total() > 0);
}

#[test]
fn a_flipped_bit_in_pack_or_index_is_seen() {
    let repository = Repository::packed(31, 20);
    let [data, index] = ["pack", "idx"].map(|end| std::fs::read(&repository.pack_files(end)[0]).unwrap());
    let intact = |data: &[u8], index: &[u8]| {
        let pack = Pack::open("x", repository.kind, map_bytes(data), map_bytes(index)).unwrap();
        let pace = Pace::default();
        pace.run(pack.is_intact(&pace), |_| unreachable!())
    };
    assert!(intact(&data, &index));
    for (of_pack, at) in [(true, 20), (true, data.len() / 2), (false, index.len() / 2), (false, index.len() - 60)] {
        let (mut data, mut index) = (data.clone(), index.clone());
        if of_pack {
            data[at] ^= 4;
        } else {
            index[at] ^= 4;
        }
        assert!(!intact(&data, &index), "byte {at} of the {}", if of_pack { "pack" } else { "index" });
    }
}
