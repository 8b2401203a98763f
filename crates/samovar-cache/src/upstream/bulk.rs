//! Paths of upstream caches in bulk queries.

use std::io;
use std::sync::{Arc, mpsc};

use samovar_http::Head;
use samovar_nix::HashPart;
use samovar_upstream::settings::WhenDown;

use crate::answer::bulk::OtherPaths;
use crate::narinfo::narinfos::Answer;
use crate::refusal::Refusal;
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

impl OtherPaths for UpstreamPaths {
    fn complete(&self, hash_parts: &[HashPart], answers: &mut [Answer]) -> io::Result<()> {
        if let Some(uploaded) = &self.uploaded {
            uploaded.complete(hash_parts, answers)?;
        }
        let Some(via) = &self.via else {
            return Ok(());
        };
        let (sender, results) = mpsc::channel();
        let mut kept = Vec::new();
        for (index, (hash_part, answer)) in hash_parts.iter().zip(&*answers).enumerate() {
            if !matches!(answer, Err(refusal) if refusal.is_absence()) {
                continue;
            }
            if let Some(found) = self.upstreams.kept_path(*hash_part, &self.upstreams.ids) {
                kept.push((index, found));
                continue;
            }
            let sender = sender.clone();
            let done = move |looked_up: LookedUp| {
                // The receiver is gone if the response was aborted.
                sender.send((index, looked_up)).ok();
            };
            let wanted = Wanted::path(*hash_part);
            let ids = &self.upstreams.ids;
            self.upstreams
                .ask(ids, wanted, Arc::clone(via), Box::new(done));
        }
        drop(sender);
        for (index, found) in kept {
            if let Some(answer) = answers.get_mut(index) {
                *answer = self.upstreams.answer(&found);
            }
        }
        // This loop ends, because each look-up ends within its budget.
        for (index, looked_up) in results {
            let Some(answer) = answers.get_mut(index) else {
                continue;
            };
            match looked_up {
                LookedUp::Found(found) => *answer = self.upstreams.answer(&found),
                LookedUp::Absent(_) => {}
                LookedUp::Unknown(_) if self.upstreams.when_down() == WhenDown::Miss => {}
                LookedUp::Unknown(_) => *answer = Err(Refusal::Unreadable),
            }
        }
        Ok(())
    }

    fn may_wait(&self) -> bool {
        true
    }
}
