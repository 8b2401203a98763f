//! Debug information by build ID: for debuginfod clients such as gdb, and as cache.nixos.org has
//! it.
//!
//! | URL | response |
//! | --- | --- |
//! | `/buildid/<build ID>/debuginfo` | the file `lib/debug/.build-id/…/….debug` of a path |
//! | `/buildid/<build ID>/executable` | the file to which the link `….executable` beside it leads |
//! | `/buildid/<build ID>/source/<path>` | the file at an absolute path, see below |
//! | `/debuginfo/<build ID>` | JSON with the NAR that has the debug information |
//!
//! # Theory of operation
//!
//! [`BuildIds`](crate::known::build_ids) finds the paths that may have the build ID: first in the
//! Nix store, then among the uploaded paths, then among the kept paths of upstreams. [`Finder`]
//! reads these paths under the policy of the cache, and follows links into other paths. A path that
//! the policy hides is treated as absent.
//!
//! A source file in the store directory is sent from its store path; the build ID does not matter.
//! Sources that were unpacked for a build have paths below `/build`. nixpkgs puts two links beside
//! the debug information: `….sourceoverlay` leads to the files that the build has changed, and
//! `….source` to the unpacked sources.
//!
//! Paths that only an upstream has are not searched.

mod find;
mod unpack;

use std::ops::Range;
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Body, Head, Response};
use samovar_nix::{HashPart, StoreDir, StorePath};
use samovar_storage::StoredCache;

use crate::answer::nar::Part;
use crate::answer::stored_nar;
use crate::known::small_nars::ACCEPT_RANGES;
use crate::reader::Reader;
use crate::refusal::{Fixed, NOSNIFF, Refusal};
use crate::route::Route;
use crate::route::build_id::{Artifact, BuildId};
use crate::upstream::CacheUpstreams;
use find::{Content, Finder, Found, Stored};

/// Directory in which Nix builds on Linux.
const BUILD_DIR: &[u8] = b"build";

/// Number of characters of a hash part.
const HASH_PART_LEN: usize = 32;

