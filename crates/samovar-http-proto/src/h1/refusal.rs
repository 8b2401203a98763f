//! Reasons for refusing a request, and their status codes.

use crate::http::Status;

/// Reason for refusing a request. The request is answered with [`status`](Self::status) and the
/// connection is closed, because the start of the next request is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request line does not have three parts, or contains a forbidden byte.
    #[error("malformed request line")]
    RequestLine,
    /// A line ends in LF without CR.
    #[error("bare LF")]
    BareLf,
    /// The protocol version is neither 1.0 nor 1.1.
    #[error("unsupported HTTP version")]
    HttpVersion,
    /// The form of the request target is not allowed for the method.
    #[error("malformed request target")]
    Target,
    /// The request target is longer than the limit.
    #[error("request target too long")]
    TargetTooLong,
    /// A header line is malformed.
    #[error("malformed header field")]
    HeaderField,
    /// The request head is longer than the limit.
    #[error("request head too large")]
    HeadTooLarge,
    /// The head has more header lines than the limit.
    #[error("too many header fields")]
    TooManyHeaders,
    /// The request has no `Host` field, several, or a malformed one.
    #[error("missing, repeated or malformed Host")]
    Host,
    /// The `Host` field differs from the host of the request target, or from the `:authority` of
    /// HTTP/2. A proxy in front of the server may have routed by either.
    #[error("Host differs from the host of the request target")]
    OtherHost,
    /// `Content-Length` is not one plain decimal number.
    #[error("malformed Content-Length")]
    ContentLength,
    /// `Transfer-Encoding` does not end in exactly one `chunked`, or is not allowed here.
    #[error("malformed Transfer-Encoding")]
    TransferEncoding,
    /// The body has a transfer coding other than `chunked`.
    #[error("unsupported transfer coding")]
    TransferCoding,
    /// The value of `Expect` is not `100-continue`.
    #[error("unsupported expectation")]
    Expectation,
    /// A chunk's size line, its end or a trailer is malformed.
    #[error("malformed chunked body")]
    Chunk,
    /// The request body is longer than the limit.
    #[error("request body too large")]
    BodyTooLarge,
    /// The memory for buffered request bodies is exhausted.
    #[error("overloaded, try again")]
    BodyMemory,
    /// The method is CONNECT, which would turn the connection into a tunnel.
    #[error("CONNECT is not served")]
    Connect,
    /// The request head or the body did not arrive in time.
    #[error("request timed out")]
    Timeout,
}

impl Refusal {
    /// Returns the status of the response.
    pub fn status(self) -> Status {
        match self {
            Self::RequestLine
            | Self::BareLf
            | Self::Target
            | Self::HeaderField
            | Self::Host
            | Self::OtherHost
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
