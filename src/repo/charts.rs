//! Files beside the packs that make answers cheaper: bitmaps, multi-pack-indexes with a bitmap, the commit-graph.
//!
//! Opens them and says once what is wrong with one; never makes a repository unservable. Invariant: what is broken or does not
//! belong to these packs is done without.
//! Source: gitformat-pack(5); gitformat-commit-graph(5); gitformat-bitmap(5). Read first: `bitmaps_and_graphs_are_found`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::packs::map;
use crate::{
    limits,
    oid::{Kind, ObjectId, push_hex},
    pack::{Store, chart::Chart, graph::CommitGraph, midx::Midx},
    stamp::{Stamp, Stamps},
};

/// Gives `store` the bitmap of its packs, if one of the object folders has one: that of a multi-pack-index first, as git
/// prefers it, else that of the largest pack.
pub fn find_chart(store: &mut Store, folders: &[PathBuf]) {
    let chart = folders.iter().find_map(|folder| of_midx(store, &folder.join("pack")));
    if let Some(chart) = chart.or_else(|| of_pack(store, folders)) {
        store.set_chart(chart);
    }
}

fn of_midx(store: &Store, folder: &Path) -> Option<Chart> {
    let path = folder.join("multi-pack-index");
    let index = map(&path).ok()?;
    let found = match Midx::open(index, store.kind()) {
        Ok(midx) => {
            let bitmap = folder.join(format!("multi-pack-index-{}.bitmap", hex(midx.checksum())));
            let bitmap = map(&bitmap).ok()?;
            Chart::of_midx(store, midx, bitmap).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    found.inspect_err(|error| tracing::warn!(file = %path.display(), "done without: {error}")).ok()
}

fn of_pack(store: &Store, folders: &[PathBuf]) -> Option<Chart> {
    store.packs().iter().enumerate().find_map(|(number, pack)| {
        let name = format!("{}.bitmap", pack.name());
        let path = folders.iter().map(|folder| folder.join("pack").join(&name)).find(|path| path.exists())?;
        let bitmap = map(&path).ok()?;
        let chart = Chart::of_pack(store, number, bitmap);
        chart.inspect_err(|error| tracing::warn!(file = %path.display(), "done without: {error}")).ok()
    })
}

fn hex(id: &ObjectId) -> String {
    let mut text = Vec::with_capacity(64);
    push_hex(&mut text, id);
    String::from_utf8_lossy(&text).into_owned()
}

/// The commit-graph of the repository with that object folder; what it is made of is stamped.
pub fn find_graph(objects: &Path, kind: Kind, stamps: &mut Stamps) -> Option<Arc<CommitGraph>> {
    let info = objects.join("info");
    let single = stamps.watch(&info.join("commit-graph")).is_there();
    let chain = stamps.watch(&info.join("commit-graphs/commit-graph-chain")).is_there();
    if !single && !chain {
        return None;
    }
    match open_graph(&info, kind) {
        Ok(graph) => graph.map(Arc::new),
        Err(error) => {
            tracing::warn!(folder = %objects.display(), "the commit-graph is done without: {error}");
            None
        }
    }
}

/// The graph, and its files a second time to be compared with their checksums; the same files, if no stamp changed meanwhile.
fn open_graph(info: &Path, kind: Kind) -> Result<Option<CommitGraph>, Box<dyn std::error::Error + Send + Sync>> {
    let (single, chains) = (info.join("commit-graph"), info.join("commit-graphs"));
    let mut paths = vec![single.clone()];
    if !Stamp::of(&single).is_there() {
        let chain = std::fs::read_to_string(chains.join("commit-graph-chain"))?;
        let hashes = chain.lines().filter(|hash| hash.bytes().all(|digit| digit.is_ascii_hexdigit()));
        paths = hashes.map(|hash| chains.join(format!("graph-{hash}.graph"))).collect();
    }
    let stamps = || paths.iter().map(|path| Stamp::of(path)).collect::<Vec<_>>();
    let before = stamps();
    let files = paths.iter().map(|path| map(path)).collect::<std::io::Result<Vec<_>>>()?;
    let graph = gix_commitgraph::at(info, kind, Some(limits::GRAPH_SIZE_MAX))?;
    Ok(if stamps() == before { CommitGraph::of(graph, files, kind) } else { None })
}

#[cfg(test)]
mod tests {
    use crate::{
        oid::Kind,
        repo::{
            Catalogue, CatalogueOptions,
            catalogue::tests::{commit, git},
            charts::find_graph,
        },
        stamp::Stamps,
    };

    #[test]
    fn bitmaps_and_graphs_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "-q", "--bare", "a.git"]);
        let path = root.join("a.git");
        git(&path, &["update-ref", "refs/heads/main", &commit(&path, "x")]);
        git(&path, &["config", "repack.writeBitmaps", "true"]);
        git(&path, &["repack", "-adbq"]);
        let found = Catalogue::open(CatalogueOptions { root: root.to_owned(), ..CatalogueOptions::default() }).unwrap();
        let has_chart = || found.snapshot(b"/a", true).unwrap().store.chart().is_some();
        assert!(has_chart(), "the bitmap of the pack");
        for entry in std::fs::read_dir(path.join("objects/pack")).unwrap().flatten() {
            if entry.path().extension().is_some_and(|end| end == "bitmap") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        assert!(!has_chart());
        git(&path, &["multi-pack-index", "write", "--bitmap"]);
        assert!(has_chart(), "the bitmap of the multi-pack-index");
        assert!(find_graph(&path.join("objects"), Kind::Sha1, &mut Stamps::default()).is_none());
        git(&path, &["commit-graph", "write", "--reachable"]);
        assert!(find_graph(&path.join("objects"), Kind::Sha1, &mut Stamps::default()).is_some());
        std::fs::remove_file(path.join("objects/info/commit-graph")).unwrap();
        std::fs::write(path.join("objects/info/commit-graph"), "nothing").unwrap();
        assert!(find_graph(&path.join("objects"), Kind::Sha1, &mut Stamps::default()).is_none());
        assert!(found.snapshot(b"/a", true).is_ok());
    }
}
