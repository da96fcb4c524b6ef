//! The log: events of all rooms become lines on standard error.

use tracing_subscriber::filter::LevelFilter;

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each line, for programs.
    Json,
}

/// Starts logging. `verbose` is how often `-v` was given, `quiet` whether `-q` was.
pub fn start(format: Format, verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::WARN,
        (_, 0) => LevelFilter::INFO,
        (_, 1) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_writer(std::io::stderr);
    // A second start in one process keeps the first, which only tests meet.
    let _ = match format {
        Format::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
}
