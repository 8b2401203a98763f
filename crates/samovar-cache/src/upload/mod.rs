//! Uploads: PUT requests of stock Nix clients, and answers about uploaded paths.
//!
//! # URLs
//!
//! Every URL of a cache also exists below `upload/`, where only uploaded paths are known. A client
//! that pushes there learns what it has to send; below the cache's own URL it would see the paths
//! of the live Nix store, too, which its references may then depend on.
//!
//! | PUT | treatment |
//! | --- | --- |
//! | `nix-cache-info` | accepted if its `StoreDir` is ours |
//! | `nar/<file hash>.nar…` | verified, kept |
//! | `<hash part>.narinfo` | compared with the file, published |
//! | `log/<base name>` | kept |
//! | `<hash part>.ls`, `debuginfo/…` | accepted and discarded: listings are made here |
//! | `realisations/…`, `build-trace-v2/…` | refused: not implemented |
//!
//! # Access
//!
//! Uploading needs a token with the right to push, as the password of any login or as a bearer
//! token. A token with the right to read also reads a cache that is not public.
//!
//! # Errors
//!
//! A refusal is 4xx with one sentence. Nix before 2.33 sends an empty body when it repeats a PUT,
//! so it gets 422 where others get 503 or 507.

mod target;

use std::cell::Cell;
use std::io::{self, Read as _};
use std::time::{SystemTime, UNIX_EPOCH};

use samovar_http::http::range::RangeOutcome;
use samovar_http::http::{Method, Status};
use samovar_http::{Body, BodyError, Head, Intake, Request, Response};
use samovar_metrics::Event;
use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};
use samovar_storage::metadata::{Published, StoredPath};
use samovar_storage::token::{PREFIX, Token};
use samovar_storage::verify::FileName;
use samovar_storage::{NARINFO_LEN_MAX, PutError, Refusal, StorageError, StoredCache};

use crate::access::credentials::Credentials;
use crate::answer::nar::requested_range;
use crate::narinfo::narinfos::Narinfos;
use crate::refusal::{Fixed, TEXT};

use self::target::{Kind, Target};

/// Longest body of a PUT, in bytes: a NAR may have 64 GiB, and a compressor may add to it.
const BODY_LEN_MAX: u64 = 65 << 30;

/// Longest body that is received before a worker gets the request, in bytes. Most NARs and all
/// narinfos are shorter, so clients on slow lines hold no worker.
const BUFFERED_LEN_MAX: u64 = 1 << 20;

/// Longest build log, in bytes.
const LOG_LEN_MAX: u64 = 64 << 20;

/// The uploads of one cache.
#[derive(Debug)]
pub(crate) struct Uploads {
    stored: StoredCache,
}

/// What a request needs to know of its cache.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) narinfos: &'a Narinfos,
    pub(crate) store_dir: &'a StoreDir,
    pub(crate) cache_info: &'a [u8],
}

/// Whether a request is about uploads alone, so that a worker answers it: PUT, a URL below
/// `upload/`, and the file of a NAR. `path`: without the prefix of the cache.
pub(crate) fn is_about_uploads(method: Method, path: &[u8]) -> bool {
    let target = Target::of(path);
    method == Method::Put || target.is_below_upload || matches!(target.kind, Kind::Nar(_))
}

/// How the body of a PUT is received.
pub(crate) fn intake(head: Head<'_>) -> Intake {
    let len = head
        .header_text("Content-Length")
        .and_then(|len| len.parse::<u64>().ok());
    match len {
        // Nothing is kept in memory of clients without a token.
        Some(len) if len <= BUFFERED_LEN_MAX && has_token(head) => {
            Intake::Buffered(BUFFERED_LEN_MAX)
        }
        _ => Intake::Streamed(BODY_LEN_MAX),
    }
}

/// Whether the request carries the text of a token, which a worker has to look up.
pub(crate) fn has_token(head: Head<'_>) -> bool {
    with_token(head, |_| ()).is_some()
}

impl Uploads {
    pub(crate) fn new(stored: StoredCache) -> Self {
        Self { stored }
    }

    /// Whether an uploaded path may have this hash part. Never blocks on a disk.
    pub(crate) fn may_contain(&self, hash_part: HashPart) -> bool {
        self.stored.may_contain(hash_part)
    }

    /// Whether a token admits a request to a cache that is not public. Reading needs the right to
    /// read, except below `upload/`, where clients look before they push.
    pub(crate) fn admits(&self, head: Head<'_>, path: &[u8]) -> bool {
        let token = with_token(head, |text| self.stored.authorize(text, now()));
        let is_push = || head.method() == Method::Put || Target::of(path).is_below_upload;
        matches!(token, Some(Ok(Some(token))) if token.rights.read || is_push())
    }

