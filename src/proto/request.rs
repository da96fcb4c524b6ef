//! Version 2: the body of a POST becomes one typed command.
//!
//! Looks nothing up. Invariants: an argument is accepted only where it is offered; the number of ids is bounded by the size
//! of the body, which is bounded before it gets here.
//! Source: gitprotocol-v2(5), "Command Request". Read first: `arguments_are_accepted_only_where_offered`.

use std::collections::HashSet;

use super::{
    filter::{self, Spec},
    number,
    offer::{Offers, Unborn},
    pkt::{Pkt, PktError, Pkts, chomped},
    violation::Violation,
};
use crate::{
    limits,
    oid::{Kind, ObjectId, from_hex},
};

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `ls-refs`
    LsRefs(LsRefs),
    /// `fetch`
    Fetch(Fetch),
    /// `object-info`
    ObjectInfo(ObjectInfo),
    /// `bundle-uri`
    BundleUri,
}

/// Which refs are to be listed, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LsRefs {
    /// With what tags finally name.
    pub peel: bool,
    /// With what symbolic refs stand for.
    pub symrefs: bool,
    /// With a HEAD that leads to no branch yet.
    pub unborn: bool,
    /// Names start with one of these; none means all.
    pub prefixes: Vec<Vec<u8>>,
}

/// What is to be told of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Their sizes.
    pub size: bool,
    /// Which, in the order they are named.
    pub ids: Vec<ObjectId>,
}

/// What a client wants, has, and can read: the same for all versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// Objects wanted by id, each once.
    pub wants: Vec<ObjectId>,
    /// Refs wanted by name.
    pub want_refs: Vec<Vec<u8>>,
    /// Objects the client has, in the order it said so.
    pub haves: Vec<ObjectId>,
    /// It has said all it has.
    pub done: bool,
    /// It will not be cut short by `ready`.
    pub wait_for_done: bool,
    /// It completes deltas against what it has.
    pub thin_pack: bool,
    /// It reads deltas by offset.
    pub ofs_delta: bool,
    /// It wants tags of what it gets.
    pub include_tag: bool,
    /// Nobody is watching.
    pub no_progress: bool,
    /// It wants all of the answer banded.
    pub sideband_all: bool,
    /// Commits it has without their parents.
    pub shallow: Vec<ObjectId>,
    /// So many commits deep; `0x7fff_ffff` is everything.
    pub depth: Option<u32>,
    /// The depth counts from the client's boundary.
    pub relative: bool,
    /// Not older than this, seconds since 1970.
    pub since: Option<u64>,
    /// Not what these refs reach.
    pub not: Vec<Vec<u8>>,
    /// What is left out.
    pub filter: Option<Spec>,
    /// It can fetch parts elsewhere by these protocols.
    pub uri_protocols: Vec<Vec<u8>>,
}

