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
    certificate: Option<usize>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl TlsError {
    /// Returns the number of the certificate that has the error, in the order they were added, from
    /// 0; `None` if the error is in another part of the configuration.
    pub fn certificate(&self) -> Option<usize> {
        self.certificate
    }

    pub(super) fn new(location: String, problem: impl Into<Cow<'static, str>>) -> Self {
        Self {
            location,
            problem: problem.into(),
            certificate: None,
            source: None,
        }
    }

    pub(super) fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub(super) fn of_certificate(mut self, number: usize) -> Self {
        self.certificate = Some(number);
        self
    }
}
