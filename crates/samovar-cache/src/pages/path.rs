//! `/path/<hash part>`: the page of a store path.

use maud::{Markup, html};
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::{HashPart, PathInfo, StorePath};

use super::View;
use super::closure::{CLOSURE_COUNT_MAX, Members, members, total_size};
use super::landing::{copy_command, snippet};
use super::log::open_log;
use super::recent::referrers_section;
use super::text::{Count, Date, Size, path_name};
use super::uploaded::{self, upload_section};
use super::url::{Base, encode};
use super::visible::{details_of, is_there};
use crate::refusal::Refusal;

/// Maximum number of references that are looked up. Further ones are shown without a link.
const LINK_COUNT_MAX: usize = 500;

/// Renders the page of a path.
pub(crate) fn page(view: &View<'_>, hash_part: HashPart) -> Result<Response, Refusal> {
    let uploaded = details_of(&view.cache, hash_part)?;
    let info = match (view.reader().servable(hash_part), &uploaded) {
        (Ok(info), _) => info,
        (Err(refusal), Some(uploaded)) if refusal.is_absence() => {
            return uploaded::page(view, uploaded);
        }
        (Err(refusal), _) => return Err(refusal),
    };
    let info = &info;
    let others: Vec<&StorePath> = info
        .references
        .iter()
        .filter(|path| **path != info.path)
        .collect();
    let mut references = Vec::with_capacity(others.len());
    for (index, path) in others.iter().enumerate() {
        let is_linked = index < LINK_COUNT_MAX && is_there(view.reader(), path)?;
        references.push((*path, is_linked));
    }
    let main = html! {
        p.crumbs { "Store path" }
        h1 { (info.path.name()) }
        (snippet("Store path", &html! { (info.path.full(view.reader().store().store_dir())) }))
        (snippet("Copy to this machine", &copy_command(&view.cache, &info.path)))
        (actions(view, info)?)
        (facts(view, info)?)
        (references_section(view.base, &references))
        (referrers_section(view, Some(info), uploaded.as_ref())?)
        @if let Some(uploaded) = &uploaded { (upload_section(view, uploaded)) }
    };
    Ok(view
        .page(info.path.name(), "path-page", main)
        .response(Status::OK))
}

fn actions(view: &View<'_>, info: &PathInfo) -> Result<Markup, Refusal> {
    let hash_part = info.path.hash_part();
    let nar = format!(
        "nar/{hash_part}-{}.nar",
        info.nar_hash.to_hash().nixbase32()
    );
    let log = open_log(&view.cache, &info.path)?;
    let log = log.map(|_| {
        let name = encode(info.path.base_name().as_bytes());
        view.base.to(&format!("build-log/{name}"))
    });
    let files = view.base.to_file(hash_part, &[], false);
    Ok(html! {
        ul.actions {
            li.first { a href={ (files) "?list" } { "Browse files" } }
            @if let Some(log) = log { li { a href=(log) { "Build log" } } }
            li {
                a href=(view.base.to(&nar)) download={ (info.path.name()) ".nar" } {
                    "Download NAR, " (Size(info.nar_size).brief())
                }
            }
        }
    })
}

fn facts(view: &View<'_>, info: &PathInfo) -> Result<Markup, Refusal> {
    let closure = members(&view.cache, info)?;
    let closure_url = view
        .base
        .to(&format!("path/{}/closure", info.path.hash_part()));
    let dir = view.reader().store().store_dir();
    let signatures = view.cache.narinfos.signing.names(info, dir);
    let deriver = match &info.deriver {
        Some(deriver) => Some((deriver, is_there(view.reader(), deriver)?)),
        None => None,
    };
    Ok(html! {
        dl.table-of-facts {
            div { dt { "NAR size" } dd { (Size(info.nar_size)) } }
            div { dt { "Closure" } dd {
                @match closure {
                    Members::All(members) if members.len() == 1 => "this path only",
                    Members::All(members) => a href=(closure_url) {
                        (Size(total_size(&members))) " in "
                        (Count(members.len() as u64).of("path"))
                    },
                    Members::TooMany => {
                        "more than " (Count(CLOSURE_COUNT_MAX as u64).of("path"))
                    },
                    Members::Incomplete => "incomplete in this cache",
                }
            } }
            div { dt { "NAR hash" } dd { code { (info.nar_hash.to_string()) } } }
            @if info.registration_time > 0 {
                div { dt { "Registered" } dd { (Date(info.registration_time)) } }
            }
            @if let Some((deriver, is_linked)) = deriver {
                div { dt { "Deriver" } dd { (path_name(view.base, deriver, is_linked)) } }
            }
            @if let Some(address) = &info.content_address {
                div { dt { "Content address" } dd { code { (address.to_string()) } } }
            }
            div { dt { "Signatures" } dd {
                @if signatures.is_empty() { span.soft { "none" } }
                @else { ul { @for name in signatures { li { code { (name) } } } } }
            } }
            (metadata_row(view.base, info.path.hash_part()))
        }
    })
}

/// Renders links to what clients read about a path.
pub(super) fn metadata_row(base: Base, hash_part: HashPart) -> Markup {
    html! {
        div { dt { "For programs" } dd {
            a href=(base.to(&format!("{hash_part}.narinfo"))) { "narinfo" } ", "
            a href=(base.to(&format!("{hash_part}.ls"))) { "listing" }
        } }
    }
}

pub(super) fn references_section(base: Base, references: &[(&StorePath, bool)]) -> Markup {
    html! {
        @if !references.is_empty() {
            section aria-labelledby="references" {
                h2 id="references" {
                    "References " span.soft { (Count(references.len() as u64)) }
                }
                ul.paths {
                    @for (path, is_linked) in references {
                        li { (path_name(base, path, *is_linked)) }
                    }
                }
            }
        }
    }
}
