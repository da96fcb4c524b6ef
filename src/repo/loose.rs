//! Loose objects: a file becomes what it says of itself, its content, or a stream of it.
//!
//! Interprets no content. Invariants: nothing over [`limits::OBJECT_INLINE_MAX`] is held; what inflates to another size than
//! the header says is broken, not cut.
//! Source: gitrepository-layout(5), "objects"; the header is type, space, size, NUL, all deflated.
//! Read first: `loose_objects_are_those_of_cat_file`.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::layout::{self, is_absence};
use crate::{
    limits,
    oid::{ObjectId, push_hex},
    pack::{Ask, Loose, ObjectType},
};

/// Answers what work on objects asks, looking in `folders` in turn.
pub fn answer(folders: &[PathBuf], ask: Ask) -> Loose {
    let (Ask::Look(id) | Ask::Read(id)) = ask;
    let mut stream = match open(folders, &id) {
        Ok(Some(stream)) => stream,
        Ok(None) => return Loose::Absent,
        Err(error) => {
            tracing::error!(%id, "loose object cannot be opened: {error}");
            return Loose::Broken;
        }
    };
    let Ok((object, size)) = stream.header() else { return Loose::Broken };
    if matches!(ask, Ask::Look(_)) || size > limits::OBJECT_INLINE_MAX {
        return Loose::Seen { object, size };
    }
    match stream.whole() {
        Ok(bytes) => Loose::Whole { object, bytes },
        Err(_) => Loose::Broken,
    }
}

/// A stream over the content of a loose object; nothing when there is none, or a broken one.
pub fn stream(folders: &[PathBuf], id: &ObjectId) -> Option<LooseStream> {
    let mut stream = open(folders, id).ok()??;
    stream.header().ok()?;
    Some(stream)
}

/// Path of a loose object below an object folder.
pub fn path_of(folder: &Path, id: &ObjectId) -> PathBuf {
    let mut hex = Vec::with_capacity(64);
    push_hex(&mut hex, id);
    let hex = String::from_utf8_lossy(&hex);
    folder.join(hex.get(..2).unwrap_or_default()).join(hex.get(2..).unwrap_or_default())
}

