//! Whole visits over an empty folder, with the bytes split as the input says. Judge: a visit always ends, never goes on
//! after the end of its peer, and answers the same however its bytes are split.
#![no_main]

use std::{io::IoSlice, rc::Rc, sync::OnceLock, time::Duration};

use libfuzzer_sys::fuzz_target;
use packring::{
    conn::{self, Need, Rules, Step},
    repo::{Catalogue, CatalogueOptions},
};

fn catalogue() -> &'static Catalogue {
    static FOLDER: OnceLock<Catalogue> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let root = std::env::temp_dir().join("packring-fuzz-empty");
        std::fs::create_dir_all(&root).expect("a temporary folder");
        Catalogue::open(CatalogueOptions { root, ..CatalogueOptions::default() }).expect("an empty folder")
    })
}

fn visit(parts: &[&[u8]]) -> Vec<u8> {
    let mut counter = conn::visit(Rc::new(Rules::default()), conn::Peer { source: [127, 0, 0, 1].into(), secure: false });
    let (mut parts, mut out, mut now) = (parts.iter(), Vec::new(), Duration::ZERO);
    for _ in 0..10_000 {
        now += Duration::from_micros(1);
        match counter.poll(now) {
            Step::Close => return out,
            Step::Read { .. } => match parts.next() {
                Some(part) => counter.handle_bytes(part),
                None => counter.handle_end(),
            },
            Step::Send(frame) => {
                let mut slices: Vec<IoSlice<'_>> = Vec::new();
                frame.slices(&mut slices);
                out.extend(slices.iter().flat_map(|slice| slice.iter().copied()));
                counter.handle_sent();
            }
            Step::Slice | Step::Wait(_) => counter.handle_turn(),
            Step::Need(Need::Snapshot { path, fresh }) => counter.handle_snapshot(catalogue().snapshot(&path, fresh)),
            Step::Need(_) => counter.handle_part(None),
        }
    }
    panic!("a visit that never ends");
}

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let cut = usize::from(cut).min(bytes.len());
    let whole = visit(&[bytes]);
    let split = visit(&[&bytes[..cut], &bytes[cut..]]);
    // A refusal may come earlier when the bytes that earn it come alone; an answer may not.
    if whole.starts_with(b"HTTP/1.1 2") || split.starts_with(b"HTTP/1.1 2") {
        assert_eq!(whole, split);
    }
});
