//! The in-memory form of rendered narinfos.

use std::borrow::Borrow;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Prepared, Response};
use samovar_nix::{HashPart, PathInfo};

use crate::known::row::Row;
use crate::known::sharded::{MemoryLen, Sharded};
use crate::prepared::{AnswerHead, PreparedBody, may_go_inline};

/// The state of store and policy under which a narinfo was rendered. The narinfo is valid while
/// both are unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The catalog's epoch.
    pub(crate) epoch: u64,
    /// The generation of the policy.
    pub(crate) generation: u64,
}

/// Status and header fields of a narinfo response.
pub(crate) const HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[("Content-Type", "text/x-nix-narinfo")],
};

/// A narinfo with its signatures, ready to be sent.
#[derive(Debug)]
pub(crate) struct Narinfo {
    /// The row from which the narinfo was rendered.
    pub(crate) row: Row,
    /// Length in bytes of the narinfo's text before its signatures.
    pub(crate) unsigned_len: usize,
    pub(crate) prepared: Prepared,
}

impl Narinfo {
    pub(crate) fn new(row: Row, text: &[u8], unsigned_len: usize) -> Self {
        Self {
            row,
            unsigned_len,
            prepared: HEAD.prepared(text),
        }
    }

    /// Returns the response that a worker sends.
    pub(crate) fn response(self: Arc<Self>) -> Response {
        // Copying a short text into the response costs less than streaming it from a source.
        let body = if may_go_inline(&self.prepared) {
            self.text().to_vec().into()
        } else {
            PreparedBody::whole(self)
        };
        HEAD.response(body)
    }

    pub(crate) fn text(&self) -> &[u8] {
        self.prepared.body()
    }
}

impl Borrow<Prepared> for Narinfo {
    fn borrow(&self) -> &Prepared {
        &self.prepared
    }
}

/// A cached narinfo and its period of validity.
#[derive(Debug, Clone)]
pub(crate) struct Rendered {
    /// The state in which it was last known to be valid. `None`: unknown; it is kept because its
    /// signatures may be used again.
    pub(crate) stamp: Option<Stamp>,
    /// The Unix time in seconds until which the policy permits it.
    pub(crate) until: i64,
    /// The generation of its path's last GC lease; zero: none.
    pub(crate) leased: u32,
    /// Whether it was prefetched and has not been requested yet.
    pub(crate) is_prefetched: bool,
    pub(crate) narinfo: Arc<Narinfo>,
}

impl Rendered {
    /// Returns the rendered narinfo of an uploaded path, which is not cached.
    pub(crate) fn uploaded(info: &PathInfo, text: &[u8]) -> Self {
        Self {
            stamp: None,
            until: 0,
            leased: 0,
            is_prefetched: false,
            narinfo: Arc::new(Narinfo::new(Row::from(info), text, 0)),
        }
    }
}

/// The rendered narinfos of one cache.
pub(crate) type RenderedCache = Sharded<Rendered>;

pub(crate) const SHARD_COUNT: usize = 64;

impl MemoryLen for Rendered {
    fn memory_len(&self) -> usize {
        let narinfo = &self.narinfo;
        2 * (size_of::<HashPart>() + size_of::<Self>())
            + size_of::<Narinfo>()
            + narinfo.row.path.base_name().len()
            + narinfo.prepared.memory_len()
    }
}
