//! Methods of responses.

use samovar_http::Response;

use crate::cookie::Cookie;

/// Methods of a [`Response`] that this crate adds.
pub trait ResponseExt {
    /// Sets a cookie, in a `Set-Cookie` field of its own.
    #[must_use]
    fn cookie(self, cookie: Cookie) -> Self;
}

impl ResponseExt for Response {
    fn cookie(self, cookie: Cookie) -> Self {
        self.header("Set-Cookie", cookie.to_string())
    }
}
