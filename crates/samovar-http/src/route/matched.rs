//! The match of a request and its route.

use std::sync::Arc;

use super::trie::Span;

/// A pattern's text and the names of its wildcards.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) pattern: Box<str>,
    pub(crate) names: Vec<Option<Box<str>>>,
}

/// The match of a request, stored with it.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) template: Arc<Template>,
    /// Text that the spans refer to; `None` for the path as sent.
    pub(crate) decoded: Option<Box<str>>,
    pub(crate) spans: Box<[Span]>,
}
