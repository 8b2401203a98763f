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

/// Limit of elements in a list, and of parameters of an element.
pub const LIST_LEN_MAX: usize = 32;

/// An extension offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Name of the extension.
    pub name: &'a str,
    /// Parameters in order, with unquoted values.
    pub params: Vec<(&'a str, Option<String>)>,
}

/// Parses the value of one field; `None` if it is malformed.
pub fn parse(value: &[u8]) -> Option<Vec<Extension<'_>>> {
    let mut rest = std::str::from_utf8(value).ok()?;
    let mut extensions = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return Some(extensions);
        }
        let name = token(&mut rest)?;
        let mut params = Vec::new();
        while separator(&mut rest, ';') {
            params.push(param(&mut rest)?);
            if params.len() > LIST_LEN_MAX {
                return None;
            }
        }
        extensions.push(Extension { name, params });
        let is_end = rest.trim_start_matches([' ', '\t']).is_empty();
        if extensions.len() > LIST_LEN_MAX || !(is_end || separator(&mut rest, ',')) {
            return None;
        }
    }
}

fn separator(rest: &mut &str, separator: char) -> bool {
    let trimmed = rest.trim_start_matches([' ', '\t']);
    let Some(behind) = trimmed.strip_prefix(separator) else {
        return false;
    };
    *rest = behind;
    true
}

fn param<'a>(rest: &mut &'a str) -> Option<(&'a str, Option<String>)> {
    *rest = rest.trim_start_matches([' ', '\t']);
    let name = token(rest)?;
    if !separator(rest, '=') {
        return Some((name, None));
    }
    *rest = rest.trim_start_matches([' ', '\t']);
    let value = match rest.strip_prefix('"') {
        None => token(rest)?.to_owned(),
        Some(behind) => {
            let mut value = String::new();
            let mut chars = behind.chars();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => value.push(chars.next()?),
                    other => value.push(other),
                }
            }
            *rest = chars.as_str();
            encode::is_field_name(&value).then_some(value)?
        }
    };
    Some((name, Some(value)))
}

/// Consumes a token; field names have the same grammar (RFC 9110, 5.6.2).
fn token<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let is_part = |c: char| encode::is_field_name(c.encode_utf8(&mut [0; 4]));
    let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let (token, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    (!token.is_empty()).then_some(token)
}

/// Server configuration of permessage-deflate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeflateConfig {
    /// Context takeover for the server's messages: they may refer to earlier ones.
    pub server_context: bool,
    /// Context takeover for the client's messages.
    pub client_context: bool,
    /// Window size of the server's messages, as a power of two: 9 to 15.
    pub server_window_bits: u8,
}

impl Default for DeflateConfig {
    /// No context takeover in either direction, so that an idle connection needs no memory for it.
    fn default() -> Self {
        Self {
            server_context: false,
            client_context: false,
            server_window_bits: WINDOW_BITS_MAX,
        }
    }
}

/// The negotiated parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Effective configuration.
    pub config: DeflateConfig,
    /// Window size of the client's messages, as a power of two.
    pub client_window_bits: u8,
    /// Value of `Sec-WebSocket-Extensions` in the response.
    pub response: String,
}

/// Accepts the first acceptable offer of permessage-deflate; `None` if there is none. Other
/// extensions are ignored.
pub fn accept_deflate(offers: &[Extension<'_>], config: &DeflateConfig) -> Option<Agreement> {
    offers
        .iter()
        .filter(|offer| offer.name.eq_ignore_ascii_case("permessage-deflate"))
        .find_map(|offer| accept(offer, config))
}

fn accept(offer: &Extension<'_>, config: &DeflateConfig) -> Option<Agreement> {
    let (mut server_forgets, mut client_forgets) = (false, false);
    // Outer: whether the parameter is present. Inner: whether it has a value.
    let mut server_bits: Option<u8> = None;
    let mut client_bits: Option<Option<u8>> = None;
    for (name, value) in &offer.params {
        // RFC 7692, 7.1: an offer with an unknown parameter, a wrong value or one parameter twice
        // is declined.
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
    let wanted_bits = config
        .server_window_bits
        .clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX);
    let server_window_bits = server_bits.map_or(wanted_bits, |bits| bits.min(wanted_bits));
    if server_window_bits < WINDOW_BITS_MIN {
        // RFC 7692, 7.1.2.1 permits to decline; see `WINDOW_BITS_MIN` for the reason.
        return None;
    }
    let config = DeflateConfig {
        server_context: config.server_context && !server_forgets,
        client_context: config.client_context && !client_forgets,
        server_window_bits,
    };
    let mut response = "permessage-deflate".to_owned();
    if !config.server_context {
        response.push_str("; server_no_context_takeover");
    }
    if !config.client_context {
        response.push_str("; client_no_context_takeover");
    }
    if server_bits.is_some() || server_window_bits < WINDOW_BITS_MAX {
        // Writing to a string cannot fail.
        write!(response, "; server_max_window_bits={server_window_bits}").unwrap_or_default();
    }
    // Only a hint: the client obeys it if the response repeats it.
    let hinted_bits = client_bits.flatten();
    if let Some(bits) = hinted_bits {
        write!(response, "; client_max_window_bits={bits}").unwrap_or_default();
    }
    Some(Agreement {
        config,
        client_window_bits: hinted_bits.unwrap_or(WINDOW_BITS_MAX),
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

    fn accepted(offers: &str, config: &DeflateConfig) -> Option<String> {
        let offers = parse(offers.as_bytes()).expect("an offer");
        accept_deflate(&offers, config).map(|agreement| agreement.response)
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
        let none = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let forgetful = DeflateConfig::default();
        let keeping = DeflateConfig {
            server_context: true,
            client_context: true,
            server_window_bits: 15,
        };
        let small = DeflateConfig {
            server_window_bits: 10,
            ..keeping
        };
        for (offer, config, expected) in [
            ("permessage-deflate", &forgetful, Some(none)),
            ("x-other, permessage-deflate", &forgetful, Some(none)),
            ("x-other", &forgetful, None),
            (
                "permessage-deflate; client_max_window_bits",
                &forgetful,
                Some(none),
            ),
            ("permessage-deflate", &keeping, Some("permessage-deflate")),
            (
                "permessage-deflate; client_max_window_bits",
                &keeping,
                Some("permessage-deflate"),
            ),
            (
                "permessage-deflate; client_max_window_bits=11",
                &keeping,
                Some("permessage-deflate; client_max_window_bits=11"),
            ),
            (
                "permessage-deflate; server_max_window_bits=\"12\"",
                &keeping,
                Some("permessage-deflate; server_max_window_bits=12"),
            ),
            (
                "permessage-deflate; server_max_window_bits=12",
                &small,
                Some("permessage-deflate; server_max_window_bits=10"),
            ),
            (
                "permessage-deflate",
                &small,
                Some("permessage-deflate; server_max_window_bits=10"),
            ),
            (
                "permessage-deflate; server_no_context_takeover",
                &keeping,
                Some("permessage-deflate; server_no_context_takeover"),
            ),
            (
                "permessage-deflate; client_no_context_takeover",
                &keeping,
                Some("permessage-deflate; client_no_context_takeover"),
            ),
            // The first offer cannot be accepted, the second can.
            (
                "permessage-deflate; server_max_window_bits=8, permessage-deflate",
                &keeping,
                Some("permessage-deflate"),
            ),
        ] {
            assert_eq!(accepted(offer, config).as_deref(), expected, "{offer}");
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
            assert_eq!(accepted(&offer, &DeflateConfig::default()), None, "{offer}");
        }
    }
}
