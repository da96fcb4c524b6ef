//! From an agreed question to the last byte of its pack, with the small talk that keeps people and proxies patient.
//!
//! Agrees on nothing ([`super::agree`] did) and reads no pkt-line. Invariants: nothing of a pack is handed over before
//! its plan is complete; a quiet stream is never quiet for longer than the repository's keep-alive; what a client may not
//! see is neither sent nor added.
//! Source: gitprotocol-v2(5), "packfile"; `uploadpack.keepAlive` in git-config(1).
//! Read first: `tests/stock_git.rs`, `tests/wire.rs`.

use std::{pin::pin, sync::Arc, time::Duration};

use super::{
    agree::Work,
    call::Call,
    cutter::Cutter,
    desk::Need,
    fault::Fault,
    vet::{self, Peel},
};
use crate::{
    oid::Kind,
    pack::{
        self, Checksum, Dialect, ObjectType, Objects, Pack, Plan, Question, Selection,
        closure::{Closure, Closures, select_from},
        deflate::SlicedDeflater,
        entry,
        plan::{Counts, Large},
        seal,
        shelf::{Found, PlanKey},
        ways::{Way, select_by_bitmap},
    },
    proto::{
        Fetch,
        pkt::{self, Band, Sideband},
    },
};

/// How an answer with a pack is said.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// How the pack is banded.
    pub sideband: Sideband,
    /// Whether a person wants to see how far it is.
    pub progress: bool,
}

impl Manner {
    /// As the request asks.
    pub fn of(fetch: &Fetch, sideband: Sideband) -> Self {
        Self { sideband, progress: !fetch.no_progress && sideband != Sideband::None }
    }
}

/// A selection and how it is said.
pub struct Made {
    /// Ready to be streamed.
    pub plan: Arc<Plan>,
    /// What is fetched elsewhere instead: checksum of a pack and its address, as configured.
    pub elsewhere: Vec<(Vec<u8>, Vec<u8>)>,
    /// How the selection was found.
    pub way: &'static str,
}

/// Finds the plan for a question, or makes it, giving signs of life meanwhile.
///
/// # Errors
/// The store is damaged, or was replaced under the request.
pub async fn make(
    call: &mut Call<'_>,
    work: &mut Work,
    cutter: &mut Cutter,
    question: &Question,
    fetch: &Fetch,
    manner: Manner,
) -> Result<Made, Fault> {
    let mut signs = Signs {
        manner,
        keep_alive: work.snapshot.settings.keep_alive,
        started: call.desk.now(),
        told: call.desk.now(),
    };
    // What may be fetched elsewhere is told with the plan and not kept with it.
    let shared = fetch.uri_protocols.is_empty();
    let key = shared.then(|| key_of(work, question, fetch));
    let promise = loop {
        let Some(key) = key else { break None };
        match call.rules.shelf.find(key) {
            Found::Ready(plan) => {
                call.record.way = Some("kept plan");
                return Ok(Made { plan, elsewhere: Vec::new(), way: "kept plan" });
            }
            Found::Yours(promise) => break Some(promise),
            Found::InTheMaking => {
                signs.give(call, cutter, None).await?;
                call.desk.pause(LOOK_AGAIN).await;
            }
        }
    };
    let (pace, snapshot) = (work.pace.clone(), Arc::clone(&work.snapshot));
    let closures = Arc::clone(&call.rules.closures);
    let mut making = pin!(choose_and_plan(work, question, fetch, &closures));
    loop {
        if let Some(made) = call.desk.slice(&pace, &snapshot, making.as_mut()).await {
            let made = made?;
            call.record.way = Some(made.way);
            if let Some(promise) = promise {
                promise.keep(&made.plan);
            }
            return Ok(made);
        }
        signs.give(call, cutter, Some(pace.counted())).await?;
        call.desk.breathe().await;
    }
}