/// Only absence is absence: an object that cannot be opened may be all that connects two others.
fn open(folders: &[PathBuf], id: &ObjectId) -> io::Result<Option<LooseStream>> {
    let mut failed = None;
    for folder in folders {
        match layout::open(&path_of(folder, id)) {
            Ok(file) => return Ok(Some(LooseStream::new(file))),
            Err(error) if is_absence(&error) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// The content of one loose object, part by part.
#[derive(Debug)]
pub struct LooseStream {
    file: File,
    inflate: flate2::Decompress,
    /// Deflated bytes that were read and not used yet.
    input: Vec<u8>,
    /// Inflated bytes behind the header.
    output: Vec<u8>,
    left: u64,
    ended: bool,
}

impl LooseStream {
    fn new(file: File) -> Self {
        let inflate = flate2::Decompress::new(true);
        Self { file, inflate, input: Vec::new(), output: Vec::new(), left: 0, ended: false }
    }

    /// Reads the header. Must come first.
    fn header(&mut self) -> io::Result<(ObjectType, u64)> {
        self.inflate(HEADER_MAX)?;
        let end = memchr::memchr(0, &self.output).ok_or_else(broken)?;
        let header = self.output.get(..end).unwrap_or_default();
        let at = memchr::memchr(b' ', header).ok_or_else(broken)?;
        let (object, digits) = header.split_at_checked(at).ok_or_else(broken)?;
        let object = match object {
            b"commit" => ObjectType::Commit,
            b"tree" => ObjectType::Tree,
            b"blob" => ObjectType::Blob,
            b"tag" => ObjectType::Tag,
            _ => return Err(broken()),
        };
        let digits = digits.get(1..).filter(|digits| digits.iter().all(u8::is_ascii_digit)).ok_or_else(broken)?;
        let size = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(broken)?;
        self.output.drain(..=end);
        self.left = size;
        Ok((object, size))
    }

    fn whole(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let part = self.next_part(PART)?;
            if part.is_empty() {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&part);
        }
    }

    /// The next part of at most `size` bytes; empty at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is no sound object.
    pub fn next_part(&mut self, size: usize) -> io::Result<Vec<u8>> {
        if self.output.is_empty() && !self.ended {
            self.inflate(size)?;
        }
        let mut part = std::mem::take(&mut self.output);
        if part.len() > size {
            self.output = part.split_off(size);
        }
        self.left = self.left.checked_sub(part.len() as u64).ok_or_else(broken)?;
        if part.is_empty() && (self.left > 0 || !self.ended) { Err(broken()) } else { Ok(part) }
    }

    /// Inflates until there is output, at most `size` bytes of it, or the stream ends.
    fn inflate(&mut self, size: usize) -> io::Result<()> {
        let mut room = vec![0u8; size];
        loop {
            if self.input.is_empty() {
                let mut fresh = vec![0u8; PART];
                let count = self.file.read(&mut fresh)?;
                fresh.truncate(count);
                self.input = fresh;
            }
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(&self.input, &mut room, flate2::FlushDecompress::None);
            let status = status.map_err(|_| broken())?;
            let used = usize::try_from(self.inflate.total_in() - before_in).map_err(|_| broken())?;
            let gave = usize::try_from(self.inflate.total_out() - before_out).map_err(|_| broken())?;
            let was_at_end = self.input.is_empty();
            self.input.drain(..used.min(self.input.len()));
            self.output.extend_from_slice(room.get(..gave).unwrap_or_default());
            self.ended = status == flate2::Status::StreamEnd;
            if self.ended || gave > 0 {
                return Ok(());
            }
            if was_at_end {
                return Err(broken());
            }
        }
    }
}

fn broken() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Bytes a header takes at most, with room to spare.
const HEADER_MAX: usize = 64;
/// Bytes read from a file at a time.
const PART: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oid::{Kind, from_hex};
    use crate::repo::catalogue::tests::git;
    use std::{fs, io::Write};

    fn written(folder: &Path, content: &[u8]) -> ObjectId {
        fs::write(folder.join("content"), content).unwrap();
        let id = git(folder, &["hash-object", "-w", "content"]);
        from_hex(Kind::Sha1, id.trim().as_bytes()).unwrap()
    }

    #[test]
    fn loose_objects_are_those_of_cat_file() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "x"]);
        let path = folder.path().join("x");
        let folders = [folder.path().join("elsewhere"), path.join("objects")];
        let large: Vec<u8> = (0..3_000_000u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
        for content in [&b""[..], b"short", &large[..70_000], &large[..1024 * 1024]] {
            let id = written(&path, content);
            let object = ObjectType::Blob;
            assert_eq!(answer(&folders, Ask::Look(id)), Loose::Seen { object, size: content.len() as u64 });
            assert_eq!(answer(&folders, Ask::Read(id)), Loose::Whole { object, bytes: content.to_vec() });
        }
        let id = written(&path, &large);
        assert_eq!(answer(&folders, Ask::Read(id)), Loose::Seen { object: ObjectType::Blob, size: large.len() as u64 });
        let (mut stream, mut all) = (stream(&folders, &id).unwrap(), Vec::new());
        loop {
            let part = stream.next_part(10_000).unwrap();
            if part.is_empty() {
                break;
            }
            assert!(part.len() <= 10_000);
            all.extend(part);
        }
        assert!(all == large);
        assert_eq!(answer(&folders, Ask::Look(ObjectId::null(Kind::Sha1))), Loose::Absent);
    }

    #[test]
    fn damaged_objects_are_broken_and_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let id = ObjectId::null(Kind::Sha1);
        let path = path_of(folder.path(), &id);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let folders = [folder.path().to_owned()];
        let deflated = |content: &[u8]| {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        };
        for content in
            [&b"blob 4\0abc"[..], b"blob 2\0abc", b"blub 3\0abc", b"blob x\0abc", b"blob 3abc", b"blob -3\0abc", b""]
        {
            fs::write(&path, deflated(content)).unwrap();
            assert_eq!(answer(&folders, Ask::Read(id)), Loose::Broken, "{content:?}");
        }
        let good = deflated(b"blob 3\0abc");
        for size in 0..good.len() {
            fs::write(&path, &good[..size]).unwrap();
            assert_eq!(answer(&folders, Ask::Read(id)), Loose::Broken, "cut at {size}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(answer(&folders, Ask::Look(id)), Loose::Broken, "there and no file");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, &good).unwrap();
        assert_eq!(answer(&folders, Ask::Read(id)), Loose::Whole { object: ObjectType::Blob, bytes: b"abc".to_vec() });
    }
}
