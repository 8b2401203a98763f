use super::*;
use crate::path_info::tests::{app, base, path};
use crate::{
    ContentAddressError, HashError, NarHashError, SecretKey, SignatureError, StoreDir,
    StorePathError,
};
use NarInfoErrorKind as Kind;

const SECRET: &str = "test-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA==";

/// A narinfo as nix-serve and nix-serve-ng serve it.
const APP: &str = "\
StorePath: /nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0
URL: nar/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-1fb14p4f4kphcxxd4ld35s8apmpf6zi358y6b98pn4dnsylrfy3s.nar
Compression: none
NarHash: sha256:1fb14p4f4kphcxxd4ld35s8apmpf6zi358y6b98pn4dnsylrfy3s
NarSize: 224
References: vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0 zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0
Deriver: mlyi5swx7sfafm72592yq5cyslh5xzrb-app-2.0.drv
Sig: test-1:TYQTaLkw1I4KA6nHjSRpslZyMRDsv2/Ktb8v/FNe5q5vCzcupOwJaywaxZCZpHSQgNEEjCeuE3oPPkHaLxOgCQ==
";

const BASE: &str = "\
StorePath: /nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0
URL: nar/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z.nar
Compression: none
NarHash: sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z
NarSize: 120
Deriver: vg5fcfpbwrrqdh72g1b6c0s812phcazb-base-1.0.drv
Sig: test-1:PNCZbIfuWmQC5aFLl8d8/F7cx2V+Sx/H55eGw5+5mFTdhm7slXXNIyCdSraij3gcnRsqhv+j+nrKClEcSyBdAA==
";

/// A narinfo with the required fields only.
const LEAST: &str = "\
StorePath: /nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0
URL: nar/x.nar
NarHash: sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z
NarSize: 120
";

const SIG: &str = "test-1:PNCZbIfuWmQC5aFLl8d8/F7cx2V+Sx/H55eGw5+5mFTdhm7slXXNIyCdSraij3gcnRsqhv+j+nrKClEcSyBdAA==";

fn parse(text: &str) -> Result<NarInfo, NarInfoError> {
    NarInfo::parse(&StoreDir::default(), text.as_bytes())
}

fn least() -> NarInfo {
    parse(LEAST).unwrap()
}

/// Checks that `lines`, appended to the required fields, change nothing but what `change` changes.
#[track_caller]
fn check_more(lines: &str, change: impl FnOnce(&mut NarInfo)) {
    let mut expected = least();
    change(&mut expected);
    assert_eq!(parse(&format!("{LEAST}{lines}")), Ok(expected));
}

/// Checks that `lines`, appended to the required fields, are refused with an error on their
/// `line`th line.
#[track_caller]
fn check_refused(lines: &str, line: u64, kind: Kind) {
    let error = NarInfoError {
        line: line + 4,
        kind,
    };
    assert_eq!(parse(&format!("{LEAST}{lines}")), Err(error));
}

#[track_caller]
fn check_written(info: &crate::PathInfo, expected: &str) {
    let dir = StoreDir::default();
    let secret = SecretKey::parse(SECRET).unwrap();
    let signature = secret.sign(info.fingerprint(&dir).as_bytes());
    let mut out = b"kept ".to_vec();
    write_for(info, &dir, NarCoding::Identity, &[signature], &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), format!("kept {expected}"));
    let parsed = parse(expected).unwrap();
    assert_eq!(parsed.store_path, info.path);
    assert_eq!(parsed.references, info.references);
    assert_eq!(
        (parsed.nar_hash, parsed.nar_size),
        (info.nar_hash, info.nar_size)
    );
    assert_eq!(
        (parsed.deriver, parsed.compression),
        (info.deriver.clone(), Compression::None)
    );
}

#[test]
fn written_as_nix_serve_writes() {
    check_written(&app(), APP);
    check_written(&base(), BASE);
}

#[test]
fn unsigned_and_underived() {
    let info = crate::PathInfo {
        deriver: None,
        ..base()
    };
    let mut out = Vec::new();
    write_for(
        &info,
        &StoreDir::default(),
        NarCoding::Identity,
        &[],
        &mut out,
    );
    let expected: Vec<&str> = BASE.lines().take(5).collect();
    assert_eq!(String::from_utf8(out).unwrap(), expected.join("\n") + "\n");
}

