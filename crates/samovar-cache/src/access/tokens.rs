//! Tokens: machine-generated secrets.
//!
//! A token is random and too long to guess, so a fast hash suffices: the file contains its SHA-256.
//! Several tokens may share a name, so that a new one can replace an old one without an
//! interruption.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::LineProblem;
use super::secret::{Digest, Secret, digest_of_hex, hex, random, sha256};
use super::secret_file::{LineError, lines};

/// All configured tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Client names, by the keyed digest of the token's SHA-256. The key keeps the time of a
    /// look-up from revealing anything about the file.
    names: HashMap<Digest, Arc<str>>,
}

impl Tokens {
    /// Parses the tokens file.
    pub(crate) fn parse(secret: &Secret, text: &str) -> Result<Self, LineError> {
        let mut names = HashMap::new();
        lines(text, LineProblem::NoToken, |name, hash| {
            let digest = digest_of_hex(hash).ok_or(LineProblem::NoToken)?;
            names.insert(secret.digest(&[&digest]), Arc::from(name));
            Ok(())
        })?;
        Ok(Self { names })
    }

    /// Returns the client name of a token; `None` if it is not one of the configured tokens.
    pub(crate) fn find(&self, secret: &Secret, token: &[u8]) -> Option<&Arc<str>> {
        self.names.get(&secret.digest(&[&sha256(token)]))
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

/// Generates a token and its line for the tokens file. The token itself is not stored anywhere.
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
    use super::*;

    #[test]
    fn a_token_is_found_by_its_exact_text() {
        let secret = Secret::new().unwrap();
        let (token, line) = new_token("ci").unwrap();
        let (other, other_line) = new_token("ci").unwrap();
        assert!(token.len() == 43 && token != other && !line.contains(&token));
        let text = format!("# of the build machines\n\n{line}\n{other_line}\n");
        let tokens = Tokens::parse(&secret, &text).unwrap();
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
    fn invalid_lines_are_refused_with_their_number() {
        let secret = Secret::new().unwrap();
        for line in ["a", "a:", "a:secret", "a:abcd", &"0".repeat(64)] {
            let text = format!("\n{line}");
            let error = Tokens::parse(&secret, &text).unwrap_err();
            assert_eq!(error, (2, LineProblem::NoToken), "{line}");
        }
    }
}
