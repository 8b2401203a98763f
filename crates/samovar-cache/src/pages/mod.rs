//! The web interface of a cache: landing page, store paths and their files.
//!
//! # Theory of operation
//!
//! Pages are rendered on a worker, from the current state of the store, and not cached. Templates
//! are written in Rust ([`maud`]): text is escaped unless its type is [`maud::Markup`]. References
//! are relative ([`Base`]), so a proxy may mount a cache under any prefix. All pages work without
//! JavaScript. Style sheet and script are embedded in the program ([`assets`]), and the Content
//! Security Policy of the pages allows nothing else.
//!
//! Pages reveal no more about paths than narinfos do: an excluded path and an absent one give the
//! same page.

mod admin;
mod assets;
mod browse;
mod closure;
mod file;
mod frame;
mod landing;
pub(crate) mod link;
mod log;
mod log_text;
mod overview;
mod path;
mod recent;
mod search;
mod sign_in;
mod status;
mod status_storage;
mod status_upstreams;
mod text;
mod uploaded;
mod uploads;
mod url;
mod visible;

use maud::{Markup, html};
use samovar_http::http::Status;
use samovar_http::{Head, Response};
use samovar_metrics::Class;
use samovar_nix::{HashPart, StorePath};
use samovar_storage::StoredCache;

use crate::narinfo::narinfos::Narinfos;
use crate::reader::Reader;
use crate::refusal::{self, ABSENT, DAMAGED, Refusal};
use crate::route::Route;
use crate::route::page::PageRoute;
use crate::upstream::CacheUpstreams;
use frame::{NAME, Page, redirect};
use url::{Base, parameter};

pub use admin::admin;
pub(crate) use assets::answer as asset;
pub(crate) use overview::page as overview;
pub(crate) use sign_in::page as sign_in;

/// Configuration of the web interface of a cache.
#[derive(Debug, Clone, Default)]
pub struct PagesConfig {
    /// Name of the cache; if empty, the name of the program is shown.
    pub title: String,
    /// A description of one or two sentences; may be empty.
    pub description: String,
    /// URL of the cache for clients. If `None`, a script inserts the URL under which the browser
    /// reached the page.
    pub public_url: Option<String>,
    /// Whether clients need a user name and a password.
    pub has_passwords: bool,
    /// Title of the list of all caches of the server; empty for a general one.
    pub server_title: String,
    /// Description above the list of all caches of the server; may be empty.
    pub server_description: String,
}

/// The web interface of one cache, for one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) cache: PagedCache<'a>,
    pub(crate) base: Base,
    /// The text to search for; empty on other pages.
    pub(crate) asked: &'a str,
    /// Whether the client may read pins, which are private also in a public cache.
    pub(crate) shows_pins: bool,
}

/// A cache with a web interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PagedCache<'a> {
    pub(crate) narinfos: &'a Narinfos,
    pub(crate) config: &'a PagesConfig,
    pub(crate) path_prefix: &'a [u8],
    pub(crate) priority: u32,
    /// The uploaded paths; `None` if the cache takes no uploads.
    pub(crate) stored: Option<&'a StoredCache>,
    /// The upstreams; `None` if the cache has none.
    pub(crate) upstreams: Option<&'a CacheUpstreams>,
}

impl PagedCache<'_> {
    /// Returns the public keys of the upstreams whose paths have their signatures only.
    fn upstream_keys(&self) -> Vec<String> {
        self.upstreams
            .map(CacheUpstreams::client_keys)
            .unwrap_or_default()
    }

    /// Returns the public keys that clients must trust.
    fn client_keys(&self) -> Vec<String> {
        let mut keys = self.narinfos.signing.public_keys();
        keys.extend(self.upstream_keys());
        keys
    }

    fn reader(&self) -> &Reader {
        &self.narinfos.reader
    }
}

/// Whether a request that is not part of the cache protocol is answered with a page.
pub(crate) fn is_answered(head: Head<'_>, route: &Route) -> bool {
    matches!(route, Route::Page(_)) || wants_page(head)
}

/// Answers a request for which [`is_answered`] holds. `path`: without the prefix of the cache.
/// `shows_pins`: whether the client may read pins.
pub(crate) fn answer(
    cache: PagedCache<'_>,
    head: Head<'_>,
    (path, route): (&[u8], &Route),
    shows_pins: bool,
) -> Response {
    let base = Base::of(path);
    let asked = match route {
        Route::Page(PageRoute::Search) => parameter(head.query(), "q"),
        _ => None,
    };
    let asked = &*String::from_utf8_lossy(asked.as_deref().unwrap_or_default());
    let view = View {
        cache,
        base,
        asked,
        shows_pins,
    };
    view.answer(head, route).unwrap_or_else(|refusal| {
        if let Refusal::Store(_) = refusal {
            let shared = &cache.narinfos.reader.shared;
            shared.report(&format_args!("{head:?}"), refusal);
        }
        view.refused(refusal, route)
    })
}

/// Whether the client prefers HTML to plain text. Browsers send `text/html` in `Accept`, Nix does
/// not.
pub(crate) fn wants_page(head: Head<'_>) -> bool {
    let accepted = head.header("Accept");
    accepted.is_some_and(|accepted| accepted.windows(9).any(|part| part == b"text/html"))
}

