//! Name and version of the serving program.

use samovar_http::Response;

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
        samovar_metrics::json(&serde_json::json!({
            "name": self.name,
            "version": self.version,
            "status": samovar_metrics::VERSION,
            "features": ["closure", "narinfos", "ranges", "listings", "logs", "realisations"],
        }))
    }
}
