//! What is not smart: a page for people, a clear no for large file storage, the files of the dumb protocol.
//!
//! Speaks no Git protocol. Invariant: a file is given only where the repository's settings allow it, and only those that
//! git-http-backend(1) gives.
//! Source: gitprotocol-http(5), "Dumb Clients"; `http.getanyfile` in git-config(1). Read first: `tests/wire.rs`.

use std::sync::Arc;

use super::{
    agree::Work,
    call::Call,
    vet::{self, Peel},
};
use crate::{
    http::{Cache, Status},
    oid::push_hex,
    repo::Snapshot,
};

/// Answers a request for a file of the dumb protocol.
pub async fn answer(call: &mut Call<'_>, repository: &[u8], file: &[u8]) {
    call.record.command = "file";
    let Some(snapshot) = call.repository(repository).await else { return };
    // Files know nothing of who may see which ref.
    let is_whole = call.pass.public && !call.pass.reachable && snapshot.settings.hidden.is_empty();
    if !snapshot.settings.getanyfile || !is_whole {
        call.refuse(Status::FORBIDDEN, "this server speaks smart HTTP only; use git 1.6.6 or newer").await;
        return;
    }
    match file {
        b"info/refs" => info_refs(call, snapshot).await,
        b"objects/info/packs" => {
            let mut text = Vec::new();
            for pack in snapshot.store.packs() {
                text.extend_from_slice(b"P ");
                text.extend_from_slice(pack.name().as_bytes());
                text.extend_from_slice(b".pack\n");
            }
            text.push(b'\n');
            call.text("text/plain; charset=utf-8", Cache::Never, text.into()).await;
        }
        _ if file.ends_with(b".pack") => {
            let name =
                file.strip_prefix(b"objects/pack/").and_then(|name| name.strip_suffix(b".pack")).unwrap_or_default();
            match snapshot.store.packs().iter().find(|pack| pack.name().as_bytes() == name) {
                Some(pack) => call.pack_file(pack).await,
                None => call.refuse(Status::NOT_FOUND, "no such file").await,
            }
        }
        _ => match snapshot.file(file) {
            Some(bytes) => {
                let (content_type, cache) = kind_of(file);
                call.text(content_type, cache, bytes).await;
            }
            None => call.refuse(Status::NOT_FOUND, "no such file").await,
        },
    }
}

fn kind_of(file: &[u8]) -> (&'static str, Cache) {
    if file.ends_with(b".idx") {
        ("application/x-git-packed-objects-toc", Cache::Forever)
    } else if file == b"HEAD" || file.starts_with(b"objects/info/") {
        ("text/plain", Cache::Never)
    } else {
        ("application/x-git-loose-object", Cache::Forever)
    }
}

/// `info/refs` as `git update-server-info` would write it.
async fn info_refs(call: &mut Call<'_>, snapshot: Arc<Snapshot>) {
    let mut work = Work::of(call, Arc::clone(&snapshot));
    let pace = work.pace.clone();
    let vetted = call.desk.finish(&pace, &snapshot, vet::vetted(&mut work)).await;
    let Ok(vetted) = vetted else {
        return call.refuse(Status::INTERNAL_SERVER_ERROR, "this repository is damaged").await;
    };
    let mut text = Vec::new();
    for found in snapshot.refs.iter().filter(|found| !found.hidden) {
        let peel = vetted.peel(found.index);
        if peel == Peel::Gone {
            continue;
        }
        push_hex(&mut text, &found.id);
        text.push(b'\t');
        text.extend_from_slice(found.name);
        text.push(b'\n');
        if let Peel::To(id) = peel {
            push_hex(&mut text, &id);
            text.push(b'\t');
            text.extend_from_slice(found.name);
            text.extend_from_slice(b"^{}\n");
        }
    }
    call.text("text/plain; charset=utf-8", Cache::Never, text.into()).await;
}

/// Answers whoever opens the address of a repository in a browser.
pub async fn page(call: &mut Call<'_>, path: &[u8]) {
    call.record.command = "page";
    let Some(snapshot) = call.repository(path).await else { return };
    let host = String::from_utf8_lossy(call.head.host.as_deref().unwrap_or(b"this-server")).into_owned();
    let shown = String::from_utf8_lossy(path).into_owned();
    let scheme = if call.secure { "https" } else { "http" };
    let address = escaped(&format!("{scheme}://{host}{}", shown.trim_end_matches('/')));
    let name = escaped(shown.trim_matches('/'));
    let refs = snapshot.refs.iter().filter(|found| !found.hidden).count();
    let text = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{name}</title>\n<h1>{name}</h1>\n\
         <p>This is a Git repository with {refs} refs. Clone it:</p>\n<pre>git clone {address}</pre>\n"
    );
    call.text("text/html; charset=utf-8", Cache::Never, Arc::from(text.into_bytes())).await;
}

/// Answers a client of large file storage in its own words.
pub async fn no_lfs(call: &mut Call<'_>) {
    call.record.command = "lfs";
    let text = "{\"message\": \"this server does not store large files (git-lfs)\"}";
    call.refuse_as(Status::NOT_IMPLEMENTED, "application/vnd.git-lfs+json", text).await;
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_become_markup() {
        assert_eq!(escaped("/<script>&\"x\""), "/&lt;script&gt;&amp;&quot;x&quot;");
    }

    #[test]
    fn immutable_files_are_kept_and_others_are_not() {
        assert_eq!(kind_of(b"objects/pack/pack-1.idx").1, Cache::Forever);
        assert_eq!(kind_of(b"objects/info/alternates").1, Cache::Never);
        assert_eq!(kind_of(b"HEAD"), ("text/plain", Cache::Never));
        assert_eq!(kind_of(b"objects/ab/cdef").0, "application/x-git-loose-object");
    }
}
