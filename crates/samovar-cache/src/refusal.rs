//! Reasons for refusing a request, and responses with a fixed text.
//!
//! A function that looks for a path returns a [`Refusal`] if it cannot continue, and `?` passes it
//! on. [`Refusal::answer`] alone decides which response the client gets. Each response with a fixed
//! text is one variant of [`Fixed`]: a worker sends it as a [`Response`], an I/O thread as the
//! [`Prepared`] that was made from the same variant at start.

use std::borrow::Cow;

use samovar_http::http::{Method, Status};
use samovar_http::{Prepared, Response};
use samovar_store::StoreError;

use crate::prepared::{AnswerHead, Field};

/// Reason why a path is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The database has no row for the path.
    Absent,
    /// The policy of the cache excludes the path. A client cannot tell that from absence.
    NotReadable,
    /// The NAR hash in the URL is not the registered one.
    WrongHash,
    /// The files are confirmed to differ from the registered ones.
    Quarantined,
    /// One read of the files failed verification, or the files are being checked again.
    Suspect,
    /// The files cannot be read at the moment. The function that found this has reported it.
    Unreadable,
    /// The closures of the policy's roots are unknown, so it is unknown which paths may be read.
    Undecided,
    /// The store failed with this error.
    Store(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Refusal {
    /// Returns the response to the client.
    ///
    /// A 404 is sent only if the database has no such path or the files were confirmed to be wrong,
    /// because clients cache a miss for an hour. A quarantined path gets 404 so that clients query
    /// their next cache, or build the path.
    pub(crate) fn answer(self) -> Fixed {
        match self {
            Self::Absent | Self::NotReadable => Fixed::NoPath,
            Self::WrongHash => Fixed::WrongHash,
            Self::Quarantined => Fixed::Quarantined,
            Self::Suspect | Self::Unreadable | Self::Undecided | Self::Store(_) => {
                Fixed::Unavailable
            }
        }
    }

    /// Whether the response is a 404 rather than a 503.
    pub(crate) fn is_absence(self) -> bool {
        self.answer().head().status == Status::NOT_FOUND
    }
}

/// Responses with a fixed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixed {
    Healthy,
    NoPath,
    NotFound,
    WrongHash,
    Quarantined,
    Incomplete,
    NotAllowed,
    /// A PUT to a URL that takes no uploads.
    NoUploads,
    /// A GET below `upload/` in a cache that takes no uploads.
    NoUploadUrl,
    OnlyPost,
    /// A request other than GET and HEAD from a web page of another origin.
    ForeignOrigin,
    /// A method other than GET, HEAD and PUT, in a cache that takes uploads.
    OnlyPut,
    Busy,
    Unavailable,
}

pub(crate) const TEXT: Field = ("Content-Type", "text/plain");

/// Name of the field of a 404 with the reason why a path is missing, in one word for scripts.
pub(crate) const MISS: &str = "Samovar-Miss";

/// There is no such path. A path that a policy hides is not told apart.
pub(crate) const ABSENT: Field = (MISS, "absent");

/// The path has another NAR than the requested one.
const REPLACED: Field = (MISS, "replaced");

/// The files of the path are damaged.
pub(crate) const DAMAGED: Field = (MISS, "damaged");

/// The path was uploaded, and deleted since.
const COLLECTED: Field = (MISS, "collected");

/// A browser must show as text what clients have sent or builds have printed.
pub(crate) const NOSNIFF: Field = ("X-Content-Type-Options", "nosniff");

/// Makes a response with a text that may quote what a client has sent.
pub(crate) fn text_response(status: Status, text: impl Into<Cow<'static, str>>) -> Response {
    Response::text(status, text).header(NOSNIFF.0, NOSNIFF.1)
}

const RETRY_AFTER: Field = ("Retry-After", "1");

impl Fixed {
    /// All variants in the order of their declaration, which [`PreparedAnswers`] relies on.
    const ALL: [Self; 14] = [
        Self::Healthy,
        Self::NoPath,
        Self::NotFound,
        Self::WrongHash,
        Self::Quarantined,
        Self::Incomplete,
        Self::NotAllowed,
        Self::NoUploads,
        Self::NoUploadUrl,
        Self::OnlyPost,
        Self::ForeignOrigin,
        Self::OnlyPut,
        Self::Busy,
        Self::Unavailable,
    ];

