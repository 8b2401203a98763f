//! Content coding negotiation: the `Accept-Encoding` request header.
//!
//! # Source
//!
//! RFC 9110, sections 8.4.1 (codings) and 12.5.3 (`Accept-Encoding`); RFC 7932 (`br`), RFC 8878
//! (`zstd`).

use super::trim_ows;

/// A content coding of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `zstd`
    Zstd,
    /// `br`
    Brotli,
    /// `gzip`
    Gzip,
}

impl Coding {
    /// All codings, in the server's order of preference: the best ratio of size to cost first.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Returns the name on the wire.
    pub fn token(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    fn from_token(token: &[u8]) -> Option<Self> {
        let is = |name: &str| token.eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if is("zstd") => Some(Self::Zstd),
            () if is("br") => Some(Self::Brotli),
            // RFC 9110, 8.4.1.3: "A recipient SHOULD consider "x-gzip" to be equivalent".
            () if is("gzip") || is("x-gzip") => Some(Self::Gzip),
            () => None,
        }
    }
}

/// A weight in thousandths (RFC 9110, 12.4.2); 0 means "not acceptable".
type Weight = u16;

/// Returns the coding for a response: the acceptable one with the highest weight; among equals, the
/// first of [`Coding::ALL`]. `values` are those of all `Accept-Encoding` fields of the request, in
/// order.
///
/// Returns `None` if the body is to be sent without a coding, even if the client refuses
/// `identity`. Such a response is more useful than 406, and RFC 9110, 12.5.3 permits both.
///
/// Malformed members and unknown codings are ignored. If a coding is repeated, the first counts.
/// Takes time linear in the length of the fields, and does not allocate.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::http::accept_encoding::{Coding, choose};
///
/// assert_eq!(choose([b"gzip, br;q=0.9, *;q=0".as_slice()]), Some(Coding::Gzip));
/// ```
pub fn choose<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Coding> {
    // Weights of the codings, of `identity`, and of `*`, which applies to all codings not listed.
    let (mut weights, mut identity, mut others) = ([None; Coding::ALL.len()], None, None);
    for (name, weight) in members(values) {
        let place = match Coding::from_token(name) {
            Some(coding) => &mut weights[coding as usize],
            None if name == b"*" => &mut others,
            None if name.eq_ignore_ascii_case(b"identity") => &mut identity,
            None => continue,
        };
        place.get_or_insert(weight);
    }
    let mut best = None;
    // `identity` loses ties: it wins only if the client gives it a higher weight.
    let mut best_weight = identity.unwrap_or(0);
    for coding in Coding::ALL {
        // Without the field, every coding is acceptable (RFC 9110, 12.5.3, rule 1). In practice,
        // clients without the field cannot decode any.
        let weight = weights[coding as usize].or(others).unwrap_or(0);
        let is_better = match best {
            None => weight > 0 && weight >= best_weight,
            Some(_) => weight > best_weight,
        };
        if is_better {
            (best, best_weight) = (Some(coding), weight);
        }
    }
    best
}

/// Returns whether the client accepts a coding that [`Coding`] does not contain: whether it lists
/// the name with a weight above 0. `*` does not count.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::http::accept_encoding::names_coding;
///
/// assert!(names_coding([b"gzip, bzip2;q=0.5".as_slice()], "bzip2"));
/// assert!(!names_coding([b"bzip2;q=0, *".as_slice()], "bzip2"));
/// ```
pub fn names_coding<'a>(values: impl IntoIterator<Item = &'a [u8]>, coding: &str) -> bool {
    members(values).any(|(name, weight)| weight > 0 && name.eq_ignore_ascii_case(coding.as_bytes()))
}

/// Iterates over the well-formed members of the lists in `values`.
fn members<'a>(
    values: impl IntoIterator<Item = &'a [u8]>,
) -> impl Iterator<Item = (&'a [u8], Weight)> {
    let members = values
        .into_iter()
        .flat_map(|value| value.split(|&byte| byte == b','));
    members.filter_map(member_of)
}

