//! The page of an uploaded path, and the section about uploads on the page of a path.

use maud::{Markup, html};
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_storage::metadata::{CLOSURE_COUNT_MAX, DAY, Details};

use super::View;
use super::landing::{copy_command, snippet};
use super::path::{metadata_row, references_section};
use super::recent::referrers_section;
use super::text::{Count, Date, Day, Name, Size, path_name};
use super::url::Base;
use super::visible::has_page;
use crate::reader::uploaded_info;
use crate::refusal::Refusal;

/// Renders the page of a path that only the storage has.
pub(super) fn page(view: &View<'_>, details: &Details) -> Result<Response, Refusal> {
    let path = &details.path;
    let dir = view.reader().store().store_dir();
    let others = path.references.iter().filter(|other| **other != path.path);
    let mut references = Vec::new();
    for other in others {
        references.push((other, has_page(&view.cache, other)?));
    }
    let main = html! {
        p.crumbs { "Store path" }
        h1 { (path.path.name()) }
        (snippet("Store path", &html! { (path.path.full(dir)) }))
        (snippet("Copy to this machine", &copy_command(&view.cache, &path.path)))
        (downloads(view.base, details))
        (upload_facts(view, details))
        (references_section(view.base, &references))
        (referrers_section(view, None, Some(details))?)
        (upload_section(view, details))
    };
    Ok(view
        .page(path.path.name(), "path-page", main)
        .response(Status::OK))
}

fn downloads(base: Base, details: &Details) -> Markup {
    let nar = &details.path.nar;
    html! {
        ul.actions {
            li.first {
                a href=(base.to(&nar.object_key)) {
                    "Download NAR, " (Size(nar.file_size).brief())
                }
            }
        }
    }
}

fn upload_facts(view: &View<'_>, details: &Details) -> Markup {
    let (path, nar) = (&details.path, &details.path.nar);
    let dir = view.reader().store().store_dir();
    let signing = &view.cache.narinfos.signing;
    let signatures = signing.beside_uploaded(&uploaded_info(path), dir);
    let references = path.references.iter();
    let references = references.filter(|other| **other != path.path).count();
    html! {
        dl.table-of-facts {
            div { dt { "NAR size" } dd { (Size(nar.nar_size)) } }
            div { dt { "File" } dd {
                (Size(nar.file_size)) ", "
                @match nar.compression.name() { "none" => "not compressed", name => (name) }
            } }
            div { dt { "Closure" } dd {
                @match details.closure {
                    Some(size) if size.path_count == 1 && references == 0 => "this path only",
                    Some(size) => {
                        (Size(size.nar_size)) " in "
                        (Count(size.path_count).of("uploaded path"))
                    },
                    None => {
                        "more than " (Count(CLOSURE_COUNT_MAX.into()).of("uploaded path"))
                    },
                }
            } }
            div { dt { "NAR hash" } dd { code { (nar.nar_hash.to_string()) } } }
            @if let Some(deriver) = &path.deriver {
                div { dt { "Deriver" } dd { (path_name(view.base, deriver, false)) } }
            }
            @if let Some(address) = &path.content_address {
                div { dt { "Content address" } dd { code { (address.to_string()) } } }
            }
            div { dt { "Signatures" } dd {
                @if signatures.is_empty() { span.soft { "none" } }
                @else { ul { @for signature in signatures {
                    li { code { (signature.key_name()) } }
                } } }
            } }
            (metadata_row(view.base, path.path.hash_part()))
        }
    }
}

/// Renders the token with which a path was uploaded, its last use, and its pins if the client may
/// read them.
pub(super) fn upload_section(view: &View<'_>, details: &Details) -> Markup {
    html! {
        section aria-labelledby="upload" {
            h2 id="upload" { "Upload" }
            dl.table-of-facts {
                div { dt { "Uploaded" } dd {
                    (Date(details.path.registered_at))
                    @if let Some(token) = &details.token {
                        " with the token " strong { (Name(token.as_bytes())) }
                    }
                } }
                div { dt { "Last use" } dd {
                    (Day(details.path.used_at.div_euclid(DAY)))
                    @if details.is_condemned { ", " strong { "will be deleted unless used" } }
                } }
                @if view.shows_pins { div { dt { "Pins" } dd {
                    @if details.pins.is_empty() { span.soft { "none" } }
                    @else { ul { @for (name, generation) in &details.pins {
                        li { (Name(name.as_bytes())) ", generation " (generation) }
                    } } }
                } } }
            }
        }
    }
}
