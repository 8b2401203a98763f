//! The common frame of all pages, and their response headers.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use samovar_http::http::Status;
use samovar_http::{Body, Response};

use super::assets::{ICON, MARK, SCRIPT, STYLE};
use super::url::Base;

/// Allows only the embedded style sheet and script, and no framing by other pages.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
                      connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// The name on pages that have no name of a cache.
pub(crate) const NAME: &str = "Samovar";

/// The content of a page, without the common frame.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// Title of the page, which precedes the name of the cache in the title of the window.
    pub(crate) title: &'a str,
    /// Name of the cache.
    pub(crate) cache_name: &'a str,
    /// The root of the cache, relative to the page.
    pub(crate) base: Base,
    /// The page's class in the style sheet.
    pub(crate) kind: &'static str,
    /// The text in the search form; `None` if the page has no such form.
    pub(crate) search: Option<&'a str>,
    /// The main content of the page.
    pub(crate) main: Markup,
}

impl Page<'_> {
    /// Renders the page into a response.
    pub(crate) fn response(&self, status: Status) -> Response {
        self.response_with(status, self.render().0)
    }

    /// Makes the response of a page from its HTML, all of it or piece by piece.
    pub(crate) fn response_with(&self, status: Status, html: impl Into<Body>) -> Response {
        Response::new(status, html)
            .header("Content-Type", "text/html; charset=utf-8")
            .header("Content-Security-Policy", POLICY)
            .header("X-Content-Type-Options", "nosniff")
            .header("X-Frame-Options", "DENY")
            .header("Referrer-Policy", "no-referrer")
            .header("Cross-Origin-Opener-Policy", "same-origin")
            .header("Cross-Origin-Resource-Policy", "same-origin")
            .header("Cache-Control", "no-cache")
    }

    /// Renders the whole page.
    pub(crate) fn render(&self) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="robots" content="noindex";
                    title {
                        @if !self.title.is_empty() { (self.title) " · " }
                        (self.cache_name)
                    }
                    link rel="stylesheet" href=(self.base.to(&STYLE.path()));
                    link rel="icon" type="image/svg+xml" href=(self.base.to(&ICON.path()));
                    script src=(self.base.to(&SCRIPT.path())) defer {}
                }
                body class=(self.kind) {
                    a.skip href="#main" { "Skip to content" }
                    header {
                        a.home href=(self.base.to("")) {
                            (PreEscaped(MARK))
                            span { (self.cache_name) }
                        }
                        @if let Some(text) = self.search { (search_form(self.base, text)) }
                    }
                    main id="main" { (self.main) }
                    footer {
                        p {
                            "Served by Samovar " (env!("CARGO_PKG_VERSION"))
                            ", a binary cache for Nix."
                        }
                    }
                }
            }
        }
    }
}

/// Renders the search form, which works without JavaScript.
fn search_form(base: Base, text: &str) -> Markup {
    html! {
        form.search role="search" action=(base.to("search")) method="get" {
            label.unseen for="q" { "Find a path by its name, hash or store path" }
            input id="q" type="search" name="q" value=(text) required maxlength="1000"
                placeholder="Name, hash or store path" autocomplete="off" autocapitalize="off"
                spellcheck="false";
            button type="submit" { "Find" }
        }
    }
}

/// Makes a redirect within the cache. `location` comes from [`Base`].
pub(crate) fn redirect(location: &str) -> Response {
    Response::redirect(Status::FOUND, location).header("Cache-Control", "no-cache")
}
