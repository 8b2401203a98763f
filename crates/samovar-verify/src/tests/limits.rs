//! Each limit accepts a value equal to it and refuses the next larger one.

use super::*;
use crate::listing::Builder;

#[test]
fn nar_size_is_limited() {
    let nar = large_nar();
    let len = nar.len() as u64;
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        let mut limits = Limits {
            nar_size_max: len,
            ..Limits::default()
        };
        run_within(&limits, compression, &body).unwrap();
        limits.nar_size_max = len - 1;
        let refusal = run_within(&limits, compression, &body).unwrap_err();
        assert_eq!(refusal, Refusal::TooLarge { limit: len - 1 });
        assert!(refusal.is_too_large());
    }
}

/// A reader that counts the bytes that it returns.
struct Counted<'a>(&'a [u8], usize);

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read(out)?;
        self.1 += len;
        Ok(len)
    }
}

#[test]
fn a_file_that_is_too_large_is_refused_at_its_start() {
    let nar = file_nar(&noise(5_000_000));
    let body = compress(Compression::None, &nar);
    let limits = Limits {
        nar_size_max: 4_999_999,
        ..Limits::default()
    };
    let mut source = Counted(&body, 0);
    let name = name_of(Compression::None, &body);
    verify(&mut source, &name, &mut io::sink(), &limits, &mut Unlimited).unwrap_err();
    assert!(source.1 <= 128 << 10, "{}", source.1);
}

/// Grants at most `len_max` bytes, and records the length requested last.
struct Granted {
    len: u64,
    len_max: u64,
}

impl Memory for Granted {
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError> {
        self.len = len;
        if len > self.len_max {
            return Err(MemoryError::Busy);
        }
        Ok(())
    }
}

#[test]
fn windows_are_reserved() {
    let nar = large_nar();
    for compression in COMPRESSIONS {
        let body = compress(compression, &nar);
        let name = name_of(compression, &body);
        let verify_with = |len_max| {
            let mut memory = Granted { len: 0, len_max };
            let (mut source, limits) = (&body[..], Limits::default());
            let verified = verify(&mut source, &name, &mut io::sink(), &limits, &mut memory);
            (verified.map(drop), memory.len)
        };
        let (verified, len) = verify_with(u64::MAX);
        verified.unwrap();
        let (min, max) = match compression {
            Compression::None | Compression::Gzip => (0, 0),
            Compression::Lzip => (64 << 20, 64 << 20),
            _ => (512 << 10, 16 << 20),
        };
        assert!((min..=max).contains(&len), "{compression:?} {len}");
        verify_with(len).0.unwrap();
        if len > 0 {
            let refused = verify_with(len - 1).0;
            assert!(
                matches!(refused, Err(VerifyError::Memory(_))),
                "{refused:?}"
            );
        }
    }
}

#[test]
fn ratio_is_limited() {
    let nar = file_nar(&vec![0; 3_000_000]);
    for compression in [
        Compression::Brotli,
        Compression::Bzip2,
        Compression::Gzip,
        Compression::Lz4,
        Compression::Lzip,
        Compression::Xz,
        Compression::Zstd,
    ] {
        let body = compress(compression, &nar);
        let body_len = body.len() as u64;
        let ratio = (nar.len() as u64).div_ceil(body_len);
        let mut limits = Limits {
            ratio_max: ratio,
            ratio_free_len: 0,
            ..Limits::default()
        };
        run_within(&limits, compression, &body).unwrap();
        limits.ratio_max = ratio - 1;
        let refusal = run_within(&limits, compression, &body).unwrap_err();
        let expected = Refusal::Ratio {
            ratio: ratio - 1,
            free_len: 0,
        };
        assert_eq!(refusal, expected);
        let excess = nar.len() as u64 - body_len * (ratio - 1);
        limits.ratio_free_len = excess - 1;
        run_within(&limits, compression, &body).unwrap_err();
        limits.ratio_free_len = excess;
        run_within(&limits, compression, &body).unwrap();
    }
}

/// The start of a NAR followed by endless zeros is refused soon after the ratio limit applies.
#[test]
fn a_bomb_is_refused() {
    const LEN: u64 = 1 << 28;
    let mut nar = file_nar(b"");
    let at = nar.len() - 24;
    nar[at..at + 8].copy_from_slice(&LEN.to_le_bytes());
    nar.truncate(at + 8);
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.write_all(&nar).unwrap();
    io::copy(&mut io::repeat(0).take(LEN), &mut encoder).unwrap();
    let body = encoder.finish().unwrap();
    let limits = Limits {
        ratio_free_len: 32 << 20,
        ..Limits::default()
    };
    let refusal = run_within(&limits, Compression::Zstd, &body).unwrap_err();
    let expected = Refusal::Ratio {
        ratio: 1000,
        free_len: 32 << 20,
    };
    assert_eq!(refusal, expected);
}

