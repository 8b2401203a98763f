use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

use super::*;

const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "https://cache.example.org";
const NOW: i64 = 1_000_000;

/// An issuer with one key, named `k`.
struct Issuer {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let scheme = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::generate_pkcs8(scheme, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(scheme, pair.as_ref(), &random).unwrap();
        Self { pair, random }
    }

    fn keys(&self) -> KeySet {
        let point = self.pair.public_key().as_ref();
        let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
        let keys = json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": x, "y": y}]});
        KeySet::parse(keys.to_string().as_bytes()).unwrap()
    }

    fn sign(&self, head: &Value, claims: &Value) -> String {
        let message = format!(
            "{}.{}",
            encode(head.to_string()),
            encode(claims.to_string())
        );
        let signature = self.pair.sign(&self.random, message.as_bytes()).unwrap();
        format!("{message}.{}", encode(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "ES256", "kid": "k"}), claims)
    }

    fn verify(&self, token: &str) -> Result<Claims, Fault> {
        let token = IdToken::parse(token.as_bytes())?;
        token.verify(&self.keys(), ISSUER, AUDIENCE, NOW)
    }
}

/// Returns valid claims, with one changed; `null`: without it.
fn claims(name: &str, value: Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 300, "nbf": NOW, "iat": NOW, "sub": "a",
    });
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
        value => claims[name] = value,
    }
    claims
}

#[test]
fn a_right_token_is_verified() {
    let issuer = Issuer::new();
    let verified = issuer
        .verify(&issuer.token(&claims("sub", json!("b"))))
        .unwrap();
    assert_eq!(verified.text("sub").as_deref(), Some("b"));
    for (name, value) in [
        ("aud", json!([AUDIENCE])),
        ("nbf", Value::Null),
        ("iat", Value::Null),
        ("exp", json!(NOW + 1)),
        ("exp", json!(NOW - LEEWAY_S + 1)),
        ("nbf", json!(NOW + LEEWAY_S)),
        ("iat", json!(NOW + LEEWAY_S)),
    ] {
        let token = issuer.token(&claims(name, value.clone()));
        assert!(issuer.verify(&token).is_ok(), "{name} {value}");
    }
    let head = json!({"alg": "ES256", "kid": "k", "typ": "jwt", "jku": "https://evil.example"});
    assert!(
        issuer
            .verify(&issuer.sign(&head, &claims("a", Value::Null)))
            .is_ok()
    );
}

#[test]
fn a_parsed_token_does_not_show_what_could_be_sent_again() {
    let text = Issuer::new().token(&claims("sub", json!("b")));
    let token = IdToken::parse(text.as_bytes()).unwrap();
    let shown = format!("{token:?}");
    assert!(
        !shown.contains(&format!("{:?}", token.signature)),
        "{shown}"
    );
    assert!(!shown.contains(&format!("{:?}", token.message)), "{shown}");
}

#[test]
fn wrong_claims_are_refused() {
    let issuer = Issuer::new();
    for (name, value, expected) in [
        ("iss", json!("https://issuer.example/"), Fault::Issuer),
        ("iss", json!("https://evil.example"), Fault::Issuer),
        ("iss", json!([ISSUER]), Fault::Claim("iss")),
        ("iss", Value::Null, Fault::Claim("iss")),
        ("aud", json!("https://cache.example.org/"), Fault::Audience),
        ("aud", json!(["other", AUDIENCE]), Fault::Audience),
        ("aud", json!([]), Fault::Audience),
        ("aud", json!({"a": AUDIENCE}), Fault::Audience),
        ("aud", Value::Null, Fault::Claim("aud")),
        ("exp", json!(NOW - LEEWAY_S), Fault::Expired),
        ("exp", json!(i64::MIN), Fault::Expired),
        ("exp", json!("9999999999"), Fault::Claim("exp")),
        ("exp", json!(1e300), Fault::Claim("exp")),
        ("exp", Value::Null, Fault::Claim("exp")),
        ("nbf", json!(NOW + LEEWAY_S + 1), Fault::NotYet("nbf")),
        ("nbf", json!("x"), Fault::Claim("nbf")),
        ("iat", json!(i64::MAX), Fault::NotYet("iat")),
    ] {
        let token = issuer.token(&claims(name, value.clone()));
        assert_eq!(issuer.verify(&token), Err(expected), "{name} {value}");
    }
}

#[test]
fn forged_tokens_are_refused() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let good = claims("sub", json!("a"));
    let forged = other.token(&good);
    assert_eq!(issuer.verify(&forged), Err(Fault::Signature));
    // The claims of one token with the signature of another one.
    let (one, two) = (
        issuer.token(&good),
        issuer.token(&claims("sub", json!("b"))),
    );
    let (_, signature) = two.rsplit_once('.').unwrap();
    let (message, _) = one.rsplit_once('.').unwrap();
    assert_eq!(
        issuer.verify(&format!("{message}.{signature}")),
        Err(Fault::Signature)
    );
    assert_eq!(issuer.verify(&format!("{message}.")), Err(Fault::Signature));
    assert_eq!(issuer.verify(message), Err(Fault::Malformed));
    // The signature is checked before the claims.
    let forged = other.token(&claims("aud", json!("x")));
    assert_eq!(issuer.verify(&forged), Err(Fault::Signature));
}

