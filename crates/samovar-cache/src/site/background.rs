//! The background threads of the caches: prefetch, and the roots of policies.

use std::io;
use std::sync::Arc;

use crate::narinfo::narinfos::Narinfos;
use crate::narinfo::prefetch::Prefetcher;
use crate::reader::policy::{Look, LookError, Policy, RootsWatch, first_looks};
use crate::site::current::Caches;

/// The background threads of all caches. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// One prefetch thread per cache; `None` if prefetch is off.
    prefetch: Option<Vec<Prefetcher>>,
    /// One thread for the roots of all policies.
    roots: Option<RootsWatch>,
}

/// The threads for new caches before these are in use.
#[derive(Debug)]
pub(crate) struct Prepared {
    prefetch: Option<Vec<Prefetcher>>,
    looks: Vec<Look>,
    /// `None` if the thread runs already or is not needed.
    roots: Option<RootsWatch>,
}

/// The reason why the threads cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackgroundError {
    #[error("cannot start a thread")]
    Thread(#[from] io::Error),
    #[error(transparent)]
    Roots(#[from] LookError),
}

impl Background {
    pub(crate) fn start(caches: &Caches) -> Self {
        let looks: Vec<_> = policed(caches.narinfos()).map(look_of).collect();
        // If the thread cannot be started, the roots stay unknown, and caches with such a policy
        // serve nothing.
        let roots = match looks.is_empty() {
            true => None,
            false => RootsWatch::start(looks).ok(),
        };
        Self {
            prefetch: None,
            roots,
        }
    }

    pub(crate) fn prefetch_narinfos(&mut self, caches: &Caches) -> io::Result<()> {
        if self.prefetch.is_none() {
            let all: Vec<_> = caches.narinfos().collect();
            self.prefetch = Some(start_prefetch(&all, all.len())?);
        }
        Ok(())
    }

    /// Prepares the threads for new caches, which may take some seconds. The present caches,
    /// `before`, are not affected.
    pub(crate) fn prepare(
        &self,
        before: &Caches,
        caches: &Caches,
    ) -> Result<Prepared, BackgroundError> {
        let is_new =
            |one: &&Arc<Narinfos>| before.narinfos().all(|before| !Arc::ptr_eq(one, before));
        let new: Vec<_> = caches.narinfos().filter(is_new).collect();
        // While the closures of a policy's roots are unknown, all its requests fail. So the
        // closures are computed before a new policy comes into use. If the present policy's
        // closures are unknown too, requests fail already and waiting gains nothing.
        let fails = |new: &Policy| {
            let mut policies = before.narinfos().map(|before| &before.reader.policy);
            policies.any(|policy| policy.is_unknown() && policy.config == new.config)
        };
        let is_first = |one: &&Arc<Narinfos>| {
            let policy = &one.reader.policy;
            policy.is_unknown() && !fails(policy)
        };
        let (first, rest): (Vec<_>, Vec<_>) = policed(new.iter().copied()).partition(is_first);
        let mut looks: Vec<_> = rest.into_iter().map(look_of).collect();
        looks.extend(first_looks(first.into_iter().map(look_of).collect())?);
        let roots = match self.roots.is_none() && !looks.is_empty() {
            true => Some(RootsWatch::start(std::mem::take(&mut looks))?),
            false => None,
        };
        let prefetch = match &self.prefetch {
            Some(_) => Some(start_prefetch(&new, caches.narinfos().count())?),
            None => None,
        };
        Ok(Prepared {
            prefetch,
            looks,
            roots,
        })
    }

    /// Starts using the prepared threads, and ends those of replaced caches.
    pub(crate) fn change(&mut self, caches: &Caches, prepared: Prepared) {
        let is_served = |one: &Arc<Narinfos>| caches.narinfos().any(|now| Arc::ptr_eq(one, now));
        if let Some(new) = prepared.prefetch {
            let all = self.prefetch.take().into_iter().flatten();
            let (kept, gone): (Vec<_>, Vec<_>) =
                all.partition(|prefetcher| is_served(&prefetcher.narinfos));
            gone.into_iter().for_each(Prefetcher::retire);
            self.prefetch = Some(kept.into_iter().chain(new).collect());
        }
        match &self.roots {
            Some(watch) => {
                let served = caches.narinfos().map(|one| &one.reader.policy.roots);
                watch.change(served.cloned().collect(), prepared.looks);
            }
            None => self.roots = prepared.roots,
        }
    }
}

/// Returns the narinfos of caches whose policies have roots.
fn policed<'a>(
    narinfos: impl Iterator<Item = &'a Arc<Narinfos>>,
) -> impl Iterator<Item = &'a Arc<Narinfos>> {
    narinfos.filter(|one| one.reader.policy.roots.is_used())
}

fn look_of(narinfos: &Arc<Narinfos>) -> Look {
    let reader = &narinfos.reader;
    Look::new(Arc::clone(&reader.shared), Arc::clone(&reader.policy.roots))
}

fn start_prefetch(narinfos: &[&Arc<Narinfos>], cache_count: usize) -> io::Result<Vec<Prefetcher>> {
    let count = u32::try_from(cache_count).unwrap_or(u32::MAX);
    let start = |one: &&Arc<Narinfos>| Prefetcher::start(Arc::clone(one), count);
    narinfos.iter().map(start).collect()
}
