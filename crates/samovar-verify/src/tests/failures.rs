//! Damaged bodies are refused, and errors of source and sink are returned unchanged.

use super::*;

#[test]
fn truncation_at_every_byte_is_refused() {
    let nar = small_nar();
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        for len in 0..body.len() {
            let refusal = run(compression, &body[..len]).unwrap_err();
            assert!(
                matches!(refusal, Refusal::Truncated { .. } | Refusal::NotANar(_)),
                "{compression:?} {len} {refusal:?}"
            );
            // Only an uncompressed or empty body may be refused as an incomplete NAR instead.
            if matches!(refusal, Refusal::NotANar(_)) {
                assert!(
                    compression == Compression::None || len == 0,
                    "{compression:?} {len} {refusal:?}"
                );
            }
        }
    }
}

#[test]
fn truncation_of_a_large_body_is_refused() {
    let nar = large_nar();
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        for len in (0..body.len()).step_by(body.len() / 9) {
            run(compression, &body[..len]).unwrap_err();
        }
        for missing in 1..16 {
            run(compression, &body[..body.len() - missing]).unwrap_err();
        }
    }
}

/// The file name states the hash of the undamaged body. The hash detects damage that a decompressor
/// ignores.
#[test]
fn every_flipped_byte_is_refused() {
    let nar = small_nar();
    for compression in COMPRESSIONS {
        let mut body = compress(compression, &nar);
        let name = name_of(compression, &body);
        for at in 0..body.len() {
            for flip in [0x01, 0x80, 0xff] {
                body[at] ^= flip;
                let result = verify_within_defaults(&mut &body[..], &name, &mut io::sink());
                assert!(
                    matches!(result, Err(VerifyError::Refused(_))),
                    "{compression:?} {at} {result:?}"
                );
                body[at] ^= flip;
            }
        }
    }
}

/// The file name states the hash of the damaged body, so only the format can detect the damage.
/// There must be no panic and no endless loop, and an accepted body must have the original content.
#[test]
fn flipped_bytes_that_are_accepted_change_nothing() {
    let nar = small_nar();
    for compression in COMPRESSIONS {
        let mut body = compress(compression, &nar);
        for at in 0..body.len() {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                body[at] ^= flip;
                if let Ok(verified) = run(compression, &body) {
                    // Formats without a mandatory checksum may decode to another NAR.
                    let has_checksum = !matches!(
                        compression,
                        Compression::None | Compression::Brotli | Compression::Zstd
                    );
                    let is_same = verified.nar_hash.as_bytes() == &sha256(&nar);
                    assert!(is_same || !has_checksum, "{compression:?} {at} {flip:x}");
                }
                body[at] ^= flip;
            }
        }
    }
}

#[test]
fn appended_bytes_are_refused() {
    let nar = small_nar();
    for compression in COMPRESSIONS {
        let whole = compress(compression, &nar);
        for tail in [
            &b"\0"[..],
            b"\0\0\0\0",
            b"\0\0\0\0\0\0\0\0",
            b"x",
            b"BZ",
            b"LZIP",
            b"\xfd7zXZ\0",
            b"\x28\xb5\x2f\xfd",
            b"\x04\x22\x4d\x18",
            b"some text after the end of the stream",
            &[0; 200_000],
        ] {
            let body = [&whole[..], tail].concat();
            let refusal = run(compression, &body).unwrap_err();
            assert!(
                matches!(
                    refusal,
                    Refusal::BytesAfterStream { .. }
                        | Refusal::BytesAfterNar { .. }
                        | Refusal::Corrupt { .. }
                        | Refusal::Truncated { .. }
                ),
                "{compression:?} {tail:?} {refusal:?}"
            );
        }
    }
}

#[test]
fn bytes_after_the_nar_are_refused() {
    let nar = small_nar();
    for tail in [&b"\0"[..], b"\0\0\0\0\0\0\0\0", b"x", &nar, &[0; 300_000]] {
        let content = [&nar[..], tail].concat();
        for compression in COMPRESSIONS {
            let refusal = run(compression, &compress(compression, &content)).unwrap_err();
            let nar_size = nar.len() as u64;
            assert_eq!(refusal, Refusal::BytesAfterNar { nar_size });
        }
    }
}

#[test]
fn another_hash_than_the_name_states_is_refused() {
    let body = small_nar();
    let name = name_of(Compression::None, b"another body");
    let result = verify_within_defaults(&mut &body[..], &name, &mut io::sink());
    let Err(VerifyError::Refused(refusal)) = result else {
        panic!("{result:?}");
    };
    let named = sha256(b"another body");
    let found = sha256(&body);
    assert_eq!(refusal, Refusal::FileHash { named, found });
    let sentence = refusal.to_string();
    assert!(sentence.contains(&nixbase32::encode(&named)), "{sentence}");
    assert!(sentence.contains(&nixbase32::encode(&found)), "{sentence}");
}

/// An error type other than `io::Error`, as a server has for clients that disconnect.
#[derive(Debug, thiserror::Error)]
#[error("client went away after {0} bytes")]
struct WentAway(usize);

/// A reader that returns some bytes and then fails.
struct Failing<'a> {
    bytes: &'a [u8],
    kind: io::ErrorKind,
    len: usize,
    has_failed: bool,
}

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        assert!(!self.has_failed, "read after an error");
        if self.bytes.is_empty() {
            self.has_failed = true;
            return Err(io::Error::new(self.kind, WentAway(self.len)));
        }
        let len = out.len().min(97);
        self.bytes.read(&mut out[..len])
    }
}

#[test]
fn errors_of_the_source_are_passed_through() {
    let nar = small_nar();
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        let name = name_of(compression, &body);
        for kind in [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::OutOfMemory,
            io::ErrorKind::InvalidData,
            io::ErrorKind::WouldBlock,
            io::ErrorKind::Other,
        ] {
            for len in 0..=body.len() {
                let mut source = Failing {
                    bytes: &body[..len],
                    kind,
                    len,
                    has_failed: false,
                };
                let result = verify_within_defaults(&mut source, &name, &mut io::sink());
                let Err(VerifyError::Source(error)) = result else {
                    panic!("{compression:?} {kind:?} {len} {result:?}");
                };
                assert_eq!(error.kind(), kind);
                let inner = error.into_inner().unwrap().downcast::<WentAway>().unwrap();
                assert_eq!(inner.0, len);
            }
        }
    }
}

/// A writer that accepts `left` bytes and then fails.
struct Full {
    left: usize,
    kind: io::ErrorKind,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::new(self.kind, WentAway(7)));
        }
        let len = bytes.len().min(self.left);
        self.left -= len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn errors_of_the_sink_are_passed_through() {
    let nar = large_nar();
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        let name = name_of(compression, &body);
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::UnexpectedEof] {
            for left in [0, 1, 1_000, body.len() / 2, body.len() - 1] {
                let mut sink = Full { left, kind };
                let result = verify_within_defaults(&mut &body[..], &name, &mut sink);
                let Err(VerifyError::Sink(error)) = result else {
                    panic!("{compression:?} {kind:?} {left} {result:?}");
                };
                assert_eq!(error.kind(), kind);
                assert!(error.into_inner().unwrap().is::<WentAway>());
            }
        }
    }
}
