//! ID tokens of `OpenID` Connect: their verification, and the conditions on their claims.
//!
//! An issuer, such as a CI service, gives a job a signed JSON Web Token with claims about the job.
//! A server verifies the token by the public keys of the issuer, and decides by its claims.
//!
//! # In scope
//!
//! | module | contents |
//! | --- | --- |
//! | [`id_token`] | the form, the signature, and the claims that every token must have |
//! | [`keys`] | the public keys of an issuer |
//! | [`discovery`] | the description of an issuer, which says where its keys are |
//! | [`claims`], [`conditions`] | the claims of a token, and the conditions of an operator on them |
//! | [`pattern`] | patterns for values of claims |
//!
//! # Out of scope
//!
//! Requests to an issuer, and what a token gives: the crate does no input or output and knows no
//! clock, which its `clippy.toml` disallows.
//!
//! # Source
//!
//! RFC 7515 (signatures), RFC 7517 (keys), RFC 7518 (algorithms), RFC 7519 (tokens), RFC 8037
//! (Ed25519), RFC 8725 (best current practices), `OpenID` Connect Core 1.0 and Discovery 1.0.

#![forbid(unsafe_code)]
// Tests may index and slice: a panic there fails the test, as intended.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice))]

pub mod claims;
pub mod conditions;
pub mod discovery;
pub mod id_token;
pub mod keys;
pub mod pattern;

/// Decodes base-64 as JSON Web Tokens have it: for URLs, without padding, in one form only.
fn decode(text: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(text)
        .ok()
}
