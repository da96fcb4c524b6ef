//! Delta instructions: a base and a delta become an object; two deltas become one that skips the object between them.
//!
//! Inflates nothing and looks no base up. Refuses a delta that yields more or fewer bytes than it says, that copies from
//! outside its base, or that uses the reserved instruction. Invariant: memory is taken only for a result within the
//! caller's limit, and for a large one only after its instructions were seen to fill it.
//! Source: gitformat-pack(5), "Deltified representation".
//! Read first: `a_delta_that_yields_more_than_it_says_is_refused`.

use super::pace::Pace;

/// Why bytes are no delta for a base. Offsets are counted in the inflated delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The delta ends inside its sizes or inside an instruction.
    #[error("its instructions are cut short")]
    Truncated,
    /// A size needs more than 64 bits.
    #[error("a size needs more than 64 bits")]
    Overflow,
    /// Instruction 0, which is reserved.
    #[error("it holds the reserved instruction")]
    Reserved,
    /// The delta was made for a base of another size.
    #[error("it was made for a base of {claimed} bytes, not of {found}")]
    BaseSize {
        /// Bytes the delta says its base has.
        claimed: u64,
        /// Bytes the base has.
        found: u64,
    },
    /// A copy from outside the base.
    #[error("it copies from outside its base")]
    OutsideBase,
    /// The instructions yield more or fewer bytes than the delta says.
    #[error("it makes another number of bytes than the {0} it says")]
    ResultSize(u64),
    /// It would make more than may be held.
    #[error("it makes {size} bytes where {limit} are allowed")]
    TooLarge {
        /// As the delta says.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction<'a> {
    /// Takes bytes of the base.
    Copy {
        /// First byte, in the base.
        offset: u32,
        /// How many, `1..=0xff_ffff`.
        size: u32,
    },
    /// Takes these bytes, 1 to 127 of them.
    Insert(&'a [u8]),
}

impl Instruction<'_> {
    /// Bytes the instruction yields.
    pub fn size(&self) -> u64 {
        match self {
            Self::Copy { size, .. } => u64::from(*size),
            Self::Insert(bytes) => bytes.len() as u64,
        }
    }
}

/// Instructions in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct Instructions<'a> {
    rest: &'a [u8],
}

impl<'a> Instructions<'a> {
    /// Starts behind the two sizes of `delta`.
    ///
    /// # Errors
    /// There are no sizes.
    pub fn of(delta: &'a [u8]) -> Result<Self, DeltaError> {
        let (_, _, used) = sizes(delta)?;
        Ok(Self { rest: delta.get(used..).unwrap_or_default() })
    }

    #[inline]
    fn parse(&mut self, first: u8, rest: &'a [u8]) -> Result<Instruction<'a>, DeltaError> {
        if first & 0x80 == 0 {
            if first == 0 {
                return Err(DeltaError::Reserved);
            }
            let (bytes, rest) = rest.split_at_checked(usize::from(first)).ok_or(DeltaError::Truncated)?;
            self.rest = rest;
            return Ok(Instruction::Insert(bytes));
        }
        // Four bytes of offset, three of size, least significant first; a clear bit stands for a byte of zeros.
        let mut values = [0u8; 7];
        let mut used = 0;
        for (bit, value) in values.iter_mut().enumerate() {
            if first >> bit & 1 == 1 {
                *value = *rest.get(used).ok_or(DeltaError::Truncated)?;
                used += 1;
            }
        }
        self.rest = rest.get(used..).unwrap_or_default();
        let [o1, o2, o3, o4, s1, s2, s3] = values;
        let size = u32::from_le_bytes([s1, s2, s3, 0]);
        let size = if size == 0 { COPY_SIZE_UNSAID } else { size };
        Ok(Instruction::Copy { offset: u32::from_le_bytes([o1, o2, o3, o4]), size })
    }
}

impl<'a> Iterator for Instructions<'a> {
    type Item = Result<Instruction<'a>, DeltaError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.rest.split_first()?;
        let instruction = self.parse(*first, rest);
        if instruction.is_err() {
            self.rest = &[];
        }
        Some(instruction)
    }
}

