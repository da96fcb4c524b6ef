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
    for (out, pair) in raw.iter_mut().zip(hex.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *out = nibble(*high)? << 4 | nibble(*low)?;
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

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

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
        for bad in [b'g', b' ', b'/', b':', b'@', b'`', 0, 0xff] {
            let mut hex = [b'0'; 40];
            hex[39] = bad;
            assert_eq!(from_hex(Kind::Sha1, &hex), None);
        }
    }
}
