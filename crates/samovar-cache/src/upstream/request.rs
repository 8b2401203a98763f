//! Requests to one upstream: a narinfo, and the body of a NAR that is resumed after a break.

use std::io::{self, Read};
use std::time::Duration;

use samovar_client::http::{Http, content_length, content_range, read_body};
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{HashPart, StoreDir};
use samovar_upstream::settings::UpstreamSettings;
use samovar_upstream::status::{Verdict, verdict};
use samovar_upstream::trust::{self, NARINFO_LEN_MAX};
use samovar_verify::{Encoding, Unlimited, decoded};

/// Number of attempts to go on with a NAR after a break, without progress.
const ATTEMPT_COUNT_MAX: u32 = 5;

/// Number of bytes after which the attempts are counted anew.
const PROGRESS_LEN: u64 = 1 << 20;

/// Pause before the first attempt to go on. It doubles before each further one.
const PAUSE: Duration = Duration::from_millis(200);

/// Maximum pause, also if the upstream asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What an upstream has said about a path.
#[derive(Debug, Clone)]
pub(super) enum Said<T> {
    Found(T),
    /// 404 or 410, of a bucket also 403.
    Absent,
}

/// Why an upstream has said nothing that counts. Each contains a fragment for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No answer, or one that says that the upstream is in trouble: counts for its circuit.
    Down(String),
    /// An answer that cannot be used for this path.
    Unusable(String),
}

impl Trouble {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Down(text) | Self::Unusable(text) => text,
        }
    }
}

/// Why a transfer cannot start.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// The upstream has lost the NAR.
    Gone,
    /// The upstream is in trouble; a fragment.
    Trouble(String),
    /// The NAR is not the one that the narinfo describes; a fragment.
    Wrong(String),
}

impl Failed {
    /// Returns the reason as a part of a sentence.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Gone => "it has a narinfo, but no longer the NAR",
            Self::Trouble(reason) | Self::Wrong(reason) => reason,
        }
    }
}

type Response = ureq::http::Response<ureq::Body>;

/// Requests the narinfo of a path. `http` has the URL of the upstream and the header fields of the
/// request.
pub(super) fn narinfo(
    http: &Http,
    settings: &UpstreamSettings,
    dir: &StoreDir,
    hash_part: HashPart,
) -> Result<Said<NarInfo>, Trouble> {
    let path = format!("/{hash_part}.narinfo");
    let response = http.get_part(&path, None).map_err(Trouble::Down)?;
    if !is_answer(&response, settings)? {
        return Ok(Said::Absent);
    }
    if response.status() != 200 {
        let status = response.status();
        return Err(Trouble::Unusable(format!(
            "it answered {status} for a narinfo"
        )));
    }
    let encoding = match response.headers().get("Content-Encoding") {
        None => None,
        Some(name) if name == "identity" => None,
        Some(name) => {
            let known = name.to_str().ok().and_then(Encoding::from_name);
            let unknown = || Trouble::Unusable(format!("its narinfo is encoded as {name:?}"));
            Some(known.ok_or_else(unknown)?)
        }
    };
    let text = read_body(response, NARINFO_LEN_MAX as u64);
    let mut text = text.map_err(|error| Trouble::Down(error.to_string()))?;
    if let Some(encoding) = encoding {
        text = decode(&text, encoding).map_err(|error| Trouble::Unusable(error.to_string()))?;
    }
    trust::admit(settings, dir, hash_part, &text)
        .map(Said::Found)
        .map_err(|distrust| Trouble::Unusable(distrust.to_string()))
}

/// Decompresses a narinfo, whose length is limited.
fn decode(text: &[u8], encoding: Encoding) -> io::Result<Vec<u8>> {
    let mut source = text;
    decoded(
        &mut source,
        encoding,
        &mut Unlimited,
        |reader| -> Result<_, samovar_verify::BodyError> {
            let mut text = Vec::new();
            let read = reader
                .take(NARINFO_LEN_MAX as u64 + 1)
                .read_to_end(&mut text);
            read.map_err(samovar_verify::BodyError::Source)?;
            Ok(text)
        },
    )
    .map_err(io::Error::other)
}

