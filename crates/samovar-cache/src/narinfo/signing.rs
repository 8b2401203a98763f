//! Signing: which paths, with which keys, and which stored signatures are sent.

use std::sync::Arc;

use samovar_nix::{PathInfo, PublicKey, SecretKey, Signature, StoreDir, narinfo};
use samovar_store::{Realisation, RealisationId};

use crate::narinfo::rendered::Narinfo;
use crate::reader::policy::is_signed_by;

/// How a cache signs. The default: nix-serve's way, without a key.
#[derive(Debug, Clone, Default)]
pub struct Signing {
    /// Each of them signs. Of two with the same name only the first does: clients take one
    /// signature by a name.
    pub keys: Vec<SecretKey>,
    /// What is signed.
    pub sign: Sign,
    /// What becomes of the signatures that the store has.
    pub stored: Stored,
    /// Whether it is said of a content-addressed path what its name was computed from.
    pub emit_ca: bool,
    /// Whether realisations of content-addressed derivations are signed too, when the paths that
    /// they lead to are.
    pub realisations: bool,
}

/// Which paths the keys sign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Sign {
    /// All of them.
    #[default]
    All,
    /// Those that were built here.
    Ultimate,
    /// Those of which the store has a signature by one of these keys.
    TrustedBy(Vec<PublicKey>),
    /// None.
    None,
}

/// What becomes of stored signatures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stored {
    /// They are sent beside the cache's own, but for those by names that sign here.
    Keep,
    /// They are sent where the cache does not sign.
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
    /// The signatures to send with a path, of which `sign` makes the cache's own.
    fn signatures(
        &self,
        signs: bool,
        stored: &[Signature],
        sign: impl Fn(&SecretKey) -> Signature,
    ) -> Vec<Signature> {
        let own: Vec<Signature> = match signs {
            true => self.keys.iter().map(sign).collect(),
            false => Vec::new(),
        };
        let is_kept = own.is_empty() || self.stored == Stored::Keep;
        let is_by_another =
            |one: &&Signature| own.iter().all(|other| other.key_name() != one.key_name());
        let kept = stored.iter().filter(|_| is_kept).filter(is_by_another);
        own.iter().chain(kept).cloned().collect()
    }

    /// Whether the own signatures are all that there is to send, whatever the store has.
    fn is_own_alone(&self) -> bool {
        !self.keys.is_empty() && self.sign == Sign::All && self.stored == Stored::Replace
    }
}

/// A way to sign, ready to be used.
#[derive(Debug)]
pub(crate) struct Signer(Signing);

impl Signer {
    pub(crate) fn new(signing: Signing) -> Self {
        Self(checked(signing))
    }

    /// Whether another made of this would sign the same.
    pub(crate) fn is_made_of(&self, signing: &Signing) -> bool {
        let other = checked(signing.clone());
        let public = |signing: &Signing| -> Vec<PublicKey> {
            signing.keys.iter().map(SecretKey::public).collect()
        };
        public(&self.0) == public(&other)
            && self.0.sign == other.sign
            && self.0.stored == other.stored
            && self.0.emit_ca == other.emit_ca
            && self.0.realisations == other.realisations
    }

    /// The texts of the keys that clients have to trust for what is signed here.
    pub(crate) fn public_keys(&self) -> Vec<String> {
        let signing = &self.0;
        let keys = signing.keys.iter().filter(|_| signing.sign != Sign::None);
        keys.map(|key| key.public().to_string()).collect()
    }

    /// The names of the keys by which a path is signed where it is sent.
    pub(crate) fn names(&self, info: &PathInfo, dir: &StoreDir) -> Vec<String> {
        let signing = &self.0;
        let signs = signing.sign.covers(info, dir);
        let fingerprint = info.fingerprint(dir);
        let sign = |key: &SecretKey| key.sign(fingerprint.as_bytes());
        let signatures = signing.signatures(signs, &info.signatures, sign);
        let names = signatures
            .iter()
            .map(|signature| signature.key_name().to_owned());
        names.collect()
    }

    /// Renders and signs a narinfo. `before` is the path's earlier narinfo; it is returned if a new
    /// one would be the same, which saves signing.
    pub(crate) fn render(
        &self,
        info: &PathInfo,
        dir: &StoreDir,
        before: Option<&Arc<Narinfo>>,
    ) -> Arc<Narinfo> {
        let signing = &self.0;
        let mut text = Vec::with_capacity(1024);
        narinfo::write_for(info, dir, &[], &mut text);
        let unsigned_len = text.len();
        let address = info.content_address.as_ref().filter(|_| signing.emit_ca);
        let same = before.filter(|before| {
            signing.is_own_alone()
                && !signing.emit_ca
                && before.registration == info.registration
                && before.text().get(..before.unsigned_len) == Some(&*text)
        });
        if let Some(same) = same {
            return Arc::clone(same);
        }
        text.clear();
        let signs = signing.sign.covers(info, dir);
        let signatures = signing.signatures(signs, &info.signatures, |key| {
            key.sign(info.fingerprint(dir).as_bytes())
        });
        narinfo::write_for(info, dir, &signatures, &mut text);
        if let Some(address) = address {
            text.extend_from_slice(format!("CA: {address}\n").as_bytes());
        }
        Arc::new(Narinfo::new(info, &text, unsigned_len))
    }

    /// Whether it has to be known what the path of a realisation is like.
    pub(crate) fn asks_of_realisations(&self) -> bool {
        let signing = &self.0;
        signing.realisations && !matches!(signing.sign, Sign::All | Sign::None)
    }

    /// A realisation, signed if it is to be. `info`: the row of the path that it leads to, if
    /// there is one.
    pub(crate) fn realisation(
        &self,
        id: &RealisationId,
        realisation: Realisation,
        info: Option<&PathInfo>,
        dir: &StoreDir,
    ) -> String {
        let signing = &self.0;
        let signs = match info {
            Some(info) => signing.sign.covers(info, dir),
            None => signing.sign == Sign::All,
        };
        if !signing.realisations || !signs || signing.keys.is_empty() {
            return realisation.into_document();
        }
        let fingerprint = realisation.fingerprint(id);
        let signatures: Vec<Signature> = signing
            .keys
            .iter()
            .map(|key| key.sign(fingerprint.as_bytes()))
            .collect();
        realisation.signed(id, &signatures, signing.stored == Stored::Keep)
    }
}

/// Without the keys that would sign under a name that signs already.
fn checked(mut signing: Signing) -> Signing {
    let mut keys: Vec<SecretKey> = Vec::with_capacity(signing.keys.len());
    for key in signing.keys {
        if keys.iter().all(|other| other.name() != key.name()) {
            keys.push(key);
        }
    }
    signing.keys = keys;
    signing
}
