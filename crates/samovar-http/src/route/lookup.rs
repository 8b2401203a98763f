//! Finds the route for a request.

use super::matched::Matched;
use super::params::Params;
use super::path::{Path, PathError};
use super::route::Methods;
use super::router::{Entry, Router};
use super::trie::Captures;
use crate::head::Head;
use crate::http::Method;

/// Reason why a request matches no route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The path cannot be decoded.
    BadPath,
    NotFound,
    /// The path only has routes for other methods. Contains the value of `Allow`.
    Methods(String),
    /// An OPTIONS request without a route, which the router answers. Contains the value of `Allow`.
    Options(String),
    /// Only the path with its trailing slash added or removed has a route. Contains that path.
    Elsewhere(String),
}

/// A matching route and the captures of its wildcards.
#[derive(Debug)]
pub(crate) struct Hit<'r, 'h> {
    pub(crate) entry: &'r Entry,
    path: Path<'h>,
    captures: Captures,
}

impl Hit<'_, '_> {
    /// Calls `f` with the decoded path parameters.
    pub(crate) fn with_params<T>(self, head: Head<'_>, f: impl FnOnce(Params<'_>) -> T) -> T {
        let decoded = self.path.into_decoded();
        let raw = || std::str::from_utf8(head.path()).unwrap_or_default();
        f(Params {
            text: decoded.as_deref().unwrap_or_else(raw),
            spans: self.captures.spans(),
            names: &self.entry.template.names,
        })
    }

    pub(crate) fn into_matched(self) -> Box<Matched> {
        Box::new(Matched {
            template: std::sync::Arc::clone(&self.entry.template),
            decoded: self.path.into_decoded(),
            spans: self.captures.spans().into(),
        })
    }
}

impl Router {
    /// Finds the route of a request.
    pub(crate) fn find<'r, 'h>(&'r self, head: Head<'h>) -> Option<Hit<'r, 'h>> {
        self.find_path(Path::new(head.path()).ok()?, head)
    }

    fn find_path<'r, 'h>(&'r self, path: Path<'h>, head: Head<'h>) -> Option<Hit<'r, 'h>> {
        let (index, captures) = self.trie.find(&path, |places| choose(places, head))?;
        let entry = self.routes.get(index)?;
        Some(Hit {
            entry,
            path,
            captures,
        })
    }

    /// Returns why a request has no route, and the scope whose settings apply to the response.
    pub(crate) fn miss(&self, head: Head<'_>) -> (Miss, usize) {
        let path = match Path::new(head.path()) {
            Ok(path) => path,
            Err(PathError::Encoding) => return (Miss::BadPath, 0),
            Err(PathError::NoPath) => return (self.miss_without_path(head), 0),
        };
        let scope = self.misses.find(&path, |scope| Some(*scope));
        let scope = scope.map_or(0, |(scope, _)| scope);
        let mut allowed = Vec::new();
        let none: Option<((), _)> = self.trie.find(&path, |places| {
            allowed.extend(places.iter().map(|(methods, _)| methods));
            None
        });
        debug_assert!(none.is_none(), "nothing was accepted");
        if allowed.is_empty() {
            let elsewhere = self.elsewhere(head, scope).map(Miss::Elsewhere);
            return (elsewhere.unwrap_or(Miss::NotFound), scope);
        }
        let answers_options = self.is_set(scope, |scope| scope.answers_options);
        let allow = allow(&allowed, answers_options);
        if answers_options && head.method() == Method::Options {
            return (Miss::Options(allow), scope);
        }
        (Miss::Methods(allow), scope)
    }

    /// Handles request targets without a path. RFC 9110, 9.3.7: `OPTIONS *` applies to the whole
    /// server.
    fn miss_without_path(&self, head: Head<'_>) -> Miss {
        let is_asked = head.method() == Method::Options && head.path() == b"*";
        if is_asked && self.is_set(0, |scope| scope.answers_options) {
            let all: Vec<_> = self
                .routes
                .iter()
                .map(|entry| &entry.route.methods)
                .collect();
            return Miss::Options(allow(&all, true));
        }
        Miss::NotFound
    }

    /// Returns the path with its trailing slash added or removed, if that path has a route.
    fn elsewhere(&self, head: Head<'_>, scope: usize) -> Option<String> {
        if !self.is_set(scope, |scope| scope.redirects_slashes) {
            return None;
        }
        let path = std::str::from_utf8(head.path()).ok()?;
        let changed = match path.strip_suffix('/') {
            Some(shorter) => shorter.to_owned(),
            None => format!("{path}/"),
        };
        // A browser interprets `//` or `/\` at the start as a host, so such a redirect would be an
        // open redirect.
        let is_local = changed.starts_with('/') && !changed[1..].starts_with(['/', '\\']);
        if !is_local {
            return None;
        }
        self.find_path(Path::new(changed.as_bytes()).ok()?, head)?;
        let query = head
            .query()
            .and_then(|query| std::str::from_utf8(query).ok());
        Some(match query {
            Some(query) => format!("{changed}?{query}"),
            None => changed,
        })
    }

    /// Returns whether a setting is on in this scope or an enclosing one.
    fn is_set(&self, scope: usize, setting: impl Fn(&super::router::Scope) -> bool) -> bool {
        let scope = self.scopes.get(scope);
        let around = scope.into_iter().flat_map(|scope| &scope.path);
        around
            .into_iter()
            .any(|index| self.scopes.get(*index).is_some_and(&setting))
    }
}

/// Chooses the route for the request's method among the routes of one pattern.
fn choose(places: &[(Methods, usize)], head: Head<'_>) -> Option<usize> {
    let method = head.method();
    let of = |wanted: &dyn Fn(&Methods) -> bool| {
        let place = places.iter().find(|(methods, _)| wanted(methods));
        place.map(|(_, index)| *index)
    };
    of(&|methods| match methods {
        Methods::Any => false,
        Methods::One(known) => *known == method,
        Methods::Token(token) => method == Method::Other && token.as_bytes() == head.method_name(),
    })
    .or_else(|| match method {
        Method::Head => of(&|methods| *methods == Methods::One(Method::Get)),
        _ => None,
    })
    .or_else(|| of(&|methods| *methods == Methods::Any))
}

/// Returns the value of `Allow` for these methods.
fn allow(methods: &[&Methods], answers_options: bool) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for methods in methods {
        match methods {
            Methods::Any => {}
            Methods::One(Method::Get) => ["GET", "HEAD"]
                .map(str::to_owned)
                .into_iter()
                .for_each(&mut add),
            known => add(known.to_string()),
        }
    }
    if answers_options {
        add("OPTIONS".to_owned());
    }
    names.join(", ")
}
