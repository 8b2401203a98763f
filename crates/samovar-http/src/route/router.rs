//! Routes, what stands around them, and what answers where there is none.

use std::fmt;
use std::sync::Arc;

use super::matched::Template;
use super::next::{Middleware, Next};
use super::pattern::Pattern;
use super::route::{Handler, Methods, Route, boxed};
use super::trie::Trie;
use crate::error::Error;
use crate::into_response::IntoResponse;
use crate::observer::Observer;
use crate::request::Request;
use crate::response::Response;

pub(crate) type ErrorHandler =
    Box<dyn Fn(&mut Request, &Error) -> Result<Response, Error> + Send + Sync>;

pub(crate) type RefusalHandler = Box<dyn Fn(&Error) -> Response + Send + Sync>;

/// Brings requests to handlers: the [`Service`](crate::Service) that most programs want.
///
/// A handler is a function from [`&mut Request`](Request) to anything that is
/// [`IntoResponse`]. It runs on a worker, so it may block. State is what it captures.
///
/// # Examples
///
/// ```no_run
/// use samovar_http::{Error, Request, Router};
///
/// fn user(request: &mut Request) -> Result<Option<String>, Error> {
///     // Not `param`, which may be `../secret`, with its slash encoded.
///     let Some(name) = request.param_path("name") else {
///         return Ok(None);
///     };
///     Ok(Some(std::fs::read_to_string(std::path::Path::new("users").join(name))?))
/// }
///
/// fn main() -> std::io::Result<()> {
///     Router::new()
///         .get("/", |_| "Hello\n")
///         .get("/users/{name}", user)
///         .serve("127.0.0.1:8080")
/// }
/// ```
///
/// # Patterns
///
/// | segment | matches |
/// |---|---|
/// | `text` | itself; compared with the decoded path |
/// | `{id}` | one segment, not empty; [`Request::param`] tells which |
/// | `{id}.json`, `v{major}` | one segment with that end or start, and something besides |
/// | `*` | as `{id}`, but nobody wants to know |
/// | `*.json`, `page_*`, `a*z`, `*cat*` | one segment with that end, start, both, or middle |
/// | `{*path}` | one segment or more, the first not empty |
/// | `**` | as `{*path}`, but nobody wants to know |
///
/// `{*path}` may stand in the middle, if text follows: `/{*path}/history`. Literal `*`, `{` and `}`
/// are written `%2A`, `%7B` and `%7D`.
///
/// Segments are decoded one by one: an encoded slash never makes two of one. A path that cannot be
/// decoded is answered with 400.
///
/// # Which route it is
///
/// **The most specific one**, whatever was registered first: at each segment, from the left, text
/// goes before a segment given in part (more text before less, then more at the start), that before
/// `{id}` or `*`, and that before `{*path}` or `**`. If what follows does not match, the next is
/// tried. So routes can be added, moved and mounted in any order without a change of meaning; two
/// routes that differ in the names of parameters only are refused.
///
/// A route without the request's method counts as no match: with `GET /notes/new` and
/// `PUT /notes/{id}`, a `PUT /notes/new` goes to the second. If only methods keep a path from all
/// its routes, the answer is 405 and `Allow` names them. HEAD goes to GET's route where there is
/// none of its own.
///
/// What these things are called elsewhere stands in [`manual::coming_from`].
///
/// [`manual::coming_from`]: crate::manual::coming_from
pub struct Router {
    pub(crate) routes: Vec<Entry>,
    pub(crate) trie: Trie<Vec<(Methods, usize)>>,
    /// This router's own settings come first, then those of mounted ones.
    pub(crate) scopes: Vec<Scope>,
    /// Under which paths a mounted router answers for what has no route.
    pub(crate) misses: Trie<usize>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) on_refusal: Option<RefusalHandler>,
    /// Whether any route answers inline.
    pub(crate) has_inline: bool,
}

/// A route in its place.
pub(crate) struct Entry {
    pub(crate) route: Route,
    pub(crate) template: Arc<Template>,
    pub(crate) scope: usize,
}

/// What one router says about its routes and about what is none.
#[derive(Default)]
pub(crate) struct Scope {
    /// Where it is mounted in the outermost router; empty for that itself.
    prefix: String,
    /// The scopes around it from the outside in, and itself.
    pub(crate) path: Vec<usize>,
    pub(crate) wraps: Vec<Middleware>,
    pub(crate) not_found: Option<Handler>,
    pub(crate) method_not_allowed: Option<Handler>,
    pub(crate) on_error: Option<ErrorHandler>,
    pub(crate) answers_options: bool,
    pub(crate) redirects_slashes: bool,
}

/// What a request leads to.
pub(crate) enum Target<'a> {
    Route(&'a Entry),
    /// Nothing, and the scope that answers for it.
    Miss(super::lookup::Miss, usize),
}

