//! Copies paths with their NARs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use samovar_nix::StorePath;
use samovar_protocol::names::FileName;

use super::{Copy, Origin, Report};
use crate::error::StorageError;
use crate::metadata::transfer::{self, Times};
use crate::metadata::{
    CacheId, ListedPath, NewNar, NewPath, Published, SizeLimit, StoredNar, StoredPath, check, nars,
    packs, paths,
};
use crate::receive::PutError;
use crate::storage::counters::locked;
use crate::storage::nar::{NewFile, object_key, store};
use crate::storage::{Storage, StoredCache, narinfo};
use crate::verify::{Unlimited, verify};

/// Number of rows of paths that are read at once, and published in one transaction.
const BATCH_COUNT: u32 = 500;

/// Maximum number of attempts to publish a path whose NAR the collector of the target has deleted
/// meanwhile.
const ATTEMPT_COUNT: u32 = 3;

/// A path to copy.
struct Wanted {
    /// Index of its cache among the pairs.
    at: usize,
    stored: StoredPath,
}

/// Copies the paths of all caches, with their NARs.
pub(super) fn copy(copy: &mut Copy<'_, '_>, at_once: usize) -> Result<(), StorageError> {
    let pairs = copy.pairs.iter().enumerate();
    let caches: HashMap<CacheId, usize> = pairs.map(|(at, pair)| (pair.ids.from, at)).collect();
    let mut after = 0;
    loop {
        let mut batch = check::paths_after(&copy.from.metadata, after, BATCH_COUNT)?;
        let Some(last) = batch.last() else {
            return Ok(());
        };
        after = last.id;
        batch.retain(|listed| caches.contains_key(&listed.cache));
        copy.progress.path_count += batch.len() as u64;
        let wanted = wanted(copy, &caches, batch)?;
        all(copy, wanted, at_once)?;
        (copy.report)(Report::Progress(&copy.progress))?;
    }
}

/// Returns the paths of a batch that the target lacks, or of which it lacks a signature. Passes the
/// last uses of the others on.
fn wanted(
    copy: &mut Copy<'_, '_>,
    caches: &HashMap<CacheId, usize>,
    batch: Vec<ListedPath>,
) -> Result<Vec<Wanted>, StorageError> {
    let mut wanted = Vec::new();
    let mut used: HashMap<usize, Vec<Times>> = HashMap::new();
    for listed in batch {
        let Some(&at) = caches.get(&listed.cache) else {
            continue;
        };
        let hash_part = listed.path.hash_part();
        // Look-ups that revive condemned paths would change their last use.
        let Some(stored) = paths::peek(&copy.from.metadata, listed.cache, hash_part)? else {
            if listed.is_lost {
                copy.path_fault(at, &listed.path, "its file is lost in the source")?;
            }
            continue;
        };
        let ids = copy.pairs[at].ids;
        match paths::peek(&copy.to.metadata, ids.to, hash_part)? {
            Some(known) if has_all(&known, &stored) => {
                copy.progress.known_count += 1;
                if known.used_at < stored.used_at {
                    used.entry(at).or_default().push(Times {
                        hash_part,
                        used_at: stored.used_at,
                        registered_at: None,
                        token: None,
                    });
                }
            }
            _ => wanted.push(Wanted { at, stored }),
        }
    }
    for (at, times) in used {
        transfer::set_times(&copy.to.metadata, copy.pairs[at].ids.to, &times)?;
    }
    Ok(wanted)
}

/// Returns whether the target has the path with the same NAR and all signatures.
fn has_all(known: &StoredPath, stored: &StoredPath) -> bool {
    let mut signatures = stored.signatures.iter();
    known.path == stored.path
        && known.nar.nar_hash == stored.nar.nar_hash
        && signatures.all(|signature| known.signatures.contains(signature))
}

