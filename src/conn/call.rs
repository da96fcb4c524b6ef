//! One request and its answer: the place where HTTP, repositories and the protocol are introduced to one another.
//!
//! Decides what is said in HTTP's own words (status, type, length); what is said in Git's is made elsewhere
//! ([`super::refs`], [`super::fetch`]). Invariant: every request gets exactly one answer and leaves exactly one record.
//! Source: gitprotocol-http(5); git-http-backend(1). Read first: `tests/wire.rs`.

use std::{sync::Arc, time::Duration};

use super::{
    cutter::{Cutter, Framing},
    desk::{Desk, Torn},
    door::{self, Pass, Turned},
    fetch, files,
    frame::Frame,
    record::Record,
    refs,
    route::{Route, route},
    rules::Rules,
    visit::Peer,
};
use crate::{
    http::{BodyLength, Cache, Head, Method, Response, Status, Version},
    pack::{Pack, Plan},
    proto::pkt::Sideband,
    repo::{Absent, Snapshot},
};

/// A request that was read to its end.
pub struct Call<'a> {
    /// The way to the peer and to the files.
    pub desk: &'a Desk,
    /// What the operator settled.
    pub rules: &'a Rules,
    /// The head of the request.
    pub head: Head,
    /// Its body, decoded.
    pub body: Vec<u8>,
    /// For the log.
    pub record: Record,
    /// Whether the connection can be used again.
    pub keep: bool,
    /// When the request had been read.
    pub started: Duration,
    /// Whether nobody between can read what is said.
    pub secure: bool,
    /// What the door said.
    pub pass: Pass,
}

impl<'a> Call<'a> {
    /// A request to be answered.
    pub fn new(desk: &'a Desk, rules: &'a Rules, peer: Peer, head: Head, body: Vec<u8>) -> Self {
        let keep = head.keep_alive;
        let source = rules.gate.source(peer.source, &head.forwarded_for);
        let record = Record { source: Some(source), ..Record::default() };
        Self { desk, rules, head, body, record, keep, started: desk.now(), secure: peer.secure, pass: Pass::default() }
    }

    /// Asks for the repository at `path`, or answers why there is none.
    pub async fn repository(&mut self, path: &[u8]) -> Option<Arc<Snapshot>> {
        self.record.path = path.to_vec();
        let absent = match door::admit(self, path, false).await {
            Ok(snapshot) => return Some(snapshot),
            Err(Turned::Unknown) => {
                self.refuse_with(Status::UNAUTHORIZED, door::CHALLENGE_TEXT, &[door::CHALLENGE]).await;
                return None;
            }
            Err(Turned::TooOften { wait }) => {
                let text = "too many failed attempts from your address";
                let seconds = wait.to_string();
                self.refuse_with(Status::TOO_MANY_REQUESTS, text, &[("Retry-After", &seconds)]).await;
                return None;
            }
            Err(Turned::Absent(absent)) => absent,
        };
        let (status, text) = match absent {
            Absent::NotFound | Absent::NotExported => (Status::NOT_FOUND, "no such repository"),
            Absent::Disabled => (Status::FORBIDDEN, "fetching is switched off for this repository"),
            Absent::Unsupported(why) => {
                self.record.fault = Some(why);
                (
                    Status::NOT_IMPLEMENTED,
                    "this repository needs something this server does not know; its log says what",
                )
            }
            Absent::Broken(why) => {
                self.record.fault = Some(why);
                (Status::INTERNAL_SERVER_ERROR, "this repository cannot be read; the log of the server says why")
            }
        };
        self.refuse(status, text).await;
        None
    }

    /// Answers that it cannot be done.
    pub async fn refuse(&mut self, status: Status, text: &str) {
        self.refuse_with(status, text, &[]).await;
    }

    /// The same with more fields in the head.
    pub async fn refuse_with(&mut self, status: Status, text: &str, extra: &[(&str, &str)]) {
        self.refuse_fully(status, TEXT, text, extra).await;
    }

    /// The same as another type of content.
    pub async fn refuse_as(&mut self, status: Status, content_type: &str, text: &str) {
        self.refuse_fully(status, content_type, text, &[]).await;
    }

    async fn refuse_fully(&mut self, status: Status, content_type: &str, text: &str, extra: &[(&str, &str)]) {
        self.record.status = status.0;
        self.record.refusal = Some(text.to_owned());
        let answer = Refusal { status, content_type, text, extra };
        let bytes = answer.bytes(self.head.version, self.keep, self.head.method == Method::Head);
        // Bytes of our own cannot tear.
        let _ = self.desk.send(Frame::of(&bytes)).await;
    }

    /// Answers with a text whose length is known.
    pub async fn text(&mut self, content_type: &str, cache: Cache, body: Arc<[u8]>) {
        self.record.status = Status::OK.0;
        let head = self.response_head(Status::OK, content_type, cache, BodyLength::Known(body.len() as u64));
        let mut cutter = Cutter::new(self.rules.window, Framing::Plain, Sideband::None, head);
        if self.head.method != Method::Head {
            cutter.push_shared(body);
        }
        cutter.end();
        let _ = self.pour(&mut cutter).await;
    }

