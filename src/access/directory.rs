//! The directory: principals, tokens, grants and visibility as the loops read them, made once and never changed.
//!
//! Reads no file and no header. Invariants: what no rule allows is denied; a verdict looks at the rules of one principal and
//! not at those of others; only the time of last use changes, without a lock.
//! Read first: `every_case_of_visibility_credential_and_grant_has_its_verdict`.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    pattern::{Pattern, PatternMap},
    token::{Token, TokenDigest},
};

/// Everything a database holds, as it is read from there.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Principals, each with its own.
    pub principals: Vec<PrincipalRecord>,
    /// Repositories that are public (`true`) or private.
    pub visibility: Vec<(Pattern, bool)>,
    /// Whether a repository without a rule is public.
    pub public_by_default: bool,
}

/// One principal.
#[derive(Clone, Debug, Default)]
pub struct PrincipalRecord {
    /// Unique.
    pub name: String,
    /// Whether all its tokens are refused.
    pub disabled: bool,
    /// Those that are not revoked.
    pub tokens: Vec<TokenRecord>,
    /// What it may read: repositories, and of them the refs, all when none is named.
    pub grants: Vec<(Pattern, Vec<Pattern>)>,
}

/// One token.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    /// In the database.
    pub id: i64,
    /// Unique among the living ones of its principal.
    pub name: String,
    /// Of its text.
    pub digest: TokenDigest,
    /// From when on it is refused, seconds since 1970.
    pub expires: Option<u64>,
    /// When it was last used, as far as the database knows.
    pub last_used: u64,
    /// Repositories it is good for; all that its principal may read when there is none.
    pub scope: Vec<Pattern>,
}

/// What the loops ask.
#[derive(Debug, Default)]
pub struct Directory {
    principals: Vec<Principal>,
    tokens: Vec<KnownToken>,
    /// Tokens by the first bytes of their digests, sorted.
    shelf: Vec<(u64, u32)>,
    visibility: PatternMap<bool>,
    public_by_default: bool,
}

#[derive(Debug)]
struct Principal {
    name: Arc<str>,
    disabled: bool,
    grants: PatternMap<Option<Arc<RefLimit>>>,
}

#[derive(Debug)]
struct KnownToken {
    id: i64,
    principal: usize,
    name: Arc<str>,
    digest: TokenDigest,
    expires: Option<u64>,
    scope: Option<PatternMap<()>>,
    /// Shared with later directories, so that no use is lost between two.
    last_used: Arc<AtomicU64>,
}

/// Whoever sent a token that holds.
#[derive(Clone, Debug)]
pub struct Caller {
    directory: Arc<Directory>,
    token: usize,
    /// Its principal.
    pub principal: Arc<str>,
    /// Name of the token, for the log.
    pub token_name: Arc<str>,
}

/// Why a token is refused. The caller is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No token that was ever given out, or a revoked one.
    #[error("no such token, or it was revoked")]
    Unknown,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// Its principal is disabled.
    #[error("the principal is disabled")]
    Disabled,
}

/// What somebody may do with a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Denied,
    /// Read, as everyone may.
    Public,
    /// Read by a grant: all refs, or those that the limit shows.
    Granted(Option<Arc<RefLimit>>),
}

/// Refs that a grant is limited to.
#[derive(Debug, PartialEq, Eq)]
pub struct RefLimit {
    patterns: Vec<Pattern>,
    /// The same for the same patterns.
    pub key: Box<str>,
}

impl RefLimit {
    /// Of these patterns, at least one.
    pub fn new(mut patterns: Vec<Pattern>) -> Self {
        patterns.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        patterns.dedup();
        // No pattern holds a line break.
        let key: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
        Self { key: key.join("\n").into(), patterns }
    }

