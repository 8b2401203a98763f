//! Realisations: the store paths of a content-addressed derivation's outputs.
//!
//! # Generations
//!
//! | Nix | key | members of the document |
//! | --- | --- | --- |
//! | up to 2.34 | `sha256:<hex>!<output>` | `dependentRealisations`, `id`, `outPath`, `signatures` |
//! | from 2.35 on | derivation and output | `outPath`, `signatures` as objects |
//!
//! The hash is the hash of the derivation modulo its inputs; a derivation is given by its base
//! name.
//!
//! Both documents have their members in alphabetical order and no white space, as Nix's JSON
//! library writes them. Stored signatures are passed on unchanged.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libstore/realisation.cc`, `Realisation::toJSON`; Nix 2.36, the same file,
//! `adl_serializer<UnkeyedRealisation>` and `src/libutil/signature/local-keys.cc`.

use std::fmt;

use samovar_nix::{Algorithm, Hash, NAME_LEN_MAX, Signature, StorePath};
use serde_json::{Map, Value, json};

use crate::error::{Corruption, StoreError};

/// The key of a realisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RealisationId {
    /// By the hash of a derivation modulo its inputs (Nix up to 2.34).
    Hash {
        /// The hash of the derivation.
        derivation: Hash,
        /// The name of the output.
        output: OutputName,
    },
    /// By the derivation itself (Nix from 2.35 on).
    Derivation {
        /// The path of the derivation.
        derivation: StorePath,
        /// The name of the output.
        output: OutputName,
    },
}

/// A realisation: its JSON document, and the store path of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realisation {
    out_path: StorePath,
    document: String,
}

/// The name of a derivation's output, such as `out` or `dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputName(Box<str>);

/// Error of a realisation ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RealisationIdError {
    /// There is no `!` between hash and output.
    #[error("the `!` is missing")]
    Separator,
    /// The hash is ill-formed or not SHA-256.
    #[error("the hash is not SHA-256")]
    Hash,
    /// The derivation is not a store path that ends in `.drv`.
    #[error("the derivation is ill-formed")]
    Derivation,
    /// The output name is empty, too long or has characters that a store path may not have.
    #[error("the output name is ill-formed")]
    Output,
}

impl RealisationId {
    /// Parses `sha256:<hex>!<output>`.
    ///
    /// # Errors
    ///
    /// [`RealisationIdError`] if the text has another form.
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_store::RealisationId;
    /// let text = format!("sha256:{}!out", "0".repeat(64));
    /// assert_eq!(RealisationId::parse_hash_form(&text)?.to_string(), text);
    /// # Ok::<(), samovar_store::RealisationIdError>(())
    /// ```
    pub fn parse_hash_form(text: &str) -> Result<Self, RealisationIdError> {
        let (hash, output) = text.split_once('!').ok_or(RealisationIdError::Separator)?;
        let derivation = Hash::parse(hash).map_err(|_error| RealisationIdError::Hash)?;
        if derivation.algorithm() != Algorithm::Sha256 {
            return Err(RealisationIdError::Hash);
        }
        Ok(Self::Hash {
            derivation,
            output: OutputName::parse(output)?,
        })
    }

    /// Builds an id from a derivation's base name and an output name.
    ///
    /// # Errors
    ///
    /// [`RealisationIdError`] unless both are well-formed.
    pub fn parse_derivation_form(
        base_name: &str,
        output: &str,
    ) -> Result<Self, RealisationIdError> {
        let derivation = StorePath::from_base_name(base_name)
            .ok()
            .filter(StorePath::is_derivation)
            .ok_or(RealisationIdError::Derivation)?;
        Ok(Self::Derivation {
            derivation,
            output: OutputName::parse(output)?,
        })
    }
}

