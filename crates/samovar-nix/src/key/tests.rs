use super::*;

const SECRET: &str = "test-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA==";
const PUBLIC: &str = "test-1:A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";
const MESSAGE: &[u8] = b"1;/nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0;sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z;120;";
const SIGNATURE: &str = "test-1:PNCZbIfuWmQC5aFLl8d8/F7cx2V+Sx/H55eGw5+5mFTdhm7slXXNIyCdSraij3gcnRsqhv+j+nrKClEcSyBdAA==";

#[track_caller]
fn check_refused(secret: &str, error: KeyError) {
    assert_eq!(SecretKey::parse(secret).map(drop), Err(error));
}

// The expected signatures were checked against Nix 2.8.0, 2.26.3 and 2.34.8.
#[test]
fn signs_as_nix_does() {
    let secret = SecretKey::parse(SECRET).unwrap();
    assert_eq!(secret.name(), "test-1");
    assert_eq!(secret.public().to_string(), PUBLIC);
    assert_eq!(secret.sign(MESSAGE).to_string(), SIGNATURE);
    assert!(secret.halves_agree());
}

#[test]
fn verifies_only_what_was_signed_by_that_key_and_name() {
    let public = PublicKey::parse(PUBLIC).unwrap();
    let signature = Signature::parse(SIGNATURE).unwrap();
    assert!(public.verify(MESSAGE, &signature));
    assert!(!public.verify(b"", &signature));
    let renamed = Signature::new("test-2", *signature.as_bytes()).unwrap();
    assert!(!public.verify(MESSAGE, &renamed));
    let other = PublicKey::parse(&PUBLIC.replace("A6EH", "B6EH")).unwrap();
    assert!(!other.verify(MESSAGE, &signature));
    for place in 0..64 {
        let mut bytes = *signature.as_bytes();
        bytes[place] ^= 1;
        assert!(
            !public.verify(MESSAGE, &Signature::new("test-1", bytes).unwrap()),
            "{place}"
        );
    }
}

#[test]
fn a_weak_public_key_verifies_nothing() {
    // The neutral element of the curve: with this key, a signature with neutral R and zero S is
    // valid for every message.
    let mut neutral = [0; 64];
    neutral[0] = 1;
    let weak = PublicKey {
        name: "test-1".into(),
        bytes: neutral[..32].try_into().unwrap(),
    };
    assert!(!weak.verify(MESSAGE, &Signature::new("test-1", neutral).unwrap()));
}

#[test]
fn white_space_around_the_key_is_dropped() {
    for text in [
        format!("{SECRET}\n"),
        format!(" {SECRET}\r\n\n"),
        SECRET.trim_end_matches('=').into(),
    ] {
        assert_eq!(
            SecretKey::parse(&text).unwrap().sign(MESSAGE).to_string(),
            SIGNATURE
        );
    }
    assert_eq!(
        PublicKey::parse(&format!("{PUBLIC}\n"))
            .unwrap()
            .to_string(),
        PUBLIC
    );
}

#[test]
fn the_seed_decides_when_the_halves_differ() {
    let secret = SecretKey::parse(&SECRET.replace("8DoQ", "8EoQ")).unwrap();
    assert!(!secret.halves_agree());
    assert_eq!(secret.public().to_string(), PUBLIC);
    assert_eq!(secret.sign(MESSAGE).to_string(), SIGNATURE);
}

#[test]
fn debug_shows_no_secret() {
    let debug = format!("{:?}", SecretKey::parse(SECRET).unwrap());
    assert_eq!(debug, "SecretKey(test-1:<redacted>)");
}

#[test]
fn refusals() {
    check_refused("", KeyError::NoColon);
    check_refused("test-1", KeyError::NoColon);
    check_refused(&SECRET.replace("test-1", ""), KeyError::Name);
    check_refused(&SECRET.replace("test-1", "test 1"), KeyError::Name);
    check_refused(&SECRET.replace("test-1", "test\n1"), KeyError::Name);
    check_refused("test-1:", KeyError::Base64(Base64Error::Length));
    check_refused(PUBLIC, KeyError::Base64(Base64Error::Length));
    check_refused(
        &SECRET.replace("AAEC", "AA C"),
        KeyError::Base64(Base64Error::Character),
    );
    assert_eq!(
        PublicKey::parse(SECRET),
        Err(KeyError::Base64(Base64Error::Length))
    );
}
