//! `POST git-upload-pack`: which protocol is spoken, and the whole of version 2's `fetch`.
//!
//! Introduces the agreement to the pack; makes neither. Invariants: sections come in the order of gitprotocol-v2(5); a
//! request is begun anew on a fresh snapshot once, and only while nothing of its pack was handed over.
//! Source: gitprotocol-v2(5), "fetch"; the order of stock git's `upload_pack_v2`.
//! Read first: `tests/differential.rs`.

use std::sync::Arc;

use super::{
    agree::{self, Door, Shallows, Work},
    call::{Call, protocol_version},
    cutter::Cutter,
    door,
    fault::Fault,
    offers::offers,
    old,
    packing::{self, Made, Manner},
    refs,
};
use crate::{
    oid::ObjectId,
    pack::{
        Question,
        reach::{Haves, Known},
    },
    proto::{
        Fetch, answer,
        pkt::{self, Pkt, Pkts, Sideband},
        request::{self, Command},
    },
    repo::Snapshot,
};

/// Answers a fetch, or another command, in the version that was asked for.
pub async fn answer(call: &mut Call<'_>, snapshot: Arc<Snapshot>) {
    if protocol_version(call.head.git_protocol.as_deref()) < 2 {
        old::answer(call, snapshot).await;
        return;
    }
    let body = std::mem::take(&mut call.body);
    match request::parse(&body, &offers(&snapshot, call)) {
        Err(violation) => refuse(call, &violation.into()).await,
        Ok(None) => call.result(b"").await,
        Ok(Some(Command::LsRefs(asked))) => refs::list(call, snapshot, &asked).await,
        Ok(Some(Command::ObjectInfo(asked))) => refs::object_info(call, snapshot, &asked).await,
        Ok(Some(Command::BundleUri)) => {
            call.record.command = "bundle-uri";
            let mut text = Vec::new();
            answer::push_bundle_uris(&mut text, &snapshot.settings.bundle);
            call.result(&text).await;
        }
        Ok(Some(Command::Fetch(asked))) => {
            drop(body);
            fetch(call, snapshot, asked).await;
        }
    }
}

/// Refuses inside the protocol: a 200 with an `ERR` packet.
pub async fn refuse(call: &mut Call<'_>, fault: &Fault) {
    note(call, fault);
    let mut text = Vec::new();
    answer::push_error(&mut text, &fault.text());
    call.result(&text).await;
}

/// Leaves a fault in the record of the request.
pub fn note(call: &mut Call<'_>, fault: &Fault) {
    let text = Some(String::from_utf8_lossy(&fault.text()).into_owned());
    if fault.is_of_the_store() {
        call.record.fault = text;
    } else {
        call.record.refusal = text;
    }
}

async fn fetch(call: &mut Call<'_>, snapshot: Arc<Snapshot>, asked: Fetch) {
    call.record.command = "fetch";
    let mut work = Work::of(call, snapshot);
    let mut agreed = agree_on(call, &mut work, &asked).await;
    if agreed.as_ref().is_err_and(Fault::may_be_stale) && refresh(call, &mut work).await {
        agreed = agree_on(call, &mut work, &asked).await;
    }
    let agreed = match agreed {
        Ok(agreed) => agreed,
        Err(fault) => return refuse(call, &fault).await,
    };
    if agreed.question.is_none() {
        call.result(&banded(&asked, agreed.text)).await;
        return;
    }
    send_pack(call, work, asked, agreed).await;
}

/// What was agreed on, and how it is told.
struct Agreed {
    /// Sections before the pack.
    text: Vec<u8>,
    /// What the pack answers; nothing while the talk goes on.
    question: Option<Question>,
}

/// Takes a fresh look at the repository; false when that tells nothing new.
pub async fn refresh(call: &mut Call<'_>, work: &mut Work) -> bool {
    let path = call.record.path.clone();
    match door::admit(call, &path, true).await {
        Ok(snapshot) if !Arc::ptr_eq(&snapshot, &work.snapshot) => {
            *work = Work::of(call, snapshot);
            true
        }
        _ => false,
    }
}

async fn agree_on(call: &mut Call<'_>, work: &mut Work, asked: &Fetch) -> Result<Agreed, Fault> {
    let (pace, snapshot) = (work.pace.clone(), Arc::clone(&work.snapshot));
    call.desk.finish(&pace, &snapshot, agree_in_slices(work, asked)).await
}

