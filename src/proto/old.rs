//! Versions 0 and 1: one stateless body becomes wants, cuts and the talk so far; the talk becomes its answer.
//!
//! Looks nothing up: what is known of a have is told to [`talk`]. Invariant: the same body gets the same answer, whatever
//! was said in requests before.
//! Source: gitprotocol-pack(5), "Packfile Negotiation"; gitprotocol-http(5), "The Negotiation Algorithm".
//! Read first: `each_kind_of_acknowledgment_answers_as_git_does`.

use super::{
    offer::Offers,
    pkt::{self, Pkt, PktError, Pkts, Sideband, chomped},
    request::{Fetch, leading_id},
    violation::Violation,
};
use crate::oid::{ObjectId, push_hex};

/// A fetch as old clients say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldFetch {
    /// What all versions have. Haves stand in `steps`.
    pub fetch: Fetch,
    /// How the pack is to be banded.
    pub sideband: Sideband,
    /// How haves are to be acknowledged.
    pub acks: Acks,
    /// The pack may follow `ready` at once.
    pub no_done: bool,
    /// The talk, in order.
    pub steps: Vec<Step>,
}

/// How haves are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// The first common one only.
    Single,
    /// `multi_ack`
    Multi,
    /// `multi_ack_detailed`
    Detailed,
}

/// One line of the talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client has this.
    Have(ObjectId),
    /// It waits for an answer.
    Flush,
    /// It has said all.
    Done,
}

/// Reads a body. `None` when nothing is wanted.
///
/// # Errors
/// The body is no such request.
pub fn parse(body: &[u8], offers: &Offers) -> Result<Option<OldFetch>, Violation> {
    let mut pkts = Pkts::new(body);
    let mut asked = OldFetch {
        fetch: Fetch::default(),
        sideband: Sideband::None,
        acks: Acks::Single,
        no_done: false,
        steps: Vec::new(),
    };
    let mut filters = false;
    loop {
        match pkts.next().transpose()? {
            None if asked.fetch == Fetch::default() => return Ok(None),
            None => return Err(Violation::Unfinished),
            Some(Pkt::Data(line)) => asked.take_need(chomped(line), offers, &mut filters)?,
            Some(_) => break,
        }
    }
    asked.fetch.check_cuts()?;
    if asked.fetch.wants.is_empty() {
        // A cut without a want still has an answer: the boundary, which is empty.
        return Ok(asked.fetch.has_cut().then_some(asked));
    }
    asked.fetch.forget_repetitions();
    asked.take_talk(&mut pkts, offers)?;
    Ok(Some(asked))
}

impl OldFetch {
    fn take_need(&mut self, line: &[u8], offers: &Offers, filters: &mut bool) -> Result<(), Violation> {
        if self.fetch.take_cut(line, offers.kind)? {
            return Ok(());
        }
        if let Some(spec) = line.strip_prefix(b"filter ") {
            return if *filters { self.fetch.take_filter(spec, offers) } else { Err(Violation::FilterNotNegotiated) };
        }
        let wrong = || Violation::NoWant(line.to_vec());
        let rest = line.strip_prefix(b"want ").ok_or_else(wrong)?;
        self.fetch.wants.push(leading_id(offers.kind, rest).ok_or_else(wrong)?);
        let words = rest.get(offers.kind.len_in_hex()..).unwrap_or_default();
        for word in words.split(u8::is_ascii_whitespace) {
            match word {
                b"multi_ack_detailed" => self.acks = Acks::Detailed,
                b"multi_ack" if self.acks == Acks::Single => self.acks = Acks::Multi,
                b"side-band-64k" => self.sideband = Sideband::Large,
                b"side-band" if self.sideband == Sideband::None => self.sideband = Sideband::Small,
                b"no-done" => self.no_done = true,
                b"thin-pack" => self.fetch.thin_pack = true,
                b"ofs-delta" => self.fetch.ofs_delta = true,
                b"no-progress" => self.fetch.no_progress = true,
                b"include-tag" => self.fetch.include_tag = true,
                b"deepen-relative" => self.fetch.relative = true,
                b"filter" if offers.filter => *filters = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn take_talk(&mut self, pkts: &mut Pkts<'_>, offers: &Offers) -> Result<(), Violation> {
        loop {
            let next = match pkts.next().transpose() {
                // Half a line where the talk would start is no talk.
                Err(PktError::CutShort) if self.steps.is_empty() => break,
                other => other?,
            };
            match next {
                None => break,
                Some(Pkt::Data(line)) => {
                    let line = chomped(line);
                    if line == b"done" {
                        self.steps.push(Step::Done);
                        break;
                    }
                    let hex = line.strip_prefix(b"have ").ok_or_else(|| Violation::NoHave(line.to_vec()))?;
                    let id = leading_id(offers.kind, hex).ok_or_else(|| Violation::NoHadId(hex.to_vec()))?;
                    self.steps.push(Step::Have(id));
                }
                Some(_) => {
                    // Without memory of earlier requests, the answer to a flush ends this one.
                    self.steps.push(Step::Flush);
                    break;
                }
            }
        }
        // A body may end behind the wants (the client first learns the new boundary), but not amid haves.
        match self.steps.last() {
            Some(Step::Have(_)) => Err(Violation::Unfinished),
            _ => Ok(()),
        }
    }
}

/// What a server knows of one have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Not here.
    No,
    /// Here, and news.
    New,
    /// Here, and implied by an earlier have.
    Implied,
}

/// The answer to a talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Talk {
    /// Its lines.
    pub text: Vec<u8>,
    /// Whether the pack follows.
    pub pack: bool,
}

/// Answers the talk. `known` tells of each have in turn; after `ready_after` of them enough is in common.
pub fn talk(asked: &OldFetch, known: &[Known], ready_after: Option<usize>) -> Talk {
    let mut talker = Talker { asked, text: Vec::new(), last: None, news: 0, ready: false, common: false, other: false };
    let mut said = 0;
    for step in &asked.steps {
        match step {
            Step::Have(id) => {
                let known = known.get(said).copied().unwrap_or(Known::No);
                said += 1;
                talker.have(*id, known, ready_after.is_some_and(|after| said >= after));
            }
            Step::Flush => {
                let pack = talker.flush(ready_after.is_some_and(|after| said >= after));
                return Talk { text: talker.text, pack };
            }
            Step::Done => {
                talker.done();
                return Talk { text: talker.text, pack: true };
            }
        }
    }
    Talk { text: talker.text, pack: false }
}

struct Talker<'a> {
    asked: &'a OldFetch,
    text: Vec<u8>,
    last: Option<ObjectId>,
    news: usize,
    ready: bool,
    common: bool,
    other: bool,
}