/// Signs of life while a plan is made: for a person how far it is, for a proxy an empty band.
struct Signs {
    manner: Manner,
    keep_alive: Option<Duration>,
    started: Duration,
    told: Duration,
}

impl Signs {
    async fn give(&mut self, call: &mut Call<'_>, cutter: &mut Cutter, counted: Option<u64>) -> Result<(), Fault> {
        let now = call.desk.now();
        let quiet = now.saturating_sub(call.desk.last_sent().max(self.started));
        if let Some(counted) =
            counted.filter(|_| self.manner.progress && now.saturating_sub(self.told) >= PROGRESS_EVERY)
        {
            self.told = now;
            say(cutter, self.manner.sideband, &format!("Enumerating objects: {counted}\r"));
            call.flush(cutter).await?;
        } else if self.manner.sideband != Sideband::None && self.keep_alive.is_some_and(|limit| quiet >= limit) {
            let mut alive = Vec::new();
            pkt::band_head(&mut alive, Band::Pack, 0);
            cutter.push_text(&alive);
            call.flush(cutter).await?;
        }
        Ok(())
    }
}

/// Everything the bytes of an answer depend on, as one hash. Who asks, in which order and how often is left out.
fn key_of(work: &Work, question: &Question, fetch: &Fetch) -> PlanKey {
    let mut sum = Checksum::new(Kind::Sha256);
    sum.update(work.objects.store().identity());
    let mut cut: Vec<u32> = question.cut.iter().copied().collect();
    for positions in [&mut question.wants.clone(), &mut question.haves.clone(), &mut cut] {
        positions.sort_unstable();
        positions.dedup();
        sum.update(&(positions.len() as u64).to_be_bytes());
        for position in positions.iter() {
            // A loose object has another position for each request; its id has not.
            match work.objects.id(*position) {
                Ok(id) if work.objects.is_loose(*position) => sum.update(id.as_bytes()),
                _ => sum.update(&position.to_be_bytes()),
            }
        }
    }
    let filter = format!("{:?}{:?}", question.omit, fetch.filter);
    sum.update(&(filter.len() as u64).to_be_bytes());
    sum.update(filter.as_bytes());
    let tags = if fetch.include_tag { work.snapshot.number + 1 } else { 0 };
    sum.update(&tags.to_be_bytes());
    sum.update(&[u8::from(question.edges_in_full), u8::from(fetch.ofs_delta), u8::from(fetch.thin_pack)]);
    sum.finish().as_bytes().try_into().unwrap_or_default()
}

/// Selects by the best way there is.
///
/// # Errors
/// The store is damaged.
pub async fn choose(
    objects: &mut Objects,
    question: &Question,
    closures: &Closures,
) -> Result<(Selection, &'static str), Fault> {
    let known = if objects.store().chart().is_none() { closures.find(objects.store()) } else { Vec::new() };
    for closure in known {
        let Some(selection) = select_from(objects, question, &closure).await? else { continue };
        let is_whole = |pack: &Arc<Pack>| pack.is_sealed() && u64::from(pack.count()) == selection.chosen.count();
        if objects.store().packs().iter().any(is_whole) {
            return Ok((selection, "sealed pack"));
        }
        closures.used(&closure);
        keep(objects, question, &selection, closures).await?;
        return Ok((selection, "closure"));
    }
    let (selection, way) = select_by_bitmap(objects, question).await?;
    let way = match way {
        Way::Bitmaps(used) if used.sealed => "sealed pack",
        Way::Bitmaps(_) => "bitmaps",
        Way::Walk(_) => {
            keep(objects, question, &selection, closures).await?;
            "walk"
        }
    };
    Ok((selection, way))
}

async fn keep(
    objects: &mut Objects,
    question: &Question,
    selection: &Selection,
    closures: &Closures,
) -> Result<(), Fault> {
    if let Some(closure) = Closure::of(objects, question, selection).await? {
        seal::learn_from(objects, &question.wants, &selection.chosen).await?;
        closures.keep(closure);
    }
    Ok(())
}

