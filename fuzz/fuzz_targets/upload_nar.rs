//! Receiver of uploaded NARs: the result does not depend on where the body is split, and an
//! accepted body is stored unchanged. The first byte selects the compression.
#![no_main]

use std::io::{self, Read};

use samovar_nix::nixbase32;
use samovar_protocol::names::FileName;
use samovar_verify::{Limits, Refusal, Unlimited, Verified, VerifyError, verify};

const SUFFIXES: [&str; 8] = ["", ".br", ".bz2", ".gz", ".lz4", ".lzip", ".xz", ".zst"];

const LIMITS: Limits = Limits {
    nar_size_max: 1 << 20,
    ratio_max: 1000,
    ratio_free_len: 1 << 16,
    zstd_window_log_max: 20,
    lzma_dictionary_max: 1 << 20,
};

/// A reader that returns at most this number of bytes per call.
struct Short<'a>(&'a [u8], usize);

impl Read for Short<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.1);
        self.0.read(&mut out[..len])
    }
}

fn name(hash: &[u8; 32], suffix: &str) -> FileName {
    let name = format!("{}.nar{suffix}", nixbase32::encode(hash));
    FileName::parse(name.as_bytes()).unwrap()
}

fn run(body: &[u8], step: usize, name: &FileName) -> Result<Verified, Refusal> {
    let mut out = Vec::new();
    match verify(&mut Short(body, step), name, &mut out, &LIMITS, &mut Unlimited) {
        Ok(verified) => {
            assert_eq!(out, body);
            assert_eq!(verified.file_size, body.len() as u64);
            assert!(verified.nar_size <= LIMITS.nar_size_max);
            Ok(verified)
        }
        Err(VerifyError::Refused(refusal)) => {
            assert!(body.starts_with(&out));
            assert!(!refusal.to_string().is_empty());
            Err(refusal)
        }
        Err(error) => panic!("neither the source nor the sink fails: {error:?}"),
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&first, body)) = data.split_first() else {
        return;
    };
    let suffix = SUFFIXES[usize::from(first) % SUFFIXES.len()];
    // No body has this hash, so a valid body is refused because of its hash alone.
    match run(body, usize::MAX, &name(&[0; 32], suffix)) {
        Err(Refusal::FileHash { found, .. }) => {
            let name = name(&found, suffix);
            let verified = run(body, usize::MAX, &name).unwrap();
            assert_eq!(run(body, 1, &name), Ok(verified.clone()));
            assert_eq!(run(body, 1 + usize::from(first), &name), Ok(verified));
        }
        Ok(verified) => panic!("{verified:?}"),
        // The ratio depends on how much was received before the content was decoded.
        Err(_) => assert!(run(body, 7, &name(&[0; 32], suffix)).is_err()),
    }
});
