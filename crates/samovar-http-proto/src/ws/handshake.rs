//! The opening handshake: validates the request and computes the response.
//!
//! | field | requirement |
//! |---|---|
//! | method, version | GET, HTTP/1.1 |
//! | `Upgrade`, `Connection` | contain `websocket`, `upgrade` |
//! | `Sec-WebSocket-Version` | once, 13; others are answered 426 |
//! | `Sec-WebSocket-Key` | once, 16 bytes in base64 |
//! | `Sec-WebSocket-Protocol` | optional, tokens |
//! | `Sec-WebSocket-Extensions` | optional, a list of extensions; none is accepted |
//!
//! # Source
//!
//! RFC 6455, sections 4.2, 9.1 and 11.3.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use crate::h1::encode;
use crate::http::{Method, Status, Version};

/// WebSocket protocol version (RFC 6455).
pub const VERSION: &str = "13";
/// Maximum number of offered subprotocols.
pub const LIST_LEN_MAX: usize = 32;
/// Length of a decoded key, in bytes.
const KEY_LEN: usize = 16;
/// Suffix that is appended to a key before hashing.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Reason for refusing an opening handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The method is not GET.
    #[error("a WebSocket is opened with GET")]
    Method,
    /// The version is HTTP/1.0, which has no upgrades, or HTTP/2, which has another handshake.
    #[error("a WebSocket is opened over HTTP/1.1")]
    HttpVersion,
    /// The request does not ask for a WebSocket: it is an ordinary request.
    #[error("this is a WebSocket")]
    NotAskedFor,
    /// The request has `Upgrade` without `upgrade` in `Connection`.
    #[error("Connection lacks upgrade")]
    Connection,
    /// The request has no `Sec-WebSocket-Version`, or several.
    #[error("Sec-WebSocket-Version is missing or repeated")]
    VersionCount,
    /// The client requests an unsupported version of the WebSocket protocol.
    #[error("only version 13 is supported")]
    Version,
    /// The request has no `Sec-WebSocket-Key`, or several, or one that is not 16 bytes in base64.
    #[error("Sec-WebSocket-Key is not 16 bytes in base64")]
    Key,
    /// The list of subprotocols is malformed.
    #[error("Sec-WebSocket-Protocol is not a list of tokens")]
    Protocols,
    /// The list of extensions is malformed.
    #[error("Sec-WebSocket-Extensions is not a list of extensions")]
    Extensions,
    /// The request has a body, whose bytes could be mistaken for frames.
    #[error("a handshake has no body")]
    Body,
    /// The request comes from a page of another origin.
    #[error("pages of this origin may not open this WebSocket")]
    Origin,
}

impl HandshakeError {
    /// Returns the status of the response to the client.
    pub fn status(self) -> Status {
        match self {
            Self::Method => Status::METHOD_NOT_ALLOWED,
            Self::Version | Self::NotAskedFor => Status::UPGRADE_REQUIRED,
            Self::Origin => Status::FORBIDDEN,
            Self::HttpVersion
            | Self::Connection
            | Self::VersionCount
            | Self::Key
            | Self::Body
            | Self::Protocols
            | Self::Extensions => Status::BAD_REQUEST,
        }
    }
}

/// A valid opening handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake<'a> {
    /// Value of `Sec-WebSocket-Accept` for the response.
    pub accept: String,
    /// Offered subprotocols, in the client's order of preference.
    pub protocols: Vec<&'a str>,
}

impl<'a> Handshake<'a> {
    /// Validates the head of an opening handshake.
    ///
    /// # Errors
    ///
    /// Returns the first error found.
    pub fn check(
        method: Method,
        version: Version,
        headers: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<Self, HandshakeError> {
        let values = |name: &'static str| {
            let same = move |field: &&[u8]| field.eq_ignore_ascii_case(name.as_bytes());
            headers
                .clone()
                .filter_map(move |(field, value)| same(&field).then_some(value))
        };
        if version != Version::Http11 {
            return Err(HandshakeError::HttpVersion);
        }
        if !values("Upgrade").any(|value| has_token(value, b"websocket")) {
            return Err(HandshakeError::NotAskedFor);
        }
        if method != Method::Get {
            return Err(HandshakeError::Method);
        }
        if !values("Connection").any(|value| has_token(value, b"upgrade")) {
            return Err(HandshakeError::Connection);
        }
        let asked = only(values("Sec-WebSocket-Version")).ok_or(HandshakeError::VersionCount)?;
        if asked != VERSION.as_bytes() {
            return Err(HandshakeError::Version);
        }
        let key = only(values("Sec-WebSocket-Key")).ok_or(HandshakeError::Key)?;
        if STANDARD.decode(key).map(|key| key.len()) != Ok(KEY_LEN) {
            return Err(HandshakeError::Key);
        }
        let has_length = values("Content-Length").any(|value| value != b"0");
        if has_length || values("Transfer-Encoding").next().is_some() {
            return Err(HandshakeError::Body);
        }
        let mut protocols = Vec::new();
        for value in values("Sec-WebSocket-Protocol") {
            protocols.extend(tokens(value).ok_or(HandshakeError::Protocols)?);
        }
        if protocols.len() > LIST_LEN_MAX {
            return Err(HandshakeError::Protocols);
        }
        // RFC 6455, 9.1: a malformed list fails the connection, even if no extension is accepted.
        if !values("Sec-WebSocket-Extensions").all(is_extension_list) {
            return Err(HandshakeError::Extensions);
        }
        Ok(Self {
            accept: accept(key),
            protocols,
        })
    }

