//! A loop number becomes a CPU.
//!
//! Chooses no CPUs: the budget does. Invariant: a loop is pinned before it allocates anything, so that its memory is near.
//! Source: `sched_setaffinity(2)`.
//! Read first: `pinned_thread_runs_on_one_cpu`.

use std::io;

use rustix::thread::CpuSet;

/// The CPU of loop `number` among the CPUs we may take; `None` without any.
pub(super) fn cpu_of(number: usize, cpus: &[usize]) -> Option<usize> {
    cpus.get(number.checked_rem(cpus.len())?).copied()
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// The CPU is not there or not ours.
pub(super) fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_go_round_the_cpus() {
        assert_eq!([0, 1, 2].map(|number| cpu_of(number, &[4, 6])), [Some(4), Some(6), Some(4)]);
        assert_eq!(cpu_of(0, &[]), None);
    }

    #[test]
    fn pinned_thread_runs_on_one_cpu() {
        std::thread::spawn(|| {
            let ours = rustix::thread::sched_getaffinity(None).expect("an affinity mask");
            let cpu = (0..CpuSet::MAX_CPU).find(|cpu| ours.is_set(*cpu)).expect("one CPU at least");
            pin(cpu).expect("pinned");
            let now = rustix::thread::sched_getaffinity(None).expect("an affinity mask");
            assert_eq!((now.count(), now.is_set(cpu)), (1, true));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn cpu_out_of_range_is_refused() {
        assert!(pin(usize::MAX).is_err());
    }
}
