//! Answers the requests of the push protocol (`docs/push-protocol.md`).

use std::cell::Cell;
use std::fmt::Display;
use std::io::BufReader;

use samovar_http::http::Status;
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_nix::narinfo::Compression;
use samovar_nix::{NarHash, StorePath};
use samovar_protocol::names::PushId;
use samovar_protocol::push::{
    Assembled, BODY_LEN_MAX, Missing, OPEN_COUNT_MAX, Opened, PackOutcome, PartLine, WireError,
    published, read_open,
};
use samovar_protocol::recipe::{RecipeError, WINDOW_LOG, WINDOW_LOG_MAX, WINDOW_LOG_MIN};
use samovar_protocol::{nar_hash_text, parse_sha256};
use samovar_storage::metadata::{Published, StoredPath};
use samovar_storage::push::{self, Answer, AssembleError, PartError, PushError};
use samovar_storage::token::Token;
use samovar_storage::verify::Memory as _;
use samovar_storage::{PATIENCE, PutError, Refusal};

use super::authorize::Right;
use super::body::SharedBody;
use super::{Context, Uploads, failed, refused, render, report};
use crate::refusal::{Fixed, text_response};
use crate::route::push::{PushRoute, small_number};

/// Memory for parsing a body, as a multiple of the body's length.
const PARSE_FACTOR: u64 = 3;

/// A failed request: refused before the storage was involved, or failed in the storage.
enum Failure {
    Response(Response),
    Push(PushError),
}

impl<E: Into<PushError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Push(error.into())
    }
}

fn bad_request(text: &str) -> Failure {
    Failure::Response(refused(Status::BAD_REQUEST, text))
}

impl Uploads {
    /// Answers a request of the push protocol.
    pub(super) fn push(
        &self,
        context: Context<'_>,
        request: &mut Request,
        target: Option<PushRoute>,
    ) -> Response {
        let Some(target) = target else {
            return Fixed::NotFound.response();
        };
        let (method, name) = target.method();
        if request.head().method() != method {
            return refused(Status::METHOD_NOT_ALLOWED, &format!("use {name}"))
                .header("Allow", name);
        }
        let token = match self.client(context, request.head(), Right::Push) {
            Ok(token) => token,
            Err(response) => return response,
        };
        match self.push_authorized(context, request, target, &token) {
            Ok(response) | Err(Failure::Response(response)) => response,
            Err(Failure::Push(error)) => {
                let head = request.head();
                match &error {
                    PushError::Put(PutError::Storage(error)) => report(context, error),
                    reason => context.refuse(head, &token, None, reason),
                }
                failure(head, &error)
            }
        }
    }

    fn push_authorized(
        &self,
        context: Context<'_>,
        request: &mut Request,
        target: PushRoute,
        token: &Token,
    ) -> Result<Response, Failure> {
        let len = match target.body_len_max() {
            Some(limit) => body_len(request.head(), limit)?,
            None => 0,
        };
        if request.head().header("Content-Encoding").is_some() {
            return Err(Failure::Response(refused(
                Status::UNSUPPORTED_MEDIA_TYPE,
                "Content-Encoding is not supported: send the body as it is",
            )));
        }
        match target {
            PushRoute::Open => self.open_push(context, request, token, len),
            PushRoute::Push(id) => {
                push::close(&self.stored, token, id)?;
                Ok(done())
            }
            PushRoute::Pack(id) => self.put_pack(context, request, token, id),
            PushRoute::Parts(id, nar_hash) => self.parts(token, id, &nar_hash),
            PushRoute::Part(id, nar_hash, number) => {
                let sha256 = parameter(request.head(), "sha256").and_then(parse_sha256);
                let sha256 = sha256.ok_or_else(|| {
                    bad_request(
                        "the URL needs the parameter sha256: 64 lower-case hexadecimal digits",
                    )
                })?;
                let push = push::find(&self.stored, token, id)?;
                let body = SharedBody::new(request.reader());
                let received = push::put_part(&push, nar_hash, number, len, sha256, &mut &body);
                body.finish(received, BODY_LEN_MAX)?;
                Ok(done())
            }
            PushRoute::Join(id, nar_hash) => self.join(request, token, id, nar_hash),
            PushRoute::Assemble(id) => self.assemble(request, token, id),
            PushRoute::Publish(id) => self.publish_all(context, request, token, id, len),
        }
    }

