//! [`KeySet`]: the public keys of an issuer, a JSON Web Key Set.
//!
//! | algorithm | key | signature |
//! | --- | --- | --- |
//! | `RS256` | RSA, 2048 to 8192 bits | PKCS #1 v1.5 with SHA-256 |
//! | `PS256` | RSA, 2048 to 8192 bits | PSS with SHA-256 |
//! | `ES256` | curve P-256 | ECDSA with SHA-256 |
//! | `EdDSA` | Ed25519 | Ed25519 |
//!
//! The type of the key decides which algorithms are possible, so a token cannot make a public key
//! the secret of a symmetric algorithm. Keys of other types, keys for encryption, and keys without
//! a `kid` are left out.
//!
//! # Source
//!
//! RFC 7517, sections 4 and 5; RFC 7518, sections 3 and 6; RFC 8037, section 2.

use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

use crate::decode;

/// Maximum length of a key set, in bytes. That of GitHub has 7 KiB, with certificates.
pub const KEYS_LEN_MAX: u64 = 256 << 10;

/// Maximum number of keys in a set. Issuers have fewer than ten.
const KEY_COUNT_MAX: usize = 100;

/// A signature algorithm of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Algorithm {
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "PS256")]
    Ps256,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    /// The names of all algorithms, for messages.
    pub(crate) const NAMES: &str = "RS256, PS256, ES256 and EdDSA";

    /// Parses the name of an algorithm; `None` if it is not supported.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "PS256" => Self::Ps256,
            "ES256" => Self::Es256,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }
}

/// The error of a key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The text is no key set.
    #[error("its keys are not a JSON Web Key Set")]
    Malformed,
    /// The set has too many keys.
    #[error("it has more than {KEY_COUNT_MAX} keys")]
    TooMany,
    /// No key can be used.
    #[error("it has no key with a kid for {}", Algorithm::NAMES)]
    NoneUsable,
}

