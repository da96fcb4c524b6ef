//! Deltas: instructions against a base become the object they describe; two deltas in a row become one.
//!
//! Inflates nothing. Invariants: a delta makes exactly as many bytes as it says, or is refused; nothing is allocated from a
//! size before that was bounded; a copy never leaves its base.
//! Source: gitformat-pack(5), "Deltified representation". Read first: `a_composed_delta_makes_what_both_make`.

use super::pace::Pace;

/// Why bytes are no delta for a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The bytes end inside an instruction or a size.
    #[error("its instructions are cut short")]
    Truncated,
    /// A size that needs more than 64 bits.
    #[error("a size needs more than 64 bits")]
    Overflow,
    /// It was made against a base of another size.
    #[error("it was made for a base of {claimed} bytes, not of {found}")]
    BaseSize {
        /// As the delta says.
        claimed: u64,
        /// The base at hand.
        found: u64,
    },
    /// It would make more than may be held.
    #[error("it makes {size} bytes where {limit} are allowed")]
    TooLarge {
        /// As the delta says.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// It makes another number of bytes than it says.
    #[error("it makes another number of bytes than the {0} it says")]
    ResultSize(u64),
    /// A copy from outside the base.
    #[error("it copies from outside its base")]
    OutsideBase,
    /// Instruction 0, which is reserved.
    #[error("it holds the reserved instruction")]
    Reserved,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction<'a> {
    /// Bytes of the base.
    Copy {
        /// Offset into the base.
        from: u64,
        /// How many.
        size: u64,
    },
    /// Bytes of the delta itself, at most 127.
    Insert(&'a [u8]),
}

/// Sizes of base and result at the front of a delta, and how many bytes they take.
///
/// # Errors
/// The bytes are no sizes.
pub fn sizes(delta: &[u8]) -> Result<(u64, u64, usize), DeltaError> {
    let mut at = 0;
    let base = varint(delta, &mut at)?;
    let result = varint(delta, &mut at)?;
    Ok((base, result, at))
}

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, DeltaError> {
    let (mut value, mut shift) = (0u64, 0u32);
    loop {
        let byte = *bytes.get(*at).ok_or(DeltaError::Truncated)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if bits != 0 {
            // checked_shl looks at the shift, not at the bits that fall off.
            if shift >= 64 || bits << shift >> shift != bits {
                return Err(DeltaError::Overflow);
            }
            value |= bits << shift;
        }
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        shift = shift.saturating_add(7);
    }
}

/// The instructions of a delta, in order. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Instructions<'a> {
    delta: &'a [u8],
    at: usize,
}

impl<'a> Instructions<'a> {
    /// Starts behind the two sizes of `delta`.
    ///
    /// # Errors
    /// There are no sizes.
    pub fn of(delta: &'a [u8]) -> Result<Self, DeltaError> {
        let (_, _, at) = sizes(delta)?;
        Ok(Self { delta, at })
    }

    fn parse(&mut self, first: u8) -> Result<Instruction<'a>, DeltaError> {
        let rest = self.delta.get(self.at + 1..).unwrap_or_default();
        if first & 0x80 == 0 {
            let size = usize::from(first);
            if size == 0 {
                return Err(DeltaError::Reserved);
            }
            self.at += 1 + size;
            return Ok(Instruction::Insert(rest.get(..size).ok_or(DeltaError::Truncated)?));
        }
        let mut bytes = rest.iter();
        let mut number = |bits: u8, count: u32| {
            let mut value = 0u64;
            for place in 0..count {
                if bits >> place & 1 == 1 {
                    value |= u64::from(*bytes.next().ok_or(DeltaError::Truncated)?) << (8 * place);
                }
            }
            Ok(value)
        };
        let from = number(first, 4)?;
        let size = match number(first >> 4 & 7, 3)? {
            0 => 0x1_0000,
            size => size,
        };
        self.at += 1 + (first & 0x7f).count_ones() as usize;
        Ok(Instruction::Copy { from, size })
    }
}

