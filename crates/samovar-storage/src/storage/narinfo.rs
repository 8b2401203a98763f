//! Receives narinfos, and publishes paths.

use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StorePath};

use crate::error::StorageError;
use crate::metadata::{NewPath, NewReference, Published, publish};
use crate::mirror::Render;
use crate::receive::PutError;
use crate::receive::{Refusal, publish as rules};
use crate::storage::counters::Kind;
use crate::storage::{Storage, StoredCache, mirrored};
use crate::token::Token;
use crate::waiting::PATIENCE;

/// Compares a narinfo with the uploaded file, checks its references, and publishes the path. When
/// this returns, the path is durable and every look-up finds it. `is_elsewhere` returns whether the
/// live Nix store contains a path. Returns the published path.
///
/// # Errors
///
/// Any [`PutError`]. Nothing is published then.
pub fn put(
    stored: &StoredCache,
    token: &Token,
    hash_part: HashPart,
    text: &[u8],
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
    render: &Render<'_>,
) -> Result<(StorePath, Published), PutError> {
    let outcome = put_one(stored, token, hash_part, text, is_elsewhere, render);
    stored.storage.counters.count(Kind::Narinfo, outcome)
}

fn put_one(
    stored: &StoredCache,
    token: &Token,
    hash_part: HashPart,
    text: &[u8],
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
    render: &Render<'_>,
) -> Result<(StorePath, Published), PutError> {
    let storage = &*stored.storage;
    let (info, name) = rules::parse(&storage.store_dir, hash_part, text)?;
    let file = stored.file(token.into(), &name)?;
    let file = file.ok_or(Refusal::UnknownFile(name))?.nar;
    if !storage.seems_whole(&file)? {
        return Err(Refusal::UnknownFile(name).into());
    }
    rules::compare(&storage.store_dir, &info, &name, &file)?;
    let path = info.store_path.clone();
    let new = new_path(stored, token, file.id, info, is_elsewhere);
    let outcome = publish(stored, Arc::new(vec![new]), is_elsewhere)?.pop();
    // A group of one path has one outcome.
    match outcome.unwrap_or(Published::MissingNar) {
        Published::MissingReferences(references) => {
            let reference = references.into_iter().next().unwrap_or(path.clone());
            Err(Refusal::MissingReference { reference, path }.into())
        }
        Published::MissingNar => Err(Refusal::UnknownFile(name).into()),
        outcome => match refusal(stored, &path, &outcome)? {
            Some(refusal) => Err(refusal.into()),
            None => {
                mirrored::follow(stored, &[hash_part], render);
                Ok((path, outcome))
            }
        },
    }
}

/// Returns the refusal of a path that was not published. Returns `None` if the path was published,
/// or if its references or its NAR are missing.
pub(crate) fn refusal(
    stored: &StoredCache,
    path: &StorePath,
    outcome: &Published,
) -> Result<Option<Refusal>, StorageError> {
    Ok(Some(match outcome {
        Published::OverLimit { used } => stored.over_limit(*used),
        Published::TokenInvalid => Refusal::TokenInvalid,
        Published::CacheDeleted => Refusal::CacheDeleted,
        Published::OtherName(names) => Refusal::OtherName {
            name: path.name().to_owned(),
            names: names.clone(),
        },
        Published::OtherPath(found) => Refusal::OtherPathExists {
            path: path.clone(),
            found: (!stored.hides(path.hash_part())?).then(|| found.clone()),
        },
        Published::New | Published::Known | Published::Conflict => return Ok(None),
        Published::MissingReferences(_) | Published::MissingNar => return Ok(None),
    }))
}

/// Publishes all paths of a group, or none of them.
pub(crate) fn publish(
    stored: &StoredCache,
    mut group: Arc<Vec<NewPath>>,
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
) -> Result<Vec<Published>, StorageError> {
    let storage = &*stored.storage;
    storage.check_room()?;
    for new in group.iter() {
        // If the file of a path that exists is missing, the new NAR replaces it.
        if let Some(known) = stored.peek(new.path.hash_part())?
            && known.nar.id != new.nar_id
        {
            storage.seems_whole(&known.nar)?;
        }
    }
    loop {
        let commit = |batch: &[&[NewPath]], patience| commit(storage, batch, patience);
        let waits = storage.metadata.waits();
        let outcomes = waits.lend(|| {
            waits.patiently(PATIENCE, |patience| {
                storage.queue.publish(&group, patience, commit)
            })
        })?;
        let mut is_outdated = false;
        for (at, outcome) in outcomes.iter().enumerate() {
            let Published::MissingReferences(missing) = outcome else {
                continue;
            };
            for reference in missing {
                // The reference is in the index, but the collector of another process has deleted
                // it. The live Nix store may still have it.
                if storage.forget(stored.id, reference.hash_part())? {
                    let references = &mut Arc::make_mut(&mut group)[at].references;
                    let of_path = references.iter_mut().filter(|new| new.path == *reference);
                    of_path.for_each(|new| new.is_elsewhere = is_elsewhere(reference));
                    is_outdated = true;
                }
            }
        }
        if !is_outdated {
            return Ok(outcomes);
        }
    }
}

/// Converts a checked narinfo to a path that can be published.
pub(crate) fn new_path(
    stored: &StoredCache,
    token: &Token,
    nar_id: i64,
    info: NarInfo,
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
) -> NewPath {
    NewPath {
        token: Some(token.id),
        ..of_narinfo(stored, nar_id, info, &|reference| {
            !stored.surely_contains(reference.hash_part()) && is_elsewhere(reference)
        })
    }
}

/// Converts a checked narinfo to a path that the server itself publishes.
pub(crate) fn of_narinfo(
    stored: &StoredCache,
    nar_id: i64,
    info: NarInfo,
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
) -> NewPath {
    let path = info.store_path;
    let has_self_reference = info.references.contains(&path);
    let others = info.references.into_iter().filter(|other| *other != path);
    let reference = |path| NewReference {
        is_elsewhere: is_elsewhere(&path),
        path,
    };
    NewPath {
        cache: stored.id,
        token: None,
        nar_id,
        references: others.map(reference).collect(),
        has_self_reference,
        deriver: info.deriver,
        signatures: info.signatures,
        content_address: info.content_address,
        path,
        limit: stored.limit(),
    }
}

/// Publishes a batch of groups, and adds the new paths to the index in memory.
fn commit(
    storage: &Storage,
    batch: &[&[NewPath]],
    patience: Duration,
) -> Result<Vec<Vec<Published>>, StorageError> {
    let _changing = storage.changing();
    let started = Instant::now();
    let outcomes = publish::publish(&storage.metadata, batch, patience)?;
    let path_count = batch.iter().map(|group| group.len()).sum();
    storage.counters.committed(path_count, started.elapsed());
    if !storage.catalog.is_followed() {
        let mut index = storage.catalog.index_mut();
        let published = batch.iter().zip(&outcomes);
        let published =
            published.filter(|(_, outcomes)| outcomes.iter().all(Published::is_success));
        for (group, _) in published {
            // Also those that were known: an earlier attempt may have published them and failed.
            let paths = group.iter().map(|new| (new.cache, new.path.hash_part()));
            index.paths.extend(paths);
        }
    }
    storage.check_committed()?;
    Ok(outcomes)
}
