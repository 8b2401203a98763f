//! Why a request is refused, and the answers with fixed words.
//!
//! Every function that looks for a path answers with a [`Refusal`] where it cannot go on, and `?`
//! passes it on. What the client gets for it is decided once, by [`Refusal::answer`]. Every answer
//! with fixed words is one row of [`Fixed`]: a worker sends it as a [`Response`], an I/O thread as
//! the [`Prepared`] that was made of the same row at start.

use samovar_http::http::Status;
use samovar_http::{Prepared, Response};
use samovar_store::StoreError;

use crate::prepared::{AnswerHead, Field};

/// Reason why a path is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The database has no such path.
    Absent,
    /// The policy of the cache excludes the path. A client cannot tell that from absence.
    NotReadable,
    /// The NAR hash in the URL is not the registered one.
    WrongHash,
    /// The files are confirmed not to be the registered ones.
    Quarantined,
    /// The files were read wrong once, or are being checked again.
    Suspect,
    /// The files cannot be read at the moment. Reported where it was found.
    Unreadable,
    /// The roots of the policy are not known, so neither is what may be read.
    Undecided,
    /// The store failed.
    Store(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Refusal {
    /// The answer to the client.
    ///
    /// 404 is given only if the database has said so or the files were confirmed to be wrong:
    /// clients remember a miss for an hour. A quarantined path is a 404 so that they ask the next
    /// cache, or build.
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

/// Answers with fixed words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixed {
    Healthy,
    NoPath,
    NotFound,
    WrongHash,
    Quarantined,
    Incomplete,
    NotAllowed,
    OnlyPost,
    Busy,
    Unavailable,
}

pub(crate) const TEXT: Field = ("Content-Type", "text/plain");

const RETRY_AFTER: Field = ("Retry-After", "1");

impl Fixed {
    /// In the order of their declaration, which [`PreparedAnswers`] counts on.
    const ALL: [Self; 10] = [
        Self::Healthy,
        Self::NoPath,
        Self::NotFound,
        Self::WrongHash,
        Self::Quarantined,
        Self::Incomplete,
        Self::NotAllowed,
        Self::OnlyPost,
        Self::Busy,
        Self::Unavailable,
    ];

    const fn head(self) -> AnswerHead {
        let (status, fields): (_, &'static [Field]) = match self {
            Self::Healthy => (Status::OK, &[TEXT, ("Cache-Control", "no-store")]),
            Self::NoPath | Self::NotFound | Self::WrongHash | Self::Quarantined => {
                (Status::NOT_FOUND, &[TEXT])
            }
            Self::Incomplete => (Status::UNPROCESSABLE_CONTENT, &[TEXT]),
            Self::NotAllowed => (Status::METHOD_NOT_ALLOWED, &[TEXT, ("Allow", "GET, HEAD")]),
            Self::OnlyPost => (Status::METHOD_NOT_ALLOWED, &[TEXT, ("Allow", "POST")]),
            Self::Busy | Self::Unavailable => (Status::SERVICE_UNAVAILABLE, &[TEXT, RETRY_AFTER]),
        };
        AnswerHead { status, fields }
    }

    /// Those of the first three 404s are nix-serve's.
    pub(crate) const fn body(self) -> &'static str {
        match self {
            Self::Healthy => "ok\n",
            Self::NoPath => "No such path.\n",
            Self::NotFound => "File not found.\n",
            Self::WrongHash => "Incorrect NAR hash. Maybe the path has been recreated.\n",
            Self::Quarantined => {
                "The files of this path are damaged here. It is served again once they are \
                 repaired.\n"
            }
            Self::Incomplete => "The closure has a path that cannot be served.\n",
            Self::NotAllowed => "This cache is read-only: use GET or HEAD.\n",
            Self::OnlyPost => "Use POST for this URL.\n",
            Self::Busy => "Too many bulk queries are in progress. Try again.\n",
            Self::Unavailable => "The store cannot be read at the moment. Try again.\n",
        }
    }

    /// As a worker sends it.
    pub(crate) fn response(self) -> Response {
        self.head().response(self.body().into())
    }

    fn prepared(self) -> Prepared {
        self.head().prepared(self.body().as_bytes())
    }
}

/// All fixed answers as I/O threads send them.
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
    fn prepared_answers_are_those_of_workers() {
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
