//! Finds the route for a request.

use super::path::{Path, PathError};
use super::route::RouteMethod;
use super::router::{Entry, Miss, Missed, Router};
use super::trie::Captures;
use crate::head::Head;
use crate::http::Method;
use crate::request::{Matched, Params};

/// A matching route and the captures of its wildcards.
#[derive(Debug)]
pub(super) struct Hit<'r, 'h> {
    pub(super) entry: &'r Entry,
    path: Path<'h>,
    captures: Captures,
}

impl Hit<'_, '_> {
    /// Calls `f` with the decoded path parameters.
    pub(super) fn with_params<T>(self, head: Head<'_>, f: impl FnOnce(Params<'_>) -> T) -> T {
        let decoded = self.path.into_decoded();
        let raw = || std::str::from_utf8(head.path()).unwrap_or_default();
        f(Params {
            text: decoded.as_deref().unwrap_or_else(raw),
            spans: self.captures.spans(),
            names: &self.entry.template.names,
        })
    }

    pub(super) fn into_matched(self) -> Box<Matched> {
        Box::new(Matched {
            template: std::sync::Arc::clone(&self.entry.template),
            decoded: self.path.into_decoded(),
            spans: self.captures.spans().into(),
        })
    }
}

impl Router {
    /// Finds the route of a request; returns `None` if no route matches.
    pub(super) fn find<'r, 'h>(&'r self, head: Head<'h>) -> Option<Hit<'r, 'h>> {
        let path = Path::new(head.path()).ok()?;
        let (index, captures) = self.trie.find(&path, |places| choose(places, head))?;
        let entry = self.routes.get(index)?;
        Some(Hit {
            entry,
            path,
            captures,
        })
    }

    /// Returns the reason for which no route matches a request, and the mounted router that
    /// answers.
    pub(super) fn miss(&self, head: Head<'_>) -> Missed<'_> {
        let path = match Path::new(head.path()) {
            Ok(path) => path,
            Err(PathError::Encoding) => return Missed::of(Miss::BadPath),
            Err(PathError::NoPath) => return Missed::of(self.miss_without_path(head)),
        };
        let mount = self.mounts_by_path.find(&path, |index| Some(*index));
        let mount = mount.and_then(|(index, _)| self.mounts.get(index));
        let mut allowed = Vec::new();
        let none: Option<((), _)> = self.trie.find(&path, |places| {
            allowed.extend(places.iter().filter_map(|(method, _)| method.token()));
            None
        });
        debug_assert!(none.is_none(), "nothing was accepted");
        let answers_options =
            self.answers_options || mount.is_some_and(|mount| mount.answers_options);
        let is_options = head.method() == Method::Options;
        let reason = match (allowed.is_empty(), answers_options) {
            (true, _) => Miss::NotFound,
            (false, false) => Miss::Methods(allow(&allowed)),
            (false, true) => {
                allowed.push(Method::Options.as_str());
                match is_options {
                    true => Miss::Options(allow(&allowed)),
                    false => Miss::Methods(allow(&allowed)),
                }
            }
        };
        Missed { reason, mount }
    }

    /// Handles a target that is not a path. RFC 9110, 9.3.7: `OPTIONS *` applies to the server in
    /// general.
    fn miss_without_path(&self, head: Head<'_>) -> Miss {
        if head.method() != Method::Options || head.path() != b"*" {
            return Miss::NotFound;
        }
        let methods = self
            .routes
            .iter()
            .filter_map(|entry| entry.route.method.token());
        let mut methods: Vec<_> = methods.collect();
        methods.push(Method::Options.as_str());
        Miss::Options(allow(&methods))
    }
}

/// Chooses the route for the request's method among the routes of one pattern; returns `None` if
/// all of them are for other methods.
fn choose(places: &[(RouteMethod, usize)], head: Head<'_>) -> Option<usize> {
    place(places, |method| method.is_of(head))
        .or_else(|| match head.method() {
            Method::Head => place(places, |method| *method == RouteMethod::Known(Method::Get)),
            _ => None,
        })
        .or_else(|| place(places, |method| *method == RouteMethod::Any))
}

fn place(
    places: &[(RouteMethod, usize)],
    is_wanted: impl Fn(&RouteMethod) -> bool,
) -> Option<usize> {
    let place = places.iter().find(|(method, _)| is_wanted(method));
    place.map(|(_, index)| *index)
}

/// Returns the value of `Allow` for these methods.
fn allow(methods: &[&str]) -> String {
    let mut names = Vec::new();
    for method in methods {
        let head = (*method == Method::Get.as_str()).then_some(Method::Head.as_str());
        for name in std::iter::once(*method).chain(head) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.join(", ")
}
