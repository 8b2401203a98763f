//! Extension negotiation: `Sec-WebSocket-Extensions`.
//!
//! ```text
//! extension-list  = 1#extension
//! extension       = token *( ";" extension-param )
//! extension-param = token [ "=" ( token / quoted-string ) ]      ; unquoted, a token again
//! ```
//!
//! # Source
//!
//! RFC 6455, section 9.1; RFC 7692, sections 5 and 7.1.

use std::fmt::Write as _;

use super::deflate::{WINDOW_BITS_MAX, WINDOW_BITS_MIN};
use crate::h1::encode;

/// Maximum number of elements in a list, and of parameters of each element.
pub const LIST_LEN_MAX: usize = 32;

/// One element of `Sec-WebSocket-Extensions`: an extension that the client offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Name of the extension.
    pub name: &'a str,
    /// Parameters in the order sent, with unquoted values.
    pub params: Vec<(&'a str, Option<String>)>,
}

/// Parses the value of one header field; returns `None` if it is malformed.
///
/// A quoted value must be a token, so it contains neither `,` nor `;`, and the value can be split
/// at these characters.
pub fn parse(value: &[u8]) -> Option<Vec<Extension<'_>>> {
    let value = std::str::from_utf8(value).ok()?;
    let elements = value.split(',').map(trim).filter(|text| !text.is_empty());
    let extensions: Vec<_> = elements
        .take(LIST_LEN_MAX.saturating_add(1))
        .map(extension)
        .collect::<Option<_>>()?;
    (extensions.len() <= LIST_LEN_MAX).then_some(extensions)
}

fn extension(text: &str) -> Option<Extension<'_>> {
    let mut parts = text.split(';').map(trim);
    let name = parts.next().filter(|name| encode::is_field_name(name))?;
    let params: Vec<_> = parts
        .take(LIST_LEN_MAX.saturating_add(1))
        .map(param)
        .collect::<Option<_>>()?;
    (params.len() <= LIST_LEN_MAX).then_some(Extension { name, params })
}

fn param(text: &str) -> Option<(&str, Option<String>)> {
    let (name, value) = match text.split_once('=') {
        None => (text, None),
        Some((name, value)) => (trim(name), Some(unquoted(trim(value))?)),
    };
    // A token has the same grammar as a field name (RFC 9110, 5.6.2).
    let is_sound = encode::is_field_name(name) && value.iter().all(encode::is_field_name);
    is_sound.then_some((name, value))
}

/// Returns a value without quotes and escapes.
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

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The negotiated parameters of permessage-deflate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Window size of the server's messages, as a power of two: 9 to 15.
    pub window_bits: u8,
    /// Value of `Sec-WebSocket-Extensions` in the response.
    pub response: String,
}