#[test]
fn a_zstd_narinfo_differs_in_url_and_compression_alone() {
    let [mut plain, mut zstd] = [Vec::new(), Vec::new()];
    let dir = StoreDir::default();
    write_for(&app(), &dir, NarCoding::Identity, &[], &mut plain);
    write_for(&app(), &dir, NarCoding::Zstd, &[], &mut zstd);
    let plain = String::from_utf8(plain).unwrap();
    let expected = plain.replace(".nar\nCompression: none\n", ".nar.zst\nCompression: zstd\n");
    assert_eq!(String::from_utf8(zstd).unwrap(), expected);
    let parsed = parse(&expected).unwrap();
    assert_eq!(parsed.compression, Compression::Zstd);
    assert!(parsed.file_hash.is_none() && parsed.file_size.is_none());
}

#[test]
fn sizes_are_decimal() {
    for nar_size in [1, 9, 10, 1_234_567_890, u64::MAX] {
        let mut out = Vec::new();
        write_for(
            &crate::PathInfo { nar_size, ..base() },
            &StoreDir::default(),
            NarCoding::Identity,
            &[],
            &mut out,
        );
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(&format!("\nNarSize: {nar_size}\n")), "{text}");
    }
}

#[test]
fn several_signatures_in_the_order_given() {
    let signatures =
        ["b:", "a:"].map(|name| Signature::parse(&SIG.replace("test-1:", name)).unwrap());
    let mut out = Vec::new();
    write_for(
        &base(),
        &StoreDir::default(),
        NarCoding::Identity,
        &signatures,
        &mut out,
    );
    let text = String::from_utf8(out).unwrap();
    let sigs: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("Sig: "))
        .collect();
    assert_eq!(
        sigs,
        [
            format!("Sig: {}", signatures[0]),
            format!("Sig: {}", signatures[1])
        ]
    );
}

#[test]
fn lines_in_any_order_and_unknown_keys() {
    let backwards: Vec<&str> = APP.lines().rev().collect();
    assert_eq!(parse(&(backwards.join("\n") + "\n")), parse(APP));
    check_more("Provenance: {}\nX: \u{1}\n: \n", |_| {});
    check_more("System: x86_64-linux\n", |info| {
        info.system = Some("x86_64-linux".into())
    });
    let not_utf_8 = [LEAST.as_bytes(), b"X: \xff\n\xff: \n"].concat();
    assert_eq!(
        NarInfo::parse(&StoreDir::default(), &not_utf_8),
        Ok(least())
    );
}

#[test]
fn the_byte_after_the_colon_is_passed_over() {
    assert_eq!(parse(&LEAST.replace(": ", ":x")), Ok(least()));
    check_refused(
        "Deriver:vg5fcfpbwrrqdh72g1b6c0s812phcazb-base-1.0.drv\n",
        1,
        Kind::Deriver(StorePathError::NoHashPart),
    );
    let no_value = "FileSize:\n1\nSig: x\n";
    check_refused(no_value, 3, Kind::Signature(SignatureError::NoColon));
}

#[test]
fn blank_lines_and_comments_hide_the_next_field() {
    check_more("\nDeriver: nonsense\n", |_| {});
    check_more("# comment\nDeriver: nonsense\n", |_| {});
    check_refused("\n", 1, Kind::NoColon);
    check_refused("# comment\n", 1, Kind::NoColon);
    let first = parse(&format!("\n{LEAST}")).unwrap_err();
    assert_eq!(
        first,
        NarInfoError {
            line: 6,
            kind: Kind::StorePathMissing
        }
    );
    check_refused(
        "\n\nX: y\nCA: x\n",
        4,
        Kind::ContentAddress(ContentAddressError::Prefix),
    );
}

#[test]
fn line_ends() {
    check_refused("Deriver: unknown-deriver", 1, Kind::NoLineEnd);
    check_refused("Sig:", 1, Kind::NoLineEnd);
    check_refused("Sig:\n", 1, Kind::NoLineEnd);
    check_refused("Sig", 1, Kind::NoColon);
    let error = parse(&LEAST.replace('\n', "\r\n")).unwrap_err();
    assert_eq!(
        error,
        NarInfoError {
            line: 1,
            kind: Kind::StorePath(StorePathError::NameCharacter)
        }
    );
}

