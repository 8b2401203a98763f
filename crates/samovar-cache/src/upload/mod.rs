//! Receives uploads, and answers requests for uploaded paths.
//!
//! # URLs
//!
//! Every URL of a cache also exists below `upload/`, where only uploaded paths exist. A client that
//! pushes to `upload/` therefore sends all paths that were not uploaded yet. At the cache's own URL
//! it would also find the paths of the live Nix store and skip them, so that uploaded paths could
//! refer to paths of that store.
//!
//! | PUT | action |
//! | --- | --- |
//! | `nix-cache-info` | accepted if its `StoreDir` is the server's, and discarded |
//! | `nar/<file hash>.nar…` | verified and stored |
//! | `<hash part>.narinfo` | compared with the stored NAR, published |
//! | `log/<base name>` | stored |
//! | `<hash part>.ls`, `debuginfo/…` | accepted and discarded: the server makes listings itself |
//! | `realisations/…`, `build-trace-v2/…` | checked, stored with the path of its output |
//!
//! Below `upload/push/` are the URLs of the push protocol: see [`push`]. Below `upload/pin/` are
//! the pins: see [`pin`]. `upload/oidc` exchanges ID tokens for tokens: see [`oidc`].
//!
//! # Access
//!
//! Uploading requires a token with the right to push, pinning one with the right to pin, and
//! reading pins one with the right to read or to pin, also in a public cache. Tokens are sent as
//! bearer tokens or as the password of any user name. A token with the right to read also grants
//! access to a cache that is not public.
//!
//! A client that may not read the cache never gets to use a NAR that was not sent with its token:
//! it cannot publish a path with this NAR, copy from the NAR, or learn that the NAR is stored.
//! Otherwise it could learn the contents of the NAR.
//!
//! # Errors
//!
//! A refusal has a 4xx status and one sentence as its body. Nix before 2.33 sends an empty body
//! when it repeats a PUT. To prevent that, it gets 422 where other clients get 503 or 507.

mod authorize;
mod body;
mod bulk;
mod elsewhere;
mod get;
mod oidc;
mod pin;
mod push;
mod realisation;

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use samovar_http::http::{Method, Status, Version};
use samovar_http::{BodyError, Head, Intake, Peer, Request, Response};
use samovar_metrics::{Event, Uploader};
use samovar_nix::{HashPart, StoreDir, StorePath};
use samovar_protocol::names::FileName;
use samovar_protocol::push::NARINFO_LEN_MAX;
use samovar_storage::metadata::{Published, StoredPath};
use samovar_storage::token::Token;
use samovar_storage::verify::decoded;
use samovar_storage::{
    PATIENCE, PutError, Refusal, StorageError, StoredCache, logs, mirrored, nar, narinfo,
};

use crate::access::{Access, TokenFault};
use crate::narinfo::narinfos::Narinfos;
use crate::narinfo::signing::Signing;
use crate::oidc::Oidc;
use crate::reader::uploaded_info;
use crate::refusal::{Fixed, text_response};
use crate::route::Route;
use crate::route::upload::{Resource, UploadRoute};
use crate::upstream::CacheUpstreams;

pub(crate) use self::authorize::may_read_pins;
pub(crate) use self::bulk::Uploaded;
pub(crate) use self::get::{deleted_at, find, reads_files, writes};
pub(crate) use self::oidc::{exchanges, has_id_token};
#[cfg(fuzzing)]
pub(crate) use self::pin::fuzzing;

use self::authorize::{Right, client, with_token};
use self::body::{SharedBody, encoding_of};
use self::elsewhere::Elsewhere;

/// Maximum body length of a PUT, in bytes: a NAR may have 64 GiB, and a compressor may add to that.
const BODY_LEN_MAX: u64 = 65 << 30;

/// Maximum length of a body, in bytes, that is received completely before a worker gets the
/// request. It is enough for narinfos and small NARs.
const BUFFERED_LEN_MAX: u64 = 64 << 10;

/// Number of bytes of a refused body that are read before the response is sent over HTTP/2. If less
/// is read, clients with libcurl 7.88 report a broken stream instead of the response.
const DRAINED_LEN_MAX: u64 = 16 << 20;

/// Maximum length of a stated store path in a log line, in bytes. Longer ones are not store paths.
const STATED_LEN_MAX: usize = 512;

/// Maximum length of a build log, in bytes.
const LOG_LEN_MAX: u64 = 64 << 20;

