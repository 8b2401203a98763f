//! [`Metadata`]: the interface to the database of a storage. [`Sqlite`] implements it.
//!
//! The database alone decides which paths exist. A path is visible once its row is committed. The
//! row is committed only after the path's NAR file is durable, and only if all references of the
//! path have rows, which a foreign key enforces.

mod caches;
mod check;
mod client;
mod collect;
mod extra;
mod overview;
mod path;
mod pin;
mod push;
mod sqlite;
mod totals;

use std::time::Duration;

use samovar_nix::{Glob, HashPart, StorePath};

use crate::error::StorageError;
use crate::token::{Rights, Token, TokenHash};
use crate::waiting::Waits;

pub use caches::{CacheSummary, Caches, DeletedCache, Freed};
pub use check::{CacheRow, ListedNar, ListedPath, Rows};
pub use client::Client;
pub use collect::{Graph, GraphPath, Times, USE_INTERVAL, Uses};
pub use extra::{
    Extra, ExtraKind, Extras, LogFile, NewRealisation, OWN_LEN, Recorded, SizeLimit,
    StoredRealisation,
};
pub use overview::{
    CLOSURE_COUNT_MAX, ClosureSize, Details, Overview, REFERRER_COUNT_MAX, RecentPath, RecentPush,
};
pub use path::{LookupResult, NewNar, NewPath, NewReference, Published, StoredNar, StoredPath};
pub use pin::{
    Condition, NewPin, PIN_COUNT_MAX, Pin, Pinned, Pins, Tag, TagError, Tags, Unpin, Unpinned,
    Version,
};
pub use push::{Need, PushLimits, PushMetadata};
pub use sqlite::Sqlite;
pub(crate) use sqlite::{SCHEMA, all_caches, all_tokens};
pub use totals::{CacheTotals, Totals};

/// Length of a day, in seconds.
pub const DAY: i64 = 86_400;

/// Maximum number of signatures of a path.
pub(crate) const SIGNATURE_COUNT_MAX: usize = 32;

/// Maximum number of realisations of a derivation: one for each of its outputs.
pub(crate) const REALISATION_COUNT_MAX: u64 = 64;

/// Function that returns the present time, in seconds since 1970.
pub type Clock = fn() -> i64;

/// Number that identifies a cache in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub(crate) i64);

