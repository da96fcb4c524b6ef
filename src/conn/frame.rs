//! Frames: what one write carries, as slices that stay where they are.
//!
//! Cuts nothing ([`super::cutter`] does) and writes nothing. Invariants: a frame holds what its slices point into; the
//! slices of one frame are never more than one write takes. Short slices are copied into the frame's own bytes, since an
//! iovec costs more than copying them (docs/decisions.md, "The gather cut").
//! Read first: `short_slices_are_gathered`.

use std::{io::IoSlice, sync::Arc};

use crate::{
    limits,
    pack::{Plan, plan::Piece},
};

/// The slices of one write, in order, and what they point into.
#[derive(Debug, Default)]
pub struct Frame {
    own: Vec<u8>,
    slices: Vec<Slice>,
    plan: Option<Arc<Plan>>,
    shared: Option<Arc<[u8]>>,
    size: usize,
}

#[derive(Clone, Copy, Debug)]
enum Slice {
    Own { start: u32, len: u32 },
    Shared { start: u32, len: u32 },
    Plan(Piece),
}

impl Frame {
    /// A frame of bytes of our own.
    pub fn of(bytes: &[u8]) -> Self {
        let mut frame = Self::default();
        frame.push_own(bytes);
        frame
    }

    /// Bytes in all.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The slices in order; they stay where they are as long as the frame is not changed or dropped.
    pub fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
        out.reserve_exact(self.slices.len());
        for slice in &self.slices {
            let bytes = match *slice {
                Slice::Own { start, len } => part(&self.own, start, len),
                Slice::Shared { start, len } => part(self.shared.as_deref().unwrap_or_default(), start, len),
                Slice::Plan(piece) => self.plan.as_deref().map_or(&[][..], |plan| plan.bytes(piece)),
            };
            out.push(IoSlice::new(bytes));
        }
    }

    /// What is left of the frame behind `written` bytes, with zeros for all that lies in a mapping.
    #[must_use]
    pub fn mended(&self, written: usize) -> Self {
        let (mut whole, mut rest) = (Vec::with_capacity(self.size), Self::default());
        for slice in &self.slices {
            match *slice {
                Slice::Own { start, len } => whole.extend_from_slice(part(&self.own, start, len)),
                Slice::Shared { start, len } => {
                    whole.extend_from_slice(part(self.shared.as_deref().unwrap_or_default(), start, len));
                }
                Slice::Plan(piece) => whole.resize(whole.len() + usize::try_from(piece.len()).unwrap_or(0), 0),
            }
        }
        rest.push_own(whole.get(written..).unwrap_or_default());
        rest
    }

    /// Appends a copy of `bytes`.
    pub fn push_own(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (start, len) = (self.own.len() as u32, bytes.len() as u32);
        self.own.extend_from_slice(bytes);
        self.size += bytes.len();
        match self.slices.last_mut() {
            Some(Slice::Own { start: before, len: had }) if *before + *had == start => *had += len,
            _ => self.slices.push(Slice::Own { start, len }),
        }
    }

    /// Overwrites own bytes at `at`, which were pushed before.
    pub fn patch_own(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.own.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// Bytes of its own so far: where the next own byte will stand.
    pub fn own_size(&self) -> usize {
        self.own.len()
    }

    /// Appends a piece of `plan`; a frame takes pieces of one plan only.
    pub fn push_piece(&mut self, plan: &Arc<Plan>, piece: Piece) {
        if piece.len() < self.gather() {
            self.push_own(plan.bytes(piece));
            return;
        }
        self.plan.get_or_insert_with(|| Arc::clone(plan));
        self.slices.push(Slice::Plan(piece));
        self.size += piece.len() as usize;
    }

    /// Appends `start..start + len` of `shared`; a frame takes parts of one such text only.
    pub fn push_shared(&mut self, shared: &Arc<[u8]>, start: usize, len: usize) {
        self.shared.get_or_insert_with(|| Arc::clone(shared));
        self.slices.push(Slice::Shared { start: start as u32, len: len as u32 });
        self.size += len;
    }

    /// Slices shorter than this are copied: nearly all of them once the frame has as many slices as a write takes.
    fn gather(&self) -> u64 {
        if self.slices.len() < limits::FRAME_SLICES_MAX * 3 / 4 { GATHER } else { GATHER_IN_NEED }
    }
}

fn part(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    let start = start as usize;
    bytes.get(start..start + len as usize).unwrap_or_default()
}

/// Bytes below which copying a slice is cheaper than an iovec for it.
const GATHER: u64 = 512;
/// The same when slices are running out: a window of slices no shorter than this fits into the last quarter.
const GATHER_IN_NEED: u64 = (limits::WINDOW_MAX / (limits::FRAME_SLICES_MAX / 8)) as u64;

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: u64 = GATHER - 1;

    fn plan() -> Arc<Plan> {
        Arc::new(Plan::of_own_bytes(&b"0123456789abcdef".repeat(16_384)))
    }

    fn piece(start: u64, len: u64) -> Piece {
        Piece::Inline { start, len }
    }

    fn lengths(frame: &Frame) -> Vec<usize> {
        let mut slices = Vec::new();
        frame.slices(&mut slices);
        slices.iter().map(|slice| slice.len()).collect()
    }

    fn text(frame: &Frame) -> Vec<u8> {
        let mut slices = Vec::new();
        frame.slices(&mut slices);
        slices.iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn short_slices_are_gathered() {
        let (plan, mut frame) = (plan(), Frame::of(b"head"));
        for part in [piece(0, SHORT), piece(SHORT, SHORT), piece(2 * SHORT, GATHER), piece(0, 1)] {
            frame.push_piece(&plan, part);
        }
        let short = SHORT as usize;
        assert_eq!(lengths(&frame), [4 + 2 * short, GATHER as usize, 1]);
        let planned = plan.bytes(piece(0, 2 * SHORT + GATHER));
        assert_eq!(text(&frame), [b"head", planned, &planned[..1]].concat());
        assert_eq!((frame.size(), frame.own_size()), (4 + 2 * short + 512 + 1, 4 + 2 * short + 1));
    }

    #[test]
    fn a_frame_of_the_largest_window_stays_within_the_slices_of_one_write() {
        let (plan, mut frame) = (plan(), Frame::default());
        while frame.size() < limits::WINDOW_MAX {
            // The shortest that is not copied, each followed by a byte of our own so that no two grow together.
            frame.push_piece(&plan, piece(0, frame.gather()));
            frame.push_own(b"-");
        }
        assert!(frame.slices.len() <= limits::FRAME_SLICES_MAX, "{} slices", frame.slices.len());
    }

    #[test]
    fn what_lies_in_a_mapping_is_mended_with_zeros_and_the_rest_is_kept() {
        let (plan, shared, mut frame) = (plan(), Arc::from(&b"shared text"[..]), Frame::of(b"own"));
        frame.push_piece(&plan, piece(0, 600));
        frame.push_shared(&shared, 7, 4);
        frame.push_own(b"end");
        let expected = [&b"own"[..], &[0; 600], b"textend"].concat();
        for written in [0, 2, 3, 300, 603, 605, 609, 610, 999] {
            let rest = frame.mended(written);
            assert_eq!(text(&rest), expected.get(written..).unwrap_or_default(), "behind {written} bytes");
        }
        assert!(frame.mended(610).is_empty() && !frame.mended(609).is_empty());
    }
}
