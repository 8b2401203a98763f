//! Sends HTTP requests, and repeats those that fail temporarily.

mod limited;

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{anyhow, bail};
use ureq::http::Response;
use ureq::tls::ClientCert;
use ureq::typestate::{WithBody, WithoutBody};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, RequestBuilder, SendBody};

pub use crate::agent::AT_ONCE_MAX;
use crate::agent::{OtherHost, builder};
use crate::credential::TOKEN_VARIABLE;
use crate::failed::Failed;
use crate::fault::{Fault, is_closed, is_timeout};
use crate::netrc::netrc_of_nix;
use crate::notice::notice;
use crate::pace::{Pace, Paced};
pub use crate::patience::Patience;
use crate::progress::Progress;
use crate::remote::Remote;
use crate::silence::{Silence, Waiting};

/// Pause before the second attempt. It doubles before each further attempt.
const PAUSE: Duration = Duration::from_millis(250);

/// Body length, in bytes, from which a request asks for permission before it sends the body
/// (`Expect: 100-continue`).
const EXPECT_LEN_MIN: u64 = 1 << 20;

/// What to do about a server that cannot be reached at the moment.
pub const CHECK_SERVER: &str = "check the URL, the network and the server";

/// Maximum number of characters of a server's text in a message.
const SHOWN_LEN_MAX: usize = 500;

/// Maximum number of bytes read from the body of an error response.
const REFUSAL_LEN_MAX: u64 = 64 << 10;

/// The body of a PUT or POST request.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// The whole file, from its first byte.
    File(&'a File),
}

impl<'a> Payload<'a> {
    fn len(self) -> std::io::Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
            Self::File(file) => Ok(file.metadata()?.len()),
        }
    }

    fn open(self) -> std::io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Bytes(bytes) => Box::new(bytes),
            Self::File(mut file) => {
                file.rewind()?;
                Box::new(file)
            }
        })
    }
}

/// An HTTP client for the URLs of one server.
#[derive(Debug, Clone)]
pub struct Http {
    agent: Agent,
    /// The agent that repeats a request if the server has closed the keep-alive connection. `None`:
    /// such a request is not repeated.
    unpooled: Option<Agent>,
    remote: Remote,
    patience: Patience,
    /// Header fields of each request, besides the login.
    headers: Vec<(&'static str, String)>,
    /// Whether the progress of request bodies is shown.
    shows_progress: bool,
    /// Number of requests sent, including retries.
    request_count: Arc<AtomicU64>,
    outage: Arc<Outage>,
}

/// Whether the server responds, for notices.
#[derive(Debug, Default)]
struct Outage {
    /// Whether a request has got a response other than a temporary error.
    is_reached: AtomicBool,
    /// Whether a notice was printed since the last response.
    is_noted: AtomicBool,
    silence: Arc<Silence>,
}

impl Http {
    /// Returns a client that sends no certificate.
    ///
    /// # Errors
    ///
    /// The trusted certificates of this machine cannot be read.
    pub fn new(remote: Remote, patience: Patience) -> anyhow::Result<Self> {
        Self::with(remote, patience, None, None)
    }

    /// Returns a client that sends `certificate` if the server asks for one. With an `origin`, the
    /// client connects to the host and port of this URL, and neither to the host of `remote` nor to
    /// a proxy.
    ///
    /// # Errors
    ///
    /// The trusted certificates of this machine cannot be read, or `origin` is not a URL.
    pub fn with(
        remote: Remote,
        patience: Patience,
        certificate: Option<ClientCert>,
        origin: Option<&str>,
    ) -> anyhow::Result<Self> {
        let builder = builder(&remote, patience, certificate)?;
        let agent = match origin {
            None => builder.build().into(),
            Some(origin) => {
                let resolver = OtherHost::new(origin.parse()?);
                let config = builder.proxy(None).build();
                Agent::with_parts(config, DefaultConnector::default(), resolver)
            }
        };
        Ok(Self::of(agent, remote, patience))
    }

    fn of(agent: Agent, remote: Remote, patience: Patience) -> Self {
        Self {
            agent,
            unpooled: None,
            remote,
            patience,
            headers: Vec::new(),
            shows_progress: false,
            request_count: Arc::default(),
            outage: Arc::default(),
        }
    }

    /// Returns a client for another URL of the same server. It shares the login, the connections
    /// and the request count.
    pub fn at(&self, url: String) -> Self {
        Self {
            remote: self.remote.at(url),
            ..self.clone()
        }
    }

