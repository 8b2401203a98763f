//! `/serve/<hash part>/…`: the files of a store path.
//!
//! harmonia has the same URLs. A file is sent; a directory is shown as its `index.html` or as a
//! list of its entries. `?list` always shows the list, `?view` shows a text file as a page, and
//! `?save` downloads a file.

use std::collections::HashMap;

use maud::{Markup, html};
use samovar_http::http::Status;
use samovar_http::{Head, Response};
use samovar_nix::{HashPart, StorePath};
use samovar_store::{EntryKind, Page as Listed, PageEntry, PageRequest, Place};

use super::View;
use super::file::Sent;
use super::frame::redirect;
use super::link::destination;
use super::log::{text_page, text_tools};
use super::text::{Count, Name, Size};
use super::url::{Base, parameter};
use super::visible::is_there;
use crate::known::row::Row;
use crate::refusal::Refusal;

/// Maximum number of entries per page. Each costs a system call, and makes the page longer.
const ENTRY_COUNT_MAX: usize = 1000;

/// Maximum number of other store paths looked up for the links on one page. Each needs a query.
const OTHER_COUNT_MAX: usize = 100;

const INDEX: &[u8] = b"index.html";

/// The file or directory of a store path that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) hash_part: HashPart,
    pub(crate) names: &'a [&'a [u8]],
    pub(crate) has_slash: bool,
}

/// Answers a request for a file or directory of a store path.
// Long: one case per kind of file, each of a few lines.
pub(crate) fn page(
    view: &View<'_>,
    head: Head<'_>,
    wanted: Wanted<'_>,
) -> Result<Response, Refusal> {
    let registration = view.reader().registration(wanted.hash_part)?;
    registration.admit()?;
    let row = &registration.row;
    let tree = view.reader().store().tree(&row.path)?;
    let page_index = page_index(head.query());
    let asked = PageRequest {
        skip: page_index.saturating_mul(ENTRY_COUNT_MAX),
        count_max: ENTRY_COUNT_MAX,
    };
    let found = tree.place(wanted.names, asked);
    // Files are opened after the row was read. They belong to the registration if it is still
    // current now.
    if !registration.is_current()? {
        return Ok(view.no_path(Some(wanted.hash_part)));
    }
    let place = match found {
        Ok(Some(place)) => place,
        Ok(None) => return Ok(view.no_file(&row.path)),
        Err(error) => {
            registration.report(&error.into());
            return Ok(view.unreadable());
        }
    };
    let has = |name: &str| {
        let mut pairs = head.query().unwrap_or_default().split(|byte| *byte == b'&');
        pairs.any(|pair| pair == name.as_bytes())
    };
    Ok(match place {
        Place::File { .. } if wanted.has_slash && !wanted.names.is_empty() => {
            view.no_file(&row.path)
        }
        Place::File { file, size, .. } => {
            let name = wanted.names.last().copied();
            let sent = Sent {
                file,
                size,
                name: name.unwrap_or(row.path.name().as_bytes()),
                nar_hash: row.nar_hash,
                is_saved: has("save"),
            };
            let is_viewed = has("view") || has("list");
            match is_viewed && sent.is_viewable() {
                true => file_page(view, row, wanted, sent),
                false => sent.response(head),
            }
        }
        Place::Directory(_) if !wanted.has_slash => {
            let mut url = view.base.to_file(wanted.hash_part, wanted.names, true);
            if has("list") {
                url.push_str("?list");
            }
            redirect(&url)
        }
        Place::Directory(listed) => {
            let index = [wanted.names, &[INDEX]].concat();
            let index = match tree.place(&index, asked) {
                Ok(Some(Place::File { file, size, .. })) => Some((file, size)),
                _ => None,
            };
            if !registration.is_current()? {
                return Ok(view.no_path(Some(wanted.hash_part)));
            }
            let has_index = index.is_some();
            if !has("list")
                && page_index == 0
                && let Some((file, size)) = index
            {
                let sent = Sent {
                    file,
                    size,
                    name: INDEX,
                    nar_hash: row.nar_hash,
                    is_saved: false,
                };
                return Ok(sent.response(head));
            }
            let more = Listing {
                wanted,
                row,
                listed: &listed,
                page_index,
                has_index,
            };
            directory(view, &more)?
        }
        Place::Symlink { target, depth } => {
            let query = if has("list") { "?list" } else { "" };
            link(view, row, wanted, (&target, depth), query)?
        }
    })
}

