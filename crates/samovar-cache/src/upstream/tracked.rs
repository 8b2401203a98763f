//! What the director knows about an upstream ([`Tracked`]) and about a look-up ([`Pending`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_nix::HashPart;
use samovar_upstream::bulk::Bulk;
use samovar_upstream::circuit::Circuit;
use samovar_upstream::look_up::{Answer, LookUp};
use samovar_upstream::memory::Memory;

use crate::upstream::message::{Ask, Done};
use crate::upstream::one::{Found, Upstream};

/// Number of paths about which an upstream's answers are remembered.
const REMEMBERED_COUNT_MAX: usize = 50_000;

/// What is remembered about a path at an upstream.
#[derive(Debug)]
pub(super) enum Known {
    Found(Arc<Found>),
    Absent(Instant),
    /// The path's NAR was wrong or could not be had, in these words.
    NoNar(&'static str),
}

/// An upstream as the director sees it.
pub(super) struct Tracked {
    pub(super) upstream: Arc<Upstream>,
    pub(super) circuit: Circuit,
    pub(super) memory: Memory<Known>,
    /// The requests that were sent and not answered.
    pub(super) asked: HashSet<(HashPart, Arc<[u8]>)>,
    pub(super) bulk: Bulk,
    /// The request for many narinfos that look-ups wait for.
    pub(super) many: Option<Many>,
    /// Paths whose references are looked up after that request.
    pub(super) postponed: VecDeque<Ahead>,
}

/// A request for many narinfos.
pub(super) struct Many {
    /// The paths that are [asked](Tracked::asked) for by it.
    pub(super) paths: HashSet<HashPart>,
    /// When look-ups no longer wait for it.
    pub(super) late_at: Instant,
}

/// A path that was found, and whose references are looked up ahead.
pub(super) struct Ahead {
    pub(super) found: Arc<Found>,
    pub(super) ids: Arc<[usize]>,
    pub(super) negative_ttl: Duration,
    pub(super) is_local: Arc<dyn Fn(&HashPart) -> bool + Send + Sync>,
}

/// A look-up in progress.
pub(super) struct Pending {
    pub(super) look_up: LookUp,
    pub(super) ask: Ask,
    /// All who wait, besides the first.
    pub(super) others: Vec<Done>,
    /// Whether a client waits.
    pub(super) is_urgent: bool,
    /// What each upstream has said, for the text of a miss.
    pub(super) reasons: Vec<String>,
    /// When the first of the upstreams that lack the path has said so.
    pub(super) absent_since: Instant,
    pub(super) found: HashMap<usize, Arc<Found>>,
}

impl Tracked {
    pub(super) fn new(upstream: &Arc<Upstream>) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            circuit: Circuit::default(),
            memory: Memory::new(REMEMBERED_COUNT_MAX),
            asked: HashSet::new(),
            bulk: Bulk::default(),
            many: None,
            postponed: VecDeque::new(),
        }
    }

    /// Lets a look-up that ends at `deadline` wait for a request for many narinfos for at most half
    /// of its time.
    pub(super) fn hurry(&mut self, hash_part: &HashPart, deadline: Instant, now: Instant) {
        if let Some(many) = &mut self.many
            && many.paths.contains(hash_part)
        {
            let half = deadline.saturating_duration_since(now) / 2;
            many.late_at = many.late_at.min(now + half);
        }
    }

    /// Whether the upstream is known to have a path.
    pub(super) fn has(&self, hash_part: &HashPart, now: Instant) -> bool {
        matches!(self.memory.get(hash_part, now), Some(Known::Found(_)))
    }

    /// Returns what this upstream has said about the path of a look-up, as far as that is known, or
    /// that it is not asked at present. Adds the reason to the reasons of the look-up.
    pub(super) fn known(&self, id: usize, pending: &mut Pending, now: Instant) -> Option<Answer> {
        let (ask, name) = (&pending.ask, &self.upstream.settings.name);
        let (reason, answer) = match self.memory.get(&ask.wanted.hash_part, now) {
            _ if ask.wanted.excluded.contains(&id) => {
                (format!("{name} could not send the NAR"), Answer::Unknown)
            }
            Some(Known::Found(found)) => {
                let found = Arc::clone(found);
                return Some(pending.found_at(id, found));
            }
            Some(Known::NoNar(fault)) => (format!("{name} {fault}"), Answer::Absent),
            Some(Known::Absent(at)) if now < *at + ask.negative_ttl => {
                pending.absent_since = pending.absent_since.min(*at);
                (format!("{name} has no such path"), Answer::Absent)
            }
            _ => {
                let since = self.circuit.open()?.since;
                if let Some(Known::Found(found)) = self.memory.last(&ask.wanted.hash_part) {
                    let found = Arc::clone(found);
                    return Some(pending.found_at(id, found));
                }
                let seconds = now.saturating_duration_since(since).as_secs();
                (format!("{name} is down since {seconds} s"), Answer::Unknown)
            }
        };
        pending.reasons.push(reason);
        Some(answer)
    }
}

impl Pending {
    /// Returns the answer of an upstream that has the path. With another NAR than the wanted one,
    /// the upstream counts as lacking the path.
    pub(super) fn found_at(&mut self, id: usize, found: Arc<Found>) -> Answer {
        let narinfo = &found.narinfo;
        let is_wanted = self.ask.wanted.nar.is_none_or(|(nar_hash, compression)| {
            narinfo.nar_hash == nar_hash && narinfo.compression == compression
        });
        match is_wanted {
            true => {
                self.found.insert(id, found);
                Answer::Found
            }
            false => {
                let name = &found.upstream.settings.name;
                self.reasons
                    .push(format!("{name} has another NAR of the path"));
                Answer::Absent
            }
        }
    }
}
