//! `/uploads`: recent uploads and pins of a cache.

use maud::{Markup, html};
use samovar_http::http::Status;
use samovar_http::{Head, Response};
use samovar_storage::StoredCache;
use samovar_storage::metadata::{Pin, RecentPath};

use super::frame::redirect;
use super::text::{Age, Count, Date, Name, Size};
use super::url::parameter;
use super::{View, sign_in};
use crate::refusal::Refusal;

/// Maximum number of uploads on the page.
const UPLOAD_COUNT_MAX: usize = 100;

/// Parameter of the URL that asks a browser to sign in.
const SIGN_IN: &str = "sign-in";

/// Maximum number of pins on the page.
const PIN_COUNT_MAX: usize = 200;

impl View<'_> {
    /// Renders the page of recent uploads and pins. With the parameter `sign-in`, asks a browser
    /// for a token first, which it sends with later requests.
    pub(super) fn uploads(&self, head: Head<'_>) -> Response {
        let Some(stored) = self.cache.stored else {
            return self.nothing();
        };
        if parameter(head.query(), SIGN_IN).is_some() {
            return match self.shows_pins {
                true => redirect(&self.base.to("uploads")),
                false => sign_in::page("Basic realm=\"uploads\", charset=\"UTF-8\""),
            };
        }
        match self.uploads_of(stored) {
            Ok(main) => self.page("Uploads", "wide", main).response(Status::OK),
            // The function that found the error has reported it.
            Err(_refusal) => self.unreadable(),
        }
    }

    fn uploads_of(&self, stored: &StoredCache) -> Result<Markup, Refusal> {
        let mut recent = Vec::new();
        let newest = stored.recent(&|_| true, UPLOAD_COUNT_MAX);
        for upload in newest.map_err(|error| self.failed(&error))? {
            if self.has_page(&upload.path)? {
                recent.push(upload);
            }
        }
        let pins = match self.shows_pins {
            true => Some(self.pins_of(stored)?),
            false => None,
        };
        // A policy hides paths, so their total size is not shown either.
        let used = match self.reader().policy.is_open() {
            true => Some(stored.file_bytes().map_err(|error| self.failed(&error))?),
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
            (self.recent(&recent))
            (self.pins(pins.as_deref()))
        })
    }

    fn pins_of(&self, stored: &StoredCache) -> Result<Vec<Pin>, Refusal> {
        let mut pins = Vec::new();
        let all = stored.pins().map_err(|error| self.failed(&error))?;
        for pin in all.into_iter().take(PIN_COUNT_MAX) {
            if self.has_page(&pin.path)? {
                pins.push(pin);
            }
        }
        Ok(pins)
    }

    fn recent(&self, recent: &[RecentPath]) -> Markup {
        html! {
            section aria-labelledby="recent" {
                h2 id="recent" { "Recent uploads" }
                @if recent.is_empty() { p.soft { "None." } }
                @else { div.scrolls tabindex="0" role="group" aria-label="Recent uploads" { table {
                    thead { tr {
                        th scope="col" { "Path" }
                        th.number scope="col" { "NAR" }
                        th.number scope="col" { "File" }
                        th scope="col" { "Uploaded" }
                        th scope="col" { "Token" }
                    } }
                    tbody { @for upload in recent { tr {
                        td { (self.path_name(&upload.path, true)) }
                        td.number { (Size(upload.nar_size)) }
                        td.number { (Size(upload.file_size)) }
                        td.time { (Age::of(upload.registered_at)) }
                        td { @match &upload.token {
                            Some(token) => (Name(token.as_bytes())),
                            None => "–",
                        } }
                    } } }
                } } }
            }
        }
    }

    /// Renders the pins. `pins`: `None` if the client may not read them.
    fn pins(&self, pins: Option<&[Pin]>) -> Markup {
        let Some(pins) = pins else {
            return html! {
                section aria-labelledby="pins" {
                    h2 id="pins" { "Pins" }
                    p.soft {
                        "Only a token with the right read or pin shows them. "
                        a href={ (self.base.to("uploads")) "?" (SIGN_IN) "=" } { "Sign in" }
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
                        th.number scope="col" { "Generation" }
                        th scope="col" { "Path" }
                        th scope="col" { "Made" }
                        th scope="col" { "Expires" }
                    } }
                    tbody { @for pin in pins { tr {
                        th scope="row" { (Name(pin.name.as_bytes())) }
                        td.number { (pin.generation) }
                        td { (self.path_name(&pin.path, true)) }
                        td.time { (Age::of(pin.created_at)) }
                        td.time { @match pin.expires_at {
                            Some(at) => (Date(at)),
                            None => "never",
                        } }
                    } } }
                } } }
            }
        }
    }
}
