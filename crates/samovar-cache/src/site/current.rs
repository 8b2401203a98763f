//! The current caches, which a reload replaces.
//!
//! All caches form one immutable value, which a reload replaces as a whole. A request takes the
//! value once on an I/O thread; if it is dispatched, the worker takes it again and handles the
//! request from the start. So no response mixes two configurations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};
use std::time::Instant;

use samovar_http::{Head, Peer};
use samovar_metrics::{Class, Observer, Routed};
use samovar_nix::StorePath;

use crate::access::Client;
use crate::known::sharded::PathCache;
use crate::known::shared_store::SharedStore;
use crate::narinfo::narinfos::{NarinfoMemory, Narinfos};
use crate::route::path;
use crate::site::cache::Cache;
use crate::site::config::CacheConfig;
use crate::sync::unpoisoned;
use crate::upload;
use crate::upstream::Upstreams;

/// The caches of a site.
#[derive(Debug)]
pub(crate) struct Caches {
    /// The caches in descending order of the length of their prefixes.
    caches: Box<[Cache]>,
    have_pages: bool,
    have_health: bool,
}

impl Caches {
    /// Builds the caches of one store. `before`: the caches that they replace.
    pub(crate) fn build(
        shared: &Arc<SharedStore>,
        configs: Vec<CacheConfig>,
        narinfo_memory_len: usize,
        before: Option<&Self>,
        upstreams: Option<&Arc<Upstreams>>,
    ) -> Self {
        let share = NarinfoMemory::share(narinfo_memory_len, configs.len());
        let is_only = configs.len() == 1;
        let numbers = Self::numbers(&configs, before);
        let cache = |(config, number): (CacheConfig, u16)| {
            let before = before.and_then(|before| before.at(&config.path_prefix));
            Cache::new(shared, config, number, share, before, upstreams, is_only)
        };
        let mut caches: Box<[Cache]> = configs.into_iter().zip(numbers).map(cache).collect();
        caches.sort_by_key(|cache| std::cmp::Reverse(cache.path_prefix.len()));
        let have_pages = caches.iter().any(|cache| cache.pages.is_some());
        Self {
            have_pages,
            have_health: have_pages || shared.shown_metrics.is_some(),
            caches,
        }
    }

    /// Numbers caches for the metrics. A cache gets the number of an earlier cache with the same
    /// name; another gets the smallest free one. So counts continue after a reload.
    fn numbers(configs: &[CacheConfig], before: Option<&Self>) -> Vec<u16> {
        let number = |config: &CacheConfig| {
            let same = before?.iter().find(|cache| cache.name == config.name);
            same.map(|cache| cache.number)
        };
        let kept: Vec<Option<u16>> = configs.iter().map(number).collect();
        let mut free = (0..u16::MAX).filter(|number| !kept.contains(&Some(*number)));
        let number = |kept: &Option<u16>| kept.or_else(|| free.next()).unwrap_or(u16::MAX);
        kept.iter().map(number).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.caches.len()
    }

    /// Whether any cache has a web interface.
    pub(crate) fn have_pages(&self) -> bool {
        self.have_pages
    }

    /// Whether the addresses of the caches have URLs about the health of the server.
    pub(crate) fn have_health(&self) -> bool {
        self.have_health
    }

    /// Whether the roots of all policies are known.
    pub(crate) fn know_policies(&self) -> bool {
        let mut policies = self.narinfos().map(|narinfos| &narinfos.reader.policy);
        policies.all(|policy| !policy.is_unknown())
    }

    /// Returns the caches, those with longer prefixes first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cache> + Clone {
        self.caches.iter()
    }

    pub(crate) fn narinfos(&self) -> impl Iterator<Item = &Arc<Narinfos>> + Clone {
        self.iter().map(|cache| &cache.narinfos)
    }

    /// Returns the tables of narinfos in memory, of all caches.
    pub(crate) fn path_caches(&self) -> impl Iterator<Item = Arc<dyn PathCache>> {
        self.narinfos().flat_map(|narinfos| narinfos.path_caches())
    }

    /// Tells the observer which caches there are.
    pub(crate) fn announce(&self, observer: &dyn Observer) {
        observer.serves(&self.iter().map(Cache::served).collect::<Vec<_>>());
    }

    /// Returns the cache with exactly this prefix, if there is one.
    pub(crate) fn at(&self, path_prefix: &str) -> Option<&Cache> {
        self.iter()
            .find(|cache| *cache.path_prefix == *path_prefix.as_bytes())
    }

    /// Returns the cache to which a URL path belongs; `None` if there is none.
    fn cache_of(&self, path: &[u8]) -> Option<&Cache> {
        self.iter().find(|cache| cache.below_prefix(path).is_some())
    }

    /// Returns the cache with this [number](Cache::number).
    fn numbered(&self, number: u16) -> Option<&Cache> {
        self.iter().find(|cache| cache.number == number)
    }
}

