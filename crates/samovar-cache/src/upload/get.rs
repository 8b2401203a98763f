//! Answers GET and HEAD requests for uploaded paths.

use samovar_http::http::{Method, Status};
use samovar_http::{Body, Head, Response};
use samovar_nix::{HashPart, StorePath};
use samovar_protocol::names::FileName;
use samovar_storage::metadata::{Client, StoredPath};
use samovar_storage::objects::NarFile;
use samovar_storage::{StoredCache, browse, logs};

use super::{Context, needs_token, realisation, render, unavailable, with_token};
use crate::answer::build_log;
use crate::answer::nar::Part;
use crate::answer::stored_nar::{self, Unread};
use crate::narinfo::form::NarinfoForm;
use crate::refusal::{Fixed, TEXT};
use crate::route::Route;
use crate::route::upload::Resource;

/// Whether answering this route may wait for a disk: see [`Route::reads_files`]. Before an uploaded
/// path is named, its NAR file is examined, which may be on another disk than the databases.
pub(crate) fn reads_files(stored: Option<&StoredCache>, route: &Route) -> bool {
    let names_uploads = |stored: &StoredCache| match route {
        Route::Narinfo(hash_part) => stored.may_contain(*hash_part),
        Route::Narinfos | Route::Closure(_) => true,
        _ => false,
    };
    route.reads_files() || stored.is_some_and(names_uploads)
}

/// Returns whether a request may wait until the disk is written, because it changes something.
/// While the disk hangs, such a request is refused and does not wait. Never blocks on a disk.
pub(crate) fn writes(stored: &StoredCache, method: Method, route: &Route) -> bool {
    let is_change = !matches!(method, Method::Get | Method::Head) && needs_token(method, route);
    is_change && !stored.disk_hangs()
}

/// Returns when the uploaded path of this route was deleted, in seconds since 1970; `None`:
/// unknown. Never blocks on a disk.
pub(crate) fn deleted_at(stored: Option<&StoredCache>, route: &Route) -> Option<i64> {
    let hash_part = match route {
        Route::Page(_) | Route::Log(_) => None,
        route => route.hash_part(),
    };
    stored?.deleted_at(hash_part?)
}

/// Answers a GET or HEAD from uploaded paths, after the live Nix store had nothing with this URL.
/// Returns `None` if nothing is uploaded there, either: then the store's answer says why there is
/// none.
pub(crate) fn find(context: Context<'_>, head: Head<'_>, route: &Route) -> Option<Response> {
    let response = answer(context, head, Some(route.resource()?));
    (response.status() != Status::NOT_FOUND).then_some(response)
}

/// Answers a GET or HEAD from uploaded paths alone, without the live Nix store.
pub(super) fn answer(
    context: Context<'_>,
    head: Head<'_>,
    resource: Option<Resource<'_>>,
) -> Response {
    if resource == Some(Resource::CacheInfo) {
        return Response::new(Status::OK, context.cache_info.to_vec()).header(TEXT.0, TEXT.1);
    }
    context.narinfos.reader.decided(|| match resource {
        Some(Resource::Narinfo(hash_part)) => narinfo(context, head, hash_part),
        Some(Resource::Listing(hash_part)) => listing(context, hash_part),
        Some(Resource::Nar(name)) => nar(context, head, &name),
        Some(Resource::Log(path)) => log(context, path),
        Some(Resource::Realisation(id)) => realisation::answer(context, id),
        Some(Resource::CacheInfo | Resource::DebugInfo) | None => Fixed::NotFound.response(),
    })
}

/// Responds with the narinfo of an uploaded path.
fn narinfo(context: Context<'_>, head: Head<'_>, hash_part: HashPart) -> Response {
    match context.stored.lookup(hash_part) {
        Ok(Some(path)) if is_denied(context, &path) => Fixed::NoPath.response(),
        Ok(Some(path)) => {
            let text = render(context, &path);
            NarinfoForm::of(head).response_of(context.store_dir, text)
        }
        Ok(None) => Fixed::NoPath.response(),
        Err(error) => unavailable(context, &error),
    }
}