/// The parts of a cache that a request about uploads needs.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The uploaded paths of the cache.
    pub(crate) stored: &'a StoredCache,
    pub(crate) narinfos: &'a Arc<Narinfos>,
    pub(crate) store_dir: &'a StoreDir,
    pub(crate) cache_info: &'a [u8],
    /// Whether the cache lets the client read without the rights of a token for uploads.
    pub(crate) is_reader: bool,
    /// The client's address, if it is known and the request changes something.
    pub(crate) address: Option<IpAddr>,
    /// The issuers whose ID tokens are exchanged; `None`: there are none.
    pub(crate) oidc: Option<&'a Oidc>,
    /// The name of the cache; `None` if the server has only one.
    pub(crate) cache: Option<&'a str>,
    /// The upstreams to whose paths uploads may refer.
    pub(crate) upstreams: Option<&'a Arc<CacheUpstreams>>,
}

impl<'a> Context<'a> {
    /// Returns the client of the request, for log lines.
    fn uploader<'t>(self, token: &'t Token) -> Uploader<'t>
    where
        'a: 't,
    {
        Uploader {
            token: &token.name,
            address: self.address,
            cache: self.cache,
        }
    }

    /// Reports that an upload was refused. `path`: the store path or the NAR, if it is known and
    /// not in the URL.
    fn refuse(
        self,
        head: Head<'_>,
        token: &Token,
        path: Option<&dyn Display>,
        reason: &dyn Display,
    ) {
        let observer = &self.narinfos.reader.shared.observer;
        observer.event(&Event::UploadRefused {
            url: &head.path().escape_ascii(),
            path,
            by: self.uploader(token),
            reason,
        });
    }
}

/// Returns whether an I/O thread never answers a request, because it may be about uploads: a PUT, a
/// URL below `upload/`, or a URL that may belong to the file of a NAR. Such a request reads or
/// writes files and the database; long computations for uploads take turns.
pub(crate) fn needs_worker(method: Method, route: &Route) -> bool {
    method == Method::Put || matches!(route, Route::Upload(_) | Route::File(..))
}

/// Returns whether a request needs a token also in a public cache.
pub(crate) fn needs_token(method: Method, route: &Route) -> bool {
    method == Method::Put || route.has_own_methods()
}

/// Returns whether the request carries a token. Only a worker can check the token, in the database.
pub(crate) fn has_token(head: Head<'_>) -> bool {
    with_token(head, |_| ()).is_some()
}

/// Returns the client's address for log lines about uploads and pins; `None` if it is unknown, or
/// the request only reads.
pub(crate) fn address(access: Option<&Access>, head: Head<'_>) -> Option<IpAddr> {
    match (access, head.method(), head.peer()) {
        (_, Method::Get | Method::Head, _) => None,
        (Some(access), ..) => access.client(head, Instant::now()).address,
        (None, _, Peer::Tcp(address)) => Some(address.ip().to_canonical()),
        (None, _, Peer::Unix(_)) => None,
    }
}

/// Returns how to receive the body of a request to a cache that is hidden from the client unless a
/// worker admits it: before that, nothing of the body is read or refused.
pub(crate) fn untouched(head: Head<'_>) -> Intake {
    Intake::Streamed(content_len(head).unwrap_or(0).max(BODY_LEN_MAX))
}

fn content_len(head: Head<'_>) -> Option<u64> {
    head.header_text("Content-Length")?.parse().ok()
}

/// Returns the number of the request's token, if the token was valid when last looked up. Never
/// blocks on a disk.
pub(crate) fn seen_token(stored: &StoredCache, head: Head<'_>) -> Option<i64> {
    with_token(head, |text| stored.seen(text, |token| token.id))?
}

/// Whether the request has a token that was valid when last looked up. Never blocks on a disk.
pub(crate) fn has_seen_token(stored: &StoredCache, head: Head<'_>) -> bool {
    seen_token(stored, head).is_some()
}

/// Returns the name of the request's token, if the token was valid when last looked up. Never
/// blocks on a disk.
pub(crate) fn token_name(stored: &StoredCache, head: Head<'_>) -> Option<Arc<str>> {
    with_token(head, |text| {
        stored.seen(text, |token| token.name.as_str().into())
    })?
}

/// Writes the narinfos and realisations that the storage directory lacks.
pub(crate) fn repair_mirror(context: Context<'_>) {
    let render = |path: &StoredPath| render(context, path);
    if let Err(error) = mirrored::repair(context.stored, &render) {
        report(context, &error);
    }
    realisation::repair(context);
}

