//! Answers `POST upload/oidc`: exchanges the ID token of a CI job for a token of the storage.
//!
//! The message is in [`samovar_protocol::oidc`], what an ID token gives in [`crate::oidc`].

use std::io::Read as _;

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_protocol::names::TOKEN_PREFIX;
use samovar_protocol::oidc::{EXCHANGE_LEN_MAX, Exchange, Exchanged};
use samovar_storage::metadata::{Issued, exchanges};
use samovar_storage::token::TokenHash;

use super::{Context, refused, unavailable};
use crate::access::credentials::bearer;
use crate::access::new_token;
use crate::oidc::{Denial, Denied, Granted, Oidc};
use crate::refusal::{Fixed, text_response};
use crate::route::Route;
use crate::route::upload::UploadRoute;

/// Whether the request is an exchange with something that may be an ID token. Only a worker can
/// verify it.
pub(crate) fn has_id_token(head: Head<'_>, route: &Route) -> bool {
    *route == Route::Upload(UploadRoute::Oidc)
        && head.method() == Method::Post
        && bearer(head.headers()).is_some()
}

/// Returns whether the request is an exchange of an ID token that gives a token for this cache, so
/// that a client may learn that a hidden cache exists. Otherwise reports the ID token: only the
/// operator learns why it gives nothing. May wait for an issuer.
pub(crate) fn exchanges(context: &Context<'_>, head: Head<'_>, route: &Route) -> bool {
    let (Some(oidc), true) = (context.oidc, has_id_token(head, route)) else {
        return false;
    };
    let id_token = bearer(head.headers()).unwrap_or_default();
    let stored = context.stored;
    let verified = oidc.verify(id_token, stored.name(), stored.metadata().now());
    verified
        .inspect_err(|denied| report(context, oidc, denied))
        .is_ok()
}

/// Answers an exchange.
pub(super) fn answer(context: Context<'_>, request: &mut Request) -> Response {
    let head = request.head();
    if head.method() != Method::Post {
        return refused(Status::METHOD_NOT_ALLOWED, "use POST").header("Allow", "POST");
    }
    let Some(oidc) = context.oidc else {
        return refused(
            Status::NOT_FOUND,
            "this server takes no ID tokens: ask its operator for [oidc.NAME] in its \
             configuration, or for a token",
        );
    };
    let Some(id_token) = bearer(head.headers()) else {
        return refused(
            Status::UNAUTHORIZED,
            "an exchange needs the ID token of a job as the bearer token",
        )
        .header("WWW-Authenticate", "Bearer");
    };
    let granted = match oidc.verify(
        id_token,
        context.stored.name(),
        context.stored.metadata().now(),
    ) {
        Ok(granted) => granted,
        Err(denied) => return deny(&context, oidc, &denied),
    };
    let mut body = Vec::new();
    // Read one byte more than allowed, to detect a body that is too long.
    let mut source = request.reader().take(EXCHANGE_LEN_MAX as u64 + 1);
    if source.read_to_end(&mut body).is_err() {
        return refused(Status::BAD_REQUEST, "the body of the request was cut short");
    }
    match Exchange::parse(&body) {
        Ok(exchange) => exchange_for(context, oidc, &granted, &exchange),
        Err(error) => refused(Status::BAD_REQUEST, &error.to_string()),
    }
}

/// Adds or extends a token.
fn exchange_for(
    context: Context<'_>,
    oidc: &Oidc,
    granted: &Granted,
    exchange: &Exchange,
) -> Response {
    let Ok((random, _line)) = new_token(&granted.token.name) else {
        return Fixed::Unavailable.response();
    };
    let token = format!("{TOKEN_PREFIX}{random}");
    let renewed = exchange.renewed.as_deref();
    let Some(hash) = TokenHash::of(token.as_bytes()) else {
        return Fixed::Unavailable.response();
    };
    let issued = exchanges::issue(
        context.stored.metadata(),
        &hash,
        &granted.token,
        granted.lifetime_s,
        renewed
            .and_then(|renewed| TokenHash::of(renewed.as_bytes()))
            .as_ref(),
    );
    let (token, expires_at) = match issued {
        Ok(Issued::Added(expires_at)) => (token, expires_at),
        Ok(Issued::Extended(expires_at)) => (renewed.unwrap_or_default().to_owned(), expires_at),
        Ok(Issued::TooMany) => {
            let text = format!(
                "the job has {} tokens, the limit: use one of them, or wait until they expire",
                exchanges::COUNT_MAX
            );
            return refused(Status::TOO_MANY_REQUESTS, &text).header("Retry-After", "60");
        }
        Err(error) => return unavailable(context, &error),
    };
    oidc.count_granted(granted);
    let observer = &context.narinfos.reader.shared.observer;
    observer.event(&Event::IdTokenExchanged {
        token: &granted.token.name,
        rights: &granted.token.rights,
        address: context.address,
        cache: context.cache,
    });
    let exchanged = Exchanged {
        token,
        expires_at: u64::try_from(expires_at).unwrap_or_default(),
        valid_for_s: u64::try_from(granted.lifetime_s).unwrap_or_default(),
    };
    text_response(Status::OK, exchanged.text()).header("Cache-Control", "no-store")
}

/// Counts and logs an ID token that gives nothing.
fn report(context: &Context<'_>, oidc: &Oidc, denied: &Denied) {
    oidc.count_denied(denied);
    let (reason, subject) = match &denied.denial {
        Denial::Invalid(fault) => (format!("it {fault}"), None),
        Denial::NoRule { text, subject } => (text.clone(), Some(&**subject)),
        Denial::Unavailable { reason } => (
            format!("the keys of the issuer are unknown: {reason}"),
            None,
        ),
    };
    let observer = &context.narinfos.reader.shared.observer;
    observer.event(&Event::IdTokenRefused {
        issuer: denied.issuer.as_deref(),
        subject,
        address: context.address,
        cache: context.cache,
        reason: &reason,
    });
}

/// Reports an ID token that gives nothing, and returns the response.
fn deny(context: &Context<'_>, oidc: &Oidc, denied: &Denied) -> Response {
    report(context, oidc, denied);
    match &denied.denial {
        Denial::Invalid(fault) => refused(Status::UNAUTHORIZED, &format!("the ID token {fault}"))
            .header("WWW-Authenticate", "Bearer error=\"invalid_token\""),
        Denial::NoRule { text, .. } => refused(Status::FORBIDDEN, text),
        Denial::Unavailable { .. } => refused(
            Status::SERVICE_UNAVAILABLE,
            "the keys of the issuer cannot be fetched at the moment; the log of the server has \
             the cause",
        )
        .header("Retry-After", "5"),
    }
}
