//! Paths of upstream caches in bulk queries.

use std::io;
use std::sync::{Arc, mpsc};

use samovar_http::Head;
use samovar_nix::HashPart;
use samovar_upstream::settings::WhenDown;

use crate::answer::bulk::OtherPaths;
use crate::narinfo::narinfos::Answer;
use crate::refusal::Refusal;
use crate::upstream::hidden;
use crate::upstream::message::{LookedUp, Wanted};
use crate::upstream::of_cache::CacheUpstreams;

/// The paths that were uploaded to a cache, and those that its upstreams have.
#[derive(Debug)]
struct UpstreamPaths {
    uploaded: Option<Box<dyn OtherPaths>>,
    upstreams: Arc<CacheUpstreams>,
    /// See [`CacheUpstreams::via`].
    via: Option<Arc<[u8]>>,
}

impl CacheUpstreams {
    /// Returns the paths of the upstreams, besides the uploaded ones, for the response to a bulk
    /// query.
    pub(crate) fn beside(
        self: &Arc<Self>,
        uploaded: Option<Box<dyn OtherPaths>>,
        head: Head<'_>,
    ) -> Box<dyn OtherPaths> {
        Box::new(UpstreamPaths {
            uploaded,
            upstreams: Arc::clone(self),
            via: self.via(head),
        })
    }
}

impl UpstreamPaths {
    /// Looks up paths at the upstreams. Each look-up ends within its budget.
    fn look_up(
        &self,
        via: &Arc<[u8]>,
        paths: Vec<(usize, HashPart)>,
    ) -> impl Iterator<Item = (usize, LookedUp)> {
        let (sender, results) = mpsc::channel();
        for (index, hash_part) in paths {
            let sender = sender.clone();
            let done = move |looked_up: LookedUp| {
                // The response may have been aborted.
                sender.send((index, looked_up)).ok();
            };
            let ids = &self.upstreams.ids;
            let wanted = Wanted::path(hash_part);
            self.upstreams
                .ask(ids, wanted, Arc::clone(via), Box::new(done));
        }
        results.into_iter()
    }

    /// Whether the response about a path is that it could not be looked up.
    fn is_failure(&self, looked_up: &LookedUp) -> bool {
        let fails = self.upstreams.when_down() == WhenDown::Error;
        fails && matches!(looked_up, LookedUp::Unknown(_))
    }
}

impl OtherPaths for UpstreamPaths {
    fn complete(&self, hash_parts: &[HashPart], answers: &mut [Answer]) -> io::Result<()> {
        if let Some(uploaded) = &self.uploaded {
            uploaded.complete(hash_parts, answers)?;
        }
        let Some(via) = &self.via else {
            return Ok(());
        };
        let is_absent = |answer: &Answer| matches!(answer, Err(refusal) if refusal.is_absence());
        let mut found = Vec::new();
        let mut asked = Vec::new();
        for (index, (hash_part, answer)) in hash_parts.iter().zip(&*answers).enumerate() {
            if !is_absent(answer) {
                continue;
            }
            match self.upstreams.kept_path(*hash_part, &self.upstreams.ids) {
                Some(kept) => found.push((index, LookedUp::Found(Arc::new(kept)))),
                None => asked.push((index, *hash_part)),
            }
        }
        found.extend(self.look_up(via, asked));
        let mut hidden = Vec::new();
        for (index, looked_up) in found {
            let Some(answer) = answers.get_mut(index) else {
                continue;
            };
            if let LookedUp::Found(found) = &looked_up {
                *answer = self.upstreams.answer(found);
                if is_absent(answer) {
                    let hash_part = found.narinfo.store_path.hash_part();
                    hidden.push((index, hidden::stand_in(&self.upstreams, hash_part)));
                }
            } else if self.is_failure(&looked_up) {
                *answer = Err(Refusal::Unreadable);
            }
        }
        for (index, looked_up) in self.look_up(via, hidden) {
            if self.is_failure(&looked_up)
                && let Some(answer) = answers.get_mut(index)
            {
                *answer = Err(Refusal::Unreadable);
            }
        }
        Ok(())
    }

    fn may_wait(&self) -> bool {
        true
    }
}