macro_rules! methods {
    ($($name:ident $token:literal,)*) => {$(
        #[doc = concat!("Adds a route for ", $token, ".")]
        ///
        /// # Panics
        ///
        /// As [`route`](Self::route).
        #[must_use]
        #[track_caller]
        pub fn $name<R: IntoResponse>(
            self,
            pattern: &str,
            handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
        ) -> Self {
            self.route(Route::$name(pattern, handler))
        }
    )*};
}

impl Router {
    /// A router without routes.
    pub fn new() -> Self {
        let own = Scope {
            path: vec![0],
            ..Scope::default()
        };
        Self {
            routes: Vec::new(),
            trie: Trie::default(),
            scopes: vec![own],
            misses: Trie::default(),
            observer: None,
            on_refusal: None,
            has_inline: false,
        }
    }

    methods! {
        get "GET, and for HEAD where the path has no route of its own for it",
        head "HEAD",
        post "POST",
        put "PUT",
        delete "DELETE",
        options "OPTIONS",
        patch "PATCH",
        any "all methods that the path has no route of their own for",
    }

    /// Adds a route that has more to say than method, pattern and handler.
    ///
    /// # Panics
    ///
    /// If the pattern is none, if there is a route for the same method and pattern (whatever the
    /// names of its parameters), or if the route answers [inline](Route::inline) and this router
    /// has middleware. All three are mistakes in the program, found when it starts.
    #[must_use]
    #[track_caller]
    pub fn route(mut self, route: Route) -> Self {
        self.add(route, 0);
        self
    }

    /// Adds all routes of another router under a prefix, with its middleware and its handlers for
    /// errors and for what it has no route for. The prefix may have parameters.
    ///
    /// A route `/` of the other becomes the prefix itself. The other's
    /// [observer](Self::observe) is dropped: there is one for a server.
    ///
    /// # Panics
    ///
    /// As [`route`](Self::route).
    #[must_use]
    #[track_caller]
    pub fn mount(mut self, prefix: &str, router: Self) -> Self {
        let offset = self.scopes.len();
        for scope in router.scopes {
            let mut scope = scope;
            scope.path = scope.path.iter().map(|index| index + offset).collect();
            scope.path.insert(0, 0);
            scope.prefix = join(prefix, &scope.prefix);
            self.add_misses(&scope.prefix, self.scopes.len());
            self.scopes.push(scope);
        }
        for entry in router.routes {
            let mut route = entry.route;
            route.pattern = join(prefix, &route.pattern);
            self.add(route, entry.scope + offset);
        }
        self
    }

    /// Puts a function around all handlers: those of the routes, before and after this call, of
    /// mounted routers, and of what has no route. It may look at the request, change its
    /// [extensions](Request::extensions_mut), answer itself, or change the answer. The first is the
    /// outermost.
    ///
    /// ```
    /// use samovar_http::{Next, Request, Response, Router, http::Status};
    ///
    /// fn members_only(request: &mut Request, next: Next<'_>) -> Response {
    ///     match request.head().header("authorization") {
    ///         Some(b"Bearer secret") => next.run(request),
    ///         _ => Response::text(Status::UNAUTHORIZED, "Who are you?\n")
    ///             .header("WWW-Authenticate", "Bearer"),
    ///     }
    /// }
    /// let router = Router::new().get("/", |_| "Welcome\n").wrap(members_only);
    /// ```
    ///
    /// # Panics
    ///
    /// If a route answers [inline](Route::inline).
    #[must_use]
    #[track_caller]
    pub fn wrap(
        mut self,
        middleware: impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.own().wraps.push(Box::new(middleware));
        for entry in &self.routes {
            self.check_inline(entry);
        }
        self
    }

    /// Answers where no route matches. A response with status 200 gets 404 instead.
    #[must_use]
    pub fn not_found<R: IntoResponse>(
        mut self,
        handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
    ) -> Self {
        self.own().not_found = Some(boxed(handler));
        self
    }

    /// Answers where routes match, but for other methods. A response with status 200 gets 405
    /// instead, and `Allow` is added if it is not there.
    #[must_use]
    pub fn method_not_allowed<R: IntoResponse>(
        mut self,
        handler: impl Fn(&mut Request) -> R + Send + Sync + 'static,
    ) -> Self {
        self.own().method_not_allowed = Some(boxed(handler));
        self
    }

    /// Answers for errors: those of handlers, and 400, 404 and 405 where nothing else answers. What
    /// the engine answers before a handler has the request, or after one has panicked, does not
    /// come here and not through [`wrap`](Self::wrap), but to [`on_refusal`](Self::on_refusal).
    ///
    /// A response with status 200 gets the error's instead. Where an answer is wanted in the way of
    /// the default one, that is the status and [`Error::message`] as plain text.
    ///
    /// Errors of mounted routers come here too, unless those have a handler of their own.
    #[must_use]
    pub fn on_error<R: IntoResponse>(
        mut self,
        handler: impl Fn(&mut Request, &Error) -> R + Send + Sync + 'static,
    ) -> Self {
        let handler =
            move |request: &mut Request, error: &Error| handler(request, error).into_response();
        self.own().on_error = Some(Box::new(handler));
        self
    }