    /// Whether a ref of that full name is shown.
    pub fn shows(&self, name: &[u8]) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

impl Directory {
    /// Of these records. Times of last use are shared with `before`, where a token is in both.
    pub fn new(records: Records, before: Option<&Self>) -> Self {
        let mut directory = Self { public_by_default: records.public_by_default, ..Self::default() };
        for (pattern, public) in records.visibility {
            directory.visibility.insert(pattern, public);
        }
        for record in records.principals {
            let mut grants = PatternMap::default();
            for (pattern, refs) in record.grants {
                grants.insert(pattern, (!refs.is_empty()).then(|| Arc::new(RefLimit::new(refs))));
            }
            let principal = directory.principals.len();
            for token in record.tokens {
                let known = before.and_then(|before| before.find(&token.digest)).filter(|known| known.id == token.id);
                let last_used =
                    known.map_or_else(|| Arc::new(AtomicU64::new(token.last_used)), |k| Arc::clone(&k.last_used));
                directory.shelf.push((token.digest.shelf(), directory.tokens.len() as u32));
                directory.tokens.push(KnownToken {
                    id: token.id,
                    principal,
                    name: token.name.into(),
                    digest: token.digest,
                    expires: token.expires,
                    scope: scope_of(token.scope),
                    last_used,
                });
            }
            directory.principals.push(Principal { name: record.name.into(), disabled: record.disabled, grants });
        }
        directory.shelf.sort_unstable();
        directory
    }

    fn find(&self, digest: &TokenDigest) -> Option<&KnownToken> {
        self.position(digest).and_then(|at| self.tokens.get(at))
    }

    fn position(&self, digest: &TokenDigest) -> Option<usize> {
        let shelf = digest.shelf();
        let start = self.shelf.partition_point(|(key, _)| *key < shelf);
        let alike = self.shelf.get(start..).unwrap_or_default().iter().take_while(|(key, _)| *key == shelf);
        let mut places = alike.map(|(_, at)| *at as usize);
        places.find(|at| self.tokens.get(*at).is_some_and(|known| known.digest.is(digest)))
    }

    /// Who carries a token, at `now` (seconds since 1970). Notes the use.
    ///
    /// # Errors
    /// The token does not hold.
    pub fn identify(self: &Arc<Self>, token: &Token, now: u64) -> Result<Caller, Refused> {
        let at = self.position(&token.digest()).ok_or(Refused::Unknown)?;
        let known = self.tokens.get(at).ok_or(Refused::Unknown)?;
        let principal = self.principals.get(known.principal).ok_or(Refused::Unknown)?;
        if known.expires.is_some_and(|expires| expires <= now) {
            return Err(Refused::Expired);
        }
        if principal.disabled {
            return Err(Refused::Disabled);
        }
        // Written only when it changed: a cache line that all loops write to each time would cost them all.
        if known.last_used.load(Ordering::Relaxed) < now {
            known.last_used.store(now, Ordering::Relaxed);
        }
        let (principal, token_name) = (Arc::clone(&principal.name), Arc::clone(&known.name));
        Ok(Caller { directory: Arc::clone(self), token: at, principal, token_name })
    }

    /// Whether everyone may read the repository of that canonical name. Of several rules that match, the one with the most
    /// bytes that match only themselves decides; of two such, the one that says private.
    pub fn is_public(&self, name: &[u8]) -> bool {
        let mut best: Option<(usize, bool)> = None;
        for (size, public) in self.visibility.matching(name) {
            best = match best {
                Some((known, said)) if known > size || (known == size && !said) => best,
                _ => Some((size, *public)),
            };
        }
        best.map_or(self.public_by_default, |(_, public)| public)
    }

    /// What `caller` may do with the repository of that canonical name; `None` is everyone.
    pub fn judge(&self, caller: Option<&Caller>, name: &[u8]) -> Verdict {
        if self.is_public(name) {
            return Verdict::Public;
        }
        caller.map_or(Verdict::Denied, |caller| caller.judge(name))
    }

    /// Names of the principals that are not disabled and may read the repository of that canonical name, with the refs
    /// they are limited to. Tokens may narrow it further.
    pub fn who_can(&self, name: &[u8]) -> Vec<(Arc<str>, Option<Arc<RefLimit>>)> {
        let able = self.principals.iter().filter(|principal| !principal.disabled);
        let granted = |principal: &Principal| match principal.judge(name) {
            Verdict::Granted(limit) => Some((Arc::clone(&principal.name), limit)),
            Verdict::Denied | Verdict::Public => None,
        };
        able.filter_map(granted).collect()
    }

