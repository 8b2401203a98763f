//! The list of caches, at `/` if no cache has that URL.

use maud::{Markup, PreEscaped, html};
use samovar_http::Response;
use samovar_http::http::Status;

use super::PagedCache;
use super::assets::MARK;
use super::frame::Page;
use super::url::Base;

/// Renders the list of caches.
pub(crate) fn page(caches: &[PagedCache<'_>]) -> Response {
    let main = html! {
        div.hero {
            (PreEscaped(MARK))
            div {
                h1 { "Binary caches" }
                p.lead { "Each cache has its own keys and setup instructions." }
            }
        }
        ul.caches { @for cache in caches { (entry(cache)) } }
    };
    Page {
        title: "",
        cache_name: "Binary caches",
        base: Base::of(b"/"),
        kind: "landing",
        has_search: false,
        main,
    }
    .response(Status::OK)
    // The list contains only caches that the client may read.
    .header("Vary", "Authorization")
}

fn entry(cache: &PagedCache<'_>) -> Markup {
    let prefix = String::from_utf8_lossy(cache.path_prefix);
    let (title, description) = (&cache.config.title, &cache.config.description);
    html! {
        li {
            // A prefix is a percent-encoded path that begins with a slash.
            a href={ "." (prefix) "/" } { @if title.is_empty() { (prefix) "/" } @else { (title) } }
            @if !title.is_empty() { " " code.soft { (prefix) "/" } }
            @if !description.is_empty() { p { (description) } }
        }
    }
}
