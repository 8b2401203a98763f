//! A route and its settings.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use super::next::{Middleware, Next, middleware_with};
use crate::error::Error;
use crate::head::Head;
use crate::http::Method;
use crate::proto::encode;
use crate::request::{Params, Request};
use crate::response::{Inline, IntoResponse, Reply, Response};
use crate::service::Intake;

/// Default maximum length of a request body, in bytes.
const BODY_LEN_MAX: u64 = 1 << 20;

pub(crate) type Handler = Box<dyn Fn(&mut Request) -> Result<Response, Error> + Send + Sync>;
pub(crate) type InlineHandler =
    Box<dyn for<'a> Fn(Head<'a>, Params<'a>, Reply<'a>) -> Inline + Send + Sync>;

fn boxed<R: IntoResponse>(handler: impl Fn(&mut Request) -> R + Send + Sync + 'static) -> Handler {
    Box::new(move |request| handler(request).into_response())
}

/// The method that a route matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RouteMethod {
    /// Every method that has no route of its own for the pattern.
    Any,
    /// A method with a variant of its own.
    Known(Method),
    /// The token of another method.
    Token(Box<str>),
}

impl RouteMethod {
    /// Returns whether this is the method of a request. `Any` is not a method, so it is none.
    pub(crate) fn is_of(&self, head: Head<'_>) -> bool {
        match self {
            Self::Any => false,
            Self::Known(method) => *method == head.method(),
            Self::Token(token) => token.as_bytes() == head.method_name(),
        }
    }

    /// Returns the token, for `Allow`; `None` for `Any`.
    pub(crate) fn token(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Known(method) => Some(method.as_str()),
            Self::Token(token) => Some(token),
        }
    }
}

/// A method, a path pattern and a handler, for [`Router::route`](crate::Router::route).
///
/// By default, a request body of up to 1 MiB is read into memory before the handler starts, and a
/// longer one gets 413. [`body_len_max`](Self::body_len_max) and [`streaming`](Self::streaming)
/// change that.
///
/// # Examples
///
/// ```
/// use samovar_http::{Error, Request, Route, Router};
///
/// fn upload(request: &mut Request) -> Result<String, Error> {
///     let len = std::io::copy(&mut request.reader(), &mut std::io::sink())?;
///     Ok(format!("{len} bytes\n"))
/// }
/// let router = Router::new().route(Route::put("/files/{name}", upload).streaming(10 << 30));
/// ```
pub struct Route {
    pub(crate) method: RouteMethod,
    pub(crate) pattern: String,
    pub(crate) handler: Handler,
    pub(crate) inline: Option<InlineHandler>,
    pub(crate) intake: Intake,
    pub(crate) wraps: Vec<Middleware>,
    /// Whether no response is compressed.
    pub(crate) is_uncompressed: bool,
}

macro_rules! methods {
    ($($name:ident $method:ident $token:literal,)*) => {$(
        #[doc = concat!("A route for ", $token, ".")]
        pub fn $name<R: IntoResponse>(
            pattern: &str,
            handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
        ) -> Self {
            Self::with_method(RouteMethod::Known(Method::$method), pattern, boxed(handler))
        }
    )*};
}

impl Route {
    methods! {
        get Get "GET, and for HEAD where the path has no route of its own for it",
        head Head "HEAD",
        post Post "POST",
        put Put "PUT",
        delete Delete "DELETE",
        options Options "OPTIONS",
        patch Patch "PATCH",
    }

    /// Creates a route for all methods that have no route of their own on that path.
    pub fn any<R: IntoResponse>(
        pattern: &str,
        handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
    ) -> Self {
        Self::with_method(RouteMethod::Any, pattern, boxed(handler))
    }

    /// Creates a route for a method of any name, such as `PURGE` or `PROPFIND`. Methods are
    /// case-sensitive (RFC 9110, 9.1).
    ///
    /// ```
    /// use samovar_http::{Request, Route, Router, http::Status};
    ///
    /// fn purge(request: &mut Request) -> Status {
    ///     println!("forget {}", request.param("path").unwrap_or_default());
    ///     Status::NO_CONTENT
    /// }
    /// let router = Router::new()
    ///     .get("/{*path}", |_| "cached\n")
    ///     .route(Route::new("PURGE", "/{*path}", purge));
    /// ```
    ///
    /// # Panics
    ///
    /// If `method` is not a token (RFC 9110, 5.6.2): this is a bug of the program, detected at
    /// start.
    #[track_caller]
    pub fn new<R: IntoResponse>(
        method: &str,
        pattern: &str,
        handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
    ) -> Self {
        assert!(encode::is_token(method), "{method:?} is not a method");
        let method = match Method::from_token(method) {
            Method::Other => RouteMethod::Token(method.into()),
            known => RouteMethod::Known(known),
        };
        Self::with_method(method, pattern, boxed(handler))
    }

