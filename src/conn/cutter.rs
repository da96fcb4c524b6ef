//! One answer cut into frames of exactly one window: head, text, a plan in bands and chunks.
//!
//! Decides nothing about what is sent. Invariants: the concatenation of all frames is the whole answer; each frame but
//! the last is one window long (short by less than a band head where text ends within reach of the edge); the trailer
//! covers every pack byte that was cut.
//! Source: RFC 9112, 7.1 "Chunked Transfer Coding"; gitprotocol-v2(5), "packfile"; gitformat-pack(5), trailer.
//! Read first: `every_frame_is_one_window_but_the_last`.

use std::{collections::VecDeque, sync::Arc};

use super::frame::Frame;
use crate::{
    http::chunk,
    pack::{Checksum, Plan},
    proto::pkt::{self, Band, Sideband},
};

/// How the body is framed on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One chunk for each frame (HTTP/1.1).
    Chunked,
    /// As it is: the head gave its length, or the end of the connection ends it.
    Plain,
}

/// Cuts one answer into frames.
#[derive(Debug)]
pub struct Cutter {
    window: usize,
    framing: Framing,
    sideband: Sideband,
    /// Head of the response; part of the first frame.
    head: Vec<u8>,
    /// Body bytes of our own that come before the pack.
    text: VecDeque<u8>,
    /// A text shared with other answers, and how much of it is cut.
    shared: Option<(Arc<[u8]>, usize)>,
    pack: Option<PackSource>,
    ended: bool,
}

/// A plan being streamed.
#[derive(Debug)]
struct PackSource {
    plan: Arc<Plan>,
    /// Piece to continue with, and how much of it is cut.
    piece: usize,
    within: u64,
    /// Bytes of the pieces that are not yet cut.
    left: u64,
    checksum: Option<Checksum>,
    /// Pack bytes of our own behind the pieces: large objects, then the trailer.
    own: VecDeque<u8>,
    state: Tail,
    /// What follows the last band.
    after: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// More bytes may be pushed behind the pieces.
    Open,
    /// Only the trailer is missing.
    Closed,
    /// The trailer is in line.
    Sealed,
}

impl Cutter {
    /// An answer that starts with `head`, to be cut to windows of `window` bytes.
    pub fn new(window: usize, framing: Framing, sideband: Sideband, head: Vec<u8>) -> Self {
        Self { window, framing, sideband, head, text: VecDeque::new(), shared: None, pack: None, ended: false }
    }

    /// Adds body bytes of our own, sent before any pack data that is not yet cut.
    pub fn push_text(&mut self, bytes: &[u8]) {
        self.text.extend(bytes);
    }

    /// Adds a text that other answers send as well; behind [`Self::push_text`], before a pack. Once for each answer.
    pub fn push_shared(&mut self, text: Arc<[u8]>) {
        self.shared = Some((text, 0));
    }

    /// Starts the pack; `after` follows its last band.
    pub fn start_pack(&mut self, plan: Arc<Plan>, after: Vec<u8>) {
        let known = plan.has_own_trailer() || (plan.trailer().is_some() && plan.tail().is_empty());
        let checksum = (!known).then(|| Checksum::new(plan.kind()));
        let state = if plan.has_own_trailer() { Tail::Sealed } else { Tail::Open };
        let left = plan.size();
        self.pack = Some(PackSource { plan, piece: 0, within: 0, left, checksum, own: VecDeque::new(), state, after });
    }

    /// Adds pack bytes behind the pieces of the plan.
    pub fn push_pack(&mut self, bytes: &[u8]) {
        if let Some(pack) = &mut self.pack {
            pack.own.extend(bytes);
        }
    }

    /// Says that no more pack bytes will be pushed: the trailer follows what is there.
    pub fn close_pack(&mut self) {
        if let Some(pack) = self.pack.as_mut().filter(|pack| pack.state == Tail::Open) {
            pack.state = Tail::Closed;
        }
    }

    /// Lets go of the pack: what is not cut of it is not sent.
    pub fn drop_pack(&mut self) {
        self.pack = None;
    }