impl Talker<'_> {
    fn ack(&mut self, id: &ObjectId, word: &str) {
        let mut line = b"ACK ".to_vec();
        push_hex(&mut line, id);
        pkt::push_line(&mut self.text, &[&line, word.as_bytes()]);
    }

    fn have(&mut self, id: ObjectId, known: Known, ready: bool) {
        if known == Known::No {
            self.other = true;
            match self.asked.acks {
                Acks::Detailed if ready => {
                    self.ready = true;
                    self.ack(&id, " ready");
                }
                Acks::Multi if ready => self.ack(&id, " continue"),
                _ => {}
            }
            return;
        }
        self.news += usize::from(known == Known::New);
        (self.common, self.last) = (true, Some(id));
        match self.asked.acks {
            Acks::Detailed => self.ack(&id, " common"),
            Acks::Multi => self.ack(&id, " continue"),
            Acks::Single if self.news == 1 => self.ack(&id, ""),
            Acks::Single => {}
        }
    }

    /// The client waits. Returns whether the pack follows at once.
    fn flush(&mut self, ready: bool) -> bool {
        if self.asked.acks == Acks::Detailed && self.common && !self.other && ready {
            self.ready = true;
            if let Some(last) = self.last {
                self.ack(&last, " ready");
            }
        }
        if self.news == 0 || self.asked.acks != Acks::Single {
            pkt::push_line(&mut self.text, &[b"NAK"]);
        }
        match self.last {
            Some(last) if self.asked.no_done && self.ready => {
                self.ack(&last, "");
                true
            }
            _ => false,
        }
    }

    fn done(&mut self) {
        match self.last {
            Some(last) if self.news > 0 => {
                if self.asked.acks != Acks::Single {
                    self.ack(&last, "");
                }
            }
            _ => pkt::push_line(&mut self.text, &[b"NAK"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oid::Kind;
    use proptest::prelude::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn body(lines: &[String]) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines {
            match line.as_str() {
                "." => out.extend_from_slice(pkt::FLUSH),
                line => pkt::push_line(&mut out, &[line.as_bytes()]),
            }
        }
        out
    }

    fn read(lines: &[&str]) -> Result<Option<OldFetch>, Violation> {
        let offers = Offers { filter: true, ..Offers::of(Kind::Sha1) };
        let lines: Vec<String> = lines
            .iter()
            .map(|line| line.replace('A', &id('a')).replace('B', &id('b')).replace('C', &id('c')))
            .collect();
        parse(&body(&lines), &offers)
    }

    fn said(lines: &[&str], known: &[Known], ready_after: Option<usize>) -> (Vec<String>, bool) {
        let talk = talk(&read(lines).unwrap().unwrap(), known, ready_after);
        let lines = Pkts::new(&talk.text).map(|line| match line.unwrap() {
            Pkt::Data(line) => {
                let line = String::from_utf8_lossy(chomped(line)).into_owned();
                line.replace(&id('a'), "A").replace(&id('b'), "B").replace(&id('c'), "C")
            }
            mark => format!("{mark:?}"),
        });
        (lines.collect(), talk.pack)
    }

    #[test]
    fn an_old_request_is_read_in_full() {
        let words = "want A multi_ack_detailed no-done side-band-64k side-band multi_ack thin-pack ofs-delta include-tag no-progress \
                     deepen-relative filter agent=git/1.8";
        let asked =
            read(&[words, "want B", "want A", "shallow C", "deepen 3", "filter blob:none", ".", "have C", ".", "done"]);
        let asked = asked.unwrap().unwrap();
        assert_eq!((asked.sideband, asked.acks, asked.no_done), (Sideband::Large, Acks::Detailed, true));
        assert_eq!((asked.fetch.wants.len(), asked.fetch.shallow.len(), asked.fetch.depth), (2, 1, Some(3)));
        assert!(asked.fetch.thin_pack && asked.fetch.ofs_delta && asked.fetch.include_tag && asked.fetch.no_progress);
        assert!(asked.fetch.relative && asked.fetch.filter.is_some());
        assert!(matches!(asked.steps[..], [Step::Have(_), Step::Flush]));
    }

    #[test]
    fn nothing_wanted_is_no_request_and_half_of_one_is_refused() {
        assert_eq!(read(&["."]), Ok(None));
        assert_eq!(read(&["deepen 2", ".", "have A"]).unwrap().unwrap().steps, []);
        assert_eq!(read(&[]), Ok(None));
        let half = [b"0032want ".as_slice(), id('a').as_bytes(), b"\n00000032have"].concat();
        assert_eq!(parse(&half, &Offers::of(Kind::Sha1)).unwrap().unwrap().steps, []);
        for (lines, text) in [
            (&["want A"][..], "the remote end hung up unexpectedly"),
            (&["want A", ".", "have B"], "the remote end hung up unexpectedly"),
            (&["want x", "."], "git upload-pack: protocol error, expected to get object ID, not 'want x'"),
            (&["have A", "."], ""),
            (&["want A", ".", "want B", "."], ""),
            (&["want A", ".", "have x", "."], "git upload-pack: expected SHA1 object, got 'x'"),
            (&["want A", "filter blob:none", "."], "git upload-pack: filtering capability not negotiated"),
        ] {
            let error = read(lines).unwrap_err().to_string();
            assert!(
                if text.is_empty() {
                    error.contains("protocol error") || error.contains("SHA1 list")
                } else {
                    error == text
                },
                "{error}"
            );
        }
    }

    #[test]
    fn each_kind_of_acknowledgment_answers_as_git_does() {
        use Known::{Implied, New, No};
        let talk = [".", "have A", "have B", "have C", ".", "not read any more"];
        let with = |words: &str| -> Vec<String> {
            [format!("want A {words}")].into_iter().chain(talk.map(str::to_owned)).collect()
        };
        let cases: [(&str, &[Known], Option<usize>, &[&str], bool); 8] = [
            ("", &[No, New, Implied], Some(2), &["ACK B", "ACK C"], false),
            ("", &[No, New, New], Some(2), &["ACK B"], false),
            ("", &[No, No, No], None, &["NAK"], false),
            (
                "multi_ack",
                &[New, No, No],
                Some(1),
                &["ACK A continue", "ACK B continue", "ACK C continue", "NAK"],
                false,
            ),
            (
                "multi_ack_detailed",
                &[New, No, No],
                Some(1),
                &["ACK A common", "ACK B ready", "ACK C ready", "NAK"],
                false,
            ),
            (
                "multi_ack_detailed",
                &[New, New, New],
                Some(3),
                &["ACK A common", "ACK B common", "ACK C common", "ACK C ready", "NAK"],
                false,
            ),
            (
                "multi_ack_detailed no-done",
                &[New, New, New],
                Some(3),
                &["ACK A common", "ACK B common", "ACK C common", "ACK C ready", "NAK", "ACK C"],
                true,
            ),
            (
                "multi_ack_detailed",
                &[New, New, New],
                None,
                &["ACK A common", "ACK B common", "ACK C common", "NAK"],
                false,
            ),
        ];
        for (words, known, ready, expected, pack) in cases {
            let lines = with(words);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert_eq!(
                said(&lines, known, ready),
                (expected.iter().map(ToString::to_string).collect(), pack),
                "{words} {known:?}"
            );
        }
    }

    #[test]
    fn done_brings_the_pack_and_a_body_without_talk_does_not() {
        use Known::{New, No};
        let one = |word: &str, known| said(&[&format!("want A {word}"), ".", "have B", "done"], &[known], None);
        assert_eq!(one("", No), (vec!["NAK".into()], true));
        assert_eq!(one("", New), (vec!["ACK B".into()], true));
        assert_eq!(one("multi_ack", New), (vec!["ACK B continue".into(), "ACK B".into()], true));
        assert_eq!(one("multi_ack_detailed", New), (vec!["ACK B common".into(), "ACK B".into()], true));
        assert_eq!(said(&["want A", "deepen 1", "."], &[], None), (vec![], false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, &Offers::of(Kind::Sha1));
            let _ = parse(&[b"0032want 0123456789012345678901234567890123456789\n0000".as_slice(), &bytes].concat(), &Offers::of(Kind::Sha1));
        }
    }
}
