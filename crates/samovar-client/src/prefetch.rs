//! Makes a cache keep paths of its upstreams.
//!
//! A Samovar server with a storage keeps each path whose whole NAR it has received from an
//! upstream. For each path, the client sends three requests:
//!
//! | request for the NAR | response |
//! | --- | --- |
//! | HEAD | has no field `Samovar-Kept` if the server has the NAR itself |
//! | GET for the last byte | begins after the server has received and verified the whole NAR |
//! | HEAD, repeated while the response has the field | has no field once the path is kept |

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use samovar_nix::narinfo::NarInfo;
use ureq::Body;
use ureq::http::Response;

use crate::cache::Cache;
use crate::http::{AT_ONCE_MAX, Http, content_length, printable, read_body};
use crate::pace::Pace;
use crate::progress::Progress;

/// Field of a response to HEAD for a NAR that only an upstream has.
const KEPT: &str = "Samovar-Kept";

/// Minimum speed at which a server must receive each NAR from its upstream, in bytes per second. A
/// line of 3 Mbit/s is fast enough for 25 NARs at once.
const RATE_MIN: u64 = 16 << 10;

/// Maximum wait for the last byte of an empty NAR.
const WAIT_MIN: Duration = Duration::from_secs(60);

/// Time that a server has to keep an empty NAR after it was received.
const KEEP_TIME: Duration = Duration::from_secs(30);

/// Speed at which a server must write what was received to its disk, in bytes per second.
const DISK_RATE_MIN: u64 = 1 << 20;

/// First pause between two requests that ask whether a path is kept. Each further pause is twice as
/// long.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum pause between two requests that ask whether a path is kept.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Maximum length of the text of an error response, in bytes.
const TEXT_LEN_MAX: u64 = 64 << 10;

/// What has become of a path.
#[derive(Debug)]
pub enum End {
    /// The server has received it from an upstream and kept it.
    Kept,
    /// The server had it before.
    Present,
    /// The server would pass it on without keeping it, for this reason. It was not requested.
    Unkept(&'static str),
    /// It could not be kept, for this reason.
    Failed(String),
}

/// Where a NAR is.
enum Place {
    Here,
    AtUpstream,
    Other(End),
}

/// Makes the cache keep these paths. Returns what has become of each, in their order.
///
/// # Errors
///
/// The cache cannot be reached.
pub fn prefetch(cache: &Cache, narinfos: &[NarInfo]) -> anyhow::Result<Vec<End>> {
    let len = narinfos.iter().map(|narinfo| narinfo.nar_size).sum();
    let progress = Progress::start("kept", len);
    // Otherwise a proxy, or the server, could answer from a cache, and the storage would not get
    // the NAR.
    let no_cache = "no-cache".to_owned();
    let http = cache.http().with_header("Cache-Control", no_cache);
    let next = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let work = || {
        let mut ends = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(narinfo) = narinfos.get(index) else {
                break;
            };
            let end = keep(&http, narinfo);
            let end = end.inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
            let sent_len = match end {
                End::Kept => file_len(narinfo),
                _ => 0,
            };
            progress.add(narinfo.nar_size, sent_len);
            ends.push((index, end));
        }
        Ok(ends)
    };
    let ends = thread::scope(|scope| {
        let count = AT_ONCE_MAX.min(narinfos.len());
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        let ends = workers.into_iter().map(|worker| {
            let ended = worker.join();
            ended.unwrap_or_else(|_| Err(anyhow!("a thread has panicked")))
        });
        ends.collect::<anyhow::Result<Vec<Vec<(usize, End)>>>>()
    });
    progress.end();
    let mut ends: Vec<(usize, End)> = ends?.into_iter().flatten().collect();
    ends.sort_unstable_by_key(|(index, _)| *index);
    Ok(ends.into_iter().map(|(_, end)| end).collect())
}

/// Returns the length of a NAR's file in bytes. If the narinfo does not state it, returns the
/// length of the NAR.
pub fn file_len(narinfo: &NarInfo) -> u64 {
    narinfo.file_size.unwrap_or(narinfo.nar_size)
}

fn keep(http: &Http, narinfo: &NarInfo) -> anyhow::Result<End> {
    match place(http, narinfo)? {
        Place::Here => return Ok(End::Present),
        Place::Other(end) => return Ok(end),
        Place::AtUpstream => {}
    }
    if let Some(reason) = fetch(http, narinfo)? {
        return Ok(End::Failed(reason));
    }
    // The server has sent the response before the NAR is on the disk. Wait until the path is
    // published.
    let received_at = Instant::now();
    let time = KEEP_TIME + Duration::from_secs(file_len(narinfo) / DISK_RATE_MIN);
    let mut pause = PAUSE;
    loop {
        match place(http, narinfo)? {
            Place::Here => return Ok(End::Kept),
            Place::Other(end) => return Ok(end),
            Place::AtUpstream if received_at.elapsed() > time => {
                let reason = "the server has received it and not kept it: see the server's log";
                return Ok(End::Failed(reason.to_owned()));
            }
            Place::AtUpstream => thread::sleep(pause),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Asks where the NAR of a path is.
fn place(http: &Http, narinfo: &NarInfo) -> anyhow::Result<Place> {
    let response = http.head(&target(narinfo))?;
    if response.status() != 200 {
        let status = response.status();
        let end = End::Failed(format!("its NAR is not available: {status}"));
        return Ok(Place::Other(end));
    }
    let word = response.headers().get(KEPT).map(|word| word.as_bytes());
    Ok(match word {
        None => Place::Here,
        Some(b"not-yet") => Place::AtUpstream,
        Some(b"off") => Place::Other(End::Unkept(
            "the server keeps no paths of this upstream: it needs the option storage, and keep \
             must not be false",
        )),
        Some(b"full") => Place::Other(End::Unkept(
            "the server has no room: keep-size of this upstream is used up, or its disk is \
             almost full",
        )),
        Some(_) => Place::Other(End::Unkept(
            "the storage of the server has failed: see the server's log",
        )),
    })
}

/// Lets the server receive the NAR of a path. Returns the reason if it cannot.
fn fetch(http: &Http, narinfo: &NarInfo) -> anyhow::Result<Option<String>> {
    let wait = WAIT_MIN + Duration::from_secs(file_len(narinfo) / RATE_MIN);
    let pace = Pace {
        silence: wait,
        window: wait,
        ..Pace::DOWNLOAD
    };
    let http = http.with_pace(pace);
    let response = http
        .with_header("Range", "bytes=-1".to_owned())
        .get(&target(narinfo))?;
    // If the length of the file is unknown, the server sends the whole file with status 200.
    if !matches!(response.status().as_u16(), 200 | 206) {
        return Ok(Some(refusal(&http, response)));
    }
    let len = content_length(&response);
    let received = io::copy(&mut response.into_body().into_reader(), &mut io::sink());
    Ok(match received {
        Ok(received) if len.is_none_or(|len| len == received) => None,
        Ok(_) => Some("the server has aborted its NAR: see the server's log".to_owned()),
        Err(error) => Some(format!("the server has aborted its NAR: {error}")),
    })
}

/// Returns the path of the NAR's URL.
fn target(narinfo: &NarInfo) -> String {
    format!("/{}", narinfo.url)
}

/// Describes an error response in one line. A Samovar states the faults of upstreams in the lines
/// after the first one.
fn refusal(http: &Http, response: Response<Body>) -> String {
    if response.body().mime_type() != Some("text/plain") {
        return http.refusal(response);
    }
    let status = response.status();
    let text = read_body(response, TEXT_LEN_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    printable(&format!("{status}: {}", lines.join(" ")))
}