/// Decides whether to receive the body of an upload before or while a worker handles it.
pub(crate) fn intake(stored: &StoredCache, head: Head<'_>) -> Intake {
    match content_len(head) {
        // Buffer only bodies of clients whose token is known to be valid.
        Some(len) if len <= BUFFERED_LEN_MAX && has_seen_token(stored, head) => {
            Intake::Buffered(BUFFERED_LEN_MAX)
        }
        _ => Intake::Streamed(BODY_LEN_MAX),
    }
}

/// Returns whether a token admits the request to a cache that is not public. Reading needs the
/// right to read. Without that right, a client that may push can query which paths and files exist
/// below `upload/`, as it does before it uploads, and every client can send the requests whose
/// rights are checked with the request.
pub(crate) fn admits(stored: &StoredCache, head: Head<'_>, route: &Route) -> bool {
    let token = with_token(head, |text| stored.authorize(text, stored.metadata().now()));
    let may_query = || {
        matches!(route, Route::Upload(_))
            && match route.resource() {
                Some(Resource::CacheInfo | Resource::Narinfo(_)) => true,
                Some(Resource::Nar(_)) => head.method() == Method::Head,
                _ => false,
            }
    };
    let Some(Ok(Ok(Token { rights, .. }))) = token else {
        return false;
    };
    rights.read || needs_token(head.method(), route) || rights.push && may_query()
}

/// Returns the reason why the request's token does not admit it to a cache that is not public.
/// Returns `None` if the request has no token, or the token cannot be looked up.
pub(crate) fn denial(stored: &StoredCache, head: Head<'_>) -> Option<TokenFault> {
    let token = with_token(head, |text| stored.authorize(text, stored.metadata().now()))?;
    Some(match token.ok()? {
        Ok(token) => TokenFault::LacksRight(Right::Read.refusal(&token)),
        Err(denied) => TokenFault::Invalid(denied.to_string()),
    })
}

/// Answers a request on a worker. Returns `None` unless it is a PUT, or a URL that is below
/// `upload/`: the live Nix store answers other requests, and [`find`] those that the store cannot
/// answer.
pub(crate) fn handle(
    context: Context<'_>,
    request: &mut Request,
    route: &Route,
) -> Option<Response> {
    let head = request.head();
    let _patience = context.stored.start_patience();
    match head.method() {
        method if needs_token(method, route) => {
            // While it is unknown what a policy hides, clients must neither send again what is
            // there, nor take a refusal for final.
            let reader = &context.narinfos.reader;
            let refused = refuse_change(context, head);
            let response = reader.decided(|| match route {
                _ if let Some(refused) = refused => refused,
                Route::Upload(UploadRoute::Push(push)) => push::answer(context, request, *push),
                Route::Upload(UploadRoute::Oidc) => oidc::answer(context, request),
                Route::Upload(UploadRoute::Pins) => pin::list(context, request),
                Route::Upload(UploadRoute::PinEvents) => pin::events::open(context, request),
                Route::Upload(UploadRoute::Pin(name)) => {
                    pin::answer(context, request, name.as_ref())
                }
                _ => put(context, request, route.resource()),
            });
            if response.status().code() >= 400 && request.head().version() == Version::Http2 {
                // Ignore errors: the response is the same whether or not the rest of the body
                // arrives.
                let mut rest = request.reader().take(DRAINED_LEN_MAX);
                io::copy(&mut rest, &mut io::sink()).ok();
            }
            Some(response)
        }
        _ if !matches!(route, Route::Upload(_)) => None,
        Method::Get | Method::Head => Some(get::answer(context, head, route.resource())),
        _ => Some(
            refused(Status::METHOD_NOT_ALLOWED, "use GET, HEAD or PUT")
                .header("Allow", "GET, HEAD, PUT"),
        ),
    }
}

/// Returns the response to a request that changes something while the disk hangs.
fn refuse_change(context: Context<'_>, head: Head<'_>) -> Option<Response> {
    if matches!(head.method(), Method::Get | Method::Head) {
        return None;
    }
    let error = context.stored.check_disk().err()?;
    report(context, &error);
    Some(failed(head, &PutError::Storage(error)))
}

