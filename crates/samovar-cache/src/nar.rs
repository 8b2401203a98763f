//! Answering with a NAR, or a range of one.

use std::io;

use samovar_http::http::{Method, Status, range};
use samovar_http::{Body, Head, Response};
use samovar_nix::{HashPart, NarHash};
use samovar_store::StoreError;

use crate::answers::{no_path, unavailable, wrong_hash};
use crate::cache::Cache;
use crate::nar_body::NarBody;
use crate::registration::Registration;

/// What Nix says when it uploads a NAR. Not `text/plain`, as nix-serve: proxies compress texts on
/// their way, and a compressed download cannot be resumed.
const NAR_TYPE: &str = "application/x-nix-nar";

impl Cache {
    pub(crate) fn nar(
        &self,
        head: Head<'_>,
        hash_part: HashPart,
        nar_hash: Option<NarHash>,
    ) -> Result<Response, StoreError> {
        let Some(registration) = self.registration(hash_part)? else {
            return Ok(no_path());
        };
        let info = &registration.info;
        if nar_hash.is_some_and(|nar_hash| nar_hash != info.nar_hash) {
            return Ok(wrong_hash());
        }
        let size = info.nar_size;
        let outcome = match head.header("Range") {
            // Ranges are defined for GET alone (RFC 9110, 14.2). An `If-Range` cannot match: there
            // are no validators here to compare with (13.1.5).
            Some(value) if head.method() == Method::Get && head.header("If-Range").is_none() => {
                range::resolve(value, size)
            }
            _ => range::RangeOutcome::Whole,
        };
        let (status, start, end) = match outcome {
            range::RangeOutcome::Whole => (Status::OK, 0, size),
            range::RangeOutcome::Part { start, end } => (Status::PARTIAL_CONTENT, start, end),
            range::RangeOutcome::Unsatisfiable => {
                let response = Response::text(Status::RANGE_NOT_SATISFIABLE, "Beyond the end.\n");
                return Ok(response.header("Content-Range", format!("bytes */{size}")));
            }
        };
        let tree = self.store.tree(&info.path)?;
        let reader = match self.nar_from(&registration, &tree, start) {
            Ok(reader) => reader,
            Err(error) => return self.unreadable(&registration, error),
        };
        let body = NarBody::new(reader, (start, end), size, registration);
        let response = Response::new(status, Body::Source(Box::new(body)))
            .header("Content-Type", NAR_TYPE)
            .header("Accept-Ranges", "bytes");
        Ok(match status {
            Status::PARTIAL_CONTENT => {
                response.header("Content-Range", format!("bytes {start}-{}/{size}", end - 1))
            }
            _ => response,
        })
    }

    /// The files of a path cannot be read, and nothing was sent yet. If the path is gone, that is
    /// the answer; if not, something is wrong that is not the client's doing.
    pub(crate) fn unreadable(
        &self,
        registration: &Registration,
        error: io::Error,
    ) -> Result<Response, StoreError> {
        let was = &registration.info;
        match self.lookup(was.path.hash_part())? {
            Some(now) if now.nar_hash == was.nar_hash => {
                registration.report(&error);
                Ok(unavailable())
            }
            Some(_) => Ok(wrong_hash()),
            None => Ok(no_path()),
        }
    }
}