async fn choose_and_plan(
    work: &mut Work,
    question: &Question,
    fetch: &Fetch,
    closures: &Closures,
) -> Result<Made, Fault> {
    let (mut selection, way) = choose(&mut work.objects, question, closures).await?;
    if fetch.include_tag {
        include_tags(work, &mut selection).await?;
    }
    let elsewhere = leave_elsewhere(work, &mut selection, fetch).await?;
    let dialect = Dialect { ofs_delta: fetch.ofs_delta, thin: fetch.thin_pack };
    let plan = pack::plan(&mut work.objects, &selection, dialect).await?;
    Ok(Made { plan: Arc::new(plan), elsewhere, way })
}

/// Adds the annotated tags whose object is sent, with every tag between.
async fn include_tags(work: &mut Work, selection: &mut Selection) -> Result<(), Fault> {
    let vetted = vet::vetted(work).await?;
    let snapshot = Arc::clone(&work.snapshot);
    for tag in snapshot.refs.prefixed(b"refs/tags/").filter(|tag| !tag.hidden) {
        let Peel::To(object) = vetted.peel(tag.index) else { continue };
        let object = work.objects.demand(&object).await?;
        work.pace.work(COST_OF_TAG).await;
        if !selection.chosen.contains(object) {
            continue;
        }
        let mut position = work.objects.demand(&tag.id).await?;
        while work.objects.type_of(position)? == ObjectType::Tag && !selection.common.contains(position) {
            selection.chosen.insert(position);
            let target = work.objects.tagged(position).await?;
            position = work.objects.demand(&target).await?;
        }
    }
    Ok(())
}

