//! `/build-log/<base name>`: the build log of a derivation, or of the derivation that built an
//! output.
//!
//! The text itself is at `/log/<base name>`, where clients request it.

use std::io::Read;
use std::iter;

use maud::{Markup, PreEscaped, html};
use samovar_http::http::Status;
use samovar_http::{Body, Response};
use samovar_nix::{HashPart, StorePath};
use samovar_storage::logs;

use super::frame::redirect;
use super::log_text::LogText;
use super::text::path_name;
use super::url::encode;
use super::visible::{details_of, failed, has_page};
use super::{PagedCache, View};
use crate::answer::build_log;
use crate::refusal::Refusal;

/// Number of bytes of a log that are converted at a time. A line break becomes up to 60 bytes, so
/// this bounds the memory of a response to half a megabyte.
const PIECE_LEN: usize = 8 * 1024;

/// Stands for the lines of the log while the frame is rendered. Escaped text cannot contain it.
const LINES: &str = "<!--lines-->";

/// Renders the page of a build log, which is converted while the client reads.
pub(super) fn page(view: &View<'_>, path: &StorePath) -> Result<Response, Refusal> {
    let Some(log) = open_log(&view.cache, path)? else {
        return Ok(view.message(
            Status::NOT_FOUND,
            "No build log",
            "This cache has no build log with this name.",
        ));
    };
    let title = format!("Build log of {}", path.name());
    Ok(text_page(
        view,
        &title,
        log_head(view, path)?,
        "Build log",
        log,
    ))
}

/// Redirects to the build log of the path with this hash part.
pub(super) fn of_path(view: &View<'_>, hash_part: HashPart) -> Result<Response, Refusal> {
    let path = match details_of(&view.cache, hash_part)? {
        Some(uploaded) => uploaded.path.path,
        None => view.reader().servable(hash_part)?.path,
    };
    let url = format!("build-log/{}", encode(path.base_name().as_bytes()));
    Ok(redirect(&view.base.to(&url)))
}

/// Renders a page with a text, which is converted while the client reads. `head` stands above the
/// text, and `label` names the text.
pub(super) fn text_page(
    view: &View<'_>,
    title: &str,
    head: Markup,
    label: &str,
    mut text: impl Read + Send + 'static,
) -> Response {
    let main = html! {
        (head)
        pre.log tabindex="0" role="group" aria-label=(label) { (PreEscaped(LINES)) }
    };
    let page = view.page(title, "wide", main);
    let frame = page.render().0;
    let (start, end) = frame.split_once(LINES).unwrap_or((&frame, ""));
    let (start, end) = (start.to_owned().into_bytes(), end.to_owned());
    let mut html = Some(LogText::new());
    let lines = iter::from_fn(move || {
        let mut piece = vec![0; PIECE_LEN];
        let len = match text.read(&mut piece) {
            Ok(len) => len,
            Err(error) => return Some(Err(error)),
        };
        let html = match len {
            0 => html.take()?.finish() + &end,
            len => html.as_mut()?.push(&piece[..len]),
        };
        Some(Ok(html.into_bytes()))
    });
    let body = Body::pieces(iter::once(Ok(start)).chain(lines));
    // Decompressing and rendering compute, and never wait.
    page.response_with(Status::OK, body.keeping_slot())
}

/// Opens the build log of a path in the Nix store, or else an uploaded one; `None` if the client
/// may read neither.
pub(super) fn open_log(
    cache: &PagedCache<'_>,
    path: &StorePath,
) -> Result<Option<Box<dyn Read + Send>>, Refusal> {
    let admitted = build_log::admit(cache.reader(), path);
    let log = match admitted.and_then(|()| Ok(cache.reader().store().log(path)?)) {
        Ok(log) => log,
        Err(refusal) if refusal.is_absence() => None,
        Err(refusal) => return Err(refusal),
    };
    if let Some(log) = log {
        return Ok(Some(Box::new(log)));
    }
    let Some(stored) = cache.stored else {
        return Ok(None);
    };
    let log = logs::open(stored, path).map_err(|error| failed(cache.reader(), &error))?;
    if log.is_some() {
        match build_log::admit_uploaded(cache.reader(), stored, path) {
            Ok(()) => {}
            Err(refusal) if refusal.is_absence() => return Ok(None),
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(log.map(|log| Box::new(log) as Box<_>))
}

fn log_head(view: &View<'_>, path: &StorePath) -> Result<Markup, Refusal> {
    let has_page = has_page(&view.cache, path)?;
    let name = encode(path.base_name().as_bytes());
    let raw = view.base.to(&format!("log/{name}"));
    Ok(html! {
        nav.crumbs aria-label="Breadcrumb" { ol {
            li { (path_name(view.base, path, has_page)) }
            li aria-current="page" { "build log" }
        } }
        h1 { "Build log" }
        (text_tools(&html! { a href=(raw) { "Raw text" } }))
    })
}

/// Renders the controls above a text, with these links.
pub(super) fn text_tools(links: &Markup) -> Markup {
    html! {
        div.log-tools {
            label { input type="checkbox" id="wrap" checked; " Wrap long lines" }
            (links)
        }
    }
}