#[test]
fn algorithms_and_heads_of_attackers_are_refused() {
    let issuer = Issuer::new();
    let good = claims("sub", json!("a"));
    let key = || json!({"kty": "oct", "k": "AAAA"});
    for (head, expected) in [
        (json!({"alg": "none", "kid": "k"}), Fault::Algorithm),
        (json!({"alg": "None", "kid": "k"}), Fault::Algorithm),
        (json!({"alg": "HS256", "kid": "k"}), Fault::Algorithm),
        (json!({"alg": "es256", "kid": "k"}), Fault::Algorithm),
        (json!({"alg": "", "kid": "k"}), Fault::Algorithm),
        (json!({"kid": "k"}), Fault::Malformed),
        (json!({"alg": ["ES256"], "kid": "k"}), Fault::Malformed),
        (json!({"alg": "RS256", "kid": "k"}), Fault::UnknownKey),
        (json!({"alg": "EdDSA", "kid": "k"}), Fault::UnknownKey),
        (json!({"alg": "ES256", "kid": "../k"}), Fault::UnknownKey),
        (json!({"alg": "ES256", "kid": "k\0"}), Fault::UnknownKey),
        (json!({"alg": "ES256", "kid": "K"}), Fault::UnknownKey),
        (
            json!({"alg": "ES256", "kid": "k' or 1=1"}),
            Fault::UnknownKey,
        ),
        (
            json!({"alg": "ES256", "kid": "", "jwk": key()}),
            Fault::UnknownKey,
        ),
        (
            json!({"alg": "ES256", "kid": "k".repeat(257)}),
            Fault::NoKeyId,
        ),
        (json!({"alg": "ES256"}), Fault::NoKeyId),
        (json!({"alg": "ES256", "kid": ["k"]}), Fault::Malformed),
        (
            json!({"alg": "ES256", "kid": "k", "crit": ["x"]}),
            Fault::Type("extensions (crit)"),
        ),
        (
            json!({"alg": "ES256", "kid": "k", "b64": false}),
            Fault::Type("extensions (crit)"),
        ),
        (
            json!({"alg": "ES256", "kid": "k", "typ": "at+jwt"}),
            Fault::Type("a typ other than JWT"),
        ),
    ] {
        let token = issuer.sign(&head, &good);
        assert_eq!(issuer.verify(&token), Err(expected), "{head}");
    }
    // Two algorithms in one head.
    let head = encode(r#"{"alg":"ES256","alg":"none","kid":"k"}"#);
    let token = issuer.token(&good);
    let (_, rest) = token.split_once('.').unwrap();
    assert_eq!(
        issuer.verify(&format!("{head}.{rest}")),
        Err(Fault::Malformed)
    );
}

#[test]
fn forms_that_are_no_tokens_are_refused() {
    let issuer = Issuer::new();
    let token = issuer.token(&claims("sub", json!("a")));
    for wrong in [
        "",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d.e",
        "smv1_aaaa",
        &format!("{token}."),
        &format!(" {token}"),
        &format!("{token}="),
        &token.replace('.', ","),
    ] {
        assert_eq!(issuer.verify(wrong), Err(Fault::Malformed), "{wrong}");
    }
    let long = format!("{token}{}", "A".repeat(TOKEN_LEN_MAX));
    assert_eq!(issuer.verify(&long), Err(Fault::TooLong));
    let padded = |len: usize| issuer.token(&claims("pad", json!("a".repeat(len))));
    let fits = (0..)
        .map(|step| padded(TOKEN_LEN_MAX * 3 / 4 - step))
        .find(|one| one.len() <= TOKEN_LEN_MAX);
    let fits = fits.unwrap();
    assert!(fits.len() > TOKEN_LEN_MAX - 4 && issuer.verify(&fits).is_ok());
    // Deep claims do not overflow the stack.
    let deep = encode(format!("{}1", "[".repeat(9000)));
    let head = encode(r#"{"alg":"ES256","kid":"k"}"#);
    assert_eq!(
        issuer.verify(&format!("{head}.{deep}.")),
        Err(Fault::Malformed)
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<Vec<u8>>(), head in any::<String>(), body in any::<String>()) {
        let _parsed = IdToken::parse(&text);
        let token = format!("{}.{}.{}", encode(head), encode(body), encode("x"));
        let _parsed = IdToken::parse(token.as_bytes());
    }
}
