//! Objects that are written in parts.
//!
//! An upload is begun, its parts are sent, up to four at once, and completing it makes the object
//! exist. If anything fails for good, it is aborted, so that the engine frees the parts.
//!
//! The answer to the request that completes it can be lost, and engines then answer the second one
//! differently: Amazon and others with the same success, some with 404, some with 403. So each
//! failure to complete is followed by a look at the object.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusty_s3::Method;

use crate::error::{BucketError, Fault};
use crate::put::{PutOptions, digest_of_piece, with_options};
use crate::stat::head;
use crate::wire::{Body, Refusal, Request, Wire};
use crate::xml::{append_text, element};

/// Length up to which an object is written by one PUT.
pub(crate) const WHOLE_LEN_MAX: u64 = 16 << 20;

/// Least length of a part. S3 asks for 5 MiB.
const PART_LEN_MIN: u64 = 8 << 20;

/// Number of parts that is not exceeded. S3 allows 10,000.
const PARTS_MAX: u64 = 9000;

/// Number of parts that are sent at once.
const AT_ONCE: u64 = 4;

/// How often an upload begins anew that the engine has forgotten.
const UPLOADS_MAX: u32 = 2;

/// Some engines copy the parts to join them. In bytes a second.
const JOIN_RATE_MIN: u64 = 20 << 20;

/// Writes an object in parts.
pub(crate) fn put(
    wire: &Wire,
    key: &str,
    file: &File,
    len: u64,
    options: &PutOptions,
) -> Result<(), BucketError> {
    let source = Source {
        wire,
        key: wire.whole(key)?,
        file,
        len,
        part_len: part_len(len),
    };
    let mut uploads = 1;
    loop {
        match source.upload(options) {
            Err(error) if matches!(error.fault(), Fault::NoUpload) && uploads < UPLOADS_MAX => {
                uploads += 1;
            }
            other => return other,
        }
    }
}

fn part_len(len: u64) -> u64 {
    len.div_ceil(PARTS_MAX).max(PART_LEN_MIN)
}

/// What is uploaded.
struct Source<'s> {
    wire: &'s Wire,
    /// Whole key.
    key: String,
    file: &'s File,
    len: u64,
    part_len: u64,
}

/// An upload that was begun.
struct Upload {
    id: String,
    /// In seconds since 1970, by the engine's clock.
    begun_at: Option<i64>,
}

/// A part that the engine has.
#[derive(Debug, Clone)]
struct Part {
    etag: String,
    /// SHA-256 in base 64.
    sha256: String,
}

