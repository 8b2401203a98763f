//! Tokens in files and in the environment.

use anyhow::ensure;
use samovar_storage::token::PREFIX;

/// Environment variable that may contain a token.
pub(crate) const TOKEN_VARIABLE: &str = "SAMOVAR_TOKEN";

/// Returns the token in the first line of a text. `source`: description of the text's origin.
///
/// # Errors
///
/// The line is empty, or has a character that no bearer token has (RFC 6750, 2.1). Most files that
/// are given by mistake have one: keys have a colon, and netrc files have spaces.
pub(crate) fn token_in<'a>(text: &'a str, source: &str) -> anyhow::Result<&'a str> {
    let token = text.lines().next().unwrap_or_default().trim();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    ensure!(
        !token.is_empty() && token.bytes().all(is_allowed),
        "{source} has no token in its first line: a token of Samovar begins with {PREFIX}"
    );
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_one_word_of_the_first_line() {
        for text in ["smv1_a-b", " smv1_a-b \n", "smv1_a-b\nmore text"] {
            assert_eq!(token_in(text, "x").unwrap(), "smv1_a-b");
        }
        let jwt = "eyJhbGciOi.eyJzdWIi._-+/==";
        assert_eq!(token_in(jwt, "x").unwrap(), jwt);
        for text in [
            "",
            "\nsmv1_a",
            "a b",
            "cache-1:AAAA",
            "machine a login b password c",
            "ä",
            "\"a\"",
        ] {
            let error = token_in(text, "\"file\"").unwrap_err().to_string();
            assert!(error.starts_with("\"file\" has no token"), "{error}");
        }
    }
}
