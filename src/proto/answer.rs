//! The sections of an answer, and its other lines: facts become pkt-lines.
//!
//! Marks between sections are the caller's. Source: gitprotocol-v2(5), "ls-refs", "fetch", "object-info", "bundle-uri".
//! Read first: `sections_are_worded_as_in_the_protocol`.

use super::pkt::{push, push_line};
use crate::oid::{ObjectId, push_hex};

/// Appends an `ERR` line: the last words of an answer that never got to its bands.
pub fn push_error(out: &mut Vec<u8>, text: &[u8]) {
    push_line(out, &[b"ERR ", text]);
}

/// Appends the `acknowledgments` section: `common` are the haves that are here.
pub fn push_acknowledgments(out: &mut Vec<u8>, common: &[ObjectId], ready: bool) {
    push_line(out, &[b"acknowledgments"]);
    if common.is_empty() {
        push_line(out, &[b"NAK"]);
    }
    for id in common {
        push_with_id(out, b"ACK ", id, b"");
    }
    if ready {
        push_line(out, &[b"ready"]);
    }
}

/// Appends the `shallow-info` section.
pub fn push_shallow_info(out: &mut Vec<u8>, shallow: &[ObjectId], unshallow: &[ObjectId]) {
    push_line(out, &[b"shallow-info"]);
    push_shallow_lines(out, shallow, unshallow);
}

/// Appends what versions 0 and 1 say of a new boundary.
pub fn push_shallow_lines(out: &mut Vec<u8>, shallow: &[ObjectId], unshallow: &[ObjectId]) {
    for (word, ids) in [(&b"shallow "[..], shallow), (b"unshallow ", unshallow)] {
        for id in ids {
            let mut line = word.to_vec();
            push_hex(&mut line, id);
            // Without a newline, as stock git writes it.
            push(out, &line);
        }
    }
}

/// Appends the `wanted-refs` section.
pub fn push_wanted_refs<'a>(out: &mut Vec<u8>, refs: impl Iterator<Item = (&'a [u8], ObjectId)>) {
    push_line(out, &[b"wanted-refs"]);
    for (name, id) in refs {
        push_with_id(out, b"", &id, &[b" ", name].concat());
    }
}

/// Appends the `packfile-uris` section: checksum of a pack and where it is.
pub fn push_packfile_uris(out: &mut Vec<u8>, uris: &[(Vec<u8>, Vec<u8>)]) {
    push_line(out, &[b"packfile-uris"]);
    for (pack, uri) in uris {
        push_line(out, &[pack, b" ", uri]);
    }
}

/// Appends the line that starts the `packfile` section.
pub fn push_packfile(out: &mut Vec<u8>) {
    push_line(out, &[b"packfile"]);
}

/// One line of `ls-refs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedRef<'a> {
    /// Full name.
    pub name: &'a [u8],
    /// What it points at; `None` for a HEAD without a branch.
    pub id: Option<ObjectId>,
    /// What it stands for, if that is to be told.
    pub symref: Option<&'a [u8]>,
    /// What it finally names, if that is to be told.
    pub peeled: Option<ObjectId>,
}

/// Appends one line of `ls-refs`.
pub fn push_listed_ref(out: &mut Vec<u8>, found: &ListedRef<'_>) {
    let mut line = Vec::with_capacity(160);
    match &found.id {
        Some(id) => push_hex(&mut line, id),
        None => line.extend_from_slice(b"unborn"),
    }
    line.push(b' ');
    line.extend_from_slice(found.name);
    if let Some(target) = found.symref {
        line.extend_from_slice(b" symref-target:");
        line.extend_from_slice(target);
    }
    if let Some(peeled) = &found.peeled {
        line.extend_from_slice(b" peeled:");
        push_hex(&mut line, peeled);
    }
    push_line(out, &[&line]);
}

