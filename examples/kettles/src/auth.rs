//! Device IDs that cannot be forged, for servers with a login secret.
//!
//! Without a secret, any UUID in the request header identifies a kettle, as in the original server.
//! With a secret, only IDs issued at a login are valid: 56 bits of each are a MAC (HMAC-SHA256) of
//! the other bits. They are still UUIDs (version 8), so kettles need no change. An eavesdropper
//! could use an ID that it has seen; TLS prevents that.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::device::DeviceId;

/// Index of the first byte of the MAC; the bytes before it are random except for version and
/// variant.
const MAC_START: usize = 9;
/// Minimum length of the secret, in bytes; a shorter one could be guessed.
const SECRET_LEN_MIN: usize = 16;

/// Issues and verifies device IDs.
#[derive(Clone, Default)]
pub struct Names(Option<Hmac<Sha256>>);

impl Names {
    /// Reads the secret: the file's text without white space around it.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or the secret is too short.
    pub fn open(path: &Path) -> Result<Self> {
        let secret = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let secret = secret.trim_ascii();
        if secret.len() < SECRET_LEN_MIN {
            bail!(
                "{}: the secret must have at least {SECRET_LEN_MIN} bytes",
                path.display()
            );
        }
        let mac = Hmac::new_from_slice(secret).context("no secret")?;
        Ok(Self(Some(mac)))
    }

    /// Issues a new ID.
    ///
    /// # Errors
    ///
    /// If the kernel has no random numbers.
    pub fn issue(&self) -> std::io::Result<DeviceId> {
        let mut name = DeviceId::random()?;
        if let Some(mac) = &self.0 {
            name.0[6] = name.0[6] & 0x0f | 0x80;
            let (random, place) = name.0.split_at_mut(MAC_START);
            let code = mac.clone().chain_update(random).finalize().into_bytes();
            place.copy_from_slice(&code[..place.len()]);
        }
        Ok(name)
    }

    /// Returns whether `name` is a valid ID.
    pub fn is_valid(&self, name: DeviceId) -> bool {
        let (random, code) = name.0.split_at(MAC_START);
        // Verifies in constant time.
        let is_ours = |mac: &Hmac<Sha256>| {
            let mac = mac.clone().chain_update(random);
            mac.verify_truncated_left(code).is_ok()
        };
        self.0.as_ref().is_none_or(is_ours)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(secret: &str) -> Result<Names> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, secret).unwrap();
        Names::open(file.path())
    }

    #[test]
    fn only_names_issued_with_the_same_secret_are_accepted() {
        let ours = names("a secret of some length\n").unwrap();
        let name = ours.issue().unwrap();
        assert!(names("a secret of some length").unwrap().is_valid(name));
        assert!(!names("a secret of another length").unwrap().is_valid(name));
        for bit in 0..128 {
            let mut other = name;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!ours.is_valid(other), "bit {bit}");
        }
        let text = name.to_string();
        assert_eq!(text.as_bytes()[14], b'8');
        assert!(b"89ab".contains(&text.as_bytes()[19]));
    }

    #[test]
    fn without_a_secret_every_name_is_accepted() {
        let name = Names::default().issue().unwrap();
        assert_eq!(name.to_string().as_bytes()[14], b'4');
        assert!(Names::default().is_valid(DeviceId([7; 16])));
    }

    #[test]
    fn a_secret_has_at_least_16_bytes() {
        assert!(names("fifteen bytes..").is_err());
        assert!(names("sixteen bytes...\n").is_ok());
    }
}