#[test]
fn references() {
    let a = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0";
    let b = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0";
    check_more("References: \n", |_| {});
    check_more("References:   \nReferences: \n", |_| {});
    let both = |info: &mut NarInfo| info.references = vec![path(a), path(b)];
    check_more(&format!("References:  {b}  {a} {b} \n"), both);
    check_more(&format!("References: \nReferences: {a} {b}\n"), both);
    check_refused(
        &format!("References: {a}\nReferences: \n"),
        2,
        Kind::ExtraReferences,
    );
    check_refused(
        &format!("References: {a}\nReferences: {b}\n"),
        2,
        Kind::ExtraReferences,
    );
    check_refused(
        "References: /nix/store/x\n",
        1,
        Kind::Reference(StorePathError::NoHashPart),
    );
    let bad_hash = StorePathError::HashPart(crate::HashPartError::Digit);
    check_refused(
        &format!("References: /nix/store/{a}\n"),
        1,
        Kind::Reference(StorePathError::NoHashPart),
    );
    check_refused(
        &format!("References: {}\n", a.replace("vd", "ve")),
        1,
        Kind::Reference(bad_hash),
    );
    // Without a space after the colon the next line is parsed as the value.
    check_refused(
        "References:\nFileSize: 1\n",
        1,
        Kind::Reference(StorePathError::NoHashPart),
    );
    check_refused("References:\n", 1, Kind::NoLineEnd);
}

#[test]
fn deriver() {
    let drv = "vg5fcfpbwrrqdh72g1b6c0s812phcazb-base-1.0.drv";
    check_more("Deriver: unknown-deriver\n", |_| {});
    check_more(&format!("Deriver: {drv}\n"), |info| {
        info.deriver = Some(path(drv))
    });
    let kind = Kind::Deriver(StorePathError::NoHashPart);
    check_refused(&format!("Deriver: /nix/store/{drv}\n"), 1, kind);
    check_refused("Deriver: \n", 1, kind);
}

#[test]
fn compression() {
    assert_eq!(least().compression, Compression::Bzip2);
    check_more("Compression: \n", |_| {});
    for (compression, name) in Compression::NAMES {
        assert_eq!(
            (compression.name(), Compression::from_name(name)),
            (name, Some(compression))
        );
        check_more(&format!("Compression: {name}\n"), |info| {
            info.compression = compression
        });
    }
    check_refused("Compression: zip\n", 1, Kind::Compression);
    check_refused("Compression: None\n", 1, Kind::Compression);
}

#[test]
fn sizes() {
    check_more("FileSize: 0\n", |info| info.file_size = Some(0));
    check_more("FileSize: +007\n", |info| info.file_size = Some(7));
    check_more("FileSize: 18446744073709551615\n", |info| {
        info.file_size = Some(u64::MAX)
    });
    for bad in [
        "",
        "-1",
        "-0",
        "1 ",
        " 1",
        "0x1",
        "1.0",
        "18446744073709551616",
        "٣",
    ] {
        check_refused(&format!("FileSize: {bad}\n"), 1, Kind::FileSize);
        check_refused(&format!("NarSize: {bad}\n"), 1, Kind::NarSize);
    }
    check_refused("NarSize: 0\n", 2, Kind::NarSizeMissing);
}

#[test]
fn hashes_in_every_form() {
    let hash = least().nar_hash.to_hash();
    for form in [
        format!("sha256:{}", hash.base16()),
        format!("sha256:{}", hash.base64()),
        hash.sri(),
    ] {
        check_more(&format!("NarHash: {form}\nFileHash: {form}\n"), |info| {
            info.file_hash = Some(hash);
        });
    }
    check_more("FileHash: md5:3y8bwfr609h3lh9ch0izcqq7fl\n", |info| {
        info.file_hash = Some(Hash::parse("md5:3y8bwfr609h3lh9ch0izcqq7fl").unwrap());
    });
    check_refused(
        "NarHash: md5:3y8bwfr609h3lh9ch0izcqq7fl\n",
        1,
        Kind::NarHash(NarHashError::NotSha256),
    );
    check_refused("FileHash: \n", 1, Kind::FileHash(HashError::NoAlgorithm));
}