/// The present caches, and the number of times they were replaced.
#[derive(Debug)]
pub(crate) struct Current {
    caches: RwLock<Arc<Caches>>,
    /// Number of replacements. It is changed only while `caches` is locked for writing.
    number: AtomicU64,
}

impl Current {
    pub(crate) fn new(caches: Caches) -> Self {
        Self {
            caches: RwLock::new(Arc::new(caches)),
            number: AtomicU64::new(0),
        }
    }

    pub(crate) fn get(&self) -> Arc<Caches> {
        Arc::clone(&*unpoisoned(self.caches.read()))
    }

    /// Replaces the caches, starting with the next request.
    pub(crate) fn replace(&self, new: Arc<Caches>) {
        let mut caches = unpoisoned(self.caches.write());
        *caches = new;
        self.number.fetch_add(1, Ordering::Release);
    }
}

/// An I/O thread's copy of the present caches. Reading it takes no lock.
#[derive(Debug)]
pub(crate) struct LocalCaches {
    caches: Arc<Caches>,
    number: u64,
}

impl LocalCaches {
    pub(crate) fn of(current: &Current) -> Self {
        let caches = unpoisoned(current.caches.read());
        Self {
            caches: Arc::clone(&caches),
            number: current.number.load(Ordering::Acquire),
        }
    }

    /// Returns the current caches. Copies them first if they were replaced since the last call.
    pub(crate) fn now(&mut self, current: &Current) -> &Caches {
        if self.number != current.number.load(Ordering::Acquire) {
            *self = Self::of(current);
        }
        &self.caches
    }
}

/// Looks up the clients and store paths of requests, for logs. Logs exist before the site, so this
/// does not own it.
#[derive(Debug, Clone)]
pub struct Clients(pub(crate) Weak<Current>);

impl Clients {
    /// Returns the client of a request, with its name if it has one. `None` if no cache has this
    /// URL, or if the cache has no access rules and the request no token of the storage.
    pub fn client(&self, head: Head<'_>, routed: Routed) -> Option<Client> {
        let caches = self.0.upgrade()?.get();
        let cache = match routed.cache {
            Some(number) => caches.numbered(number)?,
            // The engine has refused the request before a cache saw it.
            None => caches.cache_of(head.path())?,
        };
        let access = cache.access.as_ref();
        let client = access.map(|access| access.client(head, Instant::now()));
        let uploads = cache.uploads();
        let Some(token) = uploads.and_then(|stored| upload::token_name(stored, head)) else {
            return client;
        };
        let mut client = client.unwrap_or_else(|| Client {
            address: match head.peer() {
                Peer::Tcp(address) => Some(address.ip().to_canonical()),
                Peer::Unix(_) => None,
            },
            ..Client::default()
        });
        client.name.get_or_insert(token);
        client.refused = None;
        Some(client)
    }

    /// Returns the full store path that a request names, if that path is in memory. Reads no disk.
    pub fn store_path(&self, head: Head<'_>, routed: Routed) -> Option<String> {
        let hash_part = routed.hash_part?;
        let caches = self.0.upgrade()?.get();
        let cache = caches.numbered(routed.cache?)?;
        let path = match routed.class {
            // The URL of a log has the whole name.
            Class::Log => {
                let name = head.path().rsplit(|byte| *byte == b'/').next()?;
                StorePath::from_base_name(str::from_utf8(&path::decode(name)?).ok()?).ok()?
            }
            _ => cache.name_of(hash_part)?,
        };
        Some(path.display(cache.reader().store().store_dir()).to_string())
    }
}
