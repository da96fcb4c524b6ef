//! Deltas. Judge: a made delta makes its target; two deltas joined make what both make one after the other; nothing makes
//! more than it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packring::pack::{Pace, delta};

fn apply(base: &[u8], instructions: &[u8]) -> Result<Vec<u8>, delta::DeltaError> {
    let pace = Pace::default();
    pace.run(delta::apply_paced(base, instructions, 1 << 16, &pace), |_| unreachable!("nothing is asked for"))
}

fuzz_target!(|input: (&[u8], &[u8], &[u8])| {
    let (base, inner, outer) = input;
    let made = delta::make(base, inner, usize::MAX).expect("no bound");
    assert_eq!(apply(base, &made).as_deref(), Ok(inner));
    if let Ok(between) = apply(base, inner) {
        assert_eq!(delta::sizes(inner).map(|sizes| sizes.1), Ok(between.len() as u64));
        let both = apply(&between, outer);
        if let (Ok(result), Ok(Some(joined))) = (both, delta::compose(outer, inner, 1 << 16)) {
            assert_eq!(apply(base, &joined), Ok(result));
        }
    }
    let _ = delta::compose(outer, inner, 1 << 10);
});
