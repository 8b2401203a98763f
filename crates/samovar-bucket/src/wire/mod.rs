//! Requests to the engine: signed, sent, answered, and sent again.
//!
//! [`Wire::send`] is the one way to the engine. It sends a [`Request`] up to [`ATTEMPTS`] times and
//! returns the [`Answer`] if its status is 2xx; each other status is a [`Fault`] (`refusal.rs`).

mod agent;
mod answer;
mod key;
mod refusal;
mod request;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusty_s3::UrlStyle;
use rusty_s3::signing::sign;
use ureq::Agent;
use url::Url;

use crate::clock::unix_now_s;
use crate::credentials::{Credentials, Login};
use crate::error::{BucketError, Fault};
use crate::limit::{Limit, Permit};
use crate::settings::{Settings, SettingsError, Style, Timing};
use crate::statistics::{Counters, Statistics, add};

use agent::agent;
pub(crate) use answer::Answer;
use refusal::Advice;
pub(crate) use refusal::Refusal;
pub(crate) use request::{Body, Piece, Request};

/// Maximum number of attempts.
const ATTEMPTS: u32 = 6;

/// Longest pause before the second attempt; it doubles with each further one.
const PAUSE_MAX_FIRST: Duration = Duration::from_millis(100);

/// How long a signature is valid. Amazon accepts clocks that differ by as much.
const SIGNED_FOR: Duration = Duration::from_secs(900);

/// The way to one bucket.
#[derive(Debug)]
pub(crate) struct Wire {
    bucket: rusty_s3::Bucket,
    prefix: String,
    agent: Agent,
    credentials: Credentials,
    limit: Arc<Limit>,
    timing: Timing,
    counters: Counters,
    /// The engine's clock less ours, in seconds.
    clock_offset_s: AtomicI64,
    /// The bucket and its host, for messages.
    place: String,
}

impl Wire {
    pub(crate) fn new(settings: &Settings) -> Result<Self, BucketError> {
        let place = settings.bucket.clone();
        let refused = |fault| BucketError::new("open", place.clone(), fault);
        let endpoint = settings
            .endpoint_url()
            .map_err(|error| refused(Fault::Settings(error)))?;
        let style = match settings.style {
            Style::Path => UrlStyle::Path,
            Style::VirtualHosted => UrlStyle::VirtualHost,
        };
        let (name, region) = (settings.bucket.clone(), settings.region.clone());
        let bucket = rusty_s3::Bucket::new(endpoint, style, name, region);
        let wrong = || SettingsError::Endpoint(settings.endpoint.clone().unwrap_or_default());
        let bucket = bucket
            .ok()
            .ok_or_else(|| refused(Fault::Settings(wrong())))?;
        let agent = agent(settings.ca_file.as_deref(), &settings.timing).map_err(refused)?;
        let host = bucket.base_url().host_str().unwrap_or_default();
        let port = bucket.base_url().port();
        let port = port.map_or(String::new(), |port| format!(":{port}"));
        Ok(Self {
            place: format!("{} at {host}{port}", settings.bucket),
            credentials: Credentials::new(settings, agent.clone()),
            prefix: settings.prefix.clone(),
            limit: Arc::new(Limit::new()),
            timing: settings.timing,
            counters: Counters::default(),
            clock_offset_s: AtomicI64::new(0),
            bucket,
            agent,
        })
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.counters.statistics(self.limit.numbers())
    }

    pub(crate) fn bucket(&self) -> &rusty_s3::Bucket {
        &self.bucket
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the engine's clock less ours, in seconds; zero until a signature was refused.
    pub(crate) fn clock_offset_s(&self) -> i64 {
        self.clock_offset_s.load(Ordering::Relaxed)
    }

    /// Returns the whole key of an object.
    pub(crate) fn whole(&self, key: &str) -> Result<String, BucketError> {
        let whole = key::absolute(&self.prefix, key);
        whole.map_err(|fault| self.error(format!("{key:?}"), fault))
    }

    pub(crate) fn error(&self, request: impl Into<String>, fault: Fault) -> BucketError {
        BucketError::new(request, self.place.clone(), fault)
    }

    /// Sends a request until it succeeds, is refused for good, or the attempts are used up.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Answer, BucketError> {
        self.send_within(request, ATTEMPTS)
    }