    /// Answers a request on a worker, if it is about uploads alone: PUT, anything below `upload/`,
    /// and the file of a NAR. `path`: without the prefix of the cache.
    pub(crate) fn handle(
        &self,
        context: Context<'_>,
        request: &mut Request,
        below_prefix: usize,
    ) -> Option<Response> {
        let head = request.head();
        let target = Target::of(head.path().get(below_prefix..).unwrap_or_default());
        match head.method() {
            Method::Put => Some(self.put(context, request, &target)),
            Method::Get | Method::Head if target.is_below_upload => {
                Some(self.get(context, head, &target))
            }
            Method::Get | Method::Head => match &target.kind {
                Kind::Nar(name) => Some(self.nar(context, head, name)),
                _ => None,
            },
            _ if target.is_below_upload => Some(
                refused(Status::METHOD_NOT_ALLOWED, "use GET, HEAD or PUT")
                    .header("Allow", "GET, HEAD, PUT"),
            ),
            _ => None,
        }
    }

    /// The answer about an uploaded path, where the live Nix store has none; `None` for other URLs.
    pub(crate) fn find(&self, context: Context<'_>, path: &[u8]) -> Option<Response> {
        match Target::of(path).kind {
            Kind::Narinfo(hash_part) => Some(self.narinfo(context, hash_part)),
            Kind::Listing(hash_part) => Some(self.listing(context, hash_part)),
            Kind::Log(path) => Some(self.log(context, &path)),
            _ => None,
        }
    }

    /// Answers a GET or HEAD from uploaded paths alone.
    fn get(&self, context: Context<'_>, head: Head<'_>, target: &Target) -> Response {
        match &target.kind {
            Kind::CacheInfo => {
                Response::new(Status::OK, context.cache_info.to_vec()).header(TEXT.0, TEXT.1)
            }
            Kind::Narinfo(hash_part) => self.narinfo(context, *hash_part),
            Kind::Listing(hash_part) => self.listing(context, *hash_part),
            Kind::Nar(name) => self.nar(context, head, name),
            Kind::Log(path) => self.log(context, path),
            Kind::DebugInfo | Kind::Realisation | Kind::Unknown => Fixed::NotFound.response(),
        }
    }

    /// The narinfo of an uploaded path.
    fn narinfo(&self, context: Context<'_>, hash_part: HashPart) -> Response {
        match self.stored.lookup(hash_part) {
            Ok(Some(path)) => Response::new(Status::OK, render(context, &path))
                .header("Content-Type", "text/x-nix-narinfo"),
            Ok(None) => Fixed::NoPath.response(),
            Err(error) => unavailable(context, &error),
        }
    }

    /// The listing of an uploaded path.
    fn listing(&self, context: Context<'_>, hash_part: HashPart) -> Response {
        let listing = self
            .stored
            .lookup(hash_part)
            .and_then(|path| path.map_or(Ok(None), |path| self.stored.listing(&path)));
        match listing {
            Ok(Some(listing)) => match samovar_storage::listing_reader(listing) {
                Ok(reader) => Response::new(Status::OK, Body::reader(reader))
                    .header("Content-Type", "application/json"),
                Err(error) => unavailable(context, &error),
            },
            Ok(None) => Fixed::NoPath.response(),
            Err(error) => unavailable(context, &error),
        }
    }

    /// The build log that a client has uploaded.
    fn log(&self, context: Context<'_>, path: &StorePath) -> Response {
        match self.stored.open_log(path) {
            Ok(Some(file)) => match Body::file(file) {
                Ok(body) => Response::new(Status::OK, body).header("Content-Type", TEXT.1),
                Err(_failed) => Fixed::Unavailable.response(),
            },
            Ok(None) => Fixed::NoPath.response(),
            Err(error) => unavailable(context, &error),
        }
    }