    /// Returns a client for the same URL that sends no login.
    pub fn without_login(&self) -> Self {
        Self {
            remote: self.remote.without_login(),
            ..self.clone()
        }
    }

    /// Returns a client for the same URL that sends each request once, and prints no notice.
    pub fn once(&self) -> Self {
        Self {
            patience: Patience {
                attempt_count_max: 1,
                notice: None,
                ..self.patience
            },
            ..self.clone()
        }
    }

    /// Returns a client for the same URL that sends a header field with each request.
    pub fn with_header(&self, name: &'static str, value: String) -> Self {
        let mut other = self.clone();
        other.headers.push((name, value));
        other
    }

    /// Returns a client for the same URL with another minimum speed of downloads.
    pub fn with_pace(&self, pace: Pace) -> Self {
        Self {
            patience: self.patience.with_pace(pace),
            ..self.clone()
        }
    }

    /// Returns a client for the same URL that shows the progress of request bodies, or does not.
    pub fn showing_progress(&self, shows_progress: bool) -> Self {
        Self {
            shows_progress,
            ..self.clone()
        }
    }

    /// Returns the number of requests sent so far, including retries.
    pub fn request_count(&self) -> u64 {
        self.request_count.load(Ordering::Relaxed)
    }

    /// Returns the server's URL and login.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Returns the minimum speed of downloads.
    pub fn pace(&self) -> Pace {
        self.patience.pace
    }

    /// Returns the URL of `path` on the server, without a login.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.remote)
    }

    /// Sends GET for `path`, which begins with a slash.
    ///
    /// # Errors
    ///
    /// [`Failed::Unavailable`] if there is no response. Responses of any status are no errors.
    pub fn get(&self, path: &str) -> anyhow::Result<Response<Body>> {
        self.without_body(|url| self.agent.get(url), path)
    }

    /// Sends GET for a part of a file, once, or twice if the server closes the connection without a
    /// response. `range`: the value of the `Range` header; `None`: the
    /// whole file.
    ///
    /// # Errors
    ///
    /// The error says in a fragment why there is no response.
    pub fn get_part(&self, path: &str, range: Option<&str>) -> Result<Response<Body>, String> {
        self.once_or_twice(|agent| {
            let request = agent.get(self.url(path));
            let request = match range {
                Some(range) => request.header("Range", range),
                None => request,
            };
            self.sent(request, |request| request.call())
        })
    }

    /// Sends POST, as [`get_part`](Self::get_part) sends GET. The request must change nothing, so
    /// that it may be sent twice.
    ///
    /// # Errors
    ///
    /// The error says in a fragment why there is no response.
    pub fn post_once(&self, path: &str, body: &[u8]) -> Result<Response<Body>, String> {
        self.once_or_twice(|agent| {
            let request = agent.post(self.url(path));
            let request = request.header("Content-Type", "text/plain");
            self.sent(request, |request| request.send(body))
        })
    }

