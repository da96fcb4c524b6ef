//! The command line of packring: parse, settle everything, open the doors, exit codes.

use std::{io, io::Write, process::ExitCode, rc::Rc, sync::Arc};

use clap::Parser;
use packring::{
    budget::{Budget, Placement},
    conn::Rules,
    flags::{Arguments, Command, IoChoice, Serve},
    log,
    pack::shelf::Shelf,
    repo::{Catalogue, CatalogueOptions},
    ring::{self, Io, Setup},
    serve,
};

fn main() -> ExitCode {
    let Command::Serve(flags) = Arguments::parse().command;
    log::start(flags.log_format, flags.verbose, flags.quiet);
    match run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            tracing::warn!("connections were cut");
            ExitCode::from(3)
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Serve) -> io::Result<()> {
    let io = choose_io(flags)?;
    let catalogue = Arc::new(open_catalogue(flags)?);
    let rules = rules(flags);
    let budget = Budget::of_this_process();
    let placement = budget.place(flags.loops.0, flags.pin);
    let listeners = ring::listen(&flags.listen, io)?;
    let addresses = listeners.iter().map(ring::Listener::address).collect::<io::Result<Vec<_>>>()?;
    let setup = Setup {
        cpus: placement.cpus.clone(),
        knobs: flags.ring,
        drain: flags.drain,
        write_timeout: flags.write_timeout,
        connections_max: flags.max_connections.max(1),
        ..Setup::new(listeners, placement.loops, io)
    };
    announce(&catalogue, &addresses, io, &placement, &budget)?;
    ring::run(&setup, |number| {
        if number == 0 {
            let (catalogue, shelf) = (Arc::clone(&catalogue), Arc::clone(&rules.shelf));
            tokio::task::spawn_local(serve::sweep_for_ever(catalogue, shelf));
        }
        let (rules, catalogue) = (Rc::new(rules.clone()), Arc::clone(&catalogue));
        move |socket, peer| serve::serve(socket, peer, Rc::clone(&rules), Arc::clone(&catalogue))
    })
}

fn choose_io(flags: &Serve) -> io::Result<Io> {
    match flags.io {
        IoChoice::Epoll => Ok(Io::Epoll),
        IoChoice::Uring => ring::probe(flags.ring).map(|()| Io::Uring).map_err(io::Error::other),
        IoChoice::Auto => Ok(match ring::probe(flags.ring) {
            Ok(()) => Io::Uring,
            Err(refused) => {
                tracing::warn!("{refused}; going on with epoll");
                Io::Epoll
            }
        }),
    }
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
        shelf: Arc::new(Shelf::new(flags.memory)),
        ..Rules::default()
    }
}

/// One line for the log; and on standard output, for whoever started us with port 0, where we listen.
fn announce(
    catalogue: &Catalogue,
    addresses: &[std::net::SocketAddr],
    io: Io,
    placement: &Placement,
    budget: &Budget,
) -> io::Result<()> {
    let listed: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let way = match io {
        Io::Uring => "io_uring",
        Io::Epoll => "epoll",
    };
    let pinning =
        if placement.cpus.is_empty() { "not pinned".to_owned() } else { format!("on CPUs {:?}", placement.cpus) };
    tracing::info!(
        "serving {} at {} by {way}: {} loops, {pinning} (budget: {budget}); everything below that folder is public",
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