/// Returns the hash part of the path that a page is about; `None` if it is about none.
fn hash_part_of(route: &Route) -> Option<HashPart> {
    match route {
        Route::Page(
            PageRoute::Path(hash_part)
            | PageRoute::Closure(hash_part)
            | PageRoute::BuildLogOf(hash_part)
            | PageRoute::Serve { hash_part, .. },
        ) => Some(*hash_part),
        _ => None,
    }
}

impl View<'_> {
    fn answer(&self, head: Head<'_>, route: &Route) -> Result<Response, Refusal> {
        let page = match route {
            Route::Page(page) => page,
            // The URL that clients push to.
            Route::Unknown(Class::Upload) if self.cache.stored.is_some() => {
                return Ok(redirect(&self.base.to("uploads")));
            }
            _ => return Ok(self.nothing()),
        };
        match page {
            // Redirect to the URL with a final slash: without it, relative references would replace
            // the last segment of the prefix.
            PageRoute::Prefix => Ok(redirect(&self.below_prefix(head))),
            PageRoute::Landing => Ok(landing::page(self)),
            PageRoute::Version => Ok(self.reader().shared.program.response()),
            PageRoute::Search => search::page(self, head),
            PageRoute::Uploads => Ok(uploads::page(self, head)),
            PageRoute::Path(hash_part) => path::page(self, *hash_part),
            PageRoute::Closure(hash_part) => closure::page(self, *hash_part),
            PageRoute::BuildLog(path) => log::page(self, path),
            PageRoute::BuildLogOf(hash_part) => log::of_path(self, *hash_part),
            PageRoute::Serve {
                hash_part,
                names,
                has_slash,
            } => {
                let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                let wanted = browse::Wanted {
                    hash_part: *hash_part,
                    names: &names,
                    has_slash: *has_slash,
                };
                browse::page(self, head, wanted)
            }
            PageRoute::Asset(name) => Ok(assets::answer(name).unwrap_or_else(|| self.nothing())),
            PageRoute::NoPath => Ok(self.no_path(None)),
        }
    }

    fn page<'b>(&'b self, title: &'b str, kind: &'static str, main: Markup) -> Page<'b> {
        Page {
            title,
            cache_name: self.name(),
            base: self.base,
            kind,
            search: Some(self.asked),
            main,
        }
    }

    fn reader(&self) -> &Reader {
        self.cache.reader()
    }

    fn name(&self) -> &str {
        match &*self.cache.config.title {
            "" => NAME,
            name => name,
        }
    }

    fn below_prefix(&self, head: Head<'_>) -> String {
        let path = head.path();
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        format!("./{}/", String::from_utf8_lossy(last))
    }

    /// Renders the page for a refused request. It is the same for an excluded path and an absent
    /// one.
    fn refused(&self, refusal: Refusal, route: &Route) -> Response {
        match refusal {
            Refusal::Quarantined => self
                .message(
                    Status::NOT_FOUND,
                    "Damaged",
                    "The files of this path are damaged on the server. The path will be served \
                     again when they are repaired.",
                )
                .header(DAMAGED.0, DAMAGED.1),
            refusal if refusal.is_absence() => self.no_path(hash_part_of(route)),
            _ => self.unreadable(),
        }
    }

    fn message(&self, status: Status, title: &str, text: &str) -> Response {
        let main = html! {
            h1 { (title) }
            p { (text) }
        };
        self.page(title, "message", main).response(status)
    }

    /// `hash_part`: the hash part of the path, if it is a valid one.
    fn no_path(&self, hash_part: Option<HashPart>) -> Response {
        let main = html! {
            h1 { "No such path" }
            p {
                "This cache has no store path with this hash. It may have been garbage collected."
            }
            @if let (Some(hash_part), Some(stored)) = (hash_part, self.cache.stored)
                && let Some(at) = stored.deleted_at(hash_part)
            {
                p { "The uploaded path was deleted on " (refusal::day(at)) "." }
            }
            @if let (Some(hash_part), Some(_)) = (hash_part, self.cache.upstreams) {
                p {
                    "Pages show only paths of this server. Clients may get the path from an "
                    "upstream cache: "
                    a href=(self.base.to(&format!("{hash_part}.narinfo"))) { "request it" }
                    ", and the response says what each upstream has answered."
                }
            }
        };
        let page = self.page("No such path", "message", main);
        page.response(Status::NOT_FOUND).header(ABSENT.0, ABSENT.1)
    }

    fn no_file(&self, path: &StorePath) -> Response {
        let main = html! {
            h1 { "No such file" }
            p {
                "There is no file with this name in "
                a href=(self.base.to_path(path.hash_part())) { (path.name()) } "."
            }
        };
        self.page("No such file", "message", main)
            .response(Status::NOT_FOUND)
    }

    fn nothing(&self) -> Response {
        let main = html! {
            h1 { "Page not found" }
            p {
                "This cache has no such page. Use the search above to find a store path by its "
                "name or hash."
            }
        };
        self.page("Page not found", "message", main)
            .response(Status::NOT_FOUND)
    }

    /// Renders the page that is shown while the store, or a part of it, cannot be read.
    pub(crate) fn unreadable(&self) -> Response {
        let text = "The store cannot be read. Try again later.";
        self.message(Status::SERVICE_UNAVAILABLE, "Temporarily unavailable", text)
            .header("Retry-After", "5")
    }
}
