//! Answers the requests of the push protocol (`docs/push-protocol.md`).

use std::fmt::Display;
use std::io::BufReader;

use samovar_http::http::{Method, Status};
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_nix::{NarHash, StorePath};
use samovar_protocol::names::PushId;
use samovar_protocol::nar_hash_text;
use samovar_protocol::push::{
    AssembleQuery, Assembled, BODY_LEN_MAX, JoinQuery, Missing, OPEN_COUNT_MAX, OPEN_LEN_MAX,
    OpenLine, Opened, PUBLISH_LEN_MAX, PackOutcome, PartLine, PartQuery, QueryError, Saved, Target,
    WireError, published, read_open,
};
use samovar_protocol::recipe::RecipeError;
use samovar_storage::metadata::{Published, StoredPath};
use samovar_storage::push::{self, Answer, AssembleError, PartError, PushError};
use samovar_storage::token::Token;
use samovar_storage::verify::Memory as _;
use samovar_storage::{PATIENCE, PutError, Refusal};

use super::authorize::{Right, client};
use super::body::SharedBody;
use super::elsewhere::Elsewhere;
use super::{Context, failed, refused, render, report};
use crate::refusal::{Fixed, text_response};
use crate::upstream::references;

/// Maximum number of paths that are looked up at the upstreams at the same time.
const LOOK_UP_COUNT_MAX: usize = 1000;

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

fn bad_query(error: QueryError) -> Failure {
    bad_request(&error.to_string())
}