fn put(context: Context<'_>, request: &mut Request, resource: Option<Resource<'_>>) -> Response {
    let token = match client(context, request.head(), Right::Push) {
        Ok(token) => token,
        Err(response) => return response,
    };
    if content_len(request.head()).is_some_and(|len| len > BODY_LEN_MAX) {
        let text = format!("the body has more than {} GiB", BODY_LEN_MAX >> 30);
        return refused(Status::CONTENT_TOO_LARGE, &text);
    }
    if request.head().header("Content-Range").is_some() {
        return refused(
            Status::BAD_REQUEST,
            "Content-Range is not supported: upload the whole file",
        );
    }
    let encoding = match encoding_of(request.head(), resource) {
        Ok(encoding) => encoding,
        Err(response) => return response,
    };
    let body = SharedBody::new(request.reader());
    let stated = Cell::new(None);
    let outcome = match resource {
        Some(Resource::Nar(name)) => put_nar(context.stored, &body, &token, &name),
        resource => match encoding {
            None => put_metadata(context, &mut &body, &token, resource, &stated),
            Some(encoding) => {
                let admitted = context.stored.admit(&token, &body, PATIENCE);
                admitted.and_then(|mut memory| {
                    decoded(&mut &body, encoding, &mut memory, |source| {
                        put_metadata(context, source, &token, resource, &stated)
                    })
                })
            }
        },
    };
    outcome.unwrap_or_else(|error| {
        let head = request.head();
        match &error {
            PutError::Storage(error) => report(context, error),
            reason => {
                let path = stated.take();
                let path = path.as_ref().map(|path| path as &dyn Display);
                context.refuse(head, &token, path, reason);
            }
        }
        failed(head, &error)
    })
}

fn put_nar(
    stored: &StoredCache,
    mut body: &SharedBody<'_>,
    token: &Token,
    name: &FileName,
) -> Result<Response, PutError> {
    let mut admitted = stored.admit(token, body, PATIENCE)?;
    nar::put(stored, token, name, &mut body, &mut admitted)?;
    Ok(ok("kept"))
}

/// Receives an upload other than a NAR. `source`: the body after the removal of its
/// `Content-Encoding`. Sets `stated` to the store path that a narinfo states.
fn put_metadata(
    context: Context<'_>,
    source: &mut dyn Read,
    token: &Token,
    resource: Option<Resource<'_>>,
    stated: &Cell<Option<String>>,
) -> Result<Response, PutError> {
    match resource {
        Some(Resource::Narinfo(hash_part)) => {
            put_narinfo(context, source, token, hash_part, stated)
        }
        Some(Resource::CacheInfo) => put_cache_info(context, source),
        Some(Resource::Log(path)) => {
            logs::put(context.stored, token, path, source, LOG_LEN_MAX)?;
            Ok(ok("kept"))
        }
        Some(Resource::Listing(_) | Resource::DebugInfo) => {
            io::copy(&mut source.take(LOG_LEN_MAX), &mut io::sink())
                .map_err(PutError::of_source)?;
            Ok(ok("accepted"))
        }
        Some(Resource::Realisation(id)) => realisation::put(context, source, token, id),
        Some(Resource::Nar(_)) | None => Ok(Fixed::NotFound.response()),
    }
}

fn put_narinfo(
    context: Context<'_>,
    source: &mut dyn Read,
    token: &Token,
    hash_part: HashPart,
    stated: &Cell<Option<String>>,
) -> Result<Response, PutError> {
    let mut text = Vec::new();
    // Read one byte more than allowed, to detect a text that is too long.
    let mut source = source.take(NARINFO_LEN_MAX as u64 + 1);
    source.read_to_end(&mut text).map_err(PutError::of_source)?;
    stated.set(stated_path(&text));
    let reader = &context.narinfos.reader;
    let elsewhere = Elsewhere::new(reader, context.upstreams);
    let is_elsewhere = |path: &StorePath| elsewhere.has(path);
    let published = narinfo::put(
        context.stored,
        token,
        hash_part,
        &text,
        &is_elsewhere,
        &|path: &StoredPath| render(context, path),
    );
    let (path, published) = match published {
        // The reference may be in the live Nix store, but that store cannot be read at the moment.
        Err(PutError::Narinfo(refusal))
            if elsewhere.is_undecided() && matches!(*refusal, Refusal::MissingReference { .. }) =>
        {
            return Ok(Fixed::Unavailable.response());
        }
        other => other?,
    };
    elsewhere.published();
    let (path, by) = (&path.display(context.store_dir), context.uploader(token));
    let observer = &reader.shared.observer;
    Ok(ok(match published {
        Published::Conflict => {
            observer.event(&Event::UploadConflict { path, by });
            "another NAR of this path was there first, and stays"
        }
        Published::Known => "known",
        _ => {
            observer.event(&Event::PathUploaded { path, by });
            "published"
        }
    }))
}