/// Bytes of the base, bytes of the result, and how many bytes of the delta said so; instructions follow.
///
/// # Errors
/// [`DeltaError::Truncated`] or [`DeltaError::Overflow`].
pub fn sizes(delta: &[u8]) -> Result<(u64, u64, usize), DeltaError> {
    let (base, used) = size(delta)?;
    let (result, more) = size(delta.get(used..).unwrap_or_default())?;
    Ok((base, result, used + more))
}

/// The object that `delta` makes of `base`, of exactly the size it says. Gives the loop back about every half MiB.
///
/// # Errors
/// The delta is damaged or not for this base; [`DeltaError::TooLarge`] when its result has more than `limit` bytes.
pub async fn apply_paced(base: &[u8], delta: &[u8], limit: u64, pace: &Pace) -> Result<Vec<u8>, DeltaError> {
    let (said_base, said, _) = sizes(delta)?;
    if said_base != base.len() as u64 {
        return Err(DeltaError::BaseSize { claimed: said_base, found: base.len() as u64 });
    }
    if said > limit {
        return Err(DeltaError::TooLarge { size: said, limit });
    }
    let instructions = Instructions::of(delta)?;
    if said > TRUSTED_SIZE {
        let yields = instructions.clone().try_fold(0u64, |sum, next| Ok(sum.saturating_add(next?.size())))?;
        if yields != said {
            return Err(DeltaError::ResultSize(said));
        }
        pace.work(delta.len()).await;
    }
    let size = usize::try_from(said).map_err(|_| DeltaError::TooLarge { size: said, limit })?;
    let mut out = Vec::with_capacity(size);
    let mut job = Job { base, instructions, pending: None, said, size };
    loop {
        let before = out.len();
        let is_done = job.run(&mut out, BYTES_BETWEEN_LOOKS)?;
        pace.work((out.len() - before) / BYTES_PER_UNIT).await;
        if is_done {
            return Ok(out);
        }
    }
}

/// A delta being applied.
struct Job<'a> {
    base: &'a [u8],
    instructions: Instructions<'a>,
    /// What is left of a copy that was cut.
    pending: Option<&'a [u8]>,
    said: u64,
    size: usize,
}

impl<'a> Job<'a> {
    /// Appends about `budget` bytes; true when the object is complete.
    fn run(&mut self, out: &mut Vec<u8>, budget: usize) -> Result<bool, DeltaError> {
        let pause = out.len().saturating_add(budget);
        while out.len() < pause {
            let bytes = match self.pending.take() {
                Some(bytes) => bytes,
                None => match self.instructions.next() {
                    Some(instruction) => self.bytes_of(instruction?)?,
                    None if out.len() == self.size => return Ok(true),
                    None => return Err(DeltaError::ResultSize(self.said)),
                },
            };
            if bytes.len() > self.size - out.len() {
                return Err(DeltaError::ResultSize(self.said));
            }
            if bytes.len() > budget {
                let (now, later) = bytes.split_at(budget);
                out.extend_from_slice(now);
                self.pending = Some(later);
            } else {
                out.extend_from_slice(bytes);
            }
        }
        Ok(false)
    }

