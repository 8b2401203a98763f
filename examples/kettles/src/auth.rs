//! Names that nobody can guess or make, for those who want them.
//!
//! The header of the original is a UUID and no secret: any UUID is a kettle. With a secret only
//! names are good that were given at a login to a server with the same one: 56 bits of each are a
//! MAC (HMAC-SHA256) of the others. They are UUIDs still, of version 8, so kettles notice nothing.
//! Whoever reads a name on its way can speak for the kettle as before; against that there is TLS.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::device::DeviceId;

/// Where in a name the MAC begins; what is before is random but for version and variant.
const MAC_START: usize = 9;
/// Fewer bytes could be guessed.
const SECRET_LEN_MIN: usize = 16;

/// Gives names, and tells which are good.
#[derive(Clone, Default)]
pub struct Names(Option<Hmac<Sha256>>);

impl Names {
    /// Reads the secret, which is the file's text but for white space around it.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is too short.
    pub fn open(path: &Path) -> Result<Self> {
        let secret = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let secret = secret.trim_ascii();
        if secret.len() < SECRET_LEN_MIN {
            bail!(
                "{}: a secret has {SECRET_LEN_MIN} bytes at least",
                path.display()
            );
        }
        let mac = Hmac::new_from_slice(secret).context("no secret")?;
        Ok(Self(Some(mac)))
    }

    /// A name that nobody has.
    ///
    /// # Errors
    ///
    /// If the kernel has no random numbers.
    pub fn new_name(&self) -> std::io::Result<DeviceId> {
        let mut name = DeviceId::random()?;
        if let Some(mac) = &self.0 {
            name.0[6] = name.0[6] & 0x0f | 0x80;
            let (random, place) = name.0.split_at_mut(MAC_START);
            let code = mac.clone().chain_update(random).finalize().into_bytes();
            place.copy_from_slice(&code[..place.len()]);
        }
        Ok(name)
    }

    /// Whether a kettle may have this name.
    pub fn is_good(&self, name: DeviceId) -> bool {
        let (random, code) = name.0.split_at(MAC_START);
        // Takes as long wherever a difference is.
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
    fn only_names_of_the_same_secret_are_good() {
        let ours = names("a secret of some length\n").unwrap();
        let name = ours.new_name().unwrap();
        assert!(names("a secret of some length").unwrap().is_good(name));
        assert!(!names("a secret of another length").unwrap().is_good(name));
        for bit in 0..128 {
            let mut other = name;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!ours.is_good(other), "bit {bit}");
        }
        let text = name.to_string();
        assert_eq!(text.as_bytes()[14], b'8');
        assert!(b"89ab".contains(&text.as_bytes()[19]));
    }

    #[test]
    fn without_a_secret_all_are_good() {
        let name = Names::default().new_name().unwrap();
        assert_eq!(name.to_string().as_bytes()[14], b'4');
        assert!(Names::default().is_good(DeviceId([7; 16])));
    }

    #[test]
    fn a_secret_has_a_length() {
        assert!(names("fifteen bytes..").is_err());
        assert!(names("sixteen bytes...\n").is_ok());
    }
}
