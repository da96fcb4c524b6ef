//! Events become lines on stderr, as text or as JSON.
//!
//! Never waits: a loop that logs must not stand still because nobody reads the pipe. Invariant: a line is written whole, or
//! dropped and counted, and the count is told with the next line that is written.
//! Source: pipe(7), `PIPE_BUF`; poll(2).
//! Read first: `lines_nobody_reads_are_dropped_and_counted`.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::event::{PollFd, PollFlags, Timespec};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `PACKRING_LOG` cannot be read.
    #[error("PACKRING_LOG: {0}; an example is PACKRING_LOG=packring=debug")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Someone else in this process logs already.
    #[error("logging was started before")]
    Started,
}

/// Starts logging to stderr: requests and what went wrong; more with `verbosity` 1, everything with 2, only what went wrong
/// when `quiet`. The variable `PACKRING_LOG` overrides it with a filter of its own.
///
/// # Errors
/// The filter cannot be read, or it was started before.
pub fn start(format: Format, verbosity: u8, quiet: bool) -> Result<(), LogError> {
    let filter = match std::env::var("PACKRING_LOG") {
        Ok(filter) => EnvFilter::try_new(filter)?,
        Err(_) => EnvFilter::try_new(if quiet { "warn" } else { level(verbosity) })?,
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Lines).with_target(false);
    let started = match format {
        Format::Text => {
            let ansi = io::IsTerminal::is_terminal(&io::stderr());
            tracing::subscriber::set_global_default(subscriber.with_ansi(ansi).finish())
        }
        Format::Json => tracing::subscriber::set_global_default(subscriber.json().flatten_event(true).finish()),
    };
    started.map_err(|_| LogError::Started)
}

fn level(verbosity: u8) -> &'static str {
    match verbosity {
        0 => "packring=info,warn",
        1 => "packring=debug,info",
        _ => "trace",
    }
}

/// Lines that were dropped because nobody read, since the start of the process.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Of these, told.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Bytes that a pipe takes without waiting once poll(2) calls it writable (`PIPE_BUF`). Longer lines are cut.
const LINE_SIZE_MAX: usize = 4096;

/// Makes the writer of each line.
struct Lines;

struct Line;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line
    }
}

impl io::Write for Line {
    /// One call is one line: tracing-subscriber formats an event into a buffer of its own first.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        write_or_drop(stderr.as_fd(), line, &DROPPED, &TOLD);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_or_drop(fd: BorrowedFd<'_>, line: &[u8], dropped: &AtomicU64, told: &AtomicU64) {
    let lost = dropped.load(Ordering::Relaxed);
    let untold = lost - told.load(Ordering::Relaxed).min(lost);
    if untold > 0 && write_now(fd, format!("{untold} log lines were dropped\n").as_bytes()) {
        told.store(lost, Ordering::Relaxed);
    }
    let written = match line.get(..LINE_SIZE_MAX) {
        Some(start) => write_now(fd, &[start.get(..LINE_SIZE_MAX - 1).unwrap_or_default(), b"\n"].concat()),
        None => write_now(fd, line),
    };
    if !written {
        dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether the line went out; it does not when that could wait.
fn write_now(fd: BorrowedFd<'_>, line: &[u8]) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let is_ready = matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1..))
        && fds.iter().all(|fd| fd.revents().contains(PollFlags::OUT));
    is_ready && rustix::io::write(fd, line).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(fd: &impl AsFd, mut left: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while left > 0 {
            let mut part = vec![0; left];
            let count = rustix::io::read(fd, &mut part).expect("readable");
            all.extend(&part[..count]);
            left -= count;
        }
        all
    }

    #[test]
    fn lines_nobody_reads_are_dropped_and_counted() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let (dropped, told) = (AtomicU64::new(0), AtomicU64::new(0));
        let line = [b'x'; 1000];
        let mut written = 0;
        while dropped.load(Ordering::Relaxed) < 3 {
            write_or_drop(writer.as_fd(), &line, &dropped, &told);
            written += 1;
        }
        written -= 3;
        drain(&reader, written * line.len());
        write_or_drop(writer.as_fd(), b"again\n", &dropped, &told);
        write_or_drop(writer.as_fd(), b"and again\n", &dropped, &told);
        let expected = b"3 log lines were dropped\nagain\nand again\n";
        assert_eq!(drain(&reader, expected.len()), expected);
    }

    #[test]
    fn line_that_is_too_long_is_cut_and_still_a_line() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let (dropped, told) = (AtomicU64::new(0), AtomicU64::new(0));
        write_or_drop(writer.as_fd(), &[b'x'; 5000], &dropped, &told);
        let got = drain(&reader, LINE_SIZE_MAX);
        assert_eq!((got.len(), got.last()), (LINE_SIZE_MAX, Some(&b'\n')));
    }

    #[test]
    fn every_verbosity_is_a_filter() {
        for verbosity in 0..4 {
            assert!(EnvFilter::try_new(level(verbosity)).is_ok());
        }
    }
}
