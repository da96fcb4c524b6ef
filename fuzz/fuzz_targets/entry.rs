//! Entry headers. Judge: what was read is within the bytes; written again it reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packring::{
    oid::Kind,
    pack::entry::{self, Entry, EntryKind},
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(read) = Entry::parse(bytes, Kind::Sha1) else { return };
    assert!(read.size_bytes <= read.header_size && read.header_size <= bytes.len());
    let mut again = Vec::new();
    match &read.kind {
        EntryKind::Whole(object) => entry::push_whole(&mut again, *object, read.size),
        EntryKind::OfsDelta { distance } => entry::push_ofs_delta(&mut again, *distance, read.size),
        EntryKind::RefDelta { base } => entry::push_ref_delta(&mut again, base, read.size),
    }
    let second = Entry::parse(&again, Kind::Sha1).expect("what we write");
    assert_eq!((read.kind, read.size), (second.kind, second.size));
});
