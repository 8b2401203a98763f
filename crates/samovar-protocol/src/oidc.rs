//! `POST upload/oidc`: exchanges the ID token of a CI job for a token of the cache.
//!
//! # Grammar
//!
//! ```text
//! request = [ "renew " token LF ]
//! answer  = "token " token " " expires-at " " valid-for LF "end 1" LF
//! ```
//!
//! The ID token is the bearer token of the request. `expires-at` is a time in seconds since 1970 by
//! the clock of the server, `valid-for` the time until then in seconds, by which clients with other
//! clocks know when to renew the token. A request with `renew` extends the token that an earlier
//! exchange has given, if that is still valid and the ID token gives the same rights; otherwise the
//! answer has a new token. What was sent with a token can be published with this token alone, so a
//! push that takes longer than a token is valid must extend it.

use crate::answer::{AnswerError, Lines};
use crate::line::{number, words};
use crate::names::TOKEN_PREFIX;

/// Maximum length of a request, in bytes.
pub const EXCHANGE_LEN_MAX: usize = 256;

/// Maximum length of a token, in bytes.
const TOKEN_LEN_MAX: usize = 128;

/// Error: the body of a request breaks the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is neither empty nor a line `renew TOKEN`")]
pub struct ExchangeError;

/// A request for an exchange, without the ID token.
#[derive(Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The token to extend; `None`: a new one is wanted.
    pub renewed: Option<String>,
}

/// The answer to an exchange.
#[derive(Clone, PartialEq, Eq)]
pub struct Exchanged {
    /// The token.
    pub token: String,
    /// Time of expiry by the server's clock, in seconds since 1970.
    pub expires_at: u64,
    /// Time until the token expires, in seconds.
    pub valid_for_s: u64,
}

/// Hides the tokens from logs.
impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exchange(…)")
    }
}

impl std::fmt::Debug for Exchanged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exchanged(…)")
    }
}

/// Returns whether a text has the form of a token of a storage.
fn is_token(text: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.len() <= TOKEN_LEN_MAX && text.starts_with(TOKEN_PREFIX) && text.bytes().all(is_of_token)
}

impl Exchange {
    /// Returns the body of the request.
    #[must_use]
    pub fn text(&self) -> String {
        let renewed = self.renewed.as_ref();
        renewed.map_or_else(String::new, |token| format!("renew {token}\n"))
    }

    /// Parses the body of a request.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`].
    pub fn parse(text: &[u8]) -> Result<Self, ExchangeError> {
        if text.is_empty() {
            return Ok(Self { renewed: None });
        }
        let line = text
            .strip_suffix(b"\n")
            .filter(|_| text.len() <= EXCHANGE_LEN_MAX);
        let token = line.and_then(|line| line.strip_prefix(b"renew "));
        let token = token.and_then(|token| std::str::from_utf8(token).ok());
        match token.filter(|token| is_token(token)) {
            Some(token) => Ok(Self {
                renewed: Some(token.to_owned()),
            }),
            None => Err(ExchangeError),
        }
    }
}

impl Exchanged {
    /// Returns the answer.
    #[must_use]
    pub fn text(&self) -> String {
        let Self {
            token,
            expires_at,
            valid_for_s,
        } = self;
        format!("token {token} {expires_at} {valid_for_s}\nend 1\n")
    }

    /// Parses the answer.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`]. It does not have the token.
    pub fn parse(text: &str) -> Result<Self, AnswerError> {
        let line = Lines::single(text)?;
        Self::parse_line(line).ok_or_else(|| AnswerError::line("token …"))
    }

    fn parse_line(line: &str) -> Option<Self> {
        let [b"token", token, expires_at, valid_for_s] = words(line.as_bytes())? else {
            return None;
        };
        let token = std::str::from_utf8(token).ok()?;
        is_token(token).then_some(())?;
        Some(Self {
            token: token.to_owned(),
            expires_at: number(expires_at)?,
            valid_for_s: number(valid_for_s)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    #[test]
    fn requests() {
        assert_eq!(Exchange::parse(b"").unwrap().renewed, None);
        let renewed = Exchange::parse(b"renew smv1_a-B_9\n").unwrap().renewed;
        assert_eq!(renewed.as_deref(), Some("smv1_a-B_9"));
        let long = format!("renew smv1_{}\n", "a".repeat(TOKEN_LEN_MAX - 4));
        for wrong in [
            "\n",
            "renew smv1_a",
            "renew smv2_a\n",
            "renew  smv1_a\n",
            "renew smv1_a b\n",
            "renew smv1_a\nrenew smv1_b\n",
            "renew smv1_\u{e4}\n",
            "extend smv1_a\n",
            &long,
        ] {
            assert_eq!(
                Exchange::parse(wrong.as_bytes()),
                Err(ExchangeError),
                "{wrong}"
            );
        }
    }

    #[test]
    fn answers() {
        let text = "token smv1_a 1700000000 3600\nend 1\n";
        let exchanged = Exchanged::parse(text).unwrap();
        assert_eq!(
            (exchanged.expires_at, exchanged.valid_for_s),
            (1_700_000_000, 3600)
        );
        assert_eq!(exchanged.text(), text);
        for len in 0..text.len() {
            assert!(Exchanged::parse(&text[..len]).is_err(), "{len}");
        }
        for wrong in [
            text.replace("smv1", "abc1"),
            text.replace("3600", "03600"),
            text.replace(" 3600", ""),
            text.replace("end 1", "token smv1_b 1 1\nend 2"),
        ] {
            let error = Exchanged::parse(&wrong).unwrap_err();
            assert!(!error.to_string().contains("smv1_"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written(
            token in "smv1_[a-zA-Z0-9_-]{0,100}",
            (expires_at, valid_for_s) in any::<(u64, u64)>(),
            damage in damage(),
        ) {
            let request = Exchange { renewed: Some(token.clone()) };
            prop_assert_eq!(Exchange::parse(request.text().as_bytes()), Ok(request.clone()));
            let damaged = damage.of_text(&request.text());
            if let Ok(read) = Exchange::parse(damaged.as_bytes()) {
                prop_assert_eq!(read.text(), damaged);
            }
            let answer = Exchanged { token, expires_at, valid_for_s };
            let text = answer.text();
            prop_assert_eq!(Exchanged::parse(&text), Ok(answer));
            let damaged = damage.of_text(&text);
            if let Ok(read) = Exchanged::parse(&damaged) {
                prop_assert_eq!(read.text(), damaged);
            }
        }
    }
}
