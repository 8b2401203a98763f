//! [`PushMetadata`]: the part of the database that only the push protocol uses.

use samovar_nix::{NarHash, StorePath};
use samovar_protocol::push::OpenLine;

use super::{CacheId, Client, StoredNar};
use crate::error::StorageError;

/// What a client must send to push a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Nothing: the cache has a path with this hash part, which has this NAR.
    Nothing(StoredNar),
    /// Only the narinfo: this NAR is stored, and the client may use it.
    Narinfo(StoredNar),
    /// Both the NAR and the narinfo.
    All,
    /// The cache has this path, which has the same hash part and another name than the line states.
    OtherPath(StorePath),
}

/// Limits of the pushes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushLimits {
    /// Maximum number of pushes of a token that have not expired.
    pub count_max: usize,
    /// Time from the last request of a push to its expiry, in seconds.
    pub lifetime: i64,
    /// Time in seconds by which the recorded expiry may be too early, so that not every request has
    /// to update it.
    pub tolerance: i64,
}

/// The queries and changes of the database for the push protocol.
pub trait PushMetadata {
    /// Returns, for each of these paths in their order, what the client must send.
    /// Records a use of each path that exists, and revives it if it is condemned.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn needs(
        &self,
        cache: CacheId,
        client: Client,
        lines: &[OpenLine],
    ) -> Result<Vec<Need>, StorageError>;

    /// Records that a NAR was sent with this token now, and revives it, if the token has sent it
    /// before. `is_reader`: also if not. A recent record stays; a power cut may undo the change.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn renew_nar(&self, token: i64, nar: i64, is_reader: bool) -> Result<(), StorageError>;

    /// Returns the stored NARs with this hash that the client may use and that are not lost: one
    /// for each file. The collector may delete them until [`hold_nars`](Self::hold_nars) is
    /// called.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn nars(
        &self,
        cache: CacheId,
        client: Client,
        nar_hash: &NarHash,
    ) -> Result<Vec<StoredNar>, StorageError>;

    /// Records that these NARs were sent with `token` now, and revives those that are condemned.
    /// Returns, for each NAR, whether it still exists.
    ///
    /// # Errors
    ///
    /// [`StorageError::TokenInvalid`]. Other errors. Nothing is recorded then.
    fn hold_nars(&self, token: i64, ids: &[i64]) -> Result<Vec<bool>, StorageError>;

    /// Opens a push and returns its identifier: 32 hexadecimal digits. Returns `None` if the token
    /// has too many pushes.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn open_push(
        &self,
        cache: CacheId,
        token: i64,
        limits: &PushLimits,
    ) -> Result<Option<String>, StorageError>;

    /// Returns whether this push exists and belongs to the cache and the token. Defers its expiry.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn touch_push(
        &self,
        id: &str,
        cache: CacheId,
        token: i64,
        limits: &PushLimits,
    ) -> Result<bool, StorageError>;

    /// Ends a push of the cache and the token. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn close_push(&self, id: &str, cache: CacheId, token: i64) -> Result<bool, StorageError>;

    /// Returns the identifiers of the pushes of a token. `None`: of all tokens.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn pushes(&self, token: Option<i64>) -> Result<Vec<String>, StorageError>;

    /// Ends the pushes that have expired.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn remove_expired_pushes(&self) -> Result<(), StorageError>;
}
