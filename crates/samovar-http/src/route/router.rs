//! The router: its routes, middleware and error handlers.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use super::next::{Middleware, Next, middleware_with};
use super::pattern::Pattern;
use super::route::{Route, RouteMethod};
use super::trie::Trie;
use crate::error::Error;
use crate::observer::Observer;
use crate::request::{Request, Template};
use crate::response::{IntoResponse, Response};

pub(super) type ErrorHandler =
    Arc<dyn Fn(Option<&Request>, &Error) -> Result<Response, Error> + Send + Sync>;

/// Dispatches requests to handlers. Most programs use it as their [`Service`](crate::Service).
///
/// A handler is a function from [`&mut Request`](Request) to any type that implements
/// [`IntoResponse`]. It runs on a worker, so it may block. [`with`](crate::with) passes shared
/// state.
///
/// # Examples
///
/// ```no_run
/// use samovar_http::{Error, Request, Router};
///
/// fn user(request: &mut Request) -> Result<Option<String>, Error> {
///     // `param` could return `../secret`, if its slash was encoded.
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
/// | `{id}` | one non-empty segment; [`Request::param`] returns it |
/// | `{id}.json`, `v{major}` | one segment with that suffix or prefix, and at least one more byte |
/// | `*` | like `{id}`, without a name |
/// | `*.json`, `page_*`, `a*z`, `*cat*` | one segment with that suffix, prefix, both, or substring |
/// | `{*path}` | one or more segments, the first not empty |
/// | `**` | like `{*path}`, without a name |
///
/// `{*path}` may be in the middle if literal text follows: `/{*path}/history`. Write literal `*`,
/// `{` and `}` as `%2A`, `%7B` and `%7D`.
///
/// Segments are decoded one by one, so an encoded slash does not split a segment. A path that
/// cannot be decoded gets 400.
///
/// # Precedence
///
/// **The most specific route wins**, in any order of registration. At each segment, from left to
/// right, literal text precedes a partial segment (more text first, then the longer prefix), which
/// precedes `{id}` and `*`, which precede `{*path}` and `**`. If the rest of the path does not
/// match, the next alternative is tried. Two routes that differ only in the names of parameters are
/// refused.
///
/// A route for another method does not match: with `GET /notes/new` and `PUT /notes/{id}`, a `PUT
/// /notes/new` uses the second. If a path matches only routes for other methods, the response is
/// 405 with `Allow`. HEAD uses the GET route unless it has its own. For a method of any name, such
/// as `PURGE`, [`Route::new`] makes a route.
///
/// [`manual::coming_from`] compares the terms with the terms of other servers.
///
/// [`manual::coming_from`]: crate::manual::coming_from
pub struct Router {
    pub(super) routes: Vec<Entry>,
    /// The routes of each pattern, as pairs: the method, and the index of the route in `routes`.
    pub(super) trie: Trie<Vec<(RouteMethod, usize)>>,
    pub(super) wraps: Vec<Middleware>,
    pub(super) on_error: Option<ErrorHandler>,
    /// The mounted routers, those that are mounted in one of them included.
    pub(super) mounts: Vec<Mount>,
    /// The indexes in `mounts`, by the paths below the prefixes.
    pub(super) mounts_by_path: Trie<usize>,
    pub(super) observer: Option<Box<dyn Observer>>,
    /// Maximum number of workers; `None` for the default.
    pub(super) workers: Option<usize>,
    /// Whether any route has an inline handler.
    pub(super) has_inline: bool,
    /// Whether the router responds to OPTIONS on paths that have routes.
    pub(super) answers_options: bool,
    pub(super) is_compressing: bool,
}

/// A registered route.
pub(super) struct Entry {
    pub(super) route: Route,
    pub(super) template: Arc<Template>,
    /// The error handler of the mounted router of the route; `None` if the router's own applies.
    pub(super) on_error: Option<ErrorHandler>,
}

