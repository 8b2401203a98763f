//! Kept paths: paths of upstreams in the storage.

use std::sync::Arc;
use std::time::Instant;

use samovar_http::{Responder, Response};
use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, NarHash, PathInfo};
use samovar_storage::kept::{self, NotKept};
use samovar_storage::metadata::StoredPath;
use samovar_storage::{StorageError, StoredCache};
use samovar_upstream::trust;

use crate::answer::nar::Part;
use crate::answer::stored_nar;
use crate::narinfo::narinfos::Answer;
use crate::refusal::Refusal;
use crate::upstream::nar_head::head_of_nar;
use crate::upstream::of_cache::CacheUpstreams;
use crate::upstream::of_client::{BEYOND, Request};
use crate::upstream::one::{Counts, Found, Upstream};
use crate::upstream::request::file_len;

/// Name of a field in the response to HEAD for a NAR that only an upstream has.
const KEPT: &str = "Samovar-Kept";

impl CacheUpstreams {
    /// Whether a path may be kept. Never blocks on a disk.
    pub(crate) fn may_keep(&self, hash_part: &HashPart) -> bool {
        let mut caches = self.kept_caches(&self.ids);
        caches.any(|(_, stored)| stored.may_contain(*hash_part))
    }

    /// Returns the narinfo of a kept path of one of these upstreams, if it is trusted by
    /// the present settings of the upstream.
    pub(super) fn kept_path(&self, hash_part: HashPart, ids: &[usize]) -> Option<Found> {
        let dir = self.reader().store().store_dir();
        self.find_kept(hash_part, ids, |upstream, path| {
            let narinfo = path.narinfo();
            trust::check(&upstream.settings, dir, &narinfo).ok()?;
            Some(Found {
                upstream: Arc::clone(upstream),
                narinfo,
                received_at: Instant::now(),
            })
        })
    }

    /// Returns the metadata of a kept path, for a closure; `None` if it is not kept, or the policy
    /// hides it.
    pub(crate) fn kept_info(&self, hash_part: HashPart) -> Result<Option<PathInfo>, Refusal> {
        let Some(found) = self.kept_path(hash_part, &self.ids) else {
            return Ok(None);
        };
        match self.admit(&found.narinfo) {
            Ok(info) => Ok(Some(info)),
            Err(refusal) if refusal.is_absence() => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns the narinfo of a kept path, for a closure.
    pub(crate) fn kept_answer(&self, hash_part: HashPart) -> Option<Answer> {
        let found = self.kept_path(hash_part, &self.ids)?;
        Some(self.answer(&found))
    }

    /// Returns the response with the NAR of a kept path, or the refusal of the policy; `None` if it
    /// is not kept, or if its file has another compression.
    pub(super) fn kept_nar(
        &self,
        request: &Request,
        hash_part: HashPart,
        (nar_hash, compression): (NarHash, Compression),
    ) -> Option<Result<Response, Refusal>> {
        let dir = self.reader().store().store_dir();
        self.find_kept(hash_part, &self.ids, |upstream, path| {
            if (path.nar.nar_hash, path.nar.compression) != (nar_hash, compression) {
                return None;
            }
            let narinfo = path.narinfo();
            trust::check(&upstream.settings, dir, &narinfo).ok()?;
            if let Err(refusal) = self.admit(&narinfo) {
                return Some(Err(refusal));
            }
            if request.is_head {
                return Some(Ok(head_of_nar(&narinfo)));
            }
            let stored = upstream.kept.as_ref()?;
            let file = match kept::open(stored, path) {
                Ok(file) => file?,
                Err(error) => {
                    self.note_failure(&error);
                    return None;
                }
            };
            let part = match Part::of_range(request.range.as_deref(), path.nar.file_size, BEYOND) {
                Ok(part) => part,
                Err(unsatisfiable) => return Some(Ok(unsatisfiable)),
            };
            Counts::add(&upstream.counts.kept_count, 1);
            Counts::add(&upstream.counts.kept_len, part.end - part.start);
            Some(Ok(
                part.response(stored_nar::body(&file, part.start..part.end))
            ))
        })
    }

    /// Calls `found` with each kept path of these upstreams that has this hash part, until `found`
    /// returns a value.
    fn find_kept<T>(
        &self,
        hash_part: HashPart,
        ids: &[usize],
        mut found: impl FnMut(&Arc<Upstream>, &StoredPath) -> Option<T>,
    ) -> Option<T> {
        let mut caches = self.kept_caches(ids);
        caches.find_map(|(upstream, stored)| match stored.lookup(hash_part) {
            Ok(path) => found(upstream, &path?),
            // The path counts as not kept, so the upstream is asked.
            Err(error) => {
                self.note_failure(&error);
                None
            }
        })
    }

    /// Returns the caches of the kept paths, each with a function that says whether a path in it is
    /// trusted by the present settings of its upstream.
    pub(crate) fn kept(
        &self,
    ) -> impl Iterator<Item = (&StoredCache, impl Fn(&StoredPath) -> bool)> {
        let dir = self.reader().store().store_dir();
        self.kept_caches(&self.ids).map(move |(upstream, stored)| {
            let trusts = move |path: &StoredPath| {
                trust::check(&upstream.settings, dir, &path.narinfo()).is_ok()
            };
            (stored, trusts)
        })
    }

    pub(super) fn kept_caches(
        &self,
        ids: &[usize],
    ) -> impl Iterator<Item = (&Arc<Upstream>, &StoredCache)> {
        let asked = self.asked(ids);
        asked.filter_map(|upstream| Some((upstream, upstream.kept.as_ref()?)))
    }

    /// Sends the response to HEAD for a NAR that only an upstream has. Its field [`KEPT`] says
    /// whether the NAR will be kept when a client has fetched it.
    pub(super) fn send_head(found: &Found, request: Request, responder: Responder) {
        let head = head_of_nar(&found.narinfo);
        let Some(stored) = found.upstream.kept.clone() else {
            return responder.respond(request.mark(head.header(KEPT, "off")));
        };
        let len = file_len(&found.narinfo);
        let send = move || {
            let word = match kept::check(&stored, len) {
                Ok(()) => "not-yet",
                Err(NotKept::Size | NotKept::Disk(_)) => "full",
                Err(_) => "failed",
            };
            responder.respond(request.mark(head.header(KEPT, word)));
        };
        // The check may wait for the disk, so it runs on a thread for NARs: look-ups must not wait.
        // If the queue for NARs is full, the job is dropped, and the responder sends an error.
        found.upstream.nars.run(Box::new(send)).ok();
    }

    pub(super) fn note_failure(&self, error: &StorageError) {
        let shared = &self.reader().shared;
        shared
            .observer
            .event(&samovar_metrics::Event::StorageFailed(error));
    }
}
