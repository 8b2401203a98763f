//! Drafts of a configuration, for options whose values can be checked only together.

use std::path::PathBuf;

use samovar_cache::access::{CertificateConfig, RateLimit};
use samovar_cache::{PublicKey, Sign};
use samovar_upstream::settings::UpstreamSettings;

use super::error::ConfigError;
use super::issuer_rules::RuleDraft;
use super::kinds::{CertificateFiles, ClientAuthority};
use super::storage::{self, BucketDraft, DatabaseDraft};
use super::{CacheSettings, Configuration, Pages, Tls, Value};
use crate::listener::ListenSpec;

/// The options of the server that were read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerDraft {
    pub(super) config: Configuration,
    pub(super) certificate: Option<PathBuf>,
    pub(super) certificates: Vec<CertificateFiles>,
    pub(super) key: Option<PathBuf>,
    pub(super) client_authorities: Option<PathBuf>,
    pub(super) client_required: bool,
    pub(super) bucket: BucketDraft,
    pub(super) database: DatabaseDraft,
    pub(super) node: Option<String>,
}

/// The options of one cache that were read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CacheDraft {
    pub(super) cache: CacheSettings,
    pub(super) prefix: Option<String>,
    pub(super) secret_key_files: Option<Vec<PathBuf>>,
    pub(super) rate: Option<u32>,
    pub(super) burst: Option<u32>,
    pub(super) trusted_keys: Vec<PublicKey>,
    pub(super) is_without_pages: bool,
    pub(super) pages: Pages,
}

/// The options of one upstream that were read so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UpstreamDraft {
    pub(super) upstream: UpstreamSettings,
    pub(super) public_keys: Option<Vec<PublicKey>>,
    pub(super) keep: Option<bool>,
    pub(super) keep_size: Option<u64>,
}

/// The options of one issuer of ID tokens that were read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IssuerDraft {
    pub(super) issuer: Option<String>,
    pub(super) audience: Option<String>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) rules: Vec<RuleDraft>,
}

impl Default for UpstreamDraft {
    fn default() -> Self {
        Self {
            upstream: UpstreamSettings::new(String::new(), String::new()),
            public_keys: None,
            keep: None,
            keep_size: None,
        }
    }
}

impl UpstreamDraft {
    /// Returns [`UpstreamSettings::keep`]. `table`: the full name of the upstream's table.
    pub(super) fn keep(&self, table: &str, has_storage: bool) -> Result<Option<u64>, ConfigError> {
        let option = match (self.keep, self.keep_size) {
            (Some(true), _) => "keep = true",
            (_, Some(_)) => "keep-size",
            (_, None) => "",
        };
        if !option.is_empty() {
            let full = format!("{table}.{option}");
            if !has_storage {
                return Err(requires(&full, "storage"));
            }
            if self.keep == Some(false) {
                return Err(requires(&full, &format!("{table}.keep = true")));
            }
        }
        let is_kept = self.keep.unwrap_or(has_storage);
        Ok(is_kept.then_some(self.keep_size.unwrap_or(UpstreamSettings::KEEP_LEN)))
    }
}

impl ServerDraft {
    /// Completes the configuration of the server. Its caches are added later.
    pub(super) fn finish(mut self) -> Result<Configuration, ConfigError> {
        if self.client_required && self.client_authorities.is_none() {
            return Err(requires(
                "tls.client-certificates = \"required\"",
                "tls.client-authorities",
            ));
        }
        self.config.bucket = self.bucket.finish()?;
        self.config.database = self.database.finish()?;
        self.config.node = self.node;
        storage::check(&self.config)?;
        let first = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some(CertificateFiles {
                certificate,
                key,
                entry: None,
            }),
            (Some(_), None) => return Err(requires("tls.certificate", "tls.key")),
            (None, Some(_)) => return Err(requires("tls.key", "tls.certificate")),
            (None, None) => None,
        };
        let certificates: Vec<_> = first.into_iter().chain(self.certificates).collect();
        if certificates.is_empty() && self.client_authorities.is_some() {
            return Err(requires("tls.client-authorities", "tls.certificate"));
        }
        self.config.tls = (!certificates.is_empty()).then(|| Tls {
            certificates,
            only: None,
            clients: self.client_authorities.map(|authorities| ClientAuthority {
                authorities,
                required: self.client_required,
            }),
        });
        Ok(self.config)
    }
}

impl CacheDraft {
    /// Completes the configuration of a cache. `name` is empty for the only cache.
    pub(super) fn finish(
        mut self,
        name: &str,
        default_key_file: Option<PathBuf>,
        has_client_authorities: bool,
    ) -> Result<CacheSettings, ConfigError> {
        self.cache.name = name.to_owned();
        self.cache.policy.hides_store = !self.cache.sources.nix_store;
        self.cache.prefix = self.prefix.unwrap_or_else(|| match name {
            "" => String::new(),
            name => format!("/{name}"),
        });
        let key_files = self.secret_key_files;
        self.cache.secret_key_files =
            key_files.unwrap_or_else(|| default_key_file.into_iter().collect());
        let access = &mut self.cache.access;
        if access.certificates != CertificateConfig::default() && !has_client_authorities {
            return Err(requires("access.certificates", "tls.client-authorities"));
        }
        access.rate_limit = match (self.rate, self.burst) {
            (None, None) => None,
            (None, Some(_)) => return Err(requires("access.burst", "access.rate")),
            (Some(per_second), burst) => Some(RateLimit {
                per_second,
                burst: burst.unwrap_or(per_second.saturating_mul(60)),
            }),
        };
        if let Sign::TrustedBy(keys) = &mut self.cache.sign {
            if self.trusted_keys.is_empty() {
                let option = "signing.sign = \"trusted\"";
                return Err(requires(option, "signing.trusted-keys"));
            }
            *keys = self.trusted_keys;
        }
        if self.pages.title.is_empty() {
            self.pages.title = name.to_owned();
        }
        self.cache.pages = (!self.is_without_pages).then_some(self.pages);
        Ok(self.cache)
    }
}

/// Creates the error for `option` set without `other`.
pub(super) fn requires(option: &str, other: &str) -> ConfigError {
    ConfigError::Conflict(format!("{option} requires {other}"))
}

/// Parses addresses to listen on and removes duplicates; `None` if one is invalid.
pub(super) fn listen(values: &[Value]) -> Option<Vec<ListenSpec>> {
    let mut specs = Vec::new();
    for value in values {
        let spec = ListenSpec::parse_strict(value.as_text()?.as_ref())?;
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    Some(specs)
}
