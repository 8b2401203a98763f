//! Queries and forms of requests.

use std::io::Read;

use super::Request;
use crate::error::Error;
use crate::http::{Pairs, Status};

const MEDIA_TYPE: &[u8] = b"application/x-www-form-urlencoded";

/// Maximum number of fields in a form; a form with more gets 413. Even a short field takes some
/// hundred bytes of memory, so a limit on the length of the body would not suffice.
const FIELD_COUNT_MAX: usize = 1000;

/// Maximum length of a form on a streaming route, in bytes; a longer form gets 413. On other routes
/// the route's own limit applies.
const STREAMED_FORM_LEN_MAX: u64 = 1 << 20;

impl Request {
    /// Returns the decoded query. The length limit of the request target, 8 KiB by default, also
    /// bounds the length of the query.
    ///
    /// ```
    /// use samovar_http::{Request, Router};
    ///
    /// fn search(request: &mut Request) -> String {
    ///     let query = request.query();
    ///     let page: u32 = query.get("page").and_then(|page| page.parse().ok()).unwrap_or(1);
    ///     format!("{:?}, page {page}\n", query.get("q"))
    /// }
    /// let router = Router::new().get("/search", search);
    /// ```
    pub fn query(&self) -> Pairs {
        let query = self.head().query().unwrap_or_default();
        Pairs::parse(query, usize::MAX).unwrap_or_default()
    }

    /// Returns the fields of a form (`application/x-www-form-urlencoded`), of which there may be at
    /// most 1000.
    ///
    /// ```
    /// use samovar_http::{Error, Request, Router, http::Status};
    ///
    /// fn add(request: &mut Request) -> Result<String, Error> {
    ///     let form = request.form()?;
    ///     let text = form.get("text")
    ///         .ok_or_else(|| Error::new(Status::BAD_REQUEST, "the field `text` is missing"))?;
    ///     Ok(format!("added {text}\n"))
    /// }
    /// let router = Router::new().post("/notes", add);
    /// ```
    ///
    /// # Errors
    ///
    /// 415 for another media type, 413 for a form with too many fields or bytes, and the errors of
    /// [`reader`](Self::reader).
    pub fn form(&mut self) -> Result<Pairs, Error> {
        let content_type = self.head().header("content-type").unwrap_or_default();
        let media_type = content_type.split(|&byte| byte == b';').next();
        if !media_type.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(MEDIA_TYPE)) {
            let message = "the body must be a form (application/x-www-form-urlencoded)";
            return Err(Error::new(Status::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let mut streamed = Vec::new();
        if self.body().is_empty() {
            let mut reader = self.reader().take(STREAMED_FORM_LEN_MAX + 1);
            if reader.read_to_end(&mut streamed)? as u64 > STREAMED_FORM_LEN_MAX {
                return Err(Status::CONTENT_TOO_LARGE.into());
            }
        }
        let text = if streamed.is_empty() {
            self.body()
        } else {
            &streamed
        };
        Pairs::parse(text, FIELD_COUNT_MAX)
            .ok_or_else(|| Error::new(Status::CONTENT_TOO_LARGE, "the form has too many fields"))
    }
}
