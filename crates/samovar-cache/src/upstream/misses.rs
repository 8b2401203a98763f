//! [`Misses`]: the responses for paths that no upstream has, or of which this is unknown.
//!
//! In all functions, `own` is the response of the server without upstreams.

use samovar_http::http::Status;
use samovar_http::{Prepared, Response};
use samovar_upstream::settings::WhenDown;

use crate::refusal::{ABSENT, Absence, Fixed, MISS, TEXT};
use crate::upstream::message::Miss;

/// The responses of one cache.
#[derive(Debug)]
pub(super) struct Misses {
    when_down: WhenDown,
    /// The lines about the upstreams if all of them lack the path.
    reasons: String,
    /// The response about a path that no upstream has.
    prepared: Prepared,
}

impl Misses {
    /// `names`: the names of the upstreams.
    pub(super) fn new(names: &[&str], when_down: WhenDown) -> Self {
        let reasons = names.iter();
        let reasons: String = reasons
            .map(|name| format!("{name} has no such path\n"))
            .collect();
        let text = format!("{}{reasons}", Fixed::NoPath.body());
        Self {
            when_down,
            reasons,
            prepared: Prepared::new(Status::NOT_FOUND, &[TEXT, ABSENT], text.as_bytes()),
        }
    }

    /// Returns the response about a path that all upstreams lack, and the server itself.
    pub(super) fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Returns the response about a path that all upstreams lack.
    pub(super) fn absent(&self, own: &Absence) -> Response {
        let text = format!("{}{}", own.body(), self.reasons);
        let word = own.reason().unwrap_or(ABSENT.1);
        Response::text(Status::NOT_FOUND, text).header(MISS, word)
    }

    /// Returns the response if no upstream has the path and not all have said so.
    pub(super) fn unknown(&self, own: &Absence, miss: &Miss) -> Response {
        match self.when_down {
            WhenDown::Miss => Self::missing(own, "upstream-down", miss),
            WhenDown::Error => {
                let text = miss.text("No upstream cache could say whether it has this path.\n");
                Response::text(Status::SERVICE_UNAVAILABLE, text).header("Retry-After", "5")
            }
        }
    }

    /// Returns a 404. `word`: the reason, for scripts, if the server itself has none.
    pub(super) fn missing(own: &Absence, word: &'static str, miss: &Miss) -> Response {
        let text = miss.text(&own.body());
        Response::text(Status::NOT_FOUND, text).header(MISS, own.reason().unwrap_or(word))
    }
}

impl Miss {
    /// Returns the text of a response: a line, and one for each reason.
    fn text(&self, first: &str) -> String {
        let lines = self.reasons.iter().map(|reason| format!("{reason}\n"));
        first.to_owned() + &lines.collect::<String>()
    }
}
