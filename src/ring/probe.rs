//! What the kernel allows becomes a back end and the reason for it, or a refusal that says what to do.
//!
//! Never guesses from a version number: it sets a ring up with the flags that will be used, and asks which operations it
//! has. Invariant: what is chosen here starts; whoever forced `--io uring` learns why it cannot.
//! Source: `io_uring_setup(2)`, errors; `io_uring_register(2)`, `IORING_REGISTER_PROBE`; kernel.org sysctl `io_uring_disabled`.
//! Read first: `each_refusal_names_cause_and_way_out`.

use std::{fmt, io};

use io_uring::{IoUring, Probe, opcode};

use super::Tuning;

/// What runs the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `io_uring`: one SQE for each read and each frame (Linux 6.0).
    Uring,
    /// epoll and one sendmsg(2) for each frame: runs anywhere.
    Epoll,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// `io_uring` where it works, epoll elsewhere.
    #[default]
    Auto,
    /// `io_uring` or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// The back end, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// What will run the loops.
    pub backend: Backend,
    /// One line for the start-up message.
    pub reason: Reason,
}

/// Why a back end was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was asked for by name.
    Asked,
    /// A ring was set up and has what we need.
    Works,
    /// `io_uring` cannot be used.
    Refused(Refusal),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("asked for"),
            Self::Works => f.write_str("this kernel has what it needs"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

/// Why `io_uring` cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// ENOSYS.
    #[error(
        "this kernel has no io_uring (ENOSYS: older than 5.1, built without it, or a sandbox such as gVisor): run on \
         Linux 6.0 or newer, or use --io epoll"
    )]
    Missing,
    /// EPERM, and `io_uring_disabled` is 2.
    #[error(
        "io_uring is switched off for everyone: set sysctl kernel.io_uring_disabled=0 (or =1 and give the user \
         CAP_SYS_ADMIN or the group in kernel.io_uring_group), or use --io epoll"
    )]
    Disabled,
    /// EPERM, and `io_uring_disabled` is 1.
    #[error(
        "io_uring is only for kernel.io_uring_group here (kernel.io_uring_disabled=1): add the user to that group, \
         set the sysctl to 0, or use --io epoll"
    )]
    OnlyGroup,
    /// EPERM or EACCES without a sysctl that explains it.
    #[error(
        "io_uring is forbidden (EPERM), most likely by the container's seccomp profile, as Docker's and containerd's \
         do by default: allow io_uring_setup, io_uring_enter and io_uring_register in the profile \
         (--security-opt seccomp=FILE), or use --io epoll"
    )]
    Forbidden,
    /// EINVAL.
    #[error(
        "this kernel refuses the ring flags (EINVAL: SINGLE_ISSUER needs Linux 6.0, and flags given by --ring must go \
         together): run a newer kernel, leave the flags out, or use --io epoll"
    )]
    Flags,
    /// ENOMEM.
    #[error(
        "no memory for a ring (ENOMEM): raise the memlock limit (ulimit -l) or the memory limit, use fewer --loops or \
         smaller --ring entries, or use --io epoll"
    )]
    NoMemory,
    /// EMFILE or ENFILE.
    #[error("no descriptor left for a ring: raise the limit of open files (ulimit -n)")]
    NoDescriptor,
    /// The ring lacks an operation.
    #[error("this kernel's io_uring lacks {0}: run on Linux 6.0 or newer, or use --io epoll")]
    NoOperation(&'static str),
    /// Anything else, with its errno.
    #[error("io_uring cannot be set up: {}; use --io epoll", io::Error::from_raw_os_error(*.0))]
    Other(i32),
}

/// Settles on a back end.
///
/// # Errors
/// `io_uring` was asked for and cannot be used. `Auto` never fails.
pub fn choose(choice: Choice, tuning: &Tuning) -> Result<Chosen, Refusal> {
    match (choice, try_ring(tuning)) {
        (Choice::Epoll, _) => Ok(Chosen { backend: Backend::Epoll, reason: Reason::Asked }),
        (Choice::Uring, Ok(())) => Ok(Chosen { backend: Backend::Uring, reason: Reason::Asked }),
        (Choice::Uring, Err(refusal)) => Err(refusal),
        (Choice::Auto, Ok(())) => Ok(Chosen { backend: Backend::Uring, reason: Reason::Works }),
        (Choice::Auto, Err(refusal)) => Ok(Chosen { backend: Backend::Epoll, reason: Reason::Refused(refusal) }),
    }
}

