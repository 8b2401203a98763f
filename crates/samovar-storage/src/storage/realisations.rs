//! Stores realisations: the outputs of content-addressed derivations.
//!
//! A realisation belongs to the path of its output, and is deleted with that path. This module
//! stores the JSON document without parsing it. The key of a realisation is its URL.

use crate::error::StorageError;
use crate::metadata::{NewRealisation, Recorded, extras};
use crate::receive::PutError;
use crate::receive::Refusal;
use crate::storage::StoredCache;
use crate::token::Token;

/// Records a realisation durably. Returns whether the realisation was recorded: if the cache
/// already has another one of the same output, the cache keeps that one.
///
/// # Errors
///
/// Any [`PutError`]. Nothing is recorded then.
pub fn put(stored: &StoredCache, token: &Token, new: &NewRealisation) -> Result<bool, PutError> {
    stored.storage.check_room()?;
    let metadata = &stored.storage.metadata;
    let recorded = extras::record_realisation(metadata, stored.id, token.id, new, stored.limit())?;
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
        other => check_recorded(stored, &other)?,
    }
    Ok(true)
}

/// Returns the refusal of a build log or realisation that was not recorded.
pub(super) fn check_recorded(stored: &StoredCache, recorded: &Recorded) -> Result<(), Refusal> {
    Err(match recorded {
        Recorded::OverLimit { used } => stored.over_limit(*used),
        Recorded::TooMany => Refusal::TooManyRealisations,
        Recorded::TokenInvalid => Refusal::TokenInvalid,
        Recorded::CacheDeleted => Refusal::CacheDeleted,
        // The callers handle the other results.
        Recorded::Kept | Recorded::Conflict | Recorded::MissingOutput | Recorded::OtherName(_) => {
            return Ok(());
        }
    })
}

/// Returns the keys of the realisations that the directory lacks because an earlier process was
/// killed after recording them, or because they could not be written. Returns an empty list if the
/// cache is not mirrored.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn unmirrored(stored: &StoredCache) -> Result<Vec<String>, StorageError> {
    if !stored.storage.mirror().writes(stored.id) {
        return Ok(Vec::new());
    }
    let mut missing = Vec::new();
    for key in extras::realisation_keys(&stored.storage.metadata, stored.id)? {
        let state = stored.storage.objects.state(&key)?;
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
pub fn mirror(stored: &StoredCache, key: &str, text: &str) -> Result<(), StorageError> {
    let mirror = stored.storage.mirror();
    if !mirror.writes(stored.id) {
        return Ok(());
    }
    let written = stored.storage.objects.write_mirror(key, text.as_bytes());
    if written.is_err() {
        stored.storage.check_mirror();
    }
    written
}
