//! Cross-origin resource sharing.
//!
//! # Source
//!
//! The Fetch standard, section 3.3 "CORS protocol".

use std::time::Duration;

use samovar_http::http::{Method, Status};
use samovar_http::{Body, Next, Request, Response};

/// Middleware that lets pages of other origins use an application, by
/// [`handler`](Self::handler).
///
/// Without it, browsers let scripts of other origins send only simple requests, and hide the
/// responses from them. It protects users of browsers; it is no access control: other clients can
/// send any request.
///
/// ```
/// use std::time::Duration;
/// use samovar_http::{Request, Router};
/// use samovar_web::Cors;
///
/// let cors = Cors::new()
///     .origin("https://app.example.org")
///     .methods(["GET", "PUT"])
///     .headers(["Content-Type"])
///     .max_age(Duration::from_secs(3600));
/// let router = Router::new().get("/api/tea", |_| "Earl Grey\n").wrap(cors.handler());
///
/// let preflight = Request::builder("OPTIONS", "/api/tea")
///     .header("Origin", "https://app.example.org")
///     .header("Access-Control-Request-Method", "PUT")
///     .build();
/// let response = router.answer(preflight);
/// assert_eq!(response.header_text("Access-Control-Allow-Methods"), Some("GET, PUT"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Cors {
    origins: Vec<String>,
    is_any_origin: bool,
    methods: Vec<String>,
    headers: Vec<String>,
    exposed: Vec<String>,
    allows_credentials: bool,
    max_age: Option<Duration>,
}

impl Cors {
    /// Creates a middleware that allows no other origin.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows an origin, such as `https://app.example.org` or `http://localhost:3000`: scheme, host
    /// and port as browsers send them, without a slash at the end.
    #[must_use]
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }

    /// Allows all origins. Browsers then send no cookies, also with
    /// [`credentials`](Self::credentials).
    #[must_use]
    pub fn any_origin(mut self) -> Self {
        self.is_any_origin = true;
        self
    }

    /// Allows methods. GET, HEAD and POST are always allowed.
    #[must_use]
    pub fn methods<M: Into<String>>(mut self, methods: impl IntoIterator<Item = M>) -> Self {
        self.methods.extend(methods.into_iter().map(Into::into));
        self
    }

    /// Allows header fields of requests, such as `Content-Type` for JSON and `Authorization`.
    #[must_use]
    pub fn headers<H: Into<String>>(mut self, headers: impl IntoIterator<Item = H>) -> Self {
        self.headers.extend(headers.into_iter().map(Into::into));
        self
    }

    /// Lets scripts read header fields of responses. Without it they can read only a few, such as
    /// `Content-Type`.
    #[must_use]
    pub fn exposed<H: Into<String>>(mut self, headers: impl IntoIterator<Item = H>) -> Self {
        self.exposed.extend(headers.into_iter().map(Into::into));
        self
    }

    /// Lets scripts of the listed origins send cookies and read the responses to them.
    #[must_use]
    pub fn credentials(mut self) -> Self {
        self.allows_credentials = true;
        self
    }

    /// Lets browsers remember a preflight for this time, in whole seconds. Without it, they
    /// remember it for five seconds.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Returns the middleware, for [`Router::wrap`](samovar_http::Router::wrap). It answers
    /// preflights (`OPTIONS` with `Access-Control-Request-Method`) itself, also for paths without a
    /// route; other OPTIONS requests reach the router.
    pub fn handler(self) -> impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| self.run(request, next)
    }

    fn run(&self, request: &mut Request, next: Next<'_>) -> Response {
        let head = request.head();
        let origin = head.header_text("origin").map(str::to_owned);
        let is_preflight = head.method() == Method::Options
            && origin.is_some()
            && head.header("access-control-request-method").is_some();
        let response = match is_preflight {
            true => self.preflight(),
            false => next.run(request),
        };
        let Some(allowed) = self.allowed(origin.as_deref()) else {
            return self.varying(response);
        };
        let mut response = self
            .varying(response)
            .set_header("Access-Control-Allow-Origin", allowed);
        if self.allows_credentials && allowed != "*" {
            response = response.set_header("Access-Control-Allow-Credentials", "true");
        }
        if is_preflight {
            response = self.permit(response);
        } else if !self.exposed.is_empty() {
            let names = self.exposed.join(", ");
            response = response.set_header("Access-Control-Expose-Headers", names);
        }
        response
    }

    /// Returns the value of `Access-Control-Allow-Origin`; `None` if the origin is not allowed. If
    /// all origins are allowed, so are requests without an origin: a shared cache may keep the
    /// response and send it to a page.
    fn allowed<'a>(&self, origin: Option<&'a str>) -> Option<&'a str> {
        let is_listed = |origin: &&str| self.origins.iter().any(|allowed| allowed == origin);
        origin
            .filter(is_listed)
            .or_else(|| self.is_any_origin.then_some("*"))
    }

    /// Creates the response to a preflight. It is the same for all paths, because it only states
    /// what scripts may try.
    fn preflight(&self) -> Response {
        Response::new(Status::NO_CONTENT, Body::Empty)
    }

    /// Adds what a script may send.
    fn permit(&self, mut response: Response) -> Response {
        if !self.methods.is_empty() {
            let names = self.methods.join(", ");
            response = response.header("Access-Control-Allow-Methods", names);
        }
        if !self.headers.is_empty() {
            let names = self.headers.join(", ");
            response = response.header("Access-Control-Allow-Headers", names);
        }
        if let Some(max_age) = self.max_age {
            let seconds = max_age.as_secs().to_string();
            response = response.header("Access-Control-Max-Age", seconds);
        }
        response
    }

    /// Adds `Vary: Origin` if the response depends on the origin: a shared cache must not send the
    /// response for one origin to another.
    fn varying(&self, response: Response) -> Response {
        match self.origins.is_empty() {
            true => response,
            false => response.header("Vary", "Origin"),
        }
    }
}
