//! Errors of TLS configurations.

use std::borrow::Cow;
use std::error::Error;

/// Error of a TLS configuration. Its `Display` text names the file and the problem; its `source` is
/// the error of the operating system or of rustls, if any.
#[derive(Debug, thiserror::Error)]
#[error("{location}: {problem}")]
pub struct TlsError {
    /// The part of the configuration that has the error: the path of a file, `PEM in memory`, or
    /// `TLS` for the configuration as a whole.
    location: String,
    problem: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl TlsError {
    pub(super) fn new(location: String, problem: impl Into<Cow<'static, str>>) -> Self {
        Self {
            location,
            problem: problem.into(),
            source: None,
        }
    }

    pub(super) fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }
}
