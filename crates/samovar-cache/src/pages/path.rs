//! `/path/<hash part>`: the page of a store path.

use maud::{Markup, html};
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::{HashPart, PathInfo, StorePath};

use super::View;
use super::closure::{CLOSURE_COUNT_MAX, Members, total_size};
use super::landing::snippet;
use super::text::{Count, Date, Size};
use super::url::encode;
use crate::refusal::Refusal;

/// Maximum number of references that are looked up. Further ones are shown without a link.
const LINK_COUNT_MAX: usize = 500;

impl View<'_> {
    /// Renders the page of a path.
    pub(crate) fn path(&self, hash_part: HashPart) -> Result<Response, Refusal> {
        let uploaded = self.uploaded(hash_part)?;
        let info = match (self.reader().servable(hash_part), &uploaded) {
            (Ok(info), _) => info,
            (Err(refusal), Some(uploaded)) if refusal.is_absence() => {
                return self.uploaded_page(uploaded);
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
            let is_linked = index < LINK_COUNT_MAX && self.is_there(path)?;
            references.push((*path, is_linked));
        }
        let main = html! {
            p.crumbs { "Store path" }
            h1 { (info.path.name()) }
            (snippet("Store path", &html! { (info.path.full(self.reader().store().store_dir())) }))
            (snippet("Copy to this machine", &self.copy_command(&info.path)))
            (self.actions(info)?)
            (self.facts(info)?)
            (self.references(&references))
            (self.referrers_section(Some(info), uploaded.as_ref())?)
            @if let Some(uploaded) = &uploaded { (self.upload_section(uploaded)) }
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
        let log = self.open_log(&info.path)?;
        let log = log.map(|_| {
            let name = encode(info.path.base_name().as_bytes());
            self.base.to(&format!("build-log/{name}"))
        });
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
            }
        })
    }

    fn facts(&self, info: &PathInfo) -> Result<Markup, Refusal> {
        let closure = self.members(info)?;
        let closure_url = self
            .base
            .to(&format!("path/{}/closure", info.path.hash_part()));
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
                    div { dt { "Deriver" } dd { (self.path_name(deriver, is_linked)) } }
                }
                @if let Some(address) = &info.content_address {
                    div { dt { "Content address" } dd { code { (address.to_string()) } } }
                }
                div { dt { "Signatures" } dd {
                    @if signatures.is_empty() { span.soft { "none" } }
                    @else { ul { @for name in signatures { li { code { (name) } } } } }
                } }
                (self.metadata(info.path.hash_part()))
            }
        })
    }

    /// Renders links to what clients read about a path.
    pub(super) fn metadata(&self, hash_part: HashPart) -> Markup {
        html! {
            div { dt { "For programs" } dd {
                a href=(self.base.to(&format!("{hash_part}.narinfo"))) { "narinfo" } ", "
                a href=(self.base.to(&format!("{hash_part}.ls"))) { "listing" }
            } }
        }
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
}
