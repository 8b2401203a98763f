//! The `Via` header field of requests to upstreams, by which a server recognises its own requests.
//!
//! Each server has a random pseudonym, [`Pseudonym`], which it adds to the field. If a server finds
//! its own pseudonym in a request, the upstreams form a circle, or the server is its own upstream.
//! It then asks no upstream.
//!
//! # Source
//!
//! RFC 9110, 7.6.3.

use std::fmt;

/// Maximum number of Samovar servers that a request passes.
const HOP_COUNT_MAX: usize = 8;

const NAME: &str = "samovar-";

/// The name of a server in `Via`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pseudonym(String);

impl Pseudonym {
    /// Makes a pseudonym from a random number.
    #[must_use]
    pub fn new(random: u64) -> Self {
        Self(format!("{NAME}{random:016x}"))
    }

    /// Returns whether a request with this `Via` field must not be passed on: it has passed this
    /// server, or too many others.
    #[must_use]
    pub fn ends(&self, via: &[u8]) -> bool {
        let servers = || names(via).filter(|name| name.starts_with(NAME.as_bytes()));
        servers().any(|name| name == self.0.as_bytes()) || servers().count() >= HOP_COUNT_MAX
    }

    /// Returns the field of a request to an upstream. `via`: the field of the client's request;
    /// only the Samovar servers in it are kept.
    #[must_use]
    pub fn appended(&self, via: &[u8]) -> String {
        let servers = names(via).filter(|name| name.starts_with(NAME.as_bytes()));
        let mut text = String::new();
        for name in servers {
            text.push_str(&format!("1.1 {}, ", String::from_utf8_lossy(name)));
        }
        format!("{text}1.1 {self}")
    }

    /// Returns whether a request has come from another server that asks its upstreams.
    #[must_use]
    pub fn is_of_server(via: &[u8]) -> bool {
        names(via).any(|name| name.starts_with(NAME.as_bytes()))
    }
}

impl fmt::Display for Pseudonym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the names in a `Via` field, without the protocols and comments beside them.
fn names(via: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = |entry: &'_ [u8]| -> Option<usize> {
        entry.iter().position(|byte| !byte.is_ascii_whitespace())
    };
    via.split(|byte| *byte == b',').filter_map(move |entry| {
        let entry = entry.get(words(entry)?..)?;
        let mut parts = entry
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|part| !part.is_empty());
        parts.nth(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_recognises_its_own_requests_and_long_chains() {
        let (a, b) = (Pseudonym::new(1), Pseudonym::new(2));
        assert!(!a.ends(b"") && !Pseudonym::is_of_server(b""));
        let first = a.appended(b"");
        assert_eq!(first, "1.1 samovar-0000000000000001");
        assert!(a.ends(first.as_bytes()) && !b.ends(first.as_bytes()));
        assert!(Pseudonym::is_of_server(first.as_bytes()));
        let second = b.appended(format!("1.0 nginx (comment),{first}").as_bytes());
        assert_eq!(
            second,
            "1.1 samovar-0000000000000001, 1.1 samovar-0000000000000002"
        );
        assert!(a.ends(second.as_bytes()) && b.ends(second.as_bytes()));
        let mut chain = String::new();
        for number in 10..18 {
            assert!(!a.ends(chain.as_bytes()));
            chain = Pseudonym::new(number).appended(chain.as_bytes());
        }
        assert!(a.ends(chain.as_bytes()));
        assert!(
            !a.ends(b"1.1 nginx, , 1.1") && !Pseudonym::is_of_server(b"samovar-1, samovar-2 x")
        );
    }
}
