//! How a request matched its route.

use std::sync::Arc;

use super::trie::Span;

/// The text of a pattern and its wildcards' names.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) pattern: Box<str>,
    pub(crate) names: Vec<Option<Box<str>>>,
}

/// How a request matched its route; kept with the request.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) template: Arc<Template>,
    /// What the spans refer to; the path as sent if that needed no decoding.
    pub(crate) decoded: Option<Box<str>>,
    pub(crate) spans: Box<[Span]>,
}
