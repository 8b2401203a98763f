//! Finds the public keys of a cache, and decides whether to trust them.

use std::io::{self, BufRead as _, IsTerminal as _, Write};

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use samovar_nix::PublicKey;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::http::{Http, read_body};

/// URL at which a cache describes itself.
const ABOUT_PATH: &str = "/cache-info.json";

/// Maximum length of the document at [`ABOUT_PATH`], in bytes.
const ABOUT_LEN_MAX: u64 = 1 << 20;

/// Returns the public keys to trust: `given`, or else the keys that the cache states, after the
/// user has confirmed them.
///
/// # Errors
///
/// The cache shows no key, or keys other than `given`, or the user does not confirm them.
pub(super) fn trusted(
    http: &Http,
    given: Vec<PublicKey>,
    is_confirmed: bool,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<PublicKey>> {
    let url = http.remote().url();
    let shown = shown(http);
    if !given.is_empty() {
        let shown = shown.unwrap_or_default();
        ensure!(
            shown.is_empty() || given.iter().any(|key| shown.contains(key)),
            "{url} shows the public key {}, which differs from the given one: ask the operator of \
             the cache which is right",
            texts(&shown)
        );
        return Ok(given);
    }
    let shown = shown?;
    ensure!(
        !shown.is_empty(),
        "{url} shows no public key: ask its operator for the key, and give it with --key"
    );
    for key in &shown {
        writeln!(out, "public key {key}\nfingerprint {}", fingerprint(key))?;
    }
    if !http.remote().is_secure() {
        writeln!(
            out,
            "The key came over HTTP without encryption: compare it with the one that the operator \
             of the cache names."
        )?;
    }
    out.flush()?;
    if !is_confirmed {
        confirm(shown.len())?;
    }
    Ok(shown)
}

/// Asks the user on the terminal whether to trust `count` keys. Fails unless the answer is yes.
fn confirm(count: usize) -> anyhow::Result<()> {
    let input = io::stdin();
    ensure!(
        input.is_terminal(),
        "a key is not trusted without confirmation: run this in a terminal, or give the key with \
         --key KEY, or --yes"
    );
    let what = if count == 1 { "this key" } else { "these keys" };
    // Ignore errors: standard error may be closed, and the user can type the answer nevertheless.
    write!(io::stderr(), "Trust {what}? [y/N] ").ok();
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("the key was not confirmed; nothing was changed"),
    }
}

/// Reads the public keys that clients of the cache must trust. A server without such a document, or
/// one with something else at its URL, shows none.
fn shown(http: &Http) -> anyhow::Result<Vec<PublicKey>> {
    let response = http.get(ABOUT_PATH)?;
    if response.status() != 200 {
        return Ok(Vec::new());
    }
    let about = read_body(response, ABOUT_LEN_MAX)
        .with_context(|| format!("cannot read {}", http.url(ABOUT_PATH)))?;
    Ok(keys_in(&about))
}

/// Returns the public keys in a `cache-info.json`, without duplicates.
fn keys_in(about: &[u8]) -> Vec<PublicKey> {
    let about: Value = serde_json::from_slice(about).unwrap_or_default();
    let lists = ["publicKeys", "upstreamPublicKeys"].map(|name| about[name].as_array());
    let texts = lists.into_iter().flatten().flatten();
    let mut keys = Vec::new();
    for key in texts.filter_map(|text| PublicKey::parse(text.as_str()?).ok()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Returns the SHA-256 fingerprint of a public key, in the notation of `ssh-keygen -l`.
fn fingerprint(key: &PublicKey) -> String {
    let text = key.to_string();
    let (_, encoded) = text.split_once(':').unwrap_or_default();
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(bytes)))
}

/// Returns the keys as one text, separated by spaces.
pub(super) fn texts(keys: &[PublicKey]) -> String {
    let texts: Vec<String> = keys.iter().map(PublicKey::to_string).collect();
    texts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_cache_and_its_upstreams_are_read() {
        let key = "cache.example.org-1:fPXqriAaD+wxDPibER3cYMEtagkzjET2FllLSbGblgc=";
        let other = "k:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";
        let about = format!(
            "{{\"publicKeys\":[\"{key}\",\"other-1:AAAA=\",7],\"upstreamPublicKeys\":\
             [\"{other}\",\"{key}\"],\"more\":[\"x-1:fPXqriAaD+wxDPibER3cYMEtagkzjET2FllLSbGblgc=\"]}}"
        );
        let keys = keys_in(about.as_bytes());
        let names: Vec<&str> = keys.iter().map(PublicKey::name).collect();
        assert_eq!(names, ["cache.example.org-1", "k"]);
        assert_eq!(keys[0].to_string(), key);
        let fingerprint = fingerprint(&keys[0]);
        assert_eq!(fingerprint.len(), "SHA256:".len() + 43, "{fingerprint}");
        for other in ["", "<html>", "[]", "{}", "{\"publicKeys\":{}}"] {
            assert_eq!(keys_in(other.as_bytes()), []);
        }
    }
}
