//! Why a request was not understood, and the answer it gets.

use crate::http::Status;

/// A request the connection cannot go on after: it is answered with [`status`](Self::status) and
/// the connection is closed, because where the next request begins is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request line is not three parts, or holds a byte that may not stand there.
    #[error("malformed request line")]
    RequestLine,
    /// A line ends in LF without CR.
    #[error("bare LF")]
    BareLf,
    /// A protocol version other than 1.0 and 1.1.
    #[error("unsupported HTTP version")]
    HttpVersion,
    /// The request target is not of a form its method allows.
    #[error("malformed request target")]
    Target,
    /// The request target is longer than the limit.
    #[error("request target too long")]
    TargetTooLong,
    /// A header line is malformed.
    #[error("malformed header field")]
    HeaderField,
    /// The head is longer than the limit.
    #[error("request head too large")]
    HeadTooLarge,
    /// More header lines than the limit.
    #[error("too many header fields")]
    TooManyHeaders,
    /// No `Host`, several, or a malformed one.
    #[error("missing, repeated or malformed Host")]
    Host,
    /// `Content-Length` is not one plain decimal number.
    #[error("malformed Content-Length")]
    ContentLength,
    /// `Transfer-Encoding` does not end in exactly one `chunked`, or must not stand here.
    #[error("malformed Transfer-Encoding")]
    TransferEncoding,
    /// A transfer coding other than `chunked`.
    #[error("unsupported transfer coding")]
    TransferCoding,
    /// An `Expect` other than `100-continue`.
    #[error("unsupported expectation")]
    Expectation,
    /// A chunk's size line, its end or a trailer is malformed.
    #[error("malformed chunked body")]
    Chunk,
    /// The body is longer than the limit.
    #[error("request body too large")]
    BodyTooLarge,
    /// Requests whose bodies are being read take all the memory there is for them.
    #[error("overloaded, try again")]
    BodyMemory,
    /// CONNECT, which makes a tunnel of a connection.
    #[error("CONNECT is not served")]
    Connect,
    /// The head or the body did not arrive in time.
    #[error("request timed out")]
    Timeout,
}

impl Refusal {
    /// The status the peer is told.
    pub fn status(self) -> Status {
        match self {
            Self::RequestLine
            | Self::BareLf
            | Self::Target
            | Self::HeaderField
            | Self::Host
            | Self::ContentLength
            | Self::TransferEncoding
            | Self::Chunk => Status::BAD_REQUEST,
            Self::HttpVersion => Status::VERSION_NOT_SUPPORTED,
            Self::TargetTooLong => Status::URI_TOO_LONG,
            Self::HeadTooLarge | Self::TooManyHeaders => Status::HEADER_FIELDS_TOO_LARGE,
            Self::TransferCoding | Self::Connect => Status::NOT_IMPLEMENTED,
            Self::Expectation => Status::EXPECTATION_FAILED,
            Self::BodyTooLarge => Status::CONTENT_TOO_LARGE,
            Self::BodyMemory => Status::SERVICE_UNAVAILABLE,
            Self::Timeout => Status::REQUEST_TIMEOUT,
        }
    }
}
