//! Runs several caches with policies in this process, on the HTTP engine.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use samovar_cache::{CacheConfig, SecretKey, Site, SiteConfig, load_key};
use samovar_http::{Listener, Server};
use samovar_store::Settings;

use crate::support::local;

/// A running server of several caches. Dropping it stops the server.
pub struct Serving(Server<Site>);

impl Serving {
    /// Serves the store under `root` on a free port.
    pub fn start(root: &Path, caches: Vec<CacheConfig>) -> Self {
        let settings = Settings::from_process().unwrap();
        let store = samovar_store::open(Some(&local(root)), &settings).unwrap();
        let config = SiteConfig {
            caches,
            ..SiteConfig::default()
        };
        let site = Site::new(store, config, Arc::new(()));
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::builder(site).listen(Listener::tcp(any_port, 128).unwrap());
        Self(server.start().unwrap())
    }

    pub fn addr(&self) -> SocketAddr {
        self.0.local_addrs()[0]
    }

    pub fn site(&self) -> &Site {
        self.0.service()
    }
}

/// Reads a secret key file.
pub fn key(file: &Path) -> SecretKey {
    load_key(file).unwrap().key
}