/// Renders the page of a text file.
fn file_page(view: &View<'_>, row: &Row, wanted: Wanted<'_>, sent: Sent<'_>) -> Response {
    let raw = view.base.to_file(wanted.hash_part, wanted.names, false);
    let head = html! {
        (crumbs(view.base, row, wanted))
        h1 { (Name(sent.name)) }
        (text_tools(&html! {
            a href=(raw) { "Raw text" }
            a href={ (raw) "?save" } { "Download" }
            span.soft { (Size(sent.size)) }
        }))
    };
    let title = String::from_utf8_lossy(sent.name);
    text_page(view, &title, head, "Text of the file", sent.file)
}

/// Answers a request for a symbolic link, found at a depth of the names: redirects to its target,
/// with the query, if the target can be requested.
fn link(
    view: &View<'_>,
    row: &Row,
    wanted: Wanted<'_>,
    (target, depth): (&[u8], usize),
    query: &str,
) -> Result<Response, Refusal> {
    let (above, rest) = wanted.names.split_at(depth);
    let above = above.split_last().map_or(&[][..], |(_, above)| above);
    let dir = view.reader().store().store_dir();
    let found = destination(dir, &row.path, above, target);
    let place = match found {
        Some(found) if is_shown(view, &found.path, row)? => found,
        _ => return Ok(link_page(view, row, wanted, target)),
    };
    let names = place.names.iter().map(Vec::as_slice);
    let names: Vec<&[u8]> = names.chain(rest.iter().copied()).collect();
    let has_slash = wanted.has_slash && !rest.is_empty();
    let hash_part = place.path.hash_part();
    if hash_part == wanted.hash_part && names == wanted.names {
        // The link leads to itself, so show its page.
        return Ok(link_page(view, row, wanted, target));
    }
    let url = view.base.to_file(hash_part, &names, has_slash);
    Ok(redirect(&(url + query)))
}

/// Whether clients may see a path. The path `own` is known to be readable.
fn is_shown(view: &View<'_>, path: &StorePath, own: &Row) -> Result<bool, Refusal> {
    Ok(*path == own.path || is_there(view.reader(), path)?)
}

fn link_page(view: &View<'_>, row: &Row, wanted: Wanted<'_>, target: &[u8]) -> Response {
    let main = html! {
        (crumbs(view.base, row, wanted))
        h1 { "External link" }
        p { "This symbolic link points to" }
        (super::landing::snippet("Target", &html! { (Name(target)) }))
        p { "which is not a file or directory served by this cache." }
    };
    view.page("Link", "path-page", main)
        .response(Status::NOT_FOUND)
}

fn directory(view: &View<'_>, listing: &Listing<'_>) -> Result<Response, Refusal> {
    let (row, wanted) = (listing.row, listing.wanted);
    let main = html! {
        (crumbs(view.base, row, wanted))
        h1 {
            @match wanted.names.last() {
                Some(name) => (Name(name)),
                None => (row.path.name()),
            }
        }
        @if listing.has_index {
            ul.actions { li { a href="./" { "Show index.html" } } }
        }
        @if listing.listed.entries.is_empty() {
            p.soft {
                @if listing.page_index == 0 { "This directory is empty." }
                @else { "No more entries. " a href="?list" { "First page" } }
            }
        } @else {
            (listing.pager("Pages"))
            (table(view, listing)?)
            (listing.pager("Pages, at the end"))
        }
    };
    Ok(view
        .page(row.path.name(), "path-page", main)
        .response(Status::OK))
}

fn table(view: &View<'_>, listing: &Listing<'_>) -> Result<Markup, Refusal> {
    let listed = listing.listed;
    let mut others = HashMap::new();
    let mut rows = Vec::with_capacity(listed.entries.len());
    for entry in &listed.entries {
        rows.push(entry_row(view, listing, entry, &mut others)?);
    }
    Ok(html! {
        table.files {
            caption {
                @let (first, last) = listing.range();
                @if last - first + 1 < listed.count_in_all {
                    (Count(first)) " to " (Count(last)) " of "
                }
                @if listed.count_in_all == 1 { "1 entry" }
                @else { (Count(listed.count_in_all)) " entries" }
            }
            thead { tr {
                th scope="col" { "Name" }
                th.kind scope="col" { "Kind" }
                th.number scope="col" { "Size" }
            } }
            tbody { @for row in rows { (row) } }
        }
    })
}

