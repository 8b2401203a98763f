//! Status codes.

use std::fmt;

/// A status code (RFC 9110, section 15), 100 to 999. The common ones are constants;
/// [`new`](Self::new) creates the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

impl Status {
    /// Creates a final status; `None` outside 200 to 999.
    pub fn new(code: u16) -> Option<Self> {
        (200..=999).contains(&code).then_some(Self(code))
    }

    /// Creates an interim status that applications may send; `None` outside 102 to 199.
    pub fn interim(code: u16) -> Option<Self> {
        (102..=199).contains(&code).then_some(Self(code))
    }

    /// Returns the code.
    pub fn code(self) -> u16 {
        self.0
    }

    /// Returns whether a response with this status may have a body (RFC 9110, 6.4.1).
    pub fn allows_body(self) -> bool {
        self.0 >= 200 && self.0 != 204 && self.0 != 304
    }
}

/// Defines the constants with their reason phrases.
macro_rules! statuses {
    ($($(#[$note:meta])* $code:literal $name:ident $reason:literal,)*) => {
        impl Status {
            $(
                #[doc = concat!(stringify!($code), " ", $reason, ".")]
                $(#[$note])*
                pub const $name: Self = Self($code);
            )*

            /// Returns the standard reason phrase; empty for an unknown code.
            pub fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }
        }
    };
}

statuses! {
    /// Sent only by the engine itself.
    100 CONTINUE "Continue",
    /// Sent only by the engine's WebSocket handshake.
    101 SWITCHING_PROTOCOLS "Switching Protocols",
    /// Interim status: not for a final response.
    102 PROCESSING "Processing",
    /// Interim status: not for a final response.
    103 EARLY_HINTS "Early Hints",
    200 OK "OK",
    201 CREATED "Created",
    202 ACCEPTED "Accepted",
    204 NO_CONTENT "No Content",
    /// The engine sends no body with this status.
    205 RESET_CONTENT "Reset Content",
    206 PARTIAL_CONTENT "Partial Content",
    301 MOVED_PERMANENTLY "Moved Permanently",
    302 FOUND "Found",
    303 SEE_OTHER "See Other",
    304 NOT_MODIFIED "Not Modified",
    307 TEMPORARY_REDIRECT "Temporary Redirect",
    308 PERMANENT_REDIRECT "Permanent Redirect",
    400 BAD_REQUEST "Bad Request",
    401 UNAUTHORIZED "Unauthorized",
    403 FORBIDDEN "Forbidden",
    404 NOT_FOUND "Not Found",
    405 METHOD_NOT_ALLOWED "Method Not Allowed",
    406 NOT_ACCEPTABLE "Not Acceptable",
    408 REQUEST_TIMEOUT "Request Timeout",
    409 CONFLICT "Conflict",
    410 GONE "Gone",
    411 LENGTH_REQUIRED "Length Required",
    412 PRECONDITION_FAILED "Precondition Failed",
    413 CONTENT_TOO_LARGE "Content Too Large",
    414 URI_TOO_LONG "URI Too Long",
    415 UNSUPPORTED_MEDIA_TYPE "Unsupported Media Type",
    416 RANGE_NOT_SATISFIABLE "Range Not Satisfiable",
    417 EXPECTATION_FAILED "Expectation Failed",
    422 UNPROCESSABLE_CONTENT "Unprocessable Content",
    426 UPGRADE_REQUIRED "Upgrade Required",
    428 PRECONDITION_REQUIRED "Precondition Required",
    429 TOO_MANY_REQUESTS "Too Many Requests",
    431 HEADER_FIELDS_TOO_LARGE "Request Header Fields Too Large",
    451 UNAVAILABLE_FOR_LEGAL_REASONS "Unavailable For Legal Reasons",
    500 INTERNAL_SERVER_ERROR "Internal Server Error",
    501 NOT_IMPLEMENTED "Not Implemented",
    502 BAD_GATEWAY "Bad Gateway",
    503 SERVICE_UNAVAILABLE "Service Unavailable",
    504 GATEWAY_TIMEOUT "Gateway Timeout",
    505 VERSION_NOT_SUPPORTED "HTTP Version Not Supported",
    507 INSUFFICIENT_STORAGE "Insufficient Storage",
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Lets handlers return a status as an error with `?`.
impl std::error::Error for Status {}
