//! Pins uploaded paths for clients: `PUT upload/pin/<name>` (`docs/push-protocol.md`).

use std::io::Read as _;

use samovar_http::http::Status;
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_nix::StorePath;
use samovar_storage::metadata::Pin;
use samovar_storage::token::Token;
use samovar_storage::{PinError, PinName, PinNameError, PutError};

use super::authorize::Right;
use super::get::is_denied;
use super::{Context, Uploads, failed, refused};

/// Maximum length of a body, in bytes. The base name of a store path has at most 244.
const BODY_LEN_MAX: u64 = 1024;

/// The parameters in the query of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parameters {
    /// Number of generations to keep.
    keep: Option<u32>,
    /// Time until the generation expires, in seconds.
    lifetime: Option<i64>,
}

impl Uploads {
    /// Pins the path in the body of a request. `name`: `None` if the URL has an invalid name.
    pub(super) fn pin(
        &self,
        context: Context<'_>,
        request: &mut Request,
        name: Option<&PinName>,
    ) -> Response {
        let pinned = self.try_pin(context, request, name);
        pinned.unwrap_or_else(|refusal| refusal)
    }

    fn try_pin(
        &self,
        context: Context<'_>,
        request: &mut Request,
        name: Option<&PinName>,
    ) -> Result<Response, Response> {
        let token = self.client(context, request.head(), Right::Pin)?;
        let name = name.ok_or_else(|| bad_request(&PinNameError.to_string()))?;
        let parameters = parameters(request.head()).map_err(|fault| bad_request(&fault))?;
        let path = path_in_body(request)?;
        let observer = &context.narinfos.reader.shared.observer;
        match self.pin_path(context, &token, &path, name, &parameters) {
            Ok(pin) => {
                observer.event(&Event::PathPinned {
                    path: &path.display(context.store_dir),
                    pin: name.as_str(),
                    token: &token.name,
                });
                let text = format!("pinned {} {}\nend 1\n", pin.generation, path.base_name());
                Ok(Response::text(Status::OK, text))
            }
            Err(PinError::Storage(error)) => {
                observer.event(&Event::StorageFailed(&error));
                Err(failed(request.head(), &PutError::Storage(error)))
            }
            Err(error) => {
                let url = &request.head().path().escape_ascii();
                observer.event(&Event::UploadRefused {
                    url,
                    reason: &error,
                });
                let status = match error {
                    PinError::NotUploaded(_) => Status::CONFLICT,
                    PinError::TooMany => Status::CONTENT_TOO_LARGE,
                    _ => Status::FORBIDDEN,
                };
                Err(refused(status, &error.to_string()))
            }
        }
    }

    fn pin_path(
        &self,
        context: Context<'_>,
        token: &Token,
        path: &StorePath,
        name: &PinName,
        parameters: &Parameters,
    ) -> Result<Pin, PinError> {
        let found = self.stored.lookup(path.hash_part())?;
        // A path that a policy hides is answered as if it did not exist.
        if !found.is_some_and(|found| found.path == *path && !is_denied(context, &found)) {
            return Err(PinError::NotUploaded(path.clone()));
        }
        let Parameters { keep, lifetime } = *parameters;
        self.stored.pin(token, path, name, keep, lifetime)
    }
}

/// Parses the parameters in the query of the URL.
///
/// # Errors
///
/// The error names the parameter and the fix.
fn parameters(head: Head<'_>) -> Result<Parameters, String> {
    parse(&String::from_utf8_lossy(head.query().unwrap_or_default()))
}

fn parse(query: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::default();
    for text in query.split('&').filter(|text| !text.is_empty()) {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<i64> = value.parse().ok().filter(|count| is_number && *count > 0);
        match name {
            "keep" => parameters.keep = number.and_then(|count| count.try_into().ok()),
            "expires" => parameters.lifetime = number,
            _ => return Err(format!("unknown parameter {name:?}: use keep and expires")),
        }
        let is_set = match name {
            "keep" => parameters.keep.is_some(),
            _ => parameters.lifetime.is_some(),
        };
        if !is_set {
            return Err(format!(
                "the parameter {name} is {value:?}: use a number of at least 1"
            ));
        }
    }
    Ok(parameters)
}

/// Reads the body of a request, which must be the base name of a store path.
fn path_in_body(request: &mut Request) -> Result<StorePath, Response> {
    let mut body = Vec::new();
    let read = request
        .reader()
        // Read one byte more than allowed, to detect a body that is too long.
        .take(BODY_LEN_MAX + 1)
        .read_to_end(&mut body);
    if let Err(error) = read {
        return Err(failed(request.head(), &PutError::Source(error)));
    }
    let text = std::str::from_utf8(&body).unwrap_or_default();
    let text = text.strip_suffix('\n').unwrap_or(text);
    StorePath::from_base_name(text).map_err(|_error| {
        bad_request(
            "the body is not the base name of a store path: send the part of the path after \
             /nix/store/",
        )
    })
}

fn bad_request(text: &str) -> Response {
    refused(Status::BAD_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_pin() {
        let of = |keep, lifetime| Ok(Parameters { keep, lifetime });
        assert_eq!(parse(""), of(None, None));
        assert_eq!(parse("keep=1"), of(Some(1), None));
        assert_eq!(
            parse("expires=86400&keep=4294967295"),
            of(Some(u32::MAX), Some(86_400))
        );
        for wrong in [
            "keep",
            "keep=",
            "keep=0",
            "keep=+1",
            "keep=-1",
            "keep=1d",
            "keep=4294967296",
            "expires=0",
            "expires=9223372036854775808",
            "keeep=1",
            "expires=1&x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
