//! The program that serves, as it names itself.

use samovar_http::Response;

use crate::metrics;

/// Name and version of the serving program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Program {
    /// The answer of `/version`.
    pub(crate) fn response(&self) -> Response {
        metrics::version(&self.name, &self.version)
    }
}
