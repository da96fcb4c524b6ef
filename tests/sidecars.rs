//! Files beside the packs, cut short at every 64th byte and with flipped bits: the pack that is planned is right each time.
//!
//! In one process, so that hundreds of cases take seconds.

mod support;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use packring::{
    oid::ObjectId,
    pack::{self, Checksum, Dialect, Objects, Pace, Plan, Question, select_by_bitmap},
    repo::{Absent, Catalogue, CatalogueOptions, Snapshot},
};
use support::{corpus, git, ids_of_pack, reachable};

fn snapshot(root: &Path) -> Result<Arc<Snapshot>, Absent> {
    let options = CatalogueOptions { root: root.to_owned(), ..CatalogueOptions::default() };
    Catalogue::open(options).unwrap().snapshot(b"a", false)
}

/// What a mirror clone would be sent.
fn plan(snapshot: &Snapshot) -> Result<Plan, pack::Fault> {
    let pace = Pace::default();
    let mut objects = Objects::new(Arc::clone(&snapshot.store), &snapshot.shallow, pace.clone());
    if let Some(graph) = &snapshot.graph {
        objects = objects.with_graph(Arc::clone(graph));
    }
    let ids: BTreeSet<ObjectId> = snapshot.refs.iter().map(|found| found.id).collect();
    let work = async {
        let mut question = Question::default();
        for id in ids {
            question.wants.push(objects.demand(&id).await?);
        }
        let (selection, _) = select_by_bitmap(&mut objects, &question).await?;
        pack::plan(&mut objects, &selection, Dialect { ofs_delta: true, thin: false }).await
    };
    pace.run(work, |ask| snapshot.loose(ask))
}

fn bytes_of(plan: &Plan) -> Vec<u8> {
    let mut bytes: Vec<u8> = plan.pieces().iter().flat_map(|piece| plan.bytes(*piece).to_vec()).collect();
    if !plan.has_own_trailer() {
        let mut sum = Checksum::new(plan.kind());
        sum.update(&bytes);
        bytes.extend_from_slice(sum.finish().as_bytes());
    }
    bytes
}

fn hurt(sound: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut cases: Vec<(String, Vec<u8>)> =
        (0..sound.len()).step_by(64).map(|end| (format!("cut at {end}"), sound[..end].to_vec())).collect();
    for at in (0..sound.len()).step_by(37) {
        let mut flipped = sound.to_vec();
        flipped[at] ^= 1 << (at % 8);
        cases.push((format!("bit {} of byte {at} flipped", at % 8), flipped));
    }
    cases
}

fn ending_with(repository: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository.join("objects/pack")).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

/// Hurts each of the files in every way.
fn check(root: &Path, repository: &Path, files: &[PathBuf]) {
    let expected = reachable(repository, &["--all"]);
    // What the client has is no part of this: an empty repository takes the packs.
    git(root, &["init", "-q", "--bare", "client"]);
    let (client, mut cases) = (root.join("client"), 0);
    for path in files {
        let sound = fs::read(path).unwrap();
        for (how, bytes) in hurt(&sound) {
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
            cases += 1;
            let said = format!("{} {how}", path.display());
            match snapshot(root).map(|snapshot| plan(&snapshot)) {
                Ok(Ok(plan)) => {
                    assert!(ids_of_pack(&client, &bytes_of(&plan)) == expected, "{said}: another set of objects");
                }
                Ok(Err(fault)) => panic!("{said}: {fault}"),
                Err(absent) => panic!("{said}: {absent}"),
            }
        }
        fs::remove_file(path).unwrap();
        fs::write(path, sound).unwrap();
    }
    assert!(cases > 20 * files.len(), "{cases} cases");
}

fn repository(root: &Path) -> PathBuf {
    let repository = corpus::make(root, "a.git", corpus::SMALL);
    git(&repository, &["-c", "repack.writeBitmaps=true", "-c", "pack.writeBitmapLookupTable=true", "repack", "-adbq"]);
    git(&repository, &["commit-graph", "write", "--reachable"]);
    repository
}

#[test]
fn bitmaps_orders_and_graphs_of_a_pack_may_be_hurt_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let repository = repository(folder.path());
    let mut files = [ending_with(&repository, ".bitmap"), ending_with(&repository, ".rev")].concat();
    files.push(repository.join("objects/info/commit-graph"));
    assert_eq!(files.len(), 3);
    check(folder.path(), &repository, &files);
}

#[test]
fn multi_pack_indexes_and_their_bitmaps_may_be_hurt_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let repository = repository(folder.path());
    git(&repository, &["multi-pack-index", "write", "--bitmap"]);
    for bitmap in ending_with(&repository, ".bitmap") {
        if !bitmap.to_str().unwrap().contains("multi-pack-index") {
            fs::remove_file(bitmap).unwrap();
        }
    }
    let mut files = ending_with(&repository, ".bitmap");
    files.push(repository.join("objects/pack/multi-pack-index"));
    assert_eq!(files.len(), 2);
    check(folder.path(), &repository, &files);
}
