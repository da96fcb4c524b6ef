//! Request heads: bytes in any split become one parsed head.
//!
//! Refuses whatever two servers could read differently: bare CR or LF, folded lines, spaces before a colon, two lengths,
//! a length beside a transfer coding, a path that climbs. Invariant: `searched <= kept <= HEAD_SIZE_MAX`; each byte is
//! searched once, and httparse runs once, on a complete head.
//! Source: RFC 9112, 2 to 6. Read first: `head_split_at_every_byte_gives_the_same_head`.

use super::response::Status;
use crate::limits;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD: the answer to GET without its body.
    Head,
    /// POST
    Post,
    /// One this server has no use for.
    Other,
}

/// The version the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// How the end of a request body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// There is no body.
    None,
    /// So many bytes.
    Known(u64),
    /// It comes in chunks.
    Chunked,
}

/// One request head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What is to be done.
    pub method: Method,
    /// Of the request.
    pub version: Version,
    /// Percent-decoded, from the first `/` on, without the query; no segment is empty (but the last), `.` or `..`.
    pub path: Vec<u8>,
    /// What stood behind `?`, as sent.
    pub query: Vec<u8>,
    /// Of the body.
    pub length: Length,
    /// Whether the body is gzip inside.
    pub gzip: bool,
    /// Whether the client waits for 100 before it sends the body.
    pub expects_continue: bool,
    /// Whether the client means to send another request.
    pub keep_alive: bool,
    /// `Content-Type`
    pub content_type: Option<Vec<u8>>,
    /// `Git-Protocol`
    pub git_protocol: Option<Vec<u8>>,
    /// `Host`
    pub host: Option<Vec<u8>>,
    /// `User-Agent`
    pub user_agent: Option<Vec<u8>>,
    /// `Range`
    pub range: Option<Vec<u8>>,
    /// `Authorization`; empty, and so no credential of any kind, where it was sent twice.
    pub authorization: Option<Vec<u8>>,
    /// All `X-Forwarded-For` fields, joined by commas.
    pub forwarded_for: Vec<u8>,
}

/// Why bytes are no request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// No end of the head within the limit.
    #[error("the head of the request is larger than {limit} bytes")]
    TooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// More fields than the limit.
    #[error("the head of the request has more than {limit} fields")]
    TooManyFields {
        /// Fields allowed.
        limit: usize,
    },
    /// No request line, or a line that is no field.
    #[error("the head of the request is malformed")]
    Malformed,
    /// Not HTTP/1.0 or 1.1.
    #[error("this server speaks HTTP/1.1 and HTTP/1.0")]
    Version,
    /// Target neither `/path` nor `http://host/path`, or with an unreadable escape.
    #[error("the target of the request is malformed")]
    Target,
    /// A path with a segment that is empty, `.` or `..`, with a backslash or a control byte.
    #[error("no such path")]
    Path,
    /// HTTP/1.1 without exactly one `Host`.
    #[error("the request needs one Host field")]
    Host,
    /// A length that is no number, or given twice, or beside `Transfer-Encoding`.
    #[error("the length of the request's body is ambiguous")]
    Length,
    /// A transfer coding other than `chunked`, or one in HTTP/1.0.
    #[error("the transfer coding of the request is not served")]
    TransferCoding,
    /// A content coding other than gzip.
    #[error("the content coding of the request is not served")]
    ContentCoding,
    /// `Expect` with something else than `100-continue`.
    #[error("the expectation of the request cannot be met")]
    Expectation,
}

impl HeadError {
    /// How the client hears of it.
    pub fn status(&self) -> Status {
        match self {
            Self::TooLarge { .. } | Self::TooManyFields { .. } => Status::HEAD_TOO_LARGE,
            Self::Version => Status::VERSION_NOT_SUPPORTED,
            Self::Path => Status::NOT_FOUND,
            Self::TransferCoding => Status::NOT_IMPLEMENTED,
            Self::ContentCoding => Status::UNSUPPORTED_MEDIA_TYPE,
            Self::Expectation => Status::EXPECTATION_FAILED,
            Self::Malformed | Self::Target | Self::Host | Self::Length => Status::BAD_REQUEST,
        }
    }
}

