//! Measures the round-trip time to a cache.

use std::time::{Duration, Instant};

use anyhow::ensure;
use ureq::http::{Response, Version};
use ureq::{Body, ResponseExt};

use crate::cache::{Cache, INFO_PATH};
use crate::credentials::Sources;
use crate::http::{Http, Patience};
use crate::remote::Remote;

/// Number of measured requests.
pub(super) const REQUEST_COUNT: u32 = 10;

/// A measured round trip.
#[derive(Debug)]
pub(super) struct RoundTrip {
    /// URL of the cache, without a login.
    pub(super) url: String,
    /// Time of the fastest of [`REQUEST_COUNT`] requests, in seconds.
    pub(super) seconds: f64,
}

/// Measures the round-trip time to the cache at `url`, by requests for its `nix-cache-info` over
/// one connection. The result is the minimum: other traffic and other work of the server can only
/// lengthen a request.
///
/// # Errors
///
/// The URL or the credentials are invalid, the server cannot be reached, is no cache, denies
/// access, redirects, or closes the connection after each response.
pub(super) fn measure(url: &str, sources: &Sources) -> anyhow::Result<RoundTrip> {
    let mut remote = Remote::of_cache(url)?;
    sources.authorize(&mut remote)?;
    let http = Http::new(remote, Patience::SETUP)?;
    // This request opens the connection.
    request(&http)?;
    let http = http.once();
    let mut least = Duration::MAX;
    for _ in 0..REQUEST_COUNT {
        let started = Instant::now();
        request(&http)?;
        least = least.min(started.elapsed());
    }
    Ok(RoundTrip {
        url: http.remote().url().to_owned(),
        seconds: least.as_secs_f64(),
    })
}

/// Requests the `nix-cache-info`. The connection must stay open: otherwise, the next request would
/// measure the opening of a connection, too.
fn request(http: &Http) -> anyhow::Result<()> {
    let response = http.get(INFO_PATH)?;
    ensure!(
        *response.get_uri() == *http.url(INFO_PATH),
        "{} redirects requests to another URL, so the round-trip time cannot be measured: use that \
         URL",
        http.remote().url()
    );
    let is_kept = is_kept(&response);
    let cache = Cache::with_info(http.clone(), response)?;
    ensure!(
        is_kept,
        "{} closes the connection after each response, so the round-trip time cannot be measured: \
         give it with --rtt-ms",
        cache.url()
    );
    Ok(())
}

/// Returns whether the server keeps the connection open after this response.
fn is_kept(response: &Response<Body>) -> bool {
    let field = response.headers().get("Connection");
    let closes = field.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
    response.version() == Version::HTTP_11 && !closes
}
