//! A fetch in protocol version 0 or 1, as one stateless request: wants, cuts and the whole talk so far in one body.
//!
//! Introduces the old talk to the same agreement and the same packs as version 2. Invariant: what an unadvertised want
//! may be is settled by the repository (`allowTipSHA1InWant` and its kin), before anything is said.
//! Source: gitprotocol-pack(5); gitprotocol-http(5), "Smart Service git-upload-pack".
//! Read first: `tests/differential.rs`.

use std::sync::Arc;

use super::{
    agree::{self, Door, Work},
    call::Call,
    fault::Fault,
    fetch::{note, refresh, refuse},
    offers::offers,
    packing::{self, Manner},
};
use crate::{
    pack::{Question, depth, reach},
    proto::{
        answer,
        old::{self, OldFetch, Step},
        pkt,
    },
    repo::{Settings, Snapshot},
};

/// Answers one round of an old fetch.
pub async fn answer(call: &mut Call<'_>, snapshot: Arc<Snapshot>) {
    call.record.command = "fetch-v0";
    let body = std::mem::take(&mut call.body);
    let asked = match old::parse(&body, &offers(&snapshot, call)) {
        Ok(Some(asked)) => asked,
        Ok(None) => return call.result(b"").await,
        Err(violation) => return refuse(call, &violation.into()).await,
    };
    drop(body);
    let mut work = Work::of(call, snapshot);
    let mut agreed = agree_on(call, &mut work, &asked).await;
    if agreed.as_ref().is_err_and(Fault::may_be_stale) && refresh(call, &mut work).await {
        agreed = agree_on(call, &mut work, &asked).await;
    }
    match agreed {
        Err(fault) => refuse(call, &fault).await,
        Ok((text, None)) => call.result(&text).await,
        Ok((text, Some(question))) => send_pack(call, work, asked, &text, question).await,
    }
}

async fn agree_on(
    call: &mut Call<'_>,
    work: &mut Work,
    asked: &OldFetch,
) -> Result<(Vec<u8>, Option<Question>), Fault> {
    let (pace, snapshot) = (work.pace.clone(), Arc::clone(&work.snapshot));
    call.desk.finish(&pace, &snapshot, agree_in_slices(work, asked)).await
}

async fn agree_in_slices(work: &mut Work, asked: &OldFetch) -> Result<(Vec<u8>, Option<Question>), Fault> {
    let fetch = &asked.fetch;
    let door = door(&work.snapshot.settings);
    let cuts = agree::named(work, fetch).await?;
    let wants = agree::wants(work, fetch, door).await?;
    let shallows = agree::shallows(work, fetch, cuts, &wants, false).await?;
    let mut text = Vec::new();
    if let Some(boundary) = &shallows.boundary {
        let ids = |positions: &[u32]| positions.iter().map(|at| work.objects.id(*at)).collect::<Result<Vec<_>, _>>();
        answer::push_shallow_lines(&mut text, &ids(&boundary.shallow)?, &ids(&boundary.unshallow)?);
        text.extend_from_slice(pkt::FLUSH);
    }
    let said = asked.steps.iter().filter_map(|step| match step {
        Step::Have(id) => Some(*id),
        Step::Flush | Step::Done => None,
    });
    let haves = agree::haves(work, said).await?;
    // What lies behind a boundary that moved is wanted as well, and was so before the talk.
    let reach =
        depth::reach_of(&mut work.objects, &shallows.client, &shallows.boundary.clone().unwrap_or_default()).await?;
    let all_wants: Vec<u32> = wants.iter().chain(&reach.more_wants).copied().collect();
    let ready_after = haves.ready_after(&mut work.objects, &all_wants).await?;
    let known: Vec<old::Known> = haves.known.iter().copied().map(known).collect();
    let talk = old::talk(asked, &known, ready_after);
    text.extend_from_slice(&talk.text);
    let question = if talk.pack { Some(agree::question(work, fetch, wants, &haves, &shallows).await?) } else { None };
    Ok((text, question))
}

fn known(known: reach::Known) -> old::Known {
    match known {
        reach::Known::No => old::Known::No,
        reach::Known::New(_) => old::Known::New,
        reach::Known::Implied(_) => old::Known::Implied,
    }
}

fn door(settings: &Settings) -> Door {
    if settings.allow_any {
        Door::Any
    } else if settings.allow_tip || settings.allow_reachable {
        Door::AllTips
    } else {
        Door::Shown
    }
}

async fn send_pack(call: &mut Call<'_>, mut work: Work, asked: OldFetch, text: &[u8], question: Question) {
    let manner = Manner::of(&asked.fetch, asked.sideband);
    let mut cutter = call.start(manner.sideband);
    cutter.push_text(text);
    let mut made = packing::make(call, &mut work, &mut cutter, &question, &asked.fetch, manner).await;
    if made.as_ref().is_err_and(Fault::may_be_stale) && refresh(call, &mut work).await {
        made = match agree_on(call, &mut work, &asked).await {
            Ok((_, Some(again))) => packing::make(call, &mut work, &mut cutter, &again, &asked.fetch, manner).await,
            Ok((_, None)) => made,
            Err(fault) => Err(fault),
        };
    }
    call.record.planned_after = Some(call.desk.now().saturating_sub(call.started));
    // A slow client must not hold its request, which may name thousands of wants.
    drop((asked, question));
    let outcome = match made {
        Ok(made) => packing::stream(call, work, &mut cutter, &made, manner).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = outcome {
        note(call, &fault);
        packing::abort(call, &mut cutter, manner.sideband, &fault.text()).await;
    }
}
