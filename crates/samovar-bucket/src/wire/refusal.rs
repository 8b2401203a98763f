//! Why an attempt failed, and whether another one may succeed.

use std::io;

use rusty_s3::Method;
use ureq::http::{Response, header};

use crate::clock::unix_now_s;
use crate::error::Fault;
use crate::wire::answer::unix_time;
use crate::wire::request::Request;
use crate::xml::element;

/// Maximum length of an error's text that is read.
const TEXT_LEN_MAX: u64 = 64 << 10;

/// Maximum length of an engine's message in messages of ours, in characters.
const MESSAGE_LEN_MAX: usize = 200;

/// From this difference on, a clock may be the reason for which a signature is refused. In seconds.
const SKEW_MIN_S: i64 = 30;

/// Why an attempt failed, and whether another one may succeed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) fault: Fault,
    pub(crate) advice: Advice,
    /// Whether the engine asks for fewer requests.
    pub(crate) is_slow_down: bool,
}

/// What to do after an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advice {
    /// The same request will be refused again.
    GiveUp,
    /// The same request may succeed after a pause.
    Again,
    /// The same request may succeed with other credentials, or another time in its signature.
    Correct {
        /// The engine's clock less ours, in seconds, if that may be the reason.
        offset_s: Option<i64>,
    },
}

impl Refusal {
    fn new(fault: Fault, advice: Advice) -> Self {
        Self {
            fault,
            advice,
            is_slow_down: false,
        }
    }

    /// A header of the caller cannot be one.
    pub(crate) fn header() -> Self {
        Self::new(Fault::Key, Advice::GiveUp)
    }

    /// The caller's file cannot be read.
    pub(crate) fn file(error: io::Error) -> Self {
        Self::new(Fault::File(error), Advice::GiveUp)
    }

    /// There was no answer.
    pub(crate) fn unanswered(error: ureq::Error) -> Self {
        let error = match error {
            ureq::Error::Rustls(error) => io::Error::new(io::ErrorKind::InvalidData, error),
            // The only error that contains the URL, and so the signature.
            ureq::Error::BadUri(_) => io::ErrorKind::InvalidInput.into(),
            other => other.into_io(),
        };
        if is_of_certificate(&error) {
            return Self::new(Fault::Certificate(error), Advice::GiveUp);
        }
        Self::new(Fault::Unreachable(error), Advice::Again)
    }

    /// Reads an answer whose status is not 2xx. `clock_offset_s`: what the signature added to the
    /// time of this machine.
    pub(crate) fn read(
        response: Response<ureq::Body>,
        request: &Request<'_>,
        clock_offset_s: i64,
    ) -> Self {
        let said = Said::read(response, clock_offset_s);
        Self {
            is_slow_down: matches!(said.status, 429 | 503) || said.code == "SlowDown",
            ..said.judged(request)
        }
    }

    /// Reads an error in the body of an answer with status 200.
    pub(crate) fn in_success(text: &str) -> Fault {
        let said = Said {
            status: 200,
            code: element(text, "Code").unwrap_or_default(),
            message: message(text),
            region: None,
            offset_s: None,
        };
        match said.code.as_str() {
            "" => Fault::Answer {
                what: "it is neither a result nor an error",
            },
            "NoSuchUpload" => Fault::NoUpload,
            _ if said.is_passing() => said.unavailable(),
            _ => said.refused(),
        }
    }
}

/// Whether the engine's certificate is the reason.
fn is_of_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref();
    let rustls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(rustls, Some(rustls::Error::InvalidCertificate(_)))
}

/// What the engine said.
#[derive(Debug)]
struct Said {
    status: u16,
    /// Empty if it gave none.
    code: String,
    message: String,
    /// The region where the bucket is.
    region: Option<String>,
    /// The engine's clock less the one in the signature, if they differ much.
    offset_s: Option<i64>,
}

impl Said {
    fn read(response: Response<ureq::Body>, clock_offset_s: i64) -> Self {
        let (parts, body) = response.into_parts();
        let text = body.into_with_config().limit(TEXT_LEN_MAX).read_to_vec();
        // Without the text there is the status.
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let header = |name: &str| parts.headers.get(name)?.to_str().ok();
        let region = header("x-amz-bucket-region").map(str::to_owned);
        let date = header(header::DATE.as_str()).and_then(unix_time);
        let offset_s = date.map(|date| date - unix_now_s());
        let is_much = |offset_s: &i64| (offset_s - clock_offset_s).abs() >= SKEW_MIN_S;
        Self {
            status: parts.status.as_u16(),
            code: element(&text, "Code").unwrap_or_default(),
            message: message(&text),
            region: region.or_else(|| element(&text, "Region")),
            offset_s: offset_s.filter(is_much),
        }
    }