    /// Returns the response to a request with a method other than GET and HEAD, for a URL that only
    /// has these.
    pub(crate) fn of_method(method: Method, has_uploads: bool) -> Self {
        match method {
            Method::Put => Self::NoUploads,
            _ if has_uploads => Self::OnlyPut,
            _ => Self::NotAllowed,
        }
    }

    const fn head(self) -> AnswerHead {
        let (status, fields): (_, &'static [Field]) = match self {
            Self::Healthy => (Status::OK, &[TEXT, ("Cache-Control", "no-store")]),
            Self::NoPath => (Status::NOT_FOUND, &[TEXT, ABSENT]),
            Self::WrongHash => (Status::NOT_FOUND, &[TEXT, REPLACED]),
            Self::Quarantined => (Status::NOT_FOUND, &[TEXT, DAMAGED]),
            // The URL may belong to a cache that is hidden from this client only.
            Self::NotFound => (Status::NOT_FOUND, &[TEXT, ("Cache-Control", "no-store")]),
            Self::Incomplete => (Status::UNPROCESSABLE_CONTENT, &[TEXT]),
            Self::NotAllowed | Self::NoUploads => {
                (Status::METHOD_NOT_ALLOWED, &[TEXT, ("Allow", "GET, HEAD")])
            }
            Self::OnlyPut => (
                Status::METHOD_NOT_ALLOWED,
                &[TEXT, ("Allow", "GET, HEAD, PUT")],
            ),
            // The status must not be 404, because `nix copy` does not print the text of a 404.
            Self::NoUploadUrl => (Status::METHOD_NOT_ALLOWED, &[TEXT, ("Allow", "")]),
            Self::OnlyPost => (Status::METHOD_NOT_ALLOWED, &[TEXT, ("Allow", "POST")]),
            Self::ForeignOrigin => (Status::FORBIDDEN, &[TEXT]),
            Self::Busy | Self::Unavailable => (Status::SERVICE_UNAVAILABLE, &[TEXT, RETRY_AFTER]),
        };
        AnswerHead { status, fields }
    }

    /// Returns the word for scripts about a path that the server has, and does not send.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Self::WrongHash => Some(REPLACED.1),
            Self::Quarantined => Some(DAMAGED.1),
            _ => None,
        }
    }

    /// Returns the text of the response. The texts of the first three 404s are nix-serve's.
    pub(crate) const fn body(self) -> &'static str {
        match self {
            Self::Healthy => "ok\n",
            Self::NoPath => "No such path.\n",
            Self::NotFound => "File not found.\n",
            Self::WrongHash => "Incorrect NAR hash. Maybe the path has been recreated.\n",
            Self::Quarantined => {
                "The files of this path are damaged on the server. The path is served again once \
                 they are repaired.\n"
            }
            Self::Incomplete => "The closure has a path that cannot be served.\n",
            Self::NotAllowed => "This cache is read-only: use GET or HEAD.\n",
            Self::OnlyPut => {
                "This URL takes only GET, HEAD and PUT. To upload a file, send PUT to nar/NAME, \
                 HASH.narinfo or log/NAME. POST is for URLs below upload/push/, DELETE for those \
                 below upload/push/ and upload/pin/.\n"
            }
            Self::NoUploads | Self::NoUploadUrl => {
                "This URL takes no uploads: check it, or ask the operator to allow uploads \
                 (samovar serve --storage).\n"
            }
            Self::OnlyPost => "Use POST for this URL.\n",
            Self::ForeignOrigin => {
                "A web page of another site may not send this request with a browser's password.\n"
            }
            Self::Busy => "Too many bulk queries are in progress. Try again.\n",
            Self::Unavailable => "The store cannot be read at the moment. Try again.\n",
        }
    }

    /// Returns the response that a worker sends.
    pub(crate) fn response(self) -> Response {
        self.head().response(self.body().into())
    }

    fn prepared(self) -> Prepared {
        self.head().prepared(self.body().as_bytes())
    }
}

