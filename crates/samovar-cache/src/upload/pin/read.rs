//! `GET upload/pin/<name>` and `GET upload/pin/`: the generations of a pin, and the list of pins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::{Body, Head, Response};
use samovar_protocol::names::PinName;
use samovar_protocol::pins::{Condition, LINEAGES, Newest, Tags, Version};
use samovar_storage::StoredCache;
use samovar_storage::metadata::{Pin, pins, tokens};
use samovar_storage::pinning::PinError;
use samovar_storage::token::Token;

use super::generations::{generations_body, page};
use super::{bad_request, busy, changed, condition, context_of, is_readable, parameters, valid};
use crate::known::pin_watch::{Question, Waiter};
use crate::narinfo::narinfos::Narinfos;
use crate::refusal::{NOSNIFF, TEXT, text_response};
use crate::upload::authorize::{Right, client, unauthorized};
use crate::upload::{Context, refused, unavailable};

/// Keeps shared caches from storing a response, which is private.
const NO_STORE: &str = "no-store";

/// Maximum number of lineages in a response. They bound the length of its header.
const LINEAGE_COUNT_MAX: u32 = 16;

/// Maximum value of the parameter `wait`.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// Responds with the generations of a pin.
pub(super) fn answer(
    context: Context<'_>,
    head: Head<'_>,
    name: Option<&PinName>,
) -> Result<Response, Response> {
    let token = client(context, head, Right::ReadPins)?;
    let name = valid(name)?;
    let [wait] = parameters(head, ["wait"])?;
    let condition = condition::of(head).map_err(|fault| bad_request(&fault))?;
    let wait = wait.map(|wait| wait_time(wait, &condition)).transpose()?;
    let watch = &context.narinfos.reader.shared.pin_watch;
    let change_count = watch.change_count();
    let unchanged = match current(context, name, &condition)? {
        Current::Response(response) => return Ok(response),
        Current::Unchanged(unchanged) => unchanged,
    };
    let Some(wait) = wait else {
        return Ok(unchanged.response());
    };
    let waiter = Waiter {
        stored: context.stored.clone(),
        name: name.to_string(),
        token: token.id,
        newest: unchanged.newest,
        deadline: Instant::now() + wait,
        question: Box::new(Reading {
            narinfos: Arc::clone(context.narinfos),
            stored: context.stored.clone(),
            token,
            name: name.clone(),
            condition,
            unchanged,
        }),
    };
    let waiting = watch.wait(waiter, change_count);
    waiting.map_err(|error| busy(&error))
}

/// Reads the generations of a pin, and evaluates the condition of a request.
fn current(
    context: Context<'_>,
    name: &PinName,
    condition: &Condition,
) -> Result<Current, Response> {
    let page = page(context, name, i64::MAX)?;
    let (Some(newest), Some(shown)) = (page.newest, page.pins.first()) else {
        let text = format!("the cache has no pin {:?}", name.as_str());
        return Err(refused(Status::NOT_FOUND, &text));
    };
    let generation = Some(shown.version());
    let is_in = |tags: &Option<Tags>| tags.as_ref().map(|tags| tags.contain(generation));
    if is_in(&condition.only) == Some(false) {
        return Err(changed(name.as_str(), generation));
    }
    if is_in(&condition.except) == Some(true) {
        return Ok(Current::Unchanged(Unchanged {
            newest,
            shown: shown.version(),
        }));
    }
    let (number, shown) = (shown.generation, shown.version());
    let lineages = lineages(context, name, number)?;
    let response = Response::new(Status::OK, generations_body(context, name, page));
    let response = response.header(TEXT.0, TEXT.1);
    let response = response
        .header(NOSNIFF.0, NOSNIFF.1)
        .header(LINEAGES, lineages);
    Ok(Current::Response(with_fields(response, shown)))
}

