//! Credentials in the `Authorization` header.
//!
//! # Grammar
//!
//! ```text
//! Authorization = "Basic" 1*SP base64( user ":" password )
//!               | "Bearer" 1*SP token
//! ```
//!
//! The scheme is case-insensitive. More than one `Authorization` field is refused, because a proxy
//! may have checked a different one than this server would. A user name contains no colon and may
//! be empty: Nix sends an empty one for a netrc entry without `login`.
//!
//! # Source
//!
//! RFC 9110, section 11.6.2; RFC 7617, section 2; RFC 6750, section 2.1.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroize;

/// Maximum length of user name and password together, in bytes. Some services issue tokens of 200
/// bytes.
const BASIC_LEN_MAX: usize = 768;

/// Maximum length of a bearer token, in bytes. JSON Web Tokens are longer; they are exchanged for
/// tokens: see [`bearer`].
const TOKEN_LEN_MAX: usize = 1024;

/// Returns the bearer token in these header fields, whatever its form and length are; `None` if
/// there is none, or more than one `Authorization` field.
pub(crate) fn bearer<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<&'a [u8]> {
    let is_ours = |name: &[u8]| name.eq_ignore_ascii_case(b"authorization");
    let mut values = fields.filter(|(name, _)| is_ours(name));
    let (Some((_, value)), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, rest) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| rest.trim_ascii())
}

/// The credentials of a request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack while one request is checked"
)]
pub(crate) enum Credentials<'a> {
    Basic(Basic),
    Bearer(&'a [u8]),
}

/// A user name and a password; zeroized when dropped.
pub(crate) struct Basic {
    bytes: [u8; BASIC_LEN_MAX],
    len: usize,
    /// Position of the first colon in `bytes`. Invariant: `colon < len <= bytes.len()`.
    colon: usize,
}

impl Basic {
    pub(crate) fn user(&self) -> &[u8] {
        self.bytes.get(..self.colon).unwrap_or_default()
    }

    pub(crate) fn password(&self) -> &[u8] {
        self.bytes.get(self.colon + 1..self.len).unwrap_or_default()
    }
}

impl Drop for Basic {
    fn drop(&mut self) {
        if let Some(used) = self.bytes.get_mut(..self.len) {
            used.zeroize();
        }
    }
}

impl std::fmt::Debug for Basic {
    /// Hides the password from logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Basic({})", self.user().escape_ascii())
    }
}

impl<'a> Credentials<'a> {
    /// Returns the credentials in these header fields; `None` if there is no valid `Authorization`
    /// field, or more than one.
    pub(crate) fn of(mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Self> {
        let mut next = || {
            let is_ours = |name: &[u8]| name.eq_ignore_ascii_case(b"authorization");
            fields.find(|(name, _)| is_ours(name))
        };
        match (next(), next()) {
            (Some((_, value)), None) => Self::parse(value),
            _ => None,
        }
    }

    /// Parses the field's value. Returns `None` if it is invalid or has an unknown scheme.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let scheme_len = value.iter().position(|byte| *byte == b' ');
        let (scheme, rest) = value.split_at(scheme_len.unwrap_or(value.len()));
        let rest = rest.trim_ascii();
        if scheme.eq_ignore_ascii_case(b"basic") {
            basic(rest).map(Self::Basic)
        } else if scheme.eq_ignore_ascii_case(b"bearer") && is_token(rest) {
            Some(Self::Bearer(rest))
        } else {
            None
        }
    }
}

fn basic(text: &[u8]) -> Option<Basic> {
    let mut basic = Basic {
        bytes: [0; BASIC_LEN_MAX],
        len: 0,
        colon: 0,
    };
    // Decoding also fails if the text does not fit into the buffer.
    let decoded = STANDARD.decode_slice(text, &mut basic.bytes);
    // Set on failure too, so that a partially decoded password is zeroized.
    basic.len = *decoded.as_ref().unwrap_or(&BASIC_LEN_MAX);
    decoded.ok()?;
    let used = basic.bytes.get(..basic.len)?;
    basic.colon = used.iter().position(|byte| *byte == b':')?;
    // RFC 7617, 2: "The user-id and password MUST NOT contain any control characters". Besides,
    // bcrypt would treat a NUL as the end of the password.
    (!used.iter().any(u8::is_ascii_control)).then_some(basic)
}