    #[inline]
    fn bytes_of(&self, instruction: Instruction<'a>) -> Result<&'a [u8], DeltaError> {
        match instruction {
            Instruction::Insert(bytes) => Ok(bytes),
            Instruction::Copy { offset, size } => {
                let (start, len) = (offset as usize, size as usize);
                let bytes = start.checked_add(len).and_then(|end| self.base.get(start..end));
                bytes.ok_or(DeltaError::OutsideBase)
            }
        }
    }
}

/// Joins two deltas: `outer` makes an object from what `inner` makes; the join makes it from the base of `inner`.
/// `size_max` bounds the join in bytes, and with it the time: each step of the work says at least one of them. `None` when
/// it would be larger, or would have to copy from beyond 4 GiB, which no instruction can say.
///
/// # Errors
/// One of them is damaged, or they do not follow each other.
pub fn compose(outer: &[u8], inner: &[u8], size_max: usize) -> Result<Option<Vec<u8>>, DeltaError> {
    let (base, made, _) = sizes(inner)?;
    let (between, result, _) = sizes(outer)?;
    if between != made {
        return Err(DeltaError::BaseSize { claimed: between, found: made });
    }
    let parts = Parts::of(inner, base, made)?;
    let mut writer = Writer::new(base, result, size_max);
    let mut yields = 0u64;
    for instruction in Instructions::of(outer)? {
        let instruction = instruction?;
        yields = yields.saturating_add(instruction.size());
        match instruction {
            Instruction::Insert(bytes) => writer.insert(bytes),
            Instruction::Copy { offset, size } => parts.write(offset, size, &mut writer)?,
        }
        if writer.is_beyond {
            return Ok(None);
        }
    }
    if yields != result {
        return Err(DeltaError::ResultSize(result));
    }
    Ok(writer.finish())
}

/// Makes a delta for `target` against `base`; `None` when it would have more than `size_max` bytes.
///
/// Finds runs of at least 16 bytes that start at a multiple of that in the base: enough for versions of one file,
/// which is what it is asked for, and far cheaper than a search among strangers.
pub fn make(base: &[u8], target: &[u8], size_max: usize) -> Option<Vec<u8>> {
    let blocks = Blocks::of(base);
    let mut writer = Writer::new(base.len() as u64, target.len() as u64, size_max);
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
        if writer.is_beyond {
            return None;
        }
    }
    writer.insert(target.get(said..)?);
    writer.finish()
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

/// The instructions of the inner delta, each with where in the result its bytes start.
struct Parts<'a> {
    parts: Vec<(u64, Instruction<'a>)>,
    size: u64,
}

impl<'a> Parts<'a> {
    fn of(inner: &'a [u8], base: u64, size: u64) -> Result<Self, DeltaError> {
        let mut parts = Vec::new();
        let mut start = 0u64;
        for instruction in Instructions::of(inner)? {
            let instruction = instruction?;
            if let Instruction::Copy { offset, size } = instruction
                && u64::from(offset) + u64::from(size) > base
            {
                return Err(DeltaError::OutsideBase);
            }
            parts.push((start, instruction));
            start = start.saturating_add(instruction.size());
        }
        if start != size {
            return Err(DeltaError::ResultSize(size));
        }
        Ok(Self { parts, size })
    }

    /// Says `size` bytes of the result from `offset` on in terms of the base.
    fn write(&self, offset: u32, size: u32, writer: &mut Writer) -> Result<(), DeltaError> {
        let (mut at, end) = (u64::from(offset), u64::from(offset) + u64::from(size));
        if end > self.size {
            return Err(DeltaError::OutsideBase);
        }
        let first = self.parts.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        for (start, part) in self.parts.get(first..).unwrap_or_default() {
            if at >= end || writer.is_beyond {
                break;
            }
            let skip = at - start;
            let taken = (part.size() - skip).min(end - at);
            match part {
                Instruction::Copy { offset, .. } => writer.copy(u64::from(*offset) + skip, taken),
                Instruction::Insert(bytes) => {
                    let from = usize::try_from(skip).unwrap_or(usize::MAX);
                    let to = usize::try_from(skip + taken).unwrap_or(usize::MAX);
                    writer.insert(bytes.get(from..to).unwrap_or_default());
                }
            }
            at += taken;
        }
        Ok(())
    }
}

/// Writes a delta, joining neighbours that one instruction can say.
struct Writer {
    out: Vec<u8>,
    size_max: usize,
    /// Where the insert being grown has its length byte.
    growing: Option<usize>,
    /// A copy not written yet: offset and size.
    copying: Option<(u64, u64)>,
    /// The delta is larger than it may be, or cannot be said; no more is written.
    is_beyond: bool,
}

impl Writer {
    fn new(base: u64, result: u64, size_max: usize) -> Self {
        let mut out = Vec::new();
        push_size(&mut out, base);
        push_size(&mut out, result);
        Self { out, size_max, growing: None, copying: None, is_beyond: false }
    }