/// Answers a request of the push protocol.
pub(super) fn answer(
    context: Context<'_>,
    request: &mut Request,
    target: Option<Target>,
) -> Response {
    let Some(target) = target else {
        return Fixed::NotFound.response();
    };
    let (method, name) = method(target);
    if request.head().method() != method {
        return refused(Status::METHOD_NOT_ALLOWED, &format!("use {name}")).header("Allow", name);
    }
    let token = match client(context, request.head(), Right::Push) {
        Ok(token) => token,
        Err(response) => return response,
    };
    match answer_authorized(context, request, target, &token) {
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

fn answer_authorized(
    context: Context<'_>,
    request: &mut Request,
    target: Target,
    token: &Token,
) -> Result<Response, Failure> {
    let len = match body_len_max(target) {
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
        Target::Open => open_push(context, request, token, len),
        Target::Push(id) => {
            push::close(context.stored, token, id)?;
            Ok(done())
        }
        Target::Pack(id) => put_pack(context, request, token, id),
        Target::Parts(id, nar_hash) => parts(context, token, id, &nar_hash),
        Target::Part(id, nar_hash, number) => {
            let PartQuery { sha256 } =
                PartQuery::parse(query(request.head())).map_err(bad_query)?;
            let push = push::find(context.stored, token, id)?;
            let body = SharedBody::new(request.reader());
            let received = push::put_part(&push, nar_hash, number, len, sha256, &mut &body);
            body.finish(received, BODY_LEN_MAX)?;
            Ok(done())
        }
        Target::Join(id, nar_hash) => join(context, request, token, id, nar_hash),
        Target::Assemble(id) => assemble(context, request, token, id),
        Target::Publish(id) => publish_all(context, request, token, id, len),
    }
}

fn open_push(
    context: Context<'_>,
    request: &mut Request,
    token: &Token,
    len: u64,
) -> Result<Response, Failure> {
    let body = SharedBody::new(request.reader());
    let mut admitted = context.stored.admit(token, &body, PATIENCE)?;
    admitted
        .reserve(len.saturating_mul(PARSE_FACTOR))
        .map_err(PutError::from)?;
    let source = BufReader::new(&body);
    let lines = read_open(source, OPEN_COUNT_MAX).map_err(PutError::Source)?;
    let policy = &context.narinfos.reader.policy;
    if policy.is_unknown() {
        return Err(Failure::Response(Fixed::Unavailable.response()));
    }
    let (push_id, mut answers) = push::open(context.stored, token, &lines)?;
    let saved = leave_out(context, &lines, &mut answers);
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
    let response = text_response(Status::OK, text);
    Ok(match saved {
        Saved { count: 0, .. } => response,
        saved => response.header(Saved::FIELD, saved.text()),
    })
}

/// Marks paths that the client need not push because upstreams have them, as if the cache had them.
fn leave_out(context: Context<'_>, lines: &[OpenLine], answers: &mut [Answer]) -> Saved {
    let mut saved = Saved::default();
    let Some(upstreams) = context.upstreams else {
        return saved;
    };
    let lacking = |(index, answer): (usize, &Answer)| {
        let is_lost = || references::is_lost(upstreams, lines[index].hash_part);
        (matches!(answer, Answer::Need | Answer::Link) && !is_lost()).then_some(index)
    };
    let lacking: Vec<usize> = answers.iter().enumerate().filter_map(lacking).collect();
    for lacking in lacking.chunks(LOOK_UP_COUNT_MAX) {
        let hash_parts: Vec<_> = lacking.iter().map(|at| lines[*at].hash_part).collect();
        let are_there = references::have(upstreams, &hash_parts);
        for (at, _) in lacking.iter().zip(are_there).filter(|(_, there)| *there) {
            answers[*at] = Answer::Have;
            saved.count += 1;
            saved.nar_len = saved.nar_len.saturating_add(lines[*at].nar_size);
        }
    }
    saved
}

fn put_pack(
    context: Context<'_>,
    request: &mut Request,
    token: &Token,
    id: PushId,
) -> Result<Response, Failure> {
    let push = push::find(context.stored, token, id)?;
    let body = SharedBody::new(request.reader());
    let receive = || -> Result<_, PushError> {
        let mut admitted = context.stored.admit(token, &body, PATIENCE)?;
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

fn parts(
    context: Context<'_>,
    token: &Token,
    id: PushId,
    nar_hash: &NarHash,
) -> Result<Response, Failure> {
    let parts = push::parts(&push::find(context.stored, token, id)?, nar_hash)?;
    let lines = parts.iter().map(|part| PartLine {
        number: part.number,
        len: part.len,
        sha256: part.sha256,
    });
    let lines: Vec<_> = lines.collect();
    Ok(text_response(Status::OK, PartLine::text(&lines)))
}

fn join(
    context: Context<'_>,
    request: &mut Request,
    token: &Token,
    id: PushId,
    nar_hash: NarHash,
) -> Result<Response, Failure> {
    let JoinQuery {
        part_count,
        compression,
    } = JoinQuery::parse(query(request.head())).map_err(bad_query)?;
    let push = push::find(context.stored, token, id)?;
    let body = SharedBody::new(request.reader());
    let mut admitted = context.stored.admit(token, &body, PATIENCE)?;
    push::join(&push, nar_hash, part_count, compression, &mut admitted)?;
    Ok(done())
}

fn assemble(
    context: Context<'_>,
    request: &mut Request,
    token: &Token,
    id: PushId,
) -> Result<Response, Failure> {
    let AssembleQuery { base, window_log } =
        AssembleQuery::parse(query(request.head())).map_err(bad_query)?;
    let push = push::find(context.stored, token, id)?;
    let body = SharedBody::new(request.reader());
    let receive = || -> Result<_, PushError> {
        let mut admitted = context.stored.admit(token, &body, PATIENCE)?;
        push::assemble(&push, &base, window_log, &mut &body, &mut admitted)
    };
    let (nar_hash, nar_size) = body.finish(receive(), BODY_LEN_MAX)?;
    let assembled = Assembled { nar_hash, nar_size };
    Ok(text_response(Status::OK, assembled.text()))
}

fn publish_all(
    context: Context<'_>,
    request: &mut Request,
    token: &Token,
    id: PushId,
    len: u64,
) -> Result<Response, Failure> {
    let push = push::find(context.stored, token, id)?;
    let body = SharedBody::new(request.reader());
    let mut admitted = context.stored.admit(token, &body, PATIENCE)?;
    admitted
        .reserve(len.saturating_mul(PARSE_FACTOR))
        .map_err(PutError::from)?;
    let reader = &context.narinfos.reader;
    let elsewhere = Elsewhere::new(reader, context.upstreams);
    let is_elsewhere = |path: &StorePath| elsewhere.has(path);
    let render = |path: &StoredPath| render(context, path);
    let paths = match push::publish(&push, &mut &body, &is_elsewhere, &render) {
        // The live Nix store may contain the reference, but it cannot be read at the moment.
        Err(PushError::Missing(_)) if elsewhere.is_undecided() => {
            return Ok(Fixed::Unavailable.response());
        }
        other => other?,
    };
    elsewhere.published();
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

/// Returns the query of the URL.
fn query(head: Head<'_>) -> &[u8] {
    head.query().unwrap_or_default()
}

/// Returns the only method that a target allows, and the method's name.
fn method(target: Target) -> (Method, &'static str) {
    match target {
        Target::Open | Target::Join(..) | Target::Assemble(_) | Target::Publish(_) => {
            (Method::Post, "POST")
        }
        Target::Pack(_) | Target::Part(..) => (Method::Put, "PUT"),
        Target::Parts(..) => (Method::Get, "GET"),
        Target::Push(_) => (Method::Delete, "DELETE"),
    }
}

/// Returns the maximum length of the request body, in bytes. `None`: the request has no body.
fn body_len_max(target: Target) -> Option<u64> {
    match target {
        Target::Open => Some(OPEN_LEN_MAX),
        Target::Pack(_) | Target::Part(..) | Target::Assemble(_) => Some(BODY_LEN_MAX),
        Target::Publish(_) => Some(PUBLISH_LEN_MAX),
        Target::Join(..) | Target::Parts(..) | Target::Push(_) => None,
    }
}

fn done() -> Response {
    text_response(Status::OK, String::new())
}
