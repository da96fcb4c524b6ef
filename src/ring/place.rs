//! Placing a loop on a CPU. Source: sched_setaffinity(2).

use std::io;

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The CPU is not ours to take.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
        io::Error::new(io::Error::from(error).kind(), format!("CPU {cpu} cannot be taken ({error}); use --pin never"))
    })
}