    fn copy(&mut self, offset: u64, size: u64) {
        self.growing = None;
        match &mut self.copying {
            Some((start, had)) if *start + *had == offset => *had += size,
            _ => {
                self.write_copy();
                self.copying = Some((offset, size));
            }
        }
    }

    fn insert(&mut self, mut bytes: &[u8]) {
        self.write_copy();
        while !bytes.is_empty() {
            let at = match self.growing {
                Some(at) if self.out.get(at).is_some_and(|had| *had < INSERT_MAX) => at,
                _ => {
                    self.out.push(0);
                    self.out.len() - 1
                }
            };
            self.growing = Some(at);
            let Some(had) = self.out.get_mut(at) else { break };
            let room = bytes.len().min(usize::from(INSERT_MAX - *had));
            // At most 127, so nothing is lost.
            *had += room as u8;
            let (now, later) = bytes.split_at(room);
            self.out.extend_from_slice(now);
            bytes = later;
        }
        self.is_beyond |= self.out.len() > self.size_max;
    }

    /// Writes the copy at hand, in pieces no larger than git itself writes.
    fn write_copy(&mut self) {
        let Some((mut offset, mut size)) = self.copying.take() else { return };
        while size > 0 && !self.is_beyond {
            let taken = size.min(COPY_SIZE_UNSAID.into());
            match u32::try_from(offset) {
                Ok(start) => push_copy(&mut self.out, start, taken as u32),
                Err(_) => self.is_beyond = true,
            }
            self.is_beyond |= self.out.len() > self.size_max;
            (offset, size) = (offset + taken, size - taken);
        }
    }

    fn finish(mut self) -> Option<Vec<u8>> {
        self.write_copy();
        (!self.is_beyond && self.out.len() <= self.size_max).then_some(self.out)
    }
}

/// `size` is at most [`COPY_SIZE_UNSAID`], whose two low bytes are zero.
fn push_copy(out: &mut Vec<u8>, offset: u32, size: u32) {
    let at = out.len();
    out.push(0x80);
    let mut flags = 0x80u8;
    let offset = offset.to_le_bytes().into_iter().enumerate();
    let size = size.to_le_bytes().into_iter().take(2).enumerate().map(|(bit, byte)| (bit + 4, byte));
    for (bit, byte) in offset.chain(size) {
        if byte != 0 {
            flags |= 1 << bit;
            out.push(byte);
        }
    }
    if let Some(first) = out.get_mut(at) {
        *first = flags;
    }
}

fn push_size(out: &mut Vec<u8>, mut size: u64) {
    while size > 0x7f {
        out.push(0x80 | (size & 0x7f) as u8);
        size >>= 7;
    }
    out.push(size as u8);
}

fn size(bytes: &[u8]) -> Result<(u64, usize), DeltaError> {
    let (mut value, mut shift) = (0u64, 0u32);
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        // As for entry sizes: groups of zeros may follow for ever, a set bit beyond 64 must not be lost.
        if bits != 0 {
            if shift >= 64 || bits << shift >> shift != bits {
                return Err(DeltaError::Overflow);
            }
            value |= bits << shift;
        }
        if byte & 0x80 == 0 {
            return Ok((value, at + 1));
        }
        shift = shift.saturating_add(7);
    }
    Err(DeltaError::Truncated)
}