    /// Answers with part of a pack's file, straight from its mapping; with all of it unless a range was asked for.
    pub async fn pack_file(&mut self, pack: &Arc<Pack>) {
        let size = pack.bytes().len() as u64;
        let range = self.head.range.as_deref().map(|field| range_of(field, size));
        let (start, len, status) = match range {
            None | Some(Asked::Unreadable) => (0, size, Status::OK),
            Some(Asked::Part { start, len }) => (start, len, Status::PARTIAL_CONTENT),
            Some(Asked::Beyond) => {
                let range = format!("bytes */{size}");
                let extra = [("Content-Range", range.as_str())];
                return self
                    .refuse_with(Status::RANGE_NOT_SATISFIABLE, "the file ends before that range", &extra)
                    .await;
            }
        };
        self.record.status = status.0;
        let range = format!("bytes {start}-{}/{size}", (start + len).saturating_sub(1));
        let extra = [("Accept-Ranges", "bytes"), ("Content-Range", range.as_str())];
        let mut head = Vec::with_capacity(320);
        let response = Response {
            version: self.head.version,
            status,
            content_type: Some("application/x-git-packed-objects"),
            cache: Cache::Forever,
            length: BodyLength::Known(len),
            keep_alive: self.keep,
            extra: if status == Status::OK { &extra[..1] } else { &extra },
        };
        response.push(&mut head);
        let mut cutter = Cutter::new(self.rules.window, Framing::Plain, Sideband::None, head);
        if self.head.method != Method::Head {
            cutter.start_pack(Arc::new(Plan::of_file(pack, start, len)), Vec::new());
        }
        cutter.end();
        // Zeros in a file would be taken for content: the connection ends instead.
        self.keep &= self.pour(&mut cutter).await.is_ok();
    }

    /// Starts an answer to a POST whose length is not known yet.
    pub fn start(&mut self, sideband: Sideband) -> Cutter {
        self.record.status = Status::OK.0;
        let (framing, length) = match self.head.version {
            Version::Http11 => (Framing::Chunked, BodyLength::Chunked),
            Version::Http10 => (Framing::Plain, BodyLength::UntilClose),
        };
        self.keep &= framing == Framing::Chunked;
        let head = self.response_head(Status::OK, RESULT, Cache::Never, length);
        Cutter::new(self.rules.window, framing, sideband, head)
    }

    /// Writes what is at hand in full frames, and the rest of it when the answer has ended.
    ///
    /// # Errors
    /// A mapped file was cut short under a frame.
    pub async fn pour(&mut self, cutter: &mut Cutter) -> Result<(), Torn> {
        while let Some(frame) = cutter.cut(false) {
            self.desk.send(frame).await?;
        }
        Ok(())
    }

    /// Writes everything at hand now.
    ///
    /// # Errors
    /// A mapped file was cut short under a frame.
    pub async fn flush(&mut self, cutter: &mut Cutter) -> Result<(), Torn> {
        while let Some(frame) = cutter.cut(true) {
            self.desk.send(frame).await?;
        }
        Ok(())
    }

    /// Answers a POST with a protocol text of our own.
    pub async fn result(&mut self, body: &[u8]) {
        self.text(RESULT, Cache::Never, Arc::from(body)).await;
    }

    fn response_head(&self, status: Status, content_type: &str, cache: Cache, length: BodyLength) -> Vec<u8> {
        let mut head = Vec::with_capacity(320);
        let response = Response {
            version: self.head.version,
            status,
            content_type: Some(content_type),
            cache,
            length,
            keep_alive: self.keep,
            extra: &[],
        };
        response.push(&mut head);
        head
    }
}

/// Makes the answer. Returns whether the connection can be used again.
pub async fn answer(mut call: Call<'_>) -> bool {
    let before = call.desk.sent();
    dispatch(&mut call).await;
    let mut record = std::mem::take(&mut call.record);
    record.took = call.desk.now().saturating_sub(call.started);
    record.bytes = call.desk.sent() - before;
    call.desk.note(record);
    call.keep
}

async fn dispatch(call: &mut Call<'_>) {
    let path = std::mem::take(&mut call.head.path);
    match route(call.head.method, &path, &call.head.query) {
        Route::Advertise(repository) => {
            call.record.command = "advertise";
            if let Some(snapshot) = call.repository(repository).await {
                refs::advertise(call, snapshot).await;
            }
        }
        Route::UploadPack(repository) => upload_pack(call, repository).await,
        Route::File(repository, file) => files::answer(call, repository, file).await,
        Route::Page(path) => files::page(call, path).await,
        Route::Push => {
            call.refuse(Status::FORBIDDEN, "this server does not take pushes").await;
        }
        Route::UnknownService => call.refuse(Status::FORBIDDEN, "unsupported service").await,
        Route::Lfs => files::no_lfs(call).await,
        Route::WrongMethod { .. } if call.head.version == Version::Http10 => {
            call.refuse(Status::BAD_REQUEST, "the method does not fit the path").await;
        }
        Route::WrongMethod { allow } => {
            let text = "the method does not fit the path";
            call.refuse_with(Status::METHOD_NOT_ALLOWED, text, &[("Allow", allow)]).await;
        }
    }
}