    fn open_push(
        &self,
        context: Context<'_>,
        request: &mut Request,
        token: &Token,
        len: u64,
    ) -> Result<Response, Failure> {
        let body = SharedBody::new(request.reader());
        let mut admitted = self.stored.admit(token, &body, PATIENCE)?;
        admitted
            .reserve(len.saturating_mul(PARSE_FACTOR))
            .map_err(PutError::from)?;
        let source = BufReader::new(&body);
        let lines = read_open(source, OPEN_COUNT_MAX).map_err(PutError::Source)?;
        let policy = &context.narinfos.reader.policy;
        if policy.is_unknown() {
            return Err(Failure::Response(Fixed::Unavailable.response()));
        }
        let (push_id, answers) = push::open(&self.stored, token, &lines)?;
        let opened = Opened {
            push_id,
            pack_len_max: BODY_LEN_MAX,
            part_len_max: BODY_LEN_MAX,
            answers,
        };
        let text = opened.text(lines.iter().map(|line| line.hash_part));
        drop(admitted);
        for (line, answer) in lines.iter().zip(&opened.answers) {
            if let Answer::Refused(refusal) = answer {
                let path = line.path.as_ref();
                let path = path.map(|path| path.display(context.store_dir));
                let path = path.as_ref().map(|path| path as &dyn Display);
                context.refuse(request.head(), token, path, refusal);
            }
        }
        Ok(text_response(Status::OK, text))
    }

    fn put_pack(
        &self,
        context: Context<'_>,
        request: &mut Request,
        token: &Token,
        id: PushId,
    ) -> Result<Response, Failure> {
        let push = push::find(&self.stored, token, id)?;
        let body = SharedBody::new(request.reader());
        let receive = || -> Result<_, PushError> {
            let mut admitted = self.stored.admit(token, &body, PATIENCE)?;
            push::put_pack(&push, &mut &body, &mut admitted)
        };
        let outcomes = body.finish(receive(), BODY_LEN_MAX)?;
        for outcome in &outcomes {
            if let Some(reason) = &outcome.refusal {
                let nar_hash = nar_hash_text(&outcome.nar_hash);
                let path: &dyn Display = &format_args!("the NAR {nar_hash}");
                context.refuse(request.head(), token, Some(path), reason);
            }
        }
        Ok(text_response(Status::OK, PackOutcome::text(&outcomes)))
    }

    fn parts(&self, token: &Token, id: PushId, nar_hash: &NarHash) -> Result<Response, Failure> {
        let parts = push::parts(&push::find(&self.stored, token, id)?, nar_hash)?;
        let lines = parts.iter().map(|part| PartLine {
            number: part.number,
            len: part.len,
            sha256: part.sha256,
        });
        let lines: Vec<_> = lines.collect();
        Ok(text_response(Status::OK, PartLine::text(&lines)))
    }

    fn join(
        &self,
        request: &mut Request,
        token: &Token,
        id: PushId,
        nar_hash: NarHash,
    ) -> Result<Response, Failure> {
        let head = request.head();
        let count = parameter(head, "parts").and_then(small_number);
        let count = count
            .ok_or_else(|| bad_request("the URL needs the parameter parts: the number of parts"))?;
        let compression = parameter(head, "compression").and_then(Compression::from_name);
        let compression = compression.ok_or_else(|| {
            bad_request("the URL needs the parameter compression: a name such as zstd")
        })?;
        let push = push::find(&self.stored, token, id)?;
        let body = SharedBody::new(request.reader());
        let mut admitted = self.stored.admit(token, &body, PATIENCE)?;
        push::join(&push, nar_hash, count, compression, &mut admitted)?;
        Ok(done())
    }

    fn assemble(
        &self,
        request: &mut Request,
        token: &Token,
        id: PushId,
    ) -> Result<Response, Failure> {
        let base = parameter(request.head(), "base");
        let base = base.and_then(|text| NarHash::parse_nixbase32(text.as_bytes()).ok());
        let base = base.ok_or_else(|| {
            bad_request("the URL needs the parameter base: the hash of a NAR, 52 characters")
        })?;
        let window_log = match parameter(request.head(), "window") {
            None => WINDOW_LOG,
            Some(text) => small_number(text)
                .filter(|log| (WINDOW_LOG_MIN..=WINDOW_LOG_MAX).contains(log))
                .ok_or_else(|| {
                    bad_request(&format!(
                        "the parameter window is the power of two of the zstd window, \
                         {WINDOW_LOG_MIN} to {WINDOW_LOG_MAX}"
                    ))
                })?,
        };
        let push = push::find(&self.stored, token, id)?;
        let body = SharedBody::new(request.reader());
        let receive = || -> Result<_, PushError> {
            let mut admitted = self.stored.admit(token, &body, PATIENCE)?;
            push::assemble(&push, &base, window_log, &mut &body, &mut admitted)
        };
        let (nar_hash, nar_size) = body.finish(receive(), BODY_LEN_MAX)?;
        let assembled = Assembled { nar_hash, nar_size };
        Ok(text_response(Status::OK, assembled.text()))
    }