/// Returns the entity tags of the oldest generation of each lineage, newest first.
fn lineages(context: Context<'_>, name: &PinName, newest: i64) -> Result<String, Response> {
    let (metadata, cache) = (context.stored.metadata(), context.stored.id());
    let lineages = pins::lineages(metadata, cache, name, newest, LINEAGE_COUNT_MAX);
    let lineages = lineages.map_err(|error| unavailable(context, &error))?;
    Ok(Tags::Listed(lineages).text())
}

/// Responds with the newest generation of each pin.
pub(super) fn list(context: Context<'_>, head: Head<'_>) -> Result<Response, Response> {
    client(context, head, Right::ReadPins)?;
    let [] = parameters(head, [])?;
    let pins = pins::newest(context.stored.metadata(), context.stored.id());
    let pins = pins.map_err(|error| unavailable(context, &error))?;
    let pins = readable_pins(context, pins)?;
    let newest = pins.into_iter().map(|pin| Newest {
        name: pin.name,
        number: pin.generation.unsigned_abs(),
        path: pin.path,
        created_at: pin.created_at,
    });
    let text = Newest::text(&newest.collect::<Vec<_>>());
    Ok(text_response(Status::OK, text).header("Cache-Control", NO_STORE))
}

/// Removes the pins of paths that a policy hides.
pub(super) fn readable_pins(
    context: Context<'_>,
    mut pins: Vec<Pin>,
) -> Result<Vec<Pin>, Response> {
    if context.narinfos.reader.policy.is_open() {
        return Ok(pins);
    }
    let mut failure = None;
    pins.retain(|pin| {
        let readable = is_readable(context, &pin.path);
        readable.unwrap_or_else(|error| {
            failure = Some(error);
            false
        })
    });
    match failure {
        Some(error) => Err(unavailable(context, &error)),
        None => Ok(pins),
    }
}

/// The outcome of reading a pin.
enum Current {
    Response(Response),
    /// The client knows the newest generation.
    Unchanged(Unchanged),
}

/// A pin whose newest generation the client knows.
#[derive(Clone, Copy)]
struct Unchanged {
    /// The newest generation.
    newest: i64,
    /// The newest generation that no policy hides.
    shown: Version,
}

impl Unchanged {
    fn response(self) -> Response {
        let response = Response::new(Status::NOT_MODIFIED, Body::Empty);
        with_fields(response, self.shown)
    }
}

/// A waiting request.
struct Reading {
    narinfos: Arc<Narinfos>,
    stored: StoredCache,
    token: Token,
    name: PinName,
    condition: Condition,
    unchanged: Unchanged,
}

impl Question for Reading {
    fn answer(&self) -> Option<Response> {
        let context = context_of(&self.stored, &self.narinfos);
        // The token may have been revoked while the request was waiting.
        match tokens::is_valid(self.stored.metadata(), self.token.id) {
            Ok(true) => {}
            Ok(false) => return Some(unauthorized(&PinError::TokenInvalid.to_string())),
            Err(error) => return Some(unavailable(context, &error)),
        }
        match current(context, &self.name, &self.condition) {
            Ok(Current::Unchanged(_)) => None,
            Ok(Current::Response(response)) | Err(response) => Some(response),
        }
    }

    fn unchanged(&self) -> Response {
        self.unchanged.response()
    }
}

/// Returns the time that a request may wait. `seconds`: its parameter `wait`.
fn wait_time(seconds: i64, condition: &Condition) -> Result<Duration, Response> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= WAIT_TIME_MAX.as_secs() => match condition.except {
            Some(_) => Ok(Duration::from_secs(seconds)),
            None => Err(bad_request(
                "the parameter wait needs If-None-Match with the generation that the client knows",
            )),
        },
        _ => Err(bad_request(&format!(
            "the parameter wait is {seconds}: use a number of seconds from 1 to {}",
            WAIT_TIME_MAX.as_secs()
        ))),
    }
}

/// Adds the header fields of a response about a pin with this newest generation.
fn with_fields(response: Response, newest: Version) -> Response {
    response
        .header("ETag", newest.tag())
        .header("Cache-Control", NO_STORE)
}