    fn judged(self, request: &Request<'_>) -> Refusal {
        let give_up = |fault| Refusal::new(fault, Advice::GiveUp);
        if let Some(region) = self.other_region() {
            return give_up(Fault::Region { region });
        }
        match (self.status, self.code.as_str()) {
            // Some engines do not know an access key with status 404.
            _ if self.is_of_signature() => {
                let offset_s = self.offset_s;
                Refusal::new(self.denied(), Advice::Correct { offset_s })
            }
            (_, "NoSuchBucket") => give_up(Fault::NoBucket),
            (_, "NoSuchUpload") => give_up(Fault::NoUpload),
            (300..=399, _) => give_up(Fault::Redirect),
            (_, "NoSuchKey") => give_up(Fault::NoObject),
            (404, "") => give_up(not_found(request)),
            (412, _) => give_up(Fault::Exists),
            (416, _) => give_up(Fault::Range),
            (401 | 403, _) => give_up(self.denied()),
            _ if self.is_passing() => Refusal::new(self.unavailable(), Advice::Again),
            _ => give_up(self.refused()),
        }
    }

    /// Returns the region where the bucket is, if that is why the request was refused.
    fn other_region(&self) -> Option<String> {
        let is_of_region = matches!(self.status, 301 | 307 | 308)
            || matches!(
                self.code.as_str(),
                "AuthorizationHeaderMalformed" | "AuthorizationQueryParametersError"
            );
        self.region.clone().filter(|_| is_of_region)
    }

    /// Whether other credentials or another time may help.
    fn is_of_signature(&self) -> bool {
        let is_of_login = matches!(
            self.code.as_str(),
            "ExpiredToken"
                | "InvalidAccessKeyId"
                | "InvalidClientTokenId"
                | "InvalidToken"
                | "TokenRefreshRequired"
                | "SignatureDoesNotMatch"
                // versitygw.
                | "XAdminUserNotFound"
                | "RequestTimeTooSkewed"
        );
        // HEAD has no text, and engines give an expired signature different codes.
        let is_of_clock = self.offset_s.is_some() && matches!(self.status, 400 | 401 | 403);
        is_of_login || is_of_clock || (self.status == 403 && self.code.is_empty())
    }

    /// Whether the same request may succeed later.
    fn is_passing(&self) -> bool {
        let is_of_code = matches!(
            self.code.as_str(),
            "SlowDown"
                | "InternalError"
                | "ServiceUnavailable"
                | "RequestTimeout"
                | "OperationAborted"
                | "ConditionalRequestConflict"
                // The bytes were changed on their way.
                | "BadDigest"
                | "InvalidDigest"
                | "IncompleteBody"
                | "XAmzContentSHA256Mismatch"
                | "XAmzContentChecksumMismatch"
        );
        // Not implemented stays so.
        is_of_code
            || matches!(self.status, 408 | 425 | 429)
            || self.status >= 500 && self.status != 501
    }

    fn denied(self) -> Fault {
        let code = match self.code.as_str() {
            "" => format!("status {}", self.status),
            _ => self.code,
        };
        Fault::Denied { code }
    }

    fn unavailable(self) -> Fault {
        Fault::Unavailable {
            status: self.status,
            code: self.code,
        }
    }

    fn refused(self) -> Fault {
        Fault::Refused {
            status: self.status,
            code: self.code,
            message: self.message,
        }
    }
}

/// What status 404 means if no code says so. A page of a proxy does not mean that an object is
/// absent.
fn not_found(request: &Request<'_>) -> Fault {
    let is_upload = request.query.iter().any(|(name, _)| *name == "uploadId");
    if is_upload {
        Fault::NoUpload
    } else if request.method == Method::Head {
        // Answers to HEAD never have a code.
        Fault::NoObject
    } else {
        Fault::Answer {
            what: "status 404 that is not an engine's",
        }
    }
}

/// Returns the message of an error, without control characters, cut to a line.
fn message(text: &str) -> String {
    let message = element(text, "Message").unwrap_or_default();
    let printable = message.chars().filter(|character| !character.is_control());
    printable.take(MESSAGE_LEN_MAX).collect()
}