/// Copies the NARs of a batch, then publishes its paths.
fn all(copy: &mut Copy<'_, '_>, wanted: Vec<Wanted>, at_once: usize) -> Result<(), StorageError> {
    let mut rest = wanted;
    for attempt in 1..=ATTEMPT_COUNT {
        receive_all(copy, &mut rest, at_once)?;
        let mut again = Vec::new();
        let mut groups: HashMap<usize, Vec<StoredPath>> = HashMap::new();
        for Wanted { at, stored } in rest {
            groups.entry(at).or_default().push(stored);
        }
        for (at, group) in groups {
            let gone = publish(copy, at, group)?;
            again.extend(gone.into_iter().map(|stored| Wanted { at, stored }));
        }
        rest = again;
        if rest.is_empty() || attempt == ATTEMPT_COUNT {
            break;
        }
    }
    for Wanted { at, stored } in rest {
        copy.path_fault(
            at,
            &stored.path,
            "its NAR was deleted in the target meanwhile",
        )?;
    }
    Ok(())
}

/// Copies the NARs that the target lacks. Removes the paths whose NAR cannot be copied.
fn receive_all(
    copy: &mut Copy<'_, '_>,
    wanted: &mut Vec<Wanted>,
    at_once: usize,
) -> Result<(), StorageError> {
    let mut seen = HashSet::new();
    let jobs: Vec<&StoredNar> = wanted
        .iter()
        .map(|one| &one.stored.nar)
        .filter(|nar| seen.insert(nar.file_hash))
        .collect();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(HashMap::new());
    let (from, to) = (copy.from, copy.to);
    thread::scope(|scope| {
        for _ in 0..at_once.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(nar) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = receive(from, to, nar);
                    locked(&outcomes).insert(nar.file_hash, outcome);
                }
            });
        }
    });
    let mut outcomes = std::mem::take(&mut *locked(&outcomes));
    let mut failed: HashMap<[u8; 32], String> = HashMap::new();
    for (file_hash, outcome) in outcomes.drain() {
        match outcome {
            Ok(len) => {
                copy.progress.nar_count += u64::from(len > 0);
                copy.progress.nar_bytes += len;
            }
            // Such as a full disk: the next NAR would fail, too.
            Err(PutError::Storage(error)) => return Err(error),
            Err(error) => {
                failed.insert(file_hash, shown(&error));
            }
        }
    }
    let (kept, lost): (Vec<_>, Vec<_>) = wanted
        .drain(..)
        .partition(|one| !failed.contains_key(&one.stored.nar.file_hash));
    *wanted = kept;
    for Wanted { at, stored } in lost {
        let reason = failed.get(&stored.nar.file_hash).cloned();
        copy.path_fault(at, &stored.path, reason.unwrap_or_default())?;
    }
    Ok(())
}

fn shown(error: &PutError) -> String {
    match error {
        PutError::Source(error) => error.to_string(),
        error => error.to_string(),
    }
}

/// Copies a NAR, which is verified, unless the target has it. Returns the number of bytes sent.
fn receive(from: &Origin, to: &Storage, nar: &StoredNar) -> Result<u64, PutError> {
    if let Some((_, false)) = nars::object_key(&to.metadata, &nar.file_hash)? {
        return Ok(0);
    }
    let missing = || PutError::Source(std::io::Error::other("its file is missing in the source"));
    let opened = packs::read_nar(&from.metadata, &from.objects, nar);
    // An error of the source concerns this NAR; one of the target concerns all.
    let opened = opened.map_err(|error| PutError::Source(std::io::Error::other(error)))?;
    let mut file = opened.ok_or_else(missing)?;
    let name = FileName::new(nar.file_hash, nar.compression);
    let mut object = to.objects.create()?;
    let verified = verify(&mut file, &name, &mut object, &to.limits, &mut Unlimited)
        .map_err(|error| PutError::of_nar(error, &nar.object_key))?;
    let (key, is_stored) = object_key(&to.metadata, &name)?;
    let new = NewNar::new(verified, key, is_stored);
    let file = NewFile {
        object,
        token: None,
        in_flight: None,
    };
    store(to, new, file)?;
    Ok(nar.file_size)
}

