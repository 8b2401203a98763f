//! [`Metadata`]: what is stored, and [`Sqlite`], which keeps it in a database file.
//!
//! The database is the truth. A path is visible when its row is committed, and its row is committed
//! only when its file is durable and all its references have rows: that is a foreign key.

mod sqlite;

use samovar_nix::narinfo::Compression;
use samovar_nix::{ContentAddress, HashPart, NarHash, Signature, StorePath};

use crate::error::StorageError;
use crate::token::{Rights, Token, TokenHash};

pub use sqlite::Sqlite;

/// The number of a cache in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheId(pub(crate) i64);

/// A file with a verified NAR, stored once for all paths and caches that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNar {
    /// The row's number.
    pub id: i64,
    /// SHA-256 of the NAR.
    pub nar_hash: NarHash,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// SHA-256 of the file.
    pub file_hash: [u8; 32],
    /// Length of the file, in bytes.
    pub file_size: u64,
    /// Compression of the file.
    pub compression: Compression,
    /// Key of the object, which is also its URL relative to the cache.
    pub object_key: String,
}

/// A verified NAR that may be new.
#[derive(Debug, Clone)]
pub struct NewNar {
    /// As it will be stored; `id` is ignored.
    pub nar: StoredNar,
    /// The listing of its files, compressed with zstd.
    pub listing: Option<Vec<u8>>,
    /// The index of its zstd frames.
    pub frames: Option<Vec<u8>>,
}

/// An uploaded path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPath {
    /// The path.
    pub path: StorePath,
    /// Its NAR.
    pub nar: StoredNar,
    /// The paths it refers to, itself included; sorted.
    pub references: Vec<StorePath>,
    /// The derivation that built it.
    pub deriver: Option<StorePath>,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
    /// The content address.
    pub content_address: Option<ContentAddress>,
    /// When it was published, in seconds since 1970.
    pub registered_at: i64,
}

/// A path to publish, checked but for its references.
#[derive(Debug, Clone)]
pub struct NewPath {
    /// The cache.
    pub cache: CacheId,
    /// The token of the client.
    pub token: i64,
    /// The path.
    pub path: StorePath,
    /// The NAR's row.
    pub nar_id: i64,
    /// The paths it refers to, except itself.
    pub references: Vec<NewReference>,
    /// Whether it refers to itself.
    pub has_self_reference: bool,
    /// The derivation that built it.
    pub deriver: Option<StorePath>,
    /// Its signatures.
    pub signatures: Vec<Signature>,
    /// Its content address.
    pub content_address: Option<ContentAddress>,
}

/// A reference of a path to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReference {
    /// The path that is referred to.
    pub path: StorePath,
    /// Whether the live Nix store has it, so that it need not be in the cache.
    pub is_elsewhere: bool,
}

/// The outcome of publishing one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The path is new.
    New,
    /// The path was there with the same NAR. Signatures that were missing have been added.
    Known,
    /// The path was there with another NAR, which stays: the build is not reproducible.
    Conflict,
    /// A reference is not in the cache. Nothing was changed.
    MissingReference(StorePath),
    /// The token was revoked or has expired since the upload began. Nothing was changed.
    TokenInvalid,
}

/// The database of a storage.
///
/// Every method may block on a disk or a lock. All times are Unix times in seconds.
pub trait Metadata: std::fmt::Debug + Send + Sync {
    /// The identifier of the storage, made when the database was.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn store_id(&self) -> Result<String, StorageError>;

    /// Finds a cache by name, or creates it.
    ///
    /// # Errors
    ///
    /// [`StorageError::StoreDir`] if it exists for another store directory; others.
    fn cache(&self, name: &str, store_dir: &str) -> Result<CacheId, StorageError>;

    /// The hash parts of all paths.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn hash_parts(&self) -> Result<Vec<(CacheId, HashPart)>, StorageError>;

    /// A path of a cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn path(&self, cache: CacheId, hash_part: HashPart)
    -> Result<Option<StoredPath>, StorageError>;

    /// The listing of a NAR, compressed with zstd.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn listing(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError>;

    /// The NAR of a file, if a path of the cache has it, or if `token` has sent it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn file(
        &self,
        cache: CacheId,
        token: Option<i64>,
        file_hash: &[u8; 32],
    ) -> Result<Option<StoredNar>, StorageError>;

    /// Records a verified NAR that `token` has sent. It may be there already.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn add_nar(&self, token: i64, new: &NewNar) -> Result<(), StorageError>;

    /// Publishes paths in one transaction, in order: a path may refer to one before it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]; then nothing was published.
    fn publish(&self, batch: &[NewPath]) -> Result<Vec<Published>, StorageError>;

    /// Adds a token.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn add_token(&self, hash: &TokenHash, token: &NewToken) -> Result<i64, StorageError>;

    /// All tokens, the newest first.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn tokens(&self) -> Result<Vec<Token>, StorageError>;

    /// A token by the hash of its text.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StorageError>;

    /// Whether a token is neither revoked nor expired.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn is_token_valid(&self, token: i64) -> Result<bool, StorageError>;

    /// Revokes all valid tokens of a name. Returns how many there were. No upload with one of them
    /// is published after this returns.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn revoke_tokens(&self, name: &str) -> Result<usize, StorageError>;
}

/// A token to add.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// See [`Token::name`].
    pub name: String,
    /// See [`Token::cache`].
    pub cache: Option<String>,
    /// See [`Token::rights`].
    pub rights: Rights,
    /// See [`Token::expires_at`].
    pub expires_at: Option<i64>,
}
