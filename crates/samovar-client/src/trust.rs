//! Public keys, and the signatures that they require.

use anyhow::{anyhow, ensure};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{PublicKey, Signature, StoreDir};
use samovar_protocol::pins::{Generations, fingerprint};

use crate::failed::Failed;

/// Parses public keys that are separated by white space. At least one is required: with none,
/// signatures would not be checked.
///
/// # Errors
///
/// There is no key, or one that is malformed.
pub fn keys(text: &str) -> Result<Vec<PublicKey>, String> {
    let key = |text: &str| {
        PublicKey::parse(text)
            .map_err(|_error| format!("{text:?} is not a public key; expected NAME:BASE64"))
    };
    let keys: Vec<PublicKey> = text
        .split_ascii_whitespace()
        .map(key)
        .collect::<Result<_, _>>()?;
    match keys.is_empty() {
        true => Err("there is no public key; expected NAME:BASE64".to_owned()),
        false => Ok(keys),
    }
}

/// Returns whether one of `keys` has signed the path. With no keys, every path counts as signed.
pub fn is_signed(keys: &[&PublicKey], narinfo: &NarInfo, dir: &StoreDir) -> bool {
    keys.is_empty() || has_signature(keys, &narinfo.fingerprint(dir), &narinfo.signatures)
}

fn has_signature(keys: &[&PublicKey], fingerprint: &str, signatures: &[Signature]) -> bool {
    let is_signed_by = |key: &&PublicKey| {
        let mut signatures = signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    keys.iter().any(is_signed_by)
}

/// The signatures that a command requires of a cache.
#[derive(Debug, Clone)]
pub struct Trust {
    /// One of them must have signed each path and each ref. Empty: no signature is required.
    keys: Vec<PublicKey>,
    /// Whether the keys are from a workspace, and not from the command line.
    is_remembered: bool,
    store_dir: StoreDir,
}

impl Trust {
    /// Requires a signature by one of `keys`, if there are any, for paths in `store_dir`.
    pub fn new(keys: &[PublicKey], store_dir: &StoreDir) -> Self {
        Self {
            keys: keys.to_vec(),
            is_remembered: false,
            store_dir: store_dir.clone(),
        }
    }

    /// Changes the errors for keys that a workspace remembers.
    pub fn remembered(self) -> Self {
        Self {
            is_remembered: true,
            ..self
        }
    }

    /// Returns whether no signature is required.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Refuses a path without a required signature.
    ///
    /// # Errors
    ///
    /// None of the keys has signed it.
    pub fn check_path(&self, narinfo: &NarInfo) -> anyhow::Result<()> {
        let fingerprint = narinfo.fingerprint(&self.store_dir);
        self.check(
            narinfo.store_path.base_name(),
            &fingerprint,
            &narinfo.signatures,
        )
    }

    /// Refuses a ref whose newest generation has no required signature.
    ///
    /// # Errors
    ///
    /// None of the keys has signed it.
    pub fn check_ref(&self, name: &str, answer: &Generations) -> anyhow::Result<()> {
        let newest = answer.generations.first();
        let fingerprint = newest.map(|newest| fingerprint(&self.store_dir, name, newest));
        let fingerprint = fingerprint.unwrap_or_default();
        self.check(&format!("the ref {name}"), &fingerprint, &answer.signatures)
    }

    fn check(&self, what: &str, fingerprint: &str, signatures: &[Signature]) -> anyhow::Result<()> {
        let keys: Vec<&PublicKey> = self.keys.iter().collect();
        ensure!(
            keys.is_empty() || has_signature(&keys, fingerprint, signatures),
            Failed::Refused.because(self.unsigned(what))
        );
        Ok(())
    }

    fn unsigned(&self, what: &str) -> anyhow::Error {
        if !self.is_remembered {
            return anyhow!("{what} is not signed by a key of --trusted-public-keys");
        }
        let names: Vec<&str> = self.keys.iter().map(PublicKey::name).collect();
        anyhow!(
            "{what} is not signed by a key that the workspace remembers ({}): if the cache has a \
             new key, run samovar workspace pull --trusted-public-keys with the new key",
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_a_key_is_refused() {
        let key = format!("a-1:{}=", "A".repeat(43));
        assert_eq!(keys(&format!(" {key}\n{key} ")).unwrap().len(), 2);
        for text in ["", " ", "a-1", &format!("{key} x")] {
            assert!(keys(text).is_err(), "{text:?}");
        }
    }
}
