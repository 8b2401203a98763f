//! Pins of clients with a token. A pin protects paths from the collector.

use std::collections::HashMap;

use samovar_nix::{Glob, StorePath};
use samovar_protocol::names::{PinName, PinText};

use crate::error::StorageError;
use crate::metadata::{
    Condition, NewPin, PIN_COUNT_MAX, Pin, Pinned, Unpin, Unpinned, Version, pins, tokens,
};
use crate::storage::StoredCache;
use crate::storage::counters::Reason;
use crate::token::Token;

/// Reason why a pin was not changed. The text of a refusal names the fault and the fix.
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
         match \"{names}\", where / in the name of a pin counts as -; use another name for the \
         pin, or another token"
    )]
    OtherName {
        /// The name of the pin.
        pin: String,
        /// The name of the path.
        path: String,
        /// The pattern.
        names: Glob,
    },
    /// The token is limited to pins with other names.
    #[error(
        "the pin is {pin:?}, but this token may change only pins that match \"{names}\", where / \
         in the name of a pin counts as -; use another token"
    )]
    OtherPin {
        /// The name of the pin.
        pin: String,
        /// The pattern.
        names: Glob,
    },
    /// The cache has too many pins.
    #[error(
        "the cache has {PIN_COUNT_MAX} pins, the limit for clients; keep fewer generations, or ask \
         the operator of the cache to remove pins"
    )]
    TooMany,
    /// The condition of the request does not hold.
    #[error("the condition of the request does not hold: {}", found(pin, *newest))]
    Changed {
        /// The name of the pin.
        pin: String,
        /// The newest generation. `None`: the pin does not exist.
        newest: Option<Version>,
    },
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Describes the newest generation of a pin.
fn found(pin: &str, newest: Option<Version>) -> String {
    match newest {
        Some(Version { generation, .. }) => {
            format!("the newest generation of the pin {pin:?} is {generation}")
        }
        None => format!("the pin {pin:?} does not exist"),
    }
}

/// Options of a request that pins a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PinOptions {
    /// Number of generations to keep, including the new one. `None`: all are kept.
    pub keep: Option<u32>,
    /// Time until the generation expires, in seconds. `None`: it never expires.
    pub lifetime: Option<i64>,
    /// The client's host.
    pub host: Option<PinText>,
    /// The client's message.
    pub message: Option<PinText>,
    /// The generations on which the pin may be added.
    pub condition: Condition,
}

impl StoredCache {
    /// Pins an uploaded path for a client, as `samovar pin add` does for an operator.
    ///
    /// # Errors
    ///
    /// Any [`PinError`]. Nothing is changed then.
    pub fn pin(
        &self,
        token: &Token,
        path: &StorePath,
        name: &PinName,
        options: PinOptions,
    ) -> Result<Pin, PinError> {
        let metadata = &self.storage.metadata;
        let lifetime = options.lifetime;
        let new = NewPin {
            cache: self.name.clone(),
            name: name.clone(),
            hash_part: path.hash_part(),
            keep: options.keep,
            expires_at: lifetime.map(|seconds| metadata.now().saturating_add(seconds)),
            token: Some(token.id),
            host: options.host,
            message: options.message,
            condition: options.condition,
        };
        let pin = name.to_string();
        Err(match pins::add(metadata, &new)? {
            Pinned::Done(pin) => return Ok(pin),
            Pinned::NotFound => PinError::NotUploaded(path.clone()),
            Pinned::TooMany => PinError::TooMany,
            Pinned::Changed(newest) => PinError::Changed { pin, newest },
            Pinned::TokenInvalid => self.refuse(PinError::TokenInvalid),
            Pinned::OtherName(names) => self.refuse(PinError::OtherName {
                pin,
                path: path.name().to_owned(),
                names,
            }),
        })
    }

    /// Removes generations of a pin for a client: the one with this number, or all. Returns how
    /// many were removed.
    ///
    /// # Errors
    ///
    /// Any [`PinError`]. Nothing is changed then.
    pub fn unpin(
        &self,
        token: &Token,
        name: &PinName,
        generation: Option<i64>,
        condition: Condition,
    ) -> Result<usize, PinError> {
        let removal = Unpin {
            cache: self.id,
            name: name.clone(),
            generation,
            token: token.id,
            condition,
        };
        let pin = name.to_string();
        Err(match pins::unpin(&self.storage.metadata, &removal)? {
            Unpinned::Done(count) => return Ok(count),
            Unpinned::Changed(newest) => PinError::Changed { pin, newest },
            Unpinned::TokenInvalid => self.refuse(PinError::TokenInvalid),
            Unpinned::OtherName(names) => self.refuse(PinError::OtherPin { pin, names }),
        })
    }

    /// Counts a refusal because of the token.
    fn refuse(&self, error: PinError) -> PinError {
        self.storage.counters.refuse(Reason::Token);
        error
    }

    /// Returns generations of a pin that have not expired, newest first: those with a number less
    /// than `below`, at most `count_max`.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn generations(
        &self,
        name: &PinName,
        below: i64,
        count_max: u32,
    ) -> Result<Vec<Pin>, StorageError> {
        let metadata = &self.storage.metadata;
        pins::generations(metadata, self.id, name, below, count_max)
    }

    /// Returns the oldest generation of each lineage of a pin, newest first: of the generations
    /// that have not expired, up to the number `newest`, at most `count_max`.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn lineages(
        &self,
        name: &PinName,
        newest: i64,
        count_max: u32,
    ) -> Result<Vec<Version>, StorageError> {
        let metadata = &self.storage.metadata;
        pins::lineages(metadata, self.id, name, newest, count_max)
    }

    /// Returns the newest generation of each pin, sorted by name. Pins whose generations have all
    /// expired are omitted.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn newest_pins(&self) -> Result<Vec<Pin>, StorageError> {
        pins::newest(&self.storage.metadata, self.id)
    }

    /// Returns the number of the newest generation of each pin, by name. Expired generations do not
    /// count.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn newest_generations(&self) -> Result<HashMap<String, i64>, StorageError> {
        pins::newest_generations(&self.storage.metadata, self.id)
    }

    /// Returns whether a token is still valid: neither revoked nor expired.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn is_token_valid(&self, token: &Token) -> Result<bool, StorageError> {
        tokens::is_valid(&self.storage.metadata, token.id)
    }
}
