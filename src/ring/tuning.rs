//! `key=value` becomes a setting of the back end or of the sockets, for measuring one kernel feature at a time.
//!
//! Refuses what a back end cannot work with, by name, before anything is opened. Invariant: the default is what serving
//! wants; every other value is an experiment.
//! Source: `io_uring_setup(2)`, flags; tcp(7); socket(7).
//! Read first: `defer_taskrun_is_refused_because_it_hangs`.

use std::{str::FromStr, time::Duration};

/// Settings of rings and sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the kernel's, independent of the others")]
pub struct Tuning {
    /// Submission queue entries of each ring; `entries`.
    pub entries: u32,
    /// `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0); `single-issuer`.
    pub single_issuer: bool,
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19); `coop-taskrun`.
    pub coop_taskrun: bool,
    /// `IORING_SETUP_TASKRUN_FLAG` (Linux 5.19); `taskrun-flag`.
    pub taskrun_flag: bool,
    /// `IORING_SETUP_SQPOLL` with this idle time; `sqpoll`.
    pub sqpoll: Option<Duration>,
    /// Read buffers that all connections of one loop share; `buffers`.
    pub buffers: u16,
    /// Bytes of each; `buffer`.
    pub buffer_size: u32,
    /// Connections the kernel completes before they are accepted; `backlog`.
    pub backlog: i32,
    /// `TCP_NODELAY`; `nodelay`.
    pub nodelay: bool,
    /// `SO_SNDBUF`, which the kernel doubles; `None` leaves it to the kernel; `sndbuf`. It bounds what is in flight as well,
    /// so a small one ties the rate to the round trip, and to delayed acknowledgements: with 32 KiB, 1.6 MB/s on loopback.
    pub sndbuf: Option<u32>,
    /// `TCP_NOTSENT_LOWAT`: unsent bytes a socket may hold; `None` for no limit; `lowat`. On loopback a client that reads
    /// nothing pins 19 KB of the kernel's memory with 32 KiB, 96 KB with 64 KiB and 3.9 MB without; a fast one gets the
    /// same bytes per CPU second with each.
    pub lowat: Option<u32>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            entries: 1024,
            single_issuer: true,
            coop_taskrun: true,
            taskrun_flag: false,
            sqpoll: None,
            buffers: 64,
            buffer_size: 8 * 1024,
            backlog: 4096,
            nodelay: true,
            sndbuf: None,
            lowat: Some(32 * 1024),
        }
    }
}

/// One `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    key: Key,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Entries,
    SingleIssuer,
    CoopTaskrun,
    TaskrunFlag,
    Sqpoll,
    Buffers,
    Buffer,
    Backlog,
    Nodelay,
    Sndbuf,
    Lowat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Switch(bool),
    Number(u32),
    Off,
}

/// What a key takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Switch,
    Number { min: u32, max: u32, or_off: bool },
}

const KEYS: [(&str, Key, Takes); 11] = [
    ("entries", Key::Entries, Takes::Number { min: 8, max: 32_768, or_off: false }),
    ("single-issuer", Key::SingleIssuer, Takes::Switch),
    ("coop-taskrun", Key::CoopTaskrun, Takes::Switch),
    ("taskrun-flag", Key::TaskrunFlag, Takes::Switch),
    ("sqpoll", Key::Sqpoll, Takes::Number { min: 1, max: 60_000, or_off: true }),
    ("buffers", Key::Buffers, Takes::Number { min: 1, max: 4096, or_off: false }),
    ("buffer", Key::Buffer, Takes::Number { min: 512, max: 1024 * 1024, or_off: false }),
    ("backlog", Key::Backlog, Takes::Number { min: 1, max: 65_535, or_off: false }),
    ("nodelay", Key::Nodelay, Takes::Switch),
    ("sndbuf", Key::Sndbuf, Takes::Number { min: 4096, max: 64 * 1024 * 1024, or_off: true }),
    ("lowat", Key::Lowat, Takes::Number { min: 4096, max: 64 * 1024 * 1024, or_off: true }),
];

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSetting {
    /// There is no `=`.
    #[error("expected key=value, for example lowat=65536 or coop-taskrun=off")]
    NoValue,
    /// Nobody knows this key.
    #[error(
        "no such setting; there are entries, single-issuer, coop-taskrun, taskrun-flag, sqpoll, buffers, buffer, \
         backlog, nodelay, sndbuf and lowat"
    )]
    UnknownKey,
    /// The key is a switch.
    #[error("takes on or off")]
    NotASwitch,
    /// The key takes a number in a range.
    #[error("takes a number from {min} to {max}{}", if *.or_off { ", or off" } else { "" })]
    NotInRange {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
        /// Whether `off` would do as well.
        or_off: bool,
    },
    /// The back end runs deferred work only when it waits in the ring, and it waits in epoll.
    #[error(
        "defer-taskrun hangs at the first operation that does not end at once: tokio-uring waits in epoll, not in the ring"
    )]
    Defer,
}

