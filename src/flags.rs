//! The command line: one table of flags, each with its default and when to change it.
//!
//! Parses and explains; opens nothing. Read first: `sizes_and_times_are_read_with_their_units`, `tests/cli.rs`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};

use crate::{
    access::{WantsRule, gate::FAILURES_DEFAULT},
    budget::Pin,
    limits, log, repo, ring,
};

/// Serves Git repositories over smart HTTP, from mapped packs, one io_uring loop per CPU.
#[derive(Debug, Parser)]
#[command(name = "packring", version, about, propagate_version = true, after_help = EXIT_CODES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve every repository below a folder.
    Serve(Box<Serve>),
    /// Explain how a request would be answered, and what would make it cheaper; nothing is served.
    Plan(PlanFlags),
    /// Say who may read which repositories; works while a server runs, which sees a change within a second.
    Access(AccessFlags),
    /// Look at every repository below a folder: which would gain most from maintenance, which could not be served.
    Check(CheckFlags),
}

/// Flags of `plan`.
#[derive(Debug, Parser)]
pub struct PlanFlags {
    /// The repository
    pub repository: PathBuf,

    /// Revision that is wanted: a ref, full or short, or an id; repeat for more
    #[arg(long, value_name = "REV")]
    pub want: Vec<String>,

    /// Revision that the client has; repeat for more
    #[arg(long, value_name = "REV")]
    pub have: Vec<String>,

    /// Want every ref, as a mirror clone does
    #[arg(long)]
    pub all: bool,

    /// For programs: one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags of `check`.
#[derive(Debug, Parser)]
pub struct CheckFlags {
    /// Folder with the repositories
    #[arg(default_value = ".")]
    pub root: PathBuf,
}

/// Flags of `access`.
#[derive(Debug, Parser)]
pub struct AccessFlags {
    /// The access database, as `serve --access` names it
    #[arg(long, global = true, value_name = "FILE")]
    pub access: Option<PathBuf>,

    /// For programs: JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do
    #[command(subcommand)]
    pub verb: AccessVerb,
}

/// What `access` does.
#[derive(Debug, Subcommand)]
pub enum AccessVerb {
    /// Make a new database. From then on everything is private that is not made public
    Init,
    /// People and machines that have tokens
    #[command(subcommand)]
    Principal(PrincipalVerb),
    /// What they send with a request
    #[command(subcommand)]
    Token(TokenVerb),
    /// What they may read
    #[command(subcommand)]
    Grant(GrantVerb),
    /// What everyone may read
    #[command(subcommand)]
    Visibility(VisibilityVerb),
    /// List who may read a repository
    WhoCan {
        /// Its path below the served folder
        repository: String,
    },
    /// Say what a token may do with a repository, and why
    Explain {
        /// The token; `-` reads it from standard input, where no list of processes shows it; none is nobody
        #[arg(long, value_name = "TOKEN")]
        token: Option<String>,
        /// The path of the repository below the served folder
        repository: String,
    },
}

/// `access principal`
#[derive(Debug, Subcommand)]
pub enum PrincipalVerb {
    /// Add one, without tokens and grants
    Add {
        /// Letters, digits and ._@+-
        name: String,
    },
    /// Refuse all its tokens
    Disable {
        /// Of the principal
        name: String,
    },
    /// Accept its tokens again
    Enable {
        /// Of the principal
        name: String,
    },
    /// List all
    List,
}

/// `access token`
#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Make one and print it. It is never shown again
    Create {
        /// Whose it is
        principal: String,
        /// What it is for: laptop, ci
        name: String,
        /// When it ends: a time from now (90d, 12h), a day (2030-01-31) or a moment (2030-01-31T12:00:00Z); else never
        #[arg(long, value_name = "TIME", value_parser = moment)]
        expires: Option<Moment>,
        /// Repositories it is good for; repeat for more. Without, all that its principal may read
        #[arg(long, value_name = "PATTERN")]
        repo: Vec<String>,
    },
    /// Have it refused for good
    Revoke {
        /// Whose it is
        principal: String,
        /// Its name
        name: String,
    },
    /// List all, without their texts, which nobody knows
    List,
}

