//! Who may read a cache, out of settings.

use samovar_cache::access::{AccessConfig, CertificateConfig, Forwarded, RateLimit, RefuseWith};

use super::kinds::ClientAuthority;
use super::read::{Reader, clamped, together, wrong};
use super::settings::ConfigError;
use super::toml::Value;

/// Lists of who may read.
const WHO: [&str; 7] = [
    "access.networks",
    "access.uids",
    "access.gids",
    "access.certificates.fingerprints",
    "access.certificates.common-names",
    "access.certificates.dns-names",
    "access.certificates.uris",
];

impl Reader<'_> {
    pub(super) fn access(&self) -> Result<AccessConfig, ConfigError> {
        let defaults = AccessConfig::default();
        let certificates = CertificateConfig {
            any: self.switch("access.certificates.any")?.unwrap_or_default(),
            fingerprints: self.texts("access.certificates.fingerprints")?,
            common_names: self.texts("access.certificates.common-names")?,
            dns_names: self.texts("access.certificates.dns-names")?,
            uris: self.texts("access.certificates.uris")?,
        };
        if certificates != CertificateConfig::default()
            && self.path("tls.client-authorities")?.is_none()
        {
            return Err(together(
                "access.certificates needs tls.client-authorities, too: nobody is asked for a \
                 certificate",
            ));
        }
        let config = AccessConfig {
            users_file: self.file("access.users-file")?,
            tokens_file: self.file("access.tokens-file")?,
            certificates,
            uids: self.ids("access.uids")?,
            gids: self.ids("access.gids")?,
            networks: self.texts("access.networks")?,
            trusted_proxies: self.texts("access.trusted-proxies")?,
            forwarded: match self.word("access.forwarded-header")? {
                Some("forwarded") => Forwarded::Forwarded,
                _ => Forwarded::XForwardedFor,
            },
            refuse_with: match self.word("access.refuse-with")? {
                Some("401") => RefuseWith::Unauthorized,
                Some("403") => RefuseWith::Forbidden,
                Some("404") => RefuseWith::NotFound,
                _ => RefuseWith::Fitting,
            },
            realm: self.text("access.realm")?.unwrap_or(defaults.realm),
            rate_limit: self.rate_limit()?,
        };
        if config.lets_everybody_in() {
            self.check_everybody_is_meant()?;
        }
        Ok(config)
    }

    /// Everybody is let in if nothing says who. A list of nobody says nothing, and is hardly meant
    /// for everybody, unless a cache takes back with it what is said for all of them.
    fn check_everybody_is_meant(&self) -> Result<(), ConfigError> {
        for name in WHO {
            let Some((full_name, setting)) = self.settings.find(self.cache, name) else {
                continue;
            };
            let is_taken_back = full_name != name && self.settings.exactly(name).is_some();
            if setting.value == Value::List(Vec::new()) && !is_taken_back {
                let expected = "left out, or to name somebody: as it is everybody may read";
                return Err(wrong(full_name, setting, expected.to_owned()));
            }
        }
        Ok(())
    }

    fn rate_limit(&self) -> Result<Option<RateLimit>, ConfigError> {
        let count = |name| {
            let count = self.count(name, 1, 1_000_000)?;
            Ok::<_, ConfigError>(count.map(clamped))
        };
        match (count("access.rate")?, count("access.burst")?) {
            (Some(per_second), burst) => Ok(Some(RateLimit {
                per_second,
                burst: burst.unwrap_or(per_second.saturating_mul(60)),
            })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(together("access.burst needs access.rate, too")),
        }
    }

    pub(super) fn client_authority(&self) -> Result<Option<ClientAuthority>, ConfigError> {
        let authorities = self.path("tls.client-authorities")?;
        let required = self.word("tls.client-certificates")? == Some("required");
        Ok(authorities.map(|authorities| ClientAuthority {
            authorities,
            required,
        }))
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, ConfigError> {
        Ok(self.list(name)?.unwrap_or_default())
    }

    /// One file, which may be a credential of the service manager.
    fn file(&self, name: &str) -> Result<Option<std::path::PathBuf>, ConfigError> {
        let Some(mut files) = self.files(name)? else {
            return Ok(None);
        };
        match (
            files.pop(),
            files.is_empty(),
            self.settings.find(self.cache, name),
        ) {
            (Some(file), true, _) => Ok(Some(file)),
            (_, _, Some((full_name, setting))) => {
                Err(wrong(full_name, setting, "the path of one file".to_owned()))
            }
            _ => Ok(None),
        }
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |value: &Value| match value {
            Value::Count(number) => u32::try_from(*number).ok(),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        };
        let expected = || "a list of numbers of users or groups".to_owned();
        let ids = self.get(name, expected, |value| match value {
            Value::List(values) => values.iter().map(id).collect(),
            one => id(one).map(|one| vec![one]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}