    /// Returns the client's preferred subprotocol among `supported`; `None` if the client offers
    /// none of them.
    pub fn choose_protocol<S: AsRef<str>>(&self, supported: &[S]) -> Option<&'a str> {
        let is_supported = |offered: &&str| supported.iter().any(|own| own.as_ref() == *offered);
        self.protocols.iter().copied().find(is_supported)
    }
}

/// Computes the value of `Sec-WebSocket-Accept` for a key.
pub fn accept(key: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(GUID);
    STANDARD.encode(hash.finalize())
}

/// Returns whether an `Origin` has the same host and port as `host`. A missing port means the
/// default port of the origin's scheme.
pub fn is_same_origin(origin: &[u8], host: &[u8]) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else {
        return false;
    };
    let Some((scheme, authority)) = origin.split_once("://") else {
        // `null` is the origin of a page with an opaque origin.
        return false;
    };
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let short = |authority: &str| {
        authority
            .strip_suffix(port)
            .unwrap_or(authority)
            .to_ascii_lowercase()
    };
    !authority.is_empty() && short(authority) == short(host)
}

/// Returns the value of a field that occurs once; `None` if it occurs never or several times.
fn only<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    elements(value).any(|element| element.eq_ignore_ascii_case(token))
}

/// Parses a list of tokens, skipping empty elements; returns `None` if an element is not a token.
fn tokens(value: &[u8]) -> Option<Vec<&str>> {
    elements(value)
        .filter(|element| !element.is_empty())
        .map(|element| {
            let token = std::str::from_utf8(element).ok()?;
            encode::is_field_name(token).then_some(token)
        })
        .collect()
}

/// Returns whether a value is a list of extensions:
///
/// ```text
/// extension-list  = 1#extension
/// extension       = token *( ";" extension-param )
/// extension-param = token [ "=" ( token / quoted-string ) ]      ; unquoted, a token again
/// ```
///
/// A quoted value must be a token, so it contains neither `,` nor `;`, and the value can be split
/// at these characters.
fn is_extension_list(value: &[u8]) -> bool {
    let is_extension = |text: &str| {
        let mut parts = text.split(';').map(str::trim_ascii);
        parts.next().is_some_and(encode::is_field_name) && parts.all(is_extension_param)
    };
    std::str::from_utf8(value).is_ok_and(|value| {
        let mut elements = value.split(',').map(str::trim_ascii);
        elements.all(|element| element.is_empty() || is_extension(element))
    })
}

fn is_extension_param(text: &str) -> bool {
    // A token has the same grammar as a field name (RFC 9110, 5.6.2).
    let Some((name, value)) = text.split_once('=') else {
        return encode::is_field_name(text);
    };
    encode::is_field_name(name.trim_ascii())
        && unquoted(value.trim_ascii()).is_some_and(|value| encode::is_field_name(&value))
}

