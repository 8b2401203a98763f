//! One route, and all that can be said about it.

use std::fmt;

use super::next::{Middleware, Next};
use super::params::Params;
use crate::error::Error;
use crate::head::Head;
use crate::http::Method;
use crate::into_response::IntoResponse;
use crate::proto::encode;
use crate::reply::{Inline, Reply};
use crate::request::Request;
use crate::response::Response;
use crate::service::Intake;

/// Bytes of a request body that a route takes unless it says otherwise.
const BODY_LEN_MAX: u64 = 1 << 20;

pub(crate) type Handler = Box<dyn Fn(&mut Request) -> Result<Response, Error> + Send + Sync>;
pub(crate) type InlineHandler =
    Box<dyn for<'a> Fn(Head<'a>, Params<'a>, Reply<'a>) -> Inline + Send + Sync>;

pub(crate) fn boxed<R: IntoResponse>(
    handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
) -> Handler {
    Box::new(move |request| handler(request).into_response())
}

/// Which requests of a path a route is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Methods {
    Any,
    One(Method),
    /// A token that [`Method`] has no name for.
    Token(Box<str>),
}

impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any method"),
            Self::One(method) => f.write_str(method.as_str()),
            Self::Token(token) => f.write_str(token),
        }
    }
}

/// A method, a pattern of paths and a handler, for [`Router::route`](crate::Router::route).
///
/// A route takes a request body of up to 1 MiB into memory before its handler starts; more is
/// answered with 413. [`body_len_max`](Self::body_len_max) and [`streaming`](Self::streaming) say
/// otherwise.
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
    pub(crate) methods: Methods,
    pub(crate) pattern: String,
    pub(crate) handler: Handler,
    pub(crate) inline: Option<InlineHandler>,
    pub(crate) intake: Intake,
    pub(crate) wraps: Vec<Middleware>,
}

macro_rules! methods {
    ($($name:ident $method:ident $token:literal,)*) => {$(
        #[doc = concat!("A route for ", $token, ".")]
        pub fn $name<R: IntoResponse>(
            pattern: &str,
            handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
        ) -> Self {
            Self::with_methods(Methods::One(Method::$method), pattern, boxed(handler))
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

    /// A route for all methods that the path has no route of their own for.
    pub fn any<R: IntoResponse>(
        pattern: &str,
        handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
    ) -> Self {
        Self::with_methods(Methods::Any, pattern, boxed(handler))
    }

    /// A route for a method by its token, such as `PROPFIND`. Methods are case-sensitive.
    ///
    /// # Panics
    ///
    /// If `method` is no token.
    #[track_caller]
    pub fn new<R: IntoResponse>(
        method: &str,
        pattern: &str,
        handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
    ) -> Self {
        assert!(encode::is_field_name(method), "{method:?} is not a method");
        let methods = match Method::from_token(method) {
            Method::Other => Methods::Token(method.into()),
            known => Methods::One(known),
        };
        Self::with_methods(methods, pattern, boxed(handler))
    }

    fn with_methods(methods: Methods, pattern: &str, handler: Handler) -> Self {
        Self {
            methods,
            pattern: pattern.to_owned(),
            handler,
            inline: None,
            intake: Intake::Buffered(BODY_LEN_MAX),
            wraps: Vec::new(),
        }
    }

    /// Takes a body of up to `len_max` bytes into memory before the handler starts.
    #[must_use]
    pub fn body_len_max(mut self, len_max: u64) -> Self {
        self.intake = Intake::Buffered(len_max);
        self
    }

    /// Calls the handler on the I/O thread when a body of up to `len_max` bytes is in memory; see
    /// [`Intake::Inline`] for what that forbids. It is a handler like others, middleware included.
    #[must_use]
    pub fn inline_body(mut self, len_max: u64) -> Self {
        self.intake = Intake::Inline(len_max);
        self
    }

    /// Starts the handler after the head, to [read](Request::reader) a body of up to `len_max`
    /// bytes as it comes, in constant memory.
    #[must_use]
    pub fn streaming(mut self, len_max: u64) -> Self {
        self.intake = Intake::Streamed(len_max);
        self
    }

    /// Tries to answer on the I/O thread first; see [`Service::inline`](crate::Service::inline) for
    /// what that forbids. It answers with what is at hand, or declines with [`Reply::dispatch`]:
    /// then a worker runs the handler.
    ///
    /// No middleware sees a request that is answered so. That would be a hole where the middleware
    /// keeps strangers out, so such a route is refused by a router that has any.
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

    /// Puts a function around this route's handler, as [`Router::wrap`](crate::Router::wrap) does
    /// for all routes. The first is the outermost, and inside of those of the router.
    #[must_use]
    pub fn wrap(
        mut self,
        middleware: impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.wraps.push(Box::new(middleware));
        self
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.methods, self.pattern)
    }
}
