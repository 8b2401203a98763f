//! Middleware, and handlers with shared state.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use super::router::{Router, Target};
use crate::request::Request;
use crate::response::Response;

/// A middleware: a function that is called in place of a handler, and that may call it. Shared by
/// all routes of a mounted router.
pub(crate) type Middleware = Arc<dyn Fn(&mut Request, Next<'_>) -> Response + Send + Sync>;

/// The inner middleware and the handler, as an argument of a function passed to [`Router::wrap`].
///
/// If the function does not call [`run`](Self::run), the handler does not run.
pub struct Next<'a> {
    pub(super) router: &'a Router,
    /// Middleware of the router that was not called yet, the outermost first.
    pub(super) router_wraps: &'a [Middleware],
    /// Middleware of the route that was not called yet, the outermost first; without a route, of
    /// the mounted router. It runs inside of the router's.
    pub(super) route_wraps: &'a [Middleware],
    pub(super) target: Target<'a>,
}

impl Next<'_> {
    /// Runs the next middleware or the handler, and returns the response. An
    /// [`Error`](crate::Error) of the handler has already been converted to a response.
    pub fn run(mut self, request: &mut Request) -> Response {
        if let Some((first, rest)) = self.router_wraps.split_first() {
            self.router_wraps = rest;
            return first(request, self);
        }
        if let Some((first, rest)) = self.route_wraps.split_first() {
            self.route_wraps = rest;
            return first(request, self);
        }
        self.router.reach(&self.target, request)
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

/// Creates a handler from a method and a shared value.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use samovar_http::{Request, Router, with};
///
/// #[derive(Default)]
/// struct Counter {
///     count: AtomicU64,
/// }
///
/// impl Counter {
///     fn add(&self, _: &mut Request) -> String {
///         format!("{}\n", 1 + self.count.fetch_add(1, Ordering::Relaxed))
///     }
/// }
///
/// let counter = Arc::new(Counter::default());
/// let router = Router::new().post("/count", with(&counter, Counter::add));
/// ```
///
/// The method may also take `&Arc<Self>`, for values that outlive the request, such as the handler
/// of a WebSocket:
///
/// ```
/// # use std::sync::Arc;
/// # use samovar_http::{Request, Router, with};
/// struct Chat;
///
/// impl Chat {
///     fn enter(self: &Arc<Self>, _: &mut Request) -> &'static str {
///         let for_the_socket = Arc::clone(self);
///         # drop(for_the_socket);
///         "entered\n"
///     }
/// }
/// let router = Router::new().get("/chat", with(&Arc::new(Chat), Chat::enter));
/// ```
///
/// A closure names the type of its first argument: `|chat: &Chat, request: &mut Request| …`.
/// [`Router::wrap_with`] is the same for middleware.
pub fn with<S, T, F, R>(
    state: &Arc<S>,
    handler: F,
) -> impl Fn(&mut Request) -> R + Send + Sync + 'static + use<S, T, F, R>
where
    S: Send + Sync + 'static,
    Arc<S>: Borrow<T>,
    F: Fn(&T, &mut Request) -> R + Send + Sync + 'static,
    T: 'static,
    R: 'static,
{
    let state = Arc::clone(state);
    move |request: &mut Request| handler(state.borrow(), request)
}

/// Creates a middleware from a method and a shared value.
pub(super) fn middleware_with<S, T>(
    state: &Arc<S>,
    middleware: impl Fn(&T, &mut Request, Next<'_>) -> Response + Send + Sync + 'static,
) -> Middleware
where
    S: Send + Sync + 'static,
    Arc<S>: Borrow<T>,
    T: 'static,
{
    let state = Arc::clone(state);
    Arc::new(move |request: &mut Request, next: Next<'_>| middleware(state.borrow(), request, next))
}
