//! [`decoded`]: decodes a body that has a `Content-Encoding`. [`decoded_nar`]: decompresses the
//! file of a NAR. [`decompressed`] decompresses any stream.

use std::io::{self, Read};

use samovar_nix::narinfo::Compression;

use super::decompress::{self, Decompressor};
use super::input::Input;
use super::{Limits, Memory, MemoryError, Refusal, Unlimited, VerifyError};

/// Names of the supported encodings. Nix sends the name of its compression.
const ENCODINGS: [(&str, Compression); 5] = [
    ("zstd", Compression::Zstd),
    ("br", Compression::Brotli),
    ("gzip", Compression::Gzip),
    ("x-gzip", Compression::Gzip),
    ("xz", Compression::Xz),
];

/// Limits of the decoder. The maximum windows are 8 MiB, as of `zstd -19` and `xz -6`.
const LIMITS: Limits = Limits {
    nar_size_max: 0,
    ratio_max: 0,
    ratio_free_len: 0,
    zstd_window_log_max: 23,
    lzma_dictionary_max: 8 << 20,
};

/// A supported encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding(Compression);

impl Encoding {
    /// Returns the encoding with this name, in upper or lower case. Returns `None` if it is not
    /// supported.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut known = ENCODINGS.into_iter();
        let found = known.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, compression)| Self(compression))
    }
}

/// Reason why an encoded body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body could not be received; contains the unchanged error of its reader.
    #[error("receiving the body: {0}")]
    Source(io::Error),
    /// There is no memory for the window of the decompressor.
    #[error(transparent)]
    Memory(MemoryError),
    /// The body is not valid in its `Content-Encoding`.
    #[error(transparent)]
    Encoding(EncodingError),
}

/// A body is not valid in its `Content-Encoding`.
#[derive(Debug, thiserror::Error)]
#[error(
    "the body cannot be decoded by its Content-Encoding, {encoding}: {reason}; upload it again, or \
     without narinfo-compression, ls-compression and log-compression"
)]
pub struct EncodingError {
    /// Name of the `Content-Encoding`.
    encoding: &'static str,
    /// The reason why the body cannot be decoded.
    reason: String,
}

/// Calls `read` with a reader of the decompressed content of `source`. The reader does not limit
/// the length of the content, so `read` must.
///
/// If the body is not valid, the reader returns an error that contains a [`BodyError`].
///
/// # Errors
///
/// [`BodyError`] if there is no memory for the window. Other errors of `read`.
pub fn decoded<T, E: From<BodyError>>(
    source: &mut dyn Read,
    encoding: Encoding,
    memory: &mut dyn Memory,
    read: impl FnOnce(&mut dyn Read) -> Result<T, E>,
) -> Result<T, E> {
    let convert = |failure| match failure {
        VerifyError::Source(error) => error,
        failure => io::Error::other(body_error(failure, encoding)),
    };
    decompressed(source, encoding.0, &LIMITS, memory, &convert, read)
        .map_err(|failure| body_error(failure, encoding))?
}

/// Calls `read` with a reader of the NAR in a file of a binary cache. All compressions and windows
/// are supported that [`Limits`] permits in uploads.
///
/// # Errors
///
/// The compression is not supported.
pub fn decoded_nar<T>(
    source: &mut dyn Read,
    compression: Compression,
    read: impl FnOnce(&mut dyn Read) -> T,
) -> io::Result<T> {
    let convert = |failure| match failure {
        VerifyError::Source(error) | VerifyError::Sink(error) => error,
        VerifyError::Memory(error) => io::Error::other(error),
        VerifyError::Refused(refusal) => {
            let name = compression.name();
            let reason = reason(refusal);
            io::Error::other(format!("it cannot be decompressed by {name}: {reason}"))
        }
    };
    let (limits, memory) = (Limits::default(), &mut Unlimited);
    let read = decompressed(source, compression, &limits, memory, &convert, read);
    read.map_err(convert)
}

/// Calls `read` with a reader of the decompressed content of `source`. The reader does not limit
/// the length of the content, so `read` must. `convert` makes the errors that the reader returns.
///
/// # Errors
///
/// [`VerifyError`] if the compression is not supported, or if there is no memory for its window.
/// Otherwise returns the result of `read`.
pub fn decompressed<T>(
    source: &mut dyn Read,
    compression: Compression,
    limits: &Limits,
    memory: &mut dyn Memory,
    convert: &dyn Fn(VerifyError) -> io::Error,
    read: impl FnOnce(&mut dyn Read) -> T,
) -> Result<T, VerifyError> {
    let mut discarded = io::sink();
    let mut input = Input::new(source, &mut discarded, memory);
    input.without_hash();
    if let Err(error) = input.reserve(decompress::fixed_window_len(compression, limits)) {
        return Err(input.take_failure().unwrap_or(VerifyError::Source(error)));
    }
    let decompressor = Decompressor::new(input, compression, limits)?;
    Ok(read(&mut Decoded {
        decompressor,
        convert,
        piece: Vec::new(),
        start: 0,
        len: 0,
    }))
}

