//! Each format is decoded correctly from the output of Rust encoders.

use proptest::prelude::*;

use super::*;

#[test]
fn every_compression_round_trips() {
    for nar in [small_nar(), large_nar(), file_nar(b"")] {
        for compression in COMPRESSIONS {
            let body = compress(compression, &nar);
            let verified = check(compression, &body, &nar);
            assert_eq!(verified.compression, compression);
            assert_eq!(verified.frames, None);
        }
    }
}

/// Nix uploads gzip under the plain suffix `.nar`, and it must be detected there.
#[test]
fn gzip_is_detected_under_the_plain_suffix() {
    let nar = large_nar();
    let body = compress(Compression::Gzip, &nar);
    let verified = check(Compression::None, &body, &nar);
    assert_eq!(verified.compression, Compression::Gzip);
}

#[test]
fn formats_without_a_decoder_are_refused_by_name() {
    for (body, format) in [
        (&b"\x1f\x9d\x90"[..], "compress"),
        (b"\x5d\0\0\x80\0", "lzma"),
        (b"\x89LZO\0\r\n\x1a\n", "lzop"),
        (b"LRZI\0", "lrzip"),
        (b"GRZipII\0", "grzip"),
    ] {
        let refusal = run(Compression::None, body).unwrap_err();
        assert_eq!(refusal, Refusal::UnsupportedCompression { format });
    }
}

#[test]
fn another_compression_than_the_suffix_states_is_refused() {
    let nar = small_nar();
    for stated in COMPRESSIONS {
        for used in COMPRESSIONS {
            // Gzip is detected under the plain suffix; see above.
            let is_detected = stated == Compression::None && used == Compression::Gzip;
            if stated != used && !is_detected {
                let refusal = run(stated, &compress(used, &nar)).unwrap_err();
                assert!(
                    matches!(
                        refusal,
                        Refusal::Corrupt { .. }
                            | Refusal::NotANar(_)
                            | Refusal::Truncated { .. }
                            | Refusal::Window { .. }
                    ),
                    "{stated:?} {used:?} {refusal:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn short_reads_change_nothing(
        lens in proptest::collection::vec(prop_oneof![1..20_usize, 1..200_000_usize], 1..6),
        compression in proptest::sample::select(COMPRESSIONS.to_vec()),
    ) {
        let nar = large_nar();
        let mut body = compress(compression, &nar);
        if lens.iter().any(|&len| len < 20) {
            body = compress(compression, &small_nar());
        }
        let expected = run(compression, &body).unwrap();
        let mut out = Vec::new();
        let mut source = ShortReads::new(&body, lens);
        let name = name_of(compression, &body);
        let verified = verify_within_defaults(&mut source, &name, &mut out).unwrap();
        prop_assert_eq!(verified, expected);
        prop_assert_eq!(out, body);
    }
}

#[test]
fn one_byte_a_read_changes_nothing() {
    let nar = small_nar();
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        let expected = run(compression, &body).unwrap();
        let mut source = ShortReads::new(&body, vec![1]);
        let name = name_of(compression, &body);
        let verified = verify_within_defaults(&mut source, &name, &mut io::sink()).unwrap();
        assert_eq!(verified, expected);
    }
}

/// Several streams of the same format in a row are accepted, because clients decode them. LZ4 and
/// Brotli uploads must have a single stream.
#[test]
fn concatenated_streams_are_decoded() {
    let nar = large_nar();
    let (first, second) = nar.split_at(200_000);
    for compression in [
        Compression::Bzip2,
        Compression::Gzip,
        Compression::Lzip,
        Compression::Xz,
        Compression::Zstd,
    ] {
        let body = [compress(compression, first), compress(compression, second)].concat();
        check(compression, &body, &nar);
    }
    for compression in [Compression::Brotli, Compression::Lz4] {
        let body = [compress(compression, first), compress(compression, second)].concat();
        let format = compression.name();
        let refusal = run(compression, &body).unwrap_err();
        assert_eq!(refusal, Refusal::BytesAfterStream { format });
    }
}

fn leb128(mut bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = bytes.split_first().unwrap();
            bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        numbers.push(number);
    }
    numbers
}

#[test]
fn zstd_frames_are_indexed() {
    let nar = large_nar();
    let mut body = Vec::new();
    let mut expected = Vec::new();
    for (number, content) in nar.chunks(100_000).enumerate() {
        let frame = zstd::bulk::compress(content, 3).unwrap();
        expected.extend([frame.len() as u64, content.len() as u64]);
        body.extend(frame);
        if number % 2 == 0 {
            // A skippable frame, which may for example contain a seek table.
            let data = noise(number * 70_000);
            body.extend(0x184d_2a5e_u32.to_le_bytes());
            body.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
            body.extend(&data);
            expected.extend([data.len() as u64 + 8, 0]);
        }
    }
    let frames = check(Compression::Zstd, &body, &nar).frames.unwrap();
    assert_eq!(frames[0], 1);
    assert_eq!(leb128(&frames[1..]), expected);
    let name = name_of(Compression::Zstd, &body);
    for len in [1, 3, 7, 4_096, 131_071] {
        let mut source = ShortReads::new(&body, vec![len]);
        let verified = verify_within_defaults(&mut source, &name, &mut io::sink()).unwrap();
        assert_eq!(verified.frames.as_ref(), Some(&frames), "{len}");
    }
}
