//! Configuration of access control.

use std::path::PathBuf;

/// The clients that may read a cache. A client is admitted if any configured method admits it; if
/// no method is configured, all clients are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessConfig {
    /// The users file for HTTP Basic: `NAME:HASH` per line, with Argon2id or bcrypt hashes, see
    /// [`hash_password`](super::hash_password). `None`: no user is admitted by a password.
    pub users_file: Option<PathBuf>,
    /// The tokens file: `NAME:SHA256` per line, see [`new_token`](super::new_token). A token is
    /// sent as `Authorization: Bearer`, or as the password of HTTP Basic with any user name,
    /// because Nix supports only Basic. `None`: no client is admitted by a token.
    pub tokens_file: Option<PathBuf>,
    /// The client certificates that are admitted. The listener's TLS configuration must request and
    /// verify them.
    pub certificates: CertificateConfig,
    /// UIDs whose processes are admitted when they connect over a Unix socket.
    pub uids: Vec<u32>,
    /// Primary GIDs whose processes are admitted when they connect over a Unix socket.
    pub gids: Vec<u32>,
    /// Networks that are admitted: prefixes (`10.0.0.0/8`) and addresses.
    pub networks: Vec<String>,
    /// Trusted proxies, whose [`forwarded`](Self::forwarded) header is believed: prefixes and
    /// addresses, and `unix` for all peers on a Unix socket.
    pub trusted_proxies: Vec<String>,
    /// The header from which the client's address is read if a trusted proxy sends the request.
    pub forwarded: Forwarded,
    /// The response to a client that is not admitted.
    pub refuse_with: RefuseWith,
    /// The realm of a 401, which browsers and password managers show.
    pub realm: String,
    /// The rate limit of each client; `None` for no limit.
    pub rate_limit: Option<RateLimit>,
}

impl Default for AccessConfig {
    fn default() -> Self {
        Self {
            users_file: None,
            tokens_file: None,
            certificates: CertificateConfig::default(),
            uids: Vec::new(),
            gids: Vec::new(),
            networks: Vec::new(),
            trusted_proxies: Vec::new(),
            forwarded: Forwarded::default(),
            refuse_with: RefuseWith::default(),
            realm: "Nix binary cache".to_owned(),
            rate_limit: None,
        }
    }
}

impl AccessConfig {
    /// Whether all clients may read without a rate limit, so that no request needs a check.
    pub fn is_open(&self) -> bool {
        self.rate_limit.is_none() && self.lets_everybody_in()
    }

    /// Whether no method is configured, so that all clients are admitted.
    pub fn lets_everybody_in(&self) -> bool {
        self.users_file.is_none()
            && self.tokens_file.is_none()
            && self.certificates == CertificateConfig::default()
            && self.uids.is_empty()
            && self.gids.is_empty()
            && self.networks.is_empty()
    }
}

/// The verified client certificates that are admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateConfig {
    /// Whether all verified certificates are admitted.
    pub any: bool,
    /// SHA-256 fingerprints in hex, with or without colons, as printed by
    /// `openssl x509 -fingerprint -sha256`.
    pub fingerprints: Vec<String>,
    /// Common names of the certificates' subjects.
    pub common_names: Vec<String>,
    /// DNS names among the subject's alternative names, case-insensitive.
    pub dns_names: Vec<String>,
    /// URIs among the subject's alternative names, such as a SPIFFE identity.
    pub uris: Vec<String>,
}

/// Which of the two headers states the client's address if the peer is a trusted proxy. The one
/// that is not chosen is ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// `X-Forwarded-For`, which most proxies write.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

impl Forwarded {
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::XForwardedFor => b"x-forwarded-for",
            Self::Forwarded => b"forwarded",
        }
    }
}

/// The response to a client that is not admitted. Decision 0023 describes how Nix reacts to each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RefuseWith {
    /// 401 if users or tokens are configured, otherwise 403.
    #[default]
    Fitting,
    /// 401: tells clients and browsers to send credentials.
    Unauthorized,
    /// 403: every version of Nix treats it as a miss and queries its next cache.
    Forbidden,
    /// 404: also a miss for Nix, and does not reveal that the path exists.
    NotFound,
}

/// The rate limit of a client: a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests per second in the long run; at least 1.
    pub per_second: u32,
    /// Maximum number of requests at once after a pause; at least 1. It should be the number of
    /// paths in the largest closure, because clients request all narinfos of a closure at once.
    pub burst: u32,
}
