//! A set of positions that may grow: one bit for each object met on a walk.
//!
//! Positions are those of [`super::objects::Objects`]: dense for packed objects, a few behind them for loose ones.
//! Read first: `a_mark_beyond_the_end_grows_the_set`.

/// Marked positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(Vec<u64>);

impl Marks {
    /// Room for positions below `total`, none marked.
    pub fn with_room(total: u32) -> Self {
        Self(vec![0; (total as usize).div_ceil(64)])
    }

    /// A set from words; bit 0 of the first is position 0.
    pub fn of_words(words: Vec<u64>) -> Self {
        Self(words)
    }

    /// The words of the set.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// Marks all that `other` marks.
    pub fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// Takes away all marks that `other` has.
    pub fn subtract(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, less)| *word &= !less);
    }

    /// Marks a position; true when it was not marked before.
    pub fn insert(&mut self, position: u32) -> bool {
        let (word, bit) = (position as usize / 64, 1u64 << (position % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let Some(word) = self.0.get_mut(word) else { return false };
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Takes a mark away; true when there was one.
    pub fn remove(&mut self, position: u32) -> bool {
        let Some(word) = self.0.get_mut(position as usize / 64) else { return false };
        let was = *word >> (position % 64) & 1 == 1;
        *word &= !(1u64 << (position % 64));
        was
    }

    /// Whether a position is marked.
    pub fn contains(&self, position: u32) -> bool {
        self.0.get(position as usize / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Bytes it holds.
    pub fn held(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }

    /// How many are marked.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// How many of `start..end` are marked.
    pub fn count_between(&self, start: u32, end: u32) -> u64 {
        let mut count = 0;
        for number in start as usize / 64..(end as usize).div_ceil(64) {
            let Some(mut word) = self.0.get(number).copied() else { break };
            let first = number * 64;
            if first < start as usize {
                word &= u64::MAX << (start as usize - first);
            }
            if first + 64 > end as usize {
                word &= u64::MAX >> (first + 64 - end as usize);
            }
            count += u64::from(word.count_ones());
        }
        count
    }

    /// Marked positions from `start` on, ascending.
    pub fn iter_from(&self, start: u32) -> impl Iterator<Item = u32> + '_ {
        let first = start as usize / 64;
        self.0.iter().enumerate().skip(first).flat_map(move |(number, word)| {
            let mut word = *word;
            if number == first {
                word &= u64::MAX << (start % 64);
            }
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(number as u32 * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_mark_beyond_the_end_grows_the_set() {
        let mut marks = Marks::with_room(3);
        assert!(marks.insert(1000) && !marks.insert(1000));
        assert!(marks.contains(1000) && !marks.contains(999) && !marks.contains(u32::MAX));
    }

    proptest! {
        #[test]
        fn marks_are_a_set(positions in proptest::collection::vec(0u32..400, 0..60), start in 0u32..400, end in 0u32..500) {
            let mut marks = Marks::default();
            let mut naive = BTreeSet::new();
            for position in positions {
                prop_assert_eq!(marks.insert(position), naive.insert(position));
            }
            prop_assert_eq!(marks.count(), naive.len() as u64);
            prop_assert!(marks.iter_from(start).eq(naive.range(start..).copied()));
            let between = naive.iter().filter(|position| (start..end).contains(position)).count();
            prop_assert_eq!(marks.count_between(start, end), between as u64);
            let mut other = Marks::default();
            for position in start.min(end)..end {
                other.insert(position);
            }
            let (mut both, mut less) = (marks.clone(), marks.clone());
            both.join(&other);
            less.subtract(&other);
            prop_assert_eq!(less.count(), marks.count() - between as u64);
            prop_assert_eq!(both.count(), less.count() + other.count());
            prop_assert_eq!(Marks::of_words(both.words().to_vec()), both);
        }
    }
}
