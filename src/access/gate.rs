//! The gate: what every request of every loop asks, and where a new directory is hung up.
//!
//! Reads no file. Invariants: one atomic load gives a request the directory it keeps to its end; without a database
//! everything is public.
//! Source: RFC 7617 (Basic), RFC 6750, 2.1 (Bearer). Read first: `a_token_is_found_wherever_clients_put_it`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwapOption;
use base64::Engine as _;
use ipnet::IpNet;

use super::{
    Source,
    attempts::Attempts,
    directory::{Caller, Directory, Refused},
    pattern::{BadPattern, Pattern},
    token::Token,
};

/// The same for all loops.
#[derive(Debug)]
pub struct Gate {
    directory: ArcSwapOption<Directory>,
    attempts: Attempts,
    /// Networks whose `X-Forwarded-For` is believed.
    trusted: Vec<IpNet>,
    wants: Vec<WantsRule>,
    /// How often a directory could not be read anew.
    faults: AtomicU64,
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub enum Identity {
    /// Nobody said.
    Anonymous,
    /// A token that holds.
    Known(Caller),
    /// Something that is none.
    Refused(Refused),
}

/// `--wants`: whether repositories give only what their visible refs reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantsRule {
    /// Which; all when there is none.
    pub pattern: Option<Pattern>,
    /// Only what visible refs reach (`reachable`), or whatever exists (`as-git`).
    pub reachable: bool,
}

impl WantsRule {
    /// Reads `reachable`, `as-git` or one of them behind `PATTERN=`.
    ///
    /// # Errors
    /// It is neither, or the pattern is none.
    pub fn read(text: &str) -> Result<Self, String> {
        let (pattern, mode) = match text.rsplit_once('=') {
            Some((pattern, mode)) => {
                (Some(Pattern::of_repositories(pattern).map_err(|error: BadPattern| error.to_string())?), mode)
            }
            None => (None, text),
        };
        match mode {
            "reachable" => Ok(Self { pattern, reachable: true }),
            "as-git" => Ok(Self { pattern, reachable: false }),
            _ => Err("takes as-git or reachable, or PATTERN=reachable for some repositories".to_owned()),
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), FAILURES_DEFAULT)
    }
}

impl Gate {
    /// Without a directory: everything is public. `failures` attempts may fail in a minute from one address.
    pub fn new(trusted: Vec<IpNet>, wants: Vec<WantsRule>, failures: u32) -> Self {
        Self {
            directory: ArcSwapOption::empty(),
            attempts: Attempts::new(failures),
            trusted,
            wants,
            faults: AtomicU64::new(0),
        }
    }

    /// The directory as it is now; `None` when everything is public.
    pub fn directory(&self) -> Option<Arc<Directory>> {
        self.directory.load_full()
    }

    /// Hangs up a new directory, for requests that begin from now on.
    pub fn hang_up(&self, directory: Arc<Directory>) {
        self.directory.store(Some(directory));
    }

    /// Counts that a directory could not be read anew; the old one stays.
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a directory could not be read anew.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Who sent a request with that `Authorization` field.
    pub fn identify(&self, directory: &Arc<Directory>, authorization: Option<&[u8]>) -> Identity {
        let Some(field) = authorization else { return Identity::Anonymous };
        let Some(token) = token_of(field) else { return Identity::Refused(Refused::Unknown) };
        match directory.identify(&token, unix_time()) {
            Ok(caller) => Identity::Known(caller),
            Err(refused) => Identity::Refused(refused),
        }
    }

    /// Counts a failed attempt; when there were too many from there, how many seconds to wait.
    pub fn fail(&self, source: Source) -> Option<u64> {
        self.attempts.fail(source, unix_time())
    }

    /// Where a request comes from: the peer, or what a proxy that is trusted says, followed as far as that is trusted.
    pub fn source(&self, peer: Source, forwarded: &[u8]) -> Source {
        let mut source = peer;
        let mut said = forwarded.rsplit(|byte| *byte == b',');
        while self.trusts(source) {
            let next = said.next().and_then(|text| std::str::from_utf8(text.trim_ascii()).ok());
            let Some(next) = next.and_then(address_of) else { break };
            source = next;
        }
        source
    }

    fn trusts(&self, source: Source) -> bool {
        let source = source.to_canonical();
        self.trusted.iter().any(|network| network.contains(&source))
    }