fn entry_row(
    view: &View<'_>,
    listing: &Listing<'_>,
    entry: &PageEntry,
    others: &mut HashMap<HashPart, bool>,
) -> Result<Markup, Refusal> {
    let wanted = listing.wanted;
    let names = [wanted.names, &[&*entry.name]].concat();
    let url = |has_slash| view.base.to_file(wanted.hash_part, &names, has_slash);
    let kind = match &entry.kind {
        EntryKind::File {
            executable: true, ..
        } => "executable",
        EntryKind::File { .. } => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink { .. } => "link",
        EntryKind::Other => "special",
    };
    let name = match &entry.kind {
        EntryKind::File { .. } => html! {
            a href={ (url(false)) "?view" } { (Name(&entry.name)) }
        },
        EntryKind::Directory => html! {
            a href={ (url(true)) "?list" } { (Name(&entry.name)) "/" }
        },
        EntryKind::Symlink { target } => {
            let dir = view.reader().store().store_dir();
            let found = destination(dir, &listing.row.path, wanted.names, target);
            let is_shown = match found.map(|found| found.path) {
                Some(path) if path == listing.row.path => true,
                Some(path) => match others.get(&path.hash_part()) {
                    Some(is_shown) => *is_shown,
                    None if others.len() >= OTHER_COUNT_MAX => false,
                    None => {
                        let is_shown = is_shown(view, &path, listing.row)?;
                        others.insert(path.hash_part(), is_shown);
                        is_shown
                    }
                },
                None => false,
            };
            html! {
                @if is_shown { a href={ (url(false)) "?list" } { (Name(&entry.name)) } }
                @else { (Name(&entry.name)) }
                span.arrow aria-label="points to" role="img" { "→" }
                span.path.soft { (Name(target)) }
            }
        }
        EntryKind::Other => html! { (Name(&entry.name)) },
    };
    Ok(html! {
        tr {
            td { (name) }
            td.kind { (kind) }
            td.number {
                @if let EntryKind::File { size, .. } = entry.kind { (Size(size)) }
            }
        }
    })
}

fn crumbs(base: Base, row: &Row, wanted: Wanted<'_>) -> Markup {
    let above = wanted
        .names
        .split_last()
        .map_or(&[][..], |(_, above)| above);
    html! {
        nav.crumbs aria-label="Breadcrumb" { ol {
            li { a href=(base.to_path(wanted.hash_part)) { (row.path.name()) } }
            @if !wanted.names.is_empty() {
                li {
                    a href={ (base.to_file(wanted.hash_part, &[], true)) "?list" } {
                        "files"
                    }
                }
                @for depth in 1..=above.len() {
                    li {
                        @let url = base.to_file(wanted.hash_part, &above[..depth], true);
                        a href={ (url) "?list" } { (Name(above[depth - 1])) }
                    }
                }
                @if let Some(last) = wanted.names.last() {
                    li aria-current="page" { (Name(last)) }
                }
            } @else {
                li aria-current="page" { "files" }
            }
        } }
    }
}

/// The entries of a directory, or one page of them.
struct Listing<'a> {
    wanted: Wanted<'a>,
    row: &'a Row,
    listed: &'a Listed,
    /// Number of pages before this one.
    page_index: usize,
    /// Whether the directory has a file `index.html`.
    has_index: bool,
}

impl Listing<'_> {
    /// Returns the numbers of the first and the last entry, counted from 1.
    fn range(&self) -> (u64, u64) {
        let before = self.page_index.saturating_mul(ENTRY_COUNT_MAX) as u64;
        (before + 1, before + self.listed.entries.len() as u64)
    }

    /// Renders links to other pages, if there are any.
    fn pager(&self, label: &str) -> Markup {
        let has_more = self.listed.has_more;
        let page_count = self.listed.count_in_all.div_ceil(ENTRY_COUNT_MAX as u64);
        // Pages are counted from 1 in URLs.
        let number = self.page_index as u64 + 1;
        html! {
            @if self.page_index > 0 || has_more {
                nav.pager aria-label=(label) {
                    @if number == 2 { a href="?list" rel="prev" { "← Previous" } }
                    @else if number > 2 {
                        a href={ "?list&page=" (number - 1) } rel="prev" { "← Previous" }
                    }
                    span { "Page " (Count(number)) " of " (Count(page_count)) }
                    @if has_more { a href={ "?list&page=" (number + 1) } rel="next" { "Next →" } }
                }
            }
        }
    }
}

/// Returns the number of pages before the requested one.
fn page_index(query: Option<&[u8]>) -> usize {
    let number = parameter(query, "page").and_then(|number| String::from_utf8(number).ok());
    let number = number.and_then(|number| number.parse::<u32>().ok());
    number.map_or(0, |number| number.saturating_sub(1) as usize)
}