/// The database of a storage.
///
/// Every method may block on a disk or a lock. All times are Unix times in seconds.
pub trait Metadata:
    Caches + Extras + Overview + Pins + PushMetadata + Rows + std::fmt::Debug + Send + Sync
{
    /// Returns how callers wait for this database.
    fn waits(&self) -> &Waits;

    /// Checks that the database is still the file that was opened. Each other function checks that,
    /// too: queries before they run, and transactions before they return.
    ///
    /// # Errors
    ///
    /// [`StorageError::Gone`] if the file was moved or replaced.
    fn check_file(&self) -> Result<(), StorageError>;

    /// Returns the identifier of the storage, which was generated with the database.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn store_id(&self) -> Result<String, StorageError>;

    /// Returns the cache with this name. Creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::StoreDir`] if the cache exists with another store directory. Other errors.
    fn cache(&self, name: &str, store_dir: &str) -> Result<CacheId, StorageError>;

    /// Returns the hash parts of all paths, each with the cache that contains the path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn hash_parts(&self) -> Result<Vec<(CacheId, HashPart)>, StorageError>;

    /// Records that the narinfos of this cache are also written into the directory.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn set_mirrored(&self, cache: CacheId) -> Result<(), StorageError>;

    /// Returns the path with this hash part in a cache, or `None` if the cache does not have it or
    /// its NAR is lost. Revives the path if it is condemned: the collector does not delete a
    /// returned path for [`Rules::hold`](crate::gc::Rules::hold).
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn path(&self, cache: CacheId, hash_part: HashPart)
    -> Result<Option<StoredPath>, StorageError>;

    /// Returns the paths with these hash parts, in the same order. Each result is that of
    /// [`path`](Self::path), at less cost.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. A damaged row fails only the result of its own path.
    fn paths(
        &self,
        cache: CacheId,
        hash_parts: &[HashPart],
    ) -> Result<Vec<LookupResult>, StorageError>;

    /// Returns whether the cache has a path with this hash part, even if its NAR is lost.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn has_path(&self, cache: CacheId, hash_part: HashPart) -> Result<bool, StorageError>;

    /// Returns the hash parts of the paths of a cache that use this NAR.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn users_of_nar(&self, cache: CacheId, nar_id: i64) -> Result<Vec<HashPart>, StorageError>;

    /// Returns the hash parts of the paths of a cache that have this deriver. Reads all paths of
    /// the cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn paths_of_deriver(
        &self,
        cache: CacheId,
        deriver: &StorePath,
    ) -> Result<Vec<HashPart>, StorageError>;

    /// Returns whether a NAR was sent with this token.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn has_sent(&self, token: i64, nar_id: i64) -> Result<bool, StorageError>;

    /// Returns the listing of a NAR, compressed with zstd. `None`: the NAR has no listing.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn listing(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError>;

    /// Returns the NAR whose file has this hash, if the client may use it. Returns `None`
    /// otherwise, and if the NAR is lost. Revives the NAR and the paths of the cache that use it,
    /// if they are condemned.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn file(
        &self,
        cache: CacheId,
        client: Client,
        file_hash: &[u8; 32],
    ) -> Result<Option<StoredNar>, StorageError>;

    /// Returns the object key of the NAR file with this hash, and whether it is lost, or `None`
    /// if no such file is recorded. Revives the NAR if it is condemned.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn object_key(&self, file_hash: &[u8; 32]) -> Result<Option<(String, bool)>, StorageError>;

    /// Returns whether a deletion of the object with this key may still be in progress. Then a new
    /// object must use another key.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn is_garbage(&self, object_key: &str) -> Result<bool, StorageError>;

    /// Records verified NARs that were uploaded with `token`, in one transaction. Some may already
    /// be recorded. Returns whether one of them was lost.
    ///
    /// # Errors
    ///
    /// [`StorageError::KeyInUse`] if the key of a NAR [is garbage](Self::is_garbage);
    /// [`StorageError::TokenInvalid`]. Other errors. Nothing is recorded then.
    fn add_nars(&self, token: i64, new: &[NewNar]) -> Result<bool, StorageError>;

    /// Records NARs of several tokens in one transaction, each with the id of its token. Waits at
    /// most `patience` for the database. Returns an outcome for each NAR: whether it was lost,
    /// [`StorageError::KeyInUse`] if its key [is garbage](Self::is_garbage), or
    /// [`StorageError::TokenInvalid`].
    ///
    /// # Errors
    ///
    /// Any other [`StorageError`]. No NAR is recorded then.
    fn add_nars_of_tokens(
        &self,
        new: &[&(i64, NewNar)],
        patience: Duration,
    ) -> Result<Vec<Result<bool, StorageError>>, StorageError>;

    /// Returns the total length of what a cache stores, in bytes: of the files of NARs that its
    /// paths use, each counted once, of its build logs and realisations, and of its narinfos.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn used_bytes(&self, cache: CacheId) -> Result<u64, StorageError>;

    /// Returns the total length of the files that were uploaded with `token` and that no path uses
    /// yet, in bytes. Each counts [`OWN_LEN`] more than it has.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn loose_bytes(&self, token: i64) -> Result<u64, StorageError>;

    /// Publishes groups of paths in one transaction, in the given order: a path may refer to an
    /// earlier one. If the outcome of one path [is not a success](Published::is_success), none of
    /// its group is published.
    ///
    /// Waits at most `patience` for other writers.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. Nothing is published then.
    fn publish(
        &self,
        batch: &[&[NewPath]],
        patience: Duration,
    ) -> Result<Vec<Vec<Published>>, StorageError>;

    /// Adds a token. Returns its row number.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn add_token(&self, hash: &TokenHash, token: &NewToken) -> Result<i64, StorageError>;

    /// Returns all tokens, newest first.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn tokens(&self) -> Result<Vec<Token>, StorageError>;

    /// Returns at most `count_max` tokens that are valid now, newest first, each with the hash of
    /// its text.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn valid_tokens(&self, count_max: usize) -> Result<Vec<(TokenHash, Token)>, StorageError>;

    /// Returns the token whose text has this hash, or `None` if no token has it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StorageError>;

    /// Returns whether a token is valid: neither revoked nor expired.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn is_token_valid(&self, token: i64) -> Result<bool, StorageError>;

    /// Revokes all valid tokens with this name. Returns their number. After that, no upload with
    /// one of them is published.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn revoke_tokens(&self, name: &str) -> Result<usize, StorageError>;

    /// Returns the present time by the clock of the database, in seconds since 1970.
    fn now(&self) -> i64;

    /// Records that paths were used now, and revives those that are condemned.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn record_uses(&self, uses: &Uses) -> Result<(), StorageError>;

    /// Reads all paths, their references and the valid pins from one snapshot of the database.
    /// `time` returns [`GraphPath::retention`] of a path from the name of its cache and its own
    /// name.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn graph(&self, time: &Times<'_>) -> Result<Graph, StorageError>;

    /// Returns the store path in this row, or `None` if the row does not exist.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn store_path(&self, id: i64) -> Result<Option<StorePath>, StorageError>;

    /// Condemns paths (`true`) or revives them (`false`), in one transaction. A path is not deleted
    /// before its condemnation is [confirmed](Self::confirm).
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn condemn_paths(&self, ids: &[i64], is_condemned: bool) -> Result<(), StorageError>;

    /// Sets the time of condemnations that have none yet to the present time, for at most
    /// `count_max` paths and as many NARs. Must be called after the condemnations were committed,
    /// so that each look-up after this time sees them. Returns whether all condemnations now have a
    /// time.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn confirm(&self, count_max: u32) -> Result<bool, StorageError>;

    /// Returns the paths whose condemnation has a time of `before` or earlier, newest first: a path
    /// comes before its references.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn condemned_paths(&self, before: i64) -> Result<Vec<i64>, StorageError>;

    /// Deletes those of these paths that are still condemned, since `before` or longer, and that no
    /// other path and no pin needs. Also deletes their realisations. Does so in one transaction, in
    /// which `remove_mirror` is called with the key of each of their files in the directory.
    /// Returns the deleted paths.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. No path is deleted then.
    fn delete_paths(
        &self,
        ids: &[i64],
        before: i64,
        remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<Vec<(CacheId, HashPart)>, StorageError>;

    /// Returns the loose NARs: no path uses them, and no client has sent them since `sent_before`.
    /// With `before`, returns those that are condemned since then or longer. Without it, returns
    /// those that are not condemned.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn loose_nars(&self, sent_before: i64, before: Option<i64>) -> Result<Vec<i64>, StorageError>;

    /// Condemns those of these NARs that are [still loose](Self::loose_nars), in one transaction.
    /// Returns their number.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn condemn_nars(&self, ids: &[i64], sent_before: i64) -> Result<usize, StorageError>;

    /// Deletes those of these NARs that are still loose and condemned since `before` or longer.
    /// Records the keys of their objects as garbage in the same transaction. Returns the lengths of
    /// their files.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn delete_nars(
        &self,
        ids: &[i64],
        sent_before: i64,
        before: i64,
    ) -> Result<Vec<u64>, StorageError>;

    /// Returns the garbage keys whose objects are not removed yet.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn garbage(&self) -> Result<Vec<String>, StorageError>;

    /// Records that the objects with these keys were removed.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn set_removed(&self, keys: &[String]) -> Result<(), StorageError>;

    /// Frees the garbage keys whose objects were removed at `before` or earlier.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn free_keys(&self, before: i64) -> Result<(), StorageError>;

    /// Records the present time as the end of the collector's last complete run.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn set_collected(&self) -> Result<(), StorageError>;
}

/// The properties of a token to add.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Name for operators: see [`Token::name`].
    pub name: String,
    /// Pattern for the names of caches: see [`Token::cache`].
    pub cache: Option<Glob>,
    /// Pattern for the names of store paths: see [`Token::names`].
    pub names: Option<Glob>,
    /// Rights that the token gives: see [`Token::rights`].
    pub rights: Rights,
    /// Time of expiry in seconds since 1970: see [`Token::expires_at`].
    pub expires_at: Option<i64>,
}
