//! What stands around handlers.

use std::fmt;
use std::sync::Arc;

use super::router::{Router, Target};
use crate::request::Request;
use crate::response::Response;

/// A function around handlers.
pub(crate) type Middleware = Box<dyn Fn(&mut Request, Next<'_>) -> Response + Send + Sync>;

/// The rest of the way to a handler, for a function that was given to [`Router::wrap`].
///
/// Dropping it without [`run`](Self::run) keeps the request from its handler.
pub struct Next<'a> {
    pub(crate) router: &'a Router,
    /// Routers whose functions are still to come, from the outside in.
    pub(crate) scopes: &'a [usize],
    /// Functions of the current router that are still to come.
    pub(crate) wraps: &'a [Middleware],
    /// Whether those of the route are among the ones before.
    pub(crate) is_in_route: bool,
    pub(crate) target: Target<'a>,
}

impl Next<'_> {
    /// Goes on: to the next function, or to the handler. An [`Error`](crate::Error) of the handler
    /// has become a response when this returns.
    pub fn run(self, request: &mut Request) -> Response {
        let mut next = self;
        loop {
            if let Some((first, rest)) = next.wraps.split_first() {
                next.wraps = rest;
                return first(request, next);
            }
            if let Some((scope, rest)) = next.scopes.split_first() {
                next.scopes = rest;
                next.wraps = next.router.wraps_of(*scope);
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

/// A handler that is a method of something shared.
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