/// Answers a GET or HEAD for debug information; `None` for other routes. The client may read the
/// cache.
pub(crate) fn respond(
    reader: &Reader,
    uploads: Option<&StoredCache>,
    upstreams: Option<&CacheUpstreams>,
    (head, route): (Head<'_>, &Route),
) -> Option<Response> {
    if !matches!(route, Route::DebugInfo(_) | Route::Artifact(..)) {
        return None;
    }
    let kept = upstreams.into_iter().flat_map(CacheUpstreams::kept);
    let kept = kept.map(|(stored, trusts)| Stored::Kept(stored, Box::new(trusts)));
    let finder = Finder {
        reader,
        storages: uploads
            .map(Stored::Uploads)
            .into_iter()
            .chain(kept)
            .collect(),
    };
    let answered = match route {
        Route::DebugInfo(Some(id)) => finder.debug_info(id).map(|found| {
            let found = found.map(|found| Response::json(Status::OK, found.json()));
            found.unwrap_or_else(|| Fixed::NotFound.response())
        }),
        Route::Artifact(id, artifact) => finder.artifact(id, artifact).map(|found| {
            let found = found.map(|found| found.response(head));
            found.unwrap_or_else(|| Fixed::NotFound.response())
        }),
        _ => return None,
    };
    Some(answered.unwrap_or_else(|refusal| {
        reader.shared.report(&format_args!("{head:?}"), refusal);
        refusal.answer().response()
    }))
}

impl Finder<'_> {
    fn artifact(&self, id: &BuildId, artifact: &Artifact) -> Result<Option<Found>, Refusal> {
        match artifact {
            Artifact::DebugInfo => self.debug_info(id),
            Artifact::Executable => self.beside(id, &id.names("executable")),
            Artifact::Source(names) => match self.in_store_dir(names) {
                Some((path, names)) => self.file(&path, names),
                None => self.unpacked_source(id, names),
            },
        }
    }

    fn debug_info(&self, id: &BuildId) -> Result<Option<Found>, Refusal> {
        self.beside(id, &id.names("debug"))
    }

    /// Splits the names in the path of a file in the store directory: the store path, and the names
    /// after it.
    fn in_store_dir(&self, names: &[Vec<u8>]) -> Option<(StorePath, Vec<Vec<u8>>)> {
        let (base_name, rest) = split_store_path(self.reader.store().store_dir(), names)?;
        let path = StorePath::from_base_name(&base_name).ok()?;
        Some((path, rest.to_vec()))
    }

    /// Finds a source file that was unpacked for a build.
    fn unpacked_source(&self, id: &BuildId, names: &[Vec<u8>]) -> Result<Option<Found>, Refusal> {
        let Some([directory, root, rest @ ..]) = Some(names).filter(|names| names.len() > 2) else {
            return Ok(None);
        };
        if directory != BUILD_DIR {
            return Ok(None);
        }
        let mut changed = id.names("sourceoverlay");
        changed.push(root.clone());
        for mut names in [changed, id.names("source")] {
            names.extend_from_slice(rest);
            if let Some(found) = self.beside(id, &names)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Splits the names of an absolute path behind the store path. Returns the base name of the store
/// path, and the names after it. nixpkgs writes the hash part in capitals where a path that a
/// compiler records must not become a reference.
fn split_store_path<'a>(dir: &StoreDir, names: &'a [Vec<u8>]) -> Option<(String, &'a [Vec<u8>])> {
    let store = dir.as_str().split('/').filter(|name| !name.is_empty());
    let store: Vec<&[u8]> = store.map(str::as_bytes).collect();
    let (above, below) = names.split_at_checked(store.len())?;
    let (base_name, rest) = below.split_first()?;
    let mut base_name = String::from_utf8(base_name.clone()).ok()?;
    base_name.get_mut(..HASH_PART_LEN)?.make_ascii_lowercase();
    (above == store).then_some((base_name, rest))
}

impl Found {
    /// Returns what cache.nixos.org has at `debuginfo/<build ID>`: the URL of the NAR, relative to
    /// that URL, and the name of the file in it.
    fn json(&self) -> String {
        let member = self.names.join(&b'/');
        let json = serde_json::json!({
            "archive": format!("../{}", self.archive),
            "member": String::from_utf8_lossy(&member),
        });
        json.to_string()
    }

    /// Makes the response with the file.
    fn response(self, head: Head<'_>) -> Response {
        let name = self.names.join(&b'/');
        let size = self.size;
        let in_parts = |body: &dyn Fn(Range<u64>) -> Body| {
            let part = match Part::requested(head, size) {
                Ok(part) => part,
                Err(unsatisfiable) => return unsatisfiable,
            };
            let response = Response::new(part.status, body(part.start..part.end));
            let response = part.with_range(response);
            response.header(ACCEPT_RANGES.0, ACCEPT_RANGES.1)
        };
        let moved = |range: Range<u64>, offset: u64| offset + range.start..offset + range.end;
        let response = match self.content {
            Content::Plain { file, offset } => {
                let file = Arc::new(file);
                in_parts(&|range| Body::file_range(Arc::clone(&file), moved(range, offset)))
            }
            Content::Stored { nar, offset } => {
                in_parts(&|range| stored_nar::body(&nar, moved(range, offset)))
            }
            Content::Packed(nar) => {
                let body = Body::reader_of_len(unpack::reader(nar, size), size);
                Response::new(Status::OK, body)
            }
        };
        let response = response
            .header("Content-Type", "application/octet-stream")
            .header(NOSNIFF.0, NOSNIFF.1)
            .header("X-DEBUGINFOD-SIZE", size.to_string())
            .header("X-DEBUGINFOD-ARCHIVE", self.path.base_name());
        match name.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            true => response.header("X-DEBUGINFOD-FILE", name),
            false => response,
        }
    }
}

/// Returns the hash part that is looked up if no path has the build ID.
fn unused(id: &BuildId) -> HashPart {
    let mut bytes = [0; 20];
    for (byte, digit) in bytes
        .iter_mut()
        .zip(id.names("debug").concat().into_iter().rev())
    {
        *byte = digit;
    }
    HashPart::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<(&str, usize)>) {
        let names = path.split('/').filter(|name| !name.is_empty());
        let names: Vec<_> = names.map(|name| name.as_bytes().to_vec()).collect();
        let split = split_store_path(&StoreDir::default(), &names);
        let split = split.as_ref().map(|(name, rest)| (&**name, rest.len()));
        assert_eq!(split, expected, "{path}");
    }

    #[test]
    fn sources_in_the_store_directory() {
        const BASE: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-x-1.2";
        check(&format!("/nix/store/{BASE}/src/a.c"), Some((BASE, 2)));
        check(&format!("/nix/store/{BASE}"), Some((BASE, 0)));
        let mangled = "ZS83X50C7JBS0HJ70IVX7YKCKXH2ZZL5-x-1.2";
        check(&format!("/nix/store/{mangled}/a.h"), Some((BASE, 1)));
        check("/build/x/a.c", None);
        check("/nix/store", None);
        check("/nix/store/short", None);
        check("/", None);
    }
}
