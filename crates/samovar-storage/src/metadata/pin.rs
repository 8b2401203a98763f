//! The types of pins.

use samovar_nix::{Glob, HashPart, StorePath};
use samovar_protocol::names::{Lineage, PinName, PinText};
use samovar_protocol::pins::{Condition, Version};

use super::CacheId;

/// A generation of a pin: a named path that the collector keeps, with its closure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Name of the cache.
    pub cache: String,
    /// Name of the pin, unique within the cache.
    pub name: String,
    /// Number of the generation, from 1. Pinning another path under the same name starts a new one.
    pub generation: i64,
    /// The pinned path.
    pub path: StorePath,
    /// Time at which the generation was created, in seconds since 1970.
    pub created_at: i64,
    /// Time of expiry, in seconds since 1970. `None`: the pin never expires.
    pub expires_at: Option<i64>,
    /// Name of the token with which the generation was added. `None`: the operator added it, or it
    /// was added before schema 7.
    pub token: Option<String>,
    /// The client's host, as the client stated it.
    pub host: Option<String>,
    /// The client's message, such as the reason for the generation.
    pub message: Option<String>,
    /// The lineage of the generation.
    pub lineage: Lineage,
}

impl Pin {
    /// Returns the generation with its lineage.
    #[must_use]
    pub const fn version(&self) -> Version {
        Version {
            number: self.generation.unsigned_abs(),
            lineage: Some(self.lineage),
        }
    }
}

/// A pin to add to a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPin {
    /// Name of the cache.
    pub cache: String,
    /// Name of the pin.
    pub name: PinName,
    /// Hash part of the path to pin.
    pub hash_part: HashPart,
    /// Number of generations to keep, including the new one. `None`: all are kept.
    pub keep: Option<u32>,
    /// Time of expiry, in seconds since 1970. `None`: the pin never expires.
    pub expires_at: Option<i64>,
    /// Row number of the client's token, which must be valid and permit the names. `None`: the
    /// operator adds the pin.
    pub token: Option<i64>,
    /// The client's host. A generation keeps the host with which it was added.
    pub host: Option<PinText>,
    /// The client's message. A generation keeps the message with which it was added.
    pub message: Option<PinText>,
    /// The generations on which the pin may be added.
    pub condition: Condition,
}

/// Maximum number of pins of a cache up to which clients may add pins. Each generation counts.
pub const PIN_COUNT_MAX: u32 = 10_000;

/// The outcome of adding a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinned {
    /// The path is pinned.
    Done(Pin),
    /// The cache does not have the path. Nothing was changed.
    NotFound,
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The token permits only pins whose own name and path's name match this pattern. Nothing was
    /// changed.
    OtherName(Glob),
    /// A client cannot add another pin: the cache has [`PIN_COUNT_MAX`] of them. Nothing was
    /// changed.
    TooMany,
    /// The condition does not hold. Contains the newest generation, or `None` if the pin does not
    /// exist. Nothing was changed.
    Changed(Option<Version>),
}

/// The generations of a pin to remove for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpin {
    /// The cache.
    pub cache: CacheId,
    /// Name of the pin.
    pub name: PinName,
    /// The generation to remove. `None`: all generations.
    pub generation: Option<i64>,
    /// Row number of the client's token, which must be valid and permit the name.
    pub token: i64,
    /// The newest generations with which generations may be removed.
    pub condition: Condition,
}

/// The outcome of removing generations of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpinned {
    /// The number of generations that were removed. 0: there were none, which is a success even if
    /// the condition does not hold, because the request is probably a repetition.
    Done(usize),
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The token permits only pins whose name matches this pattern. Nothing was changed.
    OtherName(Glob),
    /// The condition does not hold. Contains the newest generation. Nothing was changed.
    Changed(Option<Version>),
}
