//! `/uploads`: recent uploads and pins of a cache.

use maud::{Markup, html};
use samovar_http::http::Status;
use samovar_http::{Head, Response};
use samovar_storage::metadata::{Pin, RecentPath, RecentPush, limits, overview};
use samovar_storage::{StoredCache, browse};

use super::frame::redirect;
use super::text::{Age, Count, Date, Name, Size, path_name};
use super::url::{Base, parameter};
use super::visible::{failed, has_page};
use super::{PagedCache, View};
use crate::refusal::Refusal;

/// Maximum number of pushes on the page.
const PUSH_COUNT_MAX: usize = 100;

/// Maximum number of paths that are listed for one push, below the path that was pushed.
const OTHER_COUNT_MAX: usize = 100;

/// Maximum number of such paths on the page.
const ALL_OTHER_COUNT_MAX: usize = 1000;

/// The same if the policy must decide about each of them, which takes a look-up.
const DECIDED_COUNT_MAX: usize = 200;

/// Parameter of the URL that asks a browser to sign in.
const SIGN_IN: &str = "sign-in";

/// Maximum number of pins on the page.
const PIN_COUNT_MAX: usize = 200;

/// Renders the page of recent uploads and pins. With the parameter `sign-in`, asks a browser for a
/// token first, which it sends with later requests.
pub(super) fn page(view: &View<'_>, head: Head<'_>) -> Response {
    let Some(stored) = view.cache.stored else {
        return view.nothing();
    };
    if parameter(head.query(), SIGN_IN).is_some() {
        return match view.shows_pins {
            true => redirect(&view.base.to("uploads")),
            false => ask_to_sign_in(view),
        };
    }
    match uploads_of(view, stored) {
        Ok(main) => view.page("Uploads", "wide", main).response(Status::OK),
        // The function that found the error has reported it.
        Err(_refusal) => view.unreadable(),
    }
}

/// Asks the browser for a token. The page is shown if the user has none.
fn ask_to_sign_in(view: &View<'_>) -> Response {
    let uploads = view.base.to("uploads");
    let main = html! {
        h1 { "Not signed in" }
        p {
            "To see the pins of this cache, sign in with any user name. The password is a "
            "token with the right read or pin, which the operator of the cache can give you."
        }
        ul.actions {
            li.first { a href="" { "Sign in" } }
            li { a href=(uploads) { "Back to the uploads" } }
        }
    };
    view.page("Not signed in", "message", main)
        .response(Status::UNAUTHORIZED)
        .header(
            "WWW-Authenticate",
            "Basic realm=\"uploads\", charset=\"UTF-8\"",
        )
}

fn uploads_of(view: &View<'_>, stored: &StoredCache) -> Result<Markup, Refusal> {
    let pushes = pushes_of(&view.cache, stored)?;
    let pins = match view.shows_pins {
        true => Some(pins_of(&view.cache, stored)?),
        false => None,
    };
    // A policy hides paths, so their total size is not shown either.
    let used = match view.reader().policy.is_open() {
        true => Some(
            limits::used_bytes(stored.metadata(), stored.id())
                .map_err(|error| failed(view.reader(), &error))?,
        ),
        false => None,
    };
    Ok(html! {
        h1 { "Uploads" }
        dl.facts {
            @if let Some(used) = used { div { dt { "Size" } dd { (Size(used)) } } }
            div { dt { "Quota" } dd {
                @match stored.quota() {
                    Some(quota) => (Size(quota)),
                    None => "none",
                }
            } }
        }
        (pushes_section(view.base, &pushes, pins.as_deref().unwrap_or_default()))
        (pins_section(view, pins.as_deref()))
    })
}

/// Returns the last pushes, without hidden paths. Visible paths that were pushed together with a
/// hidden path count as separate pushes.
fn pushes_of(cache: &PagedCache<'_>, stored: &StoredCache) -> Result<Vec<RecentPush>, Refusal> {
    let is_open = cache.reader().policy.is_open();
    let other_count_max = match is_open {
        true => ALL_OTHER_COUNT_MAX,
        false => DECIDED_COUNT_MAX,
    };
    let pushes = overview::recent_pushes(
        stored.metadata(),
        stored.id(),
        PUSH_COUNT_MAX,
        other_count_max,
    );
    let pushes = pushes.map_err(|error| failed(cache.reader(), &error))?;
    if is_open {
        return Ok(pushes);
    }
    let mut shown = Vec::new();
    for push in pushes {
        let mut others = Vec::new();
        for other in push.others {
            if has_page(cache, &other.path)? {
                others.push(other);
            }
        }
        let alone = |path| RecentPush {
            path,
            others: Vec::new(),
            other_count: 0,
        };
        match has_page(cache, &push.path.path)? {
            true => shown.push(RecentPush {
                other_count: others.len() as u64,
                path: push.path,
                others,
            }),
            false => shown.extend(others.into_iter().map(alone)),
        }
    }
    shown.truncate(PUSH_COUNT_MAX);
    Ok(shown)
}