/// `access grant`
#[derive(Debug, Subcommand)]
pub enum GrantVerb {
    /// Let a principal read repositories; replaces the grant for the same pattern
    Add {
        /// Who
        principal: String,
        /// Which: team/app, team/* (one level), team/** (all below)
        pattern: String,
        /// Only refs that match, such as refs/heads/release/*; repeat for more
        #[arg(long, value_name = "PATTERN")]
        refs: Vec<String>,
    },
    /// Take a grant back
    Remove {
        /// Whose
        principal: String,
        /// As it was given
        pattern: String,
    },
    /// List all
    List,
}

/// `access visibility`
#[derive(Debug, Subcommand)]
pub enum VisibilityVerb {
    /// Make repositories public or private. Where several rules match, the one that says more decides
    Set {
        /// Which
        pattern: String,
        /// Whether everyone may read them
        visibility: Visibility,
    },
    /// Take a rule back
    Remove {
        /// As it was given
        pattern: String,
    },
    /// Say what holds for repositories without a rule
    Default {
        /// Whether everyone may read them
        visibility: Visibility,
    },
    /// List all rules
    List,
}

/// Whether everyone may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Visibility {
    /// Everyone
    Public,
    /// Whoever has a grant
    Private,
}

/// When something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Seconds from now.
    In(u64),
    /// Seconds since 1970.
    At(u64),
}

const EXIT_CODES: &str = "\
Exit codes: 0 it did what it was asked (for serve: a signal ended it and all connections finished);
1 it could not (the last line of the log says why; for check: a repository could not be served); 2 the command line is wrong;
3 connections were still open when the time of --drain was over, or a second signal came.";

/// Flags of `serve`.
#[derive(Debug, Parser)]
pub struct Serve {
    /// Folder with the repositories, bare or not, nested at any depth; may be a repository itself
    #[arg(default_value = ".")]
    pub root: PathBuf,

    /// Address to listen on; repeat for more. Port 0 takes a free one and prints it [default: 127.0.0.1:8080, unless there
    /// is a --tls-listen or whoever started us passed sockets (LISTEN_FDS)]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<SocketAddr>,

    /// Address to listen on for TLS; repeat for more. Needs --tls-cert and --tls-key
    #[arg(long, value_name = "ADDR", requires = "tls_cert")]
    pub tls_listen: Vec<SocketAddr>,

