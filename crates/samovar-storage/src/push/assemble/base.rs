//! [`Base`]: reads pieces of the base NAR of a recipe.

use std::io::{self, Read};

use samovar_nix::narinfo::Compression;
use sha2::{Digest as _, Sha256};
use zstd::bulk::Decompressor;
use zstd::zstd_safe::compress_bound;

use super::work::{AddWork, Granted};
use super::{AssembleError, FRAME_LEN_MIN, VERIFY_MEMORY};
use crate::error::StorageError;
use crate::metadata::StoredNar;
use crate::objects::NarFile;
use crate::push::PushError;
use crate::receive::PutError;
use crate::verify::{
    Limits, VerifyError, decompressed, fixed_window_len, frames_of, zstd_window_len,
};

/// Length of a NAR, and content length of a frame, up to which it is decompressed as a whole, in
/// bytes.
const MEMORY_LEN: usize = 4 << 20;

/// Maximum content length of a frame that is copied, in bytes. Readers decompress whole frames, so
/// longer ones are compressed again in pieces.
const COPIED_LEN_MAX: usize = 2 << 20;

/// Maximum number of frames of a base in which pieces can be found. More are only found in files
/// with very short frames.
const FRAME_COUNT_MAX: usize = 1 << 18;

/// Length of the pieces in which a file is hashed, in bytes.
const PIECE_LEN: usize = 128 << 10;

/// Maximum length of a zstd frame's header, in bytes.
const HEADER_LEN_MAX: usize = 18;

/// A base NAR and its file, before it is read.
pub(super) struct Source {
    nar: StoredNar,
    file: NarFile,
    form: Form,
}

/// The way in which a base is read.
enum Form {
    /// The base is short, and not in zstd. It is decompressed as a whole.
    Memory,
    /// The base is not compressed.
    Plain,
    /// The base consists of zstd frames of at most [`MEMORY_LEN`].
    Frames(Vec<Frame>),
    /// The base can only be read from start to end.
    Stream {
        /// Whether the file is one zstd frame.
        is_one_frame: bool,
    },
}

/// A zstd frame in the file of a base.
#[derive(Debug, Clone, Copy)]
struct Frame {
    /// Offset in the file.
    file_offset: u64,
    /// Compressed length, in bytes.
    len: usize,
    /// Offset of the content in the NAR.
    start: u64,
    content_len: usize,
}

/// A base NAR whose pieces can be read.
pub(super) enum Base<'a> {
    Memory(Vec<u8>),
    Plain(NarFile),
    Frames(Frames<'a>),
    Stream {
        reader: &'a mut dyn Read,
        /// Offset in the NAR of the next byte.
        position: u64,
    },
}

/// A base NAR in zstd frames.
pub(super) struct Frames<'a> {
    file: NarFile,
    frames: Vec<Frame>,
    decompressor: Decompressor<'static>,
    compressed: Vec<u8>,
    /// The content of the frame `loaded`.
    content: Vec<u8>,
    /// Index of the frame that was decompressed last.
    loaded: Option<usize>,
    /// Number of bytes that may still be decompressed.
    work_left: u64,
    add_work: AddWork<'a>,
}

impl Source {
    /// `index`: the index of the file's zstd frames.
    pub(super) fn new(nar: StoredNar, file: NarFile, index: Option<&[u8]>) -> Self {
        let form = match nar.compression {
            Compression::None => Form::Plain,
            Compression::Zstd => frames(&nar, index).map_or_else(
                || Form::Stream {
                    is_one_frame: index.is_none(),
                },
                Form::Frames,
            ),
            _ if nar.nar_size <= MEMORY_LEN as u64 => Form::Memory,
            _ => Form::Stream {
                is_one_frame: false,
            },
        };
        Self { nar, file, form }
    }

    /// Checks the SHA-256 of the file. Without this, damage of the file could become part of the
    /// new NAR, because the client may not know the hash of that NAR.
    pub(super) fn verify(&self, add_work: AddWork<'_>) -> Result<(), PushError> {
        let mut hasher = Sha256::new();
        let mut piece = vec![0; PIECE_LEN];
        let mut offset = 0;
        loop {
            match self.file.read_at(&mut piece, offset).map_err(of_read)? {
                0 => break,
                len => {
                    add_work(len as u64).map_err(PutError::from)?;
                    hasher.update(&piece[..len]);
                    offset += len as u64;
                }
            }
        }
        match hasher.finalize()[..] == self.nar.file_hash {
            true => Ok(()),
            false => Err(AssembleError::Damaged.into()),
        }
    }