    /// Sends a request, and sends it again on a new connection if the server has closed the
    /// keep-alive connection.
    fn once_or_twice(
        &self,
        send: impl Fn(&Agent) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, String> {
        let send = |agent: &Agent| {
            self.request_count.fetch_add(1, Ordering::Relaxed);
            send(agent)
        };
        // A server may close a keep-alive connection at any time, also while the next request is
        // being sent (RFC 9112, 9.3.1).
        let sent = send(&self.agent).or_else(|error| match &self.unpooled {
            Some(agent) if is_closed(&error) => send(agent),
            _ => Err(error),
        });
        sent.map_err(|error| Fault::of(&error, &self.remote).reason)
    }

    /// Sends HEAD for `path`, which begins with a slash.
    ///
    /// # Errors
    ///
    /// [`Failed::Unavailable`] if there is no response. Responses of any status are no errors.
    pub fn head(&self, path: &str) -> anyhow::Result<Response<Body>> {
        self.without_body(|url| self.agent.head(url), path)
    }

    /// Sends DELETE for `path`, which begins with a slash.
    ///
    /// # Errors
    ///
    /// [`Failed::Unavailable`] if there is no response. Responses of any status are no errors.
    pub fn delete(&self, path: &str) -> anyhow::Result<Response<Body>> {
        self.without_body(|url| self.agent.delete(url), path)
    }

    /// Sends POST for `path`, which begins with a slash.
    ///
    /// # Errors
    ///
    /// [`Failed::Unavailable`] if there is no response. Responses of any status are no errors.
    pub fn post(&self, path: &str, body: &[u8]) -> anyhow::Result<Response<Body>> {
        let request = |url: &str| self.agent.post(url).header("Content-Type", "text/plain");
        self.with_body(request, path, Payload::Bytes(body))
    }

    /// Sends PUT for `path`, which begins with a slash.
    ///
    /// # Errors
    ///
    /// [`Failed::Unavailable`] if there is no response. Responses of any status are no errors.
    pub fn put(
        &self,
        path: &str,
        content_type: &str,
        body: Payload<'_>,
    ) -> anyhow::Result<Response<Body>> {
        let request = |url: &str| self.agent.put(url).header("Content-Type", content_type);
        self.with_body(request, path, body)
    }

    fn without_body(
        &self,
        request: impl Fn(&str) -> RequestBuilder<WithoutBody>,
        path: &str,
    ) -> anyhow::Result<Response<Body>> {
        let url = self.url(path);
        let silence_count_max = self.patience.silence_count_max;
        self.retry(&url, silence_count_max, || {
            let _waiting = self.waiting();
            Ok(self.sent(request(&url), |request| request.call()))
        })
    }

    /// Sends a request, once. The response must keep the pace of downloads.
    fn sent<B>(
        &self,
        request: RequestBuilder<B>,
        send: impl FnOnce(RequestBuilder<B>) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ureq::Error> {
        let pace = self.patience.pace;
        let config = self.authorized(request).config();
        let config = config.timeout_recv_response(Some(pace.silence));
        let request = config.timeout_per_read(Some(pace.silence)).build();
        Ok(send(request)?.map(|body| {
            let paced = Body::builder();
            let paced = match body.mime_type() {
                Some(mime_type) => paced.mime_type(mime_type),
                None => paced,
            };
            paced.reader(Paced::new(body.into_reader(), pace, self.remote.clone()))
        }))
    }

    fn with_body(
        &self,
        request: impl Fn(&str) -> RequestBuilder<WithBody>,
        path: &str,
        body: Payload<'_>,
    ) -> anyhow::Result<Response<Body>> {
        let url = self.url(path);
        self.retry(&url, u32::MAX, || {
            let len = body.len()?;
            let mut request = self.authorized(request(&url)).header("Content-Length", len);
            if len >= EXPECT_LEN_MIN {
                request = request.header("Expect", "100-continue");
            }
            let progress = match self.shows_progress {
                true => Progress::start("sent", len),
                false => Progress::hidden(),
            };
            let waiting = self.waiting();
            let mut body = progress.counted(body.open()?);
            let sent = match &waiting {
                Some(waiting) => request.send(SendBody::from_reader(&mut waiting.sending(body))),
                None => request.send(SendBody::from_reader(&mut body)),
            };
            progress.end();
            Ok(sent)
        })
    }

    /// Sends a request, and repeats it after temporary failures. Returns the last response.
    /// `silence_count_max`: maximum number of timeouts.
    fn retry(
        &self,
        url: &str,
        silence_count_max: u32,
        mut ask: impl FnMut() -> std::io::Result<Result<Response<Body>, ureq::Error>>,
    ) -> anyhow::Result<Response<Body>> {
        let mut pause = PAUSE;
        let mut silence_count = 0;
        for attempt in 1.. {
            let is_last = attempt >= self.patience.attempt_count_max;
            self.request_count.fetch_add(1, Ordering::Relaxed);
            let wanted = match ask()? {
                Ok(response) if !is_passing(response.status().as_u16()) => {
                    self.outage.is_reached.store(true, Ordering::Relaxed);
                    self.outage.is_noted.store(false, Ordering::Relaxed);
                    self.outage.silence.answered(self.remote.origin());
                    return Ok(response);
                }
                Ok(response) if is_last => return Ok(response),
                Ok(response) => {
                    // A server that was reached before may be busy for a short time.
                    if !self.outage.is_reached.load(Ordering::Relaxed) {
                        self.note_outage(&format!("{url} answered {}", response.status()));
                    }
                    retry_after(&response)
                }
                Err(error) => {
                    silence_count += u32::from(is_timeout(&error));
                    let is_last = is_last || silence_count >= silence_count_max;
                    let fault = Fault::of(&error, &self.remote);
                    let (server, reason) = (self.remote.origin(), &fault.reason);
                    if !fault.is_temporary || is_last {
                        let error = match fault.is_temporary {
                            false => anyhow!("{server} cannot be reached: {reason}"),
                            true => {
                                anyhow!("{server} cannot be reached ({reason}): {CHECK_SERVER}")
                            }
                        };
                        return Err(Failed::Unavailable.because(error));
                    }
                    self.note_outage(&format!("{server} cannot be reached ({reason})"));
                    None
                }
            };
            // Lengthen the pause by up to a quarter at random, so that the clients of a restarted
            // server do not all return at once.
            let pause_max = self.patience.pause_max;
            let wanted = wanted.unwrap_or(pause).min(pause_max);
            std::thread::sleep(wanted.mul_f64(1.0 + fastrand::f64() / 4.0));
            pause = (pause * 2).min(pause_max);
        }
        bail!("{url} was not requested")
    }

    /// Describes an error response in one line: its status, the first line of its body, and for 401
    /// and 403 the source of the login.
    pub fn refusal(&self, response: Response<Body>) -> String {
        let status = response.status();
        let login = match (status.as_u16(), self.remote.login_source()) {
            (401, None) => {
                return format!(
                    "{status}: it requires a token: give one with --token-file FILE, in \
                     {TOKEN_VARIABLE}, or as the password for {:?} in {:?}",
                    self.remote.host(),
                    netrc_of_nix()
                );
            }
            (401 | 403, Some(source)) => format!(" with {source}"),
            _ => String::new(),
        };
        match first_line(response) {
            Some(line) => format!("{status}{login}: {line}"),
            None if status == 413 => format!(
                "{status}{login}: the answer is not Samovar's: a proxy limits the size of \
                 requests, such as nginx by client_max_body_size"
            ),
            None => format!("{status}{login}"),
        }
    }

    /// Returns the error of a command whose request got this error response. `what`: the refused
    /// operation.
    pub fn refused(&self, what: impl Display, response: Response<Body>) -> anyhow::Error {
        let status = response.status();
        let failed = match status.is_server_error() || is_passing(status.as_u16()) {
            true => Failed::Unavailable,
            false => Failed::Refused,
        };
        let refusal = self.refusal(response);
        failed.because(anyhow!("the cache refused {what}: {refusal}"))
    }

    /// Marks a request as waiting, so that the user is told if the server does not answer.
    fn waiting(&self) -> Option<Waiting> {
        self.patience.notice?;
        Some(self.outage.silence.begin(self.remote.origin()))
    }

    /// Prints a notice about the first failure since the last response.
    fn note_outage(&self, failure: &str) {
        if let Some(time) = self.patience.notice
            && !self.outage.is_noted.swap(true, Ordering::Relaxed)
        {
            notice(&format!("{failure}; trying for {time}"));
        }
    }

    fn authorized<B>(&self, mut request: RequestBuilder<B>) -> RequestBuilder<B> {
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        match self.remote.present_authorization() {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }
}

/// Returns the first line of an error response, if it is plain text.
pub fn first_line(response: Response<Body>) -> Option<String> {
    let is_text = response
        .headers()
        .get("Content-Type")
        .is_none_or(|value| value.as_bytes().starts_with(b"text/plain"));
    let body = read_body(response, REFUSAL_LEN_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let line = text.lines().next().map(str::trim);
    let line = line.filter(|line| is_text && !line.is_empty());
    line.map(printable)
}

/// Shortens a text of a server, and replaces control characters, which could change the display of
/// a terminal.
pub fn printable(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN_LEN_MAX).map(printable).collect()
}

/// Reads a body of at most `len_max` bytes.
///
/// # Errors
///
/// The body cannot be read, or is longer.
pub fn read_body(response: Response<Body>, len_max: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = response.into_body().into_reader();
    let len = reader
        .take(len_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if len as u64 > len_max {
        bail!("the answer is longer than {len_max} bytes");
    }
    Ok(bytes)
}

/// Returns whether an error with this status is temporary, so that a retry may succeed.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// Returns the length of the body that the head of a response states.
pub fn content_length(response: &Response<Body>) -> Option<u64> {
    let value = response.headers().get("Content-Length")?;
    value.to_str().ok()?.parse().ok()
}

/// Returns the first position and the length of the file in a `Content-Range` header.
pub fn content_range(response: &Response<Body>) -> Option<(u64, u64)> {
    let value = response.headers().get("Content-Range")?.to_str().ok()?;
    let (positions, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = positions.split_once('-')?;
    Some((first.parse().ok()?, total.parse().ok()?))
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("Retry-After")?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}