    /// PEM file with the certificate, followed by those between it and its authority; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Loops to run, each a thread. `auto` is the smaller of the CPUs we may use and the quota we are paid: more loops only
    /// wait for each other, fewer leave CPUs to others
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = loops)]
    pub loops: Loops,

    /// Bind each loop to a CPU. `auto` does where the CPUs are ours (no quota, or a cpuset that fits it)
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pub pin: Pin,

    /// Bytes of one write to a client, at most. Larger costs fewer system calls, smaller pins less for a slow client
    #[arg(long, value_name = "BYTES", default_value = "256KiB", value_parser = window)]
    pub window: usize,

    /// Way of input and output. `auto` takes io_uring where the kernel allows it, else epoll, and says which
    #[arg(long, value_enum, default_value_t = IoChoice::Auto)]
    pub io: IoChoice,

    /// Settings of rings and sockets, for measuring; serving needs none: entries, single-issuer, coop-taskrun,
    /// taskrun-flag, sqpoll=MS, buffers, buffer=BYTES, backlog, nodelay, sndbuf=BYTES, lowat=BYTES; switches take on or off
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',')]
    pub ring: Vec<ring::Setting>,

    /// Which repositories: all, or those with a file git-daemon-export-ok
    #[arg(long, value_enum, default_value_t = ExportChoice::All)]
    pub export: ExportChoice,

    /// What is offered where no configuration says anything: what mirrors want (partial clone, any object by id, refs by
    /// name, sizes), or exactly what stock git offers
    #[arg(long, value_enum, default_value_t = DefaultsChoice::Mirror)]
    pub defaults: DefaultsChoice,

    /// File in the format of git-config with settings for all repositories; each repository's own win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Folder in which proofs about packs are kept over restarts, made if it is not there: of each pack in use packring
    /// proves once, when it has nothing else to do, whether it is a whole, and then sends it without looking for what to
    /// send. Without this the proofs are made again after each start
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// The access database (see `packring access`): everything is private then that it does not make public. Without one
    /// everything below ROOT is public
    #[arg(long, value_name = "FILE")]
    pub access: Option<PathBuf>,

    /// What a client may have by id: whatever exists, as stock git's version 2 gives it (as-git), or only what visible refs
    /// reach (reachable); for some repositories with PATTERN= before it. Repeat for more; the pattern that says most decides.
    /// Grants limited to refs, namespaces and forks of private pools are always `reachable`
    #[arg(long, value_name = "[PATTERN=]MODE", value_parser = WantsRule::read)]
    pub wants: Vec<WantsRule>,

    /// Network of proxies whose X-Forwarded-For is believed, such as 10.0.0.0/8; repeat for more
    #[arg(long, value_name = "NETWORK")]
    pub trusted_proxy: Vec<ipnet::IpNet>,

    /// Tokens that may be refused in a minute from one address; further ones are answered 429
    #[arg(long, value_name = "N", default_value_t = FAILURES_DEFAULT)]
    pub max_failures: u32,

    /// Serve repositories that symbolic links below ROOT lead to, wherever they are. Without, links out of ROOT are refused
    #[arg(long)]
    pub follow_symlinks: bool,

    /// Show namespaces of one repository as repositories of their own, gitnamespaces(7): a request for PREFIX/NAME is
    /// answered from the namespace NAME of REPO, a path below ROOT. For forges that keep all forks in one store
    #[arg(long, value_name = "PREFIX=REPO", value_parser = namespaces)]
    pub namespaces: Vec<repo::Namespaces>,

    /// Memory for what is kept for the next client: three quarters for plans, one for what walks found
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = size)]
    pub memory: usize,

    /// Connections of all loops together; further ones wait to be accepted
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub max_connections: usize,

    /// How long running connections may finish after SIGTERM or SIGINT; a second signal ends at once
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub drain: Duration,

    /// How long a connection may wait between two requests
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = time)]
    pub idle_timeout: Duration,

    /// How long the head of a request may take
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = time)]
    pub head_timeout: Duration,

    /// How long the body of a request may take
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = time)]
    pub body_timeout: Duration,

    /// How long a client may take no byte of what is written to it. Slow is fine, dead is not
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = time)]
    pub write_timeout: Duration,

    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogChoice::Text)]
    pub log_format: LogChoice,

    /// Log more; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Log only warnings and errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl Serve {
    /// Rings and sockets as `--ring` asks.
    pub fn tuning(&self) -> ring::Tuning {
        let mut tuning = ring::Tuning::default();
        for setting in &self.ring {
            tuning.apply(setting);
        }
        tuning
    }
}

/// `--log-format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogChoice {
    /// For people
    Text,
    /// One JSON object for each line
    Json,
}

impl From<LogChoice> for log::Format {
    fn from(choice: LogChoice) -> Self {
        match choice {
            LogChoice::Text => Self::Text,
            LogChoice::Json => Self::Json,
        }
    }
}

impl From<IoChoice> for ring::Choice {
    fn from(choice: IoChoice) -> Self {
        match choice {
            IoChoice::Auto => Self::Auto,
            IoChoice::Uring => Self::Uring,
            IoChoice::Epoll => Self::Epoll,
        }
    }
}

/// `--loops`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops(pub Option<usize>);

/// `--io`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoChoice {
    /// io_uring if it works, else epoll
    Auto,
    /// io_uring or not at all
    Uring,
    /// epoll
    Epoll,
}

/// `--export`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportChoice {
    /// Every repository
    All,
    /// Marked ones
    Marked,
}

impl From<ExportChoice> for repo::Export {
    fn from(choice: ExportChoice) -> Self {
        match choice {
            ExportChoice::All => Self::All,
            ExportChoice::Marked => Self::Marked,
        }
    }
}

/// `--defaults`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefaultsChoice {
    /// For mirrors
    Mirror,
    /// As stock git
    Git,
}

impl From<DefaultsChoice> for repo::Defaults {
    fn from(choice: DefaultsChoice) -> Self {
        match choice {
            DefaultsChoice::Mirror => Self::Mirror,
            DefaultsChoice::Git => Self::Git,
        }
    }
}

fn loops(text: &str) -> Result<Loops, String> {
    match text {
        "auto" => Ok(Loops(None)),
        number => match number.parse() {
            Ok(0) | Err(_) => Err("takes `auto` or a number from 1 on".to_owned()),
            Ok(number) => Ok(Loops(Some(number))),
        },
    }
}

