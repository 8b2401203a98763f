//! Which paths a client may see on pages.

use samovar_metrics::Event;
use samovar_nix::{HashPart, StorePath};
use samovar_storage::metadata::Details;
use samovar_storage::{StorageError, browse};

use super::PagedCache;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// Whether exactly this path may be shown.
pub(super) fn is_there(reader: &Reader, path: &StorePath) -> Result<bool, Refusal> {
    match reader.may_read(path) {
        Err(refusal @ Refusal::Store(_)) => Err(refusal),
        may_read => Ok(may_read.unwrap_or(false)),
    }
}

/// Returns the details of an uploaded path, unless the policy denies it.
pub(super) fn details_of(
    cache: &PagedCache<'_>,
    hash_part: HashPart,
) -> Result<Option<Details>, Refusal> {
    let Some(stored) = cache.stored else {
        return Ok(None);
    };
    let details = browse::details(stored, hash_part);
    let details = details.map_err(|error| failed(cache.reader(), &error))?;
    let Some(details) = details else {
        return Ok(None);
    };
    match cache.reader().admit_uploaded(&details.path) {
        Ok(()) => Ok(Some(details)),
        Err(refusal) if refusal.is_absence() => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Whether the page of a path may be shown: of an uploaded one, or of one in the Nix store.
pub(super) fn has_page(cache: &PagedCache<'_>, path: &StorePath) -> Result<bool, Refusal> {
    let hash_part = path.hash_part();
    let stored = cache.stored;
    let is_shown = match cache.reader().policy.is_open() {
        true => stored.is_some_and(|stored| stored.may_contain(hash_part)),
        false => is_uploaded(cache, path)?,
    };
    Ok(is_shown || is_there(cache.reader(), path)?)
}

/// Whether a path was uploaded, and may be shown.
pub(super) fn is_uploaded(cache: &PagedCache<'_>, path: &StorePath) -> Result<bool, Refusal> {
    let Some(stored) = cache.stored else {
        return Ok(false);
    };
    let found = stored.peek(path.hash_part());
    let Some(found) = found.map_err(|error| failed(cache.reader(), &error))? else {
        return Ok(false);
    };
    match cache.reader().admit_uploaded(&found) {
        Err(refusal) if !refusal.is_absence() => Err(refusal),
        admitted => Ok(admitted.is_ok()),
    }
}

/// Reports an error of the storage, and makes the refusal.
pub(super) fn failed(reader: &Reader, error: &StorageError) -> Refusal {
    let observer = &reader.shared.observer;
    observer.event(&Event::StorageFailed(error));
    Refusal::Unreadable
}
