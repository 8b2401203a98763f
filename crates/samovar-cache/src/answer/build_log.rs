//! Responses with build logs.

use std::io::Read;

use samovar_http::http::{Status, accept_encoding};
use samovar_http::{Body, Head, Response};
use samovar_metrics::Event;
use samovar_nix::StorePath;
use samovar_storage::{StorageError, StoredCache, browse};

use crate::prepared::Field;
use crate::reader::Reader;
use crate::reader::policy::Decision;
use crate::refusal::{NOSNIFF, Refusal};

/// The media type of a build log. Builds print UTF-8, or what browsers show as replacements.
const LOG_TYPE: Field = ("Content-Type", "text/plain; charset=utf-8");

/// Answers `/log/<base name>`.
pub(crate) fn respond(
    reader: &Reader,
    head: Head<'_>,
    path: &StorePath,
) -> Result<Response, Refusal> {
    admit(reader, path)?;
    let log = reader.store().log(path)?.ok_or(Refusal::Absent)?;
    // Most logs are stored in compressed form, so the length of the text is unknown.
    if !log.is_bzip2() || !accepts_bzip2(head) {
        return Ok(response(text(log)));
    }
    Ok(match log.into_bzip2() {
        Ok((file, len)) => {
            response(Body::file_range(file, 0..len)).header("Content-Encoding", "bzip2")
        }
        Err(log) => response(text(log)),
    })
}

/// Makes the response with a log of the store, or with an uploaded one. The form of a log of the
/// store depends on the request. `Vary` is sent with uploaded logs, too, because a URL may have an
/// uploaded log now, and one of the store later.
pub(crate) fn response(body: Body) -> Response {
    Response::new(Status::OK, body)
        .header(LOG_TYPE.0, LOG_TYPE.1)
        .header(NOSNIFF.0, NOSNIFF.1)
        .header("Vary", "Accept-Encoding")
}

/// Returns a body with the text of a log. Most logs are decompressed, which computes and never
/// waits.
fn text(log: impl Read + Send + 'static) -> Body {
    Body::reader(log).keeping_slot()
}

/// Returns an error if a build log may not be read.
///
/// A log reveals something about the derivation and all its outputs. So it may be read if at least
/// one of these paths may be read and none is denied. If the log was requested by an output, that
/// output itself must be readable.
pub(crate) fn admit(reader: &Reader, path: &StorePath) -> Result<(), Refusal> {
    if reader.policy.is_open() {
        return Ok(());
    }
    if reader.policy.is_unknown() {
        return Err(Refusal::Undecided);
    }
    let mut paths = vec![path.clone()];
    let mut may_be_read = false;
    if !path.is_derivation() {
        let info = reader.readable(path.hash_part())?;
        if info.path != *path {
            return Err(Refusal::Absent);
        }
        may_be_read = true;
        paths = info.deriver.into_iter().collect();
    }
    if let Some(derivation) = paths.first() {
        paths.extend(reader.store().outputs(derivation)?);
    }
    let hash_parts: Vec<_> = paths.iter().map(StorePath::hash_part).collect();
    for (path, looked) in paths.iter().zip(reader.store().lookup_many(&hash_parts)?) {
        match looked {
            Ok(Some(info)) if info.path == *path => match reader.decide(&info) {
                Decision::Allowed { .. } => may_be_read = true,
                Decision::NotAllowed => {}
                Decision::Denied => return Err(Refusal::NotReadable),
                Decision::Unknown => return Err(Refusal::Undecided),
            },
            // The policy may deny the path of a row that cannot be read.
            Err(_) => return Err(Refusal::NotReadable),
            Ok(_) => {}
        }
    }
    may_be_read.then_some(()).ok_or(Refusal::NotReadable)
}

/// Returns an error if an uploaded build log may not be read.
///
/// Uploaders have chosen to send the log, so no path needs to be allowed. But the log reveals
/// something about the derivation and all its outputs, uploaded ones and those in the Nix store, so
/// none of them may be denied.
pub(crate) fn admit_uploaded(
    reader: &Reader,
    stored: &StoredCache,
    path: &StorePath,
) -> Result<(), Refusal> {
    if reader.policy.is_open() {
        return Ok(());
    }
    let failed = |error: StorageError| {
        reader.shared.observer.event(&Event::StorageFailed(&error));
        Refusal::Unreadable
    };
    let mut paths = vec![path.clone()];
    let mut derivation = path.is_derivation().then(|| path.clone());
    let mut is_known = false;
    if let Some(uploaded) = stored.peek(path.hash_part()).map_err(failed)? {
        reader.admit_uploaded(&uploaded)?;
        derivation = derivation.or(uploaded.deriver);
        is_known = true;
    }
    if let Some(derivation) = &derivation {
        for output in browse::of_deriver(stored, derivation).map_err(failed)? {
            reader.admit_uploaded(&output)?;
        }
        paths.extend(reader.store().outputs(derivation)?);
        paths.push(derivation.clone());
    }
    let hash_parts: Vec<_> = paths.iter().map(StorePath::hash_part).collect();
    for (other, looked) in paths.iter().zip(reader.store().lookup_many(&hash_parts)?) {
        match looked {
            Ok(Some(info)) if info.path == *other => {
                not_denied(reader.decide(&info))?;
                is_known |= other == path;
            }
            Err(_) => return Err(Refusal::NotReadable),
            Ok(_) => {}
        }
    }
    match is_known {
        true => Ok(()),
        // Nothing but the name is known of the path.
        false => not_denied(reader.decide_by_name(path)),
    }
}

fn not_denied(decision: Decision) -> Result<(), Refusal> {
    match decision {
        Decision::Allowed { .. } | Decision::NotAllowed => Ok(()),
        Decision::Denied => Err(Refusal::NotReadable),
        Decision::Unknown => Err(Refusal::Undecided),
    }
}

/// Whether the client accepts `bzip2` by name, with a quality above zero.
fn accepts_bzip2(head: Head<'_>) -> bool {
    let fields = head.headers();
    let fields = fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"accept-encoding"));
    accept_encoding::names_coding(fields.map(|(_, value)| value), "bzip2")
}