/// The public keys of an issuer that can verify tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySet(Vec<Key>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    id: String,
    /// The only algorithm of the key; `None`: all that its type has.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// The point, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key as an issuer writes it. Other members are not used, `x5c` and `x5u` among them.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    r#use: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Parses a key set.
    ///
    /// # Errors
    ///
    /// Any [`KeysError`].
    pub fn parse(text: &[u8]) -> Result<Self, KeysError> {
        let Ok(Jwks { keys }) = serde_json::from_slice(text) else {
            return Err(KeysError::Malformed);
        };
        if keys.len() > KEY_COUNT_MAX {
            return Err(KeysError::TooMany);
        }
        // Keys of unknown forms are left out (RFC 7517, 5).
        let keys = keys.into_iter().filter_map(|key| {
            let jwk: Jwk = serde_json::from_value(key).ok()?;
            Key::of(jwk)
        });
        let keys: Vec<Key> = keys.collect();
        match keys.is_empty() {
            true => Err(KeysError::NoneUsable),
            false => Ok(Self(keys)),
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no key; never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a key has this name.
    #[must_use]
    pub fn has(&self, key_id: &str) -> bool {
        self.0.iter().any(|key| key.id == key_id)
    }

    /// Returns whether a key of this name has made the signature by this algorithm. `None`: no key
    /// of this name can be used with it.
    pub(crate) fn verify(
        &self,
        key_id: &str,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Option<bool> {
        let keys = self.0.iter().filter(|key| key.id == key_id);
        let verdicts = keys.filter_map(|key| key.verify(algorithm, message, signature));
        verdicts.reduce(|one, other| one || other)
    }
}

impl Key {
    fn of(jwk: Jwk) -> Option<Self> {
        let is_for_signatures = jwk.r#use.is_none_or(|purpose| purpose == "sig")
            && jwk
                .key_ops
                .is_none_or(|purposes| purposes.iter().any(|one| one == "verify"));
        let algorithm = match jwk.alg {
            Some(name) => Some(Algorithm::from_name(&name)?),
            None => None,
        };
        let material = match (&*jwk.kty, jwk.crv.as_deref()) {
            ("RSA", _) => Material::Rsa {
                modulus: decode(jwk.n?)?,
                exponent: decode(jwk.e?)?,
            },
            ("EC", Some("P-256")) => {
                let (x, y) = (decode(jwk.x?)?, decode(jwk.y?)?);
                let is_point = x.len() == 32 && y.len() == 32;
                is_point.then(|| Material::P256([&[4][..], &x, &y].concat()))?
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(decode(jwk.x?)?),
            _ => return None,
        };
        is_for_signatures.then_some(Self {
            id: jwk.kid?,
            algorithm,
            material,
        })
    }

    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> Option<bool> {
        if self.algorithm.is_some_and(|own| own != algorithm) {
            return None;
        }
        let verified = match (&self.material, algorithm) {
            (Material::Rsa { modulus, exponent }, Algorithm::Rs256 | Algorithm::Ps256) => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    _ => &signature::RSA_PSS_2048_8192_SHA256,
                };
                let key = RsaPublicKeyComponents {
                    n: modulus,
                    e: exponent,
                };
                key.verify(parameters, message, signature)
            }
            (Material::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
            }
            (Material::Ed25519(key), Algorithm::EdDsa) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature)
            }
            _ => return None,
        };
        Some(verified.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples A.2 and A.3 of RFC 7515 and A.4 of RFC 8037: key without `kid`, token.
    const EXAMPLES: [(&str, Algorithm, &str); 3] = [
        (
            r#""kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB""#,
            Algorithm::Rs256,
            "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        ),
        (
            r#""kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0""#,
            Algorithm::Es256,
            "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
        (
            r#""kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo""#,
            Algorithm::EdDsa,
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
    ];

    fn set(members: &str) -> Result<KeySet, KeysError> {
        KeySet::parse(format!(r#"{{"keys": [{{{members}}}]}}"#).as_bytes())
    }

    fn parts(token: &str) -> (&[u8], Vec<u8>) {
        let (message, signature) = token.rsplit_once('.').unwrap();
        (message.as_bytes(), decode(signature).unwrap())
    }

    #[test]
    fn the_examples_of_the_specifications_are_verified() {
        for (members, algorithm, token) in EXAMPLES {
            let keys = set(&format!(r#""kid": "k", {members}"#)).unwrap();
            let (message, mut signature) = parts(token);
            let verify = |signature: &[u8]| keys.verify("k", algorithm, message, signature);
            assert_eq!(verify(&signature), Some(true), "{algorithm:?}");
            assert_eq!(keys.verify("K", algorithm, message, &signature), None);
            let other = keys.verify("k", algorithm, b"x", &signature);
            assert_eq!(other, Some(false));
            signature[0] ^= 1;
            assert_eq!(verify(&signature), Some(false));
            assert_eq!(verify(b""), Some(false));
        }
    }

    #[test]
    fn the_type_of_the_key_decides_about_the_algorithm() {
        use Algorithm::{EdDsa, Es256, Ps256, Rs256};
        for (members, own, token) in EXAMPLES {
            let keys = set(&format!(r#""kid": "k", {members}"#)).unwrap();
            let (message, signature) = parts(token);
            for other in [Rs256, Ps256, Es256, EdDsa] {
                let expected = match (own, other) {
                    (Rs256, Ps256) => Some(false),
                    (own, other) => (own == other).then_some(true),
                };
                let verified = keys.verify("k", other, message, &signature);
                assert_eq!(verified, expected, "{own:?} {other:?}");
            }
        }
        let (members, _, token) = EXAMPLES[0];
        let keys = set(&format!(r#""kid": "k", "alg": "PS256", {members}"#)).unwrap();
        let (message, signature) = parts(token);
        assert_eq!(keys.verify("k", Rs256, message, &signature), None);
    }

    #[test]
    fn an_empty_ecdsa_signature_is_refused() {
        // CVE-2022-21449: r = s = 0.
        let (members, algorithm, token) = EXAMPLES[1];
        let keys = set(&format!(r#""kid": "k", {members}"#)).unwrap();
        let (message, _) = parts(token);
        let verified = keys.verify("k", algorithm, message, &[0; 64]);
        assert_eq!(verified, Some(false));
    }

    #[test]
    fn keys_that_cannot_be_used_are_left_out() {
        let (rsa, ec) = (EXAMPLES[0].0, EXAMPLES[1].0);
        for members in [
            rsa,
            &format!(r#""kid": "k", "use": "enc", {rsa}"#),
            &format!(r#""kid": "k", "key_ops": ["encrypt"], {rsa}"#),
            &format!(r#""kid": "k", "alg": "HS256", {rsa}"#),
            &format!(r#""kid": 1, {rsa}"#),
            &format!(r#""kid": "k", {}"#, ec.replace("P-256", "P-384")),
            &format!(r#""kid": "k", {}"#, ec.replace("x_FE", "")),
            r#""kid": "k", "kty": "oct", "k": "AAAA""#,
            r#""kid": "k", "kty": "RSA""#,
            "",
        ] {
            assert_eq!(set(members), Err(KeysError::NoneUsable), "{members}");
        }
        let used = format!(r#""kid": "k", "use": "sig", "key_ops": ["verify"], {rsa}"#);
        assert_eq!(set(&used).unwrap().len(), 1);
        let several =
            format!(r#"{{"keys": [1, {{"kid": "a", {rsa}}}, {{}}, {{"kid": "b", {ec}}}]}}"#);
        let several = KeySet::parse(several.as_bytes()).unwrap();
        assert!(several.len() == 2 && several.has("a") && several.has("b"));
    }

    #[test]
    fn two_keys_of_one_name_are_both_tried() {
        let (rsa, ec) = (EXAMPLES[0].0, EXAMPLES[1].0);
        let keys = format!(r#"{{"keys": [{{"kid": "k", {rsa}}}, {{"kid": "k", {ec}}}]}}"#);
        let keys = KeySet::parse(keys.as_bytes()).unwrap();
        for (_, algorithm, token) in &EXAMPLES[..2] {
            let (message, signature) = parts(token);
            let verified = keys.verify("k", *algorithm, message, &signature);
            assert_eq!(verified, Some(true));
        }
    }

    #[test]
    fn small_and_odd_rsa_keys_verify_nothing() {
        let (members, algorithm, token) = EXAMPLES[0];
        let (message, signature) = parts(token);
        for odd in [
            members.replace("AQAB", "AQ"),
            members.replace("AQAB", ""),
            r#""kty": "RSA", "n": "AQAB", "e": "AQAB""#.to_owned(),
        ] {
            let keys = set(&format!(r#""kid": "k", {odd}"#)).unwrap();
            let verified = keys.verify("k", algorithm, message, &signature);
            assert_eq!(verified, Some(false), "{odd}");
        }
    }

    #[test]
    fn sets_have_limits() {
        for wrong in ["", "[]", "{}", r#"{"keys": 1}"#, "<html>", "\u{feff}{}"] {
            let parsed = KeySet::parse(wrong.as_bytes());
            assert_eq!(parsed, Err(KeysError::Malformed), "{wrong}");
        }
        let key = format!(r#"{{"kid": "k", {}}}"#, EXAMPLES[2].0);
        let of = |count: usize| {
            let keys = vec![&*key; count].join(",");
            KeySet::parse(format!(r#"{{"keys": [{keys}]}}"#).as_bytes())
        };
        assert_eq!(of(KEY_COUNT_MAX).unwrap().len(), KEY_COUNT_MAX);
        assert_eq!(of(KEY_COUNT_MAX + 1), Err(KeysError::TooMany));
        // Depth is limited by the JSON parser.
        let deep = "[".repeat(100_000);
        assert_eq!(KeySet::parse(deep.as_bytes()), Err(KeysError::Malformed));
    }
}
