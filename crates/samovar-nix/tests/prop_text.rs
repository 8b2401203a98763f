//! Parsing the text of any value gives the value again. Arbitrary text causes no panic.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use proptest::collection::vec;
use proptest::prelude::*;
use samovar_nix::narinfo::{Compression, NarCoding, NarInfo, write_for};
use samovar_nix::{
    Algorithm, ContentAddress, Hash, HashPart, Method, NarHash, PathInfo, PublicKey, SecretKey,
    Signature, StoreDir, StorePath, nixbase32,
};

fn store_path() -> impl Strategy<Value = StorePath> {
    (any::<[u8; 20]>(), "[0-9a-zA-Z+._?=-]{1,211}").prop_map(|(hash_part, name)| {
        let base_name = format!("{}-{name}", HashPart::from_bytes(hash_part));
        StorePath::from_base_name(&base_name).unwrap()
    })
}

fn hash() -> impl Strategy<Value = Hash> {
    let algorithms = prop::sample::select(vec![
        Algorithm::Md5,
        Algorithm::Sha1,
        Algorithm::Sha256,
        Algorithm::Sha512,
        Algorithm::Blake3,
    ]);
    (algorithms, any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(algorithm, a, b)| {
        let bytes = [a, b].concat();
        Hash::new(algorithm, &bytes[..algorithm.digest_len()]).unwrap()
    })
}

fn signature() -> impl Strategy<Value = Signature> {
    ("[!-9;-~é]{1,20}", any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(name, a, b)| {
        Signature::new(&name, [a, b].concat().try_into().unwrap()).unwrap()
    })
}

fn content_address() -> impl Strategy<Value = ContentAddress> {
    let methods = prop::sample::select(vec![Method::Flat, Method::Nar, Method::Git]);
    prop_oneof![
        (methods, hash()).prop_map(|(method, hash)| ContentAddress::new(method, hash).unwrap()),
        any::<[u8; 32]>().prop_map(|digest| {
            ContentAddress::new(Method::Text, Hash::sha256(&digest)).unwrap()
        }),
    ]
}

prop_compose! {
    fn nar_info()(
        store_path in store_path(),
        url in "[!-~é]{1,60}",
        compression in prop::sample::select(vec![Compression::None, Compression::Xz]),
        file_hash in prop::option::of(hash()),
        file_size in any::<Option<u64>>(),
        nar_hash in any::<[u8; 32]>(),
        nar_size in 1..=u64::MAX,
        references in prop::collection::btree_set(store_path(), 0..5),
        deriver in prop::option::of(store_path()),
        system in prop::option::of("[a-z0-9_-]{1,20}"),
        signatures in prop::collection::btree_set(signature(), 0..4),
        content_address in prop::option::of(content_address()),
    ) -> NarInfo {
        NarInfo {
            store_path,
            url,
            compression,
            file_hash,
            file_size,
            nar_hash: NarHash::from_bytes(nar_hash),
            nar_size,
            references: references.into_iter().collect(),
            deriver,
            system,
            signatures: signatures.into_iter().collect(),
            content_address,
        }
    }
}

fn path_info(info: &NarInfo) -> PathInfo {
    PathInfo {
        path: info.store_path.clone(),
        nar_hash: info.nar_hash,
        nar_size: info.nar_size,
        references: info.references.clone(),
        deriver: info.deriver.clone(),
        signatures: info.signatures.clone(),
        content_address: info.content_address,
        registration_time: 0,
        ultimate: false,
        registration: None,
    }
}

/// Encodes base-32 by its definition: the reference implementation.
fn nixbase32_by_definition(bytes: &[u8]) -> String {
    let bit = |at: usize| {
        bytes
            .get(at / 8)
            .is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    };
    let digit = |k: usize| (0..5).fold(0, |digit, i| digit | usize::from(bit(5 * k + i)) << i);
    let digits = (0..nixbase32::encoded_len(bytes.len())).rev().map(digit);
    digits
        .map(|digit| char::from(nixbase32::ALPHABET[digit]))
        .collect()
}