    /// Whether the repository of that canonical name gives only what its visible refs reach. The rule with the most bytes
    /// that match only themselves decides; of two such, `reachable`.
    pub fn is_reachable_only(&self, name: &[u8]) -> bool {
        let size = |rule: &WantsRule| match &rule.pattern {
            None => Some(0),
            Some(pattern) => pattern.matches(name).then(|| 1 + pattern.literal_size()),
        };
        let matching = self.wants.iter().filter_map(|rule| Some((size(rule)?, rule.reachable)));
        matching.max().is_some_and(|(_, reachable)| reachable)
    }
}

/// An address, with or without a port behind it.
fn address_of(text: &str) -> Option<Source> {
    text.parse().ok().or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip()))
}

/// The token in an `Authorization` field: `Bearer TOKEN`; `Basic` with the token as password or, as git hosts accept, as name.
fn token_of(field: &[u8]) -> Option<Token> {
    if field.len() > FIELD_SIZE_MAX {
        return None;
    }
    let space = memchr::memchr(b' ', field)?;
    let (scheme, rest) = (field.get(..space)?, field.get(space..)?.trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Token::parse(rest);
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let said = base64::engine::general_purpose::STANDARD.decode(rest).ok()?;
    let colon = memchr::memchr(b':', &said)?;
    let (name, password) = (said.get(..colon)?, said.get(colon + 1..)?);
    Token::parse(password).or_else(|| Token::parse(name))
}

/// Seconds since 1970; one call into the vDSO.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Bytes of an `Authorization` field that is looked at: a name of 250 bytes beside a token is 400.
const FIELD_SIZE_MAX: usize = 2048;
/// Attempts that may fail from one address in a minute.
pub const FAILURES_DEFAULT: u32 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(said: &str) -> Vec<u8> {
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(said)).into_bytes()
    }

    #[test]
    fn a_token_is_found_wherever_clients_put_it() {
        let token = Token::random().unwrap();
        let text = token.reveal();
        for field in [
            format!("Bearer {text}").into_bytes(),
            format!("bearer   {text}").into_bytes(),
            basic(&format!("anything:{text}")),
            basic(&format!(":{text}")),
            basic(&format!("{text}:")),
            basic(&format!("{text}:x-oauth-basic")),
            basic(&format!("{text}:{text}")),
        ] {
            assert_eq!(token_of(&field), Some(token.clone()), "{}", String::from_utf8_lossy(&field));
        }
    }

    #[test]
    fn what_holds_no_token_is_refused() {
        let token = Token::random().unwrap();
        let text = token.reveal();
        for field in [
            String::new(),
            "Basic".into(),
            "Basic ".into(),
            "Basic !!!!".into(),
            "Bearer".into(),
            format!("Digest {text}"),
            format!("Bearer {text} {text}"),
            format!("Bearer {}", &text[1..]),
            text.to_owned(),
        ] {
            assert_eq!(token_of(field.as_bytes()), None, "{field}");
        }
        assert_eq!(token_of(&basic(text)), None, "no colon");
        assert_eq!(token_of(b"Bearer \xff\xfe"), None);
        assert_eq!(token_of(&basic(&"x".repeat(1 << 20))), None);
        assert_eq!(token_of(&vec![b'\xff'; 1 << 20]), None);
    }

    #[test]
    fn a_proxy_is_believed_only_from_trusted_networks() {
        let trusted = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).to_vec();
        let gate = Gate::new(trusted, Vec::new(), 1);
        let source = |peer: &str, said: &str| gate.source(peer.parse().unwrap(), said.as_bytes()).to_string();
        assert_eq!(source("192.0.2.1", "198.51.100.7"), "192.0.2.1");
        assert_eq!(source("10.0.0.1", "198.51.100.7"), "198.51.100.7");
        assert_eq!(source("10.0.0.1", "6.6.6.6, 198.51.100.7, 10.9.9.9"), "198.51.100.7");
        assert_eq!(source("::ffff:10.0.0.1", "198.51.100.7:4711"), "198.51.100.7");
        assert_eq!(source("10.0.0.1", "nonsense"), "10.0.0.1");
        assert_eq!(source("10.0.0.1", ""), "10.0.0.1");
        assert_eq!(source("fd00::1", "[2001:db8::1]:80"), "2001:db8::1");
    }

    #[test]
    fn the_rule_about_wants_that_says_most_decides() {
        let rules = ["as-git", "secret/**=reachable", "secret/open=as-git"].map(|text| WantsRule::read(text).unwrap());
        let gate = Gate::new(Vec::new(), rules.to_vec(), 1);
        assert!(!gate.is_reachable_only(b"x") && gate.is_reachable_only(b"secret/x"));
        assert!(!gate.is_reachable_only(b"secret/open"));
        assert!(!Gate::default().is_reachable_only(b"x"));
        assert!(WantsRule::read("never").is_err() && WantsRule::read("a//b=reachable").is_err());
    }
}
