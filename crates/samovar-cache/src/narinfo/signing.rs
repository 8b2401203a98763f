//! Signing of narinfos: which paths are signed with which keys, and which stored signatures are
//! sent.

use std::sync::Arc;

use samovar_nix::narinfo::{self, NarCoding};
use samovar_nix::{PathInfo, PublicKey, SecretKey, Signature, StoreDir};
use samovar_store::{Realisation, RealisationId};

use crate::known::row::Row;
use crate::known::small_nars;
use crate::narinfo::rendered::Narinfo;
use crate::reader::policy::is_signed_by;

/// The signing configuration of a cache. By default, it signs nothing, like nix-serve without a
/// key.
#[derive(Debug, Clone, Default)]
pub struct Signing {
    /// The signing keys. If two have the same name, only the first one signs: clients look at one
    /// signature per name.
    pub keys: Vec<SecretKey>,
    /// The paths that the keys sign.
    pub sign: Sign,
    /// Whether signatures in the store are sent as well.
    pub stored: Stored,
    /// Whether narinfos of content-addressed paths contain a `CA` field.
    pub emit_ca: bool,
    /// Whether to sign the realisation of each output path that [`sign`](Self::sign) covers.
    pub realisations: bool,
    /// The form in which narinfos offer NARs of more than 64 KiB. Smaller ones are sent
    /// uncompressed from memory.
    pub coding: NarCoding,
}

/// The paths that a cache signs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Sign {
    /// All paths are signed.
    #[default]
    All,
    /// Paths that were built on this machine (`ultimate`).
    Ultimate,
    /// Paths that have a signature in the store by one of these keys.
    TrustedBy(Vec<PublicKey>),
    /// No path is signed.
    None,
}

/// The treatment of signatures that the store has for a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stored {
    /// Send them in addition to the cache's own signatures, except signatures whose key has the
    /// same name as one of its keys.
    Keep,
    /// Send them only if the cache does not sign the path.
    #[default]
    Replace,
}

impl Sign {
    fn covers(&self, info: &PathInfo, dir: &StoreDir) -> bool {
        match self {
            Self::All => true,
            Self::Ultimate => info.ultimate,
            Self::TrustedBy(keys) => is_signed_by(info, dir, keys),
            Self::None => false,
        }
    }
}

impl Signing {
    /// Returns the signatures to send with a path. `sign` computes a signature with one of the
    /// cache's own keys.
    fn signatures(
        &self,
        signs: bool,
        treatment: Stored,
        stored: &[Signature],
        sign: impl Fn(&SecretKey) -> Signature,
    ) -> Vec<Signature> {
        let own: Vec<Signature> = match signs {
            true => self.keys.iter().map(sign).collect(),
            false => Vec::new(),
        };
        let is_kept = own.is_empty() || treatment == Stored::Keep;
        let is_by_another =
            |one: &&Signature| own.iter().all(|other| other.key_name() != one.key_name());
        let kept = stored.iter().filter(|_| is_kept).filter(is_by_another);
        own.iter().chain(kept).cloned().collect()
    }

    /// Whether only the cache's own signatures are ever sent.
    fn is_own_alone(&self) -> bool {
        !self.keys.is_empty() && self.sign == Sign::All && self.stored == Stored::Replace
    }

    /// Drops keys with the name of an earlier key.
    #[must_use]
    pub fn checked(mut self) -> Self {
        let mut keys: Vec<SecretKey> = Vec::with_capacity(self.keys.len());
        for key in self.keys {
            if keys.iter().all(|other| other.name() != key.name()) {
                keys.push(key);
            }
        }
        self.keys = keys;
        self
    }

    /// Whether narinfos signed by `self`, which is [`checked`](Self::checked), and by `other` would
    /// be the same.
    pub(crate) fn is_made_of(&self, other: &Self) -> bool {
        let other = other.clone().checked();
        let public = |signing: &Self| -> Vec<PublicKey> {
            signing.keys.iter().map(SecretKey::public).collect()
        };
        public(self) == public(&other)
            && self.sign == other.sign
            && self.stored == other.stored
            && self.emit_ca == other.emit_ca
            && self.realisations == other.realisations
            && self.coding == other.coding
    }

    /// Returns the public keys that clients must trust.
    pub(crate) fn public_keys(&self) -> Vec<String> {
        let keys = self.keys.iter().filter(|_| self.sign != Sign::None);
        keys.map(|key| key.public().to_string()).collect()
    }

