//! Entry headers: the first bytes of a pack entry become its kind, its size and, for a delta, where its base is.
//!
//! Touches no compressed byte and resolves no base. Invariant: `header_size` is the number of bytes really read, also
//! for long-winded size encodings, which are legal and keep their length when the entry is copied.
//! Source: gitformat-pack(5), "Pack entries" and "Deltified representation".
//! Read first: `long_winded_sizes_keep_their_length`.

use crate::oid::{Kind, ObjectId};

/// The four types of object, gitformat-pack(5) "Object types".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectType {
    /// A commit, type 1.
    Commit,
    /// A tree, type 2.
    Tree,
    /// A blob, type 3.
    Blob,
    /// An annotated tag, type 4.
    Tag,
}

impl ObjectType {
    /// The word in loose object headers and in `type` lines of tags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Commit => 1,
            Self::Tree => 2,
            Self::Blob => 3,
            Self::Tag => 4,
        }
    }
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The object itself.
    Whole(ObjectType),
    /// Instructions against the entry that starts `distance` bytes before this one (`OFS_DELTA`).
    OfsDelta {
        /// Bytes between the starts of the two entries, at least 1 in a sound pack.
        distance: u64,
    },
    /// Instructions against the object of that id (`REF_DELTA`).
    RefDelta {
        /// The base.
        base: ObjectId,
    },
}

/// One parsed entry header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Object or delta.
    pub kind: EntryKind,
    /// Bytes that the compressed part claims to inflate to: of the object, or of the delta's instructions.
    pub size: u64,
    /// Bytes of the type-and-size varint at the start of the header.
    pub size_bytes: usize,
    /// Bytes of the whole header; the zlib stream starts here.
    pub header_size: usize,
}

/// Why bytes are no entry header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The bytes end inside the header.
    #[error("the entry header is cut short")]
    Truncated,
    /// The size or the base distance needs more than 64 bits.
    #[error("a number in the entry header needs more than 64 bits")]
    Overflow,
    /// Type 0 or 5, which are reserved.
    #[error("entry type {0} is reserved")]
    Reserved(u8),
}

impl Entry {
    /// Parses the header at the start of `bytes`, which may run on to the end of the pack.
    ///
    /// # Errors
    /// The pack is damaged, or `bytes` do not start at an entry.
    pub fn parse(bytes: &[u8], hash: Kind) -> Result<Self, EntryError> {
        let (number, size, size_bytes) = type_and_size(bytes)?;
        let rest = bytes.get(size_bytes..).unwrap_or_default();
        let (kind, more) = match number {
            1 => (EntryKind::Whole(ObjectType::Commit), 0),
            2 => (EntryKind::Whole(ObjectType::Tree), 0),
            3 => (EntryKind::Whole(ObjectType::Blob), 0),
            4 => (EntryKind::Whole(ObjectType::Tag), 0),
            6 => {
                let (distance, used) = distance(rest)?;
                (EntryKind::OfsDelta { distance }, used)
            }
            7 => {
                let raw = rest.get(..hash.len_in_bytes()).ok_or(EntryError::Truncated)?;
                let base = ObjectId::try_from(raw).map_err(|_| EntryError::Truncated)?;
                (EntryKind::RefDelta { base }, raw.len())
            }
            other => return Err(EntryError::Reserved(other)),
        };
        Ok(Self { kind, size, size_bytes, header_size: size_bytes + more })
    }
}

/// Appends the header of a whole object of `size` bytes.
pub fn push_whole(out: &mut Vec<u8>, object: ObjectType, size: u64) {
    push_type_and_size(out, object.number(), size);
}

/// Appends the header of a delta against `base`, whose instructions are `size` bytes (`REF_DELTA`).
pub fn push_ref_delta(out: &mut Vec<u8>, base: &ObjectId, size: u64) {
    push_type_and_size(out, 7, size);
    out.extend_from_slice(base.as_bytes());
}

/// Appends the header of a delta against the entry `distance` bytes earlier (`OFS_DELTA`).
pub fn push_ofs_delta(out: &mut Vec<u8>, distance: u64, size: u64) {
    push_type_and_size(out, 6, size);
    push_distance(out, distance);
}

/// Appends a base distance alone: behind the untouched type-and-size bytes of a copied entry it makes the new header.
pub fn push_distance(out: &mut Vec<u8>, mut distance: u64) {
    // Most significant group first, each continued group standing for one more than its bits say.
    let mut groups = [0u8; 10];
    let mut at = groups.len() - 1;
    groups[at] = (distance & 0x7f) as u8;
    distance >>= 7;
    while distance > 0 {
        distance -= 1;
        at -= 1;
        groups[at] = 0x80 | (distance & 0x7f) as u8;
        distance >>= 7;
    }
    out.extend_from_slice(&groups[at..]);
}

fn push_type_and_size(out: &mut Vec<u8>, number: u8, size: u64) {
    let mut byte = number << 4 | (size & 0x0f) as u8;
    let mut rest = size >> 4;
    while rest > 0 {
        out.push(byte | 0x80);
        byte = (rest & 0x7f) as u8;
        rest >>= 7;
    }
    out.push(byte);
}