proptest! {
    #[test]
    fn nixbase32_round_trip(bytes in vec(any::<u8>(), 0..80)) {
        let text = nixbase32::encode(&bytes);
        prop_assert_eq!(&text, &nixbase32_by_definition(&bytes));
        prop_assert_eq!(nixbase32::decode(text.as_bytes()), Ok(bytes));
    }

    #[test]
    fn nixbase32_has_one_text_for_each_value(text in "[0-9a-z]{0,60}") {
        if let Ok(bytes) = nixbase32::decode(text.as_bytes()) {
            prop_assert_eq!(nixbase32::encode(&bytes), text);
        }
    }

    #[test]
    fn hashes(hash in hash()) {
        let name = hash.algorithm().name();
        for form in [hash.base16(), hash.nixbase32(), hash.base64()] {
            prop_assert_eq!(Hash::parse(&format!("{name}:{form}")), Ok(hash));
        }
        prop_assert_eq!(Hash::parse(&hash.sri()), Ok(hash));
    }

    #[test]
    fn store_paths(path in store_path()) {
        let dir = StoreDir::default();
        prop_assert_eq!(StorePath::parse(&dir, &path.full(&dir)), Ok(path.clone()));
        prop_assert_eq!(format!("{}-{}", path.hash_part(), path.name()), path.base_name());
        prop_assert_eq!(HashPart::parse(&path.hash_part().to_text()), Ok(path.hash_part()));
    }

    #[test]
    fn content_addresses(address in content_address()) {
        prop_assert_eq!(ContentAddress::parse(&address.to_string()), Ok(address));
    }

    #[test]
    fn signatures(signature in signature()) {
        prop_assert_eq!(Signature::parse(&signature.to_string()), Ok(signature));
    }

    #[test]
    fn narinfos(info in nar_info()) {
        let dir = StoreDir::default();
        let mut text = Vec::new();
        info.write(&dir, &mut text).unwrap();
        prop_assert_eq!(NarInfo::parse(&dir, &text), Ok(info));
    }

    #[test]
    fn nix_serve_narinfos(info in nar_info()) {
        let dir = StoreDir::default();
        let mut text = Vec::new();
        write_for(&path_info(&info), &dir, NarCoding::Identity, &info.signatures, &mut text);
        let read = NarInfo::parse(&dir, &text).unwrap();
        let hash_part = info.store_path.hash_part();
        let expected = NarInfo {
            url: format!("nar/{hash_part}-{}.nar", info.nar_hash.to_hash().nixbase32()),
            compression: Compression::None,
            file_hash: None,
            file_size: None,
            system: None,
            content_address: None,
            ..info
        };
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn keys(seed in any::<[u8; 32]>(), message in vec(any::<u8>(), 0..100)) {
        // The public half of the key does not matter: the seed determines the key.
        let sri = Hash::new(Algorithm::Sha512, &[seed, seed].concat()).unwrap().base64();
        let secret = SecretKey::parse(&format!("key-1:{sri}\n")).unwrap();
        let signature = secret.sign(&message);
        let public = PublicKey::parse(&secret.public().to_string()).unwrap();
        prop_assert!(public.verify(&message, &signature));
        prop_assert!(!public.verify(&[&message[..], b"."].concat(), &signature));
    }

    #[test]
    fn arbitrary_text_does_no_harm(text in "\\PC{0,120}", bytes in vec(any::<u8>(), 0..200)) {
        let dir = StoreDir::default();
        if let Ok(hash) = Hash::parse(&text) {
            prop_assert_eq!(Hash::parse(&hash.to_string()), Ok(hash));
        }
        if let Ok(path) = StorePath::from_base_name(&text) {
            prop_assert_eq!(path.base_name(), text.as_str());
        }
        if let Ok(signature) = Signature::parse(&text) {
            prop_assert_eq!(signature.to_string(), text.as_str());
        }
        if let Ok(dir) = StoreDir::new(&text) {
            prop_assert_eq!(StoreDir::new(dir.as_str()), Ok(dir.clone()));
        }
        prop_assert!(StorePath::parse(&dir, &text).is_err());
        prop_assert!(ContentAddress::parse(&text).is_err());
        prop_assert!(SecretKey::parse(&text).is_err());
        prop_assert!(PublicKey::parse(&text).is_err());
        prop_assert!(NarInfo::parse(&dir, &bytes).is_err());
        prop_assert_eq!(HashPart::parse(&bytes).is_ok(), {
            bytes.len() == 32 && nixbase32::decode(&bytes).is_ok()
        });
    }

    #[test]
    fn arbitrary_lines_do_no_harm(
        info in nar_info(),
        lines in vec("(URL|NarSize|References|Sig|CA|X)?:? ?[ -~\n]{0,60}\n?", 0..3),
    ) {
        let (dir, mut text) = (StoreDir::default(), Vec::new());
        info.write(&dir, &mut text).unwrap();
        text.extend(lines.concat().bytes());
        if let Ok(info) = NarInfo::parse(&dir, &text) {
            let mut text = Vec::new();
            if info.write(&dir, &mut text).is_ok() {
                prop_assert_eq!(NarInfo::parse(&dir, &text), Ok(info));
            }
        }
    }
}