    /// Returns the key names of the signatures that are sent with a path.
    pub(crate) fn names(&self, info: &PathInfo, dir: &StoreDir) -> Vec<String> {
        let signs = self.sign.covers(info, dir);
        let fingerprint = info.fingerprint(dir);
        let sign = |key: &SecretKey| key.sign(fingerprint.as_bytes());
        let signatures = self.signatures(signs, self.stored, &info.signatures, sign);
        let names = signatures
            .iter()
            .map(|signature| signature.key_name().to_owned());
        names.collect()
    }

    /// Renders and signs a narinfo. `before` is the path's earlier narinfo. If the new one would be
    /// the same, `before` is returned, which saves signing.
    pub(crate) fn render(
        &self,
        info: &PathInfo,
        dir: &StoreDir,
        before: Option<&Arc<Narinfo>>,
    ) -> Arc<Narinfo> {
        let row = Row::from(info);
        let mut text = Vec::with_capacity(1024);
        let coding = match info.nar_size > small_nars::LEN_MAX {
            true => self.coding,
            false => NarCoding::Identity,
        };
        narinfo::write_for(info, dir, coding, &[], &mut text);
        let unsigned_len = text.len();
        let address = info.content_address.as_ref().filter(|_| self.emit_ca);
        let same = before.filter(|before| {
            self.is_own_alone()
                && !self.emit_ca
                && before.row == row
                && before.text().get(..before.unsigned_len) == Some(&*text)
        });
        if let Some(same) = same {
            return Arc::clone(same);
        }
        text.clear();
        let signs = self.sign.covers(info, dir);
        let signatures = self.signatures(signs, self.stored, &info.signatures, |key| {
            key.sign(info.fingerprint(dir).as_bytes())
        });
        narinfo::write_for(info, dir, coding, &signatures, &mut text);
        if let Some(address) = address {
            text.extend_from_slice(format!("CA: {address}\n").as_bytes());
        }
        Arc::new(Narinfo::new(row, &text, unsigned_len))
    }

    /// Returns the signatures for an uploaded path: the cache's own, if it signs the path, and the
    /// uploaded ones, except those by the same keys.
    pub(crate) fn beside_uploaded(&self, info: &PathInfo, dir: &StoreDir) -> Vec<Signature> {
        let signs = self.sign.covers(info, dir);
        let sign = |key: &SecretKey| key.sign(info.fingerprint(dir).as_bytes());
        self.signatures(signs, Stored::Keep, &info.signatures, sign)
    }

    /// Returns the signatures by all keys, for a path of another cache whose signature was
    /// verified.
    pub(crate) fn by_all_keys(&self, info: &PathInfo, dir: &StoreDir) -> Vec<Signature> {
        let fingerprint = info.fingerprint(dir);
        let keys = self.keys.iter();
        keys.map(|key| key.sign(fingerprint.as_bytes())).collect()
    }

    /// Returns the signatures of a generation of a pin, over its fingerprint: one by each key,
    /// unless the cache signs nothing.
    pub(crate) fn sign_pin(&self, fingerprint: &[u8]) -> Vec<Signature> {
        let keys = self.keys.iter().filter(|_| self.sign != Sign::None);
        keys.map(|key| key.sign(fingerprint)).collect()
    }

    /// Whether signing a realisation depends on the row of its output path.
    pub(crate) fn asks_of_realisations(&self) -> bool {
        self.realisations && !matches!(self.sign, Sign::All | Sign::None)
    }

    /// Returns the document of a realisation, signed if configured. `info` is the row of its output
    /// path. `stored`: whether the signatures that the document has are kept.
    pub(crate) fn realisation(
        &self,
        id: &RealisationId,
        realisation: Realisation,
        info: Option<&PathInfo>,
        dir: &StoreDir,
        stored: Stored,
    ) -> String {
        let signs = match info {
            Some(info) => self.sign.covers(info, dir),
            None => self.sign == Sign::All,
        };
        if !self.realisations || !signs || self.keys.is_empty() {
            return realisation.into_document();
        }
        let fingerprint = realisation.fingerprint(id);
        let signatures: Vec<Signature> = self
            .keys
            .iter()
            .map(|key| key.sign(fingerprint.as_bytes()))
            .collect();
        realisation.signed(id, &signatures, stored == Stored::Keep)
    }
}
