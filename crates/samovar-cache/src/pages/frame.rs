//! What all pages have around them, and how they are sent.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use samovar_http::http::Status;
use samovar_http::{Body, Response};

use super::assets::{ICON, MARK, SCRIPT, STYLE};
use super::url::Base;

/// Nothing from elsewhere, no script but ours, in nobody's frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
                      connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// A page before its frame.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// What stands in the title of the window, before the name of the cache.
    pub(crate) title: &'a str,
    /// What the cache is called.
    pub(crate) cache_name: &'a str,
    /// Where it is.
    pub(crate) base: Base,
    /// A class that its style may ask for.
    pub(crate) kind: &'static str,
    /// Whether paths can be looked for where it is.
    pub(crate) has_search: bool,
    /// What is in it.
    pub(crate) main: Markup,
}

impl Page<'_> {
    /// The answer with this page.
    pub(crate) fn response(&self, status: Status) -> Response {
        respond(status, &self.render())
    }

    fn render(&self) -> Markup {
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
                        @if self.has_search { (search_form(self.base)) }
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

/// Where one looks for a path; works without script.
fn search_form(base: Base) -> Markup {
    html! {
        form.search role="search" action=(base.to("search")) method="get" {
            label.unseen for="q" { "Find a path by its hash or store path" }
            input id="q" type="search" name="q" required maxlength="1000"
                placeholder="Hash or store path" autocomplete="off" autocapitalize="off"
                spellcheck="false";
            button type="submit" { "Find" }
        }
    }
}

/// A page as it is sent.
pub(crate) fn respond(status: Status, markup: &Markup) -> Response {
    Response::new(status, Body::Bytes(markup.0.clone().into_bytes().into()))
        .header("Content-Type", "text/html; charset=utf-8")
        .header("Content-Security-Policy", POLICY)
        .header("X-Content-Type-Options", "nosniff")
        .header("X-Frame-Options", "DENY")
        .header("Referrer-Policy", "no-referrer")
        .header("Cross-Origin-Opener-Policy", "same-origin")
        .header("Cross-Origin-Resource-Policy", "same-origin")
        .header("Cache-Control", "no-cache")
}

/// A redirect within the cache. `location` is made by [`Base`].
pub(crate) fn redirect(location: &str) -> Response {
    Response::redirect(Status::FOUND, location).header("Cache-Control", "no-cache")
}
