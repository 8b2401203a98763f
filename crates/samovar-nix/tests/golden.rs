//! Parsers and writers agree byte for byte with files made by the real Nix: see
//! `testdata/nix/README.md`.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod common;

use std::path::PathBuf;

use samovar_nix::nar::{DecodeErrorKind, Decoder, Discard, Listing};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{Hash, NarHash, PathInfo, PublicKey, SecretKey, StoreDir};
use sha2::{Digest as _, Sha256};

const TEST_1: &str = "test-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA==";

fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../testdata/nix", name]
        .iter()
        .collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden_text(name: &str) -> String {
    String::from_utf8(golden(name)).unwrap()
}

fn events(name: &str) -> Vec<common::Owned> {
    let nar = golden(name);
    common::decode(Decoder::with_depth_max(usize::MAX), [nar.as_slice()])
        .unwrap()
        .0
}

#[test]
fn nars_are_read_and_written_back() {
    for line in golden_text("nars.txt").lines() {
        let [name, digest, size] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let nar = golden(name);
        let size: u64 = size.parse().unwrap();
        let (events, len) =
            common::decode(Decoder::with_depth_max(usize::MAX), [nar.as_slice()]).unwrap();
        assert_eq!(len, size, "{name}");
        assert_eq!(common::encode_all(&events), nar, "{name}");
        assert_eq!(
            common::encode(&events, &mut Discard, |_, _| {}),
            Ok(size),
            "{name}"
        );
        let nar_hash = NarHash::from_bytes(Sha256::digest(&nar).into());
        assert_eq!(nar_hash.nixbase32(), digest.as_bytes(), "{name}");
    }
}

#[test]
fn one_changed_byte_is_refused_or_means_another_tree() {
    for name in [
        "nar/tree.nar",
        "nar/script.nar",
        "nar/link.nar",
        "nar/order.nar",
    ] {
        let nar = golden(name);
        for place in 0..nar.len() {
            for flip in [0x01, 0x20, 0x80, 0xff] {
                let mut changed = nar.clone();
                changed[place] ^= flip;
                if let Ok((events, _)) = common::decode(Decoder::new(), [changed.as_slice()]) {
                    assert_eq!(common::encode_all(&events), changed, "{name} at {place}");
                }
            }
        }
    }
}

// Nix rejects the second NAR from 2.28.7, 2.30.5, 2.31.5, 2.32.8, 2.33.6, 2.34.8 and 2.35 on; 2.8.0
// does not.
#[test]
fn depth_of_64_is_refused_by_default() {
    let nar = golden("nar/deep-63.nar");
    assert!(common::decode(Decoder::new(), [nar.as_slice()]).is_ok());
    let nar = golden("nar/deep-64.nar");
    let error = common::decode(Decoder::new(), [nar.as_slice()]).unwrap_err();
    assert_eq!(error.kind, DecodeErrorKind::Depth);
    assert!(common::decode(Decoder::with_depth_max(65), [nar.as_slice()]).is_ok());
}

#[test]
fn listings_to_the_byte() {
    assert_eq!(
        common::listing(&events("nar/tree.nar")),
        golden_text("ls/tree.ls")
    );
    // The only difference is that Nix 2.8 writes invalid UTF-8 unchanged.
    let odd = golden("ls/odd.ls");
    assert!(std::str::from_utf8(&odd).is_err());
    assert_eq!(
        common::listing(&events("nar/odd.nar")),
        String::from_utf8_lossy(&odd)
    );
}

#[test]
fn listing_from_the_events_of_a_decoder() {
    let nar = golden("nar/tree.nar");
    let (mut decoder, mut listing) = (Decoder::new(), Listing::new());
    for mut piece in nar.chunks(5) {
        while let Some(event) = decoder.decode(&mut piece).unwrap() {
            listing.event(&event).unwrap();
        }
    }
    assert_eq!(listing.finish().unwrap(), golden_text("ls/tree.ls"));
}

#[test]
fn narinfos_are_read_written_back_and_signed_alike() {
    let dir = StoreDir::default();
    let secret = SecretKey::parse(TEST_1).unwrap();
    for name in ["tree", "tree-xz", "derivation", "flat", "text"] {
        let text = golden(&format!("narinfo/{name}.narinfo"));
        let info = NarInfo::parse(&dir, &text).unwrap();
        let mut written = Vec::new();
        info.write(&dir, &mut written).unwrap();
        assert_eq!(
            String::from_utf8(written),
            String::from_utf8(text),
            "{name}"
        );

        let path_info = PathInfo {
            path: info.store_path,
            nar_hash: info.nar_hash,
            nar_size: info.nar_size,
            references: info.references,
            deriver: info.deriver,
            signatures: info.signatures,
            content_address: info.content_address,
            registration_time: 0,
            ultimate: false,
            registration: None,
        };
        let fingerprint = path_info.fingerprint(&dir);
        assert!(
            secret
                .public()
                .verify(fingerprint.as_bytes(), &path_info.signatures[0]),
            "{name}"
        );
        assert_eq!(
            secret.sign(fingerprint.as_bytes()),
            path_info.signatures[0],
            "{name}"
        );
    }
}

#[test]
fn the_narinfo_of_a_tree_agrees_with_its_nar() {
    let info = NarInfo::parse(&StoreDir::default(), &golden("narinfo/tree.narinfo")).unwrap();
    let nar = golden("nar/tree.nar");
    assert_eq!(info.nar_size, nar.len() as u64);
    assert_eq!(info.nar_hash.as_bytes()[..], Sha256::digest(&nar)[..]);
    assert_eq!(
        info.nar_hash.to_hash(),
        *info.content_address.unwrap().hash()
    );
    assert_eq!(
        info.nar_hash.to_hash().sri(),
        "sha256-7kMSuU2ImmQa//hEyClnMSisMsux9SQDB4CokYryesQ="
    );
}

#[test]
fn keys() {
    let secret = SecretKey::parse(&golden_text("keys/gold-1.secret")).unwrap();
    assert!(secret.halves_agree());
    assert_eq!(
        secret.public().to_string(),
        golden_text("keys/gold-1.public")
    );
    let public = PublicKey::parse(&golden_text("keys/gold-1.public")).unwrap();
    assert!(public.verify(b"message", &secret.sign(b"message")));
}

#[test]
fn hashes() {
    for line in golden_text("hashes.txt").lines() {
        let [algorithm, base16, base32, base64, sri] = line.split(' ').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        let hash = Hash::parse(sri).unwrap();
        assert_eq!(hash.algorithm().name(), algorithm);
        assert_eq!(hash.base16(), base16);
        assert_eq!(hash.nixbase32(), base32);
        assert_eq!(hash.base64(), base64);
        assert_eq!(hash.sri(), sri);
        for digest in [base16, base32, base64] {
            assert_eq!(Hash::parse(&format!("{algorithm}:{digest}")), Ok(hash));
        }
    }
}
