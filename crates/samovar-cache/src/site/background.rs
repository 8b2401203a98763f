//! The background threads of the caches: prefetch, and the roots of policies.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::narinfo::narinfos::Narinfos;
use crate::narinfo::prefetch::Prefetcher;
use crate::reader::policy::{FIRST_CHECK_TIME, RootsCheck, RootsCheckError, RootsWatch};
use crate::site::cache::Cache;
use crate::site::current::Caches;
use crate::upstream::references;

/// The background threads of all caches. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    threads: Vec<Threads>,
    /// Whether the threads prefetch narinfos.
    prefetches: bool,
}

/// The background threads of one cache.
#[derive(Debug)]
pub(crate) struct Threads {
    narinfos: Arc<Narinfos>,
    prefetch: Option<Prefetcher>,
    /// The thread that watches the roots of the policy; `None` if the policy has no roots or the
    /// thread could not be started.
    roots: Option<RootsWatch>,
}

/// The reason why the threads cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackgroundError {
    #[error("cannot start a thread")]
    Thread(#[from] io::Error),
    #[error(transparent)]
    Roots(#[from] RootsCheckError),
}

impl Background {
    pub(crate) fn start(caches: &Caches) -> Self {
        for upstreams in caches.iter().filter_map(|cache| cache.referable()) {
            // Ignore errors: the paths are kept once clients request them.
            references::start(upstreams).ok();
        }
        let threads = caches.iter().map(|cache| Threads {
            narinfos: Arc::clone(&cache.narinfos),
            prefetch: None,
            // If the thread cannot be started, the roots stay unknown, and the cache serves
            // nothing.
            roots: check_of_roots(cache).and_then(|check| RootsWatch::start(check).ok()),
        });
        Self {
            threads: threads.collect(),
            prefetches: false,
        }
    }

    pub(crate) fn prefetch_narinfos(&mut self) -> io::Result<()> {
        for Threads {
            narinfos, prefetch, ..
        } in &mut self.threads
        {
            if prefetch.is_none() {
                *prefetch = Some(Prefetcher::start(Arc::clone(narinfos))?);
            }
        }
        self.prefetches = true;
        Ok(())
    }

    /// Prepares the threads for new caches, which may take some seconds. The present caches,
    /// `before`, are not affected.
    pub(crate) fn prepare(
        &self,
        before: &Caches,
        caches: &Caches,
    ) -> Result<Vec<Threads>, BackgroundError> {
        let deadline = Instant::now() + FIRST_CHECK_TIME;
        let mut new = Vec::new();
        for cache in caches.iter() {
            let narinfos = &cache.narinfos;
            if before.narinfos().any(|old| Arc::ptr_eq(old, narinfos)) {
                continue;
            }
            // While the closures of a policy's roots are unknown, all requests under this policy
            // fail. So compute the closures before the new policy replaces the present one. If the
            // present policy is equal and its closures are unknown as well, requests fail anyway,
            // and waiting gains nothing.
            let policy = &narinfos.reader.policy;
            let mut policies = before.narinfos().map(|old| &old.reader.policy);
            let fails = policies.any(|old| old.is_unknown() && old.config == policy.config);
            let check = match check_of_roots(cache) {
                Some(check) if policy.is_unknown() && !fails => Some(check.first(deadline)?),
                check => check,
            };
            new.push((narinfos, check));
        }
        let threads = |(narinfos, check): (&Arc<Narinfos>, Option<RootsCheck>)| {
            let prefetch = || Prefetcher::start(Arc::clone(narinfos));
            Ok(Threads {
                narinfos: Arc::clone(narinfos),
                prefetch: self.prefetches.then(prefetch).transpose()?,
                roots: check.map(RootsWatch::start).transpose()?,
            })
        };
        new.into_iter().map(threads).collect()
    }

    /// Starts using the prepared threads, and ends the threads of replaced caches.
    pub(crate) fn change(&mut self, caches: &Caches, new: Vec<Threads>) {
        let is_served = |threads: &Threads| {
            let mut served = caches.narinfos();
            served.any(|narinfos| Arc::ptr_eq(narinfos, &threads.narinfos))
        };
        let (mut kept, gone): (Vec<_>, Vec<_>) = self.threads.drain(..).partition(is_served);
        kept.extend(new);
        self.threads = kept;
        for threads in gone {
            threads.prefetch.into_iter().for_each(Prefetcher::retire);
            threads.roots.into_iter().for_each(RootsWatch::retire);
        }
    }
}

/// Returns the check of a cache's roots; `None` if its policy has no roots.
fn check_of_roots(cache: &Cache) -> Option<RootsCheck> {
    let reader = cache.reader();
    let roots = Arc::clone(&reader.policy.roots);
    let uploaded = || cache.uploads().cloned();
    roots
        .is_used()
        .then(|| RootsCheck::new(Arc::clone(&reader.shared), roots, uploaded()))
}
