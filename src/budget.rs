//! The CPU budget: affinity and quotas become how many loops run, and where.
//!
//! Reads `/proc` and the cgroup files once, at start; everything else is pure and tested on literals. Invariant: there are
//! never more loops than the budget pays for, and always one.
//! Source: cgroups(7), "cpu.max"; the kernel's sched-bwc document, `cpu.cfs_quota_us`; cpuset(7).
//! Read first: `loops_follow_the_smaller_of_affinity_and_quota`.

use std::{fmt, path::Path};

/// What we may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// CPUs we may run on, ascending.
    pub cpus: Vec<usize>,
    /// CPUs worth of time each period, where that is limited.
    pub quota: Option<f64>,
}

/// Whether loops are bound to CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Pin {
    /// Where the CPUs are ours to take: no quota, or a cpuset that fits it.
    #[default]
    Auto,
    /// Whatever the quota says.
    Always,
    /// Never.
    Never,
}

/// How many loops run, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// At least one.
    pub loops: usize,
    /// One CPU for each loop; empty when the kernel places them.
    pub cpus: Vec<usize>,
}

impl Budget {
    /// Of this process.
    pub fn of_this_process() -> Self {
        let cpus = rustix::thread::sched_getaffinity(None)
            .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>())
            .unwrap_or_default();
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let read =
            |path: &str| std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'))).ok();
        Self { cpus: if cpus.is_empty() { vec![0] } else { cpus }, quota: quota(&groups, read) }
    }

    /// How many loops to run when the operator does not say, and where to put them.
    pub fn place(&self, loops: Option<usize>, pin: Pin) -> Placement {
        let paid = self.quota.map_or(usize::MAX, |quota| quota.ceil().max(1.0) as usize);
        let loops = loops.unwrap_or(self.cpus.len().min(paid)).max(1);
        let ours = self.cpus.len() <= paid;
        let pinned = match pin {
            Pin::Auto => ours && loops <= self.cpus.len(),
            Pin::Always => true,
            Pin::Never => false,
        };
        let cpus = if pinned { self.cpus.iter().copied().cycle().take(loops).collect() } else { Vec::new() };
        Placement { loops, cpus }
    }

    /// What to tell an operator whose quota is much smaller than the CPUs it is spread over.
    pub fn warning(&self) -> Option<String> {
        let quota = self.quota?;
        let cpus = self.cpus.len();
        (cpus as f64 >= 2.0 * quota).then(|| {
            format!(
                "{cpus} CPUs may be used but the quota pays for {quota}: work wanders over caches; \
                 give the group a cpuset of {} CPUs instead (AllowedCPUs= in systemd)",
                quota.ceil().max(1.0)
            )
        })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota {
            Some(quota) => write!(f, "{} CPUs, quota {quota}", self.cpus.len()),
            None => write!(f, "{} CPUs, no quota", self.cpus.len()),
        }
    }
}

/// The smallest quota of all groups this process is in, from the text of `/proc/self/cgroup`; `read` reads a file below
/// `/sys/fs/cgroup`.
pub fn quota(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<f64> {
    let mut smallest: Option<f64> = None;
    let mut consider = |found: Option<f64>| {
        if let Some(found) = found {
            smallest = Some(smallest.map_or(found, |known| known.min(found)));
        }
    };
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        for group in with_parents(path) {
            if controllers.is_empty() {
                consider(read(&format!("{group}/cpu.max")).and_then(|text| cpu_max(&text)));
            } else if controllers.split(',').any(|name| name == "cpu") {
                let file =
                    |name: &str| [controllers, "cpu"].iter().find_map(|mount| read(&format!("{mount}{group}/{name}")));
                consider(cfs_quota(
                    file("cpu.cfs_quota_us").as_deref().unwrap_or_default(),
                    file("cpu.cfs_period_us").as_deref().unwrap_or_default(),
                ));
            }
        }
    }
    smallest
}

/// A group and all groups around it, up to the root (the empty name).
fn with_parents(path: &str) -> Vec<&str> {
    let mut path = path.trim_end_matches('/');
    let mut all = vec![path];
    while let Some(at) = path.rfind('/') {
        path = &path[..at];
        all.push(path);
    }
    all
}

