//! The options of an upstream cache, as an operator sets them.

use std::path::PathBuf;
use std::time::Duration;

use samovar_nix::PublicKey;

/// The settings of one upstream cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Name in the configuration, in log lines and in metrics.
    pub name: String,
    /// URL of the cache, without a trailing slash; it may contain a login.
    pub url: String,
    /// Keys of which one must have signed a narinfo, unless its content address proves it or
    /// `is_unsigned` is set.
    pub public_keys: Vec<PublicKey>,
    /// Upstreams with a lower number are asked first, those with equal numbers at the same time.
    pub priority: u32,
    /// File in netrc format with the login for the upstream; `None`: the login in the URL, or none.
    pub netrc_file: Option<PathBuf>,
    /// Which signatures the served narinfos have.
    pub resign: Resign,
    /// Maximum wait for a connection, for the head of a response, and for each read of its body.
    pub timeout: Duration,
    /// Whether narinfos without a trusted signature are served.
    pub is_unsigned: bool,
    /// Whether the upstream is a bucket, which answers 403 for a file that it lacks.
    pub is_bucket: bool,
    /// Maximum total length of the files of kept paths, in bytes; `None`: nothing is
    /// kept in the storage.
    pub keep: Option<u64>,
    /// Whether uploads may refer to paths that only this upstream has.
    pub has_references: bool,
}

/// The signatures of a narinfo that is passed on. The signature of the upstream is verified before,
/// in each case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Resign {
    /// The signatures of the upstream.
    #[default]
    No,
    /// The signatures of the upstream, and signatures by the keys of the cache.
    Add,
    /// Signatures by the keys of the cache.
    Only,
}

impl UpstreamSettings {
    /// Default of [`priority`](Self::priority).
    pub const PRIORITY: u32 = 50;

    /// Default of [`keep`](Self::keep) with a storage, in bytes.
    pub const KEEP_LEN: u64 = 100 << 30;

    /// Default of [`timeout`](Self::timeout).
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// Returns the settings of an upstream of which only name and URL are known.
    #[must_use]
    pub fn new(name: String, url: String) -> Self {
        Self {
            name,
            url,
            public_keys: Vec::new(),
            priority: Self::PRIORITY,
            netrc_file: None,
            resign: Resign::No,
            timeout: Self::TIMEOUT,
            is_unsigned: false,
            is_bucket: false,
            keep: None,
            has_references: false,
        }
    }

    /// Returns the well-known public key of the cache at a URL; `None` for other URLs.
    ///
    /// # Source
    ///
    /// Nix 2.36, `src/libstore/include/nix/store/globals.hh`, default of `trusted-public-keys`.
    #[must_use]
    pub fn known_key(url: &str) -> Option<&'static str> {
        let host = url.split_once("://").map_or(url, |(_, rest)| rest);
        match host.trim_end_matches('/') {
            "cache.nixos.org" => {
                Some("cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=")
            }
            _ => None,
        }
    }
}

/// What a cache answers if no upstream has said in time whether a path exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenDown {
    /// 404: the client builds the path or asks another cache.
    #[default]
    Miss,
    /// 503 with `Retry-After`: the client waits, and then fails.
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_nixos_cache_is_known_by_its_url() {
        for url in [
            "https://cache.nixos.org",
            "https://cache.nixos.org/",
            "http://cache.nixos.org",
        ] {
            let key = UpstreamSettings::known_key(url).unwrap();
            assert_eq!(PublicKey::parse(key).unwrap().name(), "cache.nixos.org-1");
        }
        assert_eq!(
            UpstreamSettings::known_key("https://cache.nixos.org.example"),
            None
        );
        assert_eq!(
            UpstreamSettings::known_key("https://cache.nixos.org/other"),
            None
        );
    }
}