async fn agree_in_slices(work: &mut Work, asked: &Fetch) -> Result<Agreed, Fault> {
    let mut text = Vec::new();
    let wants = agree::wants(work, asked, Door::Any).await?;
    let cuts = agree::named(work, asked).await?;
    if asked.wants.is_empty() && asked.want_refs.is_empty() && !asked.wait_for_done {
        return Ok(Agreed { text, question: None });
    }
    let haves = agree::haves(work, asked.haves.iter().copied()).await?;
    if !asked.done && !asked.haves.is_empty() {
        let common: Vec<ObjectId> = common_of(asked, &haves);
        let ready = !asked.wait_for_done && haves.ready_after(&mut work.objects, &wants).await?.is_some();
        answer::push_acknowledgments(&mut text, &common, ready);
        text.extend_from_slice(if ready { pkt::DELIM } else { pkt::FLUSH });
        if !ready {
            return Ok(Agreed { text, question: None });
        }
    }
    let shallows = agree::shallows(work, asked, cuts, &wants, true).await?;
    // The order of gitprotocol-v2(5), which clients read by; stock git's server has these two the other way round, and its
    // own client then fails (a depth with `want-ref`).
    push_shallow_info(work, &mut text, &shallows)?;
    let named = agree::wanted_refs(work, asked)?;
    if !named.is_empty() {
        answer::push_wanted_refs(&mut text, named.iter().map(|(name, id)| (name.as_slice(), *id)));
        text.extend_from_slice(pkt::DELIM);
    }
    let question = agree::question(work, asked, wants, &haves, &shallows).await?;
    Ok(Agreed { text, question: Some(question) })
}

/// Haves that are here, each once.
fn common_of(asked: &Fetch, haves: &Haves) -> Vec<ObjectId> {
    let mut seen = rustc_hash::FxHashSet::default();
    let known = asked.haves.iter().zip(&haves.known).filter(|(_, known)| **known != Known::No);
    known.map(|(id, _)| *id).filter(|id| seen.insert(*id)).collect()
}

fn push_shallow_info(work: &Work, text: &mut Vec<u8>, shallows: &Shallows) -> Result<(), Fault> {
    let Some(boundary) = &shallows.boundary else { return Ok(()) };
    let ids = |positions: &[u32]| positions.iter().map(|at| work.objects.id(*at)).collect::<Result<Vec<_>, _>>();
    answer::push_shallow_info(text, &ids(&boundary.shallow)?, &ids(&boundary.unshallow)?);
    text.extend_from_slice(pkt::DELIM);
    Ok(())
}

async fn send_pack(call: &mut Call<'_>, mut work: Work, asked: Fetch, mut agreed: Agreed) {
    let manner = Manner::of(&asked, Sideband::Large);
    let mut cutter = call.start(manner.sideband);
    cutter.push_text(&banded(&asked, std::mem::take(&mut agreed.text)));
    let late = may_be_elsewhere(&work, &asked);
    if !late {
        push_packfile(&mut cutter, &asked, &[]);
    }
    let made = make(call, &mut work, &mut cutter, &asked, agreed, manner).await;
    let outcome = match made {
        Ok(made) => {
            if late {
                push_packfile(&mut cutter, &asked, &made.elsewhere);
            }
            // A slow client must not hold its request, which may name thousands of wants.
            drop(asked);
            call.record.planned_after = Some(call.desk.now().saturating_sub(call.started));
            packing::stream(call, work, &mut cutter, &made, manner).await
        }
        Err(fault) => Err(fault),
    };
    if let Err(fault) = outcome {
        note(call, &fault);
        packing::abort(call, &mut cutter, manner.sideband, &fault.text()).await;
    }
}

/// Makes the plan; once more on a fresh snapshot when the repository was repacked under the request. What was told so far
/// stays true then, for it names only commits.
async fn make(
    call: &mut Call<'_>,
    work: &mut Work,
    cutter: &mut Cutter,
    asked: &Fetch,
    agreed: Agreed,
    manner: Manner,
) -> Result<Made, Fault> {
    let question = agreed.question.unwrap_or_default();
    let fault = match packing::make(call, work, cutter, &question, asked, manner).await {
        Err(fault) if fault.may_be_stale() => fault,
        other => return other,
    };
    if !refresh(call, work).await {
        return Err(fault);
    }
    let question = agree_on(call, work, asked).await?.question.unwrap_or_default();
    packing::make(call, work, cutter, &question, asked, manner).await
}

/// Whether something of the pack may be fetched elsewhere: then the header of the pack waits for the selection.
fn may_be_elsewhere(work: &Work, asked: &Fetch) -> bool {
    !asked.uri_protocols.is_empty() && !work.snapshot.settings.blob_packfile_uris.is_empty()
}

fn push_packfile(cutter: &mut Cutter, asked: &Fetch, elsewhere: &[(Vec<u8>, Vec<u8>)]) {
    let mut text = Vec::new();
    if !elsewhere.is_empty() {
        answer::push_packfile_uris(&mut text, elsewhere);
        text.extend_from_slice(pkt::DELIM);
    }
    answer::push_packfile(&mut text);
    cutter.push_text(&banded(asked, text));
}

/// The same text with each line in band 1, when the client wants all of the answer banded (`sideband-all`).
fn banded(asked: &Fetch, text: Vec<u8>) -> Vec<u8> {
    if !asked.sideband_all {
        return text;
    }
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    for line in Pkts::new(&text) {
        match line {
            Ok(Pkt::Data(line)) => {
                pkt::band_head(&mut out, pkt::Band::Pack, line.len());
                out.extend_from_slice(line);
            }
            Ok(Pkt::Delim) => out.extend_from_slice(pkt::DELIM),
            Ok(Pkt::ResponseEnd) => out.extend_from_slice(pkt::RESPONSE_END),
            Ok(Pkt::Flush) | Err(_) => out.extend_from_slice(pkt::FLUSH),
        }
    }
    out
}
