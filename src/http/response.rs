//! Response heads: a status and what is known of the body become bytes.
//!
//! Knows no body. Invariant: the fields come in the order in which stock git's http-backend sends them, cache fields before
//! the type, since clients' tests read them in this order.
//! Source: RFC 9112, 4 "Status Line"; gitprotocol-http(5), "Smart Server Response".
//! Read first: `fields_come_in_the_order_of_http_backend`.

use super::head::Version;

/// A status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// 200
    pub const OK: Self = Self(200);
    /// 206
    pub const PARTIAL_CONTENT: Self = Self(206);
    /// 400
    pub const BAD_REQUEST: Self = Self(400);
    /// 401
    pub const UNAUTHORIZED: Self = Self(401);
    /// 403
    pub const FORBIDDEN: Self = Self(403);
    /// 404
    pub const NOT_FOUND: Self = Self(404);
    /// 405
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    /// 408
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// 413
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    /// 414
    pub const URI_TOO_LONG: Self = Self(414);
    /// 415
    pub const UNSUPPORTED_MEDIA_TYPE: Self = Self(415);
    /// 416
    pub const RANGE_NOT_SATISFIABLE: Self = Self(416);
    /// 417
    pub const EXPECTATION_FAILED: Self = Self(417);
    /// 429
    pub const TOO_MANY_REQUESTS: Self = Self(429);
    /// 431
    pub const HEAD_TOO_LARGE: Self = Self(431);
    /// 500
    pub const INTERNAL_SERVER_ERROR: Self = Self(500);
    /// 501
    pub const NOT_IMPLEMENTED: Self = Self(501);
    /// 503
    pub const SERVICE_UNAVAILABLE: Self = Self(503);
    /// 505
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);

    /// The words behind the code.
    pub fn reason(self) -> &'static str {
        match self.0 {
            200 => "OK",
            206 => "Partial Content",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "Unknown",
        }
    }
}

/// What caches may do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nothing is said.
    Unsaid,
    /// Never keep it.
    Never,
    /// Keep it for a year: its name is a hash of its content.
    Forever,
}

/// How the end of the body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// So many bytes.
    Known(u64),
    /// It comes in chunks.
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// The head of one response.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// That of the request.
    pub version: Version,
    /// Outcome.
    pub status: Status,
    /// Type of the body.
    pub content_type: Option<&'a str>,
    /// What caches may do.
    pub cache: Cache,
    /// End of the body.
    pub length: BodyLength,
    /// Whether the connection goes on.
    pub keep_alive: bool,
    /// More fields, names and values without line breaks.
    pub extra: &'a [(&'a str, &'a str)],
}

impl Response<'_> {
    /// Appends the head, the empty line included.
    pub fn push(&self, out: &mut Vec<u8>) {
        let version = match self.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        };
        line(out, &[version, " ", &self.status.0.to_string(), " ", self.status.reason()]);
        match self.cache {
            Cache::Unsaid => {}
            Cache::Never => {
                line(out, &["Expires: Fri, 01 Jan 1980 00:00:00 GMT"]);
                line(out, &["Pragma: no-cache"]);
                line(out, &["Cache-Control: no-cache, max-age=0, must-revalidate"]);
            }
            Cache::Forever => line(out, &["Cache-Control: public, max-age=31536000, immutable"]),
        }
        if let Some(content_type) = self.content_type {
            line(out, &["Content-Type: ", content_type]);
        }
        match self.length {
            BodyLength::Known(length) => line(out, &["Content-Length: ", &length.to_string()]),
            BodyLength::Chunked => line(out, &["Transfer-Encoding: chunked"]),
            BodyLength::UntilClose => {}
        }
        for (name, value) in self.extra {
            line(out, &[name, ": ", value]);
        }
        match (self.version, self.keep_alive) {
            (Version::Http11, false) => line(out, &["Connection: close"]),
            (Version::Http10, true) => line(out, &["Connection: keep-alive"]),
            _ => {}
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn line(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// What a client that waits with its body wants to read.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_the_order_of_http_backend() {
        let mut out = Vec::new();
        Response {
            version: Version::Http11,
            status: Status::OK,
            content_type: Some("text/x"),
            cache: Cache::Never,
            length: BodyLength::Chunked,
            keep_alive: true,
            extra: &[("Allow", "GET")],
        }
        .push(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 OK\r\nExpires: Fri, 01 Jan 1980 00:00:00 GMT\r\nPragma: no-cache\r\n\
             Cache-Control: no-cache, max-age=0, must-revalidate\r\nContent-Type: text/x\r\n\
             Transfer-Encoding: chunked\r\nAllow: GET\r\n\r\n"
        );
    }

    #[test]
    fn each_version_says_only_what_is_not_its_custom() {
        for (version, keep_alive, said) in [
            (Version::Http11, true, ""),
            (Version::Http11, false, "Connection: close\r\n"),
            (Version::Http10, true, "Connection: keep-alive\r\n"),
            (Version::Http10, false, ""),
        ] {
            let mut out = Vec::new();
            let (status, cache, length) = (Status::NOT_FOUND, Cache::Unsaid, BodyLength::Known(0));
            Response { version, status, content_type: None, cache, length, keep_alive, extra: &[] }.push(&mut out);
            let digit = if version == Version::Http11 { '1' } else { '0' };
            let expected = format!("HTTP/1.{digit} 404 Not Found\r\nContent-Length: 0\r\n{said}\r\n");
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
