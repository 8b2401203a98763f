//! How a PostgreSQL server is reached: the URL and the certificates.

mod settings;
mod tls;

pub use settings::{PostgresSettings, PostgresSettingsError};
pub(crate) use tls::Tls;
