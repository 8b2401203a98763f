//! Checks uploaded narinfos.

use std::fmt;

use samovar_nix::narinfo::{NarInfo, NarInfoError};
use samovar_nix::{
    ContentAddress, Glob, Hash, HashPart, Method, NarHash, Signature, StoreDir, StorePath,
    is_path_of,
};
use samovar_protocol::names::FileName;
use samovar_protocol::push::NARINFO_LEN_MAX;
use samovar_text::human;

use crate::metadata::{REALISATION_COUNT_MAX, SIGNATURE_COUNT_MAX, StoredNar};
use crate::token::Token;

/// Maximum number of references of a path.
const REFERENCE_COUNT_MAX: usize = 8192;

/// Maximum length of a realisation, in bytes.
pub const REALISATION_LEN_MAX: usize = 64 << 10;

/// Maximum length of the part of a malformed line that a refusal shows, in bytes.
const LINE_LEN_MAX: usize = 120;

/// Maximum length of the key name in a signature, in bytes.
const KEY_NAME_LEN_MAX: usize = 256;

/// Reason why an upload of metadata is refused. `Display` prints one sentence for the client: the
/// fault, with the field and the value found, and the fix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The text is not a valid narinfo.
    Malformed {
        /// The broken rule and its line.
        error: NarInfoError,
        /// The beginning of that line. Empty if a field is missing.
        line: String,
    },
    /// The narinfo is longer than [`NARINFO_LEN_MAX`].
    TooLong,
    /// The narinfo describes a path other than the one in its URL.
    OtherPath {
        /// Hash part that the URL names.
        expected: HashPart,
        /// Store path in the narinfo.
        found: StorePath,
    },
    /// `URL` is not the name of a NAR file.
    Url(String),
    /// `URL` names a file that the client may not use.
    UnknownFile(FileName),
    /// A field differs from the value computed from the uploaded file.
    Differs {
        /// Name of the narinfo field.
        field: &'static str,
        /// Value that the narinfo states.
        found: String,
        /// Value computed from the uploaded file.
        measured: String,
    },
    /// A field has more values than allowed.
    TooMany {
        /// Name of the narinfo field.
        field: &'static str,
        /// Number of values in the narinfo.
        found: usize,
        /// Maximum number of values that the field may have.
        limit: usize,
    },
    /// The key name in a signature is longer than 256 bytes. Contains its length.
    KeyName(usize),
    /// The store path computed from `CA` is not `StorePath`. Contains `CA`.
    ContentAddress(ContentAddress),
    /// A reference is neither in this cache nor in the live Nix store.
    MissingReference {
        /// The missing reference.
        reference: StorePath,
        /// The path to which the missing reference belongs.
        path: StorePath,
    },
    /// A build log is longer than the limit, which is given in bytes.
    LogTooLong(u64),
    /// The text is not a valid realisation.
    Realisation(String),
    /// The realisation is longer than [`REALISATION_LEN_MAX`].
    RealisationTooLong,
    /// The derivation already has 64 realisations, the maximum.
    TooManyRealisations,
    /// The output of a realisation is neither in this cache nor in the live Nix store.
    MissingOutput(StorePath),
    /// The upload would exceed the quota of the cache: the maximum total length of what it stores.
    Quota {
        /// Total length of what the cache stores, in bytes.
        used: u64,
        /// The quota, in bytes.
        quota: u64,
    },
    /// The upload would exceed the limit of what a cache without a quota stores besides NARs.
    TooManyExtras {
        /// Total length of its build logs, realisations and narinfos, in bytes.
        used: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The files that were uploaded with the token and that no path uses exceed their limit.
    TooManyLoose {
        /// Total length of these files, including the refused one, in bytes.
        used: u64,
        /// Maximum total length of such files, in bytes.
        limit: u64,
    },
    /// The token may push only names that match a pattern.
    OtherName {
        /// Name of the path, or of the derivation of a build log.
        name: String,
        /// The pattern.
        names: Glob,
    },
    /// The token may push only realisations whose derivation and output have names that match a
    /// pattern.
    OtherRealisation {
        /// The derivation. `None`: the URL names it only by a hash.
        derivation: Option<StorePath>,
        /// The output.
        output: StorePath,
        /// The pattern.
        names: Glob,
    },
    /// The cache has another path with the same hash part.
    OtherPathExists {
        /// The path of the upload.
        path: StorePath,
        /// The path that the cache has. `None`: a policy hides it.
        found: Option<StorePath>,
    },
    /// The token was revoked or has expired.
    TokenInvalid,
    /// The paths of the cache are being deleted.
    CacheDeleted,
}

