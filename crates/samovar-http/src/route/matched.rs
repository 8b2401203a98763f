//! The route that a request matches.

use std::sync::Arc;

use super::trie::Span;

/// The text of a pattern and the names of its wildcards.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) pattern: Box<str>,
    pub(crate) names: Vec<Option<Box<str>>>,
}

/// The route match of a request, stored in the request.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) template: Arc<Template>,
    /// Decoded path that the spans index; `None` if they index the path as sent.
    pub(crate) decoded: Option<Box<str>>,
    pub(crate) spans: Box<[Span]>,
}
