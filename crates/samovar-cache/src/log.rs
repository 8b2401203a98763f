//! Answering with a build log.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Batch, Body, Head, Progress, Response, Source};
use samovar_nix::StorePath;
use samovar_store::Log;

use crate::cache::Cache;
use crate::policy::Decision;
use crate::refusal::Refusal;

/// The text of a log. Its length is not known, because most are compressed.
#[derive(Debug)]
pub(crate) struct LogText(pub(crate) Log);

impl Source for LogText {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        while batch.room_len() > 0 {
            match self.0.read(batch.room()) {
                Ok(0) => return Ok(Progress::End),
                Ok(len) => batch.advance(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::More)
    }
}

/// A log's file as it is.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) file: Arc<File>,
    pub(crate) len: u64,
}

impl Source for LogFile {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        batch.file(Arc::clone(&self.file), 0, self.len);
        Ok(Progress::End)
    }
}

impl Cache {
    pub(crate) fn log(&self, head: Head<'_>, path: &StorePath) -> Result<Response, Refusal> {
        self.admit_log(path)?;
        let log = self.origin.store.log(path)?.ok_or(Refusal::Absent)?;
        let respond = |body| {
            Response::new(Status::OK, body)
                .header("Content-Type", "text/plain")
                .header("Vary", "Accept-Encoding")
        };
        let log = if log.is_bzip2() && accepts_bzip2(head) {
            match log.into_bzip2() {
                Ok((file, len)) => {
                    let body = LogFile {
                        file: Arc::new(file),
                        len,
                    };
                    return Ok(
                        respond(Body::Source(Box::new(body))).header("Content-Encoding", "bzip2")
                    );
                }
                Err(log) => log,
            }
        } else {
            log
        };
        Ok(respond(Body::Source(Box::new(LogText(log)))))
    }

    /// Refuses a build log that may not be read.
    ///
    /// A log tells about the derivation and all its outputs: it may be read if one of them may be,
    /// and none of them is denied. Requested by an output, that output must be readable.
    pub(crate) fn admit_log(&self, path: &StorePath) -> Result<(), Refusal> {
        if self.narinfos.policy.is_open() {
            return Ok(());
        }
        if self.narinfos.policy.is_unknown() {
            return Err(Refusal::Undecided);
        }
        let mut paths = vec![path.clone()];
        let mut may_be_read = false;
        if !path.is_derivation() {
            let registration = self.readable(path.hash_part())?;
            if registration.info.path != *path {
                return Err(Refusal::Absent);
            }
            may_be_read = true;
            paths = registration.info.deriver.into_iter().collect();
        }
        if let Some(derivation) = paths.first() {
            paths.extend(self.origin.store.outputs(derivation)?);
        }
        let hash_parts: Vec<_> = paths.iter().map(StorePath::hash_part).collect();
        for (path, looked) in paths
            .iter()
            .zip(self.origin.store.lookup_many(&hash_parts)?)
        {
            match looked {
                Ok(Some(info)) if info.path == *path => match self.narinfos.decide(&info) {
                    Decision::Allowed { .. } => may_be_read = true,
                    Decision::NotAllowed => {}
                    Decision::Denied => return Err(Refusal::NotReadable),
                    Decision::Unknown => return Err(Refusal::Undecided),
                },
                // A row that cannot be read may be of a denied path.
                Err(_) => return Err(Refusal::NotReadable),
                Ok(_) => {}
            }
        }
        may_be_read.then_some(()).ok_or(Refusal::NotReadable)
    }
}

/// Whether the client lists `bzip2` and does not give it weight 0 (RFC 9110, 12.5.3).
fn accepts_bzip2(head: Head<'_>) -> bool {
    head.headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"accept-encoding"))
        .any(|(_, value)| {
            let value = String::from_utf8_lossy(value);
            value.split(',').any(|item| {
                let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
                let weight = weight.trim().trim_start_matches(['q', 'Q']).trim_start();
                let is_zero = weight
                    .strip_prefix('=')
                    .is_some_and(|number| number.trim().bytes().all(|b| matches!(b, b'0' | b'.')));
                coding.trim().eq_ignore_ascii_case("bzip2") && !is_zero
            })
        })
}
