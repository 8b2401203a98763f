//! [`Metadata`]: the interface to the database of a storage. [`Sqlite`] implements it.
//!
//! The database decides what exists. A path is visible once its row is committed. That happens only
//! after its file is durable and if all its references have rows, which a foreign key enforces.

mod sqlite;

use samovar_nix::narinfo::Compression;
use samovar_nix::{ContentAddress, HashPart, NarHash, Signature, StorePath};

use crate::error::StorageError;
use crate::token::{Rights, Token, TokenHash};

pub use sqlite::Sqlite;

/// Number that identifies a cache in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheId(pub(crate) i64);

/// A file with a verified NAR, stored once for all paths and caches that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNar {
    /// Number of the row.
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
    /// Key of the object that contains the file. It is also the file's URL relative to the cache.
    pub object_key: String,
}

/// A verified NAR to record, whether or not it is stored already.
#[derive(Debug, Clone)]
pub struct NewNar {
    /// The NAR as it will be stored; `id` is ignored.
    pub nar: StoredNar,
    /// The listing of the NAR's files, compressed with zstd.
    pub listing: Option<Vec<u8>>,
    /// The index of the file's zstd frames.
    pub frames: Option<Vec<u8>>,
}

/// A path that was uploaded and published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPath {
    /// The store path.
    pub path: StorePath,
    /// The path's NAR.
    pub nar: StoredNar,
    /// The paths to which it refers, in sorted order; may include the path itself.
    pub references: Vec<StorePath>,
    /// The derivation that built it.
    pub deriver: Option<StorePath>,
    /// The signatures that were uploaded with it.
    pub signatures: Vec<Signature>,
    /// The content address, if the path has one.
    pub content_address: Option<ContentAddress>,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
}

/// A path to publish. Everything has been checked except its references.
#[derive(Debug, Clone)]
pub struct NewPath {
    /// The cache in which to publish the path.
    pub cache: CacheId,
    /// Row number of the client's token.
    pub token: i64,
    /// The store path.
    pub path: StorePath,
    /// Row number of the path's NAR.
    pub nar_id: i64,
    /// The paths to which it refers, except itself.
    pub references: Vec<NewReference>,
    /// Whether it refers to itself.
    pub has_self_reference: bool,
    /// The derivation that built it.
    pub deriver: Option<StorePath>,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
    /// The content address, if the narinfo states one.
    pub content_address: Option<ContentAddress>,
}

/// A reference of a path that is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReference {
    /// The path that is referenced.
    pub path: StorePath,
    /// Whether the live Nix store contains the referenced path, so that the cache need not.
    pub is_elsewhere: bool,
}

/// The outcome of publishing one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The path is new and was published.
    New,
    /// The path existed already with the same NAR. Missing signatures were added.
    Known,
    /// The path existed already with another NAR, which stays. The build is not reproducible.
    Conflict,
    /// A reference is missing in the cache. Nothing was changed.
    MissingReference(StorePath),
    /// The token was revoked or has expired since the upload began. Nothing was changed.
    TokenInvalid,
}

/// The database of a storage.
///
/// Every method may block on a disk or a lock. All times are Unix times in seconds.
pub trait Metadata: std::fmt::Debug + Send + Sync {
    /// Returns the identifier of the storage, which was generated with the database.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn store_id(&self) -> Result<String, StorageError>;

    /// Returns the cache of this name, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::StoreDir`] if the cache exists for another store directory; others.
    fn cache(&self, name: &str, store_dir: &str) -> Result<CacheId, StorageError>;

    /// Returns the hash parts of all paths, each with its cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn hash_parts(&self) -> Result<Vec<(CacheId, HashPart)>, StorageError>;

    /// Returns the path with this hash part in a cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn path(&self, cache: CacheId, hash_part: HashPart)
    -> Result<Option<StoredPath>, StorageError>;

    /// Returns the listing of a NAR, compressed with zstd.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn listing(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError>;

    /// Returns the NAR of a file, if a path of the cache uses it or `token` has uploaded it.
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

    /// Records a verified NAR that was uploaded with `token`. It may be recorded already.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn add_nar(&self, token: i64, new: &NewNar) -> Result<(), StorageError>;

    /// Publishes paths in one transaction, in the given order: a path may refer to an earlier one.
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

    /// Returns all tokens, newest first.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn tokens(&self) -> Result<Vec<Token>, StorageError>;

    /// Returns the token whose text has this hash.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StorageError>;

    /// Whether a token is valid: neither revoked nor expired.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn is_token_valid(&self, token: i64) -> Result<bool, StorageError>;

    /// Revokes all valid tokens of this name, and returns their number. After this returns, no
    /// upload with one of them is published.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn revoke_tokens(&self, name: &str) -> Result<usize, StorageError>;
}

/// The properties of a token to add.
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
