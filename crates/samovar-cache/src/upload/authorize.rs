//! Finds the token of a request, and checks its rights.

use samovar_http::http::Status;
use samovar_http::{Head, Response};
use samovar_protocol::names::TOKEN_PREFIX;
use samovar_storage::StoredCache;
use samovar_storage::token::{Rights, Token};

use super::{Context, refused, unavailable};
use crate::access::credentials::Credentials;

/// The right that a request about uploads needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Read,
    Push,
    Pin,
    /// Reading pins, which the rights to read and to pin both permit.
    ReadPins,
}

impl Right {
    const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Push => "push",
            Self::Pin => "pin",
            Self::ReadPins => "read pins",
        }
    }

    const fn participle(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Push => "uploading",
            Self::Pin => "pinning",
            Self::ReadPins => "reading pins",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Push => "push",
            Self::Pin => "pin",
            Self::ReadPins => "read or pin",
        }
    }

    const fn is_in(self, rights: Rights) -> bool {
        match self {
            Self::Read => rights.read,
            Self::Push => rights.push,
            Self::Pin => rights.pin,
            Self::ReadPins => rights.read || rights.pin,
        }
    }

    /// Returns the sentence for a client whose token lacks the right.
    pub(super) fn refusal(self, token: &Token) -> String {
        format!(
            "the token {:?} may not {}: it has the right {}; ask the operator of the cache for a \
             token with the right {}",
            token.name,
            self.verb(),
            token.rights,
            self.name()
        )
    }
}

/// Returns whether the request has a token that may read pins. Only a worker can check the token,
/// in the database.
pub(crate) fn may_read_pins(stored: &StoredCache, head: Head<'_>) -> bool {
    let token = with_token(head, |text| stored.authorize(text, stored.metadata().now()));
    matches!(token, Some(Ok(Ok(token))) if Right::ReadPins.is_in(token.rights))
}

/// Returns the client's token if it has the right, otherwise the refusal. If the client may read
/// without the token, adds the right to read to the rights of the token.
pub(super) fn client(
    context: Context<'_>,
    head: Head<'_>,
    right: Right,
) -> Result<Token, Response> {
    let token = with_token(head, |text| {
        context
            .stored
            .authorize(text, context.stored.metadata().now())
    });
    let refusal = match token {
        Some(Ok(Ok(mut token))) if right.is_in(token.rights) => {
            token.rights.read |= context.is_reader;
            return Ok(token);
        }
        Some(Ok(Ok(token))) => {
            let reason = right.refusal(&token);
            context.refuse(head, &token, None, &reason);
            refused(Status::FORBIDDEN, &reason)
        }
        Some(Ok(Err(denied))) => unauthorized(&denied.to_string()),
        Some(Err(error)) => return Err(unavailable(context, &error)),
        None if Credentials::of(head.headers()).is_some() => unauthorized(&format!(
            "the password is not a token of the storage, which begins with {TOKEN_PREFIX}: ask \
             the operator of the cache for one, who makes it with `samovar token create`"
        )),
        None => unauthorized(&format!(
            "{} needs a token as the password for this host in netrc: ask the operator of the \
             cache for one, who makes it with `samovar token create`",
            right.participle()
        )),
    };
    context.stored.count_unauthorized();
    Err(refusal)
}

/// Calls `look_up` with the text of the request's token. Returns `None` if the request has no
/// token.
pub(super) fn with_token<T>(head: Head<'_>, look_up: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let is_token = |text: &[u8]| text.starts_with(TOKEN_PREFIX.as_bytes());
    match Credentials::of(head.headers())? {
        Credentials::Bearer(text) if is_token(text) => Some(look_up(text)),
        Credentials::Basic(basic) if is_token(basic.password()) => Some(look_up(basic.password())),
        _ => None,
    }
}

pub(super) fn unauthorized(text: &str) -> Response {
    refused(Status::UNAUTHORIZED, text).header("WWW-Authenticate", "Basic realm=\"uploads\"")
}