/// A reader of the decompressed content of a body.
struct Decoded<'a> {
    decompressor: Decompressor<'a>,
    convert: &'a dyn Fn(VerifyError) -> io::Error,
    piece: Vec<u8>,
    /// Index in `piece` of the first unread byte.
    start: usize,
    /// Number of decompressed bytes so far.
    len: u64,
}

impl Decoded<'_> {
    /// Replaces `piece` by the next piece, which is empty at the end.
    fn next(&mut self) -> Result<(), VerifyError> {
        self.piece.clear();
        self.start = 0;
        match self.decompressor.next() {
            Ok(piece) => self.piece.extend_from_slice(piece),
            Err(error) => {
                let failure = self.decompressor.input().take_failure();
                return Err(failure.unwrap_or_else(|| self.decompressor.refusal(error).into()));
            }
        }
        self.len += self.piece.len() as u64;
        let input = self.decompressor.input();
        input.set_content_len(self.len)?;
        // The decompressor may have treated an error of the source as the end of the stream.
        match input.take_failure() {
            Some(failure) if self.piece.is_empty() => Err(failure),
            _ => Ok(()),
        }
    }
}

impl Read for Decoded<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.start == self.piece.len() {
            self.next().map_err(self.convert)?;
        }
        let len = self.piece.get(self.start..).unwrap_or_default().read(out)?;
        self.start += len;
        Ok(len)
    }
}

/// Converts the error of decompressing a body, because the texts of [`Refusal`] describe NARs.
fn body_error(failure: VerifyError, Encoding(compression): Encoding) -> BodyError {
    match failure {
        VerifyError::Source(error) | VerifyError::Sink(error) => BodyError::Source(error),
        VerifyError::Memory(error) => BodyError::Memory(error),
        VerifyError::Refused(refusal) => BodyError::Encoding(EncodingError {
            encoding: compression.name(),
            reason: reason(refusal),
        }),
    }
}