impl<'a> Iterator for Instructions<'a> {
    type Item = Result<Instruction<'a>, DeltaError>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = *self.delta.get(self.at)?;
        let instruction = self.parse(first);
        if instruction.is_err() {
            self.at = self.delta.len();
        }
        Some(instruction)
    }
}

/// Applies `delta` to `base`; the result may have at most `limit` bytes.
///
/// # Errors
/// The delta is damaged, was made for another base, or makes too much.
pub async fn apply_paced(base: &[u8], delta: &[u8], limit: u64, pace: &Pace) -> Result<Vec<u8>, DeltaError> {
    let (base_size, size, _) = sizes(delta)?;
    if base_size != base.len() as u64 {
        return Err(DeltaError::BaseSize { claimed: base_size, found: base.len() as u64 });
    }
    if size > limit {
        return Err(DeltaError::TooLarge { size, limit });
    }
    let size = usize::try_from(size).map_err(|_| DeltaError::TooLarge { size, limit })?;
    let mut result = Vec::with_capacity(size);
    let mut unpaid = 0;
    for instruction in Instructions::of(delta)? {
        let part = match instruction? {
            Instruction::Insert(bytes) => bytes,
            Instruction::Copy { from, size } => {
                let range = usize::try_from(from).ok().zip(usize::try_from(from + size).ok());
                range.and_then(|(from, to)| base.get(from..to)).ok_or(DeltaError::OutsideBase)?
            }
        };
        if part.len() > size - result.len() {
            return Err(DeltaError::ResultSize(size as u64));
        }
        result.extend_from_slice(part);
        unpaid += part.len();
        if unpaid >= LARGE {
            pace.work(unpaid / COPIED_FOR_A_UNIT).await;
            unpaid = 0;
        }
    }
    if result.len() != size {
        return Err(DeltaError::ResultSize(size as u64));
    }
    pace.work(unpaid / COPIED_FOR_A_UNIT + delta.len() / 2).await;
    Ok(result)
}

/// Bytes copied between two looks at the pace.
const LARGE: usize = 256 * 1024;
/// Copying so many bytes costs what inflating one costs.
const COPIED_FOR_A_UNIT: usize = 16;

/// Joins two deltas: `outer` makes an object from what `inner` makes; the join makes it from the base of `inner`.
/// `size_max` bounds the join in bytes; `None` when it would be larger (then it saves nothing).
///
/// # Errors
/// One of them is damaged, or they do not follow each other.
pub fn compose(outer: &[u8], inner: &[u8], size_max: usize) -> Result<Option<Vec<u8>>, DeltaError> {
    let (between, result, _) = sizes(outer)?;
    let (base, made, _) = sizes(inner)?;
    if between != made {
        return Err(DeltaError::BaseSize { claimed: between, found: made });
    }
    // Where each instruction of `inner` starts in what it makes.
    let (mut steps, mut starts, mut end) = (Vec::new(), Vec::new(), 0u64);
    for instruction in Instructions::of(inner)? {
        let instruction = instruction?;
        starts.push(end);
        end += match instruction {
            Instruction::Copy { size, .. } => size,
            Instruction::Insert(bytes) => bytes.len() as u64,
        };
        steps.push(instruction);
    }
    if end != made {
        return Err(DeltaError::ResultSize(made));
    }
    let mut writer = Writer::new(base, result);
    for instruction in Instructions::of(outer)? {
        match instruction? {
            Instruction::Insert(bytes) => writer.insert(bytes),
            Instruction::Copy { from, size } => {
                let to = from.checked_add(size).filter(|to| *to <= made).ok_or(DeltaError::OutsideBase)?;
                let first = starts.partition_point(|start| *start <= from).saturating_sub(1);
                for (step, start) in steps.iter().zip(&starts).skip(first).take_while(|(_, start)| **start < to) {
                    writer.part_of(step, from.saturating_sub(*start), to - start);
                }
            }
        }
        if writer.out.len() > size_max {
            return Ok(None);
        }
    }
    Ok(Some(writer.finish()).filter(|delta| delta.len() <= size_max))
}

