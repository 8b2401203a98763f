//! Tokens: secrets that machines made.
//!
//! A token is random, so nobody can try all of them and a fast hash keeps it secret: the file has
//! its SHA-256. Several tokens may have one name, so that one takes over from another.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::LineProblem;
use super::secret::{Digest, Secret, digest_of_hex, hex, random, sha256};

/// All tokens there are.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// By the digest of their SHA-256 under a key: how long a look-up takes tells nothing about
    /// what is in the file.
    names: HashMap<Digest, Arc<str>>,
}

impl Tokens {
    pub(crate) fn with(
        secret: &Secret,
        read: impl FnOnce(Take<'_>) -> Result<(), super::AccessError>,
    ) -> Result<Self, super::AccessError> {
        let mut names = HashMap::new();
        read(&mut |name, hash| {
            let digest = digest_of_hex(hash).ok_or(LineProblem::NoToken)?;
            names.insert(secret.digest(&[&digest]), Arc::from(name));
            Ok(())
        })?;
        Ok(Self { names })
    }

    /// Whose token this is.
    pub(crate) fn find(&self, secret: &Secret, token: &[u8]) -> Option<&Arc<str>> {
        self.names.get(&secret.digest(&[&sha256(token)]))
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

/// Takes a name and what stands behind the colon.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&str, &str) -> Result<(), LineProblem>;

/// A new token, and the line for the tokens file. The token is shown once and kept nowhere.
///
/// # Errors
///
/// If the system has no random numbers.
pub fn new_token(name: &str) -> io::Result<(String, String)> {
    let token = URL_SAFE_NO_PAD.encode(random::<32>()?);
    let line = format!("{name}:{}", hex(&sha256(token.as_bytes())));
    Ok((token, line))
}

#[cfg(test)]
mod tests {
    use super::super::secret_file::lines;
    use super::*;

    fn tokens(secret: &Secret, text: &str) -> Result<Tokens, (usize, LineProblem)> {
        let mut outcome = Ok(());
        let tokens = Tokens::with(secret, |take| {
            outcome = lines(text, LineProblem::NoToken, take);
            Ok(())
        });
        outcome.map(|()| tokens.unwrap())
    }

    #[test]
    fn a_token_is_found_by_what_it_is() {
        let secret = Secret::new().unwrap();
        let (token, line) = new_token("ci").unwrap();
        let (other, other_line) = new_token("ci").unwrap();
        assert!(token.len() == 43 && token != other && !line.contains(&token));
        let text = format!("# of the build machines\n\n{line}\n{other_line}\n");
        let tokens = tokens(&secret, &text).unwrap();
        for token in [&token, &other] {
            let name = tokens.find(&secret, token.as_bytes()).unwrap();
            assert_eq!(&**name, "ci");
        }
        let hash = line.rsplit(':').next().unwrap();
        for wrong in ["", "ci", &token[1..], hash, &format!("{token}=")] {
            assert_eq!(tokens.find(&secret, wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn lines_that_are_none() {
        let secret = Secret::new().unwrap();
        for line in ["a", "a:", "a:secret", "a:abcd", &"0".repeat(64)] {
            let text = format!("\n{line}");
            let error = tokens(&secret, &text).unwrap_err();
            assert_eq!(error, (2, LineProblem::NoToken), "{line}");
        }
    }
}
