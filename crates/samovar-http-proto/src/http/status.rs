//! Status codes.

use std::fmt;

/// A status code (RFC 9110, section 15), 100 to 999. The common ones are constants;
/// [`new`](Self::new) creates the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

impl Status {
    /// 100; sent by the engine alone
    pub const CONTINUE: Self = Self(100);
    /// 101; sent by the engine's WebSocket handshake alone
    pub const SWITCHING_PROTOCOLS: Self = Self(101);
    /// 200
    pub const OK: Self = Self(200);
    /// 201
    pub const CREATED: Self = Self(201);
    /// 202
    pub const ACCEPTED: Self = Self(202);
    /// 204
    pub const NO_CONTENT: Self = Self(204);
    /// 205; a body is not sent
    pub const RESET_CONTENT: Self = Self(205);
    /// 206
    pub const PARTIAL_CONTENT: Self = Self(206);
    /// 301
    pub const MOVED_PERMANENTLY: Self = Self(301);
    /// 302
    pub const FOUND: Self = Self(302);
    /// 303
    pub const SEE_OTHER: Self = Self(303);
    /// 304
    pub const NOT_MODIFIED: Self = Self(304);
    /// 307
    pub const TEMPORARY_REDIRECT: Self = Self(307);
    /// 308
    pub const PERMANENT_REDIRECT: Self = Self(308);
    /// 400
    pub const BAD_REQUEST: Self = Self(400);
    /// 401
    pub const UNAUTHORIZED: Self = Self(401);
    /// 403
    pub const FORBIDDEN: Self = Self(403);
    /// 404
    pub const NOT_FOUND: Self = Self(404);
    /// 405
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    /// 406
    pub const NOT_ACCEPTABLE: Self = Self(406);
    /// 408
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// 409
    pub const CONFLICT: Self = Self(409);
    /// 410
    pub const GONE: Self = Self(410);
    /// 411
    pub const LENGTH_REQUIRED: Self = Self(411);
    /// 412
    pub const PRECONDITION_FAILED: Self = Self(412);
    /// 413
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    /// 414
    pub const URI_TOO_LONG: Self = Self(414);
    /// 415
    pub const UNSUPPORTED_MEDIA_TYPE: Self = Self(415);
    /// 416
    pub const RANGE_NOT_SATISFIABLE: Self = Self(416);
    /// 417
    pub const EXPECTATION_FAILED: Self = Self(417);
    /// 422
    pub const UNPROCESSABLE_CONTENT: Self = Self(422);
    /// 426
    pub const UPGRADE_REQUIRED: Self = Self(426);
    /// 428
    pub const PRECONDITION_REQUIRED: Self = Self(428);
    /// 429
    pub const TOO_MANY_REQUESTS: Self = Self(429);
    /// 431
    pub const HEADER_FIELDS_TOO_LARGE: Self = Self(431);
    /// 500
    pub const INTERNAL_SERVER_ERROR: Self = Self(500);
    /// 501
    pub const NOT_IMPLEMENTED: Self = Self(501);
    /// 502
    pub const BAD_GATEWAY: Self = Self(502);
    /// 503
    pub const SERVICE_UNAVAILABLE: Self = Self(503);
    /// 504
    pub const GATEWAY_TIMEOUT: Self = Self(504);
    /// 505
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);

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

    /// Whether a response with this status may have a body (RFC 9110, 6.4.1).
    pub fn allows_body(self) -> bool {
        self.0 >= 200 && self.0 != 204 && self.0 != 304
    }

    /// Returns the standard reason phrase; empty for an unknown code.
    pub fn reason(self) -> &'static str {
        match self.0 {
            101 => "Switching Protocols",
            102 => "Processing",
            103 => "Early Hints",
            200 => "OK",
            201 => "Created",
            202 => "Accepted",
            204 => "No Content",
            205 => "Reset Content",
            206 => "Partial Content",
            301 => "Moved Permanently",
            302 => "Found",
            303 => "See Other",
            304 => "Not Modified",
            307 => "Temporary Redirect",
            308 => "Permanent Redirect",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            406 => "Not Acceptable",
            408 => "Request Timeout",
            409 => "Conflict",
            410 => "Gone",
            411 => "Length Required",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            422 => "Unprocessable Content",
            426 => "Upgrade Required",
            428 => "Precondition Required",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            451 => "Unavailable For Legal Reasons",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            502 => "Bad Gateway",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            505 => "HTTP Version Not Supported",
            _ => "",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Lets handlers return a status with `?`.
impl std::error::Error for Status {}
