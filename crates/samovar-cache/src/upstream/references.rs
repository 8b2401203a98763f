//! References of uploads to paths that only upstreams have.
//!
//! An uploaded path may refer to a path of an upstream with the option `references`; the client
//! does not push that path. A thread of each cache searches the database for such references at the
//! start, after each upload that has one, and every hour, and keeps the closures of the paths that
//! it finds. The collector does not delete these kept paths while the uploaded path exists.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Response, lend_slot};
use samovar_nix::{HashPart, StorePath};
use samovar_storage::{StorageError, kept};

use crate::refusal::Absence;
use crate::route::Route;
use crate::route::upload::Resource;
use crate::sync::{Locked, LowPriority};
use crate::upstream::message::{LookedUp, Wanted};
use crate::upstream::of_cache::CacheUpstreams;
use crate::upstream::transfer::{Places, Transfer};

/// Interval at which the thread tries again to keep references that could not be kept before.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Priority of the thread: the lowest.
const NICENESS: i32 = 19;

/// The upstreams of a cache to whose paths uploads may refer.
#[derive(Debug)]
pub(super) struct References {
    /// Their numbers.
    ids: Arc<[usize]>,
    /// Wakes the thread that keeps these paths; `None`: it does not run.
    wake: Mutex<Option<Sender<()>>>,
}

impl References {
    pub(super) fn new(ids: Arc<[usize]>) -> Self {
        Self {
            ids,
            wake: Mutex::default(),
        }
    }

    pub(super) fn ids(&self) -> &Arc<[usize]> {
        &self.ids
    }
}

/// Starts the thread that keeps the paths to which uploads of a cache refer, if there may be any.
/// The thread ends after the cache is dropped.
pub(crate) fn start(cache: &Arc<CacheUpstreams>) -> io::Result<()> {
    if !cache.has_references() || cache.uploads.is_none() {
        return Ok(());
    }
    let (wake, woken) = mpsc::channel();
    *cache.references.wake.locked() = Some(wake);
    let weak = Arc::downgrade(cache);
    // Do not wait for the thread when the cache is dropped: it may be waiting for an upstream.
    LowPriority::start("references", NICENESS, move || {
        keep_references(&weak, &woken)
    })?
    .detach();
    Ok(())
}

/// If the response for uploaded paths is a 404, returns the narinfo of a path that a client need
/// not push because an upstream has it.
pub(crate) fn or_narinfo(
    cache: Option<&Arc<CacheUpstreams>>,
    head: Head<'_>,
    route: &Route,
    is_private: bool,
    response: Response,
) -> Response {
    match (cache, route.resource()) {
        (Some(cache), Some(Resource::Narinfo(hash_part)))
            if response.status() == Status::NOT_FOUND
                && !is_lost(cache, hash_part)
                && matches!(head.method(), Method::Get | Method::Head) =>
        {
            cache.narinfo(head, hash_part, true, Absence::new(None, None), is_private)
        }
        _ => response,
    }
}

/// Whether a path was uploaded and its file is lost: then it must be pushed again.
pub(crate) fn is_lost(cache: &CacheUpstreams, hash_part: HashPart) -> bool {
    let uploads = cache.uploads.as_ref();
    uploads.is_some_and(|uploads| uploads.may_contain(hash_part))
}

/// Returns, for each of these paths, whether an upload may refer to it because an upstream has it.
/// Blocks until the upstreams have answered, at most for the budget of a look-up.
pub(crate) fn have(cache: &Arc<CacheUpstreams>, hash_parts: &[HashPart]) -> Vec<bool> {
    let mut are_there = vec![false; hash_parts.len()];
    let ids = &cache.references.ids;
    let (sender, results) = mpsc::channel();
    for (is_there, (index, hash_part)) in are_there.iter_mut().zip(hash_parts.iter().enumerate()) {
        if let Some(found) = cache.kept_path(*hash_part, ids) {
            *is_there = cache.admit(&found.narinfo).is_ok();
            continue;
        }
        let sender = sender.clone();
        let done = move |looked_up| {
            // The receiver is gone if the request was aborted.
            sender.send((index, looked_up)).ok();
        };
        cache.ask(
            ids,
            Wanted::path(*hash_part),
            Arc::default(),
            Box::new(done),
        );
    }
    drop(sender);
    for (index, looked_up) in lend_slot(|| results.iter().collect::<Vec<_>>()) {
        // What is down cannot send the path.
        if let LookedUp::Found(found) = looked_up
            && !found.upstream.is_down()
            && cache.admit(&found.narinfo).is_ok()
        {
            are_there[index] = true;
        }
    }
    are_there
}

/// Wakes the thread, which then keeps the paths to which a new upload refers.
pub(crate) fn changed(cache: &CacheUpstreams) {
    if let Some(wake) = &*cache.references.wake.locked() {
        // The thread may have ended.
        wake.send(()).ok();
    }
}

/// Keeps the paths to which uploads refer, until the cache is dropped.
fn keep_references(cache: &Weak<CacheUpstreams>, woken: &Receiver<()>) {
    loop {
        if let Some(cache) = cache.upgrade()
            && let Err(error) = keep_all(&cache)
        {
            cache.note_failure(&error);
        }
        match woken.recv_timeout(INTERVAL) {
            Ok(()) => while woken.try_recv().is_ok() {},
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Keeps the closures of the paths of upstreams to which uploads refer, path by path.
fn keep_all(cache: &Arc<CacheUpstreams>) -> Result<(), StorageError> {
    let Some(uploads) = &cache.uploads else {
        return Ok(());
    };
    let mut left = kept::outer_references(uploads)?;
    let mut seen = HashSet::new();
    while let Some(hash_part) = left.pop() {
        if seen.insert(hash_part) {
            left.extend(keep_path(cache, hash_part));
        }
    }
    Ok(())
}

/// Keeps a path, unless it is in the store, was uploaded, or is kept. Returns its references.
fn keep_path(cache: &Arc<CacheUpstreams>, hash_part: HashPart) -> Vec<HashPart> {
    let hash_parts = |paths: &[StorePath]| paths.iter().map(StorePath::hash_part).collect();
    if cache.is_own(&hash_part) {
        return Vec::new();
    }
    let ids = &cache.references.ids;
    let kept = cache.kept_caches(ids).find_map(|(_, stored)| {
        let found = stored.peek(hash_part);
        found.inspect_err(|error| cache.note_failure(error)).ok()?
    });
    if let Some(kept) = kept {
        return hash_parts(&kept.references);
    }
    let (sender, result) = mpsc::channel();
    let done = move |looked_up| {
        sender.send(looked_up).ok();
    };
    cache.ask(ids, Wanted::path(hash_part), Arc::default(), Box::new(done));
    let Ok(LookedUp::Found(found)) = result.recv() else {
        return Vec::new();
    };
    let nar_cache = cache.reader().shared.nar_cache.as_ref();
    let places = Places {
        transfers: cache.upstreams.transfers(),
        nar_cache,
        is_needed: true,
    };
    let (sender, started) = mpsc::channel();
    let start = move |joined| {
        sender.send(joined).ok();
    };
    Transfer::join(&found, places, Box::new(start));
    if let Ok(Ok(joined)) = started.recv() {
        joined.transfer.await_copy(joined.reader);
    }
    hash_parts(&found.narinfo.references)
}
