//! Look-ups of the references of a path that was found: clients request the references next.
//!
//! If the upstream is a Samovar server, one request asks for all references, or for the whole
//! closure ([`samovar_upstream::bulk`]). The look-ups wait for the answer as if each had sent a
//! request. If the answer does not come soon, the look-ups send single requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use samovar_nix::HashPart;
use samovar_upstream::bulk::{Plan, Reply};

use crate::upstream::director::Director;
use crate::upstream::many::Wish;
use crate::upstream::message::{Ask, Message, Wanted};
use crate::upstream::one::{Found, Upstream};
use crate::upstream::tracked::{Ahead, Many};

/// Maximum duration of a look-up for which no client waits.
const BACKGROUND_BUDGET: Duration = Duration::from_secs(20);

/// Time after which look-ups no longer wait for a request for many narinfos.
const LATE_TIME: Duration = Duration::from_secs(1);

/// Maximum number of paths whose references wait for such a request.
const POSTPONED_COUNT_MAX: usize = 256;

impl Director {
    /// Looks up the references of a path that was found.
    pub(super) fn look_ahead(&mut self, ask: &Ask, found: &Arc<Found>, now: Instant) {
        if ask.via.is_empty() && ask.wanted.nar.is_none() {
            let ahead = Ahead {
                found: Arc::clone(found),
                ids: Arc::clone(&ask.ids),
                negative_ttl: ask.negative_ttl,
                is_local: Arc::clone(&ask.is_local),
            };
            self.look_up_references(ahead, now);
        }
    }

    fn look_up_references(&mut self, ahead: Ahead, now: Instant) {
        let narinfo = &ahead.found.narinfo;
        let own = narinfo.store_path.hash_part();
        let references = narinfo.references.iter().map(|one| one.hash_part());
        let unknown: Vec<HashPart> = references
            .filter(|reference| {
                *reference != own
                    && !self.is_settled(&ahead.ids, reference, now)
                    && !(ahead.is_local)(reference)
            })
            .collect();
        if unknown.is_empty() {
            return;
        }
        let (id, count) = (ahead.found.upstream.id(), narinfo.references.len());
        let plan = self.upstreams[id].bulk.plan(unknown.len(), count, now);
        // Skip references that are already being looked up.
        let is_new = |reference: &HashPart| !self.by_path.contains_key(reference);
        let new: Vec<HashPart> = unknown.into_iter().filter(is_new).collect();
        match plan {
            Plan::Single => {}
            Plan::Wait => return self.postpone(id, ahead),
            Plan::Detect => {
                self.start(id, |upstream, ending| ending.reply = upstream.detect_bulk());
                return self.postpone(id, ahead);
            }
            Plan::Paths if new.is_empty() => {
                self.upstreams[id].bulk.ended(Reply::Answered, now);
            }
            Plan::Paths => self.ask_many(id, None, &new, now),
            Plan::Closure => self.ask_many(id, Some(own), &new, now),
        }
        for reference in new {
            let ask = Ask {
                ids: Arc::clone(&ahead.ids),
                wanted: Wanted::path(reference),
                via: Arc::default(),
                budget: BACKGROUND_BUDGET,
                negative_ttl: ahead.negative_ttl,
                done: None,
                is_local: Arc::clone(&ahead.is_local),
            };
            self.ask(ask, now);
        }
    }

    /// Whether a look-up of the path would send no request.
    fn is_settled(&self, ids: &[usize], hash_part: &HashPart, now: Instant) -> bool {
        let priority = |id: usize| self.upstreams[id].upstream.settings.priority;
        let having = ids
            .iter()
            .filter(|id| self.upstreams[**id].has(hash_part, now));
        let first = having.map(|id| priority(*id)).min();
        let mut before = ids
            .iter()
            .filter(|id| first.is_none_or(|first| priority(**id) < first));
        before.all(|id| self.upstreams[*id].memory.get(hash_part, now).is_some())
    }

    fn postpone(&mut self, id: usize, ahead: Ahead) {
        let postponed = &mut self.upstreams[id].postponed;
        // Beyond the maximum, references are looked up when clients request them.
        if postponed.len() < POSTPONED_COUNT_MAX {
            postponed.push_back(ahead);
        }
    }

    /// Requests the narinfos of these paths, or of the closure of a path that refers to them.
    fn ask_many(
        &mut self,
        id: usize,
        closure_of: Option<HashPart>,
        paths: &[HashPart],
        now: Instant,
    ) {
        let tracked = &mut self.upstreams[id];
        // Leave out paths that another request is asking for.
        let is_new = |path: &&HashPart| tracked.asked.insert((**path, Arc::default()));
        let paths: HashSet<HashPart> = paths.iter().filter(is_new).copied().collect();
        let wish = Wish {
            closure_of,
            paths: paths.clone(),
        };
        tracked.many = Some(Many {
            paths,
            late_at: now + LATE_TIME,
        });
        tracked.circuit.asked(now);
        let dir = self.dir.clone();
        self.start(id, move |upstream, ending| {
            let sender = ending.sender.clone();
            let tell = |answers| {
                let upstream = upstream.id();
                // The director may have ended.
                sender.send(Message::Many { upstream, answers }).ok();
            };
            ending.reply = upstream.narinfos(&dir, &wish, tell);
        });
    }

    /// Starts a request to an upstream, at whose end [`many_ended`](Self::many_ended) is called.
    fn start(
        &mut self,
        id: usize,
        request: impl FnOnce(&Arc<Upstream>, &mut Ending) + Send + 'static,
    ) {
        let upstream = Arc::clone(&self.upstreams[id].upstream);
        let mut ending = Ending {
            sender: self.sender.clone(),
            upstream: id,
            reply: Reply::Failed,
        };
        let job = Box::new(move || request(&upstream, &mut ending));
        // If the queue is full, the job is dropped, which ends the request.
        self.upstreams[id].upstream.look_ups.run(job).ok();
    }

    /// Records the end of a request for many narinfos, and continues the look-ups that waited for
    /// it.
    pub(super) fn many_ended(&mut self, id: usize, reply: Reply, now: Instant) {
        self.upstreams[id].bulk.ended(reply, now);
        self.ask_singly(id, now);
        for ahead in std::mem::take(&mut self.upstreams[id].postponed) {
            self.look_up_references(ahead, now);
        }
    }

    /// Sends single requests instead of the requests for many narinfos that are late.
    pub(super) fn ask_late(&mut self, now: Instant) {
        for id in 0..self.upstreams.len() {
            let many = self.upstreams[id].many.as_ref();
            if many.is_some_and(|many| many.late_at <= now) {
                self.ask_singly(id, now);
            }
        }
    }

    /// Sends single requests for the paths that look-ups expected in the response to a request for
    /// many narinfos.
    fn ask_singly(&mut self, id: usize, now: Instant) {
        let Some(many) = self.upstreams[id].many.take() else {
            return;
        };
        for path in many.paths {
            if self.upstreams[id].asked.contains(&(path, Arc::default())) {
                self.ask_again(id, path, Arc::default(), now);
            }
        }
    }
}

/// Tells the director of the end of a request when it is dropped, also after a panic.
struct Ending {
    sender: Sender<Message>,
    upstream: usize,
    reply: Reply,
}

impl Drop for Ending {
    fn drop(&mut self) {
        // The director may have ended.
        self.sender
            .send(Message::ManyEnded(self.upstream, self.reply))
            .ok();
    }
}
