//! Middleware, and handlers with shared state.

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
        self.router.answer(&self.target, request)
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
pub fn with<T, F, R>(
    state: &Arc<T>,
    handler: F,
) -> impl Fn(&mut Request) -> R + Send + Sync + 'static + use<T, F, R>
where
    T: Send + Sync + 'static,
    F: Fn(&T, &mut Request) -> R + Send + Sync + 'static,
    R: 'static,
{
    let state = Arc::clone(state);
    move |request: &mut Request| handler(&state, request)
}