/// The builder of every ring.
pub(super) fn ring_builder(tuning: &Tuning) -> io_uring::Builder {
    let mut builder = IoUring::builder();
    if tuning.single_issuer {
        builder.setup_single_issuer();
    }
    if tuning.coop_taskrun {
        builder.setup_coop_taskrun();
    }
    if tuning.taskrun_flag {
        builder.setup_taskrun_flag();
    }
    if let Some(idle) = tuning.sqpoll {
        builder.setup_sqpoll(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
    }
    builder
}

const OPERATIONS: [(u8, &str); 7] = [
    (opcode::Nop::CODE, "NOP"),
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::ProvideBuffers::CODE, "PROVIDE_BUFFERS"),
];

fn try_ring(tuning: &Tuning) -> Result<(), Refusal> {
    let ring: IoUring = ring_builder(tuning).build(tuning.entries).map_err(|error| refusal_here(&error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| refusal_here(&error))?;
    lacking(|code| probe.is_supported(code))
}

fn lacking(is_supported: impl Fn(u8) -> bool) -> Result<(), Refusal> {
    match OPERATIONS.iter().find(|(code, _)| !is_supported(*code)) {
        Some((_, name)) => Err(Refusal::NoOperation(name)),
        None => Ok(()),
    }
}

/// Explains an error of ring set-up on this host.
pub(super) fn refusal_here(error: &io::Error) -> Refusal {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    refusal_of(error.raw_os_error().unwrap_or(0), disabled.as_deref())
}

fn refusal_of(errno: i32, disabled: Option<&str>) -> Refusal {
    match (errno, disabled.map(str::trim)) {
        (libc::ENOSYS, _) => Refusal::Missing,
        (libc::EPERM, Some("2")) => Refusal::Disabled,
        (libc::EPERM, Some("1")) => Refusal::OnlyGroup,
        (libc::EPERM | libc::EACCES, _) => Refusal::Forbidden,
        (libc::EINVAL, _) => Refusal::Flags,
        (libc::ENOMEM, _) => Refusal::NoMemory,
        (libc::EMFILE | libc::ENFILE, _) => Refusal::NoDescriptor,
        (errno, _) => Refusal::Other(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_cause_and_way_out() {
        for (errno, sysctl, refusal, words) in [
            (libc::ENOSYS, None, Refusal::Missing, ["ENOSYS", "--io epoll"]),
            (libc::EPERM, Some("2\n"), Refusal::Disabled, ["io_uring_disabled", "--io epoll"]),
            (libc::EPERM, Some("1\n"), Refusal::OnlyGroup, ["io_uring_group", "--io epoll"]),
            (libc::EPERM, Some("0\n"), Refusal::Forbidden, ["seccomp", "io_uring_setup"]),
            (libc::EPERM, None, Refusal::Forbidden, ["seccomp", "--io epoll"]),
            (libc::EINVAL, None, Refusal::Flags, ["6.0", "--ring"]),
            (libc::ENOMEM, None, Refusal::NoMemory, ["memlock", "--loops"]),
            (libc::EMFILE, None, Refusal::NoDescriptor, ["open files", "ulimit -n"]),
            (libc::EIO, None, Refusal::Other(libc::EIO), ["Input/output error", "--io epoll"]),
        ] {
            let said = refusal_of(errno, sysctl);
            assert_eq!(said, refusal);
            for word in words {
                assert!(said.to_string().contains(word), "{said} should say {word}");
            }
        }
    }

    #[test]
    fn lacking_operation_is_named() {
        assert_eq!(lacking(|_| true), Ok(()));
        assert_eq!(lacking(|code| code != opcode::SendMsg::CODE), Err(Refusal::NoOperation("SENDMSG")));
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused_by_name_and_auto_falls_back() {
        // COOP_TASKRUN tells the submitter not to be interrupted; with a kernel thread that submits there is none.
        let tuning = Tuning { sqpoll: Some(std::time::Duration::from_millis(1)), ..Tuning::default() };
        if choose(Choice::Uring, &Tuning::default()).is_err() {
            eprintln!("skipped: this host has no io_uring");
            return;
        }
        assert_eq!(choose(Choice::Uring, &tuning), Err(Refusal::Flags));
        let fallen = choose(Choice::Auto, &tuning).expect("auto never fails");
        assert_eq!(fallen, Chosen { backend: Backend::Epoll, reason: Reason::Refused(Refusal::Flags) });
        assert_eq!(choose(Choice::Epoll, &tuning).map(|chosen| chosen.backend), Ok(Backend::Epoll));
    }
}
