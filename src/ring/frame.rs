//! What one write carries, as this room sees it: slices that stay where they are.

use std::io::IoSlice;

/// Bytes for one write. While the value is boxed and not touched, its slices must stay valid and where they are: the kernel
/// reads them after the call has returned.
pub trait Frame: 'static {
    /// The slices in order, at most 1024.
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>);
}

impl Frame for Vec<u8> {
    fn slices<'a>(&'a self, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(self));
    }
}