/// Makes a delta for `target` against `base`; `None` when it would have more than `size_max` bytes.
///
/// Finds runs of at least [`BLOCK`] bytes that start at a multiple of that in the base: enough for versions of one file,
/// which is what it is asked for, and far cheaper than a search among strangers.
pub fn make(base: &[u8], target: &[u8], size_max: usize) -> Option<Vec<u8>> {
    let blocks = Blocks::of(base);
    let mut writer = Writer::new(base.len() as u64, target.len() as u64);
    let (mut at, mut said) = (0, 0);
    while at + BLOCK <= target.len() {
        let Some(mut from) = blocks.find(base, target.get(at..at + BLOCK)?) else {
            at += 1;
            continue;
        };
        let mut start = at;
        // What was passed over may match backwards as well.
        while start > said && from > 0 && base.get(from - 1) == target.get(start - 1) {
            (start, from) = (start - 1, from - 1);
        }
        let size = common_size(base.get(from..)?, target.get(start..)?);
        writer.insert(target.get(said..start)?);
        writer.copy(from as u64, size as u64);
        at = start + size;
        said = at;
        if writer.out.len() > size_max {
            return None;
        }
    }
    writer.insert(target.get(said..)?);
    let delta = writer.finish();
    (delta.len() <= size_max).then_some(delta)
}

/// How many bytes are the same at the front of both.
fn common_size(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    let rest = a.iter().zip(b).skip(words);
    words + rest.take_while(|(a, b)| a == b).count()
}

/// Where the blocks of a base are, by their content.
struct Blocks {
    /// Block number + 1 in each slot; the last of several with one hash.
    slots: Vec<u32>,
    shift: u32,
}

impl Blocks {
    fn of(base: &[u8]) -> Self {
        let count = base.len() / BLOCK;
        let bits = (count * 2).next_power_of_two().trailing_zeros().clamp(4, 24);
        let mut blocks = Self { slots: vec![0; 1 << bits], shift: 64 - bits };
        // From the end, so that the first of equal blocks wins.
        for (number, block) in base.chunks_exact(BLOCK).enumerate().rev() {
            let slot = blocks.slot(block);
            if let Some(slot) = blocks.slots.get_mut(slot) {
                *slot = u32::try_from(number + 1).unwrap_or(0);
            }
        }
        blocks
    }

    fn slot(&self, block: &[u8]) -> usize {
        let word =
            |from: usize| block.get(from..from + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
        let mixed =
            word(0).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word(8).wrapping_mul(0xc2b2_ae3d_27d4_eb4f).rotate_left(31);
        usize::try_from(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift).unwrap_or(0)
    }

    fn find(&self, base: &[u8], block: &[u8]) -> Option<usize> {
        let number = self.slots.get(self.slot(block)).copied().filter(|number| *number > 0)?;
        let from = (number as usize - 1) * BLOCK;
        (base.get(from..from + BLOCK)? == block).then_some(from)
    }
}

/// Bytes of a block.
const BLOCK: usize = 16;

/// Writes a delta, joining neighbours that can be one.
struct Writer {
    out: Vec<u8>,
    copy: Option<(u64, u64)>,
    pending: Vec<u8>,
}

impl Writer {
    fn new(base: u64, result: u64) -> Self {
        let mut out = Vec::new();
        push_varint(&mut out, base);
        push_varint(&mut out, result);
        Self { out, copy: None, pending: Vec::new() }
    }

