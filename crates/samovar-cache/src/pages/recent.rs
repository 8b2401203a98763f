//! Lists of store paths by time of registration and by reference: recent paths, and referrers.

use maud::{Markup, html};
use samovar_nix::{PathInfo, StorePath};
use samovar_storage::metadata::{Details, REFERRER_COUNT_MAX};

use super::View;
use super::text::{Date, Size, path_name};
use super::url::Base;
use super::visible::{has_page, is_there};
use crate::reader::Reader;
use crate::refusal::Refusal;

/// Maximum number of recent paths on the landing page.
const RECENT_COUNT: usize = 10;

/// Number of the newest rows among which recent paths are searched. Derivations and hidden paths
/// are left out.
const RECENT_ROW_COUNT: usize = 60;

/// Maximum number of referrers on the page of a path.
const REFERRER_COUNT: usize = 100;

/// Number of rows among which the referrers are searched that a policy does not hide.
const REFERRER_ROW_COUNT: usize = 500;

/// Returns the paths that were registered last, newest first, without derivations. Empty if they
/// cannot be read: the rest of the page is still right.
pub(super) fn recent_paths(reader: &Reader) -> Vec<PathInfo> {
    let newest = reader.store().newest(None, RECENT_ROW_COUNT);
    let newest = newest.unwrap_or_default().into_iter();
    let shown = newest.filter(|info| !info.path.is_derivation() && reader.permit(info).is_ok());
    shown.take(RECENT_COUNT).collect()
}

/// Renders these recent paths.
pub(super) fn recent_section(base: Base, recent: &[PathInfo]) -> Markup {
    html! {
        @if !recent.is_empty() {
            section aria-labelledby="recent" {
                h2 id="recent" { "Recently registered" }
                table.files {
                    thead { tr {
                        th scope="col" { "Path" }
                        th.number scope="col" { "NAR size" }
                        th.kind.number scope="col" { "Registered" }
                    } }
                    tbody { @for info in recent { tr {
                        td { (path_name(base, &info.path, true)) }
                        td.number { (Size(info.nar_size)) }
                        td.kind.number { (Date(info.registration_time)) }
                    } } }
                }
            }
        }
    }
}

/// Renders the paths that refer to a path: those in the Nix store and those that were uploaded.
/// `info` or `uploaded` is `None` if the path is not there.
pub(super) fn referrers_section(
    view: &View<'_>,
    info: Option<&PathInfo>,
    uploaded: Option<&Details>,
) -> Result<Markup, Refusal> {
    let all = match info {
        Some(info) => view.reader().store().referrers(info, REFERRER_ROW_COUNT)?,
        None => Vec::new(),
    };
    let is_open = view.reader().policy.is_open();
    let mut shown: Vec<&StorePath> = Vec::new();
    for path in &all {
        // Read one path more than is shown, to know whether there are more.
        if shown.len() > REFERRER_COUNT {
            break;
        }
        if is_open || is_there(view.reader(), path)? {
            shown.push(path);
        }
    }
    let uploaded = uploaded.map_or(&[][..], |uploaded| &uploaded.referrers);
    for path in uploaded {
        if shown.len() > REFERRER_COUNT {
            break;
        }
        if !shown.contains(&path) && has_page(&view.cache, path)? {
            shown.push(path);
        }
    }
    let has_more = shown.len() > REFERRER_COUNT || uploaded.len() >= REFERRER_COUNT_MAX as usize;
    shown.truncate(REFERRER_COUNT);
    shown.sort_by_key(|path| path.name());
    Ok(html! {
        @if !shown.is_empty() {
            section aria-labelledby="referrers" {
                h2 id="referrers" {
                    "Used by "
                    span.soft { @if has_more { "at least " } (shown.len()) }
                }
                ul.paths {
                    @for path in &shown { li { (path_name(view.base, path, true)) } }
                }
            }
        }
    })
}