    fn with_method(method: RouteMethod, pattern: &str, handler: Handler) -> Self {
        Self {
            method,
            pattern: pattern.to_owned(),
            handler,
            inline: None,
            intake: Intake::Buffered(BODY_LEN_MAX),
            wraps: Vec::new(),
            is_uncompressed: false,
        }
    }

    /// Reads a body of up to `len_max` bytes into memory before the handler starts. A longer one
    /// gets 413.
    #[must_use]
    pub fn body_len_max(mut self, len_max: u64) -> Self {
        self.intake = Intake::Buffered(len_max);
        self
    }

    /// Runs the handler on the I/O thread once a body of up to `len_max` bytes is in memory. The
    /// handler must not block, see [`Intake::Inline`]. Middleware applies as for other handlers.
    #[must_use]
    pub fn inline_body(mut self, len_max: u64) -> Self {
        self.intake = Intake::Inline(len_max);
        self
    }

    /// Starts the handler once the head has arrived. The handler [reads](Request::reader) a body of
    /// up to `len_max` bytes as it arrives, in constant memory.
    #[must_use]
    pub fn streaming(mut self, len_max: u64) -> Self {
        self.intake = Intake::Streamed(len_max);
        self
    }

    /// Calls `handler` on the I/O thread first. It must not block, see
    /// [`Service::inline`](crate::Service::inline). It responds from memory, or declines with
    /// [`Reply::dispatch`]; then a worker runs the route's own handler.
    ///
    /// Responses of `handler` bypass middleware. Because middleware may check access, a router with
    /// middleware refuses such routes.
    ///
    /// ```
    /// use samovar_http::{Prepared, Route, Router, http::Status};
    ///
    /// let pong = Prepared::new(Status::OK, &[("Content-Type", "text/plain")], b"pong\n");
    /// let ping = Route::get("/ping", |_| "pong\n");
    /// let router = Router::new().route(ping.inline(move |_, _, reply| reply.prepared(&pong)));
    /// ```
    #[must_use]
    pub fn inline(
        mut self,
        handler: impl for<'a> Fn(Head<'a>, Params<'a>, Reply<'a>) -> Inline + Send + Sync + 'static,
    ) -> Self {
        self.inline = Some(Box::new(handler));
        self
    }

    /// Excludes all responses to requests of this route, including deferred ones, from
    /// [compression](crate::compress). For pages that contain both a secret, such as a token in a
    /// form, and text from the request or from other users.
    ///
    /// ```
    /// use samovar_http::{Request, Route, Router};
    ///
    /// fn transfer(request: &mut Request) -> String {
    ///     let to = request.query().get("to").unwrap_or_default().to_owned();
    ///     format!("to: {to}, token: {}", "secret of the session")
    /// }
    /// let router = Router::new().route(Route::get("/transfer", transfer).uncompressed());
    /// ```
    #[must_use]
    pub fn uncompressed(mut self) -> Self {
        self.is_uncompressed = true;
        self
    }

    /// Adds middleware around this route's handler. Middleware of
    /// [`Router::wrap`](crate::Router::wrap) runs outside of it. The first middleware added is the
    /// outermost.
    #[must_use]
    pub fn wrap(
        mut self,
        middleware: impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.wraps.push(Arc::new(middleware));
        self
    }

    /// Adds middleware that is a method of a shared value, as
    /// [`Router::wrap_with`](crate::Router::wrap_with) does.
    #[must_use]
    pub fn wrap_with<S, T>(
        mut self,
        state: &Arc<S>,
        middleware: impl Fn(&T, &mut Request, Next<'_>) -> Response + Send + Sync + 'static,
    ) -> Self
    where
        S: Send + Sync + 'static,
        Arc<S>: Borrow<T>,
        T: 'static,
    {
        self.wraps.push(middleware_with(state, middleware));
        self
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.token().unwrap_or("any method");
        write!(f, "{method} {}", self.pattern)
    }
}
