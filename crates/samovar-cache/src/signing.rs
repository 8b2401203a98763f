//! Making the answer to a narinfo request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use samovar_http::Prepared;
use samovar_http::http::Status;
use samovar_nix::{PathInfo, SecretKey, Signature, StoreDir, narinfo};

use crate::rendered::{Rendered, Stamp};

/// The key to sign with, if any, and how often it was changed.
#[derive(Debug)]
pub(crate) struct Signer {
    key: RwLock<Option<Arc<SecretKey>>>,
    generation: AtomicU64,
}

impl Signer {
    pub(crate) fn new(key: Option<SecretKey>) -> Self {
        Self {
            key: RwLock::new(key.map(Arc::new)),
            generation: AtomicU64::new(0),
        }
    }

    /// Changes the key. Answers rendered from now on are signed with it, and none rendered before
    /// is sent again.
    pub(crate) fn change(&self, key: Option<SecretKey>) {
        let mut current = self.key.write().unwrap_or_else(PoisonError::into_inner);
        *current = key.map(Arc::new);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Renders a narinfo. `before`: what was rendered for this path earlier; its signatures are
    /// used again if all that they vouch for is the same.
    ///
    /// As nix-serve: with a key there is one signature, ours, in place of the stored ones.
    pub(crate) fn render(
        &self,
        info: &PathInfo,
        store_dir: &StoreDir,
        epoch: Option<u64>,
        before: Option<&Rendered>,
    ) -> Rendered {
        let current = self.key.read().unwrap_or_else(PoisonError::into_inner);
        let (secret, key) = (current.clone(), self.generation());
        drop(current);
        let mut text = Vec::with_capacity(1024);
        narinfo::write_for(info, store_dir, &[], &mut text);
        let unsigned_len = text.len();
        let stamp = epoch.map(|epoch| Stamp { epoch, key });
        // A path is held by its name.
        let held = before.map_or(0, |before| before.held);
        let known = before.filter(|before| {
            before.key == key
                && secret.is_some()
                && before.prepared.body().get(..before.unsigned_len) == Some(&*text)
        });
        if let Some(known) = known {
            return Rendered {
                stamp,
                key,
                registration: info.registration,
                held,
                was_wished_for: false,
                unsigned_len,
                prepared: Arc::clone(&known.prepared),
            };
        }
        text.clear();
        let own: [Signature; 1];
        let signatures = match &secret {
            Some(secret) => {
                own = [secret.sign(info.fingerprint(store_dir).as_bytes())];
                &own[..]
            }
            None => &info.signatures,
        };
        narinfo::write_for(info, store_dir, signatures, &mut text);
        let fields = [("Content-Type", "text/x-nix-narinfo")];
        let prepared = Arc::new(Prepared::new(Status::OK, &fields, &text));
        Rendered {
            stamp,
            key,
            registration: info.registration,
            held,
            was_wished_for: false,
            unsigned_len,
            prepared,
        }
    }
}