fn namespaces(text: &str) -> Result<repo::Namespaces, String> {
    let part = |text: &str| text.trim_matches('/').as_bytes().to_vec();
    match text.split_once('=') {
        Some((prefix, repository)) if !part(prefix).is_empty() => {
            Ok(repo::Namespaces { prefix: part(prefix), repository: part(repository) })
        }
        _ => Err("takes PREFIX=REPO, for example /forks=pool.git".to_owned()),
    }
}

fn moment(text: &str) -> Result<Moment, String> {
    let wrong = || "takes a time such as 90d or 12h, a day such as 2030-01-31, or a moment with its zone".to_owned();
    let seconds = |unit: u64, digits: &str| digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    if let Some(days) = text.strip_suffix('d') {
        return seconds(86_400, days).map(Moment::In).ok_or_else(wrong);
    }
    if let Some(hours) = text.strip_suffix('h') {
        return seconds(3_600, hours).map(Moment::In).ok_or_else(wrong);
    }
    let day = text.parse::<jiff::civil::Date>().ok();
    let day = day.and_then(|day| jiff::tz::Offset::UTC.to_timestamp(day.at(0, 0, 0, 0)).ok());
    let moment = text.parse::<jiff::Timestamp>().ok().or(day);
    moment.and_then(|moment| u64::try_from(moment.as_second()).ok()).map(Moment::At).ok_or_else(wrong)
}

fn window(text: &str) -> Result<usize, String> {
    let window = size(text)?;
    let (min, max) = (limits::WINDOW_MIN, limits::WINDOW_MAX);
    if (min..=max).contains(&window) {
        Ok(window)
    } else {
        Err(format!("a window is {min} to {max} bytes, not {window}: a write has to carry something"))
    }
}

fn size(text: &str) -> Result<usize, String> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1usize,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err(format!("`{unit}` is no unit of size; use KiB, MiB or GiB")),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| "takes a size such as 262144 or 256KiB".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let factor = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("`{unit}` is no unit of time; use ms, s, m or h")),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.map(Duration::from_millis).ok_or_else(|| "takes a time such as 30s or 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_table_of_flags_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_flag_is_explained() {
        let command = Arguments::command();
        for flag in command.get_subcommands().flat_map(clap::Command::get_arguments) {
            assert!(flag.get_help().is_some_and(|help| help.to_string().len() > 10), "{}", flag.get_id());
        }
        let verbs: Vec<_> = command.get_subcommands().flat_map(clap::Command::get_subcommands).collect();
        for verb in verbs.iter().copied().chain(verbs.iter().flat_map(|verb| verb.get_subcommands())) {
            assert!(verb.get_about().is_some_and(|text| text.to_string().len() > 7), "{}", verb.get_name());
        }
    }

    #[test]
    fn sizes_and_times_are_read_with_their_units() {
        assert_eq!(
            ["4096", "256KiB", "1m", "2GiB", "10b"].map(|text| size(text).unwrap()),
            [4096, 262_144, 1 << 20, 2 << 30, 10]
        );
        assert!(
            ["", "x", "1TB", "-1", "1.5k", "99999999999999999999", "9999999999999g"]
                .iter()
                .all(|text| size(text).is_err())
        );
        let millis = |text| time(text).unwrap().as_millis();
        let all = [millis("5"), millis("1500ms"), millis("2m"), millis("1h")];
        assert_eq!(all, [5_000, 1_500, 120_000, 3_600_000]);
        assert!(["", "s", "5d", "-1s"].iter().all(|text| time(text).is_err()));
    }

    #[test]
    fn ends_of_tokens_are_read_as_spans_days_and_moments() {
        assert_eq!((moment("90d"), moment("12h")), (Ok(Moment::In(90 * 86_400)), Ok(Moment::In(12 * 3600))));
        assert_eq!(moment("2001-09-09"), Ok(Moment::At(999_993_600)));
        assert_eq!(moment("2001-09-09T01:46:40Z"), Ok(Moment::At(1_000_000_000)));
        assert_eq!(moment("2001-09-09T03:46:40+02:00"), Ok(Moment::At(1_000_000_000)));
        for text in ["", "d", "soon", "-1d", "2001-13-01", "1960-01-01", "99999999999999999999d"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn windows_that_cannot_carry_anything_are_refused() {
        assert!(window("0").unwrap_err().contains("a window is"));
        assert!(window("4095").is_err() && window("17MiB").is_err());
        assert_eq!((window("4KiB"), window("16MiB")), (Ok(4096), Ok(16 << 20)));
    }
}
