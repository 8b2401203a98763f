//! Queries and forms of a request.

use std::io::Read;

use crate::error::Error;
use crate::http::{MediaType, Pairs, Status};
use crate::multipart::{Multipart, MultipartLimits};
use crate::request::Request;
use crate::upload::BodyReader;

/// The most fields of a form; more is answered with 413. A field costs some hundred bytes, however
/// short it is, so the length of the body alone would not bound the memory.
const FIELD_COUNT_MAX: usize = 1000;

/// The most bytes of a form that is streamed; 413 past it. Where it is not, the route says.
const STREAMED_FORM_LEN_MAX: u64 = 1 << 20;

impl Request {
    /// The query, decoded. Its length is bounded by that of the target, 8 KiB by default.
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

    /// The fields of a form without files (`application/x-www-form-urlencoded`), at most 1000.
    ///
    /// # Errors
    ///
    /// 415 for another media type, 413 for too many fields or bytes, and those of
    /// [`reader`](Self::reader).
    pub fn form(&mut self) -> Result<Pairs, Error> {
        let media_type = self
            .head()
            .header("content-type")
            .and_then(MediaType::parse);
        if !media_type.is_some_and(|it| it.is("application/x-www-form-urlencoded")) {
            let message = "this needs a form (application/x-www-form-urlencoded)";
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

    /// The parts of a form with files (`multipart/form-data`), as the body comes. On a
    /// [streaming](crate::Route::streaming) route files of any size pass in constant memory.
    ///
    /// ```
    /// use samovar_http::{Error, Request, Route, Router, http::Status};
    ///
    /// fn upload(request: &mut Request) -> Result<Status, Error> {
    ///     let mut form = request.multipart()?;
    ///     while let Some(mut part) = form.next_part()? {
    ///         if part.name() == "photo" {
    ///             std::io::copy(&mut part, &mut std::fs::File::create("photo")?)?;
    ///         }
    ///     }
    ///     Ok(Status::NO_CONTENT)
    /// }
    /// let router = Router::new().route(Route::post("/photos", upload).streaming(100 << 20));
    /// ```
    ///
    /// # Errors
    ///
    /// 415 or 400 if the `Content-Type` is not `multipart/form-data` with a boundary.
    pub fn multipart(&mut self) -> Result<Multipart<BodyReader<'_>>, Error> {
        self.multipart_with(MultipartLimits::default())
    }

    /// The same with other limits than the default.
    ///
    /// # Errors
    ///
    /// As [`multipart`](Self::multipart).
    pub fn multipart_with(
        &mut self,
        limits: MultipartLimits,
    ) -> Result<Multipart<BodyReader<'_>>, Error> {
        let content_type = self.head().header("content-type").map(<[u8]>::to_vec);
        let content_type = content_type.unwrap_or_default();
        Ok(Multipart::with_limits(
            &content_type,
            self.reader(),
            limits,
        )?)
    }
}
