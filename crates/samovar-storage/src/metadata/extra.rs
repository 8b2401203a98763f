//! Types for realisations, small documents that are stored beside paths.

use samovar_nix::{Glob, Signature, StorePath};

/// A realisation to record: the output of a content-addressed derivation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRealisation {
    /// URL of the realisation, relative to the cache.
    pub key: String,
    /// Common prefix of the keys of all outputs of the derivation.
    pub key_prefix: String,
    /// The derivation. `None`: the URL names it only by a hash.
    pub derivation: Option<StorePath>,
    /// The store path of the output.
    pub out_path: StorePath,
    /// Whether the live Nix store contains the output. Then the cache need not contain it.
    pub is_elsewhere: bool,
    /// The JSON document, without signatures.
    pub body: String,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
}

/// A realisation that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRealisation {
    /// Whether the output is a path of the cache. Otherwise it is a path of the live Nix store.
    pub is_of_cache: bool,
    /// The JSON document, without signatures.
    pub body: String,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
}

/// The outcome of recording a realisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The realisation was recorded now or before. Missing signatures were added.
    Kept,
    /// The cache already has another realisation of the same output, and keeps that one.
    Conflict,
    /// The output is not in the cache. Nothing was changed.
    MissingOutput,
    /// The derivation has the maximum number of realisations. Nothing was changed.
    TooMany,
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The cache is being deleted. Nothing was changed.
    CacheDeleted,
    /// The token may push only names that match this pattern, and the name of the derivation or of
    /// the output does not match, or the name of the derivation is unknown. Nothing was changed.
    OtherName(Glob),
}
