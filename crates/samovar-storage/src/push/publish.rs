//! Publishes many paths in one request.

use std::collections::HashSet;
use std::io::{BufReader, Read};
use std::sync::Arc;

use samovar_nix::StorePath;
use samovar_protocol::push::{Missing, NarinfoLine, Records};

use super::{Push, PushError, usable_nar};
use crate::metadata::{NewPath, Published};
use crate::mirror::Render;
use crate::receive::PutError;
use crate::receive::{Refusal, publish as rules};
use crate::storage::counters::{Kind, Reason};
use crate::storage::{StoredCache, mirrored, narinfo};

/// Length of the buffer between the body and its records, in bytes.
const BUFFER_LEN: usize = 64 << 10;

/// Returns the reason for counting a refusal. Returns `None` if the request was aborted.
fn reason(error: &PushError) -> Option<Reason> {
    match error {
        PushError::Put(error) => Reason::of(error),
        PushError::Narinfo { refusal, .. } => Some(Reason::of_refusal(refusal)),
        PushError::Missing(_) => Some(Reason::MissingReference),
        _ => Some(Reason::Narinfo),
    }
}

/// Publishes all paths of a body of narinfos, or none of them. When this returns, the paths are
/// durable and every look-up finds them. `is_elsewhere` returns whether the live Nix store contains
/// a path.
///
/// # Errors
///
/// [`PushError::Missing`], [`PushError::Narinfo`] and others. Nothing is published then. A
/// [`PutError::Source`] may contain a [`WireError`](samovar_protocol::push::WireError).
pub fn publish(
    push: &Push<'_>,
    source: &mut dyn Read,
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
    render: &Render<'_>,
) -> Result<Vec<(StorePath, Published)>, PushError> {
    let outcome = publish_group(push, source, is_elsewhere, render);
    let counters = &push.stored.storage.counters;
    match &outcome {
        Ok(paths) => counters.accept(Kind::Narinfo, paths.len()),
        Err(error) => counters.reject(Kind::Narinfo, reason(error)),
    }
    outcome
}

fn publish_group(
    push: &Push<'_>,
    source: &mut dyn Read,
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
    render: &Render<'_>,
) -> Result<Vec<(StorePath, Published)>, PushError> {
    let group = Arc::new(parse(push, source, is_elsewhere)?);
    if group.is_empty() {
        return Ok(Vec::new());
    }
    let outcomes = narinfo::publish(push.stored, Arc::clone(&group), is_elsewhere)?;
    check(push.stored, &group, &outcomes)?;
    let hash_parts: Vec<_> = group.iter().map(|new| new.path.hash_part()).collect();
    mirrored::follow(push.stored, &hash_parts, render);
    let paths = group.iter().map(|new| new.path.clone());
    Ok(paths.zip(outcomes).collect())
}

/// Reads the narinfos of a body, and finds their NARs.
fn parse(
    push: &Push<'_>,
    source: &mut dyn Read,
    is_elsewhere: &dyn Fn(&StorePath) -> bool,
) -> Result<Vec<NewPath>, PushError> {
    let store_dir = &push.stored.storage.store_dir;
    let source = BufReader::with_capacity(BUFFER_LEN, source);
    let mut records = Records::<_, NarinfoLine>::new(source);
    let (mut group, mut missing) = (Vec::new(), Vec::new());
    // References to paths that come earlier in the body need no look-up in the live Nix store.
    let mut earlier = HashSet::new();
    while records.next_record().map_err(PutError::Source)?.is_some() {
        let number = records.number();
        let refused = |path: Option<StorePath>| {
            move |refusal| PushError::Narinfo {
                number,
                path,
                refusal: Box::new(refusal),
            }
        };
        let mut text = Vec::new();
        records.read_to_end(&mut text).map_err(PutError::Source)?;
        let info = rules::parse_without_url(store_dir, text).map_err(refused(None))?;
        let hash_part = info.store_path.hash_part();
        let nar = usable_nar(push.stored, push.token, &info.nar_hash)?;
        let Some(nar) = nar else {
            missing.push(Missing::Nar(hash_part));
            continue;
        };
        rules::compare_nar(store_dir, &info, &nar)
            .map_err(refused(Some(info.store_path.clone())))?;
        let is_elsewhere = |path: &StorePath| !earlier.contains(path) && is_elsewhere(path);
        let new = narinfo::new_path(push.stored, push.token, nar.id, info, &is_elsewhere);
        earlier.insert(new.path.clone());
        group.push(new);
    }
    match missing.is_empty() {
        true => Ok(group),
        false => Err(PushError::Missing(missing)),
    }
}

/// Returns an error unless all paths were published.
fn check(stored: &StoredCache, group: &[NewPath], outcomes: &[Published]) -> Result<(), PushError> {
    let mut missing = Vec::new();
    for (number, (new, outcome)) in (1..).zip(group.iter().zip(outcomes)) {
        let path = new.path.hash_part();
        match outcome {
            Published::MissingReferences(references) => {
                missing.extend(references.iter().map(|reference| Missing::Reference {
                    reference: reference.hash_part(),
                    path,
                }));
            }
            Published::MissingNar => missing.push(Missing::Nar(path)),
            outcome => match narinfo::refusal(stored, &new.path, outcome)? {
                None => {}
                Some(refusal @ (Refusal::OtherName { .. } | Refusal::OtherPathExists { .. })) => {
                    return Err(PushError::Narinfo {
                        number,
                        path: Some(new.path.clone()),
                        refusal: Box::new(refusal),
                    });
                }
                Some(refusal) => return Err(PutError::from(refusal).into()),
            },
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(PushError::Missing(missing)),
    }
}