/// Publishes paths of one cache, in the order of their rows. Returns those whose NAR is missing in
/// the target.
fn publish(
    copy: &mut Copy<'_, '_>,
    at: usize,
    mut group: Vec<StoredPath>,
) -> Result<Vec<StoredPath>, StorageError> {
    let mut gone = Vec::new();
    while !group.is_empty() {
        let mut new = Vec::new();
        let mut there = Vec::new();
        for stored in group {
            match new_path(copy, at, &stored)? {
                Some(path) => {
                    new.push(path);
                    there.push(stored);
                }
                None => gone.push(stored),
            }
        }
        if new.is_empty() {
            break;
        }
        let outcomes = narinfo::publish(&copy.pairs[at].to, Arc::new(new), &|_| false)?;
        if outcomes.iter().all(Published::is_success) {
            published(copy, at, &there, &outcomes)?;
            break;
        }
        // None was published. Those that fail are left out of the next attempt.
        group = Vec::new();
        for (stored, outcome) in there.into_iter().zip(outcomes) {
            match outcome {
                Published::MissingNar => gone.push(stored),
                outcome => match reason(&outcome) {
                    None => group.push(stored),
                    Some(reason) => copy.path_fault(at, &stored.path, reason)?,
                },
            }
        }
    }
    Ok(gone)
}

/// Counts published paths, and sets their times and tokens to those in the source.
fn published(
    copy: &mut Copy<'_, '_>,
    at: usize,
    paths: &[StoredPath],
    outcomes: &[Published],
) -> Result<(), StorageError> {
    let mut times = Vec::new();
    let ids: Vec<i64> = paths.iter().map(|stored| stored.id).collect();
    let mut tokens = transfer::tokens_of(&copy.from.metadata, &ids)?;
    for (stored, outcome) in paths.iter().zip(outcomes) {
        if *outcome == Published::Conflict {
            let reason = "the target has this path with another NAR, which stays";
            copy.path_fault(at, &stored.path, reason)?;
            continue;
        }
        copy.progress.copied_count += 1;
        times.push(Times {
            hash_part: stored.path.hash_part(),
            used_at: stored.used_at,
            registered_at: (*outcome == Published::New).then_some(stored.registered_at),
            token: tokens.remove(&stored.id),
        });
    }
    transfer::set_times(&copy.to.metadata, copy.pairs[at].ids.to, &times)
}

/// Makes a path that can be published. Returns `None` if the target lacks its NAR.
fn new_path(
    copy: &Copy<'_, '_>,
    at: usize,
    stored: &StoredPath,
) -> Result<Option<NewPath>, StorageError> {
    let Some(nar_id) = nars::row(&copy.to.metadata, &stored.nar.file_hash)? else {
        return Ok(None);
    };
    let to: &StoredCache = &copy.pairs[at].to;
    let outer: Vec<StorePath> = transfer::outer_references(&copy.from.metadata, stored.id)?;
    let is_elsewhere = |reference: &StorePath| outer.contains(reference);
    let mut new = narinfo::of_narinfo(to, nar_id, stored.narinfo(), &is_elsewhere);
    // The quota of the target is checked when clients upload.
    new.limit = SizeLimit {
        quota: None,
        extra_max: u64::MAX,
    };
    Ok(Some(new))
}

/// Returns why a path was not published; `None` if another path of its group was not.
fn reason(outcome: &Published) -> Option<String> {
    Some(match outcome {
        Published::New | Published::Known | Published::Conflict | Published::MissingNar => {
            return None;
        }
        Published::MissingReferences(references) => format!(
            "its reference {} was not copied",
            references.first().map_or("", StorePath::base_name)
        ),
        Published::CacheDeleted => "the cache is being deleted in the target".to_owned(),
        Published::OtherPath(other) => format!(
            "the target has {}, whose hash part is the same",
            other.base_name()
        ),
        Published::OverLimit { .. } | Published::TokenInvalid | Published::OtherName(_) => {
            "the target refuses it".to_owned()
        }
    })
}
