//! The command line of packring: parse, settle everything, open the doors, exit codes.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    path::Path,
    process::ExitCode,
    rc::Rc,
    sync::Arc,
};

use clap::Parser;
use packring::{
    access::{Gate, watch::Watch},
    accounts,
    budget::{Budget, Placement},
    conn::Rules,
    doors::{self, Door},
    explain::{self, Asked},
    flags::{Arguments, CheckFlags, Command, PlanFlags, Serve},
    log,
    pack::{closure::Closures, shelf::Shelf},
    repo::{Catalogue, CatalogueOptions},
    ring::{self, Backend, Ended, Options, Reason, Stop},
    serve,
    tls::Certificates,
};

fn main() -> ExitCode {
    let flags = match Arguments::parse().command {
        Command::Serve(flags) => flags,
        Command::Plan(flags) => return explained(plan(&flags)),
        Command::Check(flags) => return explained(check(&flags)),
        Command::Access(flags) => {
            return explained(accounts::run(&flags).map(|text| (text, true)).map_err(Into::into));
        }
    };
    if let Err(error) = log::start(flags.log_format.into(), flags.verbose, flags.quiet) {
        eprintln!("{error}");
        return ExitCode::from(2);
    }
    match run(&flags) {
        Ok(ended) if ended.cut > 0 => {
            tracing::warn!("{} connections were cut", ended.cut);
            ExitCode::from(3)
        }
        Ok(ended) => {
            tracing::info!("served {} connections", ended.visits);
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what was found, or says why nothing was. The second part is whether all is well.
fn explained(outcome: Result<(String, bool), Box<dyn std::error::Error>>) -> ExitCode {
    match outcome {
        Ok((text, well)) => {
            let printed = io::stdout().write_all(text.as_bytes());
            if well && printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn plan(flags: &PlanFlags) -> Result<(String, bool), Box<dyn std::error::Error>> {
    let snapshot = open_at(&flags.repository)?.snapshot(b"/", false)?;
    let asked = Asked { wants: flags.want.clone(), haves: flags.have.clone(), all: flags.all };
    let explanation = explain::explain(&snapshot, &asked)?;
    let text = if flags.json { format!("{:#}\n", explanation.json()) } else { explanation.text() };
    Ok((text, true))
}

fn check(flags: &CheckFlags) -> Result<(String, bool), Box<dyn std::error::Error>> {
    let checked = explain::check(&open_at(&flags.root)?);
    Ok((explain::table(&checked), checked.iter().all(|one| one.fault.is_none())))
}

fn open_at(path: &Path) -> io::Result<Catalogue> {
    let options = CatalogueOptions { root: path.to_owned(), ..CatalogueOptions::default() };
    Catalogue::open(options).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn run(flags: &Serve) -> Result<Ended, Box<dyn std::error::Error>> {
    let tuning = flags.tuning();
    let chosen = ring::choose(flags.io.into(), &tuning)?;
    if let Reason::Refused(refusal) = &chosen.reason {
        tracing::warn!("{refusal}; going on with epoll");
    }
    let catalogue = Arc::new(open_catalogue(flags)?);
    let rules = rules(flags);
    let named = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let watch = flags
        .access
        .as_deref()
        .map(|path| Watch::start(path, Arc::clone(&rules.gate)).map_err(|fault| named(path, &fault)));
    let watch = watch.transpose()?;
    let budget = Budget::of_this_process();
    let placement = budget.place(flags.loops.0, flags.pin);
    let certificates = match (&flags.tls_cert, &flags.tls_key) {
        (Some(chain), Some(key)) => Some(Arc::new(Certificates::open(chain, key)?)),
        _ => None,
    };
    let doors = doors::open(flags, &tuning)?;
    let stop = Stop::new()?;
    stop.on_signals()?;
    announce(&catalogue, &doors, chosen.backend, &placement, &budget, &rules.gate)?;
    let at_door: Arc<[_]> = doors.iter().map(|door| certificates.clone().filter(|_| door.tls)).collect();
    let listeners = doors.into_iter().map(|door| door.listener).collect();
    let options = Options {
        tuning,
        loops: NonZeroUsize::new(placement.loops).unwrap_or(NonZeroUsize::MIN),
        cpus: placement.cpus,
        drain: flags.drain,
        write_timeout: flags.write_timeout,
        visits_max: NonZeroUsize::new(flags.max_connections).unwrap_or(NonZeroUsize::MIN),
        ..Options::new(chosen.backend, listeners)
    };
    let ended = ring::run(options, &stop, |number| {
        if number == 0 {
            let (catalogue, shelf) = (Arc::clone(&catalogue), Arc::clone(&rules.shelf));
            tokio::task::spawn_local(serve::idle::sweep_for_ever(Arc::clone(&catalogue), Arc::clone(&shelf)));
            tokio::task::spawn_local(serve::idle::verify_for_ever(Arc::clone(&catalogue), shelf));
            tokio::task::spawn_local(serve::idle::seal_for_ever(catalogue));
            if let Some(certificates) = &certificates {
                tokio::task::spawn_local(serve::idle::renew_for_ever(Arc::clone(certificates)));
            }
        }
        let (rules, catalogue) = (Rc::new(rules.clone()), Arc::clone(&catalogue));
        let at_door = Arc::clone(&at_door);
        move |socket, peer| {
            let certificates = at_door.get(socket.door()).cloned().flatten();
            serve::serve(socket, peer, Rc::clone(&rules), Arc::clone(&catalogue), certificates)
        }
    })?;
    // Writes down what was used last.
    drop(watch);
    Ok(ended)
}

fn open_catalogue(flags: &Serve) -> io::Result<Catalogue> {
    let named = |path: &std::path::Path, error: &io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    let server_config = match &flags.config {
        Some(path) => Some(std::fs::read(path).map_err(|error| named(path, &error))?),
        None => None,
    };
    if let Some(text) = &server_config {
        packring::repo::Settings::read(flags.defaults.into(), Some(text), b"").map_err(io::Error::other)?;
    }
    let options = CatalogueOptions {
        root: flags.root.clone(),
        export: flags.export.into(),
        defaults: flags.defaults.into(),
        server_config,
        namespaces: flags.namespaces.clone(),
        state: flags.state.clone(),
        follow_links: flags.follow_symlinks,
    };
    Catalogue::open(options).map_err(|error| named(&flags.root, &error))
}

fn rules(flags: &Serve) -> Rules {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Rules {
        window: flags.window,
        idle_timeout: flags.idle_timeout,
        head_timeout: flags.head_timeout,
        body_timeout: flags.body_timeout,
        session_id: format!("packring-{}-{}", since.as_secs(), std::process::id()),
        gate: Arc::new(Gate::new(flags.trusted_proxy.clone(), flags.wants.clone(), flags.max_failures)),
        shelf: Arc::new(Shelf::new(flags.memory / 4 * 3)),
        closures: Arc::new(Closures::new(flags.memory / 4)),
        ..Rules::default()
    }
}

/// One line for the log; and on standard output, for whoever started us with port 0, where we listen.
fn announce(
    catalogue: &Catalogue,
    doors: &[Door],
    backend: Backend,
    placement: &Placement,
    budget: &Budget,
    gate: &Gate,
) -> io::Result<()> {
    let listed: Vec<String> = doors.iter().map(Door::url).collect();
    let pinning =
        if placement.cpus.is_empty() { "not pinned".to_owned() } else { format!("on CPUs {:?}", placement.cpus) };
    let seen = match gate.directory() {
        Some(_) => "what the access database does not make public is private",
        None => "everything below that folder is public",
    };
    tracing::info!(
        "serving {} at {} by {backend}: {} loops, {pinning} (budget: {budget}); {seen}",
        catalogue.root().display(),
        listed.join(", "),
        placement.loops,
    );
    if let Some(warning) = budget.warning() {
        tracing::warn!("{warning}");
    }
    let has_tokens = gate.directory().is_some_and(|directory| directory.has_tokens());
    for door in doors.iter().filter(|door| has_tokens && door.is_open()) {
        tracing::warn!(
            "tokens sent to {} can be read on the way; use --tls-listen, or listen on loopback behind a proxy with TLS",
            door.url()
        );
    }
    let mut out = io::stdout().lock();
    for address in listed {
        writeln!(out, "listening on {address}")?;
    }
    out.flush()?;
    // For systemd's Type=notify; without it this does nothing.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    Ok(())
}