/// Parses `codings [ weight ]`, with optional white space; returns `None` if the text is malformed.
fn member_of(member: &[u8]) -> Option<(&[u8], Weight)> {
    let mut parts = member.splitn(2, |&byte| byte == b';');
    let coding = trim_ows(parts.next()?);
    let weight = match parts.next() {
        None => 1000,
        Some(weight) => {
            let weight = trim_ows(weight);
            let (name, value) = weight.split_at_checked(2)?;
            if !name.eq_ignore_ascii_case(b"q=") {
                return None;
            }
            qvalue(value)?
        }
    };
    (!coding.is_empty()).then_some((coding, weight))
}

/// Parses `0` or `1` with up to three decimals (RFC 9110, 12.4.2); returns `None` for any other
/// text.
fn qvalue(text: &[u8]) -> Option<Weight> {
    let (&whole, rest) = text.split_first()?;
    let digits = match rest.split_first() {
        None => &[],
        Some((b'.', digits)) => digits,
        Some(_) => return None,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let thousandths = (0..3).fold(0, |sum, at| {
        let digit = digits.get(at).map_or(0, |digit| digit - b'0');
        sum * 10 + Weight::from(digit)
    });
    match (whole, thousandths) {
        (b'0', thousandths) => Some(thousandths),
        (b'1', 0) => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(field: &str, expected: Option<Coding>) {
        assert_eq!(choose([field.as_bytes()]), expected, "{field}");
    }

    #[test]
    fn weights_of_the_client_precede_the_order_of_the_server() {
        use Coding::{Brotli, Gzip, Zstd};
        check("gzip, deflate, br, zstd", Some(Zstd));
        check("gzip, deflate, br", Some(Brotli));
        check("gzip;q=1.0, br;q=0.9", Some(Gzip));
        check("gzip;q=0.001", Some(Gzip));
        check("GZIP", Some(Gzip));
        check("x-gzip", Some(Gzip));
        check("*", Some(Zstd));
        check("zstd;q=0, *", Some(Brotli));
        check("*;q=0.5, gzip", Some(Gzip));
        check("*;q=0, gzip", Some(Gzip));
        check("gzip ; q=0.5 , br\t;\tq=0.25", Some(Gzip));
        check("identity, gzip", Some(Gzip));
        check("identity;q=0, gzip;q=0.1", Some(Gzip));
        check(",, gzip,", Some(Gzip));
    }

    #[test]
    fn responses_without_an_acceptable_coding_stay_plain() {
        check("", None);
        check("identity", None);
        check("deflate, compress", None);
        check("gzip;q=0", None);
        check("gzip;q=0.000", None);
        check("*;q=0", None);
        check("identity;q=1, gzip;q=0.5", None);
        check("gzip;q=0.5, identity", None);
        // The client refuses identity, and deflate is not offered. Sending plain bytes nevertheless
        // is more useful than 406.
        check("identity;q=0, deflate", None);
        assert_eq!(choose([]), None);
    }

    #[test]
    fn members_with_malformed_weights_are_ignored() {
        for weight in [
            "q=1.1",
            "q=2",
            "q=",
            "q",
            "q=.5",
            "q=0.1234",
            "q=-1",
            "q=0,5;",
            "q=1.001",
            "x=1",
            "q =1",
            "q= 1",
            "q=0.5;x=1",
        ] {
            check(&format!("gzip;{weight}"), None);
        }
        for weight in ["q=1", "q=1.", "q=1.000", "Q=0.5", "q=0.", "q=0.999"] {
            let expected = (weight != "q=0.").then_some(Coding::Gzip);
            check(&format!("gzip;{weight}"), expected);
        }
    }

    #[test]
    fn several_fields_are_one_list() {
        let values = [b"gzip;q=0.5".as_slice(), b"br;q=0.6, gzip"];
        assert_eq!(choose(values), Some(Coding::Brotli));
    }
}
