//! [`Decompressor`]: returns the content of a compressed [`Input`] piece by piece.

mod brotli;
mod lz4;
mod lzip;
mod xz;
mod zstd;

use std::io::{self, BufRead, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use samovar_nix::narinfo::Compression;

pub use self::zstd::window_len as zstd_window_len;

use super::input::Input;
use super::{Limits, Refusal};

/// Maximum length of a piece, in bytes. It is the block size of zstd.
const PIECE_LEN: usize = 128 << 10;

/// Decompresses an input: one stream, or several streams of the same format in a row.
pub(super) struct Decompressor<'a> {
    codec: Codec<'a>,
    compression: Compression,
    piece: Box<[u8]>,
    /// For uncompressed input: length of the last returned piece, which is still in the input's
    /// buffer.
    given_len: usize,
}

#[expect(
    clippy::large_enum_variant,
    reason = "one lives on the stack of each upload"
)]
enum Codec<'a> {
    None(Input<'a>),
    Brotli(brotli::Reader<'a>),
    Bzip2(MultiBzDecoder<Input<'a>>),
    Gzip(MultiGzDecoder<Input<'a>>),
    Lz4(lz4::Reader<'a>),
    Lzip(lzip::Reader<'a>),
    Xz(xz::Reader<'a>),
    Zstd(zstd::Reader<'a>),
}

/// Returns the number of bytes to reserve before decompressing. The readers of zstd and xz reserve
/// memory themselves, when they read the size of the window or dictionary in a header.
#[must_use]
pub fn fixed_window_len(compression: Compression, limits: &Limits) -> u64 {
    match compression {
        Compression::Brotli => 16 << 20,
        Compression::Bzip2 => 4 << 20,
        Compression::Lz4 => 12 << 20,
        Compression::Lzip => limits.lzma_dictionary_max.into(),
        _ => 0,
    }
}

impl<'a> Decompressor<'a> {
    /// Creates a decompressor.
    ///
    /// # Errors
    ///
    /// [`Refusal::UnsupportedCompression`] if there is no decoder for the compression.
    pub(super) fn new(
        input: Input<'a>,
        compression: Compression,
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        let codec = match compression {
            Compression::None => Codec::None(input),
            Compression::Brotli => Codec::Brotli(brotli::Reader::new(input)),
            Compression::Bzip2 => Codec::Bzip2(MultiBzDecoder::new(input)),
            Compression::Gzip => Codec::Gzip(MultiGzDecoder::new(input)),
            Compression::Lz4 => Codec::Lz4(lz4::Reader::new(input)),
            Compression::Lzip => Codec::Lzip(lzip::Reader::new(input, limits)),
            Compression::Xz => Codec::Xz(xz::Reader::new(input, limits)),
            Compression::Zstd => Codec::Zstd(zstd::Reader::new(input, limits)),
            other => {
                let format = other.name();
                return Err(Refusal::UnsupportedCompression { format });
            }
        };
        let piece_len = match codec {
            Codec::None(_) => 0,
            _ => PIECE_LEN,
        };
        Ok(Self {
            codec,
            compression,
            piece: vec![0; piece_len].into_boxed_slice(),
            given_len: 0,
        })
    }

    /// Returns the next piece of the content. An empty piece means the end.
    ///
    /// # Errors
    ///
    /// Errors of the input and of the decompressor. [`refusal`](Self::refusal) explains those of
    /// the decompressor.
    pub(super) fn next(&mut self) -> io::Result<&[u8]> {
        let len = match &mut self.codec {
            Codec::None(input) => {
                input.consume(self.given_len);
                self.given_len = 0;
                let piece = input.fill_buf()?;
                self.given_len = piece.len();
                return Ok(piece);
            }
            Codec::Brotli(reader) => reader.read(&mut self.piece)?,
            Codec::Bzip2(reader) => reader.read(&mut self.piece)?,
            Codec::Gzip(reader) => reader.read(&mut self.piece)?,
            Codec::Lz4(reader) => reader.read(&mut self.piece)?,
            Codec::Lzip(reader) => reader.read(&mut self.piece)?,
            Codec::Xz(reader) => reader.read(&mut self.piece)?,
            Codec::Zstd(reader) => reader.read(&mut self.piece)?,
        };
        Ok(self.piece.get(..len).unwrap_or_default())
    }

    pub(super) fn input(&mut self) -> &mut Input<'a> {
        match &mut self.codec {
            Codec::None(input) => input,
            Codec::Brotli(reader) => reader.input(),
            Codec::Bzip2(reader) => reader.get_mut(),
            Codec::Gzip(reader) => reader.get_mut(),
            Codec::Lz4(reader) => reader.input(),
            Codec::Lzip(reader) => reader.input(),
            Codec::Xz(reader) => reader.input(),
            Codec::Zstd(reader) => reader.input(),
        }
    }

    /// Returns the input. For zstd, also returns the index of frames.
    pub(super) fn into_parts(self) -> (Input<'a>, Option<Vec<u8>>) {
        match self.codec {
            Codec::None(input) => (input, None),
            Codec::Brotli(reader) => (reader.into_input(), None),
            Codec::Bzip2(reader) => (reader.into_inner(), None),
            Codec::Gzip(reader) => (reader.into_inner(), None),
            Codec::Lz4(reader) => (reader.into_input(), None),
            Codec::Lzip(reader) => (reader.into_input(), None),
            Codec::Xz(reader) => (reader.into_input(), None),
            Codec::Zstd(reader) => reader.into_parts(),
        }
    }

    /// Converts a decompressor's error, returned by [`next`](Self::next), to a refusal.
    pub(super) fn refusal(&mut self, error: io::Error) -> Refusal {
        let format = self.compression.name();
        let file_size = self.input().received();
        match error.downcast::<Refusal>() {
            Ok(refusal) => refusal,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Refusal::Truncated { format, file_size }
            }
            Err(error) => Refusal::Corrupt {
                format,
                reason: error.to_string(),
            },
        }
    }
}

/// Returns the error for a compressed stream that ends too early.
fn truncated() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