/// Takes out of the selection what the client can fetch elsewhere (`uploadpack.blobPackfileUri`).
async fn leave_elsewhere(
    work: &mut Work,
    selection: &mut Selection,
    fetch: &Fetch,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Fault> {
    let mut elsewhere = Vec::new();
    let snapshot = Arc::clone(&work.snapshot);
    for known in &snapshot.settings.blob_packfile_uris {
        let uri = known.uri.as_bytes();
        let reads =
            |protocol: &Vec<u8>| uri.strip_prefix(protocol.as_slice()).is_some_and(|rest| rest.starts_with(b"://"));
        if !fetch.uri_protocols.iter().any(reads) {
            continue;
        }
        let Some(position) = work.objects.locate(&known.object).await? else { continue };
        if selection.chosen.remove(position) {
            elsewhere.push((known.pack.as_bytes().to_vec(), uri.to_vec()));
        }
    }
    Ok(elsewhere)
}

/// Streams the pack; what stands in `cutter` goes before it. Takes the work to let go of it: a slow client must not hold
/// what was only needed to find out what to send.
///
/// # Errors
/// A large object that is streamed behind the plan is damaged; or a mapped pack was cut short.
pub async fn stream(
    call: &mut Call<'_>,
    work: Work,
    cutter: &mut Cutter,
    made: &Made,
    manner: Manner,
) -> Result<(), Fault> {
    let snapshot = Arc::clone(&work.snapshot);
    drop(work);
    let counts = made.plan.counts;
    call.record.counts = Some(counts);
    let mut after = Vec::new();
    if manner.progress {
        let total = counts.objects;
        say(cutter, manner.sideband, &format!("Enumerating objects: {total}, done.\n"));
        if total > 0 {
            say(cutter, manner.sideband, &format!("Counting objects: 100% ({total}/{total}), done.\n"));
        }
        push_said(&mut after, manner.sideband, &total_line(&counts));
    }
    if manner.sideband != Sideband::None {
        after.extend_from_slice(pkt::FLUSH);
    }
    cutter.start_pack(Arc::clone(&made.plan), after);
    call.pour(cutter).await?;
    if !made.plan.tail().is_empty() {
        let mut work = Work::new(snapshot);
        for large in made.plan.tail() {
            stream_large(call, &mut work, cutter, large).await?;
        }
    }
    cutter.close_pack();
    cutter.end();
    call.pour(cutter).await?;
    Ok(())
}

async fn stream_large(call: &mut Call<'_>, work: &mut Work, cutter: &mut Cutter, large: &Large) -> Result<(), Fault> {
    let mut out = Vec::new();
    entry::push_whole(&mut out, large.object, large.size);
    cutter.push_pack(&out);
    let mut deflater = SlicedDeflater::new();
    let mut size = 0u64;
    let (pace, snapshot) = (work.pace.clone(), Arc::clone(&work.snapshot));
    // The plan may come from another request, to which loose objects had other positions.
    let position = call.desk.finish(&pace, &snapshot, work.objects.demand(&large.id)).await?;
    if work.objects.is_loose(position) {
        let mut need = Need::Large { snapshot: Arc::clone(&work.snapshot), id: large.id };
        loop {
            let part = call.desk.part(need).await.ok_or(pack::Fault::BrokenLoose { id: large.id })?;
            if part.bytes.is_empty() {
                break;
            }
            size += part.bytes.len() as u64;
            deflate_part(call, cutter, &mut deflater, &part.bytes, false).await?;
            need = Need::Part(part.stream);
        }
    } else {
        let object = call.desk.finish(&pace, &snapshot, work.objects.read(position)).await?;
        size = object.bytes.len() as u64;
        for part in object.bytes.chunks(PART) {
            deflate_part(call, cutter, &mut deflater, part, false).await?;
        }
    }
    deflate_part(call, cutter, &mut deflater, &[], true).await?;
    if size == large.size { Ok(()) } else { Err(pack::Fault::Inflate { id: large.id }.into()) }
}

async fn deflate_part(
    call: &mut Call<'_>,
    cutter: &mut Cutter,
    deflater: &mut SlicedDeflater,
    part: &[u8],
    last: bool,
) -> Result<(), Fault> {
    let mut out = Vec::new();
    deflater.append(part, last, &mut out);
    cutter.push_pack(&out);
    call.pour(cutter).await?;
    call.desk.breathe().await;
    Ok(())
}

/// Ends an answer whose head is out with words in band 3; without bands, by cutting the connection.
pub async fn abort(call: &mut Call<'_>, cutter: &mut Cutter, sideband: Sideband, text: &[u8]) {
    cutter.drop_pack();
    if sideband == Sideband::None {
        call.keep = false;
        let _ = call.flush(cutter).await;
        return;
    }
    let mut said = Vec::new();
    let text = text.get(..text.len().min(sideband.payload_max())).unwrap_or_default();
    pkt::band_head(&mut said, Band::Fatal, text.len());
    said.extend_from_slice(text);
    cutter.push_text(&said);
    cutter.end();
    let _ = call.flush(cutter).await;
}

fn say(cutter: &mut Cutter, sideband: Sideband, text: &str) {
    let mut said = Vec::new();
    push_said(&mut said, sideband, text);
    cutter.push_text(&said);
}

fn push_said(out: &mut Vec<u8>, sideband: Sideband, text: &str) {
    if sideband != Sideband::None {
        pkt::band_head(out, Band::Progress, text.len());
        out.extend_from_slice(text.as_bytes());
    }
}

/// The line a person sees last, as git words it.
fn total_line(counts: &Counts) -> String {
    let Counts { objects, deltas, copied, rewritten, thin, .. } = *counts;
    let reused = copied + rewritten + thin;
    format!("Total {objects} (delta {deltas}), reused {reused} (delta {deltas}), pack-reused {copied} (from 1)\n")
}

/// How often a person is told how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How often one looks whether somebody else's plan is ready.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Bytes of a large object deflated between two looks at the others.
const PART: usize = 64 * 1024;
/// Units of looking at one tag.
const COST_OF_TAG: usize = 150;
