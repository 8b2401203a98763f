//! [`Request`]: what a client requests of the upstreams of a cache.

use std::sync::Arc;

use samovar_http::{Body, Response};

use crate::answer::nar::Part;
use crate::known::small_nars;
use crate::narinfo::form::NarinfoForm;
use crate::refusal::Absence;
use crate::upstream::body::UpstreamBody;
use crate::upstream::transfer::Joined;

/// Text of a 416.
pub(super) const BEYOND: &str = "Beyond the end.\n";

/// The parts of a request that its response depends on.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) is_head: bool,
    /// The form in which a narinfo is sent.
    pub(super) form: NarinfoForm,
    pub(super) range: Option<Vec<u8>>,
    /// Whether a NAR must come from the upstream unless it is kept, so that it is kept.
    pub(super) is_to_keep: bool,
    pub(super) via: Arc<[u8]>,
    /// Whether the response is for this client alone.
    pub(super) is_private: bool,
    /// What the server answers without upstreams.
    pub(super) own: Absence,
}

impl Request {
    /// Returns the response with the NAR that an upstream sends, or with a part of it.
    pub(super) fn nar(&self, joined: Joined) -> Response {
        let Joined {
            transfer,
            reader,
            len,
        } = joined;
        let body = |range| {
            let body = UpstreamBody::new(Arc::clone(&transfer), reader, range);
            Body::Source(Box::new(body))
        };
        let Some(len) = len else {
            // A part of a file of unknown length cannot be named.
            return small_nars::HEAD.response(body((0, None)));
        };
        match Part::of_range(self.range.as_deref(), len, BEYOND) {
            Ok(part) => part.response(body((part.start, Some(part.end)))),
            Err(unsatisfiable) => {
                transfer.leave(reader);
                unsatisfiable
            }
        }
    }

    /// Adds what every response to this request has.
    pub(super) fn mark(&self, response: Response) -> Response {
        match self.is_private {
            true => response.header("Cache-Control", "private"),
            false => response,
        }
    }
}
