//! What an operator says about who may read.

use std::path::PathBuf;

/// Who may read a cache: whoever one of the ways here lets in. If none is configured, everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessConfig {
    /// A file of users: `NAME:HASH` a line, Argon2id or bcrypt, see
    /// [`hash_password`](super::hash_password). For HTTP Basic.
    pub users_file: Option<PathBuf>,
    /// A file of tokens: `NAME:SHA256` a line, see [`new_token`](super::new_token). For
    /// `Authorization: Bearer`, and as the password of HTTP Basic with any user name, because Nix
    /// knows only that.
    pub tokens_file: Option<PathBuf>,
    /// Which client certificates. They have to be asked for and verified by the listener's TLS.
    pub certificates: CertificateConfig,
    /// Whoever runs as one of these users and comes by a unix socket.
    pub uids: Vec<u32>,
    /// The same by a process's primary group.
    pub gids: Vec<u32>,
    /// Networks by prefix (`10.0.0.0/8`), and addresses.
    pub networks: Vec<String>,
    /// Proxies that are believed when they say from whom they were asked, as
    /// [`networks`](Self::networks); and `unix` for whoever reaches a unix socket.
    pub trusted_proxies: Vec<String>,
    /// Where they say it.
    pub forwarded: Forwarded,
    /// What a client gets that is not let in.
    pub refuse_with: RefuseWith,
    /// The realm of a 401, which browsers and password managers show.
    pub realm: String,
    /// How often a client may ask; `None`: as often as it likes.
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
    /// Whether everybody may read, as often as they like: then nothing has to be looked at.
    pub fn is_open(&self) -> bool {
        self.rate_limit.is_none() && self.lets_everybody_in()
    }

    /// Whether nobody is refused for who he is.
    pub fn lets_everybody_in(&self) -> bool {
        self.users_file.is_none()
            && self.tokens_file.is_none()
            && self.certificates == CertificateConfig::default()
            && self.uids.is_empty()
            && self.gids.is_empty()
            && self.networks.is_empty()
    }
}

/// Which of the client certificates that were verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateConfig {
    /// All of them.
    pub any: bool,
    /// By the SHA-256 of the certificate, in hex, with or without colons, as
    /// `openssl x509 -fingerprint -sha256` prints it.
    pub fingerprints: Vec<String>,
    /// By the common name of the subject.
    pub common_names: Vec<String>,
    /// By a DNS name among the subject's alternative names, in any case of letters.
    pub dns_names: Vec<String>,
    /// By a URI among them, such as a SPIFFE identity.
    pub uris: Vec<String>,
}

/// The header in which proxies say from whom they were asked. The other one is not looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// `X-Forwarded-For`, as most write it.
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

/// What a client gets that is not let in. Decision 0023 has what Nix makes of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RefuseWith {
    /// 401 where a password or a token could help, 403 otherwise.
    #[default]
    Fitting,
    /// 401: clients and browsers know that they should have credentials.
    Unauthorized,
    /// 403: every Nix takes it for a miss and asks its next cache.
    Forbidden,
    /// 404: the same, and nobody learns that there is something.
    NotFound,
}

/// How often a client may ask: a bucket that fills at a rate and has a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests a second in the long run; at least 1.
    pub per_second: u32,
    /// Requests at once after a pause; at least 1. One for every path of the largest closure is
    /// right: clients ask for all of them at once.
    pub burst: u32,
}
