//! Request IDs: a name for each request in logs and in messages of users.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samovar_http::{Next, Request, Response};

/// Name of the header field in requests and responses.
const FIELD: &str = "X-Request-Id";

/// Maximum length of an ID that is taken from a request, in bytes: it is written to logs.
const LEN_MAX: usize = 128;

/// The ID of a request, in its [extensions](Request::extensions) while [`RequestIds`] runs.
///
/// ```
/// use samovar_http::{Request, Router};
/// use samovar_web::{RequestId, RequestIds};
///
/// fn show(request: &mut Request) -> String {
///     let id = request.extensions().get::<RequestId>();
///     format!("you are request {}\n", id.map_or("", |id| id.as_str()))
/// }
/// let router = Router::new().get("/", show).wrap(RequestIds::new().handler());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Returns the ID: letters, digits, `-`, `_` and `.` only.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Middleware that gives each request a [`RequestId`], in its extensions and in `X-Request-Id` of
/// the response.
#[derive(Debug)]
pub struct RequestIds {
    trusts_header: bool,
    /// Distinguishes processes.
    prefix: u64,
    next: AtomicU64,
}

impl RequestIds {
    /// Creates a middleware that makes all IDs itself. They are unique among processes.
    pub fn new() -> Self {
        Self {
            trusts_header: false,
            // The standard library seeds each of its hashers with random bytes.
            prefix: RandomState::new().hash_one(std::process::id()),
            next: AtomicU64::new(0),
        }
    }

    /// Takes the ID from `X-Request-Id` of the request, if it has one of at most 128 letters,
    /// digits, `-`, `_` and `.`. For servers behind a proxy that sets the field: other clients
    /// could give two requests one ID.
    #[must_use]
    pub fn trust_header(mut self) -> Self {
        self.trusts_header = true;
        self
    }

    /// Returns the middleware, for [`Router::wrap`](samovar_http::Router::wrap). Add it first, so
    /// that all others can read the ID.
    pub fn handler(self) -> impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| self.run(request, next)
    }

    fn run(&self, request: &mut Request, next: Next<'_>) -> Response {
        let id = self.id(request);
        request.extensions_mut().insert(id.clone());
        next.run(request).set_header(FIELD, id.as_str())
    }

    fn id(&self, request: &Request) -> RequestId {
        let is_char = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let given = request.head().header_text(FIELD).filter(|id| {
            self.trusts_header && (1..=LEN_MAX).contains(&id.len()) && id.bytes().all(is_char)
        });
        let own = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            format!("{:016x}-{number:x}", self.prefix)
        };
        RequestId(given.map_or_else(own, str::to_owned).into())
    }
}

impl Default for RequestIds {
    fn default() -> Self {
        Self::new()
    }
}
