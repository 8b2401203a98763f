//! Cookies of requests and responses.

use cookie::Cookie;

use crate::request::Request;
use crate::response::Response;

impl Request {
    /// Returns the first cookie with this name, percent-decoded.
    ///
    /// Clients can forge cookies: sign the value, or use a random session key.
    pub fn cookie(&self, name: &str) -> Option<Cookie<'_>> {
        self.cookies().find(|cookie| cookie.name() == name)
    }

    /// Iterates over all cookies, in the order sent. Skips cookies that are not UTF-8 or have no
    /// `=`.
    pub fn cookies(&self) -> impl Iterator<Item = Cookie<'_>> {
        let fields = self.head().headers();
        fields
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"cookie"))
            .filter_map(|(_, value)| std::str::from_utf8(value).ok())
            .flat_map(Cookie::split_parse_encoded)
            .flatten()
    }
}

impl Response {
    /// Sets a cookie. Name and value are percent-encoded, so any text is allowed.
    ///
    /// ```
    /// use samovar_http::{Cookie, Response, SameSite, http::Status};
    ///
    /// let session = Cookie::build(("session", "4f1c"))
    ///     .path("/")
    ///     .http_only(true)
    ///     .secure(true)
    ///     .same_site(SameSite::Lax);
    /// let response = Response::redirect(Status::SEE_OTHER, "/").cookie(session);
    /// ```
    ///
    /// # Panics
    ///
    /// If the path or the domain contains a control character.
    #[must_use]
    #[track_caller]
    pub fn cookie<'c>(self, cookie: impl Into<Cookie<'c>>) -> Self {
        self.header("Set-Cookie", cookie.into().encoded().to_string())
    }
}