    /// Returns the memory for decompressing the base, in bytes, besides that for the content of a
    /// frame.
    pub(super) fn window_len(&self, limits: &Limits) -> Result<u64, PushError> {
        let max = 1 << limits.zstd_window_log_max.min(63);
        Ok(match (&self.form, self.nar.compression) {
            (Form::Plain | Form::Frames(_), _) => 0,
            (Form::Stream { is_one_frame: true }, _) => {
                let mut header = [0; HEADER_LEN_MAX];
                let len = self.file.read_at(&mut header, 0).map_err(of_read)?;
                zstd_window_len(&header[..len]).min(max)
            }
            (_, Compression::Zstd) => max,
            (_, Compression::Xz) => limits.lzma_dictionary_max.into(),
            (_, compression) => fixed_window_len(compression, limits),
        })
    }

    /// Calls `read` with the base. `work_max`: maximum number of bytes to decompress.
    pub(super) fn open<T>(
        self,
        limits: &Limits,
        work_max: u64,
        add_work: AddWork<'_>,
        read: impl FnOnce(Base<'_>) -> Result<T, PushError>,
    ) -> Result<T, PushError> {
        let window_len = self.window_len(limits)?;
        let nar_size = self.nar.nar_size;
        match self.form {
            Form::Plain => read(Base::Plain(self.file)),
            Form::Frames(frames) => {
                let decompressor = Decompressor::new().map_err(of_read)?;
                read(Base::Frames(Frames {
                    file: self.file,
                    frames,
                    decompressor,
                    compressed: Vec::new(),
                    content: Vec::new(),
                    loaded: None,
                    work_left: work_max,
                    add_work,
                }))
            }
            Form::Memory | Form::Stream { .. } => {
                let is_short = matches!(self.form, Form::Memory);
                let convert = |failure| match failure {
                    VerifyError::Source(error) => error,
                    _ => io::Error::other(AssembleError::Damaged),
                };
                let with = |reader: &mut dyn Read| {
                    if !is_short {
                        let position = 0;
                        return read(Base::Stream { reader, position });
                    }
                    let mut content = Vec::new();
                    let read_all = reader.take(nar_size + 1).read_to_end(&mut content);
                    match read_all {
                        Ok(len) if len as u64 == nar_size => read(Base::Memory(content)),
                        Ok(_) => Err(AssembleError::Damaged.into()),
                        Err(error) => Err(of_read(error)),
                    }
                };
                let mut memory = Granted::new(window_len, add_work);
                let compression = self.nar.compression;
                decompressed(
                    &mut self.file.reader(0),
                    compression,
                    limits,
                    &mut memory,
                    &convert,
                    with,
                )
                .unwrap_or(Err(AssembleError::Damaged.into()))
            }
        }
    }
}

impl Base<'_> {
    /// Reads a piece of the NAR, which must lie within it.
    pub(super) fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), PushError> {
        match self {
            Self::Memory(content) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let piece = content.get(start..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(piece.ok_or(AssembleError::Damaged)?);
                Ok(())
            }
            Self::Plain(file) => file.read_exact_at(out, offset).map_err(of_read),
            Self::Frames(frames) => frames.read(offset, out),
            Self::Stream { reader, position } => {
                let skipped = offset.checked_sub(*position);
                let skipped = skipped.ok_or(AssembleError::Backward {
                    offset,
                    position: *position,
                })?;
                io::copy(&mut reader.take(skipped), &mut io::sink()).map_err(of_read)?;
                *position = offset + out.len() as u64;
                reader.read_exact(out).map_err(of_read)
            }
        }
    }

    /// Returns the offset of the first frame that starts after `offset`, in bytes. Returns `None`
    /// if there is none, or if the base is not in frames.
    pub(super) fn next_frame(&self, offset: u64) -> Option<u64> {
        let Self::Frames(Frames { frames, .. }) = self else {
            return None;
        };
        let next = frames.partition_point(|frame| frame.start <= offset);
        frames.get(next).map(|frame| frame.start)
    }

    /// Returns the index of the frame that starts at `offset` and that may be copied, if its
    /// content is at most `len` bytes long.
    pub(super) fn whole_frame(&self, offset: u64, len: u64) -> Option<usize> {
        let Self::Frames(Frames { frames, .. }) = self else {
            return None;
        };
        let index = frames
            .binary_search_by_key(&offset, |frame| frame.start)
            .ok()?;
        let frame = frames[index];
        let is_copied = (FRAME_LEN_MIN..=COPIED_LEN_MAX).contains(&frame.content_len)
            && frame.content_len as u64 <= len
            && frame.len <= compress_bound(frame.content_len);
        is_copied.then_some(index)
    }

    /// Reads the compressed bytes of a frame into the empty buffer `out`. Returns its content
    /// length, or `None` if decompressing the frame needs too much memory; then `out` stays empty.
    pub(super) fn read_frame(
        &mut self,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, PushError> {
        let Self::Frames(Frames { file, frames, .. }) = self else {
            return Ok(None);
        };
        let frame = frames[index];
        out.resize(frame.len, 0);
        file.read_exact_at(out, frame.file_offset)
            .map_err(of_read)?;
        if zstd_window_len(&out[..out.len().min(HEADER_LEN_MAX)]) > VERIFY_MEMORY {
            out.clear();
            return Ok(None);
        }
        Ok(Some(frame.content_len))
    }
}

