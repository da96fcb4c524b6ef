//! Records of requests become log lines: one for each request, enough to answer "why was this clone slow".

use std::{net::SocketAddr, time::Duration};

use crate::conn::Record;

/// Writes the line of one request. `cpu` is what its visit used, without what the kernel did for it.
pub fn log(record: &Record, peer: SocketAddr, cpu: Duration) {
    let repository = String::from_utf8_lossy(&record.path);
    let counts = record.counts.unwrap_or_default();
    // Names only: the token's text is nowhere.
    let (principal, token) =
        record.caller.as_ref().map_or(("", ""), |caller| (&*caller.principal, &*caller.token_name));
    let source = record.source.unwrap_or(peer.ip());
    let turned_away = record.fault_of_token.map(|refused| refused.to_string()).unwrap_or_default();
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let planned_us = record.planned_after.map_or(0, micros);
    if let Some(fault) = &record.fault {
        tracing::error!(%peer, %repository, command = record.command, status = record.status, "{fault}");
    }
    tracing::info!(
        %peer,
        %source,
        principal,
        token,
        %repository,
        command = record.command,
        status = record.status,
        turned_away,
        refusal = record.refusal.as_deref().unwrap_or_default(),
        bytes = record.bytes,
        took_us = micros(record.took),
        cpu_us = micros(cpu),
        planned_us,
        way = record.way.unwrap_or_default(),
        objects = counts.objects,
        copied = counts.copied,
        rewritten = counts.rewritten,
        thin = counts.thin,
        retargeted = counts.retargeted,
        compared = counts.compared,
        deflated = counts.deflated,
        "request"
    );
}
