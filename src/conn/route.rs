//! Method, path and query become what is asked of which repository.
//!
//! Opens nothing and answers nothing: a repository is only a path here. The forms are those of git-http-backend(1),
//! "SERVICES"; everything else is the path of a page a person may look at.
//! Source: gitprotocol-http(5), "URL Format". Read first: `each_service_of_http_backend_has_its_route`.

use crate::http::Method;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// `GET /repo/info/refs?service=git-upload-pack`
    Advertise(&'a [u8]),
    /// `POST /repo/git-upload-pack`
    UploadPack(&'a [u8]),
    /// A file of the dumb protocol: the repository, and the path within it.
    File(&'a [u8], &'a [u8]),
    /// Pushing, which this server does not do.
    Push,
    /// `?service=` names something else.
    UnknownService,
    /// Large file storage, which speaks JSON and is served elsewhere.
    Lfs,
    /// A page: perhaps a repository that somebody opened in a browser.
    Page(&'a [u8]),
    /// The path is known, the method is not.
    WrongMethod {
        /// Methods that would do.
        allow: &'static str,
    },
}

/// Finds the route of a request.
pub fn route<'a>(method: Method, path: &'a [u8], query: &[u8]) -> Route<'a> {
    let reads = matches!(method, Method::Get | Method::Head);
    if let Some(repository) = path.strip_suffix(b"/git-upload-pack") {
        return if method == Method::Post { Route::UploadPack(repository) } else { WRONG_READ };
    }
    if path.ends_with(b"/git-receive-pack") {
        return if method == Method::Post { Route::Push } else { WRONG_READ };
    }
    if memchr::memmem::find(path, b"/info/lfs").is_some() {
        return Route::Lfs;
    }
    if let Some(repository) = path.strip_suffix(b"/info/refs") {
        return match service(query) {
            _ if !reads => WRONG_WRITE,
            None => Route::File(repository, b"info/refs"),
            Some(b"git-upload-pack") => Route::Advertise(repository),
            Some(b"git-receive-pack") => Route::Push,
            Some(_) => Route::UnknownService,
        };
    }
    match dumb_file(path) {
        Some(_) if !reads => WRONG_WRITE,
        Some((repository, file)) => Route::File(repository, file),
        None if reads => Route::Page(path),
        None => WRONG_WRITE,
    }
}

const WRONG_READ: Route<'static> = Route::WrongMethod { allow: "POST" };
const WRONG_WRITE: Route<'static> = Route::WrongMethod { allow: "GET, HEAD" };

/// Value of the first `service` parameter; others are somebody else's business.
fn service(query: &[u8]) -> Option<&[u8]> {
    query.split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(b"service="))
}

/// The file of the dumb protocol that a path ends in, and the repository before it.
fn dumb_file(path: &[u8]) -> Option<(&[u8], &[u8])> {
    for file in FILES {
        if let Some(repository) = path.strip_suffix(*file).and_then(|rest| rest.strip_suffix(b"/")) {
            return Some((repository, path.get(repository.len() + 1..)?));
        }
    }
    let at = memchr::memmem::rfind(path, b"/objects/")?;
    let (repository, file) = (path.get(..at)?, path.get(at + 1..)?);
    let name = file.strip_prefix(b"objects/")?;
    let is_hex = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit);
    let pack = name.strip_prefix(b"pack/pack-").and_then(|name| {
        name.strip_suffix(b".pack").or_else(|| name.strip_suffix(b".idx")).filter(|hash| is_hex(hash))
    });
    let mut parts = name.splitn(2, |byte| *byte == b'/');
    let loose = matches!((parts.next(), parts.next()), (Some(folder), Some(rest))
        if folder.len() == 2 && is_hex(folder) && is_hex(rest) && (rest.len() == 38 || rest.len() == 62));
    (pack.is_some() || loose).then_some((repository, file))
}

const FILES: &[&[u8]] = &[b"objects/info/alternates", b"objects/info/http-alternates", b"objects/info/packs", b"HEAD"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_of_http_backend_has_its_route() {
        use Method::{Get, Head, Other, Post};
        let loose = format!("objects/ab/{}", "c".repeat(38));
        let cases: [(Method, String, &str, Route<'_>); 16] = [
            (Get, "/a/b.git/info/refs".into(), "service=git-upload-pack", Route::Advertise(b"/a/b.git")),
            (Head, "/a/info/refs".into(), "x=1&service=git-upload-pack&y", Route::Advertise(b"/a")),
            (Get, "/a/info/refs".into(), "service=git-receive-pack", Route::Push),
            (Get, "/a/info/refs".into(), "service=git-upload-archive", Route::UnknownService),
            (Get, "/a/info/refs".into(), "", Route::File(b"/a", b"info/refs")),
            (Post, "/a/info/refs".into(), "", WRONG_WRITE),
            (Post, "/a/git-upload-pack".into(), "", Route::UploadPack(b"/a")),
            (Get, "/a/git-upload-pack".into(), "", WRONG_READ),
            (Post, "/a/git-receive-pack".into(), "", Route::Push),
            (Get, "/a/HEAD".into(), "", Route::File(b"/a", b"HEAD")),
            (Other, "/a/HEAD".into(), "", WRONG_WRITE),
            (Get, "/a/objects/info/packs".into(), "", Route::File(b"/a", b"objects/info/packs")),
            (Get, format!("/a/{loose}"), "", Route::File(b"/a", loose.as_bytes())),
            (Get, "/a/objects/pack/pack-12ab.idx".into(), "", Route::File(b"/a", b"objects/pack/pack-12ab.idx")),
            (Post, "/a/info/lfs/objects/batch".into(), "", Route::Lfs),
            (Get, "/a/objects/zz".into(), "", Route::Page(b"/a/objects/zz")),
        ];
        for (method, path, query, expected) in &cases {
            assert_eq!(route(*method, path.as_bytes(), query.as_bytes()), *expected, "{method:?} {path}?{query}");
        }
    }
}
