//! The configuration of one cache.

use std::sync::Arc;

use samovar_storage::StoredCache;

use crate::access::Access;
use crate::narinfo::signing::Signing;
use crate::oidc::Oidc;
use crate::pages::PagesConfig;
use crate::reader::policy::PolicyConfig;
use crate::upstream::UpstreamConfig;

/// The configuration of a cache.
#[derive(Debug)]
pub struct CacheConfig {
    /// The cache's name in the metrics.
    pub name: String,
    /// The URL prefix, percent-encoded, without a trailing slash. It is empty for the root.
    pub path_prefix: String,
    /// `Priority` in `nix-cache-info`: clients prefer caches with a lower number. nix-serve's is
    /// 30.
    pub priority: u32,
    /// The signing keys, and the paths that they sign.
    pub signing: Signing,
    /// The read policy: the paths that clients may read.
    pub policy: PolicyConfig,
    /// Access rules for clients; `None`: all clients may read.
    pub access: Option<Access>,
    /// Configuration of the web interface; `None` if it is off.
    pub pages: Option<PagesConfig>,
    /// The storage for this cache's uploads; `None` if the cache is read-only.
    pub uploads: Option<StoredCache>,
    /// The issuers whose ID tokens are exchanged for tokens, which all caches share; `None`: there
    /// are none.
    pub oidc: Option<Arc<Oidc>>,
    /// The upstreams of this cache, and how they are asked.
    pub upstreams: UpstreamConfig,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            path_prefix: String::new(),
            priority: 30,
            signing: Signing::default(),
            policy: PolicyConfig::default(),
            access: None,
            pages: None,
            uploads: None,
            oidc: None,
            upstreams: UpstreamConfig::default(),
        }
    }
}
