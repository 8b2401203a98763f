//! Path parameters of a request.

use std::fmt;
use std::path::{Component, Path as FilePath};
use std::sync::Arc;

use super::Request;

/// The text of a pattern and the names of its wildcards.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) pattern: Box<str>,
    pub(crate) names: Vec<Option<Box<str>>>,
}

/// The pattern that a request matches, and the positions of its parameters in the path.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) template: Arc<Template>,
    /// The decoded path, if the spans index it; `None` if they index the path as sent.
    pub(crate) decoded: Option<Box<str>>,
    pub(crate) spans: Box<[Span]>,
}

/// Start and end of a wildcard's match in the text of the path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        // Request targets are far shorter than 4 GiB; a larger span would select no text.
        let narrow = |at| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            start: narrow(start),
            end: narrow(end),
        }
    }
}

/// The decoded parameters of a path.
#[derive(Clone, Copy, Default)]
pub struct Params<'a> {
    pub(crate) text: &'a str,
    pub(crate) spans: &'a [Span],
    pub(crate) names: &'a [Option<Box<str>>],
}

impl<'a> Params<'a> {
    /// Returns the value of `{name}` or `{*name}`; `None` if the route has no such parameter.
    ///
    /// The value is decoded, so it may contain any character, including slashes that were encoded.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// Iterates over the named parameters, in the order of the pattern.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let text = self.text;
        let named = self.names.iter().zip(self.spans);
        named.filter_map(move |(name, span)| {
            let value = text.get(span.start as usize..span.end as usize);
            Some((name.as_deref()?, value.unwrap_or_default()))
        })
    }
}

impl fmt::Debug for Params<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Request {
    /// Returns the decoded value of the path parameter `{name}` or `{*name}`; `None` if the route
    /// has no such parameter.
    ///
    /// ```
    /// use samovar_http::{Request, Router};
    ///
    /// fn greet(request: &mut Request) -> String {
    ///     format!("Hello, {}\n", request.param("name").unwrap_or("you"))
    /// }
    /// let router = Router::new().get("/hello/{name}", greet);
    /// ```
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params().get(name)
    }

    /// Returns a path parameter as a relative file path. `None` if the route has no such parameter,
    /// or if the path is not strictly below its directory: it is empty or absolute, or contains
    /// `..` or NUL. Symbolic links are not resolved. Also `None` if the path of the request
    /// contains an encoded slash (`%2F`): no file name contains a slash, and the router has chosen
    /// the route by the slashes that are not encoded.
    ///
    /// ```
    /// # use samovar_http::{Body, Error, Request, Response, http::Status};
    /// fn download(request: &mut Request) -> Result<Option<Response>, Error> {
    ///     let Some(path) = request.param_path("path") else {
    ///         return Ok(None);
    ///     };
    ///     let file = std::fs::File::open(std::path::Path::new("public").join(path))?;
    ///     Ok(Some(Response::new(Status::OK, Body::file(file)?)))
    /// }
    /// ```
    pub fn param_path(&self, name: &str) -> Option<&FilePath> {
        let path = FilePath::new(self.param(name)?);
        let is_encoded_slash = |three: &[u8]| three.eq_ignore_ascii_case(b"%2f");
        if self.head().path().windows(3).any(is_encoded_slash) {
            return None;
        }
        let is_plain = |component| matches!(component, Component::Normal(_));
        let is_below = path.components().all(is_plain)
            && path.components().next().is_some()
            && !path.as_os_str().as_encoded_bytes().contains(&0);
        is_below.then_some(path)
    }

    /// Returns all path parameters.
    pub fn params(&self) -> Params<'_> {
        let Some(matched) = &self.matched else {
            return Params::default();
        };
        let raw = || std::str::from_utf8(self.head().path()).unwrap_or_default();
        Params {
            text: matched.decoded.as_deref().unwrap_or_else(raw),
            spans: &matched.spans,
            names: &matched.template.names,
        }
    }

    /// Returns the pattern of the matching route, such as `/users/{id}`; `None` if no route
    /// matched. Suited as a label of low cardinality in metrics and logs.
    pub fn pattern(&self) -> Option<&str> {
        self.matched
            .as_ref()
            .map(|matched| &*matched.template.pattern)
    }
}