impl Refusal {
    /// Returns the fault of the upload, without the fix for the client.
    // Long: one arm for each kind of refusal.
    #[must_use]
    pub fn fault(&self) -> String {
        match self {
            Self::Malformed { error, line } if line.is_empty() => {
                format!("the narinfo is malformed, {error}")
            }
            Self::Malformed { error, line } => {
                format!("the narinfo is malformed, {error}, got {line:?}")
            }
            Self::TooLong => format!("the narinfo has more than {NARINFO_LEN_MAX} bytes"),
            Self::OtherPath { expected, found } => {
                format!("StorePath is {found}, but the URL is that of the hash part {expected}")
            }
            Self::Url(url) => format!(
                "URL is {url:?}, which is not nar/ followed by the SHA-256 of the file in base-32 \
                 and a suffix such as .nar.zst"
            ),
            Self::UnknownFile(name) => {
                format!("URL is nar/{name}, which has not been uploaded with this token")
            }
            Self::Differs {
                field,
                found,
                measured,
            } => format!("{field} is {found}, but the file has {measured}"),
            Self::TooMany {
                field,
                found,
                limit,
            } => format!("{field} has {found} entries, the limit is {limit}"),
            Self::KeyName(len) => {
                format!("a Sig has a key name of {len} bytes, the limit is {KEY_NAME_LEN_MAX}")
            }
            Self::ContentAddress(found) => {
                format!("CA is {found}, which does not match StorePath, References and the NAR")
            }
            Self::MissingReference { reference, path } => {
                format!("{reference}, a reference of {path}, is not in this cache")
            }
            Self::LogTooLong(limit) => format!("the build log has more than {limit} bytes"),
            Self::Realisation(reason) => format!("the realisation is malformed: {reason}"),
            Self::RealisationTooLong => {
                format!("the realisation has more than {REALISATION_LEN_MAX} bytes")
            }
            Self::TooManyRealisations => format!(
                "the derivation has {REALISATION_COUNT_MAX} realisations in this cache, the limit"
            ),
            Self::MissingOutput(path) => format!("outPath is {path}, which is not in this cache"),
            Self::Quota { used, quota } => format!(
                "the cache uses {} of its quota of {}, and this upload does not fit",
                human(*used),
                human(*quota)
            ),
            Self::TooManyExtras { used, limit } => format!(
                "the cache has {} of narinfos, build logs and realisations, and {} is the limit \
                 without a quota",
                human(*used),
                human(*limit)
            ),
            Self::TooManyLoose { used, limit } => format!(
                "the token has uploaded {} of files that no path uses, the limit is {}",
                human(*used),
                human(*limit)
            ),
            Self::OtherName { name, names } => format!(
                "the name is {name:?}, but this token may push only names that match \"{names}\""
            ),
            Self::OtherRealisation {
                derivation,
                output,
                names,
            } => {
                let derivation = derivation.as_ref().map(StorePath::base_name);
                format!(
                    "the output of the realisation is {output} and its derivation {}, but this \
                     token may push only realisations of derivations and outputs with names that \
                     match \"{names}\"",
                    derivation.unwrap_or("is known only by a hash")
                )
            }
            Self::OtherPathExists { path, found } => {
                let found = found.as_ref().map_or("another path", StorePath::base_name);
                format!(
                    "the cache has {found}, whose hash part is that of {path}, so one of the two \
                     names is wrong"
                )
            }
            Self::TokenInvalid => {
                "the token was revoked or has expired since the upload began".to_owned()
            }
            Self::CacheDeleted => "the cache is being deleted".to_owned(),
        }
    }

    /// Returns what the client can do.
    fn fix(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "correct it, or let an unchanged Nix upload the path",
            Self::TooLong => "split the path, so that it has fewer references",
            Self::OtherPath { .. } => "upload the narinfo to the URL of its own hash part",
            Self::Url(_) => "upload the NAR, and state the name of its file",
            Self::UnknownFile(_) => "upload the NAR first",
            Self::Differs { field, .. } if field.starts_with("Nar") => {
                "check with nix-store --verify-path that the path is intact, and upload its NAR \
                 and its narinfo again"
            }
            Self::Differs { .. } => "state the value of the file",
            Self::TooMany { field, .. } if *field == "Sig" => "upload fewer signatures",
            Self::TooMany { .. } => "split the path",
            Self::KeyName(_) => "sign with a key that has a shorter name",
            Self::ContentAddress(_) => {
                "state the CA that nix path-info --json prints, or leave the field out"
            }
            Self::MissingReference { .. } => {
                "upload it first, or run the command again with --refresh if your client has \
                 cached that it is there"
            }
            Self::LogTooLong(_) => "shorten the log, or do not upload it",
            Self::Realisation(_) => "correct it, or let an unchanged Nix upload it",
            Self::RealisationTooLong => "leave out signatures and dependentRealisations",
            Self::TooManyRealisations => "wait until unused outputs are deleted",
            Self::MissingOutput(_) => {
                "upload the path first, or run the command again with --refresh if your client has \
                 cached that it is there"
            }
            Self::Quota { .. } => {
                "ask the operator of the cache for a larger quota, or to delete paths that are not \
                 needed"
            }
            Self::TooManyExtras { .. } => "ask the operator of the cache to set uploads.quota",
            Self::TooManyLoose { .. } => {
                "upload their narinfos, or wait until the files are deleted, a day after their \
                 upload"
            }
            Self::OtherName { .. } => "push the path with another token, or leave it out",
            Self::OtherRealisation { .. } => "use a token for all names",
            Self::OtherPathExists { .. } => {
                "push the path under its right name, or to another cache"
            }
            Self::TokenInvalid => "ask the operator of the cache for a new token",
            Self::CacheDeleted => {
                "to push to this cache again, wait until samovar cache delete \
                                   has ended"
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.fault(), self.fix())
    }
}

