//! Numbers as C's `strtol` with base 0 reads them, which is how stock git reads the numbers of a request.
//!
//! Octal with a leading 0, hexadecimal with 0x, a sign, spaces in front. Read first: `numbers_are_read_like_c`.

/// A number and nothing behind it; empty text is 0, as it is for C. Too large a number is the largest.
pub fn signed(text: &[u8]) -> Option<i64> {
    let (negative, digits) = sign(text);
    let magnitude = magnitude(digits).filter(|_| is_read(text, digits))?;
    Some(if negative {
        i64::try_from(magnitude).map_or(i64::MIN, |value| -value)
    } else {
        i64::try_from(magnitude).unwrap_or(i64::MAX)
    })
}

/// The same without a sign, as git-config(1) wants sizes: at least one digit, nothing negative, nothing too large.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    if text.contains(&b'-') {
        return None;
    }
    let (_, digits) = sign(text);
    if digits.is_empty() {
        return None;
    }
    magnitude(digits).filter(|value| *value <= u128::from(u64::MAX)).and_then(|value| u64::try_from(value).ok())
}

/// As `strtoumax` reads a time: a negative number wraps around, too large a one is `u64::MAX`.
pub fn wrapping(text: &[u8]) -> Option<u64> {
    let (negative, digits) = sign(text);
    let value = magnitude(digits).filter(|_| is_read(text, digits))?;
    match u64::try_from(value) {
        Ok(value) if negative => Some(value.wrapping_neg()),
        Ok(value) => Some(value),
        Err(_) => Some(u64::MAX),
    }
}

/// C reads nothing where there is no digit, so that a sign or spaces alone are left over behind the number.
fn is_read(text: &[u8], digits: &[u8]) -> bool {
    text.is_empty() || !digits.is_empty()
}

fn sign(text: &[u8]) -> (bool, &[u8]) {
    let text = text.trim_ascii_start();
    match text.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, text),
    }
}

fn magnitude(digits: &[u8]) -> Option<u128> {
    let (base, digits) = match digits {
        [b'0', b'x' | b'X', rest @ ..] if !rest.is_empty() => (16, rest),
        [b'0', rest @ ..] if !rest.is_empty() => (8, rest),
        _ => (10, digits),
    };
    let mut value = 0u128;
    for digit in digits {
        let digit = char::from(*digit).to_digit(base)?;
        value = value.saturating_mul(u128::from(base)).saturating_add(u128::from(digit));
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_like_c() {
        for (text, expected) in [
            ("1", Some(1)),
            (" +12", Some(12)),
            ("-3", Some(-3)),
            ("0x10", Some(16)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("", Some(0)),
            ("99999999999999999999", Some(i64::MAX)),
            ("-99999999999999999999", Some(i64::MIN)),
            ("08", None),
            ("0x", None),
            ("1 ", None),
            ("1k", None),
            ("-", None),
            (" ", None),
        ] {
            assert_eq!(signed(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!((unsigned(b""), unsigned(b"-1"), unsigned(b"0x1f")), (None, None, Some(31)));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!((wrapping(b""), wrapping(b"-"), wrapping(b"+")), (Some(0), None, None));
        assert_eq!(
            (wrapping(b"-1"), wrapping(b"18446744073709551616"), wrapping(b"7")),
            (Some(u64::MAX), Some(u64::MAX), Some(7))
        );
    }
}