impl Source<'_> {
    fn upload(&self, options: &PutOptions) -> Result<(), BucketError> {
        let upload = self.begin(options)?;
        let parts = self.parts(&upload.id);
        let done = parts.and_then(|parts| self.complete(&upload, &parts));
        if done.is_err() {
            self.abort(&upload.id);
        }
        done
    }

    fn begin(&self, options: &PutOptions) -> Result<Upload, BucketError> {
        let request = Request::object(Method::Post, &self.key)
            .query("uploads", "")
            .signed("x-amz-checksum-algorithm", "SHA256");
        let request = with_options(request, options);
        let failed = |fault| self.wire.error(request.to_string(), fault);
        let answer = self.wire.send(&request)?;
        let begun_at = answer.date();
        let text = answer.text().map_err(failed)?;
        let id = element(&text, "UploadId");
        let id = id.ok_or_else(|| failed(Refusal::in_success(&text)))?;
        Ok(Upload { id, begun_at })
    }

    /// Sends all parts. After the first failure, no other part is begun.
    fn parts(&self, id: &str) -> Result<Vec<Part>, BucketError> {
        let count = self.len.div_ceil(self.part_len);
        let next = AtomicU64::new(0);
        let has_failed = AtomicBool::new(false);
        let sent = Mutex::new(Vec::new());
        let failure = Mutex::new(None);
        let send_parts = || {
            while !has_failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                match self.part(id, index) {
                    Ok(part) => lock(&sent).push((index, part)),
                    Err(error) => {
                        has_failed.store(true, Ordering::Relaxed);
                        lock(&failure).get_or_insert(error);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..AT_ONCE.min(count) {
                scope.spawn(send_parts);
            }
            send_parts();
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let mut sent = sent.into_inner().unwrap_or_else(PoisonError::into_inner);
        sent.sort_unstable_by_key(|&(index, _)| index);
        Ok(sent.into_iter().map(|(_, part)| part).collect())
    }

    fn part(&self, id: &str, index: u64) -> Result<Part, BucketError> {
        let offset = index * self.part_len;
        let len = self.part_len.min(self.len - offset);
        let failed = |fault| self.wire.error(format!("PUT part of {}", self.key), fault);
        let sha256 = digest_of_piece(self.file, offset, len);
        let sha256 = STANDARD.encode(sha256.map_err(|error| failed(Fault::File(error)))?);
        let file = self.file;
        let request = Request::object(Method::Put, &self.key)
            .query("partNumber", (index + 1).to_string())
            .query("uploadId", id.to_owned())
            .signed("x-amz-checksum-sha256", sha256.clone())
            .body(Body::Piece { file, offset, len });
        let answer = self.wire.send(&request)?;
        let etag = answer.etag().map(str::to_owned);
        answer.finish();
        let what = "the part has no entity tag";
        let etag = etag.ok_or_else(|| failed(Fault::Answer { what }))?;
        Ok(Part { etag, sha256 })
    }

    /// Makes the object exist.
    fn complete(&self, upload: &Upload, parts: &[Part]) -> Result<(), BucketError> {
        let body = completion(parts);
        let mut request = Request::object(Method::Post, &self.key)
            .query("uploadId", upload.id.clone())
            .header("content-type", "application/xml")
            .body(Body::Bytes(body.as_bytes()));
        request.work = Duration::from_secs(self.len / JOIN_RATE_MIN);
        match self.completed(&request) {
            Ok(()) => Ok(()),
            // Its answer may have been lost, or the engine has done it and forgotten.
            Err(_) if self.is_there(upload)? => Ok(()),
            // The credentials may do this, for they sent the parts: so it means the upload.
            Err(error) if error.is_denied() => {
                Err(self.wire.error(self.key.clone(), Fault::NoUpload))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the request that completes the upload. An error in an answer of success is one that
    /// may pass, as Amazon documents, so it is sent once more.
    fn completed(&self, request: &Request<'_>) -> Result<(), BucketError> {
        let failed = |fault| self.wire.error(request.to_string(), fault);
        let mut is_second = false;
        loop {
            let text = self.wire.send(request)?.text().map_err(failed)?;
            if text.contains("<CompleteMultipartUploadResult") {
                return Ok(());
            }
            let error = failed(Refusal::in_success(&text));
            if is_second || !error.is_transient() {
                return Err(error);
            }
            is_second = true;
        }
    }

    /// Returns whether the object is there, of this upload and not of an earlier one.
    fn is_there(&self, upload: &Upload) -> Result<bool, BucketError> {
        let Some(stat) = head(self.wire, &self.key)? else {
            return Ok(false);
        };
        // Amazon dates an object by the begin of its upload, others by the end.
        let is_new = upload
            .begun_at
            .is_none_or(|begun_at| stat.modified_at >= begun_at);
        Ok(stat.len == self.len && is_new)
    }

    /// Frees the parts. If that fails, a rule of the bucket for unfinished uploads must do it.
    fn abort(&self, id: &str) {
        let request = Request::object(Method::Delete, &self.key).query("uploadId", id.to_owned());
        if let Ok(answer) = self.wire.send_within(&request, 2) {
            answer.finish();
        }
    }
}

/// Returns the list of parts. Engines that keep no checksums do not look at them.
fn completion(parts: &[Part]) -> String {
    let mut body = String::from("<CompleteMultipartUpload>");
    for (part, number) in parts.iter().zip(1_u64..) {
        body.push_str("<Part><ETag>");
        append_text(&mut body, &part.etag);
        body.push_str("</ETag><ChecksumSHA256>");
        append_text(&mut body, &part.sha256);
        body.push_str("</ChecksumSHA256><PartNumber>");
        body.push_str(&number.to_string());
        body.push_str("</PartNumber></Part>");
    }
    body.push_str("</CompleteMultipartUpload>");
    body
}

// A thread that panicked has pushed nothing.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_parts_keeps_their_number_within_the_limit() {
        assert_eq!(part_len(WHOLE_LEN_MAX + 1), PART_LEN_MIN);
        assert_eq!(part_len(PART_LEN_MIN * PARTS_MAX), PART_LEN_MIN);
        assert_eq!(part_len(PART_LEN_MIN * PARTS_MAX + 1), PART_LEN_MIN + 1);
        let len: u64 = 5 << 40;
        assert!(len.div_ceil(part_len(len)) <= PARTS_MAX);
    }
}
