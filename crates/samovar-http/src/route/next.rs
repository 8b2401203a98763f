//! Middleware, and handlers with shared state.

use std::fmt;
use std::sync::Arc;

use super::router::{Router, Target};
use crate::request::Request;
use crate::response::Response;

/// Middleware.
pub(crate) type Middleware = Box<dyn Fn(&mut Request, Next<'_>) -> Response + Send + Sync>;

/// The rest of the chain for a function passed to [`Router::wrap`]: the inner middleware and the
/// handler.
///
/// If the function does not call [`run`](Self::run), the handler does not run.
pub struct Next<'a> {
    pub(crate) router: &'a Router,
    /// Remaining scopes, outermost first.
    pub(crate) scopes: &'a [usize],
    /// Remaining middleware of the current scope.
    pub(crate) wraps: &'a [Middleware],
    /// Whether the route's own middleware was entered.
    pub(crate) is_in_route: bool,
    pub(crate) target: Target<'a>,
}

impl Next<'_> {
    /// Runs the next middleware or the handler, and returns the response. An
    /// [`Error`](crate::Error) of the handler has already been converted to a response.
    pub fn run(self, request: &mut Request) -> Response {
        let mut next = self;
        loop {
            if let Some((first, rest)) = next.wraps.split_first() {
                next.wraps = rest;
                return first(request, next);
            }
            if let Some((scope, rest)) = next.scopes.split_first() {
                next.scopes = rest;
                next.wraps = &next.router.scopes[*scope].wraps;
            } else if next.is_in_route {
                return next.router.answer(&next.target, request);
            } else {
                next.is_in_route = true;
                next.wraps = next.router.wraps_of_target(&next.target);
            }
        }
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