/// The settings of a mounted router for requests below its prefix that match no route. Its routes
/// have been added to the outer router, with its middleware.
#[derive(Default)]
pub(super) struct Mount {
    prefix: String,
    /// The middleware between the outermost router and this one, the outermost first.
    pub(super) wraps: Vec<Middleware>,
    pub(super) on_error: Option<ErrorHandler>,
    pub(super) answers_options: bool,
    pub(super) is_uncompressed: bool,
}

/// The route of a request, or the reason why it has none.
pub(super) type Target<'a> = Result<&'a Entry, Missed<'a>>;

/// A request that matches no route.
pub(super) struct Missed<'a> {
    pub(super) reason: Miss,
    /// The mounted router below whose prefix the path is, if any.
    pub(super) mount: Option<&'a Mount>,
}

impl Missed<'_> {
    /// A request that no mounted router answers.
    pub(super) fn of(reason: Miss) -> Self {
        Self {
            reason,
            mount: None,
        }
    }
}

/// Reason why a request matches no route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Miss {
    /// The path cannot be decoded.
    BadPath,
    NotFound,
    /// The path only has routes for other methods. Contains the value of `Allow`.
    Methods(String),
    /// An OPTIONS request that the router answers itself. Contains the value of `Allow`.
    Options(String),
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
    /// Creates a router without routes.
    pub fn new() -> Self {
        Self {
            routes: Vec::new(),
            trie: Trie::default(),
            wraps: Vec::new(),
            on_error: None,
            mounts: Vec::new(),
            mounts_by_path: Trie::default(),
            observer: None,
            workers: None,
            has_inline: false,
            answers_options: false,
            is_compressing: true,
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
        any "all methods without a route of their own on that path",
    }

    /// Adds a route that has its own settings, or a [method of any name](Route::new).
    ///
    /// # Panics
    ///
    /// If the pattern is malformed; if there already is a route for the same method and pattern
    /// (ignoring names of parameters); or if the route has an [inline](Route::inline) handler and
    /// this router has middleware. All three are bugs of the program, detected at start.
    #[must_use]
    #[track_caller]
    pub fn route(mut self, route: Route) -> Self {
        self.add(route, None);
        self
    }

    /// Adds all routes of another router below a prefix, which may contain parameters but no `**`.
    /// The route `/` becomes the prefix itself. [`Request::pattern`] and [`Request::param`] know
    /// the whole pattern.
    ///
    /// The middleware of the other router runs around its routes only, inside of this router's, and
    /// around its answers to requests below the prefix that match no route. Its
    /// [error handler](Self::on_error) answers both, and what the engine refuses below the prefix,
    /// or this router's if it has none. Its [`observe`](Self::observe) and
    /// [`workers`](Self::workers) have no effect: a server has one observer and one set of workers.
    ///
    /// ```
    /// use samovar_http::{Next, Request, Response, Router, http::Status};
    ///
    /// fn admins_only(request: &mut Request, next: Next<'_>) -> Response {
    ///     match request.head().header("authorization") {
    ///         Some(b"Bearer secret") => next.run(request),
    ///         _ => Response::text(Status::UNAUTHORIZED, "Who are you?\n"),
    ///     }
    /// }
    /// let admin = Router::new()
    ///     .get("/", |_| "This is /admin\n")
    ///     .get("/users/{id}", |_| "This is /admin/users/{id}\n")
    ///     .wrap(admins_only);
    /// let router = Router::new().get("/", |_| "Hello\n").mount("/admin", admin);
    /// ```
    ///
    /// # Panics
    ///
    /// As [`route`](Self::route), for each of the routes with the prefix, and if the prefix is
    /// malformed.
    #[must_use]
    #[track_caller]
    pub fn mount(mut self, prefix: &str, router: Self) -> Self {
        drop(parse(prefix));
        let (wraps, on_error) = (router.wraps, router.on_error);
        for mut mount in std::iter::once(Mount::default()).chain(router.mounts) {
            mount.prefix = join(prefix, &mount.prefix);
            mount.wraps.splice(0..0, wraps.iter().cloned());
            mount.on_error = mount.on_error.or_else(|| on_error.clone());
            mount.answers_options |= router.answers_options;
            mount.is_uncompressed |= !router.is_compressing;
            self.add_mount(mount);
        }
        for Entry {
            mut route,
            on_error: nearest,
            ..
        } in router.routes
        {
            route.pattern = join(prefix, &route.pattern);
            route.wraps.splice(0..0, wraps.iter().cloned());
            route.is_uncompressed |= !router.is_compressing;
            self.add(route, nearest.or_else(|| on_error.clone()));
        }
        self
    }

    #[track_caller]
    fn add(&mut self, route: Route, on_error: Option<ErrorHandler>) {
        let pattern = parse(&route.pattern);
        let places = self.trie.entry(&pattern).get_or_insert_default();
        if let Some((_, other)) = places.iter().find(|(method, _)| *method == route.method) {
            let other = &self.routes[*other].template.pattern;
            refuse(&format!("{route:?} is the same route as {other}"));
        }
        places.push((route.method.clone(), self.routes.len()));
        self.has_inline |= route.inline.is_some();
        self.routes.push(Entry {
            template: Arc::new(Template {
                pattern: route.pattern.as_str().into(),
                names: pattern.names,
            }),
            route,
            on_error,
        });
        self.check_inline();
    }

    #[track_caller]
    fn add_mount(&mut self, mount: Mount) {
        let base = mount.prefix.trim_end_matches('/');
        for pattern in [base, &format!("{base}/"), &format!("{base}/**")] {
            if !pattern.is_empty() {
                // If two routers are mounted at one prefix, the last one answers.
                *self.mounts_by_path.entry(&parse(pattern)) = Some(self.mounts.len());
            }
        }
        self.mounts.push(mount);
    }

    /// Adds middleware: a function around all handlers, including the handlers of routes added
    /// later and of mounted routers, and the responses to requests without a route. The function
    /// may read the request, change its [extensions](Request::extensions_mut), respond itself, or
    /// change the response. The first middleware added is the outermost.
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
    /// If a route has an [inline](Route::inline) handler.
    #[must_use]
    #[track_caller]
    pub fn wrap(
        mut self,
        middleware: impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.wraps.push(Arc::new(middleware));
        self.check_inline();
        self
    }

    /// Adds middleware that is a method of a shared value. The method takes `&self` or
    /// `self: &Arc<Self>`, as in [`with`](crate::with).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use samovar_http::{Next, Request, Response, Router};
    ///
    /// #[derive(Default)]
    /// struct App {
    ///     count: AtomicU64,
    /// }
    ///
    /// impl App {
    ///     fn count(&self, request: &mut Request, next: Next<'_>) -> Response {
    ///         self.count.fetch_add(1, Ordering::Relaxed);
    ///         next.run(request)
    ///     }
    /// }
    ///
    /// let app = Arc::new(App::default());
    /// let router = Router::new().get("/", |_| "Hello\n").wrap_with(&app, App::count);
    /// ```
    ///
    /// # Panics
    ///
    /// As [`wrap`](Self::wrap).
    #[must_use]
    #[track_caller]
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
        self.check_inline();
        self
    }

    /// Sets the handler that renders all errors:
    ///
    /// * errors that route handlers return;
    /// * requests without a route: 404, 405 if the path has routes for other methods, 400 if the
    ///   path is malformed;
    /// * what the engine refuses: malformed requests, exceeded limits such as a body that is too
    ///   long for its route, overload; and 500 after a panic. These responses bypass middleware.
    ///
    /// Responses that a handler makes itself are sent as they are, whatever their status, such as
    /// the 403 of a refused WebSocket. So is the 500 for a dropped [`Responder`](crate::Responder).
    ///
    /// The request is `None` if its head could not be parsed, or if the error concerns none, such
    /// as 503 for a new connection. [`Request::pattern`] is `None` if no route matches.
    ///
    /// **The handler must not block, and the body of its response must be in memory**, because I/O
    /// threads call it, too. For a page that takes a database or a file, replace the response in
    /// [middleware](Self::wrap), which runs on workers.
    ///
    /// If the handler's response has status 200, it is sent with the error's status; a 405 gets
    /// `Allow`, and a 503 of the engine gets `Retry-After`, if that is missing. Without a handler,
    /// the response is the error's status with [`Error::message`] as plain text.
    ///
    /// ```
    /// use samovar_http::{Response, Router};
    ///
    /// let router = Router::new().get("/", |_| "Hello\n").on_error(|_, error| {
    ///     let page = format!("<h1>{} {}</h1>\n", error.status(), error.message());
    ///     Response::html(error.status(), page)
    /// });
    /// ```
    #[must_use]
    pub fn on_error<R: IntoResponse>(
        mut self,
        handler: impl Fn(Option<&Request>, &Error) -> R + Send + Sync + 'static,
    ) -> Self {
        let handler =
            move |request: Option<&Request>, error: &Error| handler(request, error).into_response();
        self.on_error = Some(Arc::new(handler));
        self
    }

    /// Responds to OPTIONS on every path that has routes, but none for OPTIONS, with 204 and
    /// `Allow`. Middleware can add fields, such as those of CORS; see the [guide]. Applies to
    /// mounted routers, too. Without this setting, the response is 405, also with `Allow`.
    ///
    /// `OPTIONS *` asks for the methods of the whole server (RFC 9110, 9.3.7). No route can match
    /// it, so every router answers it with 204 and the methods of all its routes.
    ///
    /// ```
    /// use samovar_http::Router;
    ///
    /// let router = Router::new().get("/", |_| "Hello\n").answer_options();
    /// ```
    ///
    /// [guide]: crate::manual::guide#requests-from-other-origins
    #[must_use]
    pub fn answer_options(mut self) -> Self {
        self.answers_options = true;
        self
    }

    /// Sets whether responses are compressed for clients that accept it. Default: `true`; the
    /// module [`compress`](crate::compress) lists the conditions. Turn it off for a route with
    /// [`Route::uncompressed`], and for one response with [`Response::uncompressed`], if a response
    /// contains both a secret and text chosen by somebody else. For a mounted router, `false`
    /// turns it off below its prefix, and `true` has no effect if the outer router says `false`.
    ///
    /// ```
    /// let router = samovar_http::Router::new().get("/", |_| "Hello\n").compression(false);
    /// ```
    #[must_use]
    pub fn compression(mut self, is_on: bool) -> Self {
        self.is_compressing = is_on;
        self
    }

    /// Sets the observer. The default observer writes the application's errors and panics to
    /// standard error: those of handlers with the method and target of the request, those of
    /// response bodies and WebSockets without. The request of a body that failed is reported by
    /// [`Observer::exchanged`], with [`End::Cut`](crate::End::Cut).
    #[must_use]
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Sets the maximum number of handlers that may block at the same time, for
    /// [`serve`](Self::serve) and [`serve_until`](Self::serve_until). Default: 512. For handlers
    /// that wait for something of limited capacity, such as a database; see [`Builder::workers`].
    ///
    /// [`Builder::workers`]: crate::Builder::workers
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    #[track_caller]
    fn check_inline(&self) {
        for Entry { route, .. } in &self.routes {
            let is_wrapped = !route.wraps.is_empty() || !self.wraps.is_empty();
            if route.inline.is_some() && is_wrapped {
                refuse(&format!(
                    "{route:?} answers inline, which bypasses middleware; wrap each of the other \
                     routes instead"
                ));
            }
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

/// Returns the pattern of a route in a router that is mounted below a prefix.
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