/// `max 100000` or `150000 100000`: microseconds each period.
fn cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next().unwrap_or("100000").parse().ok()?;
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// The same in two files; -1 is no quota.
fn cfs_quota(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(cpus: usize, quota: Option<f64>) -> Budget {
        Budget { cpus: (4..4 + cpus).collect(), quota }
    }

    #[test]
    fn loops_follow_the_smaller_of_affinity_and_quota() {
        for (cpus, quota, loops) in
            [(8, None, 8), (8, Some(2.0), 2), (8, Some(2.1), 3), (2, Some(7.5), 2), (4, Some(0.5), 1), (1, None, 1)]
        {
            assert_eq!(budget(cpus, quota).place(None, Pin::Never).loops, loops, "{cpus} {quota:?}");
        }
        assert_eq!(budget(8, Some(2.0)).place(Some(5), Pin::Never).loops, 5);
    }

    #[test]
    fn loops_are_pinned_only_where_the_cpus_are_ours() {
        assert_eq!(budget(2, None).place(None, Pin::Auto).cpus, [4, 5]);
        assert_eq!(budget(2, Some(2.0)).place(None, Pin::Auto).cpus, [4, 5]);
        assert_eq!(budget(8, Some(2.0)).place(None, Pin::Auto).cpus, [0usize; 0]);
        assert_eq!(budget(8, Some(2.0)).place(None, Pin::Always).cpus, [4, 5]);
        assert_eq!(budget(2, None).place(Some(4), Pin::Auto).cpus, [0usize; 0]);
        assert_eq!(budget(2, None).place(Some(4), Pin::Always).cpus, [4, 5, 4, 5]);
        assert_eq!(budget(2, None).place(None, Pin::Never).cpus, [0usize; 0]);
    }

    #[test]
    fn a_quota_of_half_the_cpus_is_warned_about_with_both_numbers() {
        let warning = budget(8, Some(4.0)).warning().unwrap();
        assert!(
            warning.contains("8 CPUs") && warning.contains("pays for 4") && warning.contains("cpuset"),
            "{warning}"
        );
        assert_eq!((budget(8, Some(4.1)).warning(), budget(8, None).warning()), (None, None));
    }

    #[test]
    fn the_smallest_quota_of_nested_groups_counts() {
        let files = |path: &str| match path {
            "/a/b/cpu.max" => Some("max 100000\n".to_owned()),
            "/a/cpu.max" => Some("150000 100000\n".to_owned()),
            "/cpu.max" => Some("400000 100000\n".to_owned()),
            "cpu,cpuacct/x/cpu.cfs_quota_us" => Some("50000\n".to_owned()),
            "cpu,cpuacct/x/cpu.cfs_period_us" => Some("100000\n".to_owned()),
            "cpu/y/cpu.cfs_quota_us" => Some("-1\n".to_owned()),
            "cpu/y/cpu.cfs_period_us" => Some("100000\n".to_owned()),
            _ => None,
        };
        assert_eq!(quota("0::/a/b\n", files), Some(1.5));
        assert_eq!(quota("0::/\n", files), Some(4.0));
        assert_eq!(quota("4:cpu,cpuacct:/x\n0::/a\n", files), Some(0.5));
        assert_eq!(quota("4:cpu:/y\n3:memory:/x\n", files), None);
        assert_eq!(quota("", files), None);
    }

    #[test]
    fn quotas_that_are_no_numbers_are_none() {
        for text in ["max 100000", "", "x 100000", "0 100000", "-5 100000", "100 0", "100 x"] {
            assert_eq!(cpu_max(text), None, "{text}");
        }
        assert_eq!((cpu_max("200000 100000"), cpu_max("50000")), (Some(2.0), Some(0.5)));
        assert_eq!(
            (cfs_quota("-1", "100000"), cfs_quota("", ""), cfs_quota("300000", "100000")),
            (None, None, Some(3.0))
        );
    }

    #[test]
    fn this_process_has_a_budget() {
        let budget = Budget::of_this_process();
        assert!(!budget.cpus.is_empty() && budget.quota.is_none_or(|quota| quota > 0.0));
    }
}
