//! Messages between the caches, the upstreams and the director.

use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, NarHash};
use samovar_upstream::bulk::Reply;

use crate::upstream::one::Found;
use crate::upstream::request::{Said, Trouble};

/// What a look-up looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) hash_part: HashPart,
    /// The NAR that is wanted; `None`: the narinfo, whatever NAR it has.
    pub(super) nar: Option<(NarHash, Compression)>,
    /// Upstreams that could not send the NAR.
    pub(super) excluded: Vec<usize>,
}

impl Wanted {
    pub(super) fn path(hash_part: HashPart) -> Self {
        Self {
            hash_part,
            nar: None,
            excluded: Vec::new(),
        }
    }
}

/// The end of a look-up.
#[derive(Debug, Clone)]
pub(super) enum LookedUp {
    Found(Arc<Found>),
    /// All upstreams have said that they lack the path, the first of them at this time.
    Absent(Instant),
    /// No upstream has the path, and at least one could not say so.
    Unknown(Miss),
}

/// Why a path was not found.
#[derive(Debug, Clone, Default)]
pub(super) struct Miss {
    /// One fragment for each upstream that was asked.
    pub(super) reasons: Vec<String>,
}

/// Called with the end of a look-up, on the director's thread.
pub(super) type Done = Box<dyn FnOnce(LookedUp) + Send>;

/// A message to the director.
pub(super) enum Message {
    /// A cache looks for a path.
    Ask(Ask),
    /// An upstream has answered, or has not.
    Answer {
        upstream: usize,
        hash_part: HashPart,
        via: Arc<[u8]>,
        said: Result<Said<Arc<Found>>, Trouble>,
    },
    /// An upstream has answered a part of a request for many narinfos.
    Many {
        upstream: usize,
        answers: Vec<(HashPart, Said<Arc<Found>>)>,
    },
    /// The end of such a request, or of finding out whether the upstream has them.
    ManyEnded(usize, Reply),
    /// An upstream was not asked, because the look-up had ended before its turn came.
    Skipped {
        upstream: usize,
        hash_part: HashPart,
        via: Arc<[u8]>,
    },
    /// An upstream lacks the NAR of a path whose narinfo it had.
    Gone(usize, HashPart),
    /// An upstream has sent a NAR that does not match its narinfo.
    Wrong(usize, HashPart),
    /// An upstream could not send a NAR.
    NarFailed(usize, String),
    /// The end of a probe.
    Probed(usize, Result<(), Trouble>),
    /// The server ends, or its upstreams were replaced.
    Stop,
}

/// The look-up that a cache asks for.
pub(super) struct Ask {
    /// Numbers of the upstreams that the cache asks.
    pub(super) ids: Arc<[usize]>,
    pub(super) wanted: Wanted,
    /// The `Via` field of the request.
    pub(super) via: Arc<[u8]>,
    pub(super) budget: Duration,
    /// Time for which the cache trusts an answer that a path is absent.
    pub(super) negative_ttl: Duration,
    /// Called at the end; `None`: no client waits.
    pub(super) done: Option<Done>,
    /// Whether the path is in the store or was uploaded, so that it need not be looked up.
    pub(super) is_local: Arc<dyn Fn(&HashPart) -> bool + Send + Sync>,
}