    /// Says that this is all: the last chunk follows what is there.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Body bytes at hand, band heads not counted.
    pub fn waiting(&self) -> u64 {
        let shared = self.shared.as_ref().map_or(0, |(text, cut)| text.len() - cut);
        let pack = self.pack.as_ref().map_or(0, |pack| pack.left + pack.own.len() as u64 + pack.after.len() as u64);
        (self.text.len() + shared) as u64 + pack
    }

    /// Whether everything was cut.
    pub fn is_done(&self) -> bool {
        self.ended && self.head.is_empty() && self.waiting() == 0 && !self.owes_last_chunk()
    }

    fn owes_last_chunk(&self) -> bool {
        self.framing == Framing::Chunked
    }

    /// The next frame: a full one, or what is at hand when `flush` is set or [`Self::end`] was called. `None` when there
    /// is nothing to cut yet.
    pub fn cut(&mut self, flush: bool) -> Option<Frame> {
        let digits = self.chunk_digits();
        let overhead = self.head.len() + if digits > 0 { digits + 2 + chunk::CHUNK_TAIL.len() } else { 0 };
        let room = self.window.saturating_sub(overhead).max(64);
        if self.waiting() < room as u64 && !flush && !self.ended {
            return None;
        }
        if self.waiting() == 0 && self.head.is_empty() && !(self.ended && self.owes_last_chunk()) {
            return None;
        }
        let mut frame = Frame::default();
        frame.push_own(&std::mem::take(&mut self.head));
        if self.waiting() > 0 {
            self.cut_chunk(&mut frame, digits, room);
        }
        if self.ended && self.waiting() == 0 && self.framing == Framing::Chunked {
            frame.push_own(chunk::LAST_CHUNK);
            self.framing = Framing::Plain;
        }
        Some(frame)
    }

    /// Digits of a chunk head for a full frame; 0 when nothing is chunked.
    fn chunk_digits(&self) -> usize {
        match self.framing {
            Framing::Plain => 0,
            // The digits take room from what they count: the fewest that say what is left beside them.
            Framing::Chunked => {
                let left = self.window.saturating_sub(self.head.len() + 4);
                (1..16).find(|digits| chunk::digits(left.saturating_sub(*digits).max(64)) <= *digits).unwrap_or(16)
            }
        }
    }

    fn cut_chunk(&mut self, frame: &mut Frame, digits: usize, room: usize) {
        let (at, before) = (frame.own_size(), frame.size() + digits + 2);
        if digits > 0 {
            frame.push_own(&[b'0'; 16][..digits]);
            frame.push_own(b"\r\n");
            self.fill(frame, room);
            let size = frame.size() - before;
            frame.patch_own(at, format!("{size:0digits$x}").as_bytes());
            frame.push_own(chunk::CHUNK_TAIL);
        } else {
            self.fill(frame, room);
        }
    }

    /// Moves up to `room` body bytes into the frame.
    fn fill(&mut self, frame: &mut Frame, room: usize) {
        let mut left = room;
        left -= move_bytes(&mut self.text, frame, left);
        if let Some((text, cut)) = &mut self.shared {
            let len = left.min(text.len() - *cut);
            if len > 0 {
                frame.push_shared(text, *cut, len);
                *cut += len;
                left -= len;
            }
        }
        if !self.text.is_empty() {
            return;
        }
        if let Some(pack) = &mut self.pack {
            pack.fill(frame, self.sideband, &mut left);
        }
    }
}

impl PackSource {
    /// Moves pack bytes into the frame, a band at a time, and what follows the pack.
    fn fill(&mut self, frame: &mut Frame, sideband: Sideband, left: &mut usize) {
        let band_head = sideband.head_size();
        loop {
            self.seal();
            let at_hand = self.left + self.own.len() as u64;
            if at_hand == 0 || *left <= band_head {
                break;
            }
            let payload = band_payload(at_hand, *left, sideband);
            if band_head > 0 {
                let mut head = Vec::with_capacity(band_head);
                pkt::band_head(&mut head, Band::Pack, payload);
                frame.push_own(&head);
            }
            self.take(frame, payload);
            *left -= band_head + payload;
        }
        if self.state == Tail::Sealed && self.left == 0 && self.own.is_empty() {
            let len = self.after.len().min(*left);
            frame.push_own(self.after.get(..len).unwrap_or_default());
            self.after.drain(..len);
            *left -= len;
        }
    }

