//! ID tokens: JSON Web Tokens that an issuer has signed.
//!
//! # Grammar
//!
//! ```text
//! token = base64url(head) "." base64url(claims) "." base64url(signature)
//! ```
//!
//! # Theory of operation
//!
//! [`IdToken::parse`] reads head and claims, and verifies nothing: the issuer in the claims says
//! whose keys verify the token. [`IdToken::verify`] consumes the token and returns its claims only
//! if the signature, the issuer, the audience and the times are right. Members of the head that
//! name keys (`jwk`, `jku`, `x5c`, `x5u`) are not used, because whoever made the token has chosen
//! them.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | [`TOKEN_LEN_MAX`] | 12 KiB | tokens of GitHub have 2 KiB, of GitLab with many groups 8 KiB |
//! | [`KEY_ID_LEN_MAX`] | 256 bytes | names of keys are hashes |
//! | [`LEEWAY_S`] | 60 s | difference of two clocks that are set by NTP |

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::claims::Claims;
use crate::decode;
use crate::keys::{Algorithm, KeySet};

/// Maximum length of a token, in bytes.
pub const TOKEN_LEN_MAX: usize = 12 << 10;

/// Maximum length of the name of a key, in bytes.
pub const KEY_ID_LEN_MAX: usize = 256;

/// Time, in seconds, by which the clocks of an issuer and of this machine may differ.
pub const LEEWAY_S: i64 = 60;

/// Why a token is refused: a sentence without its first words "the ID token". It has no value of a
/// claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The token is too long.
    #[error("has more than {TOKEN_LEN_MAX} bytes")]
    TooLong,
    /// The text is not a signed token.
    #[error("is not a signed JSON Web Token")]
    Malformed,
    /// The algorithm is not supported, or is none.
    #[error("is signed by an algorithm other than {}", Algorithm::NAMES)]
    Algorithm,
    /// The head requires something that is not supported, or says that this is no ID token.
    #[error("is of another type: its head has {0}")]
    Type(&'static str),
    /// The head names no key.
    #[error("does not name its key: its head has no kid of at most {KEY_ID_LEN_MAX} bytes")]
    NoKeyId,
    /// The issuer has no key of this name that fits the algorithm.
    #[error("is signed by a key that its issuer does not have")]
    UnknownKey,
    /// The signature is wrong.
    #[error("has a wrong signature")]
    Signature,
    /// The token is of another issuer.
    #[error("is of an issuer (iss) that is not configured here")]
    Issuer,
    /// The token is for another service.
    #[error("is not for this service alone: its audience (aud) must be the one configured here")]
    Audience,
    /// A claim that every token must have is missing, or is of a wrong type.
    #[error("has no valid claim {0}")]
    Claim(&'static str),
    /// The token has expired.
    #[error("has expired (exp): request a new one")]
    Expired,
    /// The token is not valid yet.
    #[error("is not valid yet ({0}): compare the clocks of the issuer and of this server")]
    NotYet(&'static str),
}

/// A token that was parsed, but not verified.
pub struct IdToken<'a> {
    algorithm: Algorithm,
    key_id: String,
    /// Head and claims, as they were signed.
    message: &'a [u8],
    signature: Vec<u8>,
    claims: Claims,
}

/// Hides the signature, without which nobody can use the token.
impl fmt::Debug for IdToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdToken")
            .field("algorithm", &self.algorithm)
            .field("key_id", &self.key_id)
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
    b64: Option<Value>,
}

impl<'a> IdToken<'a> {
    /// Parses a token. Verifies nothing.
    ///
    /// # Errors
    ///
    /// A [`Fault`] of its form.
    pub fn parse(text: &'a [u8]) -> Result<Self, Fault> {
        if text.len() > TOKEN_LEN_MAX {
            return Err(Fault::TooLong);
        }
        let mut dots = (0..text.len()).filter(|at| text.get(*at) == Some(&b'.'));
        let (Some(first), Some(second), None) = (dots.next(), dots.next(), dots.next()) else {
            return Err(Fault::Malformed);
        };
        let part = |range: std::ops::Range<usize>| {
            let part = text.get(range).and_then(decode);
            part.ok_or(Fault::Malformed)
        };
        let head = part(0..first)?;
        let head: Head = serde_json::from_slice(&head).map_err(|_error| Fault::Malformed)?;
        let algorithm = Algorithm::from_name(&head.alg).ok_or(Fault::Algorithm)?;
        if head.crit.is_some() || head.b64.is_some() {
            return Err(Fault::Type("extensions (crit)"));
        }
        if head.typ.is_some_and(|typ| !typ.eq_ignore_ascii_case("JWT")) {
            return Err(Fault::Type("a typ other than JWT"));
        }
        let key_id = head.kid.filter(|id| id.len() <= KEY_ID_LEN_MAX);
        let claims = part(first + 1..second)?;
        let Ok(Value::Object(claims)) = serde_json::from_slice(&claims) else {
            return Err(Fault::Malformed);
        };
        Ok(Self {
            algorithm,
            key_id: key_id.ok_or(Fault::NoKeyId)?,
            message: text.get(..second).unwrap_or_default(),
            signature: part(second + 1..text.len())?,
            claims: Claims(claims),
        })
    }

    /// Returns the issuer that the token states. It is not verified.
    ///
    /// # Errors
    ///
    /// The token states none.
    pub fn issuer(&self) -> Result<&str, Fault> {
        let issuer = self.claims.0.get("iss").and_then(Value::as_str);
        issuer.ok_or(Fault::Claim("iss"))
    }

    /// Returns the name of the key that the token states. It is not verified.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Verifies the token, and returns its claims.
    ///
    /// `keys`: of the issuer. `now`: in seconds since 1970. The token must be for `audience` alone:
    /// another service that also receives it could use it here.
    ///
    /// # Errors
    ///
    /// Any [`Fault`]. The signature is checked first, so that nobody can learn what this server
    /// expects by forged tokens.
    pub fn verify(
        self,
        keys: &KeySet,
        issuer: &str,
        audience: &str,
        now: i64,
    ) -> Result<Claims, Fault> {
        let verified = keys.verify(&self.key_id, self.algorithm, self.message, &self.signature);
        match verified {
            Some(true) => {}
            Some(false) => return Err(Fault::Signature),
            None => return Err(Fault::UnknownKey),
        }
        if self.issuer()? != issuer {
            return Err(Fault::Issuer);
        }
        let claims = self.claims;
        check_audience(&claims, audience)?;
        let time = |name| claims.time(name).map_err(|()| Fault::Claim(name));
        let expires_at = time("exp")?.ok_or(Fault::Claim("exp"))?;
        if expires_at.saturating_add(LEEWAY_S) <= now {
            return Err(Fault::Expired);
        }
        for name in ["nbf", "iat"] {
            if time(name)?.is_some_and(|at| at.saturating_sub(LEEWAY_S) > now) {
                return Err(Fault::NotYet(name));
            }
        }
        Ok(claims)
    }
}

fn check_audience(claims: &Claims, audience: &str) -> Result<(), Fault> {
    let is_own = |value: &Value| value.as_str() == Some(audience);
    let is_for_us = match claims.0.get("aud") {
        None | Some(Value::Null) => return Err(Fault::Claim("aud")),
        Some(Value::Array(values)) => !values.is_empty() && values.iter().all(is_own),
        Some(value) => is_own(value),
    };
    match is_for_us {
        true => Ok(()),
        false => Err(Fault::Audience),
    }
}

#[cfg(test)]
mod tests;
