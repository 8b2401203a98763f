//! `/path/<hash part>/closure`: the paths of a closure.

use std::cmp::Reverse;

use maud::html;
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::{HashPart, PathInfo};
use samovar_store::Closure;

use super::text::{Count, Size, path_name};
use super::{PagedCache, View};
use crate::refusal::Refusal;

/// Maximum number of paths in a closure that is read, which takes 20 ms.
pub(super) const CLOSURE_COUNT_MAX: usize = 2000;

/// Number of rows read in one transaction.
const ROWS_AT_ONCE: usize = 250;

/// The closure of a path.
pub(super) enum Members {
    All(Vec<PathInfo>),
    TooMany,
    /// Some path of the closure cannot be served from this cache.
    Incomplete,
}

/// Renders the list of the paths in a closure, the largest first.
pub(super) fn page(view: &View<'_>, hash_part: HashPart) -> Result<Response, Refusal> {
    let info = &view.reader().servable(hash_part)?;
    let mut members = match members(&view.cache, info)? {
        Members::All(members) => members,
        Members::TooMany => {
            let text = format!(
                "The closure has more than {}, which are not listed here.",
                Count(CLOSURE_COUNT_MAX as u64).of("path")
            );
            return Ok(view.message(Status::OK, "Closure", &text));
        }
        Members::Incomplete => {
            let text = "The closure is incomplete in this cache.";
            return Ok(view.message(Status::OK, "Closure", text));
        }
    };
    members.sort_by(|one, other| {
        let key = |info: &PathInfo| (Reverse(info.nar_size), info.path.name().to_owned());
        key(one).cmp(&key(other))
    });
    let main = html! {
        nav.crumbs aria-label="Breadcrumb" { ol {
            li { (path_name(view.base, &info.path, true)) }
            li aria-current="page" { "closure" }
        } }
        h1 { "Closure" }
        p {
            (Size(total_size(&members))) " in " (Count(members.len() as u64).of("path"))
            ", with all references of references."
        }
        table.files {
            thead { tr {
                th scope="col" { "Path" }
                th.number scope="col" { "NAR size" }
            } }
            tbody { @for member in &members { tr {
                td { (path_name(view.base, &member.path, true)) }
                td.number { (Size(member.nar_size)) }
            } } }
        }
    };
    let title = format!("Closure of {}", info.path.name());
    Ok(view.page(&title, "path-page", main).response(Status::OK))
}

/// Reads the closure of a path, which the client may read only as a whole.
pub(super) fn members(cache: &PagedCache<'_>, info: &PathInfo) -> Result<Members, Refusal> {
    let store = cache.reader().store();
    let members = match store.closure(info.path.hash_part(), CLOSURE_COUNT_MAX)? {
        Some(Closure::Members(members)) => members,
        Some(Closure::TooLarge) => return Ok(Members::TooMany),
        Some(Closure::Incomplete) | None => return Ok(Members::Incomplete),
    };
    let is_open = cache.reader().policy.is_open();
    if !is_open && !cache.narinfos.are_readable(&members)? {
        return Ok(Members::Incomplete);
    }
    let hash_parts: Vec<HashPart> = members.iter().map(|member| member.hash_part).collect();
    let mut infos = Vec::with_capacity(members.len());
    for some in hash_parts.chunks(ROWS_AT_ONCE) {
        for looked in store.lookup_many(some)? {
            match looked {
                Ok(Some(member)) => infos.push(member),
                _ => return Ok(Members::Incomplete),
            }
        }
    }
    Ok(Members::All(infos))
}

/// Returns the sum of the NAR sizes.
pub(super) fn total_size(members: &[PathInfo]) -> u64 {
    let sizes = members.iter().map(|member| member.nar_size);
    sizes.fold(0, u64::saturating_add)
}