/// Responds with the listing of an uploaded path.
fn listing(context: Context<'_>, hash_part: HashPart) -> Response {
    let listing = context
        .stored
        .lookup(hash_part)
        .map(|path| path.filter(|path| !is_denied(context, path)))
        .and_then(|path| path.map_or(Ok(None), |path| browse::listing(context.stored, &path)));
    match listing {
        Ok(Some(listing)) => Response::new(Status::OK, Body::reader(listing).keeping_slot())
            .header("Content-Type", "application/json"),
        Ok(None) => Fixed::NoPath.response(),
        Err(error) => unavailable(context, &error),
    }
}

/// Responds with an uploaded build log.
fn log(context: Context<'_>, path: &StorePath) -> Response {
    let opened = match logs::open(context.stored, path) {
        Ok(Some(file)) => {
            match build_log::admit_uploaded(&context.narinfos.reader, context.stored, path) {
                Ok(()) => Ok(Some(file)),
                Err(refusal) => return refusal.answer().response(),
            }
        }
        other => other,
    };
    match opened {
        Ok(Some(file)) => match Body::file(file) {
            Ok(body) => build_log::response(body),
            Err(_failed) => Fixed::Unavailable.response(),
        },
        Ok(None) => Fixed::NoPath.response(),
        Err(error) => unavailable(context, &error),
    }
}

/// Responds with the file of an uploaded NAR, or with a range of it.
fn nar(context: Context<'_>, head: Head<'_>, name: &FileName) -> Response {
    let token = with_token(head, |text| {
        context
            .stored
            .authorize(text, context.stored.metadata().now())
    });
    let opened = token.transpose().and_then(|token| {
        let token = token.and_then(Result::ok).map(|mut token| {
            token.rights.read |= context.is_reader;
            token
        });
        let everybody = Client {
            token: None,
            is_reader: context.is_reader,
        };
        let client = token.as_ref().map_or(everybody, Client::from);
        let stored = context.stored;
        if head.method() == Method::Head {
            let found = stored.find_file(client, name)?;
            if let (Some(nar), Some(token)) = (&found, &token) {
                // A client that pushes skips a file that is here, and publishes its path later.
                stored.renew_file(token, nar)?;
            }
            return Ok(found.map(|nar| Opened::Known(nar.file_size)));
        }
        if let Some(url) = stored.direct_url(client, name)? {
            return Ok(Some(Opened::Elsewhere(url)));
        }
        let opened = stored.open_file(client, name)?;
        Ok(opened.map(|(_nar, file)| Opened::File(file)))
    });
    let opened = match opened {
        Ok(Some(opened)) => opened,
        Ok(None) => return Fixed::NoPath.response(),
        Err(error) => return unavailable(context, &error),
    };
    let part = |len| Part::requested(head, len);
    match opened {
        Opened::Elsewhere(url) => {
            // The URL is valid for an hour, and for this client.
            let response = Response::new(Status::FOUND, Body::Empty).header("Location", url);
            response.header("Cache-Control", "private, no-store")
        }
        Opened::Known(len) => match part(len) {
            Ok(part) => part.response(Body::Source(Box::new(Unread(part.end - part.start)))),
            Err(unsatisfiable) => unsatisfiable,
        },
        Opened::File(file) => match part(file.len()) {
            Ok(part) => part.response(stored_nar::body(&file, part.start..part.end)),
            Err(unsatisfiable) => unsatisfiable,
        },
    }
}

/// How a file is delivered.
enum Opened {
    /// By the server.
    File(NarFile),
    /// By the bucket, at this URL.
    Elsewhere(String),
    /// Not at all, because only its length is asked for, in bytes.
    Known(u64),
}

/// Returns whether the policy hides an uploaded path from the client. While that is unknown, the
/// path is hidden, and [`Reader::decided`](crate::reader::Reader::decided) replaces the response.
pub(super) fn is_denied(context: Context<'_>, path: &StoredPath) -> bool {
    context.narinfos.reader.admit_uploaded(path).is_err()
}
