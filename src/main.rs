//! The command line of packring: parse, settle everything, open the doors, exit codes.

use std::{
    io::{self, Write},
    net::SocketAddr,
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
    explain::{self, Asked},
    flags::{Arguments, CheckFlags, Command, PlanFlags, Serve},
    log,
    pack::{closure::Closures, shelf::Shelf},
    repo::{Catalogue, CatalogueOptions},
    ring::{self, Backend, Ended, Listener, Options, Reason, Stop},
    serve,
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
    let listen = |address: &SocketAddr| {
        let named = |error| io::Error::other(format!("cannot listen on {address}: {error}"));
        Listener::bind(*address, &tuning).map_err(named)
    };
    let listeners = flags.listen.iter().map(listen).collect::<io::Result<Vec<_>>>()?;
    let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    let stop = Stop::new()?;
    stop.on_signals()?;
    announce(&catalogue, &addresses, chosen.backend, &placement, &budget, &rules.gate)?;
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
        }
        let (rules, catalogue) = (Rc::new(rules.clone()), Arc::clone(&catalogue));
        move |socket, peer| serve::serve(socket, peer, Rc::clone(&rules), Arc::clone(&catalogue))
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
    addresses: &[SocketAddr],
    backend: Backend,
    placement: &Placement,
    budget: &Budget,
    gate: &Gate,
) -> io::Result<()> {
    let listed: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
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
    let mut out = io::stdout().lock();
    for address in listed {
        writeln!(out, "listening on {address}")?;
    }
    out.flush()
}