impl Frames<'_> {
    fn read(&mut self, mut offset: u64, mut out: &mut [u8]) -> Result<(), PushError> {
        while !out.is_empty() {
            let next = self.frames.partition_point(|frame| frame.start <= offset);
            let index = next.checked_sub(1).ok_or(AssembleError::Damaged)?;
            self.load(index)?;
            let skipped = usize::try_from(offset - self.frames[index].start).unwrap_or(usize::MAX);
            let piece = self.content.get(skipped..).unwrap_or_default();
            let len = piece.len().min(out.len());
            if len == 0 {
                return Err(AssembleError::Damaged.into());
            }
            let (start, rest) = out.split_at_mut(len);
            start.copy_from_slice(&piece[..len]);
            out = rest;
            offset += len as u64;
        }
        Ok(())
    }

    /// Decompresses a frame, unless it was the last one.
    fn load(&mut self, index: usize) -> Result<(), PushError> {
        if self.loaded.replace(index) == Some(index) {
            return Ok(());
        }
        let frame = self.frames[index];
        let work_left = self.work_left.checked_sub(frame.content_len as u64);
        self.work_left = work_left.ok_or(AssembleError::Work)?;
        (self.add_work)(frame.content_len as u64).map_err(PutError::from)?;
        self.compressed.resize(frame.len, 0);
        let read = self
            .file
            .read_exact_at(&mut self.compressed, frame.file_offset);
        read.map_err(of_read)?;
        self.content.clear();
        self.content.reserve(frame.content_len);
        let decompressed = self
            .decompressor
            .decompress_to_buffer(&self.compressed, &mut self.content);
        match decompressed {
            Ok(len) if len == frame.content_len => Ok(()),
            _ => Err(AssembleError::Damaged.into()),
        }
    }
}

/// Returns the frames of a base that have content. Returns `None` if one of them is too long to be
/// decompressed as a whole. `index`: the index of the file's frames, `None` if it is one frame.
fn frames(nar: &StoredNar, index: Option<&[u8]>) -> Option<Vec<Frame>> {
    let (mut file_offset, mut start) = (0_u64, 0_u64);
    let mut frames = Vec::new();
    let lens = match index {
        Some(index) => frames_of(index)?,
        None => vec![(nar.file_size, nar.nar_size)],
    };
    for (len, content_len) in lens {
        if content_len > 0 {
            let (len, content_len) = (len.try_into().ok()?, content_len.try_into().ok()?);
            if content_len > MEMORY_LEN || len > 2 * MEMORY_LEN || frames.len() >= FRAME_COUNT_MAX {
                return None;
            }
            frames.push(Frame {
                file_offset,
                len,
                start,
                content_len,
            });
        }
        file_offset = file_offset.checked_add(len)?;
        start = start.checked_add(content_len)?;
    }
    ((file_offset, start) == (nar.file_size, nar.nar_size)).then_some(frames)
}

/// Converts an error of reading the file of a base.
fn of_read(error: io::Error) -> PushError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return AssembleError::Damaged.into();
    }
    match error.downcast::<AssembleError>() {
        Ok(error) => error.into(),
        Err(error) => StorageError::file("cannot read", "a base NAR", error).into(),
    }
}
