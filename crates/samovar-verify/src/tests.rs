//! A body is accepted only if it is complete and valid, and the returned hashes are correct. Any
//! other body is refused with the reason.

mod failures;
mod formats;
mod limits;
mod nars;
mod programs;
mod xz_structure;

use std::io::{self, Read, Write};

use samovar_nix::nar::{Decoder, Encoder, Listing};
use samovar_nix::nixbase32;
use sha2::{Digest, Sha256};

use super::*;

const COMPRESSIONS: [Compression; 8] = [
    Compression::None,
    Compression::Brotli,
    Compression::Bzip2,
    Compression::Gzip,
    Compression::Lz4,
    Compression::Lzip,
    Compression::Xz,
    Compression::Zstd,
];

/// Returns the NAR of one file.
fn file_nar(contents: &[u8]) -> Vec<u8> {
    let (mut encoder, mut nar) = (Encoder::new(), Vec::new());
    encoder.begin(&mut nar).unwrap();
    let size = contents.len().try_into().unwrap();
    encoder.file(&mut nar, false, size).unwrap();
    nar.extend(contents);
    encoder.end_file(&mut nar).unwrap();
    encoder.finish().unwrap();
    nar
}

/// Returns the NAR of a directory with one file for each of `contents`, and a symbolic link.
fn directory_nar(contents: &[&[u8]]) -> Vec<u8> {
    let (mut encoder, mut nar) = (Encoder::new(), Vec::new());
    encoder.begin(&mut nar).unwrap();
    encoder.begin_directory(&mut nar).unwrap();
    for (number, contents) in contents.iter().enumerate() {
        let name = format!("file-{number:07}");
        encoder.entry(&mut nar, name.as_bytes()).unwrap();
        let size = contents.len().try_into().unwrap();
        encoder.file(&mut nar, number == 1, size).unwrap();
        nar.extend(*contents);
        encoder.end_file(&mut nar).unwrap();
        encoder.end_entry(&mut nar).unwrap();
    }
    encoder.entry(&mut nar, b"link").unwrap();
    encoder.symlink(&mut nar, b"file-0000000").unwrap();
    encoder.end_entry(&mut nar).unwrap();
    encoder.end_directory(&mut nar).unwrap();
    encoder.finish().unwrap();
    nar
}

/// Returns a NAR of about 900 bytes.
fn small_nar() -> Vec<u8> {
    directory_nar(&[b"contents of a file", b"#!/bin/sh\nexit 0\n"])
}

/// Returns a NAR that is read in several pieces. It contains text, noise and zeros.
fn large_nar() -> Vec<u8> {
    let text = "It is a truth universally acknowledged. ".repeat(9_001);
    directory_nar(&[text.as_bytes(), b"", &noise(150_001), &[0; 300_000]])
}

/// Returns `len` bytes that cannot be compressed.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn compress(compression: Compression, content: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    match compression {
        Compression::None => body.extend(content),
        Compression::Brotli => {
            let mut encoder = ::brotli::CompressorWriter::new(&mut body, 4096, 4, 22);
            encoder.write_all(content).unwrap();
        }
        Compression::Bzip2 => {
            let mut encoder = bzip2::write::BzEncoder::new(&mut body, bzip2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
        }
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(&mut body, flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
        }
        Compression::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new()
                .block_size(lz4_flex::frame::BlockSize::Max64KB)
                .content_checksum(true);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, &mut body);
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
        }
        Compression::Lzip => {
            let options = lzma_rust2::LzipOptions::with_preset(1);
            let mut encoder = lzma_rust2::LzipWriter::new(&mut body, options);
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
        }
        Compression::Xz => {
            let options = lzma_rust2::XzOptions::with_preset(1);
            let mut encoder = lzma_rust2::XzWriter::new(&mut body, options).unwrap();
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
        }
        Compression::Zstd => body = zstd::bulk::compress(content, 3).unwrap(),
        other => panic!("no encoder of {}", other.name()),
    }
    body
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns the file name that states the hash and the compression of a body.
fn name_of(compression: Compression, body: &[u8]) -> FileName {
    let suffix = match compression {
        Compression::None => ".nar",
        Compression::Brotli => ".nar.br",
        Compression::Bzip2 => ".nar.bz2",
        Compression::Gzip => ".nar.gz",
        Compression::Lz4 => ".nar.lz4",
        Compression::Lzip => ".nar.lzip",
        Compression::Xz => ".nar.xz",
        Compression::Zstd => ".nar.zst",
        other => panic!("no suffix of {}", other.name()),
    };
    let hash = nixbase32::encode(&sha256(body));
    FileName::parse(format!("{hash}{suffix}").as_bytes()).unwrap()
}

/// Verifies a body with the default limits.
fn verify_within_defaults(
    source: &mut dyn Read,
    name: &FileName,
    out: &mut dyn Write,
) -> Result<Verified, VerifyError> {
    verify(source, name, out, &Limits::default(), &mut Unlimited)
}

/// Verifies a body under the file name that matches it.
fn run(compression: Compression, body: &[u8]) -> Result<Verified, Refusal> {
    run_within(&Limits::default(), compression, body)
}

fn run_within(limits: &Limits, compression: Compression, body: &[u8]) -> Result<Verified, Refusal> {
    let name = name_of(compression, body);
    let mut out = Vec::new();
    match verify(&mut &body[..], &name, &mut out, limits, &mut Unlimited) {
        Ok(verified) => {
            assert_eq!(out, body, "the copy of an accepted body differs");
            assert_eq!(verified.file_size, body.len() as u64);
            Ok(verified)
        }
        Err(VerifyError::Refused(refusal)) => {
            assert!(body.starts_with(&out));
            let sentence = refusal.to_string();
            assert!(
                sentence.len() < 400 && sentence.contains("; "),
                "{sentence}"
            );
            Err(refusal)
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Checks that a body is accepted, and that the returned hashes and lengths are right.
#[track_caller]
fn check(compression: Compression, body: &[u8], nar: &[u8]) -> Verified {
    let verified = run(compression, body).unwrap();
    assert_eq!(verified.nar_hash.as_bytes(), &sha256(nar));
    assert_eq!(verified.nar_size, nar.len() as u64);
    let listing = zstd::decode_all(verified.listing.as_deref().unwrap()).unwrap();
    assert_eq!(String::from_utf8(listing).unwrap(), listing_of(nar));
    verified
}

fn listing_of(mut nar: &[u8]) -> String {
    let (mut decoder, mut listing) = (Decoder::new(), Listing::new());
    while let Some(event) = decoder.decode(&mut nar).unwrap() {
        listing.event(&event).unwrap();
    }
    listing.finish().unwrap()
}

/// A reader that returns at most `lens` bytes per call. It uses the numbers in `lens` in turn,
/// repeatedly.
struct ShortReads<'a> {
    bytes: &'a [u8],
    lens: Vec<usize>,
    calls: usize,
}

impl<'a> ShortReads<'a> {
    fn new(bytes: &'a [u8], lens: Vec<usize>) -> Self {
        Self {
            bytes,
            lens,
            calls: 0,
        }
    }
}

impl Read for ShortReads<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = self.lens[self.calls % self.lens.len()].min(out.len());
        self.bytes.read(&mut out[..len])
    }
}
