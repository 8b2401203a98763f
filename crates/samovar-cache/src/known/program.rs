//! Name and version of the serving program.

use samovar_http::Response;

/// Name and version of the serving program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Name of the program.
    pub name: String,
    /// Version of the program.
    pub version: String,
}

impl Program {
    /// Returns the response to `/version`.
    pub(crate) fn response(&self) -> Response {
        samovar_metrics::json(&serde_json::json!({
            "name": self.name,
            "version": self.version,
            "status": samovar_metrics::VERSION,
            "features": ["closure", "narinfos", "ranges", "listings", "logs", "realisations"],
        }))
    }
}