    /// The file of a NAR.
    fn nar(&self, context: Context<'_>, head: Head<'_>, name: &FileName) -> Response {
        let token = with_token(head, |text| self.stored.authorize(text, now()));
        let opened = token
            .transpose()
            .and_then(|token| self.stored.open_file(token.flatten().as_ref(), name));
        let (nar, file) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => return Fixed::NoPath.response(),
            Err(error) => return unavailable(context, &error),
        };
        // The stored file has another compression: HEAD says that the NAR need not be sent.
        if head.method() == Method::Get && nar.file_hash != *name.file_hash() {
            return Fixed::NoPath.response();
        }
        let size = nar.file_size;
        let (status, (start, end)) = match requested_range(head, size) {
            RangeOutcome::Whole => (Status::OK, (0, size)),
            RangeOutcome::Part { start, end } => (Status::PARTIAL_CONTENT, (start, end)),
            RangeOutcome::Unsatisfiable => {
                return Response::text(Status::RANGE_NOT_SATISFIABLE, "Beyond the end.\n")
                    .header("Content-Range", format!("bytes */{size}"));
            }
        };
        let response = Response::new(status, Body::file_range(file, start..end))
            .header("Content-Type", "application/x-nix-nar")
            .header("Accept-Ranges", "bytes");
        match status == Status::PARTIAL_CONTENT {
            true => response.header("Content-Range", format!("bytes {start}-{}/{size}", end - 1)),
            false => response,
        }
    }

    fn put(&self, context: Context<'_>, request: &mut Request, target: &Target) -> Response {
        let token = match self.pusher(context, request.head()) {
            Ok(token) => token,
            Err(response) => return response,
        };
        if request.head().header("Content-Encoding").is_some() {
            return refused(
                Status::UNSUPPORTED_MEDIA_TYPE,
                "Content-Encoding is not supported: upload without narinfo-compression, \
                 ls-compression and log-compression",
            );
        }
        let outcome = match &target.kind {
            Kind::Nar(name) => self
                .stored
                .put_nar(&token, name, &mut request.reader())
                .map(|()| ok("kept")),
            Kind::Narinfo(hash_part) => self.put_narinfo(context, request, &token, *hash_part),
            Kind::CacheInfo => put_cache_info(context, request),
            Kind::Log(path) => self
                .stored
                .put_log(path, &mut request.reader(), LOG_LEN_MAX)
                .map(|()| ok("kept")),
            Kind::Listing(_) | Kind::DebugInfo => {
                let mut body = request.reader().take(LOG_LEN_MAX);
                let discarded = io::copy(&mut body, &mut io::sink());
                discarded.map(|_| ok("accepted")).map_err(PutError::Source)
            }
            Kind::Realisation => Ok(refused(
                Status::NOT_IMPLEMENTED,
                "realisations cannot be uploaded yet: push paths that are not content-addressed \
                 derivations",
            )),
            Kind::Unknown => Ok(Fixed::NotFound.response()),
        };
        outcome.unwrap_or_else(|error| {
            let head = request.head();
            let url = &head.path().escape_ascii();
            let event = match &error {
                PutError::Storage(error) => Event::StorageFailed(error),
                reason => Event::UploadRefused { url, reason },
            };
            context.narinfos.reader.shared.observer.event(&event);
            failed(head, &error)
        })
    }

    /// The token of a client that may push, or the refusal.
    fn pusher(&self, context: Context<'_>, head: Head<'_>) -> Result<Token, Response> {
        let token = with_token(head, |text| self.stored.authorize(text, now()));
        match token {
            Some(Ok(Some(token))) if token.rights.push => Ok(token),
            Some(Ok(Some(token))) => Err(refused(
                Status::FORBIDDEN,
                &format!(
                    "the token {:?} may not push: it has the right {}",
                    token.name, token.rights
                ),
            )),
            Some(Ok(None)) => Err(unauthorized(
                "the token is unknown, expired, revoked, or for another cache",
            )),
            Some(Err(error)) => Err(unavailable(context, &error)),
            None => Err(unauthorized(
                "uploading needs a token: make one with `samovar token create` on the server, and \
                 put it into netrc as the password for this host",
            )),
        }
    }

    fn put_narinfo(
        &self,
        context: Context<'_>,
        request: &mut Request,
        token: &Token,
        hash_part: HashPart,
    ) -> Result<Response, PutError> {
        let mut text = Vec::new();
        // One byte more than allowed, so that a longer one is recognised.
        let mut reader = request.reader().take(NARINFO_LEN_MAX as u64 + 1);
        reader.read_to_end(&mut text).map_err(PutError::Source)?;
        let reader = &context.narinfos.reader;
        let undecided = Cell::new(false);
        let is_elsewhere = |path: &StorePath| match reader.may_read(path) {
            Ok(is_readable) => is_readable,
            Err(_refusal) => {
                undecided.set(true);
                false
            }
        };
        let published = self.stored.put_narinfo(
            token,
            hash_part,
            &text,
            &is_elsewhere,
            &|path: &StoredPath| render(context, path),
        );
        let (path, published) = match published {
            // The live Nix store may have the reference, but cannot be read now.
            Err(PutError::Narinfo(refusal))
                if undecided.get() && matches!(*refusal, Refusal::MissingReference { .. }) =>
            {
                return Ok(Fixed::Unavailable.response());
            }
            other => other?,
        };
        let (path, token) = (&path.display(context.store_dir), &*token.name);
        let observer = &reader.shared.observer;
        Ok(ok(match published {
            Published::Conflict => {
                observer.event(&Event::UploadConflict { path, token });
                "another NAR of this path was there first, and stays"
            }
            Published::Known => "known",
            _ => {
                observer.event(&Event::PathUploaded { path, token });
                "published"
            }
        }))
    }
}

