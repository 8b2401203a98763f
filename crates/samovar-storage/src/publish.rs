//! Checks uploaded narinfos.

use samovar_nix::narinfo::{NarInfo, NarInfoError};
use samovar_nix::{Hash, HashPart, Method, NarHash, Signature, StoreDir, StorePath};

use crate::content_address;
use crate::metadata::StoredNar;
use crate::size::human;
use crate::verify::FileName;

/// Maximum length of a narinfo, in bytes.
pub const NARINFO_LEN_MAX: usize = 1 << 20;

/// Maximum number of references of a path.
const REFERENCE_COUNT_MAX: usize = 8192;

/// Maximum number of signatures of a path.
pub(crate) const SIGNATURE_COUNT_MAX: usize = 32;

/// Maximum number of realisations of a derivation: one for each of its outputs.
pub(crate) const REALISATION_COUNT_MAX: u64 = 64;

/// Maximum length of a realisation, in bytes.
pub const REALISATION_LEN_MAX: usize = 64 << 10;

/// Maximum length of the key name in a signature, in bytes.
const KEY_NAME_LEN_MAX: usize = 256;

/// Reason why an upload of metadata is refused. The text names the field, the value found, and the
/// fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The text is not a valid narinfo.
    #[error("the narinfo is malformed, {0}")]
    Malformed(NarInfoError),
    /// The narinfo is longer than [`NARINFO_LEN_MAX`].
    #[error("the narinfo has more than {NARINFO_LEN_MAX} bytes")]
    TooLong,
    /// The narinfo describes a path other than the one in its URL.
    #[error("StorePath is {found}, but the URL is that of the hash part {expected}")]
    OtherPath {
        /// Hash part that the URL names.
        expected: HashPart,
        /// Store path in the narinfo.
        found: StorePath,
    },
    /// `URL` is not the name of a NAR file.
    #[error(
        "URL is {0:?}, which is not nar/ followed by the SHA-256 of the file in base-32 and a \
         suffix such as .nar.zst"
    )]
    Url(String),
    /// `URL` names a file that the client may not use.
    #[error("URL is nar/{0}, which has not been uploaded with this token: upload the NAR first")]
    UnknownFile(FileName),
    /// A field differs from the value computed from the uploaded file.
    #[error("{field} is {found}, but the uploaded file has {measured}")]
    Differs {
        /// Name of the narinfo field.
        field: &'static str,
        /// Value that the narinfo states.
        found: String,
        /// Value computed from the uploaded file.
        measured: String,
    },
    /// A field has more values than allowed.
    #[error("{field} has {found} entries, the limit is {limit}")]
    TooMany {
        /// Name of the narinfo field.
        field: &'static str,
        /// Number of values in the narinfo.
        found: usize,
        /// Maximum number of values that the field may have.
        limit: usize,
    },
    /// The key name in a signature is longer than 256 bytes. Contains its length.
    #[error("a Sig has a key name of {0} bytes, the limit is {KEY_NAME_LEN_MAX}")]
    KeyName(usize),
    /// The store path computed from `CA` is not `StorePath`.
    #[error("CA does not belong to this StorePath, these References and this NAR")]
    ContentAddress,
    /// A reference is neither in this cache nor in the live Nix store.
    #[error(
        "{reference}, a reference of {path}, is not in this cache: upload it first, or run the \
         command again with --refresh if your client believes that it is there"
    )]
    MissingReference {
        /// The missing reference.
        reference: StorePath,
        /// The path to which the missing reference belongs.
        path: StorePath,
    },
    /// A build log is longer than the limit, which is given in bytes.
    #[error("the build log has more than {0} bytes")]
    LogTooLong(u64),
    /// The text is not a valid realisation.
    #[error("the realisation is malformed: {0}")]
    Realisation(String),
    /// The realisation is longer than [`REALISATION_LEN_MAX`].
    #[error("the realisation has more than {REALISATION_LEN_MAX} bytes")]
    RealisationTooLong,
    /// The derivation already has 64 realisations, the maximum.
    #[error("the derivation has {REALISATION_COUNT_MAX} realisations in this cache, the limit")]
    TooManyRealisations,
    /// The output of a realisation is neither in this cache nor in the live Nix store.
    #[error(
        "outPath is {0}, which is not in this cache: upload the path first, or run the command \
         again with --refresh if your client believes that it is there"
    )]
    MissingOutput(StorePath),
    /// The file would exceed the quota of the cache: its maximum total length of files.
    #[error(
        "the cache has {} of its quota of {}, which leaves no space for this file: ask the \
         operator of the cache for a larger quota, or to unpin paths that are not needed",
        human(*used), human(*quota)
    )]
    Quota {
        /// Total length of the files of the cache, in bytes.
        used: u64,
        /// The quota, in bytes.
        quota: u64,
    },
    /// The files that were uploaded with the token and that no path uses exceed their limit.
    #[error(
        "the token has uploaded {} of files that no path uses, the limit is {}: upload their \
         narinfos, or wait until the files are deleted, a day after their upload",
        human(*used), human(*limit)
    )]
    TooManyLoose {
        /// Total length of these files, including the refused one, in bytes.
        used: u64,
        /// Maximum total length of such files, in bytes.
        limit: u64,
    },
    /// The token was revoked or has expired.
    #[error("the token was revoked or has expired since the upload began")]
    TokenInvalid,
    /// The paths of the cache are being deleted.
    #[error(
        "the cache is being deleted: to push to it anew, wait until samovar cache delete has ended"
    )]
    CacheDeleted,
}

