//! Tokens: 190 random bits as a word that secret scanners find, known to the server by its digest alone.
//!
//! Keeps none. Invariants: a token's text appears nowhere but in what [`Token::random`] hands out; two digests are compared in
//! a time that does not depend on where they differ.
//! The form is `pkr_`, 32 random characters of `[0-9A-Za-z]`, and 6 that are the CRC-32 of those 32 in base 62: so a scanner
//! tells a token from a word without asking anybody, and a mistyped one costs no look-up.
//! Read first: `a_token_with_one_letter_changed_is_none`.

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "pkr_";
const RANDOM: usize = 32;
const SUM: usize = 6;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Bytes of a token's text.
pub const TOKEN_SIZE: usize = PREFIX.len() + RANDOM + SUM;

/// A token as whoever carries it has it. Shows nothing of itself in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A new one, from the kernel's randomness.
    ///
    /// # Errors
    /// The kernel has none to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut random = String::with_capacity(RANDOM);
        let mut bytes = [0; 64];
        while random.len() < RANDOM {
            getrandom::fill(&mut bytes)?;
            // 248 is the largest multiple of 62 in a byte: above it some letters would be likelier than others.
            let even = bytes.iter().filter(|byte| **byte < 248).map(|byte| letter(u32::from(*byte)));
            random.extend(even.take(RANDOM - random.len()));
        }
        let sum = sum_of(&random);
        Ok(Self(format!("{PREFIX}{random}{sum}")))
    }

    /// Reads one; `None` for what no server ever gave out.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() == TOKEN_SIZE)?;
        let rest = text.strip_prefix(PREFIX)?;
        let (random, sum) = rest.split_at_checked(RANDOM)?;
        let sound = random.bytes().all(|byte| byte.is_ascii_alphanumeric()) && sum == sum_of(random);
        sound.then(|| Self(text.to_owned()))
    }

    /// The text, for the one time it is shown.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the server keeps of it. No salt: the text is random already.
    pub fn digest(&self) -> TokenDigest {
        TokenDigest(Sha256::digest(self.0.as_bytes()).into())
    }
}

/// SHA-256 of a token's text.
#[derive(Clone, Copy, Debug)]
pub struct TokenDigest(pub [u8; 32]);

impl TokenDigest {
    /// Where to look for it. Says as much of the token as the digest's first bytes do: nothing.
    pub fn shelf(&self) -> u64 {
        self.0.first_chunk().copied().map_or(0, u64::from_le_bytes)
    }

    /// Whether both are the same, in constant time.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

fn sum_of(random: &str) -> String {
    let mut sum = crc32fast::hash(random.as_bytes());
    let mut letters = [b'0'; SUM];
    for place in letters.iter_mut().rev() {
        *place = letter(sum % 62) as u8;
        sum /= 62;
    }
    letters.iter().map(|byte| char::from(*byte)).collect()
}

fn letter(number: u32) -> char {
    LETTERS.get(number as usize % LETTERS.len()).copied().map_or('0', char::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_with_one_letter_changed_is_none() {
        let token = Token::random().unwrap();
        let text = token.reveal().to_owned();
        assert_eq!(text.len(), TOKEN_SIZE);
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        assert_eq!(Token::parse(text.as_bytes()), Some(token.clone()));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'x' { b'y' } else { b'x' };
            assert_eq!(Token::parse(&other), None, "at {at}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn what_is_no_token_is_none() {
        let text = Token::random().unwrap().reveal().to_owned();
        for other in
            [String::new(), "pkr_".into(), text.to_lowercase(), format!("{text} "), text.replace("pkr_", "PKR_")]
        {
            assert_eq!(Token::parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Token::parse(&[0xff; TOKEN_SIZE]), None);
        assert_eq!(Token::parse(&vec![b'a'; 1 << 20]), None);
    }

    #[test]
    fn tokens_differ_and_use_every_letter() {
        let texts: std::collections::HashSet<String> =
            (0..200).map(|_| Token::random().unwrap().reveal().to_owned()).collect();
        assert_eq!(texts.len(), 200);
        let letters: std::collections::HashSet<char> = texts.iter().flat_map(|text| text[4..36].chars()).collect();
        assert_eq!(letters.len(), 62);
    }

    #[test]
    fn digests_are_those_of_sha256_and_tell_tokens_apart() {
        let digest = Token("abc".to_owned()).digest();
        assert_eq!(digest.0[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert!(digest.is(&Token("abc".to_owned()).digest()) && !digest.is(&Token("abd".to_owned()).digest()));
    }
}