fn type_and_size(bytes: &[u8]) -> Result<(u8, u64, usize), EntryError> {
    let mut input = bytes.iter().copied();
    let mut byte = input.next().ok_or(EntryError::Truncated)?;
    let number = byte >> 4 & 7;
    let mut size = u64::from(byte & 0x0f);
    let (mut shift, mut used) = (4u32, 1);
    while byte & 0x80 != 0 {
        byte = input.next().ok_or(EntryError::Truncated)?;
        used += 1;
        let bits = u64::from(byte & 0x7f);
        // A group of zeros far to the left is long-winded; a set bit there is lost by the shift, which must not pass.
        if bits != 0 {
            if shift >= 64 || bits << shift >> shift != bits {
                return Err(EntryError::Overflow);
            }
            size |= bits << shift;
        }
        shift = shift.saturating_add(7);
    }
    Ok((number, size, used))
}

fn distance(bytes: &[u8]) -> Result<(u64, usize), EntryError> {
    let mut input = bytes.iter().copied();
    let mut byte = input.next().ok_or(EntryError::Truncated)?;
    let mut value = u64::from(byte & 0x7f);
    let mut used = 1;
    while byte & 0x80 != 0 {
        byte = input.next().ok_or(EntryError::Truncated)?;
        used += 1;
        value = value.checked_add(1).filter(|value| value >> 57 == 0).ok_or(EntryError::Overflow)?;
        value = value << 7 | u64::from(byte & 0x7f);
    }
    Ok((value, used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_winded_sizes_keep_their_length() {
        // b3 00: a blob of 3 bytes said in two bytes.
        let entry = Entry::parse(&[0xb3, 0x00, 0x78], Kind::Sha1).unwrap();
        assert_eq!(entry, Entry { kind: EntryKind::Whole(ObjectType::Blob), size: 3, size_bytes: 2, header_size: 2 });
        let mut padded = vec![0xb3];
        padded.extend([0x80; 30]);
        padded.push(0);
        assert_eq!(Entry::parse(&padded, Kind::Sha1).unwrap().header_size, 32);
    }

    #[test]
    fn numbers_wider_than_64_bits_are_refused() {
        let mut size = vec![0xbf];
        size.extend([0xff; 8]);
        size.push(0x0f);
        assert_eq!(Entry::parse(&size, Kind::Sha1).unwrap().size, u64::MAX);
        *size.last_mut().unwrap() = 0x1f;
        assert_eq!(Entry::parse(&size, Kind::Sha1), Err(EntryError::Overflow));
        let mut far = vec![0x63];
        far.extend([0xff; 9]);
        far.push(0x7f);
        assert_eq!(Entry::parse(&far, Kind::Sha1), Err(EntryError::Overflow));
    }

    #[test]
    fn reserved_types_and_short_headers_are_refused() {
        assert_eq!(Entry::parse(&[0x03], Kind::Sha1), Err(EntryError::Reserved(0)));
        assert_eq!(Entry::parse(&[0x53], Kind::Sha1), Err(EntryError::Reserved(5)));
        for short in [&[][..], &[0xb3], &[0x63], &[0x63, 0x80], &[0x73; 20]] {
            assert_eq!(Entry::parse(short, Kind::Sha1), Err(EntryError::Truncated), "{short:x?}");
        }
        assert!(Entry::parse(&[0x73; 21], Kind::Sha1).is_ok());
        assert_eq!(Entry::parse(&[0x73; 21], Kind::Sha256), Err(EntryError::Truncated));
    }

    proptest! {
        #[test]
        fn headers_round_trip(size: u64, distance: u64, raw: [u8; 20]) {
            let distance = distance.min(u64::MAX >> 7);
            let base = ObjectId::from(raw);
            let mut bytes = Vec::new();
            push_ofs_delta(&mut bytes, distance, size);
            let entry = Entry::parse(&bytes, Kind::Sha1).unwrap();
            prop_assert_eq!((entry.kind, entry.size, entry.header_size), (EntryKind::OfsDelta { distance }, size, bytes.len()));
            let mut copied = bytes[..entry.size_bytes].to_vec();
            push_distance(&mut copied, distance);
            prop_assert_eq!(&copied, &bytes);
            bytes.clear();
            push_ref_delta(&mut bytes, &base, size);
            let entry = Entry::parse(&bytes, Kind::Sha1).unwrap();
            prop_assert_eq!((entry.kind, entry.size, entry.header_size), (EntryKind::RefDelta { base }, size, bytes.len()));
            bytes.clear();
            push_whole(&mut bytes, ObjectType::Tag, size);
            let entry = Entry::parse(&bytes, Kind::Sha1).unwrap();
            prop_assert_eq!((entry.kind, entry.size, entry.header_size), (EntryKind::Whole(ObjectType::Tag), size, bytes.len()));
        }

        #[test]
        fn any_bytes_are_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(entry) = Entry::parse(&bytes, Kind::Sha1) {
                prop_assert!(entry.size_bytes <= entry.header_size && entry.header_size <= bytes.len());
            }
        }
    }
}