    /// Times of last use, by the id of the token.
    pub fn last_uses(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        self.tokens.iter().map(|token| (token.id, token.last_used.load(Ordering::Relaxed)))
    }

    /// Whether there is a token that could be sent.
    pub fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }
}

fn scope_of(patterns: Vec<Pattern>) -> Option<PatternMap<()>> {
    if patterns.is_empty() {
        return None;
    }
    let mut scope = PatternMap::default();
    for pattern in patterns {
        scope.insert(pattern, ());
    }
    Some(scope)
}

impl Principal {
    /// What its grants allow.
    fn judge(&self, name: &[u8]) -> Verdict {
        let mut limits: Vec<&Arc<RefLimit>> = Vec::new();
        for (_, limit) in self.grants.matching(name) {
            match limit {
                None => return Verdict::Granted(None),
                Some(limit) => limits.push(limit),
            }
        }
        match limits.as_slice() {
            [] => Verdict::Denied,
            [one] => Verdict::Granted(Some(Arc::clone(one))),
            several => {
                let patterns = several.iter().flat_map(|limit| limit.patterns.iter().cloned()).collect();
                Verdict::Granted(Some(Arc::new(RefLimit::new(patterns))))
            }
        }
    }
}

impl Caller {
    fn judge(&self, name: &[u8]) -> Verdict {
        let Some(token) = self.directory.tokens.get(self.token) else { return Verdict::Denied };
        if token.scope.as_ref().is_some_and(|scope| scope.matching(name).next().is_none()) {
            return Verdict::Denied;
        }
        let principal = self.directory.principals.get(token.principal);
        principal.map_or(Verdict::Denied, |principal| principal.judge(name))
    }
}