/// Collects one head.
#[derive(Clone, Debug, Default)]
pub struct HeadReader {
    kept: Vec<u8>,
    /// Bytes of `kept` behind which no end of the head can lie any more.
    searched: usize,
    /// Bytes of empty lines before the request, all parts together.
    skipped: usize,
}

impl HeadReader {
    /// A reader that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing of a request has arrived.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Takes from the front of `bytes` up to the end of the head. Returns how many bytes were taken, and the head once it
    /// is complete; the reader is then empty again.
    ///
    /// # Errors
    /// What arrived is no head this server reads; the connection cannot be read on from.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Head>), HeadError> {
        let mut skipped = 0;
        if self.kept.is_empty() {
            // A client may send an empty line before a request (RFC 9112, 2.2).
            skipped = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.skipped += skipped;
            if self.skipped > EMPTY_LINES_MAX {
                return Err(HeadError::Malformed);
            }
        }
        let rest = bytes.get(skipped..).unwrap_or_default();
        let room = limits::HEAD_SIZE_MAX - self.kept.len();
        let before = self.kept.len();
        self.kept.extend_from_slice(rest.get(..rest.len().min(room)).unwrap_or_default());
        self.refuse_early()?;
        let unsearched = self.kept.get(self.searched..).unwrap_or_default();
        let Some(found) = memchr::memmem::find(unsearched, END) else {
            if self.kept.len() >= limits::HEAD_SIZE_MAX {
                return Err(HeadError::TooLarge { limit: limits::HEAD_SIZE_MAX });
            }
            self.searched = self.kept.len().saturating_sub(END.len() - 1);
            return Ok((bytes.len(), None));
        };
        let size = self.searched + found + END.len();
        let head = parse(self.kept.get(..size).unwrap_or_default());
        *self = Self::default();
        Ok((skipped + size - before, Some(head?)))
    }

    /// What can never become a head is refused before its end arrives: else a TLS hello would wait for the deadline. Methods
    /// that servers know are in capitals.
    fn refuse_early(&self) -> Result<(), HeadError> {
        match self.kept.first() {
            Some(byte) if !byte.is_ascii_uppercase() => Err(HeadError::Malformed),
            _ => Ok(()),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Head, HeadError> {
    // httparse would let a bare LF end a line.
    if memchr::memchr_iter(b'\n', bytes).any(|at| at == 0 || bytes.get(at - 1) != Some(&b'\r')) {
        return Err(HeadError::Malformed);
    }
    let mut fields = [httparse::EMPTY_HEADER; limits::HEAD_FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadError::TooManyFields { limit: limits::HEAD_FIELDS_MAX });
        }
        Err(httparse::Error::Version) => return Err(HeadError::Version),
        Ok(httparse::Status::Partial) | Err(_) => return Err(HeadError::Malformed),
    }
    let version = match request.version {
        Some(0) => Version::Http10,
        _ => Version::Http11,
    };
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => Method::Other,
    };
    let (path, query) = target(request.path.unwrap_or_default().as_bytes())?;
    let fields = Fields(request.headers);
    let host = fields.only("host").map_err(|()| HeadError::Host)?;
    if version == Version::Http11 && host.is_none() {
        return Err(HeadError::Host);
    }
    let owned = |name| fields.first(name).map(<[u8]>::to_vec);
    Ok(Head {
        method,
        version,
        path,
        query,
        length: length(&fields, version)?,
        gzip: is_gzip(&fields)?,
        expects_continue: expects_continue(&fields, version)?,
        keep_alive: keeps_alive(&fields, version),
        content_type: owned("content-type"),
        git_protocol: owned("git-protocol"),
        host: host.map(<[u8]>::to_vec),
        user_agent: owned("user-agent"),
        range: owned("range"),
        authorization: fields.only("authorization").unwrap_or(Some(b"")).map(<[u8]>::to_vec),
        forwarded_for: fields.all("x-forwarded-for").collect::<Vec<_>>().join(&b","[..]),
    })
}

