//! Responses to clients that access control refuses.

use std::borrow::Cow;
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Prepared, Response};
use samovar_metrics::Event;

use super::AccessError;
use super::config::{AccessConfig, RefuseWith};
use crate::prepared::Field;
use crate::refusal::{NOSNIFF, TEXT, text_response};

/// Reason why access control refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No configured method admits the client.
    Denied,
    /// The client sent too many requests or too many wrong passwords. Contains the time to wait
    /// before the next one.
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

/// Why the upload token of a request does not admit it. Contains a sentence for the client.
#[derive(Debug)]
pub(crate) enum TokenFault {
    /// The token is unknown, revoked, expired or for another cache.
    Invalid(String),
    /// The token is valid, but lacks the right.
    LacksRight(String),
}

/// The response to clients that are not admitted.
#[derive(Debug)]
pub(super) struct Denied {
    status: Status,
    body: &'static str,
    /// The value of `WWW-Authenticate`, which every 401 must have (RFC 9110, 11.6.1); `None` for a
    /// 403.
    pub(super) challenge: Option<String>,
    pub(super) prepared: Prepared,
}

const UNAUTHORIZED: &str = "The request has no valid credentials.\n";
const FORBIDDEN: &str = "Access is not allowed.\n";
const TOO_MANY: &str = "Too many requests. Try again later.\n";

/// The refusal must not be cached: an authenticated client gets another response.
const NO_STORE: Field = ("Cache-Control", "no-store");

impl Denied {
    /// Makes the response; `None` if the cache is hidden from such clients.
    pub(super) fn new(config: &AccessConfig) -> Result<Option<Self>, AccessError> {
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        if !config.realm.bytes().all(is_plain) {
            return Err(AccessError::Realm(config.realm.clone()));
        }
        let takes_credentials = config.users_file.is_some() || config.tokens_file.is_some();
        let asks = match config.refuse_with {
            RefuseWith::Fitting => takes_credentials,
            RefuseWith::Unauthorized => true,
            RefuseWith::Forbidden => false,
            RefuseWith::NotFound => return Ok(None),
        };
        let challenge =
            asks.then(|| format!("Basic realm=\"{}\", charset=\"UTF-8\"", config.realm));
        let (status, body) = match asks {
            true => (Status::UNAUTHORIZED, UNAUTHORIZED),
            false => (Status::FORBIDDEN, FORBIDDEN),
        };
        let mut fields = vec![TEXT, NOSNIFF, NO_STORE];
        fields.extend(
            challenge
                .as_deref()
                .map(|value| ("WWW-Authenticate", value)),
        );
        let prepared = Prepared::new(status, &fields, body.as_bytes());
        Ok(Some(Self {
            status,
            body,
            challenge,
            prepared,
        }))
    }

    /// Returns the response that a worker sends. The sentence of `fault` replaces the general one.
    pub(super) fn response(&self, fault: Option<&TokenFault>) -> Response {
        let text = match fault {
            Some(TokenFault::Invalid(text) | TokenFault::LacksRight(text)) => {
                format!("{text}\n").into()
            }
            None => Cow::Borrowed(self.body),
        };
        let (status, challenge) = match fault {
            // The client is authenticated.
            Some(TokenFault::LacksRight(_)) => (Status::FORBIDDEN, None),
            _ => (self.status, self.challenge.as_ref()),
        };
        let response = text_response(status, text).header(NO_STORE.0, NO_STORE.1);
        match challenge {
            Some(challenge) => response.header("WWW-Authenticate", challenge),
            None => response,
        }
    }
}

/// Makes the response to a client that must wait this long before its next request.
pub(super) fn too_many(wait: Duration) -> Response {
    // Rounded up, at least 1: a client that retries after a rounded-down time would be refused
    // again.
    let seconds = wait.as_secs().saturating_add(1);
    text_response(Status::TOO_MANY_REQUESTS, TOO_MANY)
        .header("Retry-After", seconds.to_string())
        .header(NO_STORE.0, NO_STORE.1)
}
