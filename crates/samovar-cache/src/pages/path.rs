//! `/path/<hash part>`: the page of a store path.

use maud::{Markup, html};
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::{HashPart, PathInfo, StorePath};
use samovar_store::Closure;

use super::View;
use super::landing::snippet;
use super::text::{Count, Date, Size};
use crate::answer::build_log;
use crate::refusal::Refusal;

/// Maximum number of paths in a closure whose sizes are added up, which takes 20 ms. The size of a
/// larger closure is not shown.
const CLOSURE_COUNT_MAX: usize = 2000;

/// Maximum number of references that are looked up. Further ones are shown without a link.
const LINK_COUNT_MAX: usize = 500;

/// Number of rows read in one transaction.
const ROWS_AT_ONCE: usize = 250;

/// Size of the closure of a path.
enum ClosureSize {
    Known {
        path_count: usize,
        nar_size: u64,
    },
    Large,
    /// Some path of the closure cannot be served from this cache.
    Incomplete,
}

impl View<'_> {
    /// Renders the page of a path.
    pub(crate) fn path(&self, hash_part: HashPart) -> Result<Response, Refusal> {
        let uploaded = self.uploaded(hash_part)?;
        let registration = match (self.reader().servable(hash_part), &uploaded) {
            (Ok(registration), _) => registration,
            (Err(refusal), Some(uploaded)) if refusal.is_absence() => {
                return self.uploaded_page(uploaded);
            }
            (Err(refusal), _) => return Err(refusal),
        };
        let info = &registration.info;
        let others: Vec<&StorePath> = info
            .references
            .iter()
            .filter(|path| **path != info.path)
            .collect();
        let mut references = Vec::with_capacity(others.len());
        for (index, path) in others.iter().enumerate() {
            let is_linked = index < LINK_COUNT_MAX && self.is_there(path)?;
            references.push((*path, is_linked));
        }
        let main = html! {
            p.crumbs { "Store path" }
            h1 { (info.path.name()) }
            (snippet("Store path", &html! { (info.path.full(self.reader().store().store_dir())) }))
            (self.actions(info)?)
            (self.facts(info)?)
            (self.references(&references))
            @if let Some(uploaded) = &uploaded { (self.upload_section(uploaded)?) }
        };
        Ok(self
            .page(info.path.name(), "path-page", main)
            .response(Status::OK))
    }

    fn actions(&self, info: &PathInfo) -> Result<Markup, Refusal> {
        let hash_part = info.path.hash_part();
        let nar = format!(
            "nar/{hash_part}-{}.nar",
            info.nar_hash.to_hash().nixbase32()
        );
        let log = match build_log::admit(self.reader(), &info.path) {
            Ok(()) => self.reader().store().log(&info.path)?,
            Err(refusal @ Refusal::Store(_)) => return Err(refusal),
            Err(_) => None,
        };
        let log = log.map(|_| self.base.to(&format!("log/{}", info.path.base_name())));
        let files = self.base.to_file(hash_part, &[], false);
        Ok(html! {
            ul.actions {
                li.first { a href={ (files) "?list" } { "Browse files" } }
                @if let Some(log) = log { li { a href=(log) { "Build log" } } }
                li {
                    a href=(self.base.to(&nar)) download={ (info.path.name()) ".nar" } {
                        "Download NAR, " (Size(info.nar_size).brief())
                    }
                }
                li { a href=(self.base.to(&format!("{hash_part}.narinfo"))) { "narinfo" } }
                li { a href=(self.base.to(&format!("{hash_part}.ls"))) { "Listing" } }
            }
        })
    }

    fn facts(&self, info: &PathInfo) -> Result<Markup, Refusal> {
        let closure = self.closure_size(info)?;
        let dir = self.reader().store().store_dir();
        let signatures = self.cache.narinfos.signing.names(info, dir);
        let deriver = match &info.deriver {
            Some(deriver) => Some((deriver, self.is_there(deriver)?)),
            None => None,
        };
        Ok(html! {
            dl.table-of-facts {
                div { dt { "NAR size" } dd { (Size(info.nar_size)) } }
                div { dt { "Closure" } dd {
                    @match closure {
                        ClosureSize::Known { path_count: 1, .. } => "this path only",
                        ClosureSize::Known { path_count, nar_size } => {
                            (Size(nar_size)) " in " (Count(path_count as u64).of("path"))
                        },
                        ClosureSize::Large => {
                            "more than " (Count(CLOSURE_COUNT_MAX as u64).of("path"))
                        },
                        ClosureSize::Incomplete => "incomplete in this cache",
                    }
                } }
                div { dt { "NAR hash" } dd { code { (info.nar_hash.to_string()) } } }
                @if info.registration_time > 0 {
                    div { dt { "Registered" } dd { (Date(info.registration_time)) } }
                }
                @if let Some((deriver, is_linked)) = deriver {
                    div { dt { "Deriver" } dd { (self.path_name(deriver, is_linked)) } }
                }
                @if let Some(address) = &info.content_address {
                    div { dt { "Content address" } dd { code { (address.to_string()) } } }
                }
                div { dt { "Signatures" } dd {
                    @if signatures.is_empty() { span.soft { "none" } }
                    @else { ul { @for name in signatures { li { code { (name) } } } } }
                } }
            }
        })
    }

    pub(super) fn references(&self, references: &[(&StorePath, bool)]) -> Markup {
        html! {
            @if !references.is_empty() {
                section aria-labelledby="references" {
                    h2 id="references" {
                        "References " span.soft { (Count(references.len() as u64)) }
                    }
                    ul.paths {
                        @for (path, is_linked) in references {
                            li { (self.path_name(path, *is_linked)) }
                        }
                    }
                }
            }
        }
    }

    /// Renders the name of a path, with a link to its page if it may be read.
    pub(super) fn path_name(&self, path: &StorePath, is_linked: bool) -> Markup {
        html! {
            @if is_linked {
                @let url = self.base.to_path(path.hash_part());
                a href=(url) title=(path.base_name()) { (path.name()) }
            } @else {
                span title=(path.base_name()) { (path.name()) }
            }
        }
    }

    fn closure_size(&self, info: &PathInfo) -> Result<ClosureSize, Refusal> {
        let store = self.reader().store();
        let members = match store.closure(info.path.hash_part(), CLOSURE_COUNT_MAX)? {
            Some(Closure::Members(members)) => members,
            Some(Closure::TooLarge) => return Ok(ClosureSize::Large),
            Some(Closure::Incomplete) | None => return Ok(ClosureSize::Incomplete),
        };
        let is_open = self.reader().policy.is_open();
        if !is_open && !self.cache.narinfos.are_readable(&members)? {
            return Ok(ClosureSize::Incomplete);
        }
        let hash_parts: Vec<HashPart> = members.iter().map(|member| member.hash_part).collect();
        let mut nar_size = 0_u64;
        for some in hash_parts.chunks(ROWS_AT_ONCE) {
            for looked in store.lookup_many(some)? {
                match looked {
                    Ok(Some(member)) => nar_size = nar_size.saturating_add(member.nar_size),
                    _ => return Ok(ClosureSize::Incomplete),
                }
            }
        }
        Ok(ClosureSize::Known {
            path_count: hash_parts.len(),
            nar_size,
        })
    }
}