    fn publish_all(
        &self,
        context: Context<'_>,
        request: &mut Request,
        token: &Token,
        id: PushId,
        len: u64,
    ) -> Result<Response, Failure> {
        let push = push::find(&self.stored, token, id)?;
        let body = SharedBody::new(request.reader());
        let mut admitted = self.stored.admit(token, &body, PATIENCE)?;
        admitted
            .reserve(len.saturating_mul(PARSE_FACTOR))
            .map_err(PutError::from)?;
        let reader = &context.narinfos.reader;
        let undecided = Cell::new(false);
        let is_elsewhere = |path: &StorePath| {
            reader.may_read(path).unwrap_or_else(|_refusal| {
                undecided.set(true);
                false
            })
        };
        let render = |path: &StoredPath| render(context, path);
        let paths = match push::publish(&push, &mut &body, &is_elsewhere, &render) {
            // The live Nix store may contain the reference, but it cannot be read at the moment.
            Err(PushError::Missing(_)) if undecided.get() => {
                return Ok(Fixed::Unavailable.response());
            }
            other => other?,
        };
        let (observer, by) = (&reader.shared.observer, context.uploader(token));
        for (path, outcome) in &paths {
            let path = &path.display(context.store_dir);
            match outcome {
                Published::New => observer.event(&Event::PathUploaded { path, by }),
                Published::Conflict => observer.event(&Event::UploadConflict { path, by }),
                _ => {}
            }
        }
        Ok(text_response(Status::OK, published(paths.len())))
    }
}

/// Returns the response to a request that failed.
fn failure(head: Head<'_>, error: &PushError) -> Response {
    let status = match error {
        PushError::NoPush => Status::NOT_FOUND,
        PushError::TooManyPushes | PushError::Put(PutError::Busy) => Status::TOO_MANY_REQUESTS,
        PushError::Part(error) => match error {
            PartError::Len(len) if *len > BODY_LEN_MAX => Status::CONTENT_TOO_LARGE,
            PartError::TooMany { .. } => Status::CONTENT_TOO_LARGE,
            PartError::Sha256 { .. } => Status::UNPROCESSABLE_CONTENT,
            PartError::OtherLen { .. }
            | PartError::Short { .. }
            | PartError::Replaced { .. }
            | PartError::Missing(_) => Status::CONFLICT,
            PartError::Joining => Status::SERVICE_UNAVAILABLE,
            _ => Status::BAD_REQUEST,
        },
        PushError::Assemble(error) => match error {
            AssembleError::Recipe(RecipeError::TooMany) => Status::CONTENT_TOO_LARGE,
            AssembleError::Recipe(_) | AssembleError::Compression(_) => Status::BAD_REQUEST,
            AssembleError::PastEnd { .. } => Status::UNPROCESSABLE_CONTENT,
            AssembleError::InProgress => Status::SERVICE_UNAVAILABLE,
            _ => Status::CONFLICT,
        },
        PushError::Narinfo { refusal, .. } => match **refusal {
            Refusal::TooLong => Status::CONTENT_TOO_LARGE,
            _ => Status::UNPROCESSABLE_CONTENT,
        },
        PushError::Missing(missing) => {
            return text_response(Status::CONFLICT, Missing::text(missing));
        }
        PushError::Put(PutError::Source(source)) if WireError::of(source).is_some() => {
            let error = WireError::of(source);
            let is_too_large = error.is_some_and(|error| error.is_too_large());
            let status = match is_too_large {
                true => Status::CONTENT_TOO_LARGE,
                false => Status::BAD_REQUEST,
            };
            return refused(
                status,
                &error.map_or_else(String::new, |error| error.to_string()),
            );
        }
        PushError::Put(error) => return failed(head, error),
    };
    let response = refused(status, &error.to_string());
    match status {
        Status::TOO_MANY_REQUESTS | Status::SERVICE_UNAVAILABLE => {
            response.header("Retry-After", "1")
        }
        _ => response,
    }
}

/// Returns the length that the request states for its body. Fails if it is missing or over `limit`.
fn body_len(head: Head<'_>, limit: u64) -> Result<u64, Failure> {
    let len = head.header_text("Content-Length");
    match len.and_then(|len| len.parse().ok()) {
        Some(len) if len <= limit => Ok(len),
        Some(len) => Err(Failure::Response(refused(
            Status::CONTENT_TOO_LARGE,
            &format!("the body has {len} bytes, the limit is {limit}: send several requests"),
        ))),
        None => Err(Failure::Response(refused(
            Status::LENGTH_REQUIRED,
            "Content-Length is missing: send it",
        ))),
    }
}

/// Returns the value of a parameter in the URL's query, or `None` if the query lacks it.
fn parameter<'a>(head: Head<'a>, name: &str) -> Option<&'a str> {
    let query = std::str::from_utf8(head.query()?).ok()?;
    let mut parameters = query.split('&').filter_map(|text| text.split_once('='));
    parameters.find_map(|(found, value)| (found == name).then_some(value))
}

fn done() -> Response {
    text_response(Status::OK, String::new())
}