/// The name by which a path is judged: without slashes at its ends and without any `.git` at its end, so that no spelling
/// of a repository escapes a rule about another.
pub fn canonical(path: &[u8]) -> &[u8] {
    let mut name = path;
    loop {
        let shorter = name.strip_prefix(b"/").unwrap_or(name);
        let shorter = shorter.strip_suffix(b"/").unwrap_or(shorter);
        let shorter = shorter.strip_suffix(b".git").unwrap_or(shorter);
        if shorter.len() == name.len() {
            return name;
        }
        name = shorter;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    fn token(id: i64, token: &Token, expires: Option<u64>, scope: &[&str]) -> TokenRecord {
        let scope = scope.iter().map(|text| pattern(text)).collect();
        TokenRecord { id, name: format!("t{id}"), digest: token.digest(), expires, last_used: 0, scope }
    }

    /// `private/**` is private, all else public; `ann` may read `private/*`, of `private/part` only releases.
    fn example(tokens: &[(&Token, Option<u64>, &[&str])], disabled: bool) -> Arc<Directory> {
        let tokens = (1..).zip(tokens).map(|(id, (text, expires, scope))| token(id, text, *expires, scope)).collect();
        let grants =
            vec![(pattern("private/whole"), vec![]), (pattern("private/part"), vec![pattern("refs/heads/release/*")])];
        let records = Records {
            principals: vec![
                PrincipalRecord { name: "bob".into(), grants: vec![(pattern("**"), vec![])], ..Default::default() },
                PrincipalRecord { name: "ann".into(), disabled, tokens, grants },
            ],
            visibility: vec![(pattern("**"), true), (pattern("private/**"), false)],
            public_by_default: false,
        };
        Arc::new(Directory::new(records, None))
    }

    #[test]
    fn every_case_of_visibility_credential_and_grant_has_its_verdict() {
        let (good, other) = (Token::random().unwrap(), Token::random().unwrap());
        let directory = example(&[(&good, Some(100), &[]), (&other, None, &["private/other"])], false);
        let (ann, narrow) = (directory.identify(&good, 99).unwrap(), directory.identify(&other, 99).unwrap());
        let limit = Arc::new(RefLimit::new(vec![pattern("refs/heads/release/*")]));
        for (name, caller, verdict) in [
            ("free", None, Verdict::Public),
            ("free", Some(&ann), Verdict::Public),
            ("free", Some(&narrow), Verdict::Public),
            ("private/whole", None, Verdict::Denied),
            ("private/whole", Some(&ann), Verdict::Granted(None)),
            ("private/whole", Some(&narrow), Verdict::Denied),
            ("private/part", Some(&ann), Verdict::Granted(Some(limit))),
            ("private/other", Some(&ann), Verdict::Denied),
            ("private/other", Some(&narrow), Verdict::Denied),
            ("private", None, Verdict::Public),
        ] {
            assert_eq!(directory.judge(caller, name.as_bytes()), verdict, "{name} for {caller:?}");
        }
        assert_eq!((&*ann.principal, &*ann.token_name), ("ann", "t1"));
        let able =
            |name: &[u8]| directory.who_can(name).into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (able(b"private/whole"), able(b"private/else")),
            (vec!["bob".into(), "ann".into()], vec!["bob".into()])
        );
    }

    #[test]
    fn tokens_that_do_not_hold_are_refused() {
        let (good, other) = (Token::random().unwrap(), Token::random().unwrap());
        let directory = example(&[(&good, Some(100), &[])], false);
        assert_eq!(directory.identify(&good, 100).unwrap_err(), Refused::Expired);
        assert_eq!(directory.identify(&other, 1).unwrap_err(), Refused::Unknown);
        assert_eq!(example(&[(&good, None, &[])], true).identify(&good, 1).unwrap_err(), Refused::Disabled);
    }

    #[test]
    fn the_rule_that_says_most_decides_and_private_wins_a_tie() {
        let rules = |rules: &[(&str, bool)]| Records {
            visibility: rules.iter().map(|(text, public)| (pattern(text), *public)).collect(),
            ..Records::default()
        };
        let directory = Directory::new(rules(&[("a/**", true), ("a/b/**", false), ("a/b/c", true)]), None);
        let public = |name: &str| directory.is_public(name.as_bytes());
        assert!(public("a/x") && !public("a/b/x") && public("a/b/c") && !public("b") && !public("a"));
        for order in [[("*/x", true), ("x/*", false)], [("x/*", false), ("*/x", true)]] {
            assert!(!Directory::new(rules(&order), None).is_public(b"x/x"));
        }
    }

    #[test]
    fn several_limited_grants_show_what_any_of_them_shows_and_a_whole_one_shows_all() {
        let text = Token::random().unwrap();
        let with = |grants: Vec<(Pattern, Vec<Pattern>)>| {
            let tokens = vec![token(1, &text, None, &[])];
            let principals = vec![PrincipalRecord { name: "a".into(), tokens, grants, ..Default::default() }];
            let directory = Arc::new(Directory::new(Records { principals, ..Records::default() }, None));
            directory.judge(Some(&directory.identify(&text, 1).unwrap()), b"x/y")
        };
        let two =
            vec![(pattern("x/*"), vec![pattern("refs/heads/*")]), (pattern("x/y"), vec![pattern("refs/tags/**")])];
        let Verdict::Granted(Some(limit)) = with(two.clone()) else { panic!() };
        assert!(limit.shows(b"refs/heads/a") && limit.shows(b"refs/tags/a/b") && !limit.shows(b"refs/heads/a/b"));
        assert_eq!(with([two, vec![(pattern("**"), vec![])]].concat()), Verdict::Granted(None));
    }

    #[test]
    fn uses_are_carried_over_to_the_next_directory() {
        let text = Token::random().unwrap();
        let records = || {
            let tokens = vec![token(7, &text, None, &[])];
            Records { principals: vec![PrincipalRecord { tokens, ..Default::default() }], ..Records::default() }
        };
        let old = Arc::new(Directory::new(records(), None));
        let new = Arc::new(Directory::new(records(), Some(&old)));
        old.identify(&text, 55).unwrap();
        assert_eq!(new.last_uses().collect::<Vec<_>>(), [(7, 55)]);
    }

    #[test]
    fn no_spelling_of_a_path_escapes_its_name() {
        for path in ["x/y", "/x/y", "x/y/", "x/y.git", "/x/y.git/", "x/y/.git", "x/y.git/.git", "//x/y.git.git//"] {
            assert_eq!(canonical(path.as_bytes()), b"x/y", "{path}");
        }
        assert_eq!(canonical(b"/"), b"");
        assert_eq!(canonical(b"x.git/y"), b"x.git/y");
    }
}