async fn upload_pack(call: &mut Call<'_>, repository: &[u8]) {
    call.record.command = "upload-pack";
    if call.head.content_type.as_deref() != Some(REQUEST.as_bytes()) {
        call.record.path = repository.to_vec();
        call.refuse(
            Status::UNSUPPORTED_MEDIA_TYPE,
            "the content type of a fetch is application/x-git-upload-pack-request",
        )
        .await;
        return;
    }
    if let Some(snapshot) = call.repository(repository).await {
        fetch::answer(call, snapshot).await;
    }
}

/// A whole answer with a short text that says why not.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Of the answer.
    pub status: Status,
    /// Of the text.
    pub content_type: &'a str,
    /// One line, for a person.
    pub text: &'a str,
    /// More fields of the head.
    pub extra: &'a [(&'a str, &'a str)],
}

impl<'a> Refusal<'a> {
    /// A plain one.
    pub fn of(status: Status, text: &'a str) -> Self {
        Self { status, content_type: TEXT, text, extra: &[] }
    }

    /// Head and text; without the text for an answer to HEAD.
    pub fn bytes(&self, version: Version, keep: bool, head_only: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256 + self.text.len());
        let response = Response {
            version,
            status: self.status,
            content_type: Some(self.content_type),
            cache: Cache::Never,
            length: BodyLength::Known(self.text.len() as u64 + 1),
            keep_alive: keep,
            extra: self.extra,
        };
        response.push(&mut bytes);
        if !head_only {
            bytes.extend_from_slice(self.text.as_bytes());
            bytes.push(b'\n');
        }
        bytes
    }
}

/// What a `Range` field asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// One part that is there.
    Part { start: u64, len: u64 },
    /// A part behind the end.
    Beyond,
    /// Nothing that this server reads: then all is sent, RFC 9110, 14.2.
    Unreadable,
}

fn range_of(field: &[u8], size: u64) -> Asked {
    let text = std::str::from_utf8(field).unwrap_or_default();
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Asked::Unreadable;
    };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    match (first.is_empty(), number(first), last.is_empty(), number(last)) {
        (true, _, _, Some(0)) => Asked::Beyond,
        (true, _, _, Some(count)) => Asked::Part { start: size.saturating_sub(count), len: count.min(size) },
        (_, Some(first), _, _) if first >= size => Asked::Beyond,
        (_, Some(first), true, _) => Asked::Part { start: first, len: size - first },
        (_, Some(first), _, Some(last)) if last >= first => {
            Asked::Part { start: first, len: last.min(size - 1) - first + 1 }
        }
        _ => Asked::Unreadable,
    }
}

/// Which protocol version a `Git-Protocol` field asks for: the highest it names that we know, 0 when it names none.
pub fn protocol_version(field: Option<&[u8]>) -> u8 {
    let named = field.unwrap_or_default().split(|byte| *byte == b':');
    let known = |value: &[u8]| match value.strip_prefix(b"version=")? {
        b"0" => Some(0),
        b"1" => Some(1),
        b"2" => Some(2),
        _ => None,
    };
    named.filter_map(known).max().unwrap_or(0)
}

const TEXT: &str = "text/plain; charset=utf-8";
const REQUEST: &str = "application/x-git-upload-pack-request";
const RESULT: &str = "application/x-git-upload-pack-result";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_says() {
        for (field, asked) in [
            ("bytes=0-9", Asked::Part { start: 0, len: 10 }),
            ("bytes=90-", Asked::Part { start: 90, len: 10 }),
            ("bytes=95-1000", Asked::Part { start: 95, len: 5 }),
            ("bytes=-10", Asked::Part { start: 90, len: 10 }),
            ("bytes=-1000", Asked::Part { start: 0, len: 100 }),
            ("bytes=100-", Asked::Beyond),
            ("bytes=-0", Asked::Beyond),
            ("bytes=9-0", Asked::Unreadable),
            ("bytes=0-1,5-6", Asked::Unreadable),
            ("bytes=+1-2", Asked::Unreadable),
            ("lines=0-1", Asked::Unreadable),
            ("bytes=-", Asked::Unreadable),
        ] {
            assert_eq!(range_of(field.as_bytes(), 100), asked, "{field}");
        }
    }

    #[test]
    fn the_highest_known_version_is_spoken() {
        for (field, version) in [
            (None, 0),
            (Some(&b""[..]), 0),
            (Some(b"version=2"), 2),
            (Some(b"version=1:version=2"), 2),
            (Some(b"version=2:version=1"), 2),
            (Some(b"x=y:version=1:z"), 1),
            (Some(b"version=3"), 0),
            (Some(b"version=22"), 0),
        ] {
            assert_eq!(protocol_version(field), version, "{field:?}");
        }
    }
}
