//! JSON in requests and responses.

use std::io::Read;

use samovar_http::http::Status;
use samovar_http::{Error, IntoResponse, Request, Response};
use samovar_http_proto::http::MediaType;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of JSON on a streaming route, in bytes; a longer body gets 413. On other routes
/// the route's own limit applies.
const STREAMED_LEN_MAX: u64 = 1 << 20;

/// A value that a handler returns as JSON.
///
/// ```
/// use samovar_http::{Request, Router, http::Status};
/// use samovar_web::Json;
///
/// fn create(_: &mut Request) -> (Status, Json<Vec<u32>>) {
///     (Status::CREATED, Json(vec![1, 2, 3]))
/// }
/// let router = Router::new().post("/numbers", create);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Result<Response, Error> {
        json(&self.0)
    }
}

/// Creates a response with status 200 from a value, as JSON.
///
/// # Errors
///
/// 500 if the value has no JSON, for example a map whose keys are not strings.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Response, Error> {
    Ok(Response::json(Status::OK, serde_json::to_string(value)?))
}

/// Reads the body of a request as JSON; see [`RequestExt::json`](crate::RequestExt::json).
pub(crate) fn read<T: DeserializeOwned>(request: &mut Request) -> Result<T, Error> {
    let content_type = request.head().header("content-type").unwrap_or_default();
    if !is_json(content_type) {
        let message = "the body must be JSON (Content-Type: application/json)";
        return Err(Error::new(Status::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let mut streamed = Vec::new();
    if request.body().is_empty() {
        let mut reader = request.reader().take(STREAMED_LEN_MAX + 1);
        if reader.read_to_end(&mut streamed)? as u64 > STREAMED_LEN_MAX {
            return Err(Status::CONTENT_TOO_LARGE.into());
        }
    }
    let text = match streamed.is_empty() {
        true => request.body(),
        false => &streamed,
    };
    serde_json::from_slice(text).map_err(|error| {
        let message = format!("malformed JSON: {error}");
        Error::from(error).because(Status::BAD_REQUEST, message)
    })
}

/// Returns whether a `Content-Type` is JSON: `application/json`, or a type with the suffix `+json`.
fn is_json(content_type: &[u8]) -> bool {
    MediaType::parse(content_type).is_some_and(|media_type| {
        let essence = media_type.essence().to_ascii_lowercase();
        essence == "application/json" || essence.ends_with("+json")
    })
}
