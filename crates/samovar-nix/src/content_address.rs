//! Content addresses: the `CA` field and the database's `ca` column.
//!
//! # Grammar
//!
//! ```text
//! text:sha256:<digest>      a text with references, such as a derivation
//! fixed:<algo>:<digest>     one file, hashed flat
//! fixed:r:<algo>:<digest>   a tree, hashed as NAR
//! fixed:git:<algo>:<digest> a tree, hashed as git does (experimental in Nix)
//! ```
//!
//! # Quirks
//!
//! The digest is accepted in base-16, base-32 or base-64 and always written in base-32; SRI is not
//! accepted. An empty text means "none"; the caller must handle it.
//!
//! # Source
//!
//! Nix 2.36, `src/libstore/content-address.cc`.

use std::fmt;

use crate::{Algorithm, Hash, HashError};

/// The data that a [`ContentAddress`] hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// A text together with its references.
    Text,
    /// The bytes of one file.
    Flat,
    /// The NAR of a tree.
    Nar,
    /// The git object of a tree.
    Git,
}

/// The hash from which a path's name was computed. The name proves the contents, so the path needs
/// no signature.
///
/// # Examples
///
/// ```
/// # use samovar_nix::{ContentAddress, Method};
/// let text = "fixed:r:sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";
/// let address = ContentAddress::parse(text)?;
/// assert_eq!(address.method(), Method::Nar);
/// assert_eq!(address.to_string(), text);
/// # Ok::<(), samovar_nix::ContentAddressError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentAddress {
    method: Method,
    /// Hash of the data. Invariant: it is SHA-256 if the method is [`Method::Text`].
    hash: Hash,
}

/// Error of parsing or creating a content address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContentAddressError {
    /// The text starts with neither `text:` nor `fixed:`.
    #[error("neither text: nor fixed:")]
    Prefix,
    /// The algorithm or the digest is invalid.
    #[error("bad hash")]
    Hash(#[source] HashError),
    /// The method is `text`, and the hash is not SHA-256.
    #[error("a text is hashed with SHA-256")]
    TextNotSha256,
}

impl ContentAddress {
    /// Creates a content address.
    ///
    /// # Errors
    ///
    /// [`ContentAddressError::TextNotSha256`].
    pub fn new(method: Method, hash: Hash) -> Result<Self, ContentAddressError> {
        if method == Method::Text && hash.algorithm() != Algorithm::Sha256 {
            return Err(ContentAddressError::TextNotSha256);
        }
        Ok(Self { method, hash })
    }

    /// Parses the text of a `CA` field.
    ///
    /// # Errors
    ///
    /// Any [`ContentAddressError`].
    pub fn parse(text: &str) -> Result<Self, ContentAddressError> {
        let (method, hash) = match text.split_once(':') {
            Some(("text", hash)) => (Method::Text, hash),
            Some(("fixed", rest)) => match rest.split_once(':') {
                Some(("r", hash)) => (Method::Nar, hash),
                Some(("git", hash)) => (Method::Git, hash),
                _ => (Method::Flat, rest),
            },
            _ => return Err(ContentAddressError::Prefix),
        };
        let no_algorithm = ContentAddressError::Hash(HashError::NoAlgorithm);
        let (name, digest) = hash.split_once(':').ok_or(no_algorithm)?;
        let hash = Algorithm::parse(name).and_then(|algo| Hash::parse_digest(algo, digest));
        Self::new(method, hash.map_err(ContentAddressError::Hash)?)
    }

    /// Returns the method, which states what data was hashed.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// Returns the hash that the content address contains.
    #[must_use]
    pub const fn hash(&self) -> &Hash {
        &self.hash
    }
}

impl fmt::Display for ContentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.method {
            Method::Text => "text:",
            Method::Flat => "fixed:",
            Method::Nar => "fixed:r:",
            Method::Git => "fixed:git:",
        })?;
        self.hash.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "1i3sya593a400w1j9xdircraqa1icwlwhi7qzwd696l89nwi4hzf";

    #[track_caller]
    fn check(text: &str, method: Method) {
        let address = ContentAddress::parse(text).unwrap();
        assert_eq!(address.method(), method);
        assert_eq!(address.to_string(), text);
    }

    #[track_caller]
    fn check_refused(text: &str, error: ContentAddressError) {
        assert_eq!(ContentAddress::parse(text), Err(error));
    }

    #[test]
    fn every_method() {
        check(&format!("text:sha256:{DIGEST}"), Method::Text);
        check(&format!("fixed:sha256:{DIGEST}"), Method::Flat);
        check(&format!("fixed:r:sha256:{DIGEST}"), Method::Nar);
        check(
            "fixed:git:sha1:143xibwh31h9bvxzalr0sjvbbvpa6ffs",
            Method::Git,
        );
        check("fixed:md5:3y8bwfr609h3lh9ch0izcqq7fl", Method::Flat);
    }

    #[test]
    fn other_forms_of_the_digest_are_written_in_base_32() {
        let base16 = "ee4312b94d889a641afff844c829673128ac32cbb1f524030780a8918af27ac4";
        let address = ContentAddress::parse(&format!("fixed:r:sha256:{base16}")).unwrap();
        assert_eq!(address.to_string(), format!("fixed:r:sha256:{DIGEST}"));
        assert_eq!(address.hash().base16(), base16);
    }

    #[test]
    fn refusals() {
        let hash = ContentAddressError::Hash;
        check_refused("", ContentAddressError::Prefix);
        check_refused("text", ContentAddressError::Prefix);
        check_refused(
            &format!("Text:sha256:{DIGEST}"),
            ContentAddressError::Prefix,
        );
        check_refused(&format!("sha256:{DIGEST}"), ContentAddressError::Prefix);
        check_refused("text:", hash(HashError::NoAlgorithm));
        check_refused("fixed:r:", hash(HashError::NoAlgorithm));
        check_refused("fixed:r:sha256", hash(HashError::NoAlgorithm));
        check_refused("fixed:r:sha256:", hash(HashError::Length));
        check_refused(
            &format!("fixed:x:sha256:{DIGEST}"),
            hash(HashError::Algorithm),
        );
        check_refused(
            "text:sha1:143xibwh31h9bvxzalr0sjvbbvpa6ffs",
            ContentAddressError::TextNotSha256,
        );
        check_refused(
            "fixed:r:sha256-7kMSuU2ImmQa//hEyClnMSisMsux9SQDB4CokYryesQ=",
            hash(HashError::NoAlgorithm),
        );
    }
}