impl Realisation {
    /// Parses the JSON document of a realisation.
    ///
    /// # Errors
    ///
    /// [`Corruption::Realisation`] if it has no valid `outPath`.
    pub fn new(document: String) -> Result<Self, StoreError> {
        let out_path = serde_json::from_str::<Value>(&document)
            .ok()
            .as_ref()
            .and_then(|value| value.get("outPath")?.as_str())
            .and_then(|base_name| StorePath::from_base_name(base_name).ok())
            .ok_or(StoreError::Corrupt(Corruption::Realisation))?;
        Ok(Self { out_path, document })
    }

    /// Returns the store path of the output.
    #[must_use]
    pub fn out_path(&self) -> &StorePath {
        &self.out_path
    }

    /// Returns the JSON document unchanged, as stored.
    #[must_use]
    pub fn into_document(self) -> String {
        self.document
    }

    /// Returns the text that signatures cover.
    ///
    /// # Source
    ///
    /// Nix 2.8.0, `src/libstore/realisation.cc`, `Realisation::fingerprint`: the document without
    /// its signatures. Nix 2.36, the same file, `UnkeyedRealisation::fingerprint`: key and value.
    #[must_use]
    pub fn fingerprint(&self, id: &RealisationId) -> String {
        match id {
            RealisationId::Hash { .. } => {
                let mut members = self.members();
                members.remove("signatures");
                Value::Object(members).to_string()
            }
            RealisationId::Derivation { derivation, output } => {
                let key = json!({
                    "drvPath": derivation.base_name(),
                    "outputName": output.as_str(),
                });
                let value = json!({ "outPath": self.out_path.base_name() });
                json!({ "key": key, "value": value }).to_string()
            }
        }
    }

    /// Returns the document with `signatures` in place of the stored ones. With `keeps_stored`,
    /// stored signatures by keys of other names remain.
    #[must_use]
    pub fn signed(
        self,
        id: &RealisationId,
        signatures: &[Signature],
        keeps_stored: bool,
    ) -> String {
        let mut members = self.members();
        let stored = match members.remove("signatures") {
            Some(Value::Array(stored)) if keeps_stored => stored,
            _ => Vec::new(),
        };
        let is_by_another = |one: &Value| {
            let name = match one {
                Value::String(text) => text.split_once(':').map(|(name, _)| name),
                other => other.get("keyName").and_then(Value::as_str),
            };
            signatures
                .iter()
                .all(|other| Some(other.key_name()) != name)
        };
        let own = signatures.iter().filter_map(|signature| match id {
            RealisationId::Hash { .. } => Some(Value::from(signature.to_string())),
            RealisationId::Derivation { .. } => signature_member(signature),
        });
        let mut all: Vec<Value> = own
            .chain(stored.into_iter().filter(is_by_another))
            .collect();
        // Sort the signatures as Nix does, which keeps them in a sorted set.
        all.sort_by_cached_key(Value::to_string);
        members.insert("signatures".to_owned(), Value::Array(all));
        Value::Object(members).to_string()
    }

    fn members(&self) -> Map<String, Value> {
        serde_json::from_str(&self.document).unwrap_or_default()
    }
}

impl fmt::Display for RealisationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hash { derivation, output } => write!(f, "{}!{output}", hash_key(derivation)),
            Self::Derivation { derivation, output } => write!(f, "{derivation}^{output}"),
        }
    }
}