fn pins_of(cache: &PagedCache<'_>, stored: &StoredCache) -> Result<Vec<Pin>, Refusal> {
    let mut pins = Vec::new();
    let all = browse::pins(stored).map_err(|error| failed(cache.reader(), &error))?;
    for pin in all.into_iter().take(PIN_COUNT_MAX) {
        if has_page(cache, &pin.path)? {
            pins.push(pin);
        }
    }
    Ok(pins)
}

/// Renders the last pushes, and the pins of each path that is among `pins`.
fn pushes_section(base: Base, pushes: &[RecentPush], pins: &[Pin]) -> Markup {
    html! {
        section aria-labelledby="recent" {
            h2 id="recent" { "Recent uploads" }
            @if pushes.is_empty() { p.soft { "None." } }
            @else { div.scrolls tabindex="0" role="group" aria-label="Recent uploads" { table {
                thead { tr {
                    th scope="col" { "Path" }
                    th.number.minor scope="col" { "NAR" }
                    th.number.minor scope="col" { "File" }
                    th scope="col" { "Uploaded" }
                    th.minor scope="col" { "Token" }
                } }
                tbody { @for push in pushes { (push_row(base, push, pins)) } }
            } } }
        }
    }
}

fn push_row(base: Base, push: &RecentPush, pins: &[Pin]) -> Markup {
    let RecentPath {
        path,
        registered_at,
        nar_size,
        file_size,
        token,
    } = &push.path;
    let pins = pins.iter().filter(|pin| pin.path == *path);
    html! {
        tr {
            td {
                (path_name(base, path, true))
                @for pin in pins {
                    span.pin { "pinned as " (Name(pin.name.as_bytes())) "@" (pin.generation) }
                }
                (others_of(base, push))
            }
            td.number.minor { (Size(*nar_size)) }
            td.number.minor { (Size(*file_size)) }
            td.time { (Age::of(*registered_at)) }
            td.minor { @match token {
                Some(token) => (Name(token.as_bytes())),
                None => "–",
            } }
        }
    }
}

/// Renders the paths that were pushed with a path, folded.
fn others_of(base: Base, push: &RecentPush) -> Markup {
    let listed = push.others.iter().take(OTHER_COUNT_MAX);
    let rest = push.other_count.saturating_sub(listed.len() as u64);
    html! {
        @if push.other_count > 0 {
            details.others {
                summary { (Count(push.other_count).of("path")) " of its closure" }
                ul {
                    @for other in listed { li { (path_name(base, &other.path, true)) } }
                    @if rest > 0 { li.soft { (Count(rest)) " more" } }
                }
            }
        }
    }
}

/// Renders the pins. `pins`: `None` if the client may not read them.
fn pins_section(view: &View<'_>, pins: Option<&[Pin]>) -> Markup {
    let Some(pins) = pins else {
        return html! {
            section aria-labelledby="pins" {
                h2 id="pins" { "Pins" }
                p.soft {
                    "Only a token with the right read or pin shows them. "
                    a href={ (view.base.to("uploads")) "?" (SIGN_IN) "=" } { "Sign in" }
                    " with any user name, and the token as the password."
                }
            }
        };
    };
    html! {
        section aria-labelledby="pins" {
            h2 id="pins" { "Pins " span.soft { (Count(pins.len() as u64)) } }
            @if pins.is_empty() { p.soft { "None." } }
            @else { div.scrolls tabindex="0" role="group" aria-label="Pins" { table {
                thead { tr {
                    th scope="col" { "Pin" }
                    th.number.minor scope="col" { "Generation" }
                    th scope="col" { "Path" }
                    th.minor scope="col" { "Made" }
                    th scope="col" { "Expires" }
                } }
                tbody { @for pin in pins { tr {
                    th scope="row" { (Name(pin.name.as_bytes())) }
                    td.number.minor { (pin.generation) }
                    td { (path_name(view.base, &pin.path, true)) }
                    td.time.minor { (Age::of(pin.created_at)) }
                    td.time { @match pin.expires_at {
                        Some(at) => (Date(at)),
                        None => "never",
                    } }
                } } }
            } } }
        }
    }
}