struct Fields<'a>(&'a [httparse::Header<'a>]);

impl<'a> Fields<'a> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value.trim_ascii())
    }

    fn first(&self, name: &'static str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The one value of a field; an error when there are several.
    fn only(&self, name: &'static str) -> Result<Option<&'a [u8]>, ()> {
        let mut all = self.all(name);
        match (all.next(), all.next()) {
            (first, None) => Ok(first),
            _ => Err(()),
        }
    }

    /// The members of a field that is a list, over all its occurrences.
    fn members(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all(name).flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
    }
}

fn length(fields: &Fields<'_>, version: Version) -> Result<Length, HeadError> {
    let known = fields.only("content-length").map_err(|()| HeadError::Length)?;
    let coding = fields.only("transfer-encoding").map_err(|()| HeadError::TransferCoding)?;
    match (known, coding) {
        (None, None) => Ok(Length::None),
        (Some(_), Some(_)) => Err(HeadError::Length),
        (None, Some(coding)) if version == Version::Http11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Length::Chunked)
        }
        (None, Some(_)) => Err(HeadError::TransferCoding),
        (Some(digits), None) => {
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(HeadError::Length);
            }
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            Ok(match number.ok_or(HeadError::Length)? {
                0 => Length::None,
                size => Length::Known(size),
            })
        }
    }
}

fn is_gzip(fields: &Fields<'_>) -> Result<bool, HeadError> {
    match fields.only("content-encoding").map_err(|()| HeadError::ContentCoding)? {
        None => Ok(false),
        Some(coding) if coding.is_empty() || coding.eq_ignore_ascii_case(b"identity") => Ok(false),
        Some(coding) if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") => Ok(true),
        Some(_) => Err(HeadError::ContentCoding),
    }
}

fn expects_continue(fields: &Fields<'_>, version: Version) -> Result<bool, HeadError> {
    match fields.first("expect") {
        None => Ok(false),
        Some(b"") => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(version == Version::Http11),
        Some(_) => Err(HeadError::Expectation),
    }
}

fn keeps_alive(fields: &Fields<'_>, version: Version) -> bool {
    let says = |word: &[u8]| fields.members("connection").any(|member| member.eq_ignore_ascii_case(word));
    match version {
        Version::Http11 => !says(b"close"),
        Version::Http10 => says(b"keep-alive") && !says(b"close"),
    }
}

/// Splits a target into decoded path and raw query.
fn target(target: &[u8]) -> Result<(Vec<u8>, Vec<u8>), HeadError> {
    let target = match absolute(target) {
        Some(rest) => rest,
        None if target.first() == Some(&b'/') => target,
        None => return Err(HeadError::Target),
    };
    let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    let (raw, rest) = target.split_at_checked(end).ok_or(HeadError::Target)?;
    let query = rest.strip_prefix(b"?").unwrap_or_default();
    let query = query.split(|byte| *byte == b'#').next().unwrap_or_default();
    let path = if raw.is_empty() { b"/".to_vec() } else { decoded(raw)? };
    check(&path)?;
    Ok((path, query.to_vec()))
}

/// What follows the authority of an absolute target, as proxies send it.
fn absolute(target: &[u8]) -> Option<&[u8]> {
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))?;
    let rest = target.get(scheme.len()..)?;
    let authority = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    if authority == 0 { None } else { rest.get(authority..) }
}

fn decoded(raw: &[u8]) -> Result<Vec<u8>, HeadError> {
    let mut path = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            path.push(*byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| char::from(*digit).to_digit(16)).ok_or(HeadError::Target);
        let value = digit()? << 4 | digit()?;
        path.push(u8::try_from(value).map_err(|_| HeadError::Target)?);
    }
    Ok(path)
}

/// Refuses paths that a file system or a proxy could read as another path.
fn check(path: &[u8]) -> Result<(), HeadError> {
    if path.iter().any(|byte| *byte < b' ' || *byte == 0x7f || *byte == b'\\') {
        return Err(HeadError::Path);
    }
    let mut segments = path.split(|byte| *byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let climbs = segment == b"." || segment == b"..";
        if climbs || (segment.is_empty() && segments.peek().is_some()) {
            return Err(HeadError::Path);
        }
    }
    Ok(())
}

