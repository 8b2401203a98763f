//! The keys that parts of pushes have in a bucket: shorter ones than in a directory, because some
//! engines make the name of a file of a key.
//!
//! `.samovar/tmp/push-<push>/<NAR hash>-<number>-<length>-<SHA-256>` is
//! `.samovar/p/<push>/<all four numbers>` in a bucket, each in base 64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use samovar_nix::{Hash, NarHash, nixbase32};
use samovar_protocol::parse_sha256;

use crate::layout::PART_PREFIX;

/// Prefix of the keys of parts in a bucket.
const PREFIX: &str = ".samovar/p/";

/// Length of a push's identifier, in bytes.
const PUSH_LEN: usize = 16;

/// Returns the key that an object has in a bucket. Keys of other objects than parts stay, and so
/// does a prefix of keys.
pub(super) fn in_bucket(key: &str) -> Cow<'_, str> {
    match key.strip_prefix(PART_PREFIX).map(shortened) {
        Some(Some(key)) => Cow::Owned(key),
        _ => Cow::Borrowed(key),
    }
}

fn shortened(rest: &str) -> Option<String> {
    let (push, name) = rest.split_once('/').unwrap_or((rest, ""));
    let mut key = PREFIX.to_owned();
    if push.is_empty() {
        return Some(key);
    }
    let id = u128::from_str_radix(push, 16).ok()?.to_be_bytes();
    URL_SAFE_NO_PAD.encode_string(id, &mut key);
    if rest.contains('/') {
        key.push('/');
    }
    if !name.is_empty() {
        let mut words = name.split('-');
        let mut bytes = Vec::new();
        bytes.extend(
            NarHash::parse_nixbase32(words.next()?.as_bytes())
                .ok()?
                .as_bytes(),
        );
        bytes.extend(words.next()?.parse::<u16>().ok()?.to_be_bytes());
        bytes.extend(words.next()?.parse::<u32>().ok()?.to_be_bytes());
        bytes.extend(parse_sha256(words.next()?)?);
        URL_SAFE_NO_PAD.encode_string(bytes, &mut key);
    }
    Some(key)
}

/// Returns the key that an object has outside of the bucket.
pub(super) fn from_bucket(key: &str) -> Cow<'_, str> {
    match key.strip_prefix(PREFIX).map(lengthened) {
        Some(Some(key)) => Cow::Owned(key),
        _ => Cow::Borrowed(key),
    }
}

fn lengthened(rest: &str) -> Option<String> {
    let (push, name) = rest.split_once('/')?;
    let push: [u8; PUSH_LEN] = URL_SAFE_NO_PAD.decode(push).ok()?.try_into().ok()?;
    let push = u128::from_be_bytes(push);
    let bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
    let (nar_hash, bytes) = bytes.split_first_chunk::<32>()?;
    let (number, bytes) = bytes.split_first_chunk::<2>()?;
    let (len, bytes) = bytes.split_first_chunk::<4>()?;
    let sha256: &[u8; 32] = bytes.try_into().ok()?;
    let nar_hash = nixbase32::encode(nar_hash);
    let (number, len) = (u16::from_be_bytes(*number), u32::from_be_bytes(*len));
    let sha256 = Hash::sha256(sha256).base16();
    Some(format!(
        "{PART_PREFIX}{push:032x}/{nar_hash}-{number}-{len}-{sha256}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_parts_are_found_again() {
        let push = format!("{PART_PREFIX}00000800dd7e88e1552f4eff0006ca00");
        let hash = nixbase32::encode(&[7; 32]);
        let sha256 = Hash::sha256(&[9; 32]).base16();
        let key = format!("{push}/{hash}-10000-33554432-{sha256}");
        let short = in_bucket(&key).into_owned();
        assert!(short.len() <= 130, "{short}");
        assert_eq!(from_bucket(&short), key);
        for prefix in [PART_PREFIX, &push, &format!("{push}/")] {
            assert!(short.starts_with(&*in_bucket(prefix)), "{prefix}");
        }
        for other in ["nar/x", ".samovar/store-id", ".samovar/tmp/push-x/y"] {
            assert_eq!(in_bucket(other), other);
            assert_eq!(from_bucket(other), other);
        }
    }
}