/// Reads a command. `None` is the empty request, which gets the empty answer.
///
/// # Errors
/// The body is no request this repository answers.
pub fn parse(body: &[u8], offers: &Offers) -> Result<Option<Command>, Violation> {
    let mut pkts = Pkts::new(body);
    let Some(capabilities) = Capabilities::read(&mut pkts, offers)? else { return Ok(None) };
    let mut arguments = Arguments { pkts, open: capabilities.arguments_follow };
    Ok(Some(match capabilities.command {
        Name::LsRefs => Command::LsRefs(ls_refs(&mut arguments, offers)?),
        Name::Fetch => Command::Fetch(fetch(&mut arguments, offers)?),
        Name::ObjectInfo => Command::ObjectInfo(object_info(&mut arguments, offers)?),
        Name::BundleUri => {
            if let Some(line) = arguments.next("bundle-uri")? {
                return Err(Violation::BundleUriLine(line.to_vec()));
            }
            Command::BundleUri
        }
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    LsRefs,
    Fetch,
    ObjectInfo,
    BundleUri,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::LsRefs => "ls-refs",
            Self::Fetch => "fetch",
            Self::ObjectInfo => "object-info",
            Self::BundleUri => "bundle-uri",
        }
    }

    fn of(text: &[u8], offers: &Offers) -> Option<Self> {
        match text {
            b"ls-refs" => Some(Self::LsRefs),
            b"fetch" => Some(Self::Fetch),
            b"object-info" if offers.object_info => Some(Self::ObjectInfo),
            b"bundle-uri" if offers.bundle_uri => Some(Self::BundleUri),
            _ => None,
        }
    }
}

/// What stands before the arguments.
struct Capabilities {
    command: Name,
    arguments_follow: bool,
}

impl Capabilities {
    fn read(pkts: &mut Pkts<'_>, offers: &Offers) -> Result<Option<Self>, Violation> {
        let (mut command, mut client, mut seen) = (None, Kind::Sha1, false);
        let arguments_follow = loop {
            match pkts.next().transpose() {
                // Half a first line is taken for a client that left before it asked for anything.
                Err(PktError::CutShort) if !seen => return Ok(None),
                other => match other? {
                    None if !seen => return Ok(None),
                    Some(Pkt::Flush) if !seen => return Ok(None),
                    None => return Err(Violation::Unfinished),
                    Some(Pkt::Flush) => break false,
                    Some(Pkt::Delim) => break true,
                    Some(Pkt::ResponseEnd) => return Err(Violation::NoFlush("capability")),
                    Some(Pkt::Data(line)) => {
                        seen = true;
                        capability(chomped(line), offers, &mut command, &mut client)?;
                    }
                },
            }
        };
        let command = command.ok_or(Violation::NoCommand)?;
        if client != offers.kind {
            return Err(Violation::MismatchedObjectFormat { server: offers.kind, client });
        }
        Ok(Some(Self { command, arguments_follow }))
    }
}

fn capability(line: &[u8], offers: &Offers, command: &mut Option<Name>, client: &mut Kind) -> Result<(), Violation> {
    if let Some(name) = line.strip_prefix(b"command=") {
        if let Some(first) = command {
            return Err(Violation::TwoCommands { first: first.text(), again: name.to_vec() });
        }
        *command = Some(Name::of(name, offers).ok_or_else(|| Violation::InvalidCommand(name.to_vec()))?);
        return Ok(());
    }
    let (key, value) = match memchr::memchr(b'=', line) {
        Some(at) => (line.get(..at).unwrap_or_default(), line.get(at + 1..)),
        None => (line, None),
    };
    let means_nothing = match key {
        b"agent" | b"server-option" => true,
        b"session-id" => offers.session_id.is_some(),
        _ => false,
    };
    match (key, value) {
        _ if means_nothing => Ok(()),
        (b"object-format", None) => Err(Violation::NoObjectFormat),
        (b"object-format", Some(name)) => {
            *client = match name {
                b"sha1" => Kind::Sha1,
                b"sha256" => Kind::Sha256,
                other => return Err(Violation::UnknownObjectFormat(other.to_vec())),
            };
            Ok(())
        }
        _ => Err(Violation::UnknownCapability(line.to_vec())),
    }
}

/// The lines of a command, up to its flush.
struct Arguments<'a> {
    pkts: Pkts<'a>,
    open: bool,
}