fn is_token(text: &[u8]) -> bool {
    (1..=TOKEN_LEN_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Option<(&str, &str)>) {
        let found = match Credentials::parse(value.as_bytes()) {
            Some(Credentials::Basic(basic)) => Some((
                String::from_utf8(basic.user().to_vec()).unwrap(),
                String::from_utf8(basic.password().to_vec()).unwrap(),
            )),
            Some(Credentials::Bearer(token)) => {
                Some(("Bearer".into(), String::from_utf8(token.to_vec()).unwrap()))
            }
            None => None,
        };
        let expected = expected.map(|(user, password)| (user.to_owned(), password.to_owned()));
        assert_eq!(found, expected, "{value:?}");
    }

    #[test]
    fn values_are_parsed_as_in_the_rfcs() {
        // RFC 7617, section 2.
        let aladdin = Some(("Aladdin", "open sesame"));
        check("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", aladdin);
        check("bAsIc   QWxhZGRpbjpvcGVuIHNlc2FtZQ==  ", aladdin);
        check("Basic OmE6Yg==", Some(("", "a:b")));
        check("Basic Og==", Some(("", "")));
        check("Basic YTo=", Some(("a", "")));
        check("Basic QWxhZGRpbg==", None);
        check("Basic YTo", None);
        check("Basic YTpi!", None);
        check("Basic", None);
        check("Basic ", None);
        check("", None);
        check("Digest YTo=", None);
        check("Basic AGE6Yg==", None);
        check("Basic YToKYg==", None);
        check("Bearer abc.def~1+/=", Some(("Bearer", "abc.def~1+/=")));
        check("bearer  abc", Some(("Bearer", "abc")));
        check("Bearer", None);
        check("Bearer a b", None);
    }

    #[test]
    fn lengths_are_limited() {
        for len in [BASIC_LEN_MAX, BASIC_LEN_MAX + 1] {
            let value = format!("Basic {}", STANDARD.encode(":".repeat(len)));
            let is_taken = matches!(
                Credentials::parse(value.as_bytes()),
                Some(Credentials::Basic(_))
            );
            assert_eq!(is_taken, len <= BASIC_LEN_MAX, "{len}");
        }
        for len in [TOKEN_LEN_MAX, TOKEN_LEN_MAX + 1] {
            let value = format!("Bearer {}", "a".repeat(len));
            let is_taken = matches!(
                Credentials::parse(value.as_bytes()),
                Some(Credentials::Bearer(_))
            );
            assert_eq!(is_taken, len <= TOKEN_LEN_MAX, "{len}");
        }
    }

    #[test]
    fn a_second_authorization_field_is_refused() {
        let ours = (&b"AUTHORIZATION"[..], &b"Bearer a"[..]);
        let other = (&b"Host"[..], &b"a"[..]);
        let of = |fields: &[_]| Credentials::of(fields.iter().copied());
        assert!(of(&[other]).is_none());
        assert!(matches!(
            of(&[other, ours]),
            Some(Credentials::Bearer(b"a"))
        ));
        assert!(of(&[ours, other, ours]).is_none());
    }

    proptest! {
        #[test]
        fn a_user_name_and_password_are_parsed_back(
            user in "[^:\\p{Cc}]{0,40}",
            password in "[^\\p{Cc}]{0,80}",
        ) {
            let value = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
            let Some(Credentials::Basic(basic)) = Credentials::parse(value.as_bytes()) else {
                panic!("{value}");
            };
            prop_assert_eq!(basic.user(), user.as_bytes());
            prop_assert_eq!(basic.password(), password.as_bytes());
        }

        #[test]
        fn no_bytes_panic(value in prop::collection::vec(any::<u8>(), 0..300)) {
            drop(Credentials::parse(&value));
        }
    }
}
