//! Request bodies. Judge: a body split in two at any place is the same body, bounded, and ends at the same byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packring::{
    http::{BodyReader, HeadReader},
    limits,
};

fuzz_target!(|input: (bool, bool, u8, u8, &[u8])| {
    let (gzip, chunked, length, cut, bytes) = input;
    let coding = if gzip { "Content-Encoding: gzip\r\n" } else { "" };
    let length = if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {length}") };
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{coding}{length}\r\n\r\n");
    let Ok((_, Some(head))) = HeadReader::new().take(head.as_bytes()) else { panic!("a sound head") };
    let (mut whole, mut out) = (BodyReader::new(&head), Vec::new());
    let used = whole.take(bytes, &mut out);
    let cut = usize::from(cut).min(bytes.len());
    let (mut split, mut out_split) = (BodyReader::new(&head), Vec::new());
    let used_split = split.take(&bytes[..cut], &mut out_split).and_then(|first| {
        split.take(&bytes[first.max(cut.min(first))..], &mut out_split).map(|second| first + second)
    });
    if let (Ok(used), Ok(used_split)) = (used, used_split) {
        assert_eq!((used, &out, whole.is_done()), (used_split, &out_split, split.is_done()));
    }
    assert!(out.len() <= limits::BODY_INFLATED_MAX);
});