/// Appends the answer to `object-info`, its flush included; `None` is an object that is not here.
pub fn push_object_info(out: &mut Vec<u8>, size: bool, objects: impl Iterator<Item = (ObjectId, Option<u64>)>) {
    let mut objects = objects.peekable();
    if size && objects.peek().is_some() {
        push(out, b"size");
    }
    for (id, found) in objects {
        let mut line = Vec::with_capacity(80);
        push_hex(&mut line, &id);
        if size {
            line.push(b' ');
            line.extend(found.map(|size| size.to_string()).unwrap_or_default().into_bytes());
        }
        push(out, &line);
    }
    out.extend_from_slice(super::pkt::FLUSH);
}

/// Appends the answer to `bundle-uri`, its flush included.
pub fn push_bundle_uris(out: &mut Vec<u8>, settings: &[(String, String)]) {
    for (key, value) in settings.iter().filter(|(_, value)| !value.is_empty()) {
        push(out, format!("{key}={value}").as_bytes());
    }
    out.extend_from_slice(super::pkt::FLUSH);
}

fn push_with_id(out: &mut Vec<u8>, before: &[u8], id: &ObjectId, after: &[u8]) {
    let mut line = before.to_vec();
    push_hex(&mut line, id);
    push_line(out, &[&line, after]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oid::Kind;
    use crate::proto::pkt::{Pkt, Pkts};

    fn lines(out: &[u8]) -> Vec<String> {
        let text = |pkt: Result<Pkt<'_>, _>| match pkt.unwrap() {
            Pkt::Data(line) => String::from_utf8_lossy(line).replace(&"0".repeat(40), "ID"),
            mark => format!("{mark:?}"),
        };
        Pkts::new(out).map(text).collect()
    }

    #[test]
    fn sections_are_worded_as_in_the_protocol() {
        let id = ObjectId::null(Kind::Sha1);
        let mut out = Vec::new();
        push_acknowledgments(&mut out, &[], false);
        push_acknowledgments(&mut out, &[id], true);
        push_shallow_info(&mut out, &[id], &[id]);
        push_wanted_refs(&mut out, [(&b"refs/heads/a"[..], id)].into_iter());
        push_packfile_uris(&mut out, &[(b"12".to_vec(), b"https://x".to_vec())]);
        push_packfile(&mut out);
        push_error(&mut out, b"no");
        let expected = [
            "acknowledgments\n",
            "NAK\n",
            "acknowledgments\n",
            "ACK ID\n",
            "ready\n",
            "shallow-info\n",
            "shallow ID",
            "unshallow ID",
            "wanted-refs\n",
            "ID refs/heads/a\n",
            "packfile-uris\n",
            "12 https://x\n",
            "packfile\n",
            "ERR no\n",
        ];
        assert_eq!(lines(&out), expected);
    }

    #[test]
    fn refs_sizes_and_bundles_are_worded_as_in_the_protocol() {
        let id = ObjectId::null(Kind::Sha1);
        let mut out = Vec::new();
        push_listed_ref(
            &mut out,
            &ListedRef { name: b"HEAD", id: Some(id), symref: Some(b"refs/heads/a"), peeled: None },
        );
        push_listed_ref(&mut out, &ListedRef { name: b"refs/tags/t", id: Some(id), symref: None, peeled: Some(id) });
        push_listed_ref(&mut out, &ListedRef { name: b"HEAD", id: None, symref: Some(b"refs/heads/b"), peeled: None });
        push_object_info(&mut out, true, [(id, Some(12)), (id, None)].into_iter());
        push_bundle_uris(&mut out, &[("bundle.version".into(), "1".into()), ("bundle.x.uri".into(), String::new())]);
        let expected = [
            "ID HEAD symref-target:refs/heads/a\n",
            "ID refs/tags/t peeled:ID\n",
            "unborn HEAD symref-target:refs/heads/b\n",
            "size",
            "ID 12",
            "ID ",
            "Flush",
            "bundle.version=1",
            "Flush",
        ];
        assert_eq!(lines(&out), expected);
    }
}