    /// The part `from..to` of what an instruction makes; `to` may lie beyond its end.
    fn part_of(&mut self, step: &Instruction<'_>, from: u64, to: u64) {
        match step {
            Instruction::Copy { from: start, size } => self.copy(start + from, to.min(*size).saturating_sub(from)),
            Instruction::Insert(bytes) => {
                let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                self.insert(bytes.get(clamp(from)..clamp(to)).unwrap_or_default());
            }
        }
    }

    fn copy(&mut self, from: u64, size: u64) {
        self.end_insert();
        match &mut self.copy {
            Some((start, had)) if *start + *had == from => *had += size,
            _ => {
                self.end_copy();
                self.copy = Some((from, size));
            }
        }
    }

    fn insert(&mut self, bytes: &[u8]) {
        self.end_copy();
        self.pending.extend_from_slice(bytes);
    }

    fn end_copy(&mut self) {
        let Some((mut from, mut size)) = self.copy.take() else { return };
        while size > 0 {
            let part = size.min(0xff_ffff);
            let head = self.out.len();
            self.out.push(0x80);
            let mut bits = 0x80;
            for place in 0..4 {
                let byte = (from >> (8 * place)) as u8;
                if byte != 0 {
                    bits |= 1 << place;
                    self.out.push(byte);
                }
            }
            // 65536 is said by no size at all.
            let said = if part == 0x1_0000 { 0 } else { part };
            for place in 0..3 {
                let byte = (said >> (8 * place)) as u8;
                if byte != 0 {
                    bits |= 0x10 << place;
                    self.out.push(byte);
                }
            }
            if let Some(first) = self.out.get_mut(head) {
                *first = bits;
            }
            (from, size) = (from + part, size - part);
        }
    }

    fn end_insert(&mut self) {
        for part in self.pending.chunks(127) {
            self.out.push(part.len() as u8);
            self.out.extend_from_slice(part);
        }
        self.pending.clear();
    }

