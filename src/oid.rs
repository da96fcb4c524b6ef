//! Object names: hexadecimal text becomes an id of a known kind and back.
//!
//! Every room may use this file; it uses no room. It refuses to guess a kind from a length: the repository says which
//! hash it uses (`extensions.objectFormat`), and text of another length is no id.
//! Source: gitprotocol-common(5), "obj-id". Read first: `hex_of_other_length_is_no_id`.

pub use gix_hash::{Kind, ObjectId, oid};

/// Parses exactly one id of `kind` from hexadecimal text of either case (stock git reads both).
///
/// `None` when the length is not that of `kind` or a byte is no hex digit.
#[must_use]
pub fn from_hex(kind: Kind, hex: &[u8]) -> Option<ObjectId> {
    if hex.len() != kind.len_in_hex() {
        return None;
    }
    let mut raw = [0u8; 32];
    let mut seen = 0;
    for (out, pair) in raw.iter_mut().zip(hex.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        let (high, low) = (NIBBLES[usize::from(*high)], NIBBLES[usize::from(*low)]);
        seen |= high | low;
        *out = high << 4 | low & 15;
    }
    if seen > 15 {
        return None;
    }
    ObjectId::try_from(raw.get(..kind.len_in_bytes())?).ok()
}

/// Appends the lower-case hexadecimal form of `id`.
pub fn push_hex(out: &mut Vec<u8>, id: &oid) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in id.as_bytes() {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// The value of each digit, and [`NO_DIGIT`] for every other byte: one look instead of a branch per digit, because a
/// fetch with 50 000 haves has two million of them.
const NIBBLES: [u8; 256] = {
    let mut table = [NO_DIGIT; 256];
    let mut value = 0u8;
    while value < 16 {
        table[b"0123456789abcdef"[value as usize] as usize] = value;
        table[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    table
};

const NO_DIGIT: u8 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_of_other_length_is_no_id() {
        let hex = [b'a'; 64];
        for length in 0..=64 {
            assert_eq!(from_hex(Kind::Sha1, &hex[..length]).is_some(), length == 40);
            assert_eq!(from_hex(Kind::Sha256, &hex[..length]).is_some(), length == 64);
        }
    }

    #[test]
    fn hex_round_trips_in_lower_case() {
        let text = b"0123456789ABCDEF0123456789abcdef01234567";
        let id = from_hex(Kind::Sha1, text).unwrap();
        let mut out = Vec::new();
        push_hex(&mut out, &id);
        assert_eq!(out, text.to_ascii_lowercase());
    }

    #[test]
    fn a_byte_that_is_no_digit_is_no_id() {
        for byte in 0..=255u8 {
            for at in [0, 39] {
                let mut hex = [b'0'; 40];
                hex[at] = byte;
                assert_eq!(from_hex(Kind::Sha1, &hex).is_some(), byte.is_ascii_hexdigit(), "{byte:#x}");
            }
        }
    }
}
