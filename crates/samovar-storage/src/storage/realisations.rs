//! Stores realisations: the outputs of content-addressed derivations.
//!
//! A realisation belongs to the path of its output, and is deleted with that path. This module
//! stores the JSON document without parsing it. The key of a realisation is its URL.

use crate::error::StorageError;
use crate::metadata::{NewRealisation, Recorded, StoredRealisation, extras};
use crate::receive::PutError;
use crate::receive::Refusal;
use crate::storage::StoredCache;
use crate::token::Token;

impl StoredCache {
    /// Records a realisation durably. Returns whether it was recorded: if the cache already has
    /// another realisation of the same output, it keeps that one.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]. Nothing is recorded then.
    pub fn put_realisation(&self, token: &Token, new: &NewRealisation) -> Result<bool, PutError> {
        self.storage.check_room()?;
        let metadata = &self.storage.metadata;
        let recorded = extras::record_realisation(metadata, self.id, token.id, new, self.limit())?;
        match recorded {
            Recorded::Conflict => return Ok(false),
            Recorded::MissingOutput => {
                return Err(Refusal::MissingOutput(new.out_path.clone()).into());
            }
            Recorded::OtherName(names) => {
                let refusal = Refusal::OtherRealisation {
                    derivation: new.derivation.clone(),
                    output: new.out_path.clone(),
                    names,
                };
                return Err(refusal.into());
            }
            other => self.check_recorded(&other)?,
        }
        Ok(true)
    }

    /// Returns the refusal of a build log or realisation that was not recorded.
    pub(crate) fn check_recorded(&self, recorded: &Recorded) -> Result<(), Refusal> {
        Err(match recorded {
            Recorded::OverLimit { used } => self.over_limit(*used),
            Recorded::TooMany => Refusal::TooManyRealisations,
            Recorded::TokenInvalid => Refusal::TokenInvalid,
            Recorded::CacheDeleted => Refusal::CacheDeleted,
            // The others have refusals of their own.
            Recorded::Kept
            | Recorded::Conflict
            | Recorded::MissingOutput
            | Recorded::OtherName(_) => return Ok(()),
        })
    }

    /// Returns an uploaded realisation. Its output may be condemned: a look-up of the output
    /// revives it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn realisation(&self, key: &str) -> Result<Option<StoredRealisation>, StorageError> {
        extras::realisation(&self.storage.metadata, self.id, key)
    }

    /// Returns the keys of the realisations that the directory lacks because an earlier process was
    /// killed after recording them, or because they could not be written. Returns an empty list if
    /// the cache is not mirrored.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn unmirrored_realisations(&self) -> Result<Vec<String>, StorageError> {
        if !self.storage.mirror().writes(self.id) {
            return Ok(Vec::new());
        }
        let mut missing = Vec::new();
        for key in extras::realisation_keys(&self.storage.metadata, self.id)? {
            let state = self.storage.objects.state(&key)?;
            if state.is_none_or(|state| state.len == 0) {
                missing.push(key);
            }
        }
        Ok(missing)
    }

    /// Writes a realisation into the directory, if the cache is mirrored. After an error, the
    /// background thread tries again.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn mirror_realisation(&self, key: &str, text: &str) -> Result<(), StorageError> {
        let mirror = self.storage.mirror();
        if !mirror.writes(self.id) {
            return Ok(());
        }
        let written = self.storage.objects.write_mirror(key, text.as_bytes());
        if written.is_err() {
            self.storage.check_mirror();
        }
        written
    }
}