/// Returns whether a response may contain the file that was requested; `false`: the upstream lacks
/// it. The error is the trouble that the status states.
fn is_answer(response: &Response, settings: &UpstreamSettings) -> Result<bool, Trouble> {
    let status = response.status();
    match verdict(status.as_u16(), settings.is_bucket) {
        Verdict::Answer => Ok(true),
        Verdict::Absent => Ok(false),
        Verdict::Down => Err(Trouble::Down(format!("it answered {status}"))),
        Verdict::Refused => Err(Trouble::Unusable(format!(
            "it answered {status}: it refuses this server"
        ))),
        Verdict::Unusable => Err(Trouble::Unusable(format!("it answered {status}"))),
    }
}

/// Requests a file that every cache has, to see whether the upstream answers.
pub(super) fn probe(http: &Http, settings: &UpstreamSettings) -> Result<(), Trouble> {
    let response = http
        .get_part("/nix-cache-info", None)
        .map_err(Trouble::Down)?;
    match is_answer(&response, settings) {
        Err(trouble @ Trouble::Down(_)) => Err(trouble),
        _ => Ok(()),
    }
}

/// The file of a NAR at an upstream, read from its beginning. After a break, the rest is requested.
pub(super) struct NarFile {
    http: Http,
    /// Path and query of the URL, below the upstream's URL, with the first slash.
    path: String,
    body: Box<dyn Read + Send>,
    /// Number of bytes that were read.
    at: u64,
    /// Length of the file in bytes; `None` if the upstream does not say.
    len: Option<u64>,
    /// `ETag` or `Last-Modified`, by which the upstream recognises a changed file.
    validator: Option<String>,
    attempts_left: u32,
    /// Number of bytes that were read since the attempts were counted anew.
    progress: u64,
    /// Returns whether nobody needs the file any longer.
    is_abandoned: Box<dyn Fn() -> bool + Send>,
}

impl NarFile {
    /// Requests the file. `Absent`: the upstream has lost it.
    pub(super) fn open(
        http: Http,
        settings: &UpstreamSettings,
        url: &str,
        is_abandoned: Box<dyn Fn() -> bool + Send>,
    ) -> Result<Said<Self>, Trouble> {
        let path = format!("/{url}");
        let response = http.get_part(&path, None).map_err(Trouble::Down)?;
        if !is_answer(&response, settings)? {
            return Ok(Said::Absent);
        }
        let status = response.status();
        if status != 200 {
            return Err(Trouble::Unusable(format!("it answered {status} for a NAR")));
        }
        if let Some(encoding) = response.headers().get("Content-Encoding")
            && encoding != "identity"
        {
            return Err(Trouble::Unusable(format!(
                "its NAR is encoded as {encoding:?}"
            )));
        }
        Ok(Said::Found(Self {
            http,
            path,
            at: 0,
            len: content_length(&response),
            validator: validator(&response),
            body: Box::new(response.into_body().into_reader()),
            attempts_left: ATTEMPT_COUNT_MAX,
            progress: 0,
            is_abandoned,
        }))
    }

