//! A boxed frame and its slices become one message that the kernel may read until it says it is done.
//!
//! Copies nothing and looks at no byte. Invariant: from the moment an operation is made until its completion is seen,
//! nothing but the kernel touches the message, the list of slices or the frame; all three live in the operation.
//! Source: sendmsg(2), `struct msghdr`; `IoSlice` ("guaranteed to be ABI compatible with the iovec type on Unix").
//! Read first: `advance_leaves_exactly_the_rest`.

use std::{io::IoSlice, ptr::NonNull};

/// What one write carries: slices that stay where they are as long as the frame is neither changed nor dropped.
pub trait Frame: 'static {
    /// Appends the slices in order.
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>);

    /// Bytes of all slices together.
    fn size(&self) -> usize;
}

/// Slices the kernel takes in one write (`UIO_MAXIOV`); a frame with more is written in several.
const SLICES_MAX: usize = 1024;

/// A frame with the message header and the slices that describe what is left of it.
///
/// Everything is behind raw pointers on purpose: moving a `Lent` moves two pointers and claims nothing about what they
/// point to, so it may travel (into an operation, into the driver's list of abandoned operations) while the kernel reads.
pub(super) struct Lent<F: Frame> {
    parts: NonNull<Parts>,
    frame: NonNull<F>,
}

struct Parts {
    message: libc::msghdr,
    slices: Vec<IoSlice<'static>>,
    /// Index of the first slice that is not yet written whole.
    first: usize,
    /// Bytes that are not yet written.
    left: usize,
}

#[expect(unsafe_code, reason = "the kernel reads through pointers that no borrow can describe")]
impl<F: Frame> Lent<F> {
    /// Takes the frame and lists its slices.
    pub(super) fn new(frame: Box<F>) -> Self {
        let left = frame.size();
        let frame = NonNull::from(Box::leak(frame));
        let mut slices: Vec<IoSlice<'static>> = Vec::new();
        // SAFETY: `frame` was leaked just now, so it is valid and nobody else has it. The shared borrow made here, and
        // the slices taken from it, end in `into_frame` or `drop`, the only places that free or hand out the frame; no
        // `&mut F` is made before. So `'static` stands for "as long as this Lent".
        unsafe { frame.as_ref() }.slices(&mut slices);
        let sum: usize = slices.iter().map(|slice| slice.len()).sum();
        assert_eq!(sum, left, "a frame's size is that of its slices");
        // SAFETY: msghdr is a C struct of integers and pointers, for which all zero is the documented empty value.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        let parts = NonNull::from(Box::leak(Box::new(Parts { message, slices, first: 0, left })));
        let mut this = Self { parts, frame };
        this.point();
        this
    }

    /// Bytes that are not yet written.
    pub(super) fn left(&self) -> usize {
        self.parts().left
    }

    /// The message for the kernel: valid, and at the same address, until this is dropped.
    pub(super) fn message(&self) -> *const libc::msghdr {
        // SAFETY: only computes the address of a field of a live allocation; no reference is made.
        unsafe { &raw const (*self.parts.as_ptr()).message }
    }

    /// Takes note that `count` more bytes were written. Only between operations.
    pub(super) fn advance(&mut self, count: usize) {
        let parts = self.parts_mut();
        assert!(count <= parts.left, "the kernel wrote no more than it was given");
        parts.left -= count;
        let mut rest = parts.slices.get_mut(parts.first..).unwrap_or_default();
        IoSlice::advance_slices(&mut rest, count);
        let rest = rest.len();
        parts.first = parts.slices.len() - rest;
        self.point();
    }

    /// The frame back. Only between operations.
    #[expect(clippy::unnecessary_box_returns, reason = "it came in this box, and the next frame may reuse it")]
    pub(super) fn into_frame(self) -> Box<F> {
        let frame = self.frame;
        // SAFETY: see `drop`, which is skipped by `forget`; the slices go first.
        drop(unsafe { Box::from_raw(self.parts.as_ptr()) });
        std::mem::forget(self);
        // SAFETY: the pointer came from `Box::leak` in `new` and is given up here once: `self` was forgotten.
        unsafe { Box::from_raw(frame.as_ptr()) }
    }

    /// Points the message at what is left.
    fn point(&mut self) {
        let parts = self.parts_mut();
        let rest = parts.slices.get_mut(parts.first..).unwrap_or_default();
        parts.message.msg_iovlen = rest.len().min(SLICES_MAX) as _;
        parts.message.msg_iov = rest.as_mut_ptr().cast();
    }

    fn parts(&self) -> &Parts {
        // SAFETY: allocated in `new`, freed only with `self`; nothing writes to it while `self` is borrowed.
        unsafe { self.parts.as_ref() }
    }

    fn parts_mut(&mut self) -> &mut Parts {
        // SAFETY: as in `parts`; `&mut self` makes it the only reference, and callers hold no operation in flight:
        // an operation owns its `Lent`, so there is no `&mut` to it before the completion gave it back.
        unsafe { self.parts.as_mut() }
    }
}

#[expect(unsafe_code, reason = "gives back what `new` leaked")]
impl<F: Frame> Drop for Lent<F> {
    fn drop(&mut self) {
        // SAFETY: both pointers came from `Box::leak` in `new`; `into_frame`, the only other place that frees them,
        // forgets `self`. An operation drops its data only after its completion, so the kernel is done with both.
        drop(unsafe { Box::from_raw(self.parts.as_ptr()) });
        // SAFETY: as above; the slices into the frame are gone.
        drop(unsafe { Box::from_raw(self.frame.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use proptest::prelude::*;

    use super::*;

    struct Parted(Vec<Vec<u8>>);

    impl Frame for Parted {
        fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
            out.extend(self.0.iter().map(|part| IoSlice::new(part)));
        }
        fn size(&self) -> usize {
            self.0.iter().map(Vec::len).sum()
        }
    }

    fn rest<F: Frame>(lent: &Lent<F>) -> Vec<u8> {
        let parts = lent.parts();
        parts.slices[parts.first..].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    proptest! {
        #[test]
        fn advance_leaves_exactly_the_rest(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
            steps in prop::collection::vec(0usize..9, 0..9),
        ) {
            let whole: Vec<u8> = parts.concat();
            let mut lent = Lent::new(Box::new(Parted(parts.clone())));
            let mut at = 0;
            for step in steps {
                let step = step.min(whole.len() - at);
                lent.advance(step);
                at += step;
                prop_assert_eq!(rest(&lent), &whole[at..]);
                prop_assert_eq!(lent.left(), whole.len() - at);
            }
            prop_assert_eq!(lent.into_frame().0, parts);
        }
    }

    #[test]
    fn frame_of_more_slices_than_one_write_takes_is_described_in_parts() {
        let lent = Lent::new(Box::new(Parted(vec![vec![7]; SLICES_MAX + 5])));
        assert_eq!(lent.parts().message.msg_iovlen, SLICES_MAX);
        assert_eq!(lent.left(), SLICES_MAX + 5);
    }

    #[test]
    fn abandoned_frame_is_dropped_once() {
        struct Counted(std::rc::Rc<std::cell::Cell<u32>>);
        impl Frame for Counted {
            fn slices<'a>(&'a self, _: &mut Vec<IoSlice<'a>>) {}
            fn size(&self) -> usize {
                0
            }
        }
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let drops = std::rc::Rc::new(std::cell::Cell::new(0));
        drop(Lent::new(Box::new(Counted(drops.clone()))));
        assert_eq!(drops.get(), 1);
        drop(Lent::new(Box::new(Counted(drops.clone()))).into_frame());
        assert_eq!(drops.get(), 2);
    }
}