impl OutputName {
    /// Parses the name of an output.
    ///
    /// # Errors
    ///
    /// [`RealisationIdError::Output`].
    pub fn parse(text: &str) -> Result<Self, RealisationIdError> {
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._?=".contains(byte);
        let well_formed =
            !text.is_empty() && text.len() <= NAME_LEN_MAX && text.as_bytes().iter().all(allowed);
        if well_formed {
            Ok(Self(text.into()))
        } else {
            Err(RealisationIdError::Output)
        }
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OutputName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the form of a derivation's hash in the database.
pub(crate) fn hash_key(hash: &Hash) -> String {
    format!("{}:{}", hash.algorithm().name(), hash.base16())
}

/// Writes the document of Nix up to 2.34.
pub(crate) fn hash_document(
    id: &RealisationId,
    out_path: &StorePath,
    dependencies: &[(String, StorePath)],
    signatures: &str,
) -> String {
    let mut signatures: Vec<&str> = signatures.split_ascii_whitespace().collect();
    signatures.sort_unstable();
    signatures.dedup();
    let dependencies: Map<String, Value> = dependencies
        .iter()
        .map(|(id, path)| (id.clone(), Value::from(path.base_name())))
        .collect();
    json!({
        "dependentRealisations": dependencies,
        "id": id.to_string(),
        "outPath": out_path.base_name(),
        "signatures": signatures,
    })
    .to_string()
}

/// Writes the document of Nix from 2.35 on.
pub(crate) fn derivation_document(out_path: &StorePath, signatures: &[Signature]) -> String {
    let signatures: Vec<Value> = signatures.iter().filter_map(signature_member).collect();
    json!({ "outPath": out_path.base_name(), "signatures": signatures }).to_string()
}

fn signature_member(signature: &Signature) -> Option<Value> {
    let text = signature.to_string();
    let (key_name, base64) = text.split_once(':')?;
    Some(json!({ "keyName": key_name, "sig": base64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRV: &str = "ml8yi5swx7sfafm72592yq5cyslh5xzr-app-2.0.drv";

    #[track_caller]
    fn check(result: Result<RealisationId, RealisationIdError>, expected: RealisationIdError) {
        assert_eq!(result.unwrap_err(), expected);
    }

    #[test]
    fn ill_formed_ids() {
        let hash = "1".repeat(64);
        check(
            RealisationId::parse_hash_form("x"),
            RealisationIdError::Separator,
        );
        check(
            RealisationId::parse_hash_form("x!out"),
            RealisationIdError::Hash,
        );
        check(
            RealisationId::parse_hash_form(&format!("md5:{}!out", "1".repeat(32))),
            RealisationIdError::Hash,
        );
        check(
            RealisationId::parse_hash_form(&format!("sha256:{hash}!")),
            RealisationIdError::Output,
        );
        check(
            RealisationId::parse_hash_form(&format!("sha256:{hash}!a/b")),
            RealisationIdError::Output,
        );
        check(
            RealisationId::parse_derivation_form("nonsense", "out"),
            RealisationIdError::Derivation,
        );
        check(
            RealisationId::parse_derivation_form(DRV.trim_end_matches(".drv"), "out"),
            RealisationIdError::Derivation,
        );
    }

    #[test]
    fn output_names_at_the_limit_and_past_it() {
        assert!(OutputName::parse(&"o".repeat(NAME_LEN_MAX)).is_ok());
        assert!(OutputName::parse(&"o".repeat(NAME_LEN_MAX + 1)).is_err());
    }

    #[test]
    fn the_older_document() {
        let id = RealisationId::parse_hash_form(&format!("sha256:{}!out", "0".repeat(64))).unwrap();
        let path = StorePath::from_base_name(DRV.trim_end_matches(".drv")).unwrap();
        let dependency = (format!("sha256:{}!dev", "1".repeat(64)), path.clone());
        assert_eq!(
            hash_document(&id, &path, &[dependency], "b:x a:y"),
            format!(
                "{{\"dependentRealisations\":{{\"sha256:{}!dev\":\"{path}\"}},\
                 \"id\":\"sha256:{}!out\",\"outPath\":\"{path}\",\
                 \"signatures\":[\"a:y\",\"b:x\"]}}",
                "1".repeat(64),
                "0".repeat(64),
            )
        );
    }

    #[test]
    fn the_newer_document() {
        let path = StorePath::from_base_name(DRV.trim_end_matches(".drv")).unwrap();
        let signature = Signature::new("k-1", [0; 64]).unwrap();
        assert_eq!(
            derivation_document(&path, &[signature]),
            format!(
                "{{\"outPath\":\"{path}\",\
                 \"signatures\":[{{\"keyName\":\"k-1\",\"sig\":\"{}==\"}}]}}",
                "A".repeat(86),
            )
        );
    }
}