    pub(super) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Requests the rest of the file. `error`: why the body has ended early.
    fn resume(&mut self, error: io::Error) -> io::Result<()> {
        let mut error = error;
        while self.attempts_left > 0 && !(self.is_abandoned)() {
            let done = ATTEMPT_COUNT_MAX - self.attempts_left;
            self.attempts_left -= 1;
            let pause = PAUSE.saturating_mul(1 << done).min(PAUSE_MAX);
            // Lengthen the pause by up to a half at random, so that the readers of a restarted
            // upstream do not all return at once.
            std::thread::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0));
            match self.rest() {
                Ok(body) => {
                    self.body = body;
                    return Ok(());
                }
                Err((reason, may_help)) => {
                    error = io::Error::other(reason);
                    if !may_help {
                        break;
                    }
                }
            }
        }
        Err(error)
    }

    /// Requests the rest of the file once. The error says whether another attempt may help.
    fn rest(&self) -> Result<Box<dyn Read + Send>, (String, bool)> {
        let range = format!("bytes={}-", self.at);
        let http = match &self.validator {
            Some(validator) => self.http.with_header("If-Range", validator.clone()),
            None => self.http.clone(),
        };
        let response = http.get_part(&self.path, Some(&range));
        let response = response.map_err(|reason| (reason, true))?;
        let changed = |what: &str| (format!("it sent a NAR in part, and then {what}"), false);
        match response.status().as_u16() {
            206 => {
                let range = content_range(&response);
                if range.is_none_or(|(first, total)| {
                    first != self.at || self.len.is_some_and(|len| len != total)
                }) {
                    return Err(changed("the wrong part of it"));
                }
            }
            200 => {
                // The upstream sends the file from its beginning. If it is the same file, skip the
                // bytes that were already received.
                if self.validator.is_none()
                    || validator(&response) != self.validator
                    || content_length(&response) != self.len
                {
                    return Err(changed("another one"));
                }
                let mut body = response.into_body().into_reader();
                let skipped = io::copy(&mut (&mut body).take(self.at), &mut io::sink());
                return match skipped {
                    Ok(len) if len == self.at => Ok(Box::new(body)),
                    Ok(_) => Err(changed("a shorter one")),
                    Err(error) => Err((error.to_string(), true)),
                };
            }
            408 | 429 | 500.. => {
                return Err((
                    format!("it answered {} for the rest of a NAR", response.status()),
                    true,
                ));
            }
            _ => return Err(changed(&format!("answered {}", response.status()))),
        }
        Ok(Box::new(response.into_body().into_reader()))
    }
}

impl Read for NarFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if (self.is_abandoned)() {
                return Err(io::Error::new(
                    io::ErrorKind::BrokenPipe,
                    "no client reads the NAR",
                ));
            }
            let error = match self.body.read(buffer) {
                Ok(0) if self.len.is_none_or(|len| self.at >= len) => return Ok(0),
                Ok(0) => io::Error::from(io::ErrorKind::UnexpectedEof),
                Ok(count) => {
                    self.at = self.at.saturating_add(count as u64);
                    if self.len.is_some_and(|len| self.at > len) {
                        return Err(io::Error::other("it sent more of a NAR than it had said"));
                    }
                    self.progress = self.progress.saturating_add(count as u64);
                    if self.progress >= PROGRESS_LEN {
                        (self.progress, self.attempts_left) = (0, ATTEMPT_COUNT_MAX);
                    }
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.resume(error)?;
        }
    }
}

/// Returns the length of a NAR's file that a narinfo states, in bytes.
pub(super) fn file_len(narinfo: &NarInfo) -> Option<u64> {
    let of_nar = (narinfo.compression == Compression::None).then_some(narinfo.nar_size);
    narinfo.file_size.or(of_nar)
}

/// Compares the length of the file with the one in the narinfo, and returns it.
pub(super) fn stated_len(narinfo: &NarInfo, len: Option<u64>) -> Result<Option<u64>, Failed> {
    match (file_len(narinfo), len) {
        (Some(stated), Some(len)) if stated != len => Err(Failed::Wrong(format!(
            "its NAR is wrong: the file has {len} bytes, but the narinfo says {stated}"
        ))),
        (stated, len) => Ok(stated.or(len)),
    }
}

/// Returns the field by which a later response of the same file is recognised: a strong `ETag`, or
/// `Last-Modified`.
fn validator(response: &Response) -> Option<String> {
    let text = |name| {
        response
            .headers()
            .get(name)?
            .to_str()
            .ok()
            .map(str::to_owned)
    };
    let tag: Option<String> = text("ETag");
    tag.filter(|tag| !tag.starts_with("W/"))
        .or_else(|| text("Last-Modified"))
}