/// Accepts the first usable offer of permessage-deflate, or returns `None`. Offers of other
/// extensions are ignored.
pub fn accept_deflate(offers: &[Extension<'_>]) -> Option<Agreement> {
    offers
        .iter()
        .filter(|offer| offer.name.eq_ignore_ascii_case("permessage-deflate"))
        .find_map(accept)
}

fn accept(offer: &Extension<'_>) -> Option<Agreement> {
    let (mut server_forgets, mut client_forgets) = (false, false);
    let mut server_bits: Option<u8> = None;
    // The outer option states whether the parameter is present, the inner whether it has a value.
    let mut client_bits: Option<Option<u8>> = None;
    for (name, value) in &offer.params {
        // RFC 7692, 7.1: decline an offer with an unknown parameter, an invalid value or a repeated
        // parameter.
        let is_first = match (*name, value) {
            ("server_no_context_takeover", None) => !std::mem::replace(&mut server_forgets, true),
            ("client_no_context_takeover", None) => !std::mem::replace(&mut client_forgets, true),
            ("server_max_window_bits", Some(value)) => {
                server_bits.replace(window_bits(value)?).is_none()
            }
            ("client_max_window_bits", None) => client_bits.replace(None).is_none(),
            ("client_max_window_bits", Some(value)) => {
                client_bits.replace(Some(window_bits(value)?)).is_none()
            }
            _ => false,
        };
        if !is_first {
            return None;
        }
    }
    let window_bits = server_bits.unwrap_or(WINDOW_BITS_MAX);
    if window_bits < WINDOW_BITS_MIN {
        // RFC 7692, 7.1.2.1 permits a server to decline this value; `WINDOW_BITS_MIN` explains why.
        return None;
    }
    let mut response =
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover".to_owned();
    // Writing to a string cannot fail.
    if server_bits.is_some() {
        write!(response, "; server_max_window_bits={window_bits}").unwrap_or_default();
    }
    // `client_max_window_bits` is only a hint: it binds the client only if the response repeats it.
    if let Some(Some(bits)) = client_bits {
        write!(response, "; client_max_window_bits={bits}").unwrap_or_default();
    }
    Some(Agreement {
        window_bits,
        response,
    })
}

/// Parses a window size: 8 to 15, without leading zeros.
fn window_bits(value: &str) -> Option<u8> {
    let bits: u8 = value.parse().ok()?;
    let is_plain = !value.starts_with(['0', '+']);
    (is_plain && (8..=WINDOW_BITS_MAX).contains(&bits)).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(offers: &str) -> Option<String> {
        let offers = parse(offers.as_bytes()).expect("an offer");
        accept_deflate(&offers).map(|agreement| agreement.response)
    }

    #[test]
    fn lists_are_parsed() {
        let read = parse(b"a, b;c=1;d=\"x\\y\" ; e ,,f").unwrap();
        let names: Vec<_> = read.iter().map(|extension| extension.name).collect();
        assert_eq!(names, ["a", "b", "f"]);
        let expected = [
            ("c", Some("1".into())),
            ("d", Some("xy".into())),
            ("e", None),
        ];
        assert_eq!(read[1].params, expected);
    }

    #[test]
    fn malformed_lists_are_refused() {
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
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
        let long = |count: usize| vec!["a"; count].join(",");
        assert!(parse(long(LIST_LEN_MAX).as_bytes()).is_some());
        assert!(parse(long(LIST_LEN_MAX + 1).as_bytes()).is_none());
        let params = |count: usize| format!("a{}", ";b".repeat(count));
        assert!(parse(params(LIST_LEN_MAX).as_bytes()).is_some());
        assert!(parse(params(LIST_LEN_MAX + 1).as_bytes()).is_none());
    }

    #[test]
    fn offers_are_answered() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for (offer, added) in [
            ("permessage-deflate", Some("")),
            ("x-other, permessage-deflate", Some("")),
            ("x-other", None),
            ("permessage-deflate; client_max_window_bits", Some("")),
            (
                "permessage-deflate; client_max_window_bits=11",
                Some("; client_max_window_bits=11"),
            ),
            (
                "permessage-deflate; server_max_window_bits=\"12\"",
                Some("; server_max_window_bits=12"),
            ),
            ("permessage-deflate; server_no_context_takeover", Some("")),
            ("permessage-deflate; client_no_context_takeover", Some("")),
            // The first offer cannot be accepted, the second can.
            (
                "permessage-deflate; server_max_window_bits=8, permessage-deflate",
                Some(""),
            ),
        ] {
            let expected = added.map(|added| format!("{plain}{added}"));
            assert_eq!(accepted(offer), expected, "{offer}");
        }
    }

    #[test]
    fn offers_with_wrong_parameters_are_declined() {
        for param in [
            "server_max_window_bits",
            "server_max_window_bits=7",
            "server_max_window_bits=16",
            "server_max_window_bits=08",
            "server_max_window_bits=a",
            "client_max_window_bits=7",
            "client_max_window_bits=16",
            "client_max_window_bits=+9",
            "server_no_context_takeover=1",
            "client_no_context_takeover=1",
            "server_no_context_takeover; server_no_context_takeover",
            "client_no_context_takeover; client_no_context_takeover",
            "client_max_window_bits; client_max_window_bits",
            "server_max_window_bits=9; server_max_window_bits=9",
            "unknown",
        ] {
            let offer = format!("permessage-deflate; {param}");
            assert_eq!(accepted(&offer), None, "{offer}");
        }
    }
}
