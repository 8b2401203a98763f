//! Pins that clients with a token add. A pin protects a path from the collector.

use samovar_nix::{Glob, StorePath};

use crate::counters::Reason;
use crate::error::StorageError;
use crate::metadata::{NewPin, PIN_COUNT_MAX, Pin, PinName, Pinned};
use crate::stored_cache::StoredCache;
use crate::token::Token;

/// Reason why a path was not pinned. The text of a refusal names the fault and the fix.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The cache does not have the path.
    #[error("{0} has not been uploaded to this cache; upload it first")]
    NotUploaded(StorePath),
    /// The token was revoked or has expired.
    #[error("the token was revoked or has expired; ask the operator of the cache for a new one")]
    TokenInvalid,
    /// The token is limited to other names.
    #[error(
        "the pin is {pin:?} and the name of its path {path:?}, but this token may pin only if both \
         match \"{names}\"; use another name for the pin, or another token"
    )]
    OtherName {
        /// The name of the pin.
        pin: String,
        /// The name of the path.
        path: String,
        /// The pattern.
        names: Glob,
    },
    /// The cache has too many pins.
    #[error(
        "the cache has {PIN_COUNT_MAX} pins, the limit for clients; keep fewer generations, or ask \
         the operator of the cache to remove pins"
    )]
    TooMany,
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl StoredCache {
    /// Pins an uploaded path for a client, as `samovar pin add` does for an operator. `keep`:
    /// number of generations to keep, including the new one. `lifetime`: time until the generation
    /// expires, in seconds.
    ///
    /// # Errors
    ///
    /// Any [`PinError`]. Nothing is changed then.
    pub fn pin(
        &self,
        token: &Token,
        path: &StorePath,
        name: &PinName,
        keep: Option<u32>,
        lifetime: Option<i64>,
    ) -> Result<Pin, PinError> {
        let metadata = &self.storage.metadata;
        let new = NewPin {
            cache: self.name.clone(),
            name: name.clone(),
            hash_part: path.hash_part(),
            keep,
            expires_at: lifetime.map(|seconds| metadata.now().saturating_add(seconds)),
            token: Some(token.id),
        };
        Err(match metadata.add_pin(&new)? {
            Pinned::Done(pin) => return Ok(pin),
            Pinned::NotFound => PinError::NotUploaded(path.clone()),
            Pinned::TooMany => PinError::TooMany,
            Pinned::TokenInvalid => {
                self.storage.counters.refuse(Reason::Token);
                PinError::TokenInvalid
            }
            Pinned::OtherName(names) => {
                self.storage.counters.refuse(Reason::Token);
                PinError::OtherName {
                    pin: name.to_string(),
                    path: path.name().to_owned(),
                    names,
                }
            }
        })
    }
}
