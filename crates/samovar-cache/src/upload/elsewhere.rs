//! [`Elsewhere`]: references of uploads to paths that were not uploaded.

use std::cell::Cell;
use std::sync::Arc;

use samovar_nix::StorePath;

use crate::reader::Reader;
use crate::upstream::{CacheUpstreams, references};

/// Decides whether an upload may refer to a path that the cache lacks: if the live Nix store or an
/// upstream has it.
pub(super) struct Elsewhere<'a> {
    reader: &'a Reader,
    upstreams: Option<&'a Arc<CacheUpstreams>>,
    /// Whether the live Nix store could not be read.
    is_undecided: Cell<bool>,
    /// Whether an upstream has one of the paths.
    is_of_upstream: Cell<bool>,
}

impl<'a> Elsewhere<'a> {
    /// `upstreams`: those to whose paths uploads may refer.
    pub(super) fn new(reader: &'a Reader, upstreams: Option<&'a Arc<CacheUpstreams>>) -> Self {
        Self {
            reader,
            upstreams,
            is_undecided: Cell::new(false),
            is_of_upstream: Cell::new(false),
        }
    }

    pub(super) fn has(&self, path: &StorePath) -> bool {
        match self.reader.may_read(path) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_refusal) => self.is_undecided.set(true),
        }
        let hash_part = [path.hash_part()];
        let has = |upstreams| references::have(upstreams, &hash_part) == [true];
        let is_there = self.upstreams.is_some_and(has);
        self.is_of_upstream
            .set(self.is_of_upstream.get() || is_there);
        is_there
    }

    /// Whether a path may be in the live Nix store, which could not be read.
    pub(super) fn is_undecided(&self) -> bool {
        self.is_undecided.get()
    }

    /// Lets the paths of upstreams be kept, after an upload that refers to them was published.
    pub(super) fn published(&self) {
        if self.is_of_upstream.get()
            && let Some(upstreams) = self.upstreams
        {
            references::changed(upstreams);
        }
    }
}
