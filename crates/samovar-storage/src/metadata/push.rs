//! The part of the database that the push protocol needs.

use samovar_nix::NarHash;

use super::{CacheId, StoredNar};
use crate::error::StorageError;
use crate::push::wire::OpenLine;

/// What a client has to send of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Nothing: the cache has a path with this hash part.
    Nothing,
    /// The narinfo: this NAR is stored, and the client may use it.
    Narinfo(StoredNar),
    /// The NAR and the narinfo.
    All,
}

/// Limits of the pushes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushLimits {
    /// Maximum number of pushes of a token that have not expired.
    pub count_max: usize,
    /// Time from the last request of a push to its expiry, in seconds.
    pub lifetime: i64,
    /// Time by which a push may expire later, in seconds, so that not every request writes.
    pub tolerance: i64,
}

/// Pushes, and the NARs and paths that they need.
pub trait PushMetadata {
    /// Returns what the holder of `token` has to send of each of these paths, in their order. If a
    /// path exists, revives it if it is condemned, and records its use.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn needs(
        &self,
        cache: CacheId,
        token: i64,
        lines: &[OpenLine],
    ) -> Result<Vec<Need>, StorageError>;

    /// Returns a file with this NAR, if a path of the cache uses it or `token` has uploaded it,
    /// unless it is lost. The collector may delete it before [`hold_nars`](Self::hold_nars).
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn nar(
        &self,
        cache: CacheId,
        token: i64,
        nar_hash: &NarHash,
    ) -> Result<Option<StoredNar>, StorageError>;

    /// Records that these NARs were sent with `token` now, and revives those that are condemned.
    /// Returns for each whether it still exists.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn hold_nars(&self, token: i64, ids: &[i64]) -> Result<Vec<bool>, StorageError>;

    /// Starts a push, and returns its identifier: 32 hexadecimal digits. Returns `None` if the
    /// token has too many pushes.
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

    /// Whether the cache and the token have this push. Defers its expiry.
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

    /// Ends a push of the cache and the token. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn close_push(&self, id: &str, cache: CacheId, token: i64) -> Result<bool, StorageError>;

    /// Returns the pushes of a token (`Some`) or of all tokens.
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
