//! [`IssuerSettings`]: the configuration of an issuer.

use std::path::PathBuf;
use std::time::Duration;

use samovar_nix::Glob;
use samovar_oidc::conditions::Conditions;
use samovar_storage::token::Rights;

/// Minimum of [`IssuerRule::lifetime`]: a push must be able to start.
pub const LIFETIME_MIN: Duration = Duration::from_secs(60);

/// Maximum and default of [`IssuerRule::lifetime`]. A client with a valid ID token extends a token.
pub const LIFETIME_MAX: Duration = Duration::from_secs(3600);

/// The configuration of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The name of the issuer in names of tokens, logs and metrics.
    pub name: String,
    /// The URL of the issuer: exactly the claim `iss` of its tokens.
    pub issuer: String,
    /// The claim `aud` that its tokens must have.
    pub audience: String,
    /// PEM file with the only certificates that are trusted in requests to the issuer; `None`:
    /// those of this machine.
    pub ca_file: Option<PathBuf>,
    /// What tokens of the issuer give; never empty.
    pub rules: Vec<IssuerRule>,
}

/// A rule: which tokens of an issuer give which rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerRule {
    /// What the claims must be.
    pub conditions: Conditions,
    /// Pattern for the names of caches: see [`samovar_storage::token::Token::cache`].
    pub cache: Option<Glob>,
    /// Pattern for the names of store paths: see [`samovar_storage::token::Token::names`].
    pub names: Option<Glob>,
    /// The rights.
    pub rights: Rights,
    /// Time for which a token is valid, from [`LIFETIME_MIN`] to [`LIFETIME_MAX`].
    pub lifetime: Duration,
}
