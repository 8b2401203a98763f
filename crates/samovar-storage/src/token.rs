//! Tokens: random secrets that give rights to clients.
//!
//! A token consists of `smv1_` and 43 characters, 32 random bytes in URL-safe base-64. It is shown
//! once, when it is created; the database stores its SHA-256. Because a token is random and too
//! long to guess, a fast hash is sufficient.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use samovar_nix::Glob;
use samovar_protocol::names::TOKEN_PREFIX;
use sha2::{Digest as _, Sha256};

/// Returns the present time, in seconds since 1970, with which the expiry of tokens is compared.
#[must_use]
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// Start of the names of tokens that were given for ID tokens of OIDC. The name of the issuer and
/// what the ID token says about the job follow, as in `oidc:github:example/app:4711`. Operators
/// cannot create tokens with such names.
pub const OIDC_PREFIX: &str = "oidc:";

/// SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub(crate) [u8; 32]);

impl TokenHash {
    /// Hashes the text of a token. Returns `None` if the text does not have the form of a token.
    #[must_use]
    pub fn of(text: &[u8]) -> Option<Self> {
        text.starts_with(TOKEN_PREFIX.as_bytes())
            .then(|| Self(Sha256::digest(text).into()))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// The rights that a token gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rights {
    /// Whether the token may read paths, also in a cache that is not public.
    pub read: bool,
    /// Whether the token may upload paths.
    pub push: bool,
    /// Whether the token may pin uploaded paths.
    pub pin: bool,
}

/// Error: the text is not a list of rights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown right {0:?}: rights are read, push and pin")]
pub struct RightsError(String);

impl Rights {
    /// Returns the rights as a bit set: bit 0 is `read`, bit 1 is `push`, bit 2 is
    /// `pin`.
    pub(crate) fn bits(self) -> i64 {
        i64::from(self.read) | (i64::from(self.push) << 1) | (i64::from(self.pin) << 2)
    }

    pub(crate) fn from_bits(bits: i64) -> Self {
        Self {
            read: bits & 1 != 0,
            push: bits & 2 != 0,
            pin: bits & 4 != 0,
        }
    }
}

impl std::str::FromStr for Rights {
    type Err = RightsError;

    fn from_str(text: &str) -> Result<Self, RightsError> {
        let mut rights = Self::default();
        for right in text.split(',') {
            match right.trim() {
                "read" => rights.read = true,
                "push" => rights.push = true,
                "pin" => rights.pin = true,
                other => return Err(RightsError(other.to_owned())),
            }
        }
        Ok(rights)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.read, "read"), (self.push, "push"), (self.pin, "pin")];
        let names = all.iter().filter(|(is_given, _)| *is_given);
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        match names.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&names.join(",")),
        }
    }
}

/// A token's row in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Row number of the token.
    pub id: i64,
    /// Name that the operator gave the token, such as the person or machine that uses it.
    pub name: String,
    /// Pattern for the names of the caches for which the token is valid. `None`: it is valid for
    /// all caches.
    pub cache: Option<Glob>,
    /// Pattern for the names of the store paths that the token may push and pin, and for the names
    /// of pins. The name of a path is the part after the hash part and its dash. `None`: the token
    /// may push and pin all names.
    pub names: Option<Glob>,
    /// The rights that the token gives. The rights of a client may be more: it may also read if
    /// the cache admits it without the token.
    pub rights: Rights,
    /// Time of creation, in seconds since 1970.
    pub created_at: i64,
    /// Time of expiry, in seconds since 1970. `None`: the token never expires.
    pub expires_at: Option<i64>,
    /// Time of revocation, in seconds since 1970. `None`: the token is not revoked.
    pub revoked_at: Option<i64>,
}