impl std::error::Error for Refusal {}

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
    // The parser requires a `URL`. If the text has one already, the parser takes the last one,
    // which is this placeholder.
    text.extend_from_slice(b"URL: -\n");
    parse_fields(dir, &text)
}

/// Refuses a name that does not match the pattern of the token.
pub(crate) fn check_name(token: &Token, name: &str) -> Result<(), Refusal> {
    match &token.names {
        Some(names) if !token.covers_name(name) => Err(Refusal::OtherName {
            name: name.to_owned(),
            names: names.clone(),
        }),
        _ => Ok(()),
    }
}

fn check_len(text: &[u8]) -> Result<(), Refusal> {
    match text.len() > NARINFO_LEN_MAX {
        true => Err(Refusal::TooLong),
        false => Ok(()),
    }
}

/// Parses a narinfo and checks its fields, except `URL`.
fn parse_fields(dir: &StoreDir, text: &[u8]) -> Result<NarInfo, Refusal> {
    let info = NarInfo::parse(dir, text).map_err(|error| Refusal::Malformed {
        error,
        line: line(text, error.line),
    })?;
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

/// Returns the beginning of a line of a narinfo, whose number counts from 1.
fn line(text: &[u8], number: u64) -> String {
    let index = usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    let line = text.split(|byte| *byte == b'\n').nth(index);
    let shown = line.unwrap_or_default().iter().take(LINE_LEN_MAX);
    String::from_utf8_lossy(&shown.copied().collect::<Vec<u8>>()).into_owned()
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
        if !is_of_content || !is_path_of(address, dir, path, &info.references) {
            return Err(Refusal::ContentAddress(*address));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a narinfo with this number of references and of signatures by keys with
    /// names of `name_len` characters.
    fn narinfo(reference_count: usize, signature_count: usize, name_len: usize) -> Vec<u8> {
        let zeros = "0".repeat(32);
        let references: Vec<String> = (0..reference_count)
            .map(|number| format!("{number:032}-x"))
            .collect();
        // Equal signatures count once.
        let signature = |number| format!("Sig: {number:0>name_len$}:{}==\n", "A".repeat(86));
        let signatures: String = (0..signature_count).map(signature).collect();
        format!(
            "StorePath: /nix/store/{zeros}-a\nURL: nar/{hash}.nar\nCompression: none\n\
             NarHash: sha256:{hash}\nNarSize: 112\nReferences: {}\n{}",
            references.join(" "),
            signatures,
            hash = "0".repeat(52),
        )
        .into_bytes()
    }

    fn parsed(text: &[u8]) -> Result<(), Refusal> {
        let hash_part = HashPart::parse("0".repeat(32).as_bytes()).unwrap();
        let with_url = parse(&StoreDir::default(), hash_part, text).map(drop);
        let without_url = parse_without_url(&StoreDir::default(), text.to_vec()).map(drop);
        assert_eq!(with_url.is_ok(), without_url.is_ok());
        with_url
    }

    #[test]
    fn references_and_signatures_are_limited() {
        parsed(&narinfo(8192, 32, 256)).unwrap();
        for (text, expected) in [
            (narinfo(8193, 32, 256), ("References", 8193, 8192)),
            (narinfo(8192, 33, 256), ("Sig", 33, 32)),
        ] {
            match parsed(&text) {
                Err(Refusal::TooMany {
                    field,
                    found,
                    limit,
                }) => assert_eq!((field, found, limit), expected),
                other => unreachable!("{other:?}"),
            }
        }
        let refusal = parsed(&narinfo(0, 1, 257)).unwrap_err();
        assert!(matches!(refusal, Refusal::KeyName(257)), "{refusal:?}");
    }
}