    /// Puts the trailer in line once everything before it is cut.
    fn seal(&mut self) {
        if self.state != Tail::Closed || self.left > 0 || !self.own.is_empty() {
            return;
        }
        let trailer = match self.checksum.take() {
            Some(checksum) => Some(checksum.finish()),
            None => self.plan.trailer().copied(),
        };
        if let Some(trailer) = trailer {
            self.own.extend(trailer.as_bytes());
            if self.plan.tail().is_empty() {
                self.plan.learn_trailer(trailer);
            }
        }
        self.state = Tail::Sealed;
    }

    /// Moves exactly `len` pack bytes into the frame.
    fn take(&mut self, frame: &mut Frame, mut len: usize) {
        while len > 0 && self.left > 0 {
            let Some(piece) = self.plan.pieces().get(self.piece).copied() else { break };
            let part = piece.part(self.within, (piece.len() - self.within).min(len as u64));
            if let Some(checksum) = &mut self.checksum {
                checksum.update(self.plan.bytes(part));
            }
            frame.push_piece(&self.plan, part);
            (self.within, self.left) = (self.within + part.len(), self.left - part.len());
            if self.within == piece.len() {
                (self.piece, self.within) = (self.piece + 1, 0);
            }
            len -= part.len() as usize;
        }
        if len > 0 {
            let (first, second) = self.own.as_slices();
            if let Some(checksum) = &mut self.checksum {
                let from_first = first.len().min(len);
                checksum.update(&first[..from_first]);
                checksum.update(&second[..len - from_first]);
            }
            move_bytes(&mut self.own, frame, len);
        }
    }
}

/// Payload of the next band: as much as fits, but never so that less than a band with one byte fits behind it.
fn band_payload(at_hand: u64, left: usize, sideband: Sideband) -> usize {
    let head = sideband.head_size();
    let fits = usize::try_from(at_hand).unwrap_or(usize::MAX).min(left - head).min(sideband.payload_max());
    let rest = left - head - fits;
    if rest > 0 && rest <= head && at_hand > fits as u64 && fits > head + 1 { fits - (head + 1 - rest) } else { fits }
}