    /// As [`Self::send`], with the number of attempts.
    pub(crate) fn send_within(
        &self,
        request: &Request<'_>,
        attempts: u32,
    ) -> Result<Answer, BucketError> {
        let begun = Instant::now();
        let came = self.attempts(request, attempts);
        self.counters
            .count(request.operation(), &came, begun.elapsed());
        came
    }

    fn attempts(&self, request: &Request<'_>, attempts: u32) -> Result<Answer, BucketError> {
        let failed = |fault| self.error(request.to_string(), fault);
        let until = Instant::now() + self.timing.patience;
        let mut corrected = false;
        let mut attempt = 1;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let permit = self.limit.acquire(left).ok_or(Fault::Busy);
            let permit = permit.map_err(failed)?;
            let login = self.credentials.current();
            let login = login.map_err(|error| failed(Fault::Credentials(error)))?;
            let refusal = match self.attempt(request, &login, permit) {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            match refusal.advice {
                Advice::GiveUp => return Err(failed(refusal.fault)),
                Advice::Correct { .. } if corrected => return Err(failed(refusal.fault)),
                Advice::Correct { offset_s } => {
                    corrected = true;
                    let has_new = self.credentials.renew_after(&login);
                    if !self.correct_clock(offset_s) && !has_new {
                        return Err(failed(refusal.fault));
                    }
                }
                Advice::Again => {
                    let pause = pause(attempt);
                    if attempt >= attempts || Instant::now() + pause >= until {
                        return Err(failed(refusal.fault));
                    }
                    std::thread::sleep(pause);
                    attempt += 1;
                }
            }
            add(&self.counters.retries, 1);
        }
    }

    /// Sends a request once.
    fn attempt(
        &self,
        request: &Request<'_>,
        login: &Login,
        permit: Permit,
    ) -> Result<Answer, Refusal> {
        let clock_offset_s = self.clock_offset_s();
        let url = self.signed_url(request, login, SIGNED_FOR);
        let response = request::send(&self.agent, request, &url, &self.timing)?;
        if response.status().is_success() {
            permit.succeeded();
            add(&self.counters.sent_len, request.body.len());
            return Ok(Answer::new(response, permit));
        }
        let refusal = Refusal::read(response, request, clock_offset_s);
        if refusal.is_slow_down {
            add(&self.counters.slow_downs, 1);
            permit.refused();
        }
        Err(refusal)
    }

    /// Returns the URL of a request with its signature.
    pub(crate) fn signed_url(&self, request: &Request<'_>, login: &Login, valid: Duration) -> Url {
        let mut url = match &request.key {
            Some(key) => self.bucket.object_url(key),
            None => self.bucket.base_url().clone(),
        };
        let query = request.query.iter().map(|(name, value)| (*name, &**value));
        let Login::Keys(keys) = login else {
            if query.len() > 0 {
                url.query_pairs_mut().extend_pairs(query);
            }
            return url;
        };
        let time = Timestamp::from_second(unix_now_s() + self.clock_offset_s());
        sign(
            // The clock is wrong by more than ten thousand years otherwise.
            &time.unwrap_or(Timestamp::UNIX_EPOCH),
            request.method,
            url,
            keys.key(),
            keys.secret(),
            keys.token(),
            self.bucket.region(),
            valid.as_secs(),
            query,
            request.signed.iter().map(|(name, value)| (*name, &**value)),
        )
    }

    /// Returns the credentials that are in use now.
    pub(crate) fn login(&self) -> Result<Arc<Login>, Fault> {
        self.credentials.current().map_err(Fault::Credentials)
    }

    /// Uses the engine's clock from now on. Returns whether that makes a difference.
    fn correct_clock(&self, offset_s: Option<i64>) -> bool {
        let Some(offset_s) = offset_s else {
            return false;
        };
        self.clock_offset_s.store(offset_s, Ordering::Relaxed);
        true
    }
}

/// Returns a random pause after the attempt with this number.
fn pause(attempt: u32) -> Duration {
    let longest = PAUSE_MAX_FIRST * 2_u32.saturating_pow(attempt - 1).min(64);
    longest.mul_f64(fastrand::f64())
}