#[test]
fn contents_that_compress_well_at_their_start_are_accepted() {
    let mut content = vec![0; 48 << 20];
    content
        .extend((0..1 << 20).map(|number: u32| number.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]));
    let nar = file_nar(&content);
    for compression in [Compression::Xz, Compression::Zstd] {
        let body = compress(compression, &nar);
        run_within(&Limits::default(), compression, &body).unwrap();
    }
}

/// Makes a zstd stream of one frame with this window.
fn zstd_with_window(log: u32, content: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(log).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn zstd_window_is_limited() {
    let nar = small_nar();
    for log in [20, 27] {
        let limits = Limits {
            zstd_window_log_max: log,
            ..Limits::default()
        };
        let body = zstd_with_window(log, &nar);
        run_within(&limits, Compression::Zstd, &body).unwrap();
        let body = zstd_with_window(log + 1, &nar);
        let refusal = run_within(&limits, Compression::Zstd, &body).unwrap_err();
        let limit = 1 << log;
        let format = "zstd";
        assert_eq!(refusal, Refusal::Window { format, limit });
    }
}

#[test]
fn xz_dictionary_is_limited() {
    let nar = small_nar();
    let with_dictionary = |len: u32| {
        let mut options = lzma_rust2::XzOptions::with_preset(1);
        options.lzma_options.dict_size = len;
        let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        encoder.write_all(&nar).unwrap();
        encoder.finish().unwrap()
    };
    for (limit, next) in [(1 << 20, 3 << 19), (64 << 20, 96 << 20)] {
        let limits = Limits {
            lzma_dictionary_max: limit,
            ..Limits::default()
        };
        run_within(&limits, Compression::Xz, &with_dictionary(limit)).unwrap();
        let refusal = run_within(&limits, Compression::Xz, &with_dictionary(next)).unwrap_err();
        let (format, limit) = ("xz", limit.into());
        assert_eq!(refusal, Refusal::Window { format, limit });
    }
}

#[test]
fn lzip_dictionary_is_limited() {
    let nar = small_nar();
    let plain = compress(Compression::Lzip, &nar);
    // Byte 5 of the header contains the power of two, and the number of sixteenths to subtract from
    // it. The next larger size after 64 MiB is 72 MiB.
    for (limit, at_limit, past) in [(1 << 20, 20, 21 | 7 << 5), (64 << 20, 26, 27 | 7 << 5)] {
        let limits = Limits {
            lzma_dictionary_max: limit,
            ..Limits::default()
        };
        let mut body = plain.clone();
        body[5] = at_limit;
        run_within(&limits, Compression::Lzip, &body).unwrap();
        body[5] = past;
        let refusal = run_within(&limits, Compression::Lzip, &body).unwrap_err();
        let (format, limit) = ("lzip", limit.into());
        assert_eq!(refusal, Refusal::Window { format, limit });
    }
}

/// The first byte of a Brotli stream announces a large window, which is an extension of the format.
#[test]
fn brotli_large_window_is_refused() {
    let nar = small_nar();
    let mut body = Vec::new();
    let parameters = ::brotli::enc::BrotliEncoderParams {
        quality: 4,
        lgwin: 25,
        large_window: true,
        ..Default::default()
    };
    ::brotli::BrotliCompress(&mut &nar[..], &mut body, &parameters).unwrap();
    assert!(matches!(
        run(Compression::Brotli, &body).unwrap_err(),
        Refusal::Corrupt { .. }
    ));
}

/// A body of bytes that decompress to nothing is refused, because no other limit counts these
/// bytes.
#[test]
fn a_body_that_is_much_longer_than_its_nar_is_refused() {
    let nar = small_nar();
    let mut body = compress(Compression::Zstd, &nar);
    let skippable = |len: u32| {
        let header = [0x184d_2a50_u32.to_le_bytes(), len.to_le_bytes()].concat();
        [header, vec![0; len as usize]].concat()
    };
    body.extend(skippable(1 << 20));
    check(Compression::Zstd, &body, &nar);
    body.extend(skippable(40 << 20));
    let refusal = run(Compression::Zstd, &body).unwrap_err();
    assert!(matches!(refusal, Refusal::Oversized { .. }), "{refusal:?}");
}

#[test]
fn listing_is_limited() {
    let nar = directory_nar(&vec![&b""[..]; 3_000]);
    let build = |entries_max, len_max| {
        let (mut builder, mut decoder) =
            (Builder::with_limits(entries_max, len_max), Decoder::new());
        let mut rest = &nar[..];
        while let Some(event) = decoder.decode(&mut rest).unwrap() {
            builder.event(&event);
        }
        builder.finish()
    };
    let listing = build(3_001, usize::MAX).unwrap();
    let text = zstd::decode_all(&listing[..]).unwrap();
    // The text must be long enough for the streaming encoder.
    assert!(text.len() > 2 * (64 << 10), "{}", text.len());
    assert_eq!(String::from_utf8(text).unwrap(), listing_of(&nar));
    assert_eq!(build(3_000, usize::MAX), None);
    assert!(build(3_001, listing.len()).is_some());
    assert_eq!(build(3_001, listing.len() - 1), None);
}