/// The answer if the storage cannot be read. The log has the cause.
fn unavailable(context: Context<'_>, error: &StorageError) -> Response {
    let observer = &context.narinfos.reader.shared.observer;
    observer.event(&Event::StorageFailed(error));
    Fixed::Unavailable.response()
}

/// Checks that the client pushes paths of our store directory.
fn put_cache_info(context: Context<'_>, request: &mut Request) -> Result<Response, PutError> {
    let mut text = String::new();
    let mut reader = request.reader().take(NARINFO_LEN_MAX as u64);
    reader.read_to_string(&mut text).map_err(PutError::Source)?;
    let found = text.lines().find_map(|line| line.strip_prefix("StoreDir:"));
    let ours = context.store_dir.as_str();
    Ok(match found.map(str::trim) {
        Some(found) if found != ours => refused(
            Status::CONFLICT,
            &format!("StoreDir is {found}, but this cache has paths of {ours}"),
        ),
        _ => ok("accepted"),
    })
}

/// The narinfo of an uploaded path, with the signatures of the cache beside the uploaded ones.
fn render(context: Context<'_>, path: &StoredPath) -> Vec<u8> {
    let info = PathInfo {
        path: path.path.clone(),
        nar_hash: path.nar.nar_hash,
        nar_size: path.nar.nar_size,
        references: path.references.clone(),
        deriver: path.deriver.clone(),
        signatures: path.signatures.clone(),
        content_address: path.content_address,
        registration_time: path.registered_at,
        ultimate: false,
        registration: None,
    };
    let mut narinfo = samovar_storage::narinfo(path);
    narinfo.signatures = context
        .narinfos
        .signing
        .beside_uploaded(&info, context.store_dir);
    let mut text = Vec::new();
    let written = narinfo.write(context.store_dir, &mut text);
    debug_assert!(
        written.is_ok(),
        "published narinfos were parsed: {written:?}"
    );
    text
}

/// Calls `look_up` with the token of the request; `None` if it has none.
fn with_token<T>(head: Head<'_>, look_up: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let is_token = |text: &[u8]| text.starts_with(PREFIX.as_bytes());
    match Credentials::of(head.headers()) {
        Credentials::Bearer(text) if is_token(text) => Some(look_up(text)),
        Credentials::Basic(basic) if is_token(basic.password()) => Some(look_up(basic.password())),
        _ => None,
    }
}

/// The answer to a PUT that failed.
fn failed(head: Head<'_>, error: &PutError) -> Response {
    let status = match error {
        PutError::Source(error) => {
            BodyError::of(error).map_or(Status::BAD_REQUEST, BodyError::status)
        }
        PutError::File(refusal) if refusal.is_too_large() => Status::CONTENT_TOO_LARGE,
        PutError::File(_) => Status::UNPROCESSABLE_CONTENT,
        PutError::Narinfo(refusal) => match **refusal {
            Refusal::TooLong | Refusal::LogTooLong(_) => Status::CONTENT_TOO_LARGE,
            Refusal::TokenInvalid => Status::FORBIDDEN,
            Refusal::MissingReference { .. } | Refusal::UnknownFile(_) => Status::CONFLICT,
            _ => Status::UNPROCESSABLE_CONTENT,
        },
        // Nix before 2.33 repeats a PUT with an empty body.
        PutError::Storage(_) if repeats_without_body(head) => Status::UNPROCESSABLE_CONTENT,
        PutError::Storage(error) if error.is_full() => Status::INSUFFICIENT_STORAGE,
        PutError::Storage(_) => Status::SERVICE_UNAVAILABLE,
    };
    let text = match error {
        // The log has the cause, which may name local files.
        PutError::Storage(error) if error.is_full() => {
            "the storage of this cache is full: ask its operator for space".to_owned()
        }
        PutError::Storage(_) => "the storage cannot be written at the moment; the log of the \
                                 server has the cause"
            .to_owned(),
        other => other.to_string(),
    };
    let response = refused(status, &text);
    match status == Status::SERVICE_UNAVAILABLE {
        true => response.header("Retry-After", "1"),
        false => response,
    }
}

/// Whether the client is Nix before 2.33.
fn repeats_without_body(head: Head<'_>) -> bool {
    let agent = head.header("User-Agent").unwrap_or_default();
    let agent = String::from_utf8_lossy(agent);
    let version = agent.split("Nix/2.").nth(1);
    let minor = version.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    minor
        .flatten()
        .and_then(|minor| minor.parse::<u32>().ok())
        .is_some_and(|minor| minor < 33)
}

fn ok(text: &str) -> Response {
    Response::text(Status::OK, format!("{text}\n"))
}

fn refused(status: Status, text: &str) -> Response {
    Response::text(status, format!("{text}\n"))
}

fn unauthorized(text: &str) -> Response {
    refused(Status::UNAUTHORIZED, text).header("WWW-Authenticate", "Basic realm=\"uploads\"")
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