/// Bytes of a copy whose size is not said; also the most that git says in one copy.
const COPY_SIZE_UNSAID: u32 = 0x1_0000;
/// Bytes of one insert, at most.
const INSERT_MAX: u8 = 127;
/// Bytes of a result that are allocated on the word of the delta alone.
const TRUSTED_SIZE: u64 = 256 * 1024;
/// Bytes copied between two looks at the pace.
const BYTES_BETWEEN_LOOKS: usize = 512 * 1024;
/// Copying is so many times faster than inflating.
const BYTES_PER_UNIT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, DeltaError> {
        apply_within(base, delta, 1 << 30)
    }

    fn apply_within(base: &[u8], delta: &[u8], limit: u64) -> Result<Vec<u8>, DeltaError> {
        let pace = Pace::default();
        pace.run(apply_paced(base, delta, limit, &pace), |_| unreachable!())
    }

    /// Straight from the manual page, byte by byte.
    fn naive(base: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
        let mut input = delta.iter().copied();
        let mut sizes = [0u128; 2];
        for size in &mut sizes {
            let mut shift = 0;
            loop {
                let byte = input.next()?;
                if byte & 0x7f != 0 {
                    *size +=
                        u128::from(byte & 0x7f).checked_shl(shift).filter(|value| *value >> 64 == 0 && shift < 70)?;
                }
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
        }
        if sizes[0] != base.len() as u128 {
            return None;
        }
        let mut out = Vec::new();
        while let Some(first) = input.next() {
            if first & 0x80 != 0 {
                let (mut offset, mut size) = (0usize, 0usize);
                for bit in 0..4 {
                    if first >> bit & 1 == 1 {
                        offset += usize::from(input.next()?) << (8 * bit);
                    }
                }
                for bit in 0..3 {
                    if first >> (bit + 4) & 1 == 1 {
                        size += usize::from(input.next()?) << (8 * bit);
                    }
                }
                for at in 0..if size == 0 { 65536 } else { size } {
                    out.push(*base.get(offset + at)?);
                }
            } else if first == 0 {
                return None;
            } else {
                for _ in 0..first {
                    out.push(input.next()?);
                }
            }
        }
        (out.len() as u128 == sizes[1]).then_some(out)
    }

    /// A delta of a base of `base` bytes, of instructions given as (copies, where, how much).
    fn made(base: usize, steps: &[(bool, u32, u32)]) -> Vec<u8> {
        let mut instructions = Vec::new();
        let mut size = 0;
        for (copies, place, amount) in steps {
            if *copies && base > 0 {
                let offset = *place as usize % base;
                let amount = (*amount as usize % (base - offset)).clamp(1, 0xffff);
                push_copy(&mut instructions, offset as u32, amount as u32);
                size += amount;
            } else {
                let amount = (*amount % 127 + 1) as u8;
                instructions.push(amount);
                instructions.extend((0..amount).map(|at| at.wrapping_mul(31) ^ *place as u8));
                size += usize::from(amount);
            }
        }
        let mut delta = Vec::new();
        push_size(&mut delta, base as u64);
        push_size(&mut delta, size as u64);
        delta.extend(instructions);
        delta
    }

    #[test]
    fn copies_and_inserts_make_the_result() {
        // 06 05: base of 6, result of 5; 91 03 02: copy 2 bytes at 3; 01 2d: insert "-"; 90 02: copy 2 bytes at 0.
        let delta = [6, 5, 0x91, 3, 2, 1, b'-', 0x90, 2];
        assert_eq!(apply(b"abcdef", &delta).unwrap(), b"de-ab");
        assert_eq!(sizes(&delta), Ok((6, 5, 2)));
    }

    #[test]
    fn a_delta_that_yields_more_than_it_says_is_refused() {
        assert_eq!(apply(b"abcdef", &[6, 1, 0x90, 2]), Err(DeltaError::ResultSize(1)));
        assert_eq!(apply(b"abcdef", &[6, 1, 2, b'x', b'y']), Err(DeltaError::ResultSize(1)));
        assert_eq!(apply(b"abcdef", &[6, 3, 0x90, 2]), Err(DeltaError::ResultSize(3)));
        assert_eq!(apply(b"abcdef", &[6, 0]), Ok(Vec::new()));
    }

    #[test]
    fn a_copy_without_a_size_takes_65536_bytes() {
        let base: Vec<u8> = (0..70_000u32).map(|at| (at / 256) as u8).collect();
        let mut delta = Vec::new();
        push_size(&mut delta, 70_000);
        push_size(&mut delta, 65_536);
        delta.extend([0x81, 5]);
        assert_eq!(apply(&base, &delta).unwrap(), base[5..65_541]);
    }

    #[test]
    fn every_kind_of_damage_has_its_error() {
        assert_eq!(apply(b"abc", &[4, 1, 1, 0]), Err(DeltaError::BaseSize { claimed: 4, found: 3 }));
        assert_eq!(apply(b"abc", &[3, 2, 0x91, 2, 2]), Err(DeltaError::OutsideBase));
        assert_eq!(apply(b"abc", &[3, 2, 0]), Err(DeltaError::Reserved));
        for short in [&[][..], &[3], &[3, 0x80], &[3, 2, 0x91], &[3, 2, 0x91, 2], &[3, 2, 2, b'x']] {
            assert_eq!(apply(b"abc", short), Err(DeltaError::Truncated), "{short:x?}");
        }
        let wide = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0];
        assert_eq!(sizes(&wide), Err(DeltaError::Overflow));
        assert_eq!(sizes(&[0x83, 0x80, 0x80, 0, 0x81, 0]), Ok((3, 1, 6)));
    }

    #[test]
    fn a_claimed_size_is_not_allocated() {
        let mut delta = Vec::new();
        push_size(&mut delta, 3);
        push_size(&mut delta, 1 << 40);
        delta.extend([0x90, 3]);
        assert_eq!(apply_within(b"abc", &delta, u64::MAX), Err(DeltaError::ResultSize(1 << 40)));
        assert_eq!(apply_within(b"abc", &delta, 9), Err(DeltaError::TooLarge { size: 1 << 40, limit: 9 }));
    }

    #[test]
    fn large_results_give_the_loop_back() {
        let base = vec![7u8; 0xff_ffff];
        let mut delta = Vec::new();
        push_size(&mut delta, base.len() as u64);
        push_size(&mut delta, base.len() as u64);
        // One copy of 16 MiB less a byte.
        delta.extend([0xf0, 0xff, 0xff, 0xff]);
        let pace = Pace::default();
        let mut work = std::pin::pin!(apply_paced(&base, &delta, 1 << 30, &pace));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut slices = 0;
        let out = loop {
            pace.refill();
            slices += 1;
            if let std::task::Poll::Ready(out) = work.as_mut().poll(&mut context) {
                break out.unwrap();
            }
        };
        assert!(out == base && slices > 8, "{slices} slices");
    }

    #[test]
    fn composing_deltas_that_do_not_fit_is_refused() {
        let inner = [3, 2, 0x90, 2];
        assert_eq!(compose(&[3, 1, 0x90, 1], &inner, 99), Err(DeltaError::BaseSize { claimed: 3, found: 2 }));
        assert_eq!(compose(&[2, 2, 0x91, 1, 2], &inner, 99), Err(DeltaError::OutsideBase));
        assert_eq!(compose(&[2, 9, 0x90, 2], &inner, 99), Err(DeltaError::ResultSize(9)));
        assert_eq!(compose(&[2, 2, 0x90, 2], &[3, 2, 0x90, 1], 99), Err(DeltaError::ResultSize(2)));
        assert_eq!(compose(&[2, 2, 0x90, 2], &[3, 2, 0x91, 2, 2], 99), Err(DeltaError::OutsideBase));
        assert_eq!(compose(&[2, 2, 0x90, 2], &inner, 3), Ok(None));
        assert_eq!(compose(&[2, 2, 0x90, 2], &inner, 4), Ok(Some(inner.to_vec())));
    }

    #[test]
    fn a_composition_stops_growing_at_its_bound() {
        // A delta of 100 KB that says 25 000 times the whole of 100 KB of inserts: 2.5 GB.
        let mut inner = Vec::new();
        push_size(&mut inner, 0);
        push_size(&mut inner, 101_600);
        for _ in 0..800 {
            inner.push(127);
            inner.extend([b'x'; 127]);
        }
        let mut outer = Vec::new();
        push_size(&mut outer, 101_600);
        push_size(&mut outer, 25_000 * 101_600);
        for _ in 0..25_000 {
            // 101 600 is 01 8c e0.
            outer.extend([0xf0, 0xe0, 0x8c, 1]);
        }
        assert_eq!(compose(&outer, &inner, 1 << 20), Ok(None));
    }

    #[test]
    fn a_copy_from_beyond_four_gib_is_not_composed() {
        let mut inner = Vec::new();
        push_size(&mut inner, 1 << 33);
        push_size(&mut inner, 8);
        inner.extend([0x9f, 0xff, 0xff, 0xff, 0xff, 8]);
        assert_eq!(compose(&[8, 2, 0x91, 2, 2], &inner, 99), Ok(None));
        assert!(compose(&[8, 2, 0x90, 2], &inner, 99).unwrap().is_some());
    }

    #[test]
    fn composing_joins_what_one_instruction_can_say() {
        // The inner delta cuts the base in two and joins it again; the outer copies all of it.
        let base = [7u8; 200];
        let inner = [0xc8, 1, 0xc8, 1, 0x90, 100, 0x91, 100, 100];
        let composed = compose(&[0xc8, 1, 0xc8, 1, 0x90, 200], &inner, 99).unwrap().unwrap();
        assert_eq!(composed, [0xc8, 1, 0xc8, 1, 0x90, 200]);
        assert_eq!(apply(&base, &composed).unwrap(), base);
    }

    fn steps() -> impl Strategy<Value = Vec<(bool, u32, u32)>> {
        proptest::collection::vec((any::<bool>(), any::<u32>(), any::<u32>()), 0..40)
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
        fn applying_equals_the_manual_page(base in proptest::collection::vec(any::<u8>(), 0..2000), steps in steps()) {
            let delta = made(base.len(), &steps);
            let expected = naive(&base, &delta);
            prop_assert!(expected.is_some());
            prop_assert_eq!(apply(&base, &delta).ok(), expected);
        }

        #[test]
        fn a_made_delta_makes_its_target(base in proptest::collection::vec(0u8..4, 0..3000), steps in steps()) {
            let target = apply(&base, &made(base.len(), &steps)).unwrap();
            let delta = make(&base, &target, usize::MAX).unwrap();
            prop_assert_eq!(apply(&base, &delta).unwrap(), target.clone());
            prop_assert_eq!(make(&base, &target, delta.len() - 1), None);
        }

        #[test]
        fn random_bytes_are_taken_as_the_manual_page_takes_them(
            base in proptest::collection::vec(any::<u8>(), 0..20),
            mut delta in proptest::collection::vec(any::<u8>(), 0..60),
            fits: bool,
        ) {
            if fits && !delta.is_empty() {
                delta[0] = base.len() as u8;
            }
            prop_assert_eq!(apply(&base, &delta).ok(), naive(&base, &delta));
            let _ = compose(&delta, &delta, 1000);
        }

        #[test]
        fn a_composition_equals_both_one_after_the_other(
            base in proptest::collection::vec(any::<u8>(), 0..70_000),
            inner in steps(),
            outer in steps(),
        ) {
            let inner = made(base.len(), &inner);
            let middle = apply(&base, &inner).unwrap();
            let outer = made(middle.len(), &outer);
            let expected = apply(&middle, &outer).unwrap();
            let composed = compose(&outer, &inner, 1 << 20).unwrap().unwrap();
            prop_assert_eq!(apply(&base, &composed).unwrap(), expected);
            if let Some(limit) = composed.len().checked_sub(1) {
                prop_assert_eq!(compose(&outer, &inner, limit), Ok(None));
            }
        }
    }
}
