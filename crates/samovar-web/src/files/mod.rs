//! Files as responses: media type, validators, conditional requests, ranges.

mod folder;
mod media_type;

use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use rustix::io::Errno;
use samovar_http::http::range::{RangeOutcome, resolve};
use samovar_http::http::{Method, Status};
use samovar_http::{Body, Error, Head, Request, Response};

use crate::conditional::{Precondition, Validators};

pub use folder::Files;

/// Time after a modification of a file within which another modification may leave its time as it
/// is: clocks of file systems tick some hundred times a second, those of some network file systems
/// once a second.
const SETTLING_TIME: Duration = Duration::from_secs(2);

/// The latest time of modification, in seconds since 1970, that is ignored: the Nix store sets 1
/// for all files. Browsers would take such files for old ones, and keep them for years.
const NO_TIME_S: i64 = 1;

/// Creates the response to a GET or HEAD request from a file, whose path the program has chosen.
/// [`Files`] serves a directory.
///
/// The response has the media type of the name's extension, `ETag`, `Last-Modified` and
/// `X-Content-Type-Options: nosniff`, and supports conditional requests (304, 412) and ranges (206,
/// 416). The kernel sends the bytes from the page cache.
///
/// The entity tag is made of the file's length, time of modification and inode, and is weak for two
/// seconds after a modification. A file that is modified while it is sent may be sent in a mixture
/// of both versions: replace files by renaming.
///
/// ```
/// use samovar_http::{Error, Request, Response, Router};
///
/// fn manual(request: &mut Request) -> Result<Response, Error> {
///     samovar_web::file(request, "doc/manual.pdf")
/// }
/// let router = Router::new().get("/manual", manual);
/// ```
///
/// # Errors
///
/// 404 if there is no regular file at the path, 403 if it may not be read.
pub fn file(request: &Request, path: impl AsRef<Path>) -> Result<Response, Error> {
    let path = path.as_ref();
    respond(request, path, path)
}

/// Creates the response from the file at `path`, which has the media type of `name`.
fn respond(request: &Request, path: &Path, name: &Path) -> Result<Response, Error> {
    // Opening a device may have effects, so look at the type first.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Status::NOT_FOUND.into());
    }
    // A pipe may have replaced the file since then: opening it must not block the worker.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(failed)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Status::NOT_FOUND.into());
    }
    let version = version(&metadata, SystemTime::now());
    let head = request.head();
    Ok(match version.check(head) {
        Precondition::Holds => content(head, file, metadata.len(), &version, name),
        Precondition::NotModified => {
            version.add_to(Response::new(Status::NOT_MODIFIED, Body::Empty))
        }
        Precondition::Failed => Response::text(
            Status::PRECONDITION_FAILED,
            "the file has another version\n",
        ),
    })
}

/// Converts an error of a look-up. A name that no file can have, a file in the place of a
/// directory, and symbolic links in a circle are absences.
fn failed(error: io::Error) -> Error {
    use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound, PermissionDenied};
    if Errno::from_io_error(&error) == Some(Errno::LOOP) {
        return Status::NOT_FOUND.into();
    }
    match error.kind() {
        NotFound | NotADirectory | InvalidFilename | InvalidInput => Status::NOT_FOUND.into(),
        PermissionDenied => Status::FORBIDDEN.into(),
        _ => error.into(),
    }
}

/// Creates the response with the file, or with the part of it that the client wants.
fn content(head: Head<'_>, file: File, len: u64, version: &Validators, name: &Path) -> Response {
    // RFC 9110, 14.2: ranges are defined for GET only.
    let has_range = head.method() == Method::Get && version.allows_range(head);
    let range = head.header("range").filter(|_| has_range);
    let response = match resolve(range.unwrap_or_default(), len) {
        RangeOutcome::Whole => Response::new(Status::OK, Body::file_range(file, 0..len)),
        RangeOutcome::Part { start, end } => {
            Response::new(Status::PARTIAL_CONTENT, Body::file_range(file, start..end))
                .header("Content-Range", format!("bytes {start}-{}/{len}", end - 1))
        }
        RangeOutcome::Unsatisfiable => {
            let text = format!("the file has {len} bytes\n");
            return Response::text(Status::RANGE_NOT_SATISFIABLE, text)
                .header("Content-Range", format!("bytes */{len}"));
        }
    };
    version
        .add_to(response)
        .header("Content-Type", media_type::of(name))
        .header("Accept-Ranges", "bytes")
        .header("X-Content-Type-Options", "nosniff")
}

/// Returns the validators of a file.
fn version(metadata: &Metadata, now: SystemTime) -> Validators {
    let mut hasher = DefaultHasher::new();
    let time = (metadata.mtime(), metadata.mtime_nsec());
    (metadata.dev(), metadata.ino(), metadata.len(), time).hash(&mut hasher);
    let tag = hasher.finish();
    let modified = metadata.modified().unwrap_or(now);
    let is_settled = now
        .duration_since(modified)
        .is_ok_and(|age| age >= SETTLING_TIME);
    let version = match is_settled {
        true => Validators::new().etag(format!("\"{tag:016x}\"")),
        false => Validators::new().etag(format!("W/\"{tag:016x}\"")),
    };
    match metadata.mtime() > NO_TIME_S {
        true => version.modified(modified),
        false => version,
    }
}
