//! Uploaded paths and their NARs: what the database has of them, and what is added to it.

use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{ContentAddress, Glob, NarHash, Signature, StorePath};

use super::{CacheId, SizeLimit};
use crate::error::StorageError;
use crate::objects::InPack;
use crate::verify::Verified;

/// A verified NAR and its file, which is stored once for all paths and caches that use the NAR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNar {
    /// Row number of the NAR.
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

/// A verified NAR to record. It may already be stored.
#[derive(Debug, Clone)]
pub struct NewNar {
    /// The NAR as it will be stored; `id` is ignored.
    pub nar: StoredNar,
    /// The listing of the NAR's files, compressed with zstd. `None`: a limit was exceeded.
    pub listing: Option<Vec<u8>>,
    /// The index of the file's zstd frames. `None`: the file needs no index.
    pub frames: Option<Vec<u8>>,
    /// Whether the same file is stored already, and not lost.
    pub is_stored: bool,
    /// Place of the file, if it shares an object with others.
    pub pack: Option<InPack>,
}

impl NewNar {
    /// Makes the record of a verified file that is stored as the object `object_key`.
    #[must_use]
    pub fn new(verified: Verified, object_key: String, is_stored: bool) -> Self {
        Self {
            nar: StoredNar {
                id: 0,
                nar_hash: verified.nar_hash,
                nar_size: verified.nar_size,
                file_hash: verified.file_hash,
                file_size: verified.file_size,
                compression: verified.compression,
                object_key,
            },
            listing: verified.listing,
            frames: verified.frames,
            is_stored,
            pack: None,
        }
    }
}

/// A path that was uploaded and published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPath {
    /// Row number of the path.
    pub id: i64,
    /// Time of the last recorded use, in seconds since 1970.
    pub used_at: i64,
    /// The store path.
    pub path: StorePath,
    /// The path's NAR.
    pub nar: StoredNar,
    /// The path's references, sorted. They may include the path itself.
    pub references: Vec<StorePath>,
    /// The derivation that built the path, if it is known.
    pub deriver: Option<StorePath>,
    /// The signatures that were uploaded with it.
    pub signatures: Vec<Signature>,
    /// The content address, if the path has one.
    pub content_address: Option<ContentAddress>,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
}

impl StoredPath {
    /// Returns the narinfo of the path, with the uploaded signatures only.
    #[must_use]
    pub fn narinfo(&self) -> NarInfo {
        NarInfo {
            store_path: self.path.clone(),
            url: self.nar.object_key.clone(),
            compression: self.nar.compression,
            file_hash: Some(NarHash::from_bytes(self.nar.file_hash).to_hash()),
            file_size: Some(self.nar.file_size),
            nar_hash: self.nar.nar_hash,
            nar_size: self.nar.nar_size,
            references: self.references.clone(),
            deriver: self.deriver.clone(),
            system: None,
            signatures: self.signatures.clone(),
            content_address: self.content_address,
        }
    }
}

/// The result of looking up one of many paths. `None`: the cache does not have the path.
pub type LookupResult = Result<Option<StoredPath>, StorageError>;

/// A path to publish. It has passed all checks except the checks of its references.
#[derive(Debug, Clone)]
pub struct NewPath {
    /// The cache in which to publish the path.
    pub cache: CacheId,
    /// Row number of the client's token; `None`: the server itself publishes the path.
    pub token: Option<i64>,
    /// The store path.
    pub path: StorePath,
    /// Row number of the path's NAR.
    pub nar_id: i64,
    /// The path's references, except itself.
    pub references: Vec<NewReference>,
    /// Whether the path refers to itself.
    pub has_self_reference: bool,
    /// The derivation that built the path, if the narinfo states it.
    pub deriver: Option<StorePath>,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
    /// The content address, if the narinfo states one.
    pub content_address: Option<ContentAddress>,
    /// What the cache may store.
    pub limit: SizeLimit,
}

/// A reference of a path to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReference {
    /// The path to which the new path refers.
    pub path: StorePath,
    /// Whether the referenced path need not be in the cache, because the live Nix store or an
    /// upstream cache contains it.
    pub is_elsewhere: bool,
}

/// The outcome of publishing one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The path is new and was published.
    New,
    /// The path existed already with the same NAR, maybe in a file of another compression. Missing
    /// signatures were added.
    Known,
    /// The path already existed with a NAR of another hash, which stays: the build is not
    /// reproducible.
    Conflict,
    /// These references are missing in the cache. Nothing was changed.
    MissingReferences(Vec<StorePath>),
    /// The NAR was deleted or lost since the upload began. Nothing was changed.
    MissingNar,
    /// The path would exceed the limit of the cache. Nothing was changed.
    OverLimit {
        /// Used part of the limit, in bytes.
        used: u64,
    },
    /// The token was revoked or has expired since the upload began. Nothing was changed.
    TokenInvalid,
    /// The cache is being deleted. Nothing was changed.
    CacheDeleted,
    /// The token may push only names that match this pattern. Nothing was changed.
    OtherName(Glob),
    /// The cache has this path with the same hash part and another name. Nothing was changed.
    OtherPath(StorePath),
}

impl Published {
    /// Returns whether the path exists now, unless another path of its group has failed.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::New | Self::Known | Self::Conflict)
    }
}