const END: &[u8] = b"\r\n\r\n";
/// CR and LF bytes tolerated before a request line.
const EMPTY_LINES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLONE: &[u8] = b"POST /a%20b/x.git/git-upload-pack?q=1 HTTP/1.1\r\nHost: h:8080\r\nUser-Agent: git/2.47\r\n\
        Content-Type: application/x-git-upload-pack-request\r\nGit-Protocol: version=2\r\nContent-Encoding: gzip\r\n\
        Content-Length: 17\r\nExpect: 100-continue\r\n\r\n";

    fn whole(bytes: &[u8]) -> Result<Head, HeadError> {
        let (used, head) = HeadReader::new().take(bytes)?;
        assert_eq!(used, bytes.len());
        head.ok_or(HeadError::Malformed)
    }

    fn with(fields: &str) -> Result<Head, HeadError> {
        whole(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes())
    }

    #[test]
    fn the_head_of_a_stock_clone_is_read() {
        let head = whole(CLONE).unwrap();
        assert_eq!((head.method, head.version, head.length), (Method::Post, Version::Http11, Length::Known(17)));
        assert_eq!((head.path.as_slice(), head.query.as_slice()), (&b"/a b/x.git/git-upload-pack"[..], &b"q=1"[..]));
        assert!(head.gzip && head.expects_continue && head.keep_alive);
        assert_eq!(head.git_protocol.as_deref(), Some(&b"version=2"[..]));
        assert_eq!(head.content_type.as_deref(), Some(&b"application/x-git-upload-pack-request"[..]));
        assert_eq!(head.host.as_deref(), Some(&b"h:8080"[..]));
    }

    #[test]
    fn head_split_at_every_byte_gives_the_same_head() {
        let expected = whole(CLONE).unwrap();
        let bytes = [b"\r\n", CLONE, b"BODY"].concat();
        for cut in 0..=bytes.len() {
            let (mut reader, mut used, mut found) = (HeadReader::new(), 0, None);
            for part in [&bytes[..cut], &bytes[cut..]] {
                if found.is_none() {
                    let (taken, head) = reader.take(part).unwrap();
                    (used, found) = (used + taken, head);
                }
            }
            assert_eq!(found.as_ref(), Some(&expected), "cut at {cut}");
            assert_eq!(used, bytes.len() - 4, "cut at {cut}");
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn what_two_servers_could_read_differently_is_refused() {
        use HeadError::{ContentCoding, Expectation, Host, Length, Malformed, TransferCoding};
        for (fields, error) in [
            ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", Length),
            ("Content-Length: 3\r\nContent-Length: 3\r\n", Length),
            ("Content-Length: 3\r\nContent-Length: 4\r\n", Length),
            ("Content-Length: +3\r\n", Length),
            ("Content-Length: -3\r\n", Length),
            ("Content-Length: 3, 3\r\n", Length),
            ("Content-Length: 0x3\r\n", Length),
            ("Content-Length: \r\n", Length),
            ("Content-Length: 99999999999999999999\r\n", Length),
            ("Transfer-Encoding: identity\r\n", TransferCoding),
            ("Transfer-Encoding: gzip, chunked\r\n", TransferCoding),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", TransferCoding),
            ("Transfer-Encoding: xchunked\r\n", TransferCoding),
            ("X : y\r\n", Malformed),
            ("X: y\r\n folded\r\n", Malformed),
            ("X: y\nZ: 1\r\n", Malformed),
            ("X: a\rb\r\n", Malformed),
            ("X: a\0b\r\n", Malformed),
            (": y\r\n", Malformed),
            ("nocolon\r\n", Malformed),
            ("Host: other\r\n", Host),
            ("Content-Encoding: br\r\n", ContentCoding),
            ("Expect: 200-ok\r\n", Expectation),
        ] {
            assert_eq!(with(fields), Err(error), "{fields:?}");
        }
        assert_eq!(whole(b"GET / HTTP/1.1\r\nX: y\r\n\r\n"), Err(Host));
        let coded = b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(whole(coded), Err(TransferCoding));
        assert_eq!(whole(b"PRI * HTTP/2.0\r\n\r\n").unwrap_err().status(), Status::VERSION_NOT_SUPPORTED);
        assert_eq!(HeadReader::new().take(b"\x16\x03\x01"), Err(Malformed));
        let mut reader = HeadReader::new();
        assert!((0..EMPTY_LINES_MAX).all(|_| reader.take(b"\r") == Ok((1, None))));
        assert_eq!(reader.take(b"\r"), Err(Malformed), "empty lines are counted over all parts");
        for start in ["!OST / HTTP/1.1\r\n", "!OST / HTTP/1.1\r\nHost: h\r\n\r\n"] {
            assert_eq!(HeadReader::new().take(start.as_bytes()), Err(Malformed), "alike whole and split");
        }
    }

    #[test]
    fn targets_are_decoded_and_paths_cannot_climb() {
        let path = |target: &str| {
            whole(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())
                .map(|head| String::from_utf8_lossy(&head.path).into_owned())
        };
        for (target, expected) in [
            ("/", "/"),
            ("/a/b?x=/../", "/a/b"),
            ("/a/", "/a/"),
            ("/%41%2fb", "/A/b"),
            ("/a..b/...", "/a..b/..."),
            ("http://proxy:1/a?b", "/a"),
            ("HTTPS://proxy", "/"),
            ("/a#frag", "/a"),
        ] {
            assert_eq!(path(target).as_deref(), Ok(expected), "{target}");
        }
        for target in ["/..", "/a/../b", "/%2e%2e/x", "/a/%2E/b", "//a", "/a//b", "/a%2f%2fb", "/a%00", "/a\\b", "/%5c"]
        {
            assert_eq!(path(target), Err(HeadError::Path), "{target}");
        }
        for target in ["a", "*", "/%", "/%4", "/%zz", "/%+1", "ftp://h/a", "http:///a"] {
            assert_eq!(path(target), Err(HeadError::Target), "{target}");
        }
    }

    #[test]
    fn each_version_keeps_alive_by_its_own_custom() {
        for (version, connection, keeps) in [
            ("1.1", "", true),
            ("1.1", "Connection: Close\r\n", false),
            ("1.1", "Connection: x, close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ] {
            let head = whole(format!("GET / HTTP/{version}\r\nHost: h\r\n{connection}\r\n").as_bytes()).unwrap();
            assert_eq!(head.keep_alive, keeps, "{version} {connection}");
        }
    }

    #[test]
    fn heads_are_bounded_in_bytes_and_fields() {
        let largest = |size: usize| {
            let start = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
            whole(format!("{start}{}\r\n\r\n", "y".repeat(size - start.len() - 4)).as_bytes())
        };
        assert!(largest(limits::HEAD_SIZE_MAX).is_ok());
        let mut reader = HeadReader::new();
        let endless = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'y'; limits::HEAD_SIZE_MAX]].concat();
        assert_eq!(reader.take(&endless), Err(HeadError::TooLarge { limit: limits::HEAD_SIZE_MAX }));
        assert!(with(&"A: b\r\n".repeat(limits::HEAD_FIELDS_MAX - 1)).is_ok());
        let error = HeadError::TooManyFields { limit: limits::HEAD_FIELDS_MAX };
        assert_eq!(with(&"A: b\r\n".repeat(limits::HEAD_FIELDS_MAX)), Err(error));
    }

    #[test]
    fn a_head_byte_by_byte_is_searched_once() {
        let mut reader = HeadReader::new();
        for byte in CLONE.iter().take(CLONE.len() - 1) {
            assert_eq!(reader.take(&[*byte]), Ok((1, None)));
            assert!(reader.kept.len() - reader.searched <= 3);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = HeadReader::new().take(&bytes);
            let _ = whole([b"GET /".as_slice(), &bytes, b" HTTP/1.1\r\nHost: h\r\n\r\n"].concat().as_slice());
        }
    }
}
