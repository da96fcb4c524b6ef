//! Request heads. Judge: a head split in two at any place gives the same head, and uses the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packring::http::HeadReader;

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let cut = usize::from(cut).min(bytes.len());
    let whole = HeadReader::new().take(bytes);
    let mut reader = HeadReader::new();
    let first = reader.take(&bytes[..cut]);
    let split = match first {
        Ok((used, None)) if used == cut => reader.take(&bytes[cut..]).map(|(more, head)| (cut + more, head)),
        other => other,
    };
    match (&whole, &split) {
        (Ok((used, Some(head))), Ok((used_split, Some(head_split)))) => {
            assert_eq!((used, head), (used_split, head_split));
            assert!(head.path.starts_with(b"/") && !head.path.windows(4).any(|part| part == b"/../"));
        }
        (Err(_), Err(_)) | (Ok((_, None)), Ok((_, None))) => {}
        // What can never become a head may be refused before it is complete.
        (Err(_), Ok((_, None))) | (Ok((_, None)), Err(_)) => {}
        _ => panic!("{whole:?} but {split:?}"),
    }
});
