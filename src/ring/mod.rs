//! Frames become write SQEs, accepted sockets become visits, one loop per CPU of the budget.
//!
//! Knows no Git and no HTTP, gives no meaning to a byte, and never lets memory go that the kernel still holds: what an
//! operation points to is the operation's own until its completion. A connection stays on the loop that accepted it.
//! Source: `io_uring_enter(2)`, `io_uring_setup(2)`, tcp(7), socket(7).
//! Read first: `frame_larger_than_the_socket_buffers_arrives_whole` in `tests.rs`.
//!
//! ```no_run
//! use packring::ring::{self, Arrival, Choice, Listener, Options, Stop, Tuning};
//!
//! struct Text(Vec<u8>);
//! impl ring::Frame for Text {
//!     fn slices<'a>(&'a self, out: &mut Vec<std::io::IoSlice<'a>>) {
//!         out.push(std::io::IoSlice::new(&self.0));
//!     }
//!     fn size(&self) -> usize {
//!         self.0.len()
//!     }
//! }
//!
//! let tuning = Tuning::default();
//! let chosen = ring::choose(Choice::Auto, &tuning)?;
//! let listener = Listener::bind("127.0.0.1:0".parse()?, &tuning)?;
//! println!("listening on {} with {}: {}", listener.address(), chosen.backend, chosen.reason);
//! let stop = Stop::new()?;
//! stop.on_signals()?;
//! let options = Options::new(chosen.backend, vec![listener]);
//! let ended = ring::run(options, &stop, |_loop_number| {
//!     // Here is the place for what the visits of one loop share (an Rc will do).
//!     move |mut socket: ring::Socket, _peer| async move {
//!         let mut bytes = Vec::new();
//!         while let Ok(Arrival::Bytes(_)) = socket.idle(&mut bytes, None).await {
//!             let (sent, _frame) = socket.send(Box::new(Text(std::mem::take(&mut bytes)))).await;
//!             if sent.is_err() {
//!                 return;
//!             }
//!         }
//!         socket.close();
//!     }
//! })?;
//! println!("{} visits, {} cut short", ended.visits, ended.cut);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod epoll;
mod frame;
mod listen;
mod place;
mod probe;
mod run;
mod socket;
mod stall;
mod state;
mod stop;
#[cfg(test)]
mod tests;
mod tuning;
mod uring;

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

pub use frame::Frame;
pub use listen::Listener;
pub use probe::{Backend, Choice, Chosen, Reason, Refusal, choose};
pub use run::{Ended, Options, RunError, run};
pub use socket::{Arrival, Broken, Socket};
pub use stop::Stop;
pub use tuning::{BadSetting, Setting, Tuning};

/// Gives the loop back once: every completion and readiness that waits is handled before this returns.
///
/// On uring this is one no-op through the ring: `yield_now` would skip the submission of what others queued, and starve
/// them. Only inside a visit.
pub async fn pause() {
    match state::backend_here() {
        Some(Backend::Uring) => uring::no_op().await,
        Some(Backend::Epoll) | None => tokio::task::yield_now().await,
    }
}

/// Time since the first call in this process; never goes back.
pub fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