#[test]
fn signatures() {
    let first = SIG.replace("test-1", "a-1");
    let (a, b) = (
        Signature::parse(&first).unwrap(),
        Signature::parse(SIG).unwrap(),
    );
    check_more(&format!("Sig: {SIG}\nSig: {first}\nSig: {SIG}\n"), |info| {
        info.signatures = vec![a, b];
    });
    check_refused("Sig: \n", 1, Kind::Signature(SignatureError::NoColon));
    check_refused(
        "Sig: nonsense\n",
        1,
        Kind::Signature(SignatureError::NoColon),
    );
    check_refused(
        &format!("Sig: {SIG}\nSig: :x\n"),
        2,
        Kind::Signature(SignatureError::Base64(crate::Base64Error::Length)),
    );
}

#[test]
fn content_address() {
    let text = "fixed:r:sha256:1i3sya593a400w1j9xdircraqa1icwlwhi7qzwd696l89nwi4hzf";
    let address = ContentAddress::parse(text).unwrap();
    let with = |info: &mut NarInfo| info.content_address = Some(address);
    check_more("CA: \n", |_| {});
    check_more(&format!("CA: {text}\n"), with);
    check_more(&format!("CA: \nCA: {text}\n"), with);
    check_refused(&format!("CA: {text}\nCA: \n"), 2, Kind::ExtraContentAddress);
    check_refused(
        "CA: x\n",
        1,
        Kind::ContentAddress(ContentAddressError::Prefix),
    );
}

#[test]
fn missing_fields() {
    let without = |line: usize| {
        let lines: Vec<&str> = LEAST.lines().collect();
        let kept: Vec<&str> = lines
            .iter()
            .enumerate()
            .filter(|&(at, _)| at != line)
            .map(|(_, l)| *l)
            .collect();
        parse(&(kept.join("\n") + "\n")).unwrap_err().kind
    };
    assert_eq!(
        [0, 1, 2, 3].map(without),
        [
            Kind::StorePathMissing,
            Kind::UrlMissing,
            Kind::NarHashMissing,
            Kind::NarSizeMissing,
        ]
    );
    check_refused("URL: \n", 2, Kind::UrlMissing);
    assert_eq!(
        parse("").unwrap_err(),
        NarInfoError {
            line: 1,
            kind: Kind::StorePathMissing
        }
    );
}

#[test]
fn store_path_must_be_full_and_in_the_directory() {
    let base_name = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0";
    let kind = Kind::StorePath(StorePathError::NotInStore);
    check_refused(&format!("StorePath: {base_name}\n"), 1, kind);
    check_refused(&format!("StorePath: /gnu/store/{base_name}\n"), 1, kind);
    let gnu = StoreDir::new("/gnu/store").unwrap();
    let text = LEAST.replace("/nix", "/gnu");
    assert_eq!(NarInfo::parse(&gnu, text.as_bytes()), Ok(least()));
}

#[test]
fn known_values_must_be_utf_8() {
    let text = [LEAST.as_bytes(), b"URL: \xff\n"].concat();
    let error = NarInfo::parse(&StoreDir::default(), &text).unwrap_err();
    assert_eq!(
        error,
        NarInfoError {
            line: 5,
            kind: Kind::NotUtf8
        }
    );
}

#[test]
fn values_that_would_start_another_field_are_refused() {
    let write = |info: NarInfo| {
        let mut out = Vec::new();
        let result = info.write(&StoreDir::default(), &mut out);
        assert_eq!(result.is_err(), out.is_empty());
        result
    };
    assert_eq!(write(least()), Ok(()));
    for url in ["", "nar/a b", "nar/x\nSig: y", "\t"] {
        assert_eq!(
            write(NarInfo {
                url: url.into(),
                ..least()
            }),
            Err(WriteError::Url)
        );
    }
    for system in ["", "x\nSig: y"] {
        let info = NarInfo {
            system: Some(system.into()),
            ..least()
        };
        assert_eq!(write(info), Err(WriteError::System));
    }
    assert_eq!(
        write(NarInfo {
            nar_size: 0,
            ..least()
        }),
        Err(WriteError::NarSize)
    );
}

/// The table in the documentation lists exactly the fields that the parser knows.
#[test]
fn documented_fields_are_parsed() {
    let documented: Vec<&str> = include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
        .flat_map(|row| row.split('|').next().unwrap().split(['`', ',', ' ']))
        .filter(|key| !key.is_empty())
        .collect();
    assert!(documented.iter().all(|key| parse::is_known(key.as_bytes())));
    assert_eq!(documented.len(), parse::FIELD_COUNT);
}