/// Why the server itself does not have a path.
#[derive(Debug, Clone)]
pub(crate) struct Absence {
    fixed: Fixed,
    /// When the path was deleted, in seconds since 1970; `None`: unknown.
    deleted_at: Option<i64>,
}

impl Absence {
    /// `refusal`: the response of the store; `None`: it has no such path. `deleted_at`: when an
    /// uploaded path was deleted, in seconds since 1970.
    pub(crate) fn new(refusal: Option<Fixed>, deleted_at: Option<i64>) -> Self {
        Self {
            fixed: refusal.unwrap_or(Fixed::NoPath),
            deleted_at,
        }
    }

    /// Whether an uploaded path was deleted.
    pub(crate) fn is_deletion(&self) -> bool {
        self.deleted_at.is_some()
    }

    /// Returns the word for scripts; `None`: the server has never had the path.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        let deleted = self.deleted_at.map(|_| COLLECTED.1);
        self.fixed.reason().or(deleted)
    }

    /// Returns the text of the response.
    pub(crate) fn body(&self) -> String {
        let body = self.fixed.body();
        match self.deleted_at {
            None => body.to_owned(),
            Some(at) => format!("{body}The uploaded path was deleted on {}.\n", day(at)),
        }
    }

    /// Returns the response of a server without upstreams.
    pub(crate) fn response(&self) -> Response {
        match self.deleted_at {
            None => self.fixed.response(),
            Some(_) => Response::text(Status::NOT_FOUND, self.body())
                .header(MISS, self.reason().unwrap_or(ABSENT.1)),
        }
    }
}

/// Formats a time in seconds since 1970 as the date of its day, `2026-11-29`.
pub(crate) fn day(seconds: i64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp(seconds);
    time.map_or_else(
        |_out_of_range| "?".to_owned(),
        |time| time.date().to_string(),
    )
}

/// All fixed responses in the form that I/O threads send.
#[derive(Debug)]
pub(crate) struct PreparedAnswers([Prepared; Fixed::ALL.len()]);

impl PreparedAnswers {
    pub(crate) fn new() -> Self {
        Self(Fixed::ALL.map(Fixed::prepared))
    }

    pub(crate) fn get(&self, fixed: Fixed) -> &Prepared {
        &self.0[fixed as usize]
    }
}

#[cfg(test)]
mod tests {
    use samovar_http::Body;
    use samovar_store::{Corruption, Unavailable};

    use super::*;

    #[test]
    fn prepared_answers_equal_those_of_workers() {
        let all = PreparedAnswers::new();
        for (index, fixed) in Fixed::ALL.into_iter().enumerate() {
            assert_eq!(index, fixed as usize);
            let (prepared, response) = (all.get(fixed), fixed.response());
            assert_eq!(prepared.status(), response.status(), "{fixed:?}");
            let is_same = matches!(
                response.body(),
                Body::Bytes(bytes) if **bytes == *prepared.body()
            );
            assert!(is_same, "{fixed:?}");
        }
    }

    #[test]
    fn only_absence_exclusion_and_damage_are_404() {
        let unavailable = StoreError::Unavailable(Unavailable::DatabaseMissing);
        let cases = [
            (Refusal::Absent, Fixed::NoPath, 404),
            (Refusal::NotReadable, Fixed::NoPath, 404),
            (Refusal::WrongHash, Fixed::WrongHash, 404),
            (Refusal::Quarantined, Fixed::Quarantined, 404),
            (Refusal::Suspect, Fixed::Unavailable, 503),
            (Refusal::Unreadable, Fixed::Unavailable, 503),
            (Refusal::Undecided, Fixed::Unavailable, 503),
            (Refusal::Store(StoreError::Busy), Fixed::Unavailable, 503),
            (Refusal::Store(unavailable), Fixed::Unavailable, 503),
            (
                Refusal::Store(StoreError::Corrupt(Corruption::NarHash)),
                Fixed::Unavailable,
                503,
            ),
        ];
        for (refusal, fixed, status) in cases {
            assert_eq!(refusal.answer(), fixed, "{refusal:?}");
            assert_eq!(fixed.head().status.code(), status, "{refusal:?}");
            assert_eq!(refusal.is_absence(), status == 404, "{refusal:?}");
        }
    }
}
