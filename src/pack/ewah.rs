//! Compressed sets of bits: mapped EWAH words are joined to plain words, a word at a time, without a copy in between.
//!
//! Knows no object. Invariants: the work is bounded by the words in the file plus the words of the set; a bit beyond the
//! room it is given is an error and never written.
//! Source: gitformat-bitmap(5), "Appendix A". Read first: `words_are_joined_as_a_naive_reader_joins_them`.

use std::ops::ControlFlow;

/// Why bytes are no compressed set. A claim is never believed further than the bytes at hand go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EwahError {
    /// The bytes end before the set does, or a run claims more literal words than follow.
    #[error("a compressed bitmap is cut short")]
    Truncated,
    /// A bit is set beyond the objects there are.
    #[error("a compressed bitmap has bits beyond the {room} words it may fill")]
    Beyond {
        /// Words that may hold bits.
        room: usize,
    },
}

/// One compressed set, still in its file.
#[derive(Clone, Copy, Debug)]
pub struct Ewah<'a> {
    bits: u32,
    words: &'a [[u8; 8]],
}

/// Words that stand together.
enum Part<'a> {
    /// So many words of ones.
    Ones(usize),
    /// These, in network order.
    Literal(&'a [[u8; 8]]),
}

impl<'a> Ewah<'a> {
    /// Finds the set at the start of `bytes`, which may run on, and how many bytes it takes. Reads no word.
    ///
    /// # Errors
    /// [`EwahError::Truncated`].
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), EwahError> {
        let (bits, rest) = bytes.split_first_chunk::<4>().ok_or(EwahError::Truncated)?;
        let (count, rest) = rest.split_first_chunk::<4>().ok_or(EwahError::Truncated)?;
        let size = u64::from(u32::from_be_bytes(*count)) * 8;
        let size = usize::try_from(size).map_err(|_| EwahError::Truncated)?;
        let (words, rest) = rest.split_at_checked(size).ok_or(EwahError::Truncated)?;
        // Where the last run starts: only a writer that appends needs it.
        let (_, _) = rest.split_first_chunk::<4>().ok_or(EwahError::Truncated)?;
        Ok((Self { bits: u32::from_be_bytes(*bits), words: words.as_chunks().0 }, 12 + size))
    }

    /// Bits the set claims to have; nothing depends on it.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Words of the compressed form: what joining costs, beside the room.
    pub fn size(&self) -> usize {
        self.words.len()
    }

    /// Adds the set to `room`.
    ///
    /// # Errors
    /// The set is damaged; `room` may hold part of it.
    pub fn or_into(&self, room: &mut [u64]) -> Result<(), EwahError> {
        self.join(room, |word, bits| *word |= bits)
    }

    /// Flips the bits of the set in `room`.
    ///
    /// # Errors
    /// The set is damaged; `room` may hold part of it.
    pub fn xor_into(&self, room: &mut [u64]) -> Result<(), EwahError> {
        self.join(room, |word, bits| *word ^= bits)
    }

    /// Takes the set out of `room`.
    ///
    /// # Errors
    /// The set is damaged; part of it may be taken out.
    pub fn take_from(&self, room: &mut [u64]) -> Result<(), EwahError> {
        self.join(room, |word, bits| *word &= !bits)
    }

    /// Whether every bit of the set is in `other`.
    ///
    /// # Errors
    /// The set is damaged.
    pub fn is_within(&self, other: &[u64]) -> Result<bool, EwahError> {
        let mut is_within = true;
        self.visit(other.len(), |at, part| {
            let rest = other.get(at..).unwrap_or_default();
            is_within = match part {
                Part::Ones(count) => rest.iter().take(count).all(|word| *word == u64::MAX),
                Part::Literal(words) => rest.iter().zip(words).all(|(word, raw)| u64::from_be_bytes(*raw) & !word == 0),
            };
            if is_within { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(is_within)
    }

    #[inline]
    fn join(&self, room: &mut [u64], join: impl Fn(&mut u64, u64)) -> Result<(), EwahError> {
        self.visit(room.len(), |at, part| {
            let rest = room.get_mut(at..).unwrap_or_default();
            match part {
                Part::Ones(count) => rest.iter_mut().take(count).for_each(|word| join(word, u64::MAX)),
                Part::Literal(words) => {
                    rest.iter_mut().zip(words).for_each(|(word, raw)| join(word, u64::from_be_bytes(*raw)));
                }
            }
            ControlFlow::Continue(())
        })
    }

    /// Shows each part that is not zeros with the number of its first word, all below `room`.
    fn visit(&self, room: usize, mut each: impl FnMut(usize, Part<'a>) -> ControlFlow<()>) -> Result<(), EwahError> {
        let (mut words, mut at) = (self.words, 0usize);
        while let Some((head, rest)) = words.split_first() {
            let head = u64::from_be_bytes(*head);
            let run = (head >> 1 & 0xffff_ffff) as usize;
            let literals = (head >> 33) as usize;
            let (literal, rest) = rest.split_at_checked(literals).ok_or(EwahError::Truncated)?;
            words = rest;
            if head & 1 == 1 && run > 0 {
                if run > room - at {
                    return Err(EwahError::Beyond { room });
                }
                if each(at, Part::Ones(run)).is_break() {
                    return Ok(());
                }
            }
            at = at.saturating_add(run).min(room);
            let (inside, outside) = literal.split_at(literals.min(room - at));
            if outside.iter().any(|word| *word != [0; 8]) {
                return Err(EwahError::Beyond { room });
            }
            if !inside.is_empty() && each(at, Part::Literal(inside)).is_break() {
                return Ok(());
            }
            at += inside.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A set from (repeated bit, run, literal words).
    pub fn written(chunks: &[(bool, u32, Vec<u64>)]) -> Vec<u8> {
        let mut words = Vec::new();
        for (ones, run, literals) in chunks {
            words.push(u64::from(*ones) | u64::from(*run) << 1 | (literals.len() as u64) << 33);
            words.extend(literals);
        }
        let mut bytes = 640u32.to_be_bytes().to_vec();
        bytes.extend((words.len() as u32).to_be_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        bytes.extend([0; 4]);
        bytes
    }

    /// Bit by bit. `None` when a bit is beyond `room` words.
    fn naive(chunks: &[(bool, u32, Vec<u64>)], room: usize) -> Option<Vec<bool>> {
        let mut bits = Vec::new();
        for (ones, run, literals) in chunks {
            bits.extend((0..run * 64).map(|_| *ones));
            bits.extend(literals.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1 == 1)));
        }
        let beyond = bits.get(room * 64..).unwrap_or_default().contains(&true);
        bits.resize(room * 64, false);
        (!beyond).then_some(bits)
    }

    fn bits(words: &[u64]) -> Vec<bool> {
        words.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1 == 1)).collect()
    }

    #[test]
    fn a_set_ends_where_it_says_and_the_next_begins() {
        let mut bytes = written(&[(true, 2, vec![5])]);
        let size = bytes.len();
        bytes.extend([0xff; 9]);
        let (set, used) = Ewah::parse(&bytes).unwrap();
        assert_eq!((used, set.bits(), set.size()), (size, 640, 2));
        let mut room = [0; 4];
        set.or_into(&mut room).unwrap();
        assert_eq!(room, [u64::MAX, u64::MAX, 5, 0]);
        for length in 0..size {
            assert_eq!(Ewah::parse(&bytes[..length]).err(), Some(EwahError::Truncated), "{length}");
        }
    }

    #[test]
    fn claims_beyond_the_bytes_or_the_room_are_refused() {
        let mut bytes = written(&[(false, 0, vec![1, 2])]);
        // Literal words claimed: 2^31 - 1.
        bytes[8..12].copy_from_slice(&[0xff; 4]);
        assert_eq!(Ewah::parse(&bytes).unwrap().0.or_into(&mut [0; 9]), Err(EwahError::Truncated));
        let ones = written(&[(true, u32::MAX, vec![])]);
        assert_eq!(Ewah::parse(&ones).unwrap().0.or_into(&mut [0; 9]), Err(EwahError::Beyond { room: 9 }));
        let late = written(&[(false, 9, vec![1])]);
        assert_eq!(Ewah::parse(&late).unwrap().0.or_into(&mut [0; 9]), Err(EwahError::Beyond { room: 9 }));
        // Zeros may run on: nothing is written.
        let zeros = written(&[(false, u32::MAX, vec![0]), (false, u32::MAX, vec![])]);
        assert_eq!(Ewah::parse(&zeros).unwrap().0.or_into(&mut [7; 2]), Ok(()));
        let mut huge = bytes.clone();
        huge[4..8].copy_from_slice(&[0xff; 4]);
        assert_eq!(Ewah::parse(&huge).err(), Some(EwahError::Truncated));
    }

    fn chunks() -> impl Strategy<Value = Vec<(bool, u32, Vec<u64>)>> {
        let word = prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()];
        proptest::collection::vec((any::<bool>(), 0u32..4, proptest::collection::vec(word, 0..4)), 0..5)
    }

    proptest! {
        #[test]
        fn words_are_joined_as_a_naive_reader_joins_them(
            chunks in chunks(),
            before in proptest::collection::vec(prop_oneof![Just(u64::MAX), any::<u64>()], 0..30),
        ) {
            let bytes = written(&chunks);
            let (set, _) = Ewah::parse(&bytes).unwrap();
            let expected = naive(&chunks, before.len());
            let mut rooms = [before.clone(), before.clone(), before.clone()];
            let [or, xor, rest] = &mut rooms;
            prop_assert_eq!(set.or_into(or).is_ok(), expected.is_some());
            prop_assert_eq!(set.xor_into(xor).is_ok(), expected.is_some());
            prop_assert_eq!(set.take_from(rest).is_ok(), expected.is_some());
            if let Some(expected) = expected {
                let both: Vec<(bool, bool)> = bits(&before).into_iter().zip(expected).collect();
                prop_assert!(bits(or).into_iter().eq(both.iter().map(|(a, b)| a | b)));
                prop_assert!(bits(xor).into_iter().eq(both.iter().map(|(a, b)| a ^ b)));
                prop_assert!(bits(rest).into_iter().eq(both.iter().map(|(a, b)| *a && !b)));
                prop_assert_eq!(set.is_within(&before), Ok(both.iter().all(|(a, b)| *a || !b)));
                prop_assert_eq!(set.is_within(or), Ok(true));
            }
        }

        #[test]
        fn any_bytes_are_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..90), room in 0usize..9) {
            let mut fits = bytes.clone();
            if fits.len() > 8 {
                let words = (fits.len() - 8) / 8;
                fits[4..8].copy_from_slice(&(words as u32).to_be_bytes());
            }
            for bytes in [bytes, fits] {
                if let Ok((set, used)) = Ewah::parse(&bytes) {
                    prop_assert!(used <= bytes.len());
                    let _ = set.or_into(&mut vec![0; room]);
                }
            }
        }
    }
}