/// Returns the store path that a narinfo states, for log lines: any narinfo, also a wrong one.
fn stated_path(text: &[u8]) -> Option<String> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"StorePath: "))?;
    let path = path.get(..STATED_LEN_MAX).unwrap_or(path);
    Some(path.escape_ascii().to_string())
}

/// Returns the response to a request that needs unreadable storage. Only the log states the cause.
fn unavailable(context: Context<'_>, error: &StorageError) -> Response {
    report(context, error);
    Fixed::Unavailable.response()
}

fn report(context: Context<'_>, error: &StorageError) {
    let observer = &context.narinfos.reader.shared.observer;
    observer.event(&Event::StorageFailed(error));
}

/// Checks that the uploaded `nix-cache-info` states the store directory of the server. Does not
/// store it.
fn put_cache_info(context: Context<'_>, source: &mut dyn Read) -> Result<Response, PutError> {
    let mut text = Vec::new();
    let mut source = source.take(NARINFO_LEN_MAX as u64);
    source.read_to_end(&mut text).map_err(PutError::of_source)?;
    let text = String::from_utf8_lossy(&text);
    let found = text.lines().find_map(|line| line.strip_prefix("StoreDir:"));
    let ours = context.store_dir.as_str();
    Ok(match found.map(str::trim) {
        Some(found) if found == ours => ok("accepted"),
        Some(found) => refused(
            Status::CONFLICT,
            &format!(
                "StoreDir is {found}, but this cache has paths of {ours}; push to a cache of \
                 {found}"
            ),
        ),
        None => refused(
            Status::UNPROCESSABLE_CONTENT,
            &format!("nix-cache-info has no field StoreDir; send StoreDir: {ours}"),
        ),
    })
}

fn render(context: Context<'_>, path: &StoredPath) -> Vec<u8> {
    render_uploaded(&context.narinfos.signing, context.store_dir, path)
}

/// Renders the narinfo of an uploaded path, with the cache's signatures in addition to the uploaded
/// ones. `signing` must be [checked](Signing::checked).
#[must_use]
pub fn render_uploaded(signing: &Signing, dir: &StoreDir, path: &StoredPath) -> Vec<u8> {
    let mut narinfo = path.narinfo();
    narinfo.signatures = signing.beside_uploaded(&uploaded_info(path), dir);
    let mut text = Vec::new();
    let written = narinfo.write(dir, &mut text);
    debug_assert!(
        written.is_ok(),
        "published narinfos were parsed: {written:?}"
    );
    text
}

/// Returns the response to a PUT that failed.
fn failed(head: Head<'_>, error: &PutError) -> Response {
    let status = match error {
        PutError::Source(error) => {
            BodyError::of(error).map_or(Status::BAD_REQUEST, BodyError::status)
        }
        PutError::File(refusal) if refusal.is_too_large() => Status::CONTENT_TOO_LARGE,
        PutError::File(_) | PutError::Encoding { .. } => Status::UNPROCESSABLE_CONTENT,
        PutError::Narinfo(refusal) => match **refusal {
            Refusal::TooLong
            | Refusal::LogTooLong(_)
            | Refusal::RealisationTooLong
            | Refusal::TooManyRealisations
            | Refusal::Quota { .. }
            | Refusal::TooManyExtras { .. }
            | Refusal::TooManyLoose { .. } => Status::CONTENT_TOO_LARGE,
            Refusal::TokenInvalid => Status::FORBIDDEN,
            Refusal::MissingReference { .. }
            | Refusal::MissingOutput(_)
            | Refusal::UnknownFile(_)
            | Refusal::OtherPathExists { .. }
            | Refusal::CacheDeleted => Status::CONFLICT,
            _ => Status::UNPROCESSABLE_CONTENT,
        },
        // Nix before 2.33 would repeat the PUT with an empty body.
        PutError::Storage(_) | PutError::Busy if repeats_without_body(head) => {
            Status::UNPROCESSABLE_CONTENT
        }
        PutError::Storage(error) if error.is_full() => Status::INSUFFICIENT_STORAGE,
        PutError::Storage(_) | PutError::Busy => Status::SERVICE_UNAVAILABLE,
    };
    let text = match error {
        // The cause may name local files, so only the log states it.
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

/// Returns whether the client is Nix before 2.33, which sends an empty body when it repeats a PUT.
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
    text_response(Status::OK, format!("{text}\n"))
}

fn refused(status: Status, text: &str) -> Response {
    text_response(status, format!("{text}\n"))
}