    /// Answers what no handler does: malformed requests, exceeded limits (a body too large for its
    /// route included), overload, and the request of a handler that has panicked. Often there is no
    /// request that could be understood, so there is none to look at.
    ///
    /// The body of the response has to be in memory; it is made on an I/O thread, so this must not
    /// block. A status of 200 gets the error's instead, and a 503 `Retry-After` if it has none.
    /// There is one for a server: that of the outermost router.
    ///
    /// ```
    /// use samovar_http::{Error, Response, Router};
    ///
    /// fn as_json(error: &Error) -> Response {
    ///     // The engine's messages have no character that JSON would escape.
    ///     Response::json(error.status(), format!("{{\"error\":\"{}\"}}", error.message()))
    /// }
    /// let router = Router::new().on_error(|_, error| as_json(error)).on_refusal(as_json);
    /// ```
    #[must_use]
    pub fn on_refusal(
        mut self,
        handler: impl Fn(&Error) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.on_refusal = Some(Box::new(handler));
        self
    }

    /// Answers OPTIONS with 204 and `Allow` where a path has routes, but none for OPTIONS.
    #[must_use]
    pub fn answer_options(mut self) -> Self {
        self.own().answers_options = true;
        self
    }

    /// Redirects with 308 to the same path with a slash at its end, or without it, where only that
    /// has a route. The query is kept.
    #[must_use]
    pub fn redirect_slashes(mut self) -> Self {
        self.own().redirects_slashes = true;
        self
    }

    /// Sets who is told what happens. By default nobody is, except that errors of handlers are
    /// written to standard error, as panics are.
    #[must_use]
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    fn own(&mut self) -> &mut Scope {
        &mut self.scopes[0]
    }

    #[track_caller]
    fn add(&mut self, mut route: Route, scope: usize) {
        let (methods, index) = (route.methods.clone(), self.routes.len());
        let pattern = std::mem::take(&mut route.pattern);
        let parsed = parse(&pattern);
        let places = self.trie.entry(&parsed).get_or_insert_default();
        if let Some((_, other)) = places.iter().find(|(known, _)| *known == methods) {
            let other = &self.routes[*other].template.pattern;
            refuse(&format!("{methods} {pattern} is the same route as {other}"));
        }
        places.push((methods, index));
        route.pattern = pattern.clone();
        let entry = Entry {
            route,
            template: Arc::new(Template {
                pattern: pattern.into(),
                names: parsed.names,
            }),
            scope,
        };
        self.check_inline(&entry);
        self.has_inline |= entry.route.inline.is_some();
        self.routes.push(entry);
    }

    #[track_caller]
    fn check_inline(&self, entry: &Entry) {
        let scopes = self.scopes[entry.scope].path.iter();
        let is_wrapped = !entry.route.wraps.is_empty()
            || scopes
                .into_iter()
                .any(|scope| !self.scopes[*scope].wraps.is_empty());
        if entry.route.inline.is_some() && is_wrapped {
            let route = &entry.route;
            refuse(&format!(
                "{route:?} answers inline, so middleware around it would be passed by: put it into \
                 a router without"
            ));
        }
    }

    #[track_caller]
    fn add_misses(&mut self, prefix: &str, scope: usize) {
        let below = prefix.trim_end_matches('/');
        for pattern in [below, &format!("{below}/"), &format!("{below}/**")] {
            if !pattern.is_empty() {
                // Of two routers at one place the one mounted last answers.
                *self.misses.entry(&parse(pattern)) = Some(scope);
            }
        }
    }

    pub(crate) fn wraps_of(&self, scope: usize) -> &[Middleware] {
        self.scopes.get(scope).map_or(&[], |scope| &scope.wraps)
    }

    pub(crate) fn wraps_of_target<'a>(&self, target: &Target<'a>) -> &'a [Middleware] {
        match target {
            Target::Route(entry) => &entry.route.wraps,
            Target::Miss(..) => &[],
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.route.fmt(f)
    }
}

impl Default for Router {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter().map(|entry| &entry.route);
        f.debug_list().entries(routes).finish()
    }
}

/// A pattern below a prefix.
fn join(prefix: &str, pattern: &str) -> String {
    if pattern.is_empty() || (pattern == "/" && !prefix.ends_with('/')) {
        prefix.to_owned()
    } else {
        format!("{}{pattern}", prefix.trim_end_matches('/'))
    }
}

#[track_caller]
fn parse(pattern: &str) -> Pattern {
    match Pattern::parse(pattern) {
        Ok(parsed) => parsed,
        Err(error) => refuse(&format!("{pattern:?} is not a pattern of paths: {error}")),
    }
}

#[expect(clippy::panic, reason = "a program with such routes must not start")]
#[track_caller]
fn refuse(why: &str) -> ! {
    panic!("{why}")
}