/// Moves up to `len` bytes from a queue into the frame's own; returns how many.
fn move_bytes(queue: &mut VecDeque<u8>, frame: &mut Frame, len: usize) -> usize {
    let len = len.min(queue.len());
    let (first, second) = queue.as_slices();
    let from_first = first.len().min(len);
    frame.push_own(&first[..from_first]);
    frame.push_own(&second[..len - from_first]);
    queue.drain(..len);
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::IoSlice;

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        frame.slices(&mut slices);
        assert!(slices.len() <= crate::limits::FRAME_SLICES_MAX);
        slices.iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    fn all_frames(cutter: &mut Cutter) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(frame) = cutter.cut(false) {
            assert!(frames.len() < 10_000, "a cutter that never ends");
            assert_eq!(bytes_of(&frame).len(), frame.size());
            frames.push(bytes_of(&frame));
        }
        frames
    }

    fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let end = memchr::memmem::find(bytes, b"\r\n").unwrap();
            let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
            bytes = &bytes[end + 2..];
            if size == 0 {
                assert_eq!(bytes, b"\r\n");
                return out;
            }
            out.extend_from_slice(&bytes[..size]);
            assert_eq!(&bytes[size..size + 2], b"\r\n");
            bytes = &bytes[size + 2..];
        }
    }

    fn unbanded(mut bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut out = Vec::new();
        while bytes.len() >= 5 && bytes[4] == 1 {
            let size = usize::from_str_radix(std::str::from_utf8(&bytes[..4]).unwrap(), 16).unwrap();
            out.extend_from_slice(&bytes[5..size]);
            bytes = &bytes[size..];
        }
        (out, bytes.to_vec())
    }

    #[test]
    fn every_frame_is_one_window_but_the_last() {
        let plan = Arc::new(Plan::of_own_bytes(&vec![7; 1_000_000]));
        for window in [4096, 10_000, 65_536, 262_144] {
            let mut cutter =
                Cutter::new(window, Framing::Chunked, Sideband::Large, b"HTTP/1.1 200 OK\r\n\r\n".to_vec());
            cutter.push_text(b"000dpackfile\n");
            cutter.start_pack(Arc::clone(&plan), b"0000".to_vec());
            cutter.close_pack();
            cutter.end();
            let frames = all_frames(&mut cutter);
            let (last, full) = frames.split_last().unwrap();
            assert!(last.len() <= window + 5);
            for frame in full {
                assert!(window - frame.len() <= 5, "a frame of {} in a window of {window}", frame.len());
            }
            assert!(frames.len() <= 1_000_000 / (window - 128) + 2);
        }
    }

    #[test]
    fn windows_around_a_power_of_sixteen_are_framed() {
        let plan = Arc::new(Plan::of_own_bytes(&vec![7; 300_000]));
        for window in (4090..4120).chain(65_530..65_550) {
            let mut cutter = Cutter::new(window, Framing::Chunked, Sideband::Large, b"head".to_vec());
            cutter.start_pack(Arc::clone(&plan), Vec::new());
            cutter.close_pack();
            cutter.end();
            let frames = all_frames(&mut cutter);
            assert!(frames.iter().rev().skip(1).all(|frame| frame.len() <= window), "{window}");
            assert_eq!(unbanded(&unchunked(&frames.concat()[4..])).0.len(), 300_020, "{window}");
        }
    }

    #[test]
    fn text_that_is_not_a_window_waits_for_more_unless_flushed() {
        let mut cutter = Cutter::new(4096, Framing::Chunked, Sideband::Large, b"head".to_vec());
        cutter.push_text(b"line");
        assert!(cutter.cut(false).is_none());
        assert_eq!(bytes_of(&cutter.cut(true).unwrap()), b"head004\r\nline\r\n");
        assert!(cutter.cut(true).is_none());
        cutter.end();
        assert_eq!(bytes_of(&cutter.cut(false).unwrap()), b"0\r\n\r\n");
        assert!(cutter.cut(false).is_none() && cutter.is_done());
    }

    #[test]
    fn a_known_trailer_is_sent_and_an_unknown_one_is_learnt() {
        let own = b"PACK\0\0\0\x02\0\0\0\0".to_vec();
        let plan = Arc::new(Plan::of_own_bytes(&own));
        let mut answers = Vec::new();
        for _ in 0..2 {
            let mut cutter = Cutter::new(4096, Framing::Plain, Sideband::None, Vec::new());
            cutter.start_pack(Arc::clone(&plan), Vec::new());
            cutter.close_pack();
            cutter.end();
            answers.push(all_frames(&mut cutter).concat());
            assert_eq!(plan.trailer().unwrap().to_string(), "029d08823bd8a8eab510ad6ac75c823cfd3ed31e");
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].len(), own.len() + 20);
    }

    proptest! {
        #[test]
        fn frames_joined_are_the_whole_answer(
            text in proptest::collection::vec(any::<u8>(), 0..300),
            pack in proptest::collection::vec(any::<u8>(), 1..40_000),
            pushed in proptest::collection::vec(any::<u8>(), 0..10_000),
            window in 4096usize..9000,
            small: bool,
        ) {
            let sideband = if small { Sideband::Small } else { Sideband::Large };
            let plan = Arc::new(Plan::of_own_bytes(&pack));
            let mut cutter = Cutter::new(window, Framing::Chunked, sideband, b"head".to_vec());
            cutter.push_text(&text);
            cutter.start_pack(plan, b"after".to_vec());
            let mut frames = all_frames(&mut cutter);
            cutter.push_pack(&pushed);
            cutter.close_pack();
            cutter.end();
            frames.extend(all_frames(&mut cutter));
            let answer = frames.concat();
            prop_assert_eq!(&answer[..4], b"head");
            let body = unchunked(&answer[4..]);
            prop_assert_eq!(&body[..text.len()], &text[..]);
            let (sent, rest) = unbanded(&body[text.len()..]);
            prop_assert_eq!(rest, b"after");
            let mut sum = Checksum::new(crate::oid::Kind::Sha1);
            sum.update(&pack);
            sum.update(&pushed);
            let expected = [&pack[..], &pushed, sum.finish().as_bytes()].concat();
            prop_assert_eq!(sent, expected);
        }
    }
}