impl<'a> Arguments<'a> {
    fn next(&mut self, command: &'static str) -> Result<Option<&'a [u8]>, Violation> {
        if !self.open {
            return Ok(None);
        }
        match self.pkts.next().transpose()? {
            Some(Pkt::Data(line)) => Ok(Some(chomped(line))),
            Some(Pkt::Flush) => {
                self.open = false;
                Ok(None)
            }
            Some(Pkt::Delim | Pkt::ResponseEnd) => Err(Violation::NoFlush(command)),
            None => Err(Violation::Unfinished),
        }
    }
}

fn ls_refs(arguments: &mut Arguments<'_>, offers: &Offers) -> Result<LsRefs, Violation> {
    let mut asked = LsRefs::default();
    let mut prefixes = 0;
    while let Some(line) = arguments.next("ls-refs")? {
        match line {
            b"peel" => asked.peel = true,
            b"symrefs" => asked.symrefs = true,
            b"unborn" => asked.unborn = offers.unborn != Unborn::Ignore,
            _ => {
                let prefix = line.strip_prefix(b"ref-prefix ");
                let prefix = prefix.ok_or_else(|| Violation::UnexpectedLine(line.to_vec()))?;
                prefixes += 1;
                if prefixes < limits::REF_PREFIXES_MAX {
                    asked.prefixes.push(prefix.to_vec());
                }
            }
        }
    }
    if prefixes >= limits::REF_PREFIXES_MAX {
        // Too many to be worth it: then all refs are listed, since the prefixes only say what is enough.
        asked.prefixes = Vec::new();
    }
    Ok(asked)
}

fn object_info(arguments: &mut Arguments<'_>, offers: &Offers) -> Result<ObjectInfo, Violation> {
    let mut asked = ObjectInfo::default();
    while let Some(line) = arguments.next("object-info")? {
        match line.strip_prefix(b"oid ") {
            _ if line == b"size" => asked.size = true,
            Some(hex) => {
                let id = from_hex(offers.kind, hex).ok_or_else(|| Violation::ObjectInfoId(hex.to_vec()))?;
                asked.ids.push(id);
            }
            None => return Err(Violation::ObjectInfoLine(line.to_vec())),
        }
    }
    Ok(asked)
}

fn fetch(arguments: &mut Arguments<'_>, offers: &Offers) -> Result<Fetch, Violation> {
    let mut asked = Fetch::default();
    while let Some(line) = arguments.next("fetch")? {
        if !(asked.take_id(line, offers)?
            || asked.take_flag(line, offers)
            || asked.take_cut(line, offers.kind)?
            || asked.take_offered(line, offers)?)
        {
            return Err(Violation::UnexpectedLine(line.to_vec()));
        }
    }
    if !asked.sideband_all {
        asked.uri_protocols.clear();
    }
    asked.forget_repetitions();
    Ok(asked)
}

impl Fetch {
    /// `want` and `have`.
    fn take_id(&mut self, line: &[u8], offers: &Offers) -> Result<bool, Violation> {
        if let Some(hex) = line.strip_prefix(b"want ") {
            let id = leading_id(offers.kind, hex).ok_or_else(|| Violation::NoWantedId(line.to_vec()))?;
            self.wants.push(id);
        } else if let Some(hex) = line.strip_prefix(b"have ") {
            let id = leading_id(offers.kind, hex).ok_or_else(|| Violation::NoHadId(hex.to_vec()))?;
            self.haves.push(id);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Arguments without a value.
    fn take_flag(&mut self, line: &[u8], offers: &Offers) -> bool {
        let flag = match line {
            b"thin-pack" => &mut self.thin_pack,
            b"ofs-delta" => &mut self.ofs_delta,
            b"no-progress" => &mut self.no_progress,
            b"include-tag" => &mut self.include_tag,
            b"done" => &mut self.done,
            b"wait-for-done" => &mut self.wait_for_done,
            b"deepen-relative" => &mut self.relative,
            b"sideband-all" if offers.sideband_all => &mut self.sideband_all,
            _ => return false,
        };
        *flag = true;
        true
    }

    /// Where history is cut: the same lines in all versions.
    pub(super) fn take_cut(&mut self, line: &[u8], kind: Kind) -> Result<bool, Violation> {
        let owned = || line.to_vec();
        if let Some(hex) = line.strip_prefix(b"shallow ") {
            let id = leading_id(kind, hex).ok_or_else(|| Violation::InvalidShallow(owned()))?;
            self.shallow.push(id);
        } else if let Some(depth) = line.strip_prefix(b"deepen ") {
            // Stock git keeps the low 32 bits, as a C int.
            let depth = number::signed(depth).map(|depth| depth as i32).filter(|depth| *depth > 0);
            self.depth = Some(
                depth.and_then(|depth| u32::try_from(depth).ok()).ok_or_else(|| Violation::InvalidDeepen(owned()))?,
            );
        } else if let Some(time) = line.strip_prefix(b"deepen-since ") {
            let time = number::wrapping(time).filter(|time| *time != u64::MAX);
            self.since = Some(time.ok_or_else(|| Violation::InvalidDeepenSince(owned()))?);
        } else if let Some(name) = line.strip_prefix(b"deepen-not ") {
            self.not.push(name.to_vec());
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether history is to be cut.
    pub fn has_cut(&self) -> bool {
        self.depth.is_some() || self.since.is_some() || !self.not.is_empty()
    }

    /// Refuses a depth beside a time or a ref. In v2 that is due only where a boundary is, as in stock git.
    ///
    /// # Errors
    /// Both were asked for.
    pub fn check_cuts(&self) -> Result<(), Violation> {
        if self.depth.is_some() && (self.since.is_some() || !self.not.is_empty()) {
            return Err(Violation::TwoCuts);
        }
        Ok(())
    }

    /// Arguments that only some repositories offer.
    fn take_offered(&mut self, line: &[u8], offers: &Offers) -> Result<bool, Violation> {
        if let Some(name) = line.strip_prefix(b"want-ref ").filter(|_| offers.ref_in_want) {
            if self.want_refs.iter().any(|known| known == name) {
                return Err(Violation::DuplicateWantRef(name.to_vec()));
            }
            self.want_refs.push(name.to_vec());
        } else if let Some(spec) = line.strip_prefix(b"filter ").filter(|_| offers.filter) {
            self.take_filter(spec, offers)?;
        } else if let Some(list) = line.strip_prefix(b"packfile-uris ").filter(|_| offers.packfile_uris) {
            if !self.uri_protocols.is_empty() {
                return Err(Violation::TwoUriLines);
            }
            self.uri_protocols = list.split(|byte| *byte == b',').map(<[u8]>::to_vec).collect();
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// One filter for each request.
    pub(super) fn take_filter(&mut self, spec: &[u8], offers: &Offers) -> Result<(), Violation> {
        if self.filter.is_some() {
            return Err(Violation::TwoFilters);
        }
        self.filter = Some(filter::parse(spec, &offers.filters)?);
        Ok(())
    }

    /// Each want and each shallow line once. The client chooses these ids, so they are hashed by a key it does not know.
    pub(super) fn forget_repetitions(&mut self) {
        for ids in [&mut self.wants, &mut self.shallow] {
            let mut seen = HashSet::with_capacity(ids.len());
            ids.retain(|id| seen.insert(*id));
        }
    }
}

/// The id at the front of `text`; stock git does not mind what follows.
pub(super) fn leading_id(kind: Kind, text: &[u8]) -> Option<ObjectId> {
    from_hex(kind, text.get(..kind.len_in_hex())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pkt;
    use proptest::prelude::*;

    const ID: &str = "0123456789012345678901234567890123456789";

    fn offers() -> Offers {
        Offers::of(Kind::Sha1)
    }

    fn everything() -> Offers {
        Offers {
            filter: true,
            ref_in_want: true,
            sideband_all: true,
            packfile_uris: true,
            object_info: true,
            bundle_uri: true,
            session_id: Some("s".into()),
            ..offers()
        }
    }

    /// `|` is a delim, `.` a flush, anything else a line.
    fn body(lines: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines {
            match *line {
                "|" => out.extend_from_slice(pkt::DELIM),
                "." => out.extend_from_slice(pkt::FLUSH),
                line => pkt::push_line(&mut out, &[line.as_bytes()]),
            }
        }
        out
    }

    fn read(lines: &[&str], offers: &Offers) -> Result<Option<Command>, Violation> {
        parse(&body(lines), offers)
    }

    #[test]
    fn an_empty_request_is_no_command() {
        assert_eq!(parse(b"", &offers()), Ok(None));
        assert_eq!(parse(b"0000", &offers()), Ok(None));
        assert_eq!(parse(b"0014command=", &offers()), Ok(None));
        assert_eq!(read(&["agent=x", "."], &offers()), Err(Violation::NoCommand));
    }

    #[test]
    fn a_stock_fetch_is_read_in_full() {
        let want = format!("want {ID}");
        let have = format!("have {ID}");
        let shallow = format!("shallow {ID} trailing");
        let lines = [
            "command=fetch",
            "agent=git/2.47",
            "object-format=sha1",
            "|",
            "thin-pack",
            "no-progress",
            "include-tag",
            "ofs-delta",
            &want,
            &want,
            &have,
            &shallow,
            "deepen 0x10",
            "deepen-relative",
            "filter blob:none",
            "want-ref refs/heads/a",
            "sideband-all",
            "packfile-uris https,http",
            "wait-for-done",
            "done",
            ".",
        ];
        let Ok(Some(Command::Fetch(fetch))) = read(&lines, &everything()) else { panic!() };
        let id = from_hex(Kind::Sha1, ID.as_bytes()).unwrap();
        let expected = Fetch {
            wants: vec![id],
            want_refs: vec![b"refs/heads/a".to_vec()],
            haves: vec![id],
            shallow: vec![id],
            depth: Some(16),
            filter: Some(Spec(vec![filter::Filter::BlobNone])),
            uri_protocols: vec![b"https".to_vec(), b"http".to_vec()],
            done: true,
            wait_for_done: true,
            thin_pack: true,
            ofs_delta: true,
            include_tag: true,
            no_progress: true,
            sideband_all: true,
            relative: true,
            since: None,
            not: vec![],
        };
        assert_eq!(fetch, expected);
    }

    #[test]
    fn arguments_are_accepted_only_where_offered() {
        for line in ["want-ref refs/heads/a", "filter blob:none", "sideband-all", "packfile-uris https"] {
            let lines = ["command=fetch", "|", line, "."];
            assert_eq!(read(&lines, &offers()), Err(Violation::UnexpectedLine(line.into())));
            assert!(read(&lines, &everything()).is_ok(), "{line}");
        }
        for command in ["object-info", "bundle-uri"] {
            let lines = [&*format!("command={command}"), "."];
            assert_eq!(read(&lines, &offers()), Err(Violation::InvalidCommand(command.into())));
            assert!(read(&lines, &everything()).is_ok(), "{command}");
        }
        assert_eq!(
            read(&["command=ls-refs", "session-id=1", "."], &offers()),
            Err(Violation::UnknownCapability("session-id=1".into()))
        );
        assert!(read(&["command=ls-refs", "session-id=1", "."], &everything()).is_ok());
    }

    #[test]
    fn a_depth_beside_a_ref_or_a_time_is_read_and_refused_when_it_is_due() {
        let text = "git upload-pack: deepen and deepen-since (or deepen-not) cannot be used together";
        for (cuts, refused) in [
            (["deepen 1", "deepen-not a"], true),
            (["deepen-since 1", "deepen 1"], true),
            (["deepen-since 1", "deepen-not a"], false),
        ] {
            let Ok(Some(Command::Fetch(fetch))) = read(&["command=fetch", "|", cuts[0], cuts[1], "."], &offers())
            else {
                panic!("{cuts:?}")
            };
            assert_eq!(
                fetch.check_cuts().err().map(|violation| violation.to_string()),
                refused.then(|| text.to_owned())
            );
        }
    }

    #[test]
    fn repeated_wants_and_shallow_lines_are_kept_once_in_order() {
        let other = "1".repeat(40);
        let lines = [format!("want {ID}"), format!("shallow {other}"), format!("want {other}"), format!("want {ID}")];
        let mut all = vec!["command=fetch", "|"];
        all.extend(lines.iter().chain([&lines[1]]).map(String::as_str));
        all.push(".");
        let Ok(Some(Command::Fetch(fetch))) = read(&all, &offers()) else { panic!("{all:?}") };
        let ids =
            |texts: &[&str]| texts.iter().filter_map(|text| from_hex(Kind::Sha1, text.as_bytes())).collect::<Vec<_>>();
        assert_eq!((fetch.wants, fetch.shallow), (ids(&[ID, &other]), ids(&[&other])));
    }

    #[test]
    fn what_git_refuses_is_refused_in_its_words() {
        for (lines, text) in [
            (&["command=fetch=1", "."][..], "invalid command 'fetch=1'"),
            (&["command=push", "."], "invalid command 'push'"),
            (
                &["command=fetch", "command=ls-refs", "."],
                "command 'ls-refs' requested after already requesting command 'fetch'",
            ),
            (&["command=fetch", "foo", "."], "unknown capability 'foo'"),
            (&["command=fetch", "object-format", "."], "object-format capability requires an argument"),
            (&["command=fetch", "object-format=md5", "."], "unknown object format 'md5'"),
            (&["command=fetch", "object-format=sha256", "."], "mismatched object format: server sha1; client sha256"),
            (
                &["command=fetch", "|", "want x", "."],
                "git upload-pack: protocol error, expected to get oid, not 'want x'",
            ),
            (&["command=fetch", "|", "have x", "."], "git upload-pack: expected SHA1 object, got 'x'"),
            (&["command=fetch", "|", "shallow x", "."], "invalid shallow line: shallow x"),
            (&["command=fetch", "|", "deepen 0", "."], "Invalid deepen: deepen 0"),
            (&["command=fetch", "|", "deepen -1", "."], "Invalid deepen: deepen -1"),
            (&["command=fetch", "|", "deepen 4294967296", "."], "Invalid deepen: deepen 4294967296"),
            (&["command=fetch", "|", "deepen-since x", "."], "Invalid deepen-since: deepen-since x"),
            (&["command=fetch", "|", "deepen-since -1", "."], "Invalid deepen-since: deepen-since -1"),
            (&["command=fetch", "|", "done", "|"], "expected flush after fetch arguments"),
            (&["command=fetch", "|", "done"], "the remote end hung up unexpectedly"),
            (&["command=fetch"], "the remote end hung up unexpectedly"),
            (&["command=ls-refs", "|", "peels", "."], "unexpected line: 'peels'"),
            (&["command=ls-refs", "|", "peel", "|"], "expected flush after ls-refs arguments"),
            (&["command=fetch", "|", "want-ref a", "want-ref a", "."], "duplicate want-ref a"),
            (
                &["command=fetch", "|", "filter tree:0", "filter tree:0", "."],
                "multiple filter-specs cannot be combined",
            ),
            (&["command=fetch", "|", "filter x", "."], "invalid filter-spec 'x'"),
            (
                &["command=fetch", "|", "packfile-uris a", "packfile-uris a", "."],
                "multiple packfile-uris lines forbidden",
            ),
            (&["command=bundle-uri", "|", "x", "."], "bundle-uri: unexpected argument: 'x'"),
            (&["command=object-info", "|", "oid x", "."], "object-info: protocol error, expected to get oid, not 'x'"),
            (&["command=object-info", "|", "x", "."], "object-info: unexpected line: 'x'"),
        ] {
            let violation = read(lines, &everything()).expect_err(text);
            assert_eq!(violation.to_string(), text);
        }
    }

    #[test]
    fn too_many_prefixes_mean_all_refs() {
        let mut lines = vec!["command=ls-refs", "|"];
        lines.extend(std::iter::repeat_n("ref-prefix a", limits::REF_PREFIXES_MAX - 1));
        lines.push(".");
        let Ok(Some(Command::LsRefs(asked))) = read(&lines, &offers()) else { panic!() };
        assert_eq!(asked.prefixes.len(), limits::REF_PREFIXES_MAX - 1);
        lines.insert(2, "ref-prefix b");
        let Ok(Some(Command::LsRefs(asked))) = read(&lines, &offers()) else { panic!() };
        assert_eq!(asked.prefixes.len(), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, &everything());
        }

        #[test]
        fn any_lines_are_read_or_refused(lines in proptest::collection::vec("[a-z=:0-9. -]{0,30}|\\||\\.", 0..12)) {
            let mut all = vec!["command=fetch", "|"];
            all.extend(lines.iter().map(String::as_str));
            let _ = read(&all, &everything());
        }
    }
}
