//! What a server offers: one value becomes the advertisement of each version, and tells what is accepted.
//!
//! Decides nothing; `conn` fills it from a repository's settings. Order and spelling are those of stock git, since clients
//! of old look for words at places.
//! Source: gitprotocol-capabilities(5); gitprotocol-v2(5), "Capability Advertisement".
//! Read first: `the_advertisements_are_those_of_stock_git`.

use super::{
    filter::Policy,
    pkt::{self, push_line},
};
use crate::oid::{Kind, ObjectId, push_hex};

/// How `ls-refs` treats a HEAD without a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unborn {
    /// Offered and told.
    Advertise,
    /// Told to who asks, not offered.
    Allow,
    /// Not told.
    Ignore,
}

/// Everything a repository offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Kind of all ids.
    pub kind: Kind,
    /// Name and version of the server: printable ASCII without spaces.
    pub agent: String,
    /// Of HEAD without a branch.
    pub unborn: Unborn,
    /// Partial clone.
    pub filter: bool,
    /// Wants by name.
    pub ref_in_want: bool,
    /// Answers banded from their first line on.
    pub sideband_all: bool,
    /// Parts of packs fetched elsewhere.
    pub packfile_uris: bool,
    /// Sizes of objects.
    pub object_info: bool,
    /// Bundles to start from.
    pub bundle_uri: bool,
    /// Versions 0 and 1: wants that are tips of hidden refs.
    pub allow_tip: bool,
    /// Versions 0 and 1: wants that are reachable.
    pub allow_reachable: bool,
    /// Told to clients that trace.
    pub session_id: Option<String>,
    /// Which filters.
    pub filters: Policy,
}

impl Offers {
    /// What stock git offers with an empty configuration.
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            agent: concat!("packring/", env!("CARGO_PKG_VERSION")).to_owned(),
            unborn: Unborn::Advertise,
            filter: false,
            ref_in_want: false,
            sideband_all: false,
            packfile_uris: false,
            object_info: false,
            bundle_uri: false,
            allow_tip: false,
            allow_reachable: false,
            session_id: None,
            filters: Policy::default(),
        }
    }
}

/// Appends the advertisement of version 2.
pub fn push_v2(out: &mut Vec<u8>, offers: &Offers) {
    push_line(out, &[b"version 2"]);
    push_line(out, &[b"agent=", offers.agent.as_bytes()]);
    push_line(out, &[b"ls-refs", if offers.unborn == Unborn::Advertise { b"=unborn" } else { b"" }]);
    let mut fetch = "fetch=shallow wait-for-done".to_owned();
    for (offered, word) in [
        (offers.filter, " filter"),
        (offers.ref_in_want, " ref-in-want"),
        (offers.sideband_all, " sideband-all"),
        (offers.packfile_uris, " packfile-uris"),
    ] {
        if offered {
            fetch.push_str(word);
        }
    }
    push_line(out, &[fetch.as_bytes()]);
    push_line(out, &[b"server-option"]);
    push_line(out, &[b"object-format=", offers.kind.to_string().as_bytes()]);
    if let Some(session) = &offers.session_id {
        push_line(out, &[b"session-id=", session.as_bytes()]);
    }
    for (offered, word) in [(offers.object_info, "object-info"), (offers.bundle_uri, "bundle-uri")] {
        if offered {
            push_line(out, &[word.as_bytes()]);
        }
    }
    out.extend_from_slice(pkt::FLUSH);
}

/// Appends what stands before an advertisement of version 0 or 1 over HTTP.
pub fn push_service(out: &mut Vec<u8>) {
    push_line(out, &[b"# service=git-upload-pack"]);
    out.extend_from_slice(pkt::FLUSH);
}

/// One ref of an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedRef<'a> {
    /// Full name.
    pub name: &'a [u8],
    /// What it points at.
    pub id: ObjectId,
    /// What that finally names, if it is a tag.
    pub peeled: Option<ObjectId>,
}

