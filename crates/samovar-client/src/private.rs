//! [`Private`]: the error of a client that a cache denies access.

/// The cache denies access to this client.
#[derive(Debug, thiserror::Error)]
pub enum Private {
    /// The cache answered 401 or 403 to a request without a login, perhaps with a client
    /// certificate.
    #[error("{0}: the cache is private, and the request had no login")]
    NoLogin(String),
    /// The cache answered 401 or 403 to a request with a login.
    #[error("{0}")]
    WrongLogin(String),
}
