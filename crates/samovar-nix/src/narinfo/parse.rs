//! Parses narinfos as clients do.

use super::{Compression, NarInfo};
use crate::{
    ContentAddress, ContentAddressError, Hash, HashError, NarHash, NarHashError, Signature,
    SignatureError, StoreDir, StorePath, StorePathError,
};

/// Error of parsing a narinfo: the broken rule and its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {kind}")]
pub struct NarInfoError {
    /// Line on which the field starts, from 1. For a missing field, the line after the last.
    pub line: u64,
    /// The rule that the narinfo breaks.
    pub kind: NarInfoErrorKind,
}

/// The rules of a narinfo that a document can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NarInfoErrorKind {
    /// A field has no colon before the end of the document.
    #[error("expected ':'")]
    NoColon,
    /// The last value has no line feed after it.
    #[error("expected a line feed")]
    NoLineEnd,
    /// The value of a known field is not UTF-8.
    #[error("value is not UTF-8")]
    NotUtf8,
    /// `StorePath` is not a path in the store directory.
    #[error("bad StorePath: {0}")]
    StorePath(StorePathError),
    /// `Compression` is unknown to Nix.
    #[error("unknown Compression")]
    Compression,
    /// `FileHash` is not a hash.
    #[error("bad FileHash: {0}")]
    FileHash(HashError),
    /// `FileSize` is not a number.
    #[error("bad FileSize")]
    FileSize,
    /// `NarHash` is not SHA-256.
    #[error("bad NarHash: {0}")]
    NarHash(NarHashError),
    /// `NarSize` is not a number.
    #[error("bad NarSize")]
    NarSize,
    /// A reference is not a base name.
    #[error("bad reference: {0}")]
    Reference(StorePathError),
    /// `References` is repeated.
    #[error("References twice")]
    ExtraReferences,
    /// `Deriver` is not a base name.
    #[error("bad Deriver: {0}")]
    Deriver(StorePathError),
    /// `Sig` is not a signature.
    #[error("bad Sig: {0}")]
    Signature(SignatureError),
    /// `CA` is not a content address.
    #[error("bad CA: {0}")]
    ContentAddress(ContentAddressError),
    /// `CA` is repeated.
    #[error("CA twice")]
    ExtraContentAddress,
    /// `StorePath` is missing.
    #[error("no StorePath")]
    StorePathMissing,
    /// `NarHash` is missing.
    #[error("no NarHash")]
    NarHashMissing,
    /// `URL` is missing or empty.
    #[error("no URL")]
    UrlMissing,
    /// `NarSize` is missing or zero.
    #[error("no NarSize")]
    NarSizeMissing,
}

/// The fields parsed so far.
#[derive(Default)]
struct Fields {
    store_path: Option<StorePath>,
    url: String,
    compression: Option<Compression>,
    file_hash: Option<Hash>,
    file_size: Option<u64>,
    nar_hash: Option<NarHash>,
    nar_size: u64,
    references: Vec<StorePath>,
    deriver: Option<StorePath>,
    system: Option<String>,
    signatures: Vec<Signature>,
    content_address: Option<ContentAddress>,
}

impl NarInfo {
    /// Parses a narinfo of a cache for `dir`, with the [quirks](super#quirks) of clients.
    ///
    /// # Errors
    ///
    /// Any [`NarInfoErrorKind`], with the line.
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_nix::{StoreDir, narinfo::NarInfo};
    /// let text = b"StorePath: /nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0\n\
    ///     URL: nar/base.nar\n\
    ///     Compression: none\n\
    ///     NarHash: sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z\n\
    ///     NarSize: 120\n";
    /// let info = NarInfo::parse(&StoreDir::default(), text)?;
    /// assert_eq!(info.store_path.name(), "base-1.0");
    /// # Ok::<(), samovar_nix::narinfo::NarInfoError>(())
    /// ```
    pub fn parse(dir: &StoreDir, text: &[u8]) -> Result<Self, NarInfoError> {
        let mut fields = Fields::default();
        let mut rest = text;
        let mut line = 1_u64;
        while !rest.is_empty() {
            let at_line = |kind| NarInfoError { line, kind };
            let field = Field::split_from(&mut rest).map_err(at_line)?;
            fields.take(dir, field.key, field.value).map_err(at_line)?;
            line = line.saturating_add(field.line_count);
        }
        fields.finish().map_err(|kind| NarInfoError { line, kind })
    }
}

/// A field as clients delimit it. It may span several lines.
struct Field<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Number of line feeds, including the last.
    line_count: u64,
}

impl<'a> Field<'a> {
    /// Splits the first field off `text`.
    fn split_from(text: &mut &'a [u8]) -> Result<Self, NarInfoErrorKind> {
        let (key, after_colon) = split_at_byte(text, b':').ok_or(NarInfoErrorKind::NoColon)?;
        // Skip one byte unchecked: usually a space, but possibly the line feed.
        let (unseen, value) = after_colon
            .split_first()
            .ok_or(NarInfoErrorKind::NoLineEnd)?;
        let (value, after) = split_at_byte(value, b'\n').ok_or(NarInfoErrorKind::NoLineEnd)?;
        let feeds = key
            .iter()
            .chain([unseen])
            .filter(|&&byte| byte == b'\n')
            .count() as u64;
        *text = after;
        Ok(Self {
            key,
            value,
            line_count: feeds.saturating_add(1),
        })
    }
}

fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&b| b == byte)?;
    Some((text.get(..at)?, text.get(at.checked_add(1)?..)?))
}

impl Fields {
    fn take(&mut self, dir: &StoreDir, key: &[u8], value: &[u8]) -> Result<(), NarInfoErrorKind> {
        use NarInfoErrorKind as Kind;
        if !is_known(key) {
            return Ok(());
        }
        let Ok(value) = std::str::from_utf8(value) else {
            return Err(Kind::NotUtf8);
        };
        match key {
            b"StorePath" => {
                self.store_path = Some(StorePath::parse(dir, value).map_err(Kind::StorePath)?);
            }
            b"URL" => self.url = value.into(),
            b"Compression" => self.compression = compression(value)?,
            b"FileHash" => self.file_hash = Some(Hash::parse(value).map_err(Kind::FileHash)?),
            b"FileSize" => self.file_size = Some(number(value).ok_or(Kind::FileSize)?),
            b"NarHash" => self.nar_hash = Some(NarHash::parse(value).map_err(Kind::NarHash)?),
            b"NarSize" => self.nar_size = number(value).ok_or(Kind::NarSize)?,
            b"References" => self.take_references(value)?,
            b"Deriver" => self.take_deriver(value)?,
            b"System" => self.system = Some(value.into()),
            b"Sig" => self
                .signatures
                .push(Signature::parse(value).map_err(Kind::Signature)?),
            b"CA" => self.take_content_address(value)?,
            _ => {}
        }
        Ok(())
    }

    fn take_references(&mut self, value: &str) -> Result<(), NarInfoErrorKind> {
        if !self.references.is_empty() {
            return Err(NarInfoErrorKind::ExtraReferences);
        }
        let base_names = value.split(' ').filter(|base_name| !base_name.is_empty());
        self.references = base_names
            .map(StorePath::from_base_name)
            .collect::<Result<_, _>>()
            .map_err(NarInfoErrorKind::Reference)?;
        Ok(())
    }

    fn take_deriver(&mut self, value: &str) -> Result<(), NarInfoErrorKind> {
        if value != "unknown-deriver" {
            let deriver = StorePath::from_base_name(value).map_err(NarInfoErrorKind::Deriver)?;
            self.deriver = Some(deriver);
        }
        Ok(())
    }

    fn take_content_address(&mut self, value: &str) -> Result<(), NarInfoErrorKind> {
        if self.content_address.is_some() {
            return Err(NarInfoErrorKind::ExtraContentAddress);
        }
        if !value.is_empty() {
            let address = ContentAddress::parse(value).map_err(NarInfoErrorKind::ContentAddress)?;
            self.content_address = Some(address);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<NarInfo, NarInfoErrorKind> {
        let store_path = self.store_path.ok_or(NarInfoErrorKind::StorePathMissing)?;
        let nar_hash = self.nar_hash.ok_or(NarInfoErrorKind::NarHashMissing)?;
        if self.url.is_empty() {
            return Err(NarInfoErrorKind::UrlMissing);
        }
        if self.nar_size == 0 {
            return Err(NarInfoErrorKind::NarSizeMissing);
        }
        self.references.sort_unstable();
        self.references.dedup();
        self.signatures.sort_unstable();
        self.signatures.dedup();
        Ok(NarInfo {
            store_path,
            url: self.url,
            compression: self.compression.unwrap_or(Compression::Bzip2),
            file_hash: self.file_hash,
            file_size: self.file_size,
            nar_hash,
            nar_size: self.nar_size,
            references: self.references,
            deriver: self.deriver,
            system: self.system,
            signatures: self.signatures,
            content_address: self.content_address,
        })
    }
}

/// The fields whose values are parsed. Other fields may hold any value.
const KNOWN: [&[u8]; FIELD_COUNT] = [
    b"StorePath",
    b"URL",
    b"Compression",
    b"FileHash",
    b"FileSize",
    b"NarHash",
    b"NarSize",
    b"References",
    b"Deriver",
    b"System",
    b"Sig",
    b"CA",
];

pub(super) const FIELD_COUNT: usize = 12;

pub(super) fn is_known(key: &[u8]) -> bool {
    KNOWN.contains(&key)
}

/// Parses `Compression`. Returns `None` for an empty value, which counts as a missing field.
fn compression(value: &str) -> Result<Option<Compression>, NarInfoErrorKind> {
    if value.is_empty() {
        return Ok(None);
    }
    Compression::from_name(value)
        .map(Some)
        .ok_or(NarInfoErrorKind::Compression)
}

/// Parses a decimal number; returns `None` for any other text. A plus sign and leading zeros are
/// allowed, as in Nix.
fn number(value: &str) -> Option<u64> {
    value.parse().ok()
}