/// Parses an uploaded narinfo and makes all checks that need no database. Returns the narinfo and
/// the name of its NAR file.
pub(crate) fn parse(
    dir: &StoreDir,
    hash_part: HashPart,
    text: &[u8],
) -> Result<(NarInfo, FileName), Refusal> {
    check_len(text)?;
    let info = parse_fields(dir, text)?;
    if info.store_path.hash_part() != hash_part {
        return Err(Refusal::OtherPath {
            expected: hash_part,
            found: info.store_path,
        });
    }
    let file = info.url.strip_prefix("nar/");
    match file.and_then(|file| FileName::parse(file.as_bytes())) {
        Some(file) => Ok((info, file)),
        None => Err(Refusal::Url(info.url)),
    }
}

/// Parses an uploaded narinfo without `URL`, and makes all checks that need no database.
pub(crate) fn parse_without_url(dir: &StoreDir, mut text: Vec<u8>) -> Result<NarInfo, Refusal> {
    check_len(&text)?;
    // The parser requires a `URL`. If a narinfo has several, the last one is used.
    text.extend_from_slice(b"URL: -\n");
    parse_fields(dir, &text)
}

fn check_len(text: &[u8]) -> Result<(), Refusal> {
    match text.len() > NARINFO_LEN_MAX {
        true => Err(Refusal::TooLong),
        false => Ok(()),
    }
}

/// Parses a narinfo and checks its fields, except `URL`.
fn parse_fields(dir: &StoreDir, text: &[u8]) -> Result<NarInfo, Refusal> {
    let info = NarInfo::parse(dir, text).map_err(Refusal::Malformed)?;
    let counts = [
        ("References", info.references.len(), REFERENCE_COUNT_MAX),
        ("Sig", info.signatures.len(), SIGNATURE_COUNT_MAX),
    ];
    for (field, found, limit) in counts {
        if found > limit {
            return Err(Refusal::TooMany {
                field,
                found,
                limit,
            });
        }
    }
    let is_long = |signature: &&Signature| signature.key_name().len() > KEY_NAME_LEN_MAX;
    if let Some(signature) = info.signatures.iter().find(is_long) {
        return Err(Refusal::KeyName(signature.key_name().len()));
    }
    Ok(info)
}

/// Compares a narinfo with the uploaded NAR file.
pub(crate) fn compare(
    dir: &StoreDir,
    info: &NarInfo,
    name: &FileName,
    file: &StoredNar,
) -> Result<(), Refusal> {
    compare_nar(dir, info, file)?;
    let file_hash = Hash::sha256(name.file_hash());
    if let Some(found) = &info.file_hash
        && *found != file_hash
    {
        return differs("FileHash", found, &file_hash);
    }
    if let Some(found) = &info.file_size
        && *found != file.file_size
    {
        return differs("FileSize", found, &file.file_size);
    }
    if info.compression != file.compression {
        let (found, measured) = (info.compression.name(), file.compression.name());
        return differs("Compression", &found, &measured);
    }
    Ok(())
}

/// Compares a narinfo with the uploaded NAR, whatever the compression of its file.
pub(crate) fn compare_nar(dir: &StoreDir, info: &NarInfo, file: &StoredNar) -> Result<(), Refusal> {
    if info.nar_hash != file.nar_hash {
        return differs("NarHash", &info.nar_hash, &file.nar_hash);
    }
    if info.nar_size != file.nar_size {
        return differs("NarSize", &info.nar_size, &file.nar_size);
    }
    if let Some(address) = &info.content_address {
        let path = &info.store_path;
        let is_of_content = address.method() != Method::Nar
            || info.references.contains(path)
            || NarHash::from_hash(address.hash()).is_ok_and(|hash| hash == info.nar_hash)
            || NarHash::from_hash(address.hash()).is_err();
        if !is_of_content || !content_address::is_path_of(address, dir, path, &info.references) {
            return Err(Refusal::ContentAddress);
        }
    }
    Ok(())
}

fn differs(
    field: &'static str,
    found: &dyn ToString,
    measured: &dyn ToString,
) -> Result<(), Refusal> {
    Err(Refusal::Differs {
        field,
        found: found.to_string(),
        measured: measured.to_string(),
    })
}
