//! Responses to refused requests.

use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Inline, Prepared, Reply, Response};
use samovar_metrics::Event;

use super::AccessError;
use super::config::{AccessConfig, RefuseWith};
use crate::refusal::{Fixed, TEXT};

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No configured method admits the client.
    Denied,
    /// The client sent too many requests or too many wrong passwords. Contains the time after which
    /// it may try again.
    TooMany(Duration),
}

impl Refusal {
    pub(crate) fn event(self) -> Event<'static> {
        match self {
            Self::Denied => Event::AccessDenied,
            Self::TooMany(_) => Event::AccessLimited,
        }
    }
}

/// The status, fields and body of refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    status: Status,
    fields: Vec<(&'static str, String)>,
    body: &'static str,
    prepared: Prepared,
}

const UNAUTHORIZED: &str = "Credentials are needed here.\n";
const FORBIDDEN: &str = "Access is not allowed.\n";
const TOO_MANY: &str = "Too many requests. Try again later.\n";

impl Refusals {
    pub(crate) fn new(config: &AccessConfig) -> Result<Self, AccessError> {
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        if !config.realm.bytes().all(is_plain) {
            return Err(AccessError::Realm(config.realm.clone()));
        }
        let takes_credentials = config.users_file.is_some() || config.tokens_file.is_some();
        let (status, body) = match config.refuse_with {
            RefuseWith::Fitting if takes_credentials => (Status::UNAUTHORIZED, UNAUTHORIZED),
            RefuseWith::Unauthorized => (Status::UNAUTHORIZED, UNAUTHORIZED),
            RefuseWith::Fitting | RefuseWith::Forbidden => (Status::FORBIDDEN, FORBIDDEN),
            RefuseWith::NotFound => (Status::NOT_FOUND, Fixed::NotFound.body()),
        };
        let mut fields = vec![(TEXT.0, TEXT.1.to_owned())];
        // An authenticated client gets another response.
        fields.push(("Cache-Control", "no-store".to_owned()));
        if status == Status::UNAUTHORIZED {
            // RFC 9110, 11.6.1: a 401 has a challenge, whatever may be the use of it.
            let challenge = format!("Basic realm=\"{}\", charset=\"UTF-8\"", config.realm);
            fields.push(("WWW-Authenticate", challenge));
        }
        let borrowed: Vec<_> = fields
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let prepared = Prepared::new(status, &borrowed, body.as_bytes());
        Ok(Self {
            status,
            fields,
            body,
            prepared,
        })
    }

    /// Answers on an I/O thread.
    pub(crate) fn reply(&self, refusal: Refusal, reply: Reply<'_>) -> Inline {
        match refusal {
            Refusal::Denied => reply.prepared(&self.prepared),
            Refusal::TooMany(_) => reply.response(self.response(refusal)),
        }
    }

    /// Makes the response for a worker.
    pub(crate) fn response(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Denied => {
                let response = Response::text(self.status, self.body);
                let others = self.fields.iter().skip(1);
                others.fold(response, |response, (name, value)| {
                    response.header(name, value)
                })
            }
            Refusal::TooMany(wait) => {
                // Rounded up, at least 1: a client that retries after a rounded-down time would be
                // refused again.
                let seconds = wait.as_secs().saturating_add(1);
                Response::text(Status::TOO_MANY_REQUESTS, TOO_MANY)
                    .header("Retry-After", seconds.to_string())
                    .header("Cache-Control", "no-store")
            }
        }
    }
}