/// Returns a value without quotes and escapes; `None` if the closing quote or an escaped character
/// is missing.
fn unquoted(value: &str) -> Option<String> {
    let Some(quoted) = value.strip_prefix('"') else {
        return Some(value.to_owned());
    };
    let mut chars = quoted.strip_suffix('"')?.chars();
    let mut value = String::new();
    while let Some(c) = chars.next() {
        value.push(if c == '\\' { chars.next()? } else { c });
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: [(&str, &str); 4] = [
        ("Upgrade", "websocket"),
        ("Connection", "keep-alive, Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[track_caller]
    fn check(
        fields: &[(&'static str, &'static str)],
    ) -> Result<Handshake<'static>, HandshakeError> {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect();
        Handshake::check(Method::Get, Version::Http11, fields.into_iter())
    }

    /// Returns the fields of a valid handshake with one of them replaced, or omitted if its new
    /// value is empty, and one field added.
    fn with(
        name: &'static str,
        value: &'static str,
        more: (&'static str, &'static str),
    ) -> Vec<(&'static str, &'static str)> {
        let mut fields: Vec<_> = FIELDS
            .iter()
            .map(|&(n, v)| if n == name { (n, value) } else { (n, v) })
            .filter(|(_, v)| !v.is_empty())
            .collect();
        fields.push(more);
        fields
    }

    #[test]
    fn the_example_of_the_rfc() {
        let handshake = check(&FIELDS).unwrap();
        assert_eq!(handshake.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(handshake.protocols.is_empty());
    }

    #[test]
    fn each_error_is_reported() {
        use HandshakeError as E;
        for (name, value, more, expected) in [
            ("Upgrade", "", ("A", "b"), E::NotAskedFor),
            ("Upgrade", "h2c", ("A", "b"), E::NotAskedFor),
            ("Connection", "", ("A", "b"), E::Connection),
            ("Connection", "keep-alive", ("A", "b"), E::Connection),
            ("Sec-WebSocket-Version", "", ("A", "b"), E::VersionCount),
            (
                "Sec-WebSocket-Version",
                "13",
                ("sec-websocket-version", "13"),
                E::VersionCount,
            ),
            ("Sec-WebSocket-Version", "8", ("A", "b"), E::Version),
            ("Sec-WebSocket-Version", "13, 8", ("A", "b"), E::Version),
            ("Sec-WebSocket-Version", "013", ("A", "b"), E::Version),
            ("Sec-WebSocket-Key", "", ("A", "b"), E::Key),
            (
                "Sec-WebSocket-Key",
                "dGhlIHNhbXBsZSBub25jZQ",
                ("A", "b"),
                E::Key,
            ),
            (
                "Sec-WebSocket-Key",
                "dGhlIHNhbXBsZSBub25j",
                ("A", "b"),
                E::Key,
            ),
            (
                "Sec-WebSocket-Key",
                "dGhlIHNhbXBsZSBub25jZTE=",
                ("A", "b"),
                E::Key,
            ),
            (
                "Sec-WebSocket-Key",
                "dGhlIHNhbXBsZSBub25jZR==",
                ("A", "b"),
                E::Key,
            ),
            (
                "Sec-WebSocket-Key",
                "dGhlIHNhbXBsZSBub25jZQ==",
                ("sec-websocket-key", "x"),
                E::Key,
            ),
            ("A", "", ("Content-Length", "1"), E::Body),
            ("A", "", ("Transfer-Encoding", "chunked"), E::Body),
            (
                "A",
                "",
                ("Sec-WebSocket-Protocol", "chat room"),
                E::Protocols,
            ),
            ("A", "", ("Sec-WebSocket-Extensions", "a b"), E::Extensions),
        ] {
            assert_eq!(
                check(&with(name, value, more)),
                Err(expected),
                "{name}: {value}, {more:?}"
            );
        }
        let fields = FIELDS.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let post = Handshake::check(Method::Post, Version::Http11, fields.into_iter());
        assert_eq!(post, Err(E::Method));
        let old = Handshake::check(Method::Get, Version::Http10, fields.into_iter());
        assert_eq!(old, Err(E::HttpVersion));
    }

    #[test]
    fn extension_lists_are_checked() {
        for value in [
            "",
            "a, b;c=1;d=\"x\\y\" ; e ,,f",
            "permessage-deflate; a=\"12\"",
        ] {
            assert!(is_extension_list(value.as_bytes()), "{value}");
        }
        for value in [
            "a b",
            "a;",
            "a;=1",
            "a;b=",
            "a;b=\"x",
            "a;b=\"x y\"",
            "a;b=\"\"",
            "a=1",
            "é",
            "a;;b",
        ] {
            assert!(!is_extension_list(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn the_clients_preference_decides() {
        let fields = with("A", "", ("Sec-WebSocket-Protocol", "superchat, chat,"));
        let handshake = check(&fields).unwrap();
        assert_eq!(handshake.protocols, ["superchat", "chat"]);
        assert_eq!(
            handshake.choose_protocol(&["chat", "superchat"]),
            Some("superchat")
        );
        assert_eq!(handshake.choose_protocol(&["chat"]), Some("chat"));
        assert_eq!(handshake.choose_protocol(&["Chat"]), None);
    }

    #[test]
    fn origins() {
        for (origin, host, expected) in [
            ("http://a.example", "a.example", true),
            ("http://a.example:80", "a.example", true),
            ("http://A.example", "a.EXAMPLE:80", true),
            ("https://a.example", "a.example:443", true),
            ("https://a.example:80", "a.example", false),
            ("http://a.example:8080", "a.example:8080", true),
            ("http://a.example", "a.example:8080", false),
            ("http://b.example", "a.example", false),
            ("http://a.example.b.example", "a.example", false),
            ("http://[::1]:5000", "[::1]:5000", true),
            ("null", "a.example", false),
            ("file://", "a.example", false),
            ("http://", "", false),
            ("", "a.example", false),
        ] {
            let same = is_same_origin(origin.as_bytes(), host.as_bytes());
            assert_eq!(same, expected, "{origin} at {host}");
        }
    }
}
