//! The list of caches, at `/` if no cache has that URL.

use maud::{Markup, PreEscaped, html};
use samovar_http::Response;
use samovar_http::http::Status;

use super::assets::MARK;
use super::frame::Page;
use super::url::Base;
use super::{PagedCache, PagesConfig};

/// Renders the list of caches, each with whether the client must authenticate to read it.
pub(crate) fn page(caches: &[(PagedCache<'_>, bool)]) -> Response {
    // All caches have the same texts of the server.
    let config = caches.first().map(|(cache, _)| cache.config);
    let text = |of: fn(&PagesConfig) -> &str, default| match config.map(of) {
        None | Some("") => default,
        Some(text) => text,
    };
    let title = text(|config| &config.server_title, "Binary caches");
    let description = text(
        |config| &config.server_description,
        "Each cache has its own keys and setup instructions.",
    );
    let main = html! {
        div.hero {
            (PreEscaped(MARK))
            div {
                h1 { (title) }
                p.lead { (description) }
            }
        }
        ul.caches { @for (cache, is_locked) in caches { (entry(cache, *is_locked)) } }
    };
    Page {
        title: "",
        cache_name: title,
        base: Base::of(b"/"),
        kind: "landing",
        search: None,
        main,
    }
    .response(Status::OK)
    // The list depends on the client.
    .header("Vary", "Authorization")
}

fn entry(cache: &PagedCache<'_>, is_locked: bool) -> Markup {
    let prefix = String::from_utf8_lossy(cache.path_prefix);
    // The texts of a cache are for clients that may read it.
    let (title, description) = match is_locked {
        true => ("", ""),
        false => (&*cache.config.title, &*cache.config.description),
    };
    html! {
        li {
            // A prefix is a percent-encoded path that begins with a slash.
            a href={ "." (prefix) "/" } { @if title.is_empty() { (prefix) "/" } @else { (title) } }
            @if !title.is_empty() { " " code.soft { (prefix) "/" } }
            @if is_locked { p.soft { "Needs a user name and a password." } }
            @if !description.is_empty() { p { (description) } }
        }
    }
}
