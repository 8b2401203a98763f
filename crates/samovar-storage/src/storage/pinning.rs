//! Pins of clients with a token. A pin protects paths from the collector.

use samovar_nix::{Glob, StorePath};
use samovar_protocol::names::{PinName, PinText};
use samovar_protocol::pins::{Condition, Version};

use crate::error::StorageError;
use crate::metadata::{NewPin, PIN_COUNT_MAX, Pin, Pinned, Unpin, Unpinned, pins};
use crate::storage::counters::{Counters, Reason};
use crate::storage::{Storage, StoredCache};
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
        Some(Version { number, .. }) => {
            format!("the newest generation of the pin {pin:?} is {number}")
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

/// Pins an uploaded path for a client, as `samovar pin add` does for an operator.
///
/// # Errors
///
/// Any [`PinError`]. Nothing is changed then.
pub fn pin(
    stored: &StoredCache,
    token: &Token,
    path: &StorePath,
    name: &PinName,
    options: PinOptions,
) -> Result<Pin, PinError> {
    let Storage {
        metadata, counters, ..
    } = &*stored.storage;
    let lifetime = options.lifetime;
    let new = NewPin {
        cache: stored.name.clone(),
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
        Pinned::TokenInvalid => refuse(counters, PinError::TokenInvalid),
        Pinned::OtherName(names) => refuse(
            counters,
            PinError::OtherName {
                pin,
                path: path.name().to_owned(),
                names,
            },
        ),
    })
}

/// Removes generations of a pin for a client: the one with this number, or all. Returns how many
/// were removed.
///
/// # Errors
///
/// Any [`PinError`]. Nothing is changed then.
pub fn unpin(
    stored: &StoredCache,
    token: &Token,
    name: &PinName,
    generation: Option<i64>,
    condition: Condition,
) -> Result<usize, PinError> {
    let Storage {
        metadata, counters, ..
    } = &*stored.storage;
    let removal = Unpin {
        cache: stored.id,
        name: name.clone(),
        generation,
        token: token.id,
        condition,
    };
    let pin = name.to_string();
    Err(match pins::unpin(metadata, &removal)? {
        Unpinned::Done(count) => return Ok(count),
        Unpinned::Changed(newest) => PinError::Changed { pin, newest },
        Unpinned::TokenInvalid => refuse(counters, PinError::TokenInvalid),
        Unpinned::OtherName(names) => refuse(counters, PinError::OtherPin { pin, names }),
    })
}

/// Counts a refusal because of the token.
fn refuse(counters: &Counters, error: PinError) -> PinError {
    counters.refuse(Reason::Token);
    error
}
