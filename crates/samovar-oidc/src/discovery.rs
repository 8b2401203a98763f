//! The description that an issuer publishes about itself.
//!
//! # Source
//!
//! `OpenID` Connect Discovery 1.0, sections 3 and 4.

use serde::Deserialize;

/// Maximum length of a description, in bytes. That of GitHub has 1 KiB, that of GitLab 2 KiB.
pub const DESCRIPTION_LEN_MAX: u64 = 64 << 10;

/// The error of a description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The text is no description.
    #[error("its description is not JSON with the fields issuer and jwks_uri")]
    Malformed,
    /// The description is that of another issuer.
    #[error("its description is that of the issuer {0:?}")]
    OtherIssuer(String),
    /// The keys are at a URL from which they may not be fetched.
    #[error("its jwks_uri is not {0}")]
    KeysUrl(&'static str),
}

#[derive(Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

/// Returns the path of the description below the URL of an issuer.
#[must_use]
pub const fn path() -> &'static str {
    "/.well-known/openid-configuration"
}

/// Parses the description of `issuer`. Returns the URL of its keys.
///
/// # Errors
///
/// Any [`DiscoveryError`]. The issuer must be the same text, byte by byte: an issuer that describes
/// another one could lend its keys to it. The keys of an issuer at an HTTPS URL must be at one,
/// too.
pub fn keys_url(text: &[u8], issuer: &str) -> Result<String, DiscoveryError> {
    let description: Result<Description, _> = serde_json::from_slice(text);
    let Ok(description) = description else {
        return Err(DiscoveryError::Malformed);
    };
    if description.issuer != issuer {
        return Err(DiscoveryError::OtherIssuer(shown(&description.issuer)));
    }
    let url = description.jwks_uri;
    let is_clean = |byte: u8| byte.is_ascii_graphic() && !br#""'<>\^`{|}#@"#.contains(&byte);
    let is_url =
        url.starts_with("https://") || url.starts_with("http://") && issuer.starts_with("http://");
    if !is_url || !url.bytes().all(is_clean) {
        let expected = match issuer.starts_with("http://") {
            true => "a URL without login and fragment",
            false => "an https URL without login and fragment",
        };
        return Err(DiscoveryError::KeysUrl(expected));
    }
    Ok(url)
}

/// Shortens a text of an issuer for messages.
fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://issuer.example";

    fn check(text: &str, issuer: &str) -> Result<String, DiscoveryError> {
        keys_url(text.as_bytes(), issuer)
    }

    #[test]
    fn descriptions() {
        let url = "https://keys.example/jwks?v=1";
        let text = format!(r#"{{"issuer": "{ISSUER}", "jwks_uri": "{url}", "more": [1]}}"#);
        assert_eq!(check(&text, ISSUER).as_deref(), Ok(url));
        // A slash at the end makes another issuer.
        let other = DiscoveryError::OtherIssuer(ISSUER.to_owned());
        assert_eq!(check(&text, &format!("{ISSUER}/")), Err(other));
        for wrong in [
            "",
            "[]",
            "<html>",
            r#"{"issuer": "https://issuer.example"}"#,
            r#"{"issuer": 1, "jwks_uri": "https://a"}"#,
            r#"{"issuer": "https://issuer.example", "issuer": "x", "jwks_uri": "https://a"}"#,
        ] {
            assert_eq!(
                check(wrong, ISSUER),
                Err(DiscoveryError::Malformed),
                "{wrong}"
            );
        }
    }

    #[test]
    fn urls_of_keys() {
        let with = |url: &str, issuer: &str| {
            check(
                &format!(r#"{{"issuer": "{issuer}", "jwks_uri": "{url}"}}"#),
                issuer,
            )
        };
        for wrong in [
            "http://issuer.example/jwks",
            "file:///etc/passwd",
            "/jwks",
            "https://user@a/",
            "https://a/#x",
            "https://a/ b",
            "https://a/\\n",
            "",
        ] {
            assert!(
                matches!(with(wrong, ISSUER), Err(DiscoveryError::KeysUrl(_))),
                "{wrong}"
            );
        }
        let local = "http://127.0.0.1:1";
        assert!(with("http://127.0.0.1:1/jwks", local).is_ok());
        assert!(with("https://a/jwks", local).is_ok());
    }
}