    fn finish(mut self) -> Vec<u8> {
        self.end_copy();
        self.end_insert();
        self.out
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, DeltaError> {
        let pace = Pace::default();
        pace.run(apply_paced(base, delta, 1 << 20, &pace), |_| panic!("nothing is asked for"))
    }

    /// Instructions by which tests make deltas: copies by fractions of the base.
    fn delta_of(base: &[u8], steps: &[(bool, u16, u16)]) -> (Vec<u8>, Vec<u8>) {
        let mut result = Vec::new();
        let mut writer = Writer::new(base.len() as u64, 0);
        for (copies, a, b) in steps {
            if *copies && !base.is_empty() {
                let from = usize::from(*a) % base.len();
                let size = (usize::from(*b) % 200).min(base.len() - from);
                result.extend_from_slice(&base[from..from + size]);
                writer.copy(from as u64, size as u64);
            } else {
                let bytes = vec![(*a % 251) as u8; usize::from(*b) % 300];
                result.extend_from_slice(&bytes);
                writer.insert(&bytes);
            }
        }
        let body = writer.finish();
        let (_, _, at) = sizes(&body).unwrap();
        let mut delta = Vec::new();
        push_varint(&mut delta, base.len() as u64);
        push_varint(&mut delta, result.len() as u64);
        delta.extend_from_slice(&body[at..]);
        (delta, result)
    }

    #[test]
    fn instructions_are_read_as_the_format_says() {
        // Copy with offset 0x0102 and no size, copy 3 bytes from 0, insert "ab".
        let delta = [5, 5, 0x83, 0x02, 0x01, 0x90, 3, 2, b'a', b'b'];
        let read: Vec<_> = Instructions::of(&delta).unwrap().collect::<Result<_, _>>().unwrap();
        let copy = |from, size| Instruction::Copy { from, size };
        assert_eq!(read, [copy(0x0102, 0x1_0000), copy(0, 3), Instruction::Insert(b"ab")]);
    }

    #[test]
    fn a_damaged_delta_is_refused() {
        for (delta, error) in [
            (&[][..], DeltaError::Truncated),
            (&[0x83], DeltaError::Truncated),
            (&[4, 1, 1, b'x'], DeltaError::BaseSize { claimed: 4, found: 3 }),
            (&[3, 1, 0], DeltaError::Reserved),
            (&[3, 2, 1, b'x'], DeltaError::ResultSize(2)),
            (&[3, 1, 2, b'x', b'y'], DeltaError::ResultSize(1)),
            (&[3, 1, 3, b'x'], DeltaError::Truncated),
            (&[3, 4, 0x90, 4], DeltaError::OutsideBase),
            (&[3, 3, 0x91, 1, 3], DeltaError::OutsideBase),
            (&[3, 1, 0x91, 1], DeltaError::Truncated),
            (&[3, 0xff, 0xff, 0xff, 0x7f], DeltaError::TooLarge { size: 0xfff_ffff, limit: 1 << 20 }),
            (&[3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], DeltaError::Overflow),
        ] {
            assert_eq!(apply(b"abc", delta), Err(error), "{delta:x?}");
        }
    }

    #[test]
    fn large_copies_are_said_in_several_instructions() {
        let base: Vec<u8> = (0..400_000u32).map(|number| (number % 253) as u8).collect();
        for size in [0xffff, 0x1_0000, 0x1_0001, 399_999] {
            let mut writer = Writer::new(base.len() as u64, size);
            writer.copy(1, size);
            let delta = writer.finish();
            assert!(apply(&base, &delta).unwrap() == base[1..=usize::try_from(size).unwrap()], "{size}");
        }
    }

    #[test]
    fn a_small_edit_makes_a_small_delta() {
        let base: Vec<u8> = (0..20_000u32).flat_map(|number| format!("line {number}\n").into_bytes()).collect();
        let mut target = base.clone();
        target.splice(100_000..100_003, *b"another thing");
        target.splice(10..10, *b"more");
        let delta = make(&base, &target, usize::MAX).unwrap();
        assert!(delta.len() < 120, "{} bytes", delta.len());
        assert!(apply(&base, &delta).unwrap() == target);
    }

    proptest! {
        #[test]
        fn a_composed_delta_makes_what_both_make(
            base in proptest::collection::vec(any::<u8>(), 0..600),
            inner in proptest::collection::vec(any::<(bool, u16, u16)>(), 0..12),
            outer in proptest::collection::vec(any::<(bool, u16, u16)>(), 0..12),
        ) {
            let (inner, between) = delta_of(&base, &inner);
            let (outer, result) = delta_of(&between, &outer);
            prop_assert_eq!(apply(&base, &inner).unwrap(), between);
            let joined = compose(&outer, &inner, usize::MAX).unwrap().unwrap();
            prop_assert_eq!(apply(&base, &joined).unwrap(), result);
            prop_assert_eq!(compose(&outer, &inner, joined.len()).unwrap(), Some(joined.clone()));
            prop_assert_eq!(compose(&outer, &inner, joined.len() - 1).unwrap(), None);
        }

        #[test]
        fn a_made_delta_makes_its_target(
            base in proptest::collection::vec(0u8..4, 0..3000),
            steps in proptest::collection::vec(any::<(bool, u16, u16)>(), 0..12),
        ) {
            let (_, target) = delta_of(&base, &steps);
            let delta = make(&base, &target, usize::MAX).unwrap();
            prop_assert_eq!(apply(&base, &delta).unwrap(), target.clone());
            prop_assert_eq!(make(&base, &target, delta.len() - 1), None);
        }

        #[test]
        fn any_bytes_are_applied_or_refused(
            base in proptest::collection::vec(any::<u8>(), 0..60),
            delta in proptest::collection::vec(any::<u8>(), 0..60),
            other in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = apply(&base, &delta);
            let _ = apply(&base, &[&[base.len() as u8], &delta[..]].concat());
            let _ = compose(&delta, &other, 1000);
        }
    }
}
