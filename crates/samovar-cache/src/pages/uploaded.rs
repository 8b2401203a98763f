//! The page of an uploaded path, and the section about uploads on the page of a path.

use maud::{Markup, html};
use samovar_http::Response;
use samovar_http::http::Status;
use samovar_metrics::Event;
use samovar_nix::{HashPart, StorePath};
use samovar_storage::metadata::{CLOSURE_COUNT_MAX, DAY, Details};
use samovar_storage::{StorageError, browse};

use super::View;
use super::landing::snippet;
use super::text::{Count, Date, Day, Name, Size};
use crate::reader::uploaded_info;
use crate::refusal::Refusal;

impl View<'_> {
    /// Returns the details of an uploaded path, unless the policy denies it.
    pub(super) fn uploaded(&self, hash_part: HashPart) -> Result<Option<Details>, Refusal> {
        let Some(stored) = self.cache.stored else {
            return Ok(None);
        };
        let details = browse::details(stored, hash_part);
        let details = details.map_err(|error| self.failed(&error))?;
        let Some(details) = details else {
            return Ok(None);
        };
        match self.reader().admit_uploaded(&details.path) {
            Ok(()) => Ok(Some(details)),
            Err(refusal) if refusal.is_absence() => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Reports an error of the storage, and makes the refusal.
    pub(super) fn failed(&self, error: &StorageError) -> Refusal {
        let observer = &self.reader().shared.observer;
        observer.event(&Event::StorageFailed(error));
        Refusal::Unreadable
    }

    /// Renders the page of a path that only the storage has.
    pub(super) fn uploaded_page(&self, details: &Details) -> Result<Response, Refusal> {
        let path = &details.path;
        let dir = self.reader().store().store_dir();
        let others = path.references.iter().filter(|other| **other != path.path);
        let mut references = Vec::new();
        for other in others {
            references.push((other, self.has_page(other)?));
        }
        let main = html! {
            p.crumbs { "Store path" }
            h1 { (path.path.name()) }
            (snippet("Store path", &html! { (path.path.full(dir)) }))
            (snippet("Copy to this machine", &self.copy_command(&path.path)))
            (self.downloads(details))
            (self.upload_facts(details))
            (self.references(&references))
            (self.referrers_section(None, Some(details))?)
            (self.upload_section(details))
        };
        Ok(self
            .page(path.path.name(), "path-page", main)
            .response(Status::OK))
    }

    fn downloads(&self, details: &Details) -> Markup {
        let nar = &details.path.nar;
        html! {
            ul.actions {
                li.first {
                    a href=(self.base.to(&nar.object_key)) {
                        "Download NAR, " (Size(nar.file_size).brief())
                    }
                }
            }
        }
    }

    fn upload_facts(&self, details: &Details) -> Markup {
        let (path, nar) = (&details.path, &details.path.nar);
        let dir = self.reader().store().store_dir();
        let signing = &self.cache.narinfos.signing;
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
                    div { dt { "Deriver" } dd { (self.path_name(deriver, false)) } }
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
                (self.metadata(path.path.hash_part()))
            }
        }
    }

    /// Renders the token with which a path was uploaded, its last use, and its pins if the client
    /// may read them.
    pub(super) fn upload_section(&self, details: &Details) -> Markup {
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
                    @if self.shows_pins { div { dt { "Pins" } dd {
                        @if details.pins.is_empty() { span.soft { "none" } }
                        @else { ul { @for (name, generation) in &details.pins {
                            li { (Name(name.as_bytes())) ", generation " (generation) }
                        } } }
                    } } }
                }
            }
        }
    }

    /// Whether the page of a path may be shown: of an uploaded one, or of one in the Nix store.
    pub(super) fn has_page(&self, path: &StorePath) -> Result<bool, Refusal> {
        let hash_part = path.hash_part();
        let stored = self.cache.stored;
        let is_shown = match self.reader().policy.is_open() {
            true => stored.is_some_and(|stored| stored.may_contain(hash_part)),
            false => self.is_uploaded(path)?,
        };
        Ok(is_shown || self.is_there(path)?)
    }

    /// Whether a path was uploaded, and may be shown.
    pub(super) fn is_uploaded(&self, path: &StorePath) -> Result<bool, Refusal> {
        let Some(stored) = self.cache.stored else {
            return Ok(false);
        };
        let found = stored.peek(path.hash_part());
        let Some(found) = found.map_err(|error| self.failed(&error))? else {
            return Ok(false);
        };
        match self.reader().admit_uploaded(&found) {
            Err(refusal) if !refusal.is_absence() => Err(refusal),
            admitted => Ok(admitted.is_ok()),
        }
    }
}