fn reason(refusal: Refusal) -> String {
    match refusal {
        Refusal::Truncated { .. } => "it is cut short".to_owned(),
        Refusal::Corrupt { reason, .. } => reason,
        Refusal::BytesAfterStream { .. } => "bytes follow its end".to_owned(),
        Refusal::Window { limit, .. } => format!("it needs a window of more than {limit} bytes"),
        Refusal::Oversized { .. } => "it is much longer than its content".to_owned(),
        Refusal::UnsupportedCompression { .. } => "this program has no decoder for it".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Returns the reason in an error of the reader.
    fn of_source(error: io::Error) -> BodyError {
        error.downcast().unwrap_or_else(BodyError::Source)
    }

    /// Compresses with the encoding of this name.
    fn encode(name: &str, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match name {
            "zstd" => out = zstd::encode_all(content, 3).unwrap(),
            "br" => {
                let mut writer = brotli::CompressorWriter::new(&mut out, 4096, 5, 22);
                writer.write_all(content).unwrap();
            }
            "xz" => {
                let options = lzma_rust2::XzOptions::with_preset(6);
                let mut writer = lzma_rust2::XzWriter::new(&mut out, options).unwrap();
                writer.write_all(content).unwrap();
                writer.finish().unwrap();
            }
            "xz, 16 MiB" => {
                let mut options = lzma_rust2::XzOptions::with_preset(1);
                options.lzma_options.dict_size = 16 << 20;
                let mut writer = lzma_rust2::XzWriter::new(&mut out, options).unwrap();
                writer.write_all(content).unwrap();
                writer.finish().unwrap();
            }
            "bzip2" => {
                let level = bzip2::Compression::best();
                let mut writer = bzip2::write::BzEncoder::new(&mut out, level);
                writer.write_all(content).unwrap();
                writer.finish().unwrap();
            }
            _ => {
                let level = flate2::Compression::default();
                let mut writer = flate2::write::GzEncoder::new(&mut out, level);
                writer.write_all(content).unwrap();
                writer.finish().unwrap();
            }
        }
        out
    }

    fn decode(name: &str, mut body: &[u8], len_max: u64) -> Result<Vec<u8>, BodyError> {
        let encoding = Encoding::from_name(name).unwrap();
        decoded(&mut body, encoding, &mut Unlimited, |reader| {
            let mut content = Vec::new();
            let mut reader = reader.take(len_max);
            reader.read_to_end(&mut content).map_err(of_source)?;
            Ok(content)
        })
    }

    #[test]
    fn each_encoding_is_decoded_once() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        for name in ["zstd", "br", "gzip", "x-gzip", "xz", "ZSTD"] {
            let body = encode(&name.to_ascii_lowercase(), &content);
            assert!(decode(name, &body, u64::MAX).unwrap() == content, "{name}");
            let twice = encode(&name.to_ascii_lowercase(), &body);
            assert!(decode(name, &twice, u64::MAX).unwrap() == body, "{name}");
            assert_eq!(decode(name, &body, 1000).unwrap(), content[..1000]);
            assert_eq!(
                decode(name, &encode(name, b""), 10).unwrap_or_default(),
                b""
            );
        }
        for name in ["", "identity", "deflate", "bzip2", "zstd, gzip"] {
            assert_eq!(Encoding::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn each_compression_of_nix_is_decoded() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
        zstd.long_distance_matching(true).unwrap();
        zstd.window_log(27).unwrap();
        zstd.write_all(&content).unwrap();
        let files = [
            (Compression::None, content.clone()),
            (Compression::Zstd, zstd.finish().unwrap()),
            (Compression::Brotli, encode("br", &content)),
            (Compression::Gzip, encode("gzip", &content)),
            (Compression::Xz, encode("xz", &content)),
            (Compression::Xz, encode("xz, 16 MiB", &content)),
            (Compression::Bzip2, encode("bzip2", &content)),
        ];
        for (compression, file) in files {
            let mut nar = Vec::new();
            let read = decoded_nar(&mut &*file, compression, |file| file.read_to_end(&mut nar));
            assert_eq!(read.unwrap().unwrap(), content.len());
            assert!(nar == content, "{}", compression.name());
        }
        let lzma = decoded_nar(&mut io::empty(), Compression::Lzma, |_| ()).unwrap_err();
        assert!(lzma.to_string().contains("lzma"), "{lzma}");
    }

    #[test]
    fn an_invalid_body_is_refused_with_the_name_of_its_encoding() {
        for name in ["zstd", "br", "gzip", "xz"] {
            let body = encode(name, &[b'x'; 1000]);
            let cut = &body[..body.len() - 1];
            let longer = [&body[..], b"more"].concat();
            for body in [cut, &longer, b"not compressed"] {
                let refused = decode(name, body, u64::MAX).unwrap_err();
                assert!(
                    matches!(&refused, BodyError::Encoding(error) if error.encoding == name),
                    "{name}: {refused:?}"
                );
            }
        }
    }

    #[test]
    fn a_window_of_more_than_8_mebibytes_is_refused() {
        let compress = |log: u32| {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            encoder.include_contentsize(false).unwrap();
            encoder.write_all(&[0; 1000]).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(decode("zstd", &compress(23), u64::MAX).unwrap(), [0; 1000]);
        let refused = decode("zstd", &compress(24), u64::MAX).unwrap_err();
        assert!(refused.to_string().contains("8388608"), "{refused}");
    }

    #[test]
    fn a_body_without_memory_for_its_window_is_busy() {
        struct Nothing;
        impl Memory for Nothing {
            fn reserve(&mut self, _len: u64) -> Result<(), MemoryError> {
                Err(MemoryError::Busy)
            }
        }
        for name in ["zstd", "br", "xz"] {
            let body = encode(name, &[b'x'; 1000]);
            let encoding = Encoding::from_name(name).unwrap();
            let busy = decoded(&mut &body[..], encoding, &mut Nothing, |reader| {
                io::copy(reader, &mut io::sink()).map_err(of_source)
            });
            assert!(
                matches!(busy, Err(BodyError::Memory(MemoryError::Busy))),
                "{name}: {busy:?}"
            );
        }
    }

    #[test]
    fn an_error_of_the_source_is_returned_unchanged() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        for name in ["zstd", "br", "gzip", "xz"] {
            let encoding = Encoding::from_name(name).unwrap();
            let failed = decoded(&mut Broken, encoding, &mut Unlimited, |reader| {
                io::copy(reader, &mut io::sink()).map_err(of_source)
            });
            assert!(
                matches!(&failed, Err(BodyError::Source(error))
                    if error.kind() == io::ErrorKind::ConnectionReset),
                "{name}: {failed:?}"
            );
        }
    }
}
