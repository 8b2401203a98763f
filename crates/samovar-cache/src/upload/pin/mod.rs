//! Pins of clients: `upload/pin/<name>` and `upload/pin-events` (`docs/pins.md`).

mod condition;
pub(super) mod events;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod generations;
mod put;
mod read;

use std::sync::Arc;

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_nix::StorePath;
use samovar_protocol::names::{PinName, PinNameError};
use samovar_protocol::pins::{Version, removed};
use samovar_storage::pinning::{self, PinError};
use samovar_storage::token::Token;
use samovar_storage::{PutError, StorageError, StoredCache};

use super::authorize::{Right, client};
use super::get::is_denied;
use super::{Context, failed, refused};
use crate::known::pin_watch::{COUNT_MAX, TOKEN_COUNT_MAX, WaitError};
use crate::narinfo::narinfos::Narinfos;
use crate::refusal::{Fixed, text_response};

/// The methods of a pin.
const ALLOWED: &str = "GET, HEAD, PUT, DELETE";

/// Answers a request about a pin. `name`: `None` if the URL has an invalid name.
pub(super) fn answer(
    context: Context<'_>,
    request: &mut Request,
    name: Option<&PinName>,
) -> Response {
    let answer = match request.head().method() {
        Method::Get | Method::Head => read::answer(context, request.head(), name),
        Method::Put => put::answer(context, request, name),
        Method::Delete => delete_pin(context, request.head(), name),
        _ => Err(
            refused(Status::METHOD_NOT_ALLOWED, &format!("use {ALLOWED}")).header("Allow", ALLOWED),
        ),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

/// Answers a request for the list of pins.
pub(super) fn list(context: Context<'_>, request: &mut Request) -> Response {
    let answer = match request.head().method() {
        Method::Get | Method::Head => read::list(context, request.head()),
        // The name of the pin is missing.
        _ => return answer(context, request, None),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

/// Removes a pin, or one generation of it.
fn delete_pin(
    context: Context<'_>,
    head: Head<'_>,
    name: Option<&PinName>,
) -> Result<Response, Response> {
    let token = client(context, head, Right::Pin)?;
    let name = valid(name)?;
    let [generation] = parameters(head, ["generation"])?;
    let condition = condition::of(head).map_err(|fault| bad_request(&fault))?;
    let outcome = pinning::unpin(context.stored, &token, name, generation, condition);
    let count = outcome.map_err(|error| refusal(context, head, &token, error))?;
    if count > 0 {
        let shared = &context.narinfos.reader.shared;
        shared.pin_watch.change();
        shared.observer.event(&Event::PinRemoved {
            pin: name.as_str(),
            count,
            by: context.uploader(&token),
        });
    }
    Ok(text_response(Status::OK, removed(count)))
}

/// Returns whether the cache has this uploaded path, and no policy hides it.
fn is_readable(context: Context<'_>, path: &StorePath) -> Result<bool, StorageError> {
    let found = context.stored.lookup(path.hash_part())?;
    Ok(found.is_some_and(|found| found.path == *path && !is_denied(context, &found)))
}

/// Returns the context of requests to a cache, for the time after the request was handled.
fn context_of<'a>(stored: &'a StoredCache, narinfos: &'a Arc<Narinfos>) -> Context<'a> {
    Context {
        stored,
        narinfos,
        store_dir: narinfos.reader.shared.store.store_dir(),
        cache_info: &[],
        is_reader: false,
        address: None,
        oidc: None,
        cache: None,
        upstreams: None,
    }
}

/// Returns the response to a request that cannot wait, or whose socket cannot follow pins.
fn busy(error: &WaitError) -> Response {
    match error {
        WaitError::TooMany => refused(
            Status::TOO_MANY_REQUESTS,
            &format!(
                "too many requests wait for changes of pins: {TOKEN_COUNT_MAX} with one token, or \
                 {COUNT_MAX} in total; repeat the request later, or without wait"
            ),
        )
        .header("Retry-After", "5"),
        WaitError::Thread(_failed) => Fixed::Unavailable.response(),
    }
}

fn valid(name: Option<&PinName>) -> Result<&PinName, Response> {
    name.ok_or_else(|| {
        bad_request(&format!(
            "{PinNameError}; in the URL, the name is percent-encoded UTF-8, also its slashes"
        ))
    })
}

/// Reports an error, and returns the response to it.
fn refusal(context: Context<'_>, head: Head<'_>, token: &Token, error: PinError) -> Response {
    let observer = &context.narinfos.reader.shared.observer;
    let status = match error {
        PinError::Storage(error) => {
            observer.event(&Event::StorageFailed(&error));
            return failed(head, &PutError::Storage(error));
        }
        // Not reported: clients that change a pin at the same time expect it.
        PinError::Changed { pin, newest } => return changed(&pin, newest),
        PinError::NotUploaded(_) => Status::CONFLICT,
        PinError::TooMany => Status::CONTENT_TOO_LARGE,
        _ => Status::FORBIDDEN,
    };
    context.refuse(head, token, None, &error);
    refused(status, &error.to_string())
}

/// Returns the response to a request whose condition does not hold. `newest`: the newest generation
/// of the pin.
fn changed(pin: &str, newest: Option<Version>) -> Response {
    let pin = pin.to_owned();
    let text = PinError::Changed { pin, newest }.to_string();
    let response = refused(Status::PRECONDITION_FAILED, &text);
    match newest {
        Some(newest) => response.header("ETag", newest.tag()),
        None => response,
    }
}

/// Parses the query of the URL. Returns the values of the parameters with these names, which are
/// numbers of at least 1.
///
/// # Errors
///
/// The response names the parameter and the fix.
fn parameters<const COUNT: usize>(
    head: Head<'_>,
    names: [&str; COUNT],
) -> Result<[Option<i64>; COUNT], Response> {
    let query = String::from_utf8_lossy(head.query().unwrap_or_default());
    parse(&query, names).map_err(|fault| bad_request(&fault))
}

fn parse<const COUNT: usize>(
    query: &str,
    names: [&str; COUNT],
) -> Result<[Option<i64>; COUNT], String> {
    let mut values = [None; COUNT];
    for text in query.split('&').filter(|text| !text.is_empty()) {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let at = names.iter().position(|known| *known == name);
        let Some(at) = at else {
            let known = match names.is_empty() {
                true => "none".to_owned(),
                false => names.join(" and "),
            };
            return Err(format!("unknown parameter {name:?}: use {known}"));
        };
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        if values[at].is_some() {
            return Err(format!("the parameter {name} occurs twice: send it once"));
        }
        let number: Option<i64> = value.parse().ok().filter(|number| is_number && *number > 0);
        values[at] = number;
        if number.is_none() {
            return Err(number_needed(name, value));
        }
    }
    Ok(values)
}

fn number_needed(name: &str, value: &str) -> String {
    format!("the parameter {name} is {value:?}: use a number of at least 1")
}

fn bad_request(text: &str) -> Response {
    refused(Status::BAD_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_in_a_query() {
        let parse = |query| parse(query, ["keep", "expires"]);
        assert_eq!(parse(""), Ok([None, None]));
        assert_eq!(parse("keep=1"), Ok([Some(1), None]));
        assert_eq!(
            parse("expires=86400&keep=9223372036854775807"),
            Ok([Some(i64::MAX), Some(86_400)])
        );
        for wrong in [
            "keep",
            "keep=",
            "keep=0",
            "keep=+1",
            "keep=-1",
            "keep=1d",
            "keep=9223372036854775808",
            "expires=0",
            "keeep=1",
            "expires=1&x",
            "keep=1&keep=1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
