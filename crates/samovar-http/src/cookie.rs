//! Cookies of requests and responses.

use cookie::Cookie;

use crate::request::Request;
use crate::response::Response;

impl Request {
    /// The first cookie with this name, percent-decoded.
    ///
    /// Any client can send any cookie: what must not be forged needs a signature, or has to be a
    /// random key to what the server knows.
    pub fn cookie(&self, name: &str) -> Option<Cookie<'_>> {
        self.cookies().find(|cookie| cookie.name() == name)
    }

    /// All cookies, in the order they were sent. What is not UTF-8 or has no `=` is left out.
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
    /// Sets a cookie. Name and value are percent-encoded, so any text will do.
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
    /// If path or domain hold a control character.
    #[must_use]
    #[track_caller]
    pub fn cookie<'c>(self, cookie: impl Into<Cookie<'c>>) -> Self {
        self.header("Set-Cookie", cookie.into().encoded().to_string())
    }
}