impl Token {
    /// Returns whether the token is valid at this time: neither expired nor revoked.
    #[must_use]
    pub fn is_valid(&self, now: i64) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| now < expires_at)
    }

    /// Returns whether the token may be used for the cache with this name.
    #[must_use]
    pub fn covers(&self, cache: &str) -> bool {
        self.cache.as_ref().is_none_or(|own| own.matches(cache))
    }

    /// Returns whether the token may be used for a path with this name.
    pub(crate) fn covers_name(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.matches(name))
    }

    /// Returns the options of `samovar token create` for a token with the same name, rights and
    /// patterns.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = format!("--name {} --rights {}", self.name, self.rights);
        for (option, pattern) in [("cache", &self.cache), ("names", &self.names)] {
            if let Some(pattern) = pattern {
                options.push_str(&format!(" --{option} '{pattern}'"));
            }
        }
        options
    }

    /// Checks that the token is valid at this time for the cache with this name.
    ///
    /// # Errors
    ///
    /// The token is revoked, has expired, or is for another cache.
    pub fn check(&self, cache: &str, now: i64) -> Result<(), Denied> {
        let name = || self.name.clone();
        if self.revoked_at.is_some() {
            return Err(Denied::Revoked { name: name() });
        }
        if !self.is_valid(now) {
            return Err(Denied::Expired { name: name() });
        }
        match &self.cache {
            Some(own) if !self.covers(cache) => Err(Denied::OtherCache {
                name: name(),
                cache: own.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

/// The reason why a token gives no rights. Only a client that has the token learns more than
/// [`Unknown`](Self::Unknown).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The database does not have the token.
    #[error("the token is unknown: ask the operator of the cache for a valid one")]
    Unknown,
    /// The token has expired.
    #[error("the token {name:?} has expired: ask the operator of the cache for a new one")]
    Expired {
        /// Name of the token.
        name: String,
    },
    /// The operator has revoked the token.
    #[error("the token {name:?} was revoked: ask the operator of the cache for a new one")]
    Revoked {
        /// Name of the token.
        name: String,
    },
    /// The token is valid for other caches only.
    #[error(
        "the token {name:?} is for the cache {cache:?}: correct the URL, or ask the operator for a \
         token for this cache"
    )]
    OtherCache {
        /// Name of the token.
        name: String,
        /// Pattern of the caches for which the token is valid.
        cache: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights() {
        assert_eq!(
            "read, push".parse(),
            Ok(Rights {
                read: true,
                push: true,
                pin: false
            })
        );
        assert_eq!("push".parse::<Rights>().unwrap().to_string(), "push");
        for wrong in ["", "write", "read,,push", "read push"] {
            assert!(wrong.parse::<Rights>().is_err(), "{wrong:?}");
        }
        for rights in [
            "read",
            "push",
            "pin",
            "read,push",
            "push,pin",
            "read,push,pin",
        ] {
            let text = rights;
            let rights: Rights = rights.parse().unwrap();
            assert_eq!(rights.to_string(), text);
            assert_eq!(Rights::from_bits(rights.bits()), rights);
        }
    }

    fn token(cache: Option<&str>, names: Option<&str>) -> Token {
        Token {
            id: 1,
            name: "ci".to_owned(),
            cache: cache.map(Glob::new),
            names: names.map(Glob::new),
            rights: "push".parse().unwrap(),
            created_at: 0,
            expires_at: Some(10),
            revoked_at: None,
        }
    }

    #[test]
    fn patterns_limit_caches_and_names() {
        for (pattern, name, expected) in [
            (None, "any", true),
            (Some("team-a"), "team-a", true),
            (Some("team-a"), "team-ab", false),
            (Some("team-*"), "team-", true),
            (Some("team-*"), "team", false),
            (Some("mr-?"), "mr-1", true),
            (Some("mr-?"), "mr-12", false),
            (Some("*"), "", true),
        ] {
            assert_eq!(token(pattern, None).covers(name), expected, "{pattern:?}");
            let covers = token(None, pattern).covers_name(name);
            assert_eq!(covers, expected, "{pattern:?}");
        }
    }

    #[test]
    fn options_of_a_new_token() {
        assert_eq!(token(None, None).options(), "--name ci --rights push");
        assert_eq!(
            token(Some("team-*"), Some("mr-*")).options(),
            "--name ci --rights push --cache 'team-*' --names 'mr-*'"
        );
    }

    #[test]
    fn a_token_is_valid_for_its_cache_until_it_expires_or_is_revoked() {
        let token = token(Some("team"), None);
        assert!(token.is_valid(9));
        assert_eq!(token.check("team", 9), Ok(()));
        let name = || "ci".to_owned();
        assert_eq!(
            token.check("team", 10),
            Err(Denied::Expired { name: name() })
        );
        let cache = "team".to_owned();
        assert_eq!(
            token.check("default", 9),
            Err(Denied::OtherCache {
                name: name(),
                cache
            })
        );
        let revoked = Token {
            revoked_at: Some(5),
            ..token.clone()
        };
        assert_eq!(
            revoked.check("team", 10),
            Err(Denied::Revoked { name: name() })
        );
        let everywhere = Token {
            cache: None,
            ..token
        };
        assert_eq!(everywhere.check("default", 9), Ok(()));
    }

    #[test]
    fn only_texts_with_the_prefix_are_hashed() {
        assert!(TokenHash::of(b"smv1_x").is_some());
        assert!(TokenHash::of(b"hunter2").is_none());
        assert_ne!(TokenHash::of(b"smv1_x"), TokenHash::of(b"smv1_y"));
    }
}
