//! Uploaded paths in bulk queries.

use std::io;
use std::sync::Arc;

use samovar_http::Response;
use samovar_metrics::Event;
use samovar_nix::{HashPart, PathInfo};
use samovar_storage::metadata::StoredPath;
use samovar_storage::{StorageError, StoredCache};
use samovar_store::{Closure, closure_by_lookups};

use super::render_uploaded;
use crate::answer::bulk::{self, OtherPaths, closure};
use crate::narinfo::narinfos::{Answer, Narinfos};
use crate::narinfo::rendered::Rendered;
use crate::reader::uploaded_info;
use crate::refusal::{Fixed, Refusal};
use crate::upstream::CacheUpstreams;

/// Maximum number of paths in a closure with an uploaded root. Computing one of this size takes a
/// worker about five seconds, because each path is looked up alone.
const CLOSURE_COUNT_MAX: usize = 100_000;

/// The uploaded paths of a cache, for bulk responses.
#[derive(Debug)]
pub(crate) struct Uploaded {
    narinfos: Arc<Narinfos>,
    stored: StoredCache,
    /// The upstreams, whose kept paths are part of closures.
    upstreams: Option<Arc<CacheUpstreams>>,
}

impl Uploaded {
    pub(crate) fn new(
        narinfos: &Arc<Narinfos>,
        stored: &StoredCache,
        upstreams: Option<&Arc<CacheUpstreams>>,
    ) -> Self {
        Self {
            narinfos: Arc::clone(narinfos),
            stored: stored.clone(),
            upstreams: upstreams.map(Arc::clone),
        }
    }

    /// Answers `/closure/<hash part>`, after the live Nix store had no such path.
    pub(crate) fn closure(self, hash_part: HashPart) -> Response {
        self.try_closure(hash_part).unwrap_or_else(|refusal| {
            self.narinfos.reader.shared.report(&hash_part, refusal);
            refusal.answer().response()
        })
    }

    fn try_closure(&self, hash_part: HashPart) -> Result<Response, Refusal> {
        let shared = &self.narinfos.reader.shared;
        let lookup = |hash_part| self.lookup(hash_part);
        let mut closure = closure_by_lookups(hash_part, closure::SMALL_COUNT_MAX, lookup)?;
        if closure == Some(Closure::TooLarge) {
            let Some(_slot) = shared.closure_slots.try_acquire() else {
                return Ok(closure::no_slot(shared));
            };
            closure = closure_by_lookups(hash_part, CLOSURE_COUNT_MAX, lookup)?;
        }
        match closure {
            None => Err(Refusal::Absent),
            Some(Closure::TooLarge) => Ok(closure::too_large(CLOSURE_COUNT_MAX)),
            Some(Closure::Incomplete) => Ok(Fixed::Incomplete.response()),
            Some(Closure::Members(members)) => {
                let upstreams = self.upstreams.as_ref();
                let uploaded = Self::new(&self.narinfos, &self.stored, upstreams);
                Ok(bulk::many(
                    &self.narinfos,
                    members,
                    true,
                    Some(Box::new(uploaded)),
                ))
            }
        }
    }

    /// Looks up a path in the live Nix store, and if it is absent there, among the uploaded paths.
    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, Refusal> {
        let reader = &self.narinfos.reader;
        match reader.servable(hash_part) {
            Ok(info) => return Ok(Some(info)),
            Err(refusal) if refusal.is_absence() => {}
            Err(refusal) => return Err(refusal),
        }
        match self.stored.peek(hash_part) {
            Ok(Some(path)) => match reader.admit_uploaded(&path) {
                Ok(()) => Ok(Some(uploaded_info(&path))),
                Err(refusal) if refusal.is_absence() => Ok(None),
                Err(refusal) => Err(refusal),
            },
            Ok(None) => {
                let kept = self.upstreams.as_ref().map(|all| all.kept_info(hash_part));
                kept.unwrap_or(Ok(None))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Returns the narinfo of an uploaded path, unless the policy denies it.
    fn answer(&self, path: &StoredPath) -> Answer {
        let Narinfos {
            reader, signing, ..
        } = &*self.narinfos;
        reader.admit_uploaded(path)?;
        let text = render_uploaded(signing, reader.store().store_dir(), path);
        Ok(Rendered::uploaded(&uploaded_info(path), &text))
    }

    /// Reports an error of the storage. Returns the refusal of the path whose look-up failed.
    fn failed(&self, error: &StorageError) -> Refusal {
        let observer = &self.narinfos.reader.shared.observer;
        observer.event(&Event::StorageFailed(error));
        Refusal::Unreadable
    }
}

impl OtherPaths for Uploaded {
    fn complete(&self, hash_parts: &[HashPart], answers: &mut [Answer]) -> io::Result<()> {
        let is_absent = |answer: &Answer| matches!(answer, Err(refusal) if refusal.is_absence());
        let asked: Vec<HashPart> = hash_parts
            .iter()
            .zip(&*answers)
            .filter_map(|(hash_part, answer)| is_absent(answer).then_some(*hash_part))
            .collect();
        let found = self.stored.lookup_many(&asked).map_err(|error| {
            self.failed(&error);
            io::Error::other(error)
        })?;
        let absent = answers.iter_mut().filter(|answer| is_absent(answer));
        for ((answer, hash_part), found) in absent.zip(&asked).zip(found) {
            match found {
                Ok(Some(path)) => *answer = self.answer(&path),
                Ok(None) => {
                    let kept = self.upstreams.as_ref();
                    if let Some(kept) = kept.and_then(|all| all.kept_answer(*hash_part)) {
                        *answer = kept;
                    }
                }
                Err(error) => *answer = Err(self.failed(&error)),
            }
        }
        Ok(())
    }
}
