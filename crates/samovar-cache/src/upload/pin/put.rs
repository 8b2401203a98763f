//! `PUT upload/pin/<name>`: pins an uploaded path.

use std::io::Read as _;

use samovar_http::http::Status;
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_nix::StorePath;
use samovar_protocol::names::PinName;
use samovar_protocol::pins::{PUT_LEN_MAX, Pinned, Put};
use samovar_storage::PutError;
use samovar_storage::metadata::Pin;
use samovar_storage::pinning::{self, PinError, PinOptions};
use samovar_storage::token::Token;

use super::{bad_request, condition, is_readable, number_needed, parameters, refusal, valid};
use crate::refusal::text_response;
use crate::upload::authorize::{Right, client};
use crate::upload::{Context, failed, refused};

/// Pins the path in the body of a request.
pub(super) fn answer(
    context: Context<'_>,
    request: &mut Request,
    name: Option<&PinName>,
) -> Result<Response, Response> {
    let token = client(context, request.head(), Right::Pin)?;
    let name = valid(name)?;
    name.check_new()
        .map_err(|error| bad_request(&error.to_string()))?;
    let mut options = options(request.head())?;
    let content = content(request)?;
    let path = content.path;
    (options.host, options.message) = (content.host, content.message);
    let pinned = pin_path(context, &token, &path, name, options);
    let pin = pinned.map_err(|error| refusal(context, request.head(), &token, error))?;
    let shared = &context.narinfos.reader.shared;
    shared.pin_watch.change();
    shared.observer.event(&Event::PathPinned {
        path: &path.display(context.store_dir),
        pin: name.as_str(),
        by: context.uploader(&token),
    });
    let pinned = Pinned {
        number: pin.generation.unsigned_abs(),
        path,
    };
    Ok(text_response(Status::OK, pinned.text()).header("ETag", pin.version().tag()))
}

fn pin_path(
    context: Context<'_>,
    token: &Token,
    path: &StorePath,
    name: &PinName,
    options: PinOptions,
) -> Result<Pin, PinError> {
    // A path that a policy hides is answered as if it did not exist.
    match is_readable(context, path)? {
        true => pinning::pin(context.stored, token, path, name, options),
        false => Err(PinError::NotUploaded(path.clone())),
    }
}

/// Returns the options in the URL and in the header of a request.
fn options(head: Head<'_>) -> Result<PinOptions, Response> {
    let [keep, lifetime] = parameters(head, ["keep", "expires"])?;
    let keep = keep.map(|keep| {
        u32::try_from(keep).map_err(|_too_large| {
            let fault = number_needed("keep", &keep.to_string());
            bad_request(&format!("{fault} and at most {}", u32::MAX))
        })
    });
    Ok(PinOptions {
        keep: keep.transpose()?,
        lifetime,
        condition: condition::of(head).map_err(|fault| bad_request(&fault))?,
        ..PinOptions::default()
    })
}

/// Reads the body of a request.
fn content(request: &mut Request) -> Result<Put, Response> {
    let mut body = Vec::new();
    let read = request
        .reader()
        // Read one byte more than allowed, to detect a body that is too long.
        .take(PUT_LEN_MAX + 1)
        .read_to_end(&mut body);
    if let Err(error) = read {
        return Err(failed(request.head(), &PutError::Source(error)));
    }
    match body.len() as u64 > PUT_LEN_MAX {
        true => Err(refused(
            Status::CONTENT_TOO_LARGE,
            &format!(
                "the body has more than {PUT_LEN_MAX} bytes: send the base name of a store path, \
                 a host and a message"
            ),
        )),
        false => Put::parse(&body).map_err(|fault| bad_request(&fault.to_string())),
    }
}
