//! A mapped file: an open file becomes bytes that stay where they are while anyone holds them.
//!
//! Knows no format. Together with the ring this is the only place with `unsafe`. Invariant: the address and length of a
//! mapping never change between its making and the drop of its last clone, so a write that the kernel still performs may
//! point into it. A file that is cut short while mapped is the operator's fault and ours to survive: the kernel answers
//! `EFAULT` to a write from a lost page, and reading one raises `SIGBUS`.
//! Read first: `mapping_outlives_the_removal_of_its_file`.
#![expect(unsafe_code, reason = "mapping a file is the one thing only the kernel can promise")]

use std::{fs::File, io, ops::Deref, sync::Arc};

/// Read-only bytes of one file. Cloning is cheap and shares the mapping.
#[derive(Clone, Debug)]
pub struct Mapping(Arc<memmap2::Mmap>);

impl Mapping {
    /// Maps the whole of `file`, whose descriptor may be closed afterwards.
    ///
    /// # Errors
    /// What `mmap(2)` reports: most often `ENOMEM` when `vm.max_map_count` is reached.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and read-only. Git never writes into a finished pack or sidecar file: it writes a
        // new one and renames or unlinks, which leaves our pages alone. A foreign program that truncates the file can
        // make pages vanish, which ends in EFAULT or SIGBUS but never in memory of ours being altered; one that
        // overwrites it can change bytes between two reads, so no reader of a mapping may check a length and then trust
        // a second read of it without bounds (all of them go through slices).
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Self(Arc::new(map)))
    }

    /// Asks the kernel to read these bytes in before they are touched; advice, so nothing is told back.
    pub fn will_need(&self, start: usize, len: usize) {
        let end = start.saturating_add(len).min(self.0.len());
        if let Some(len) = end.checked_sub(start).filter(|len| *len > 0) {
            let _ = self.0.advise_range(memmap2::Advice::WillNeed, start, len);
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn mapping_outlives_the_removal_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("entry");
        File::create(&path).unwrap().write_all(b"still here").unwrap();
        let map = Mapping::of(&File::open(&path).unwrap()).unwrap();
        let before = map.as_ptr();
        std::fs::remove_file(&path).unwrap();
        let clone = map.clone();
        drop(map);
        assert_eq!((&*clone, clone.as_ptr()), (&b"still here"[..], before));
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        assert!(Mapping::of(&tempfile::tempfile().unwrap()).unwrap().is_empty());
    }
}