/// Appends the advertisement of version 0, or of version 1 when `version1` is set. `head_target` is what HEAD stands for.
pub fn push_old<'a>(
    out: &mut Vec<u8>,
    offers: &Offers,
    version1: bool,
    refs: impl Iterator<Item = AdvertisedRef<'a>>,
    head_target: Option<&[u8]>,
    shallow: &[ObjectId],
) {
    if version1 {
        push_line(out, &[b"version 1"]);
    }
    let mut capabilities = Some(old_capabilities(offers, head_target));
    let mut line = Vec::new();
    for found in refs {
        line.clear();
        push_hex(&mut line, &found.id);
        line.push(b' ');
        line.extend_from_slice(found.name);
        line.extend(capabilities.take().unwrap_or_default());
        push_line(out, &[&line]);
        if let Some(peeled) = found.peeled {
            line.clear();
            push_hex(&mut line, &peeled);
            line.push(b' ');
            line.extend_from_slice(found.name);
            push_line(out, &[&line, b"^{}"]);
        }
    }
    if let Some(capabilities) = capabilities {
        line.clear();
        push_hex(&mut line, &ObjectId::null(offers.kind));
        push_line(out, &[&line, b" capabilities^{}", &capabilities]);
    }
    for id in shallow {
        line.clear();
        line.extend_from_slice(b"shallow ");
        push_hex(&mut line, id);
        push_line(out, &[&line]);
    }
    out.extend_from_slice(pkt::FLUSH);
}

fn old_capabilities(offers: &Offers, head_target: Option<&[u8]>) -> Vec<u8> {
    let mut words =
        b"\0multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not deepen-relative \
        no-progress include-tag multi_ack_detailed"
            .to_vec();
    if offers.allow_tip {
        words.extend_from_slice(b" allow-tip-sha1-in-want");
    }
    if offers.allow_reachable {
        words.extend_from_slice(b" allow-reachable-sha1-in-want");
    }
    words.extend_from_slice(b" no-done");
    if let Some(target) = head_target {
        words.extend_from_slice(b" symref=HEAD:");
        words.extend_from_slice(target);
    }
    if offers.filter {
        words.extend_from_slice(b" filter");
    }
    if let Some(session) = &offers.session_id {
        words.extend_from_slice(b" session-id=");
        words.extend_from_slice(session.as_bytes());
    }
    words.extend_from_slice(format!(" object-format={} agent={}", offers.kind, offers.agent).as_bytes());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advertisements_are_those_of_stock_git() {
        let offers = Offers { agent: "x/1".into(), ..Offers::of(Kind::Sha1) };
        let mut out = Vec::new();
        push_v2(&mut out, &offers);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000eversion 2\n000eagent=x/1\n0013ls-refs=unborn\n0020fetch=shallow wait-for-done\n0012server-option\n\
             0017object-format=sha1\n0000"
        );
        let id = ObjectId::null(Kind::Sha1);
        let tag = AdvertisedRef { name: b"refs/tags/v", id, peeled: Some(id) };
        let head = AdvertisedRef { name: b"HEAD", id, peeled: None };
        let mut out = Vec::new();
        push_old(&mut out, &offers, true, [head, tag].into_iter(), Some(b"refs/heads/m"), &[id]);
        let zero = "0".repeat(40);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                "000eversion 1\n0101{zero} HEAD\0multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since \
                 deepen-not deepen-relative no-progress include-tag multi_ack_detailed no-done symref=HEAD:refs/heads/m \
                 object-format=sha1 agent=x/1\n0039{zero} refs/tags/v\n003c{zero} refs/tags/v^{{}}\n0035shallow {zero}\n0000"
            )
        );
    }

    #[test]
    fn an_empty_repository_still_tells_what_it_can() {
        let mut out = Vec::new();
        push_old(&mut out, &Offers::of(Kind::Sha256), false, std::iter::empty(), None, &[]);
        let text = String::from_utf8(out).unwrap();
        assert!(text[4..].starts_with(&format!("{} capabilities^{{}}\0multi_ack", "0".repeat(64))), "{text}");
        assert!(text.contains("object-format=sha256") && text.ends_with("\n0000"));
    }

    #[test]
    fn what_is_configured_is_offered() {
        let offers = Offers {
            filter: true,
            ref_in_want: true,
            sideband_all: true,
            packfile_uris: true,
            object_info: true,
            bundle_uri: true,
            allow_tip: true,
            allow_reachable: true,
            session_id: Some("7".into()),
            unborn: Unborn::Allow,
            ..Offers::of(Kind::Sha1)
        };
        let mut out = Vec::new();
        push_v2(&mut out, &offers);
        push_old(&mut out, &offers, false, std::iter::empty(), None, &[]);
        let text = String::from_utf8(out).unwrap();
        for part in [
            "ls-refs\n",
            "fetch=shallow wait-for-done filter ref-in-want sideband-all packfile-uris\n",
            "session-id=7\n",
            "object-info\n",
            "bundle-uri\n",
            "multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done filter session-id=7 object-format",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }
}
