//! A request to the engine, and its sending.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rusty_s3::Method;
use ureq::http::{Request as HttpRequest, Response, header};
use ureq::{Agent, AsSendBody, SendBody};
use url::Url;

use crate::operation::Operation;
use crate::settings::Timing;
use crate::wire::refusal::Refusal;

/// Bodies from this length on are sent after the engine has said that it wants them
/// (`Expect: 100-continue`), so that a refusal costs one round trip instead of the body.
const EXPECT_LEN_MIN: u64 = 1 << 20;

/// Least number of bytes in a second at which a body is sent. A slower connection is given up.
const SEND_RATE_MIN: u64 = 256 << 10;

/// A request to the engine.
#[derive(Debug)]
pub(crate) struct Request<'r> {
    pub(crate) method: Method,
    /// Whole key of the object. `None`: the request concerns the bucket.
    pub(crate) key: Option<String>,
    /// Parameters of the URL.
    pub(crate) query: Vec<(&'static str, Cow<'r, str>)>,
    /// Headers in the signature, with lower-case names. All that begin with `x-amz-` must be.
    pub(crate) signed: Vec<(&'static str, String)>,
    /// Other headers.
    pub(crate) unsigned: Vec<(&'static str, String)>,
    pub(crate) body: Body<'r>,
    /// Time for the answer beyond [`Timing::stall`], for requests with much work.
    pub(crate) work: Duration,
}

/// The body of a request, which can be read again for each attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Body<'r> {
    None,
    Bytes(&'r [u8]),
    /// A piece of a file. The position of the file is neither used nor changed.
    Piece {
        file: &'r File,
        offset: u64,
        len: u64,
    },
}

impl<'r> Request<'r> {
    /// Returns a request for the object with this whole key.
    pub(crate) fn object(method: Method, key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..Self::bucket(method)
        }
    }

    /// Returns a request that concerns the bucket.
    pub(crate) fn bucket(method: Method) -> Self {
        Self {
            method,
            key: None,
            query: Vec::new(),
            signed: Vec::new(),
            unsigned: Vec::new(),
            body: Body::None,
            work: Duration::ZERO,
        }
    }

    /// Adds a parameter of the URL.
    pub(crate) fn query(mut self, name: &'static str, value: impl Into<Cow<'r, str>>) -> Self {
        self.query.push((name, value.into()));
        // The signature has them in this order.
        self.query.sort_unstable_by_key(|&(name, _)| name);
        self
    }

    /// Adds a header to the signature.
    pub(crate) fn signed(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.signed.push((name, value.into()));
        self.signed.sort_unstable_by_key(|&(name, _)| name);
        self
    }

    /// Adds a header that is not in the signature.
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.unsigned.push((name, value.into()));
        self
    }

    pub(crate) fn body(mut self, body: Body<'r>) -> Self {
        self.body = body;
        self
    }
}

impl Request<'_> {
    pub(crate) fn operation(&self) -> Operation {
        let has = |wanted: &str| self.query.iter().any(|(name, _)| *name == wanted);
        match self.method {
            _ if has("uploads") || has("uploadId") => Operation::Multipart,
            _ if has("list-type") => Operation::List,
            _ if has("delete") => Operation::Delete,
            _ if self.key.is_none() => Operation::Other,
            Method::Put => Operation::Put,
            Method::Get => Operation::Get,
            Method::Head => Operation::Head,
            Method::Delete => Operation::Delete,
            Method::Post => Operation::Other,
        }
    }
}

/// For messages: the method, and the key if there is one.
impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match (self.operation(), self.method) {
            (Operation::List, _) => "LIST",
            (Operation::Multipart, Method::Put) => "PUT of a part of",
            (Operation::Multipart, Method::Delete) => "abortion of the upload of",
            (Operation::Multipart, _) => "multipart upload of",
            (Operation::Delete, Method::Post) => "DELETE of several objects",
            (_, method) => method.to_str(),
        };
        f.write_str(operation)?;
        match &self.key {
            Some(key) => write!(f, " {key}"),
            None => Ok(()),
        }
    }
}

impl Body<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            // A length in memory fits into 64 bits.
            Self::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Self::Piece { len, .. } => *len,
        }
    }
}

/// Reads a piece of a file, without a position in the file.
#[derive(Debug)]
pub(crate) struct Piece<'f> {
    file: &'f File,
    offset: u64,
    left: u64,
    /// Why the file could not be read. The reader of this piece sees a copy.
    failed: Option<io::Error>,
}

impl<'f> Piece<'f> {
    pub(crate) fn new(file: &'f File, offset: u64, len: u64) -> Self {
        Self {
            file,
            offset,
            left: len,
            failed: None,
        }
    }

    /// Returns why a read failed with `copy`.
    pub(crate) fn failure(self, copy: io::Error) -> io::Error {
        self.failed.unwrap_or(copy)
    }
}

impl Read for Piece<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if wanted == 0 {
            return Ok(0);
        }
        let read = match self.file.read_at(&mut buffer[..wanted], self.offset) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => other,
        };
        match read {
            Ok(len) => {
                // At most `wanted`, which is at most `left`.
                let len_read = u64::try_from(len).unwrap_or(self.left);
                self.offset += len_read;
                self.left -= len_read;
                Ok(len)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let copy = io::Error::from(error.kind());
                self.failed = Some(error);
                Err(copy)
            }
        }
    }
}

/// Sends a request once, and returns the answer with whatever status.
pub(crate) fn send(
    agent: &Agent,
    request: &Request<'_>,
    url: &Url,
    timing: &Timing,
) -> Result<Response<ureq::Body>, Refusal> {
    match request.body {
        // A PUT or POST says that its body is empty: some engines ask for the length.
        Body::None if matches!(request.method, Method::Put | Method::Post) => {
            run(agent, request, url, timing, &[] as &[u8])
        }
        Body::None => run(agent, request, url, timing, ()),
        Body::Bytes(bytes) => run(agent, request, url, timing, bytes),
        Body::Piece { file, offset, len } => {
            let mut piece = Piece::new(file, offset, len);
            let body = SendBody::from_reader(&mut piece);
            let answered = run(agent, request, url, timing, body);
            match piece.failed {
                Some(error) => Err(Refusal::file(error)),
                None => answered,
            }
        }
    }
}

fn run(
    agent: &Agent,
    request: &Request<'_>,
    url: &Url,
    timing: &Timing,
    body: impl AsSendBody,
) -> Result<Response<ureq::Body>, Refusal> {
    let len = request.body.len();
    let mut builder = HttpRequest::builder()
        .method(request.method.to_str())
        .uri(url.as_str());
    for (name, value) in request.signed.iter().chain(&request.unsigned) {
        builder = builder.header(*name, value);
    }
    if matches!(request.body, Body::Piece { .. }) {
        builder = builder.header(header::CONTENT_LENGTH, len);
    }
    if len >= EXPECT_LEN_MIN {
        builder = builder.header(header::EXPECT, "100-continue");
    }
    let http = builder.body(body).ok().ok_or_else(Refusal::header)?;
    // What was sent may still be in buffers on the way: so the time to send counts for the answer,
    // too.
    let sending = timing.stall + Duration::from_millis(len.saturating_mul(1000) / SEND_RATE_MIN);
    let patience = sending + request.work;
    let configured = agent
        .configure_request(http)
        .timeout_send_body(Some(sending))
        .timeout_recv_response(Some(patience))
        .timeout_per_read(Some(patience))
        .build();
    agent.run(configured).map_err(Refusal::unanswered)
}
