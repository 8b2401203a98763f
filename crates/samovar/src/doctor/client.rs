//! Checks whether a client with a given `nix.conf` uses and trusts the server.
//!
//! # Source
//!
//! Nix 2.31, the settings `substitute`, `substituters`, `trusted-substituters`,
//! `trusted-public-keys`, `require-sigs` and their `extra-` forms, with the defaults of that
//! version.

use std::path::{Path, PathBuf};

use samovar_nix::PublicKey;
use samovar_server::checkup::Findings;
use samovar_store::Conf;

use super::{CacheAt, texts};
use crate::remote::Remote;

const SUBJECT: &str = "client";

/// The `nix.conf` of a client.
#[derive(Debug)]
pub(super) struct Client(Conf);

/// Maximum depth of included files. Nix itself would not end.
const DEPTH_MAX: usize = 16;

/// Adds the files that `include` lines of a `nix.conf`, or of the files that it includes, name, and
/// that do not exist: each with the file that includes it.
fn find_missing(path: &Path, depth: usize, missing: &mut Vec<(PathBuf, PathBuf)>) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let directory = path.parent().unwrap_or(Path::new(""));
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let is_optional = match words.next() {
            Some("include") => false,
            Some("!include") => true,
            _ => continue,
        };
        let Some(file) = words.next().map(|name| directory.join(name)) else {
            continue;
        };
        match file.exists() {
            true if depth < DEPTH_MAX => find_missing(&file, depth + 1, missing),
            false if !is_optional => missing.push((path.to_owned(), file)),
            _ => {}
        }
    }
}

impl Client {
    pub(super) fn read(path: &Path, findings: &mut Findings) -> Option<Self> {
        if let Err(error) = std::fs::File::open(path) {
            let text = format!("cannot read {path:?}: {error}");
            findings.error(SUBJECT, text, "give the path of the client's nix.conf");
            return None;
        }
        let mut missing = Vec::new();
        find_missing(path, 0, &mut missing);
        for (path, missing) in missing {
            findings.error(
                SUBJECT,
                format!("{path:?} includes {missing:?}, which does not exist: Nix fails"),
                "create the file, or write !include",
            );
        }
        Some(Self(Conf::read(path)))
    }

    /// Checks the settings for those of the caches that the client names, or for the first one if
    /// it names none.
    pub(super) fn examine(&self, caches: &[CacheAt<'_>], findings: &mut Findings) {
        if self.0.flag("substitute") == Some(false) {
            findings.error(
                SUBJECT,
                "substitution is disabled",
                "remove `substitute = false`",
            );
        }
        let entries = [
            self.words("substituters"),
            self.words("trusted-substituters"),
        ]
        .concat();
        let is_named = |url: &str| {
            entries
                .iter()
                .any(|entry| is_same(entry, &without_login(url)))
        };
        let named: Vec<&CacheAt<'_>> = caches.iter().filter(|(url, _)| is_named(url)).collect();
        let checked = match named.is_empty() {
            true => caches.iter().take(1).collect(),
            false => named,
        };
        for (url, cache) in checked {
            self.examine_cache(&without_login(url), &cache.keys, findings);
        }
    }

    /// Checks the settings for the cache at `url`, which has no login.
    fn examine_cache(&self, url: &str, keys: &[PublicKey], findings: &mut Findings) {
        let asked = self.words("substituters");
        let entry = asked.iter().find(|entry| is_same(entry, url));
        match entry {
            Some(_) => findings.ok(SUBJECT, format!("uses {url}")),
            None if self
                .words("trusted-substituters")
                .iter()
                .any(|entry| is_same(entry, url)) =>
            {
                findings.warning(
                    SUBJECT,
                    format!("uses {url} only on request (--substituters)"),
                    format!("extra-substituters = {url}"),
                );
            }
            None => findings.error(
                SUBJECT,
                format!("does not use {url}"),
                format!("extra-substituters = {url}"),
            ),
        }
        let is_trusted_anyway = entry.is_some_and(|entry| entry.contains("trusted=1"))
            || self.0.flag("require-sigs") == Some(false);
        if is_trusted_anyway {
            findings.warning(
                SUBJECT,
                "accepts unsigned paths",
                "remove `require-sigs = false` and trusted=1, and trust the key of the cache",
            );
        } else {
            self.examine_keys(keys, findings);
        }
    }

    fn examine_keys(&self, keys: &[PublicKey], findings: &mut Findings) {
        if keys.is_empty() {
            findings.warning(
                SUBJECT,
                "requires signatures, but the server does not sign",
                "configure a key for the server: secret-key-files",
            );
            return;
        }
        let trusted = self.words("trusted-public-keys");
        let is_trusted = |key: &&PublicKey| trusted.contains(&key.to_string());
        if let Some(key) = keys.iter().find(is_trusted) {
            findings.ok(SUBJECT, format!("trusts {}", key.name()));
            return;
        }
        let named = |key: &&PublicKey| {
            let mut names = trusted.iter().filter_map(|text| text.split(':').next());
            names.any(|name| name == key.name())
        };
        let text = match keys.iter().find(named) {
            Some(key) => format!("trusts another key with the name {}", key.name()),
            None => format!("does not trust {}", texts(keys)),
        };
        let fix = format!("extra-trusted-public-keys = {}", texts(keys));
        findings.error(SUBJECT, text, fix);
    }

    /// Returns the values of a list setting together with those of its `extra-` form.
    fn words(&self, name: &str) -> Vec<String> {
        let extra = format!("extra-{name}");
        let texts = [self.0.text(name), self.0.text(&extra)]
            .into_iter()
            .flatten();
        let words = texts.flat_map(str::split_ascii_whitespace);
        words.map(str::to_owned).collect()
    }
}

/// Returns whether an entry of `substituters` has this URL.
fn is_same(entry: &str, url: &str) -> bool {
    let entry = entry.split('?').next().unwrap_or_default();
    without_login(entry) == url
}

/// Returns `url` without its login and trailing slashes, for comparing and printing. Does not
/// recognise a login in a text that is not an HTTP URL.
fn without_login(url: &str) -> String {
    match Remote::parse(url) {
        Ok(remote) => remote.url().to_owned(),
        Err(_) => url.trim_end_matches('/').to_owned(),
    }
}