impl FromStr for Setting {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        let (name, value) = text.split_once('=').ok_or(BadSetting::NoValue)?;
        if name == "defer-taskrun" {
            return Err(BadSetting::Defer);
        }
        let (_, key, takes) = KEYS.iter().find(|(known, ..)| *known == name).ok_or(BadSetting::UnknownKey)?;
        let value = match (takes, value) {
            (Takes::Switch, "on") => Value::Switch(true),
            (Takes::Switch, "off") => Value::Switch(false),
            (Takes::Switch, _) => return Err(BadSetting::NotASwitch),
            (Takes::Number { or_off: true, .. }, "off") => Value::Off,
            (&Takes::Number { min, max, or_off }, text) => {
                let number = text.parse().ok().filter(|number| (min..=max).contains(number));
                Value::Number(number.ok_or(BadSetting::NotInRange { min, max, or_off })?)
            }
        };
        Ok(Self { key: *key, value })
    }
}

impl Tuning {
    /// Applies one setting; a later one wins.
    pub fn apply(&mut self, setting: &Setting) {
        match setting.value {
            Value::Switch(on) => match setting.key {
                Key::SingleIssuer => self.single_issuer = on,
                Key::CoopTaskrun => self.coop_taskrun = on,
                Key::TaskrunFlag => self.taskrun_flag = on,
                _ => self.nodelay = on,
            },
            Value::Number(number) => self.apply_number(setting.key, Some(number)),
            Value::Off => self.apply_number(setting.key, None),
        }
    }

    fn apply_number(&mut self, key: Key, number: Option<u32>) {
        match (key, number) {
            (Key::Sqpoll, idle) => self.sqpoll = idle.map(|ms| Duration::from_millis(u64::from(ms))),
            (Key::Sndbuf, size) => self.sndbuf = size,
            (Key::Lowat, size) => self.lowat = size,
            (Key::Entries, Some(count)) => self.entries = count,
            (Key::Buffers, Some(count)) => self.buffers = u16::try_from(count).unwrap_or(u16::MAX),
            (Key::Buffer, Some(size)) => self.buffer_size = size,
            (Key::Backlog, Some(count)) => self.backlog = i32::try_from(count).unwrap_or(i32::MAX),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuned(text: &str) -> Result<Tuning, BadSetting> {
        let mut tuning = Tuning::default();
        tuning.apply(&text.parse()?);
        Ok(tuning)
    }

    #[test]
    fn every_key_reaches_its_field() {
        let default = Tuning::default();
        let text = [
            "entries=64",
            "single-issuer=off",
            "coop-taskrun=off",
            "taskrun-flag=on",
            "sqpoll=5",
            "buffers=3",
            "buffer=4096",
            "backlog=7",
            "nodelay=off",
            "sndbuf=8192",
            "lowat=off",
        ];
        assert_eq!(text.len(), KEYS.len());
        for text in text {
            assert_ne!(tuned(text).as_ref(), Ok(&default), "{text}");
        }
        assert_eq!(tuned("lowat=8192").map(|tuning| tuning.lowat), Ok(Some(8192)));
        assert_eq!(tuned("sqpoll=7").map(|tuning| tuning.sqpoll), Ok(Some(Duration::from_millis(7))));
    }

    #[test]
    fn defer_taskrun_is_refused_because_it_hangs() {
        assert_eq!(tuned("defer-taskrun=on"), Err(BadSetting::Defer));
    }

    #[test]
    fn odd_settings_are_refused_with_what_would_do() {
        assert_eq!(tuned("entries"), Err(BadSetting::NoValue));
        assert_eq!(tuned("nosuch=1"), Err(BadSetting::UnknownKey));
        assert_eq!(tuned("nodelay=1"), Err(BadSetting::NotASwitch));
        let range = BadSetting::NotInRange { min: 8, max: 32_768, or_off: false };
        for text in ["entries=7", "entries=", "entries=-8", "entries=99999999999", "entries=off"] {
            assert_eq!(tuned(text), Err(range.clone()), "{text}");
        }
        assert_eq!(range.to_string(), "takes a number from 8 to 32768");
    }
}
