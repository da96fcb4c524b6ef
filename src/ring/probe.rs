//! Whether this kernel lets us have a ring, and what to do when it does not.
//!
//! Source: io_uring_setup(2), "ERRORS"; `io_uring_disabled` in the kernel's sysctl documentation.
//! Read first: `each_refusal_names_its_remedy`.

use std::io;

/// How rings are made: for measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Entries of the submission queue.
    pub entries: u32,
    /// `IORING_SETUP_SINGLE_ISSUER` (kernel 6.0)
    pub single_issuer: bool,
    /// `IORING_SETUP_COOP_TASKRUN` (kernel 5.19)
    pub coop_taskrun: bool,
    /// `IORING_SETUP_SQPOLL`, with its idle time in milliseconds.
    pub sqpoll: Option<u32>,
}

impl Default for Knobs {
    fn default() -> Self {
        Self { entries: 1024, single_issuer: true, coop_taskrun: true, sqpoll: None }
    }
}

impl Knobs {
    /// What the runtime makes its ring with.
    pub(super) fn builder(self) -> (u32, io_uring::Builder) {
        let mut builder = tokio_uring::uring_builder();
        builder.dontfork().setup_clamp();
        if self.single_issuer {
            builder.setup_single_issuer();
        }
        if self.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        if let Some(idle) = self.sqpoll {
            builder.setup_sqpoll(idle);
        }
        (self.entries, builder)
    }

    /// Reads `key=value,...`.
    ///
    /// # Errors
    /// A key or a value that is none, in words for who typed it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut knobs = Self::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not key=value"))?;
            let switch = || match value {
                "0" | "off" => Ok(false),
                "1" | "on" => Ok(true),
                _ => Err(format!("{key} takes on or off, not `{value}`")),
            };
            let number = || value.parse::<u32>().map_err(|_| format!("{key} takes a number, not `{value}`"));
            match key {
                "entries" => {
                    knobs.entries =
                        Some(number()?).filter(|n| (8..=32_768).contains(n)).ok_or("entries takes 8 to 32768")?;
                }
                "single-issuer" => knobs.single_issuer = switch()?,
                "coop-taskrun" => knobs.coop_taskrun = switch()?,
                "sqpoll" => knobs.sqpoll = Some(number()?).filter(|idle| *idle > 0),
                "defer-taskrun" => {
                    return Err("defer-taskrun hangs with this runtime: it never waits in io_uring_enter".to_owned());
                }
                _ => return Err(format!("`{key}` is none of entries, single-issuer, coop-taskrun, sqpoll")),
            }
        }
        Ok(knobs)
    }
}

/// Why there is no ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoRefused {
    /// The kernel has none.
    #[error("this kernel has no io_uring; it needs Linux 5.19 or newer, or start with --io epoll")]
    NoKernel,
    /// The administrator switched it off.
    #[error("io_uring is switched off (kernel.io_uring_disabled = {0}); set it to 0, or start with --io epoll")]
    Disabled(u8),
    /// A seccomp profile forbids it, as those of container runtimes do.
    #[error(
        "io_uring is forbidden here (EPERM), most likely by the seccomp profile of a container; allow io_uring_setup, \
         io_uring_enter and io_uring_register in it, or start with --io epoll"
    )]
    Forbidden,
    /// Locked memory ran out.
    #[error("no memory may be locked for a ring (ENOMEM); raise RLIMIT_MEMLOCK, or start with --io epoll")]
    NoMemory,
    /// These flags do not work together or here.
    #[error("the kernel does not take these --ring settings (EINVAL); leave them out")]
    Flags,
    /// Something else.
    #[error("a ring cannot be made ({0}); start with --io epoll")]
    Other(String),
}

/// Tries to make a ring as the loops will.
///
/// # Errors
/// Why it cannot be made.
pub fn probe(knobs: Knobs) -> Result<(), IoRefused> {
    let (_, builder) = knobs.builder();
    match builder.build(8) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(refusal(&error, std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok().as_deref()))
        }
    }
}

fn refusal(error: &io::Error, disabled: Option<&str>) -> IoRefused {
    let disabled = disabled.and_then(|text| text.trim().parse::<u8>().ok()).filter(|level| *level > 0);
    match (error.raw_os_error(), disabled) {
        (Some(libc::ENOSYS), _) => IoRefused::NoKernel,
        (Some(libc::EPERM), Some(level)) => IoRefused::Disabled(level),
        (Some(libc::EPERM | libc::EACCES), None) => IoRefused::Forbidden,
        (Some(libc::ENOMEM), _) => IoRefused::NoMemory,
        (Some(libc::EINVAL), _) => IoRefused::Flags,
        _ => IoRefused::Other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_remedy() {
        let refused = |code, disabled| refusal(&io::Error::from_raw_os_error(code), disabled);
        assert_eq!(refused(libc::ENOSYS, None), IoRefused::NoKernel);
        assert_eq!(refused(libc::EPERM, Some("2\n")), IoRefused::Disabled(2));
        assert_eq!(refused(libc::EPERM, Some("0\n")), IoRefused::Forbidden);
        assert_eq!(refused(libc::EPERM, None), IoRefused::Forbidden);
        assert_eq!(refused(libc::ENOMEM, None), IoRefused::NoMemory);
        assert_eq!(refused(libc::EINVAL, None), IoRefused::Flags);
        for code in [libc::ENOSYS, libc::EPERM, libc::ENOMEM, libc::EIO] {
            assert!(refused(code, None).to_string().contains("--io epoll"), "{code}");
        }
    }

    #[test]
    fn knobs_are_read_and_nonsense_is_explained() {
        let knobs = Knobs::parse("entries=64,single-issuer=off,coop-taskrun=0,sqpoll=20").unwrap();
        assert_eq!(knobs, Knobs { entries: 64, single_issuer: false, coop_taskrun: false, sqpoll: Some(20) });
        assert_eq!(Knobs::parse("").unwrap(), Knobs::default());
        for (text, word) in [
            ("x=1", "none of"),
            ("entries", "key=value"),
            ("entries=1", "8 to 32768"),
            ("entries=a", "number"),
            ("coop-taskrun=2", "on or off"),
            ("defer-taskrun=1", "hangs"),
        ] {
            assert!(Knobs::parse(text).unwrap_err().contains(word), "{text}");
        }
    }
}
