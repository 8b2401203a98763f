//! Pushes paths by the push protocol (`docs/push-protocol.md`).
//!
//! # Theory of operation
//!
//! ```text
//! compress::run → Assembler → senders → publisher
//!                                ↓          ↑
//!                             joiners ──────┘
//! ```
//!
//! The [`Assembler`] collects small NARs in packs of up to 16 MiB, and the frames of a large NAR in
//! parts of up to 32 MiB. It hands each full buffer to the next free sender. After the last part of
//! a NAR was sent, a joiner requests that the server join the parts. The publisher publishes paths
//! as soon as more of them are ready than one request may have, and the rest at the end.
//!
//! # Failures
//!
//! If a NAR cannot be read, or if the server refuses it, its path fails, and so do the paths that
//! refer to this path. All other paths are pushed. Any other failure ends the push.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | buffers for packs and parts | 4 of 32 MiB | one is filled while three are sent |

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use samovar_nix::narinfo::Compression;
use samovar_nix::{PathInfo, StoreDir};
use samovar_protocol::names::PushId;
use samovar_protocol::push::{
    JoinQuery, OpenLine, Opened, PREFIX, PackOutcome, PartLine, PartQuery, Saved, Target,
};
use sha2::{Digest as _, Sha256};
use ureq::Body;
use ureq::http::Response;

use super::assembler::Assembler;
use super::compress::{self, Compressing, Nars, SMALL_LEN_MAX};
use super::ledger::{Ledger, Summary};
use super::publisher::{Event, Publisher};
use super::resume::Unfinished;
use crate::failed::Failed;
use crate::http::{Http, Payload, read_body};
use crate::progress::Progress;

/// Length of a buffer for a pack or a part, in bytes, unless the server allows less.
pub(super) const BUFFER_LEN: usize = 32 << 20;

/// Number of packs and parts that are sent at once.
const SENDER_COUNT: usize = 3;

/// Number of NARs that the server joins at once.
const JOINER_COUNT: usize = 2;

/// Maximum length of a response, in bytes. The response to `open` has 38 bytes for each path, or
/// about 400 for one that is refused.
const ANSWER_LEN_MAX: u64 = 64 << 20;

/// Maximum number of attempts if the body of the response is truncated.
const ANSWER_COUNT_MAX: u32 = 3;

/// Assumed rate at which a server verifies a joined NAR, in bytes per second: a tenth of the usual
/// rate.
const JOIN_RATE: u64 = 20 << 20;

/// Maximum time for a join, in addition to the time that `JOIN_RATE` allows for the NAR.
const JOIN_TIME: Duration = Duration::from_secs(300);

/// Media type of packs and parts.
const BINARY: &str = "application/octet-stream";

/// A push that the server has opened.
#[derive(Debug)]
pub(super) struct Session<'a> {
    /// Client for the URLs of the protocol.
    pub(super) http: &'a Http,
    pub(super) opened: Opened,
    pub(super) unfinished: Unfinished,
}

/// The result of a request to open a push.
#[derive(Debug)]
pub(super) enum Opening {
    /// With what need not be pushed because upstreams of the server have it.
    Opened(Opened, Saved),
    /// The server does not support the push protocol.
    Unsupported,
    /// The client sent no token, or its token gives no right to push.
    NotPermitted(anyhow::Error),
}

/// Returns a client for the URLs of the protocol. `below`: client for the URL to which stock Nix
/// clients push.
pub(super) fn client(below: &Http) -> Http {
    below.at(format!("{}/{PREFIX}", below.remote()))
}

/// Opens a push: sends the list of its paths to the server.
///
/// # Errors
///
/// The server cannot be reached, refuses the token, or sends an invalid response.
pub(super) fn open(http: &Http, infos: &[PathInfo]) -> anyhow::Result<Opening> {
    open_as("the push", http, infos)
}

/// Opens a push, as [`open`] does. `what`: what a server refuses if it refuses the push.
///
/// # Errors
///
/// As [`open`].
pub(super) fn open_as(what: &str, http: &Http, infos: &[PathInfo]) -> anyhow::Result<Opening> {
    let url = Target::Open.to_string();
    let send = |with_names| {
        let body = open_body(infos, with_names);
        answer(|| http.post(&url, body.as_bytes()))
    };
    let (mut response, mut text) = send(true)?;
    if response.status() == 400 && !infos.is_empty() {
        (response, text) = send(false)?;
    }
    let Some(text) = text else {
        let error = |response| http.refused(what, response);
        return match (response.status().as_u16(), http.remote().authorization()) {
            (404 | 405 | 501, _) => Ok(Opening::Unsupported),
            (403, _) | (401, None) => Ok(Opening::NotPermitted(error(response))),
            _ => Err(error(response)),
        };
    };
    let asked = infos.iter().map(|info| info.path.hash_part());
    let opened = Opened::parse(&text, asked)
        .with_context(|| format!("invalid answer from {}", http.url(&url)))?;
    let saved = response.headers().get(Saved::FIELD);
    let saved = saved.and_then(|field| Saved::parse(field.to_str().ok()?));
    let saved = saved.unwrap_or_default();
    Ok(opened.map_or(Opening::Unsupported, |opened| {
        Opening::Opened(opened, saved)
    }))
}

/// Returns the body of a request to open a push of these paths. `with_names`: whether to state the
/// names of the paths; the first servers with the protocol refuse names.
fn open_body(infos: &[PathInfo], with_names: bool) -> String {
    let lines = infos.iter().map(|info| OpenLine {
        hash_part: info.path.hash_part(),
        nar_hash: info.nar_hash,
        nar_size: info.nar_size,
        path: with_names.then(|| info.path.clone()),
    });
    lines.map(|line| line.text()).collect()
}

/// Ends the push on the server. Ignores errors, because the push expires anyway. An earlier push
/// whose parts were continued is not ended: it may have parts of other NARs.
pub(super) fn end(http: &Http, opened: &Opened) {
    http.delete(&Target::Push(opened.push_id).to_string()).ok();
}

/// Sends a request. Returns the response, and its text if the status is 200 or 409. Repeats the
/// request if the text is truncated.
pub(super) fn answer(
    send: impl Fn() -> anyhow::Result<Response<Body>>,
) -> anyhow::Result<(Response<Body>, Option<String>)> {
    let mut attempt = 1;
    loop {
        let response = send()?;
        if !matches!(response.status().as_u16(), 200 | 409) {
            return Ok((response, None));
        }
        let (head, body) = response.into_parts();
        let empty = Response::from_parts(head.clone(), Body::builder().data(""));
        match read_body(Response::from_parts(head, body), ANSWER_LEN_MAX) {
            Ok(bytes) => return Ok((empty, Some(String::from_utf8_lossy(&bytes).into_owned()))),
            Err(error) if attempt >= ANSWER_COUNT_MAX => return Err(error),
            Err(_) => attempt += 1,
        }
    }
}

/// A full buffer to send. NARs are given by their indices.
pub(super) enum Upload {
    Pack { body: Vec<u8>, nars: Vec<usize> },
    Part(Part),
}

/// A part of a NAR file.
pub(super) struct Part {
    pub(super) nar: usize,
    /// Number of the part within its NAR, from 1.
    pub(super) number: u32,
    pub(super) bytes: Vec<u8>,
    /// NAR bytes, before compression, that this part adds to the progress.
    pub(super) content_len: u64,
}

/// The upload state of a NAR that is sent in parts.
#[derive(Debug)]
struct Parts {
    /// Push id under which the parts are sent.
    push_id: PushId,
    /// SHA-256 of the parts that the server had at the start, by part number.
    known: HashMap<u32, [u8; 32]>,
    done_count: u32,
    /// Number of all parts of the NAR. `None` until the last part is complete.
    count: Option<u32>,
}

/// State that the threads of a push share.
pub(super) struct Shared<'a> {
    pub(super) session: &'a Session<'a>,
    infos: &'a [PathInfo],
    progress: &'a Progress,
    parts: Mutex<HashMap<usize, Parts>>,
    failure: Mutex<Option<anyhow::Error>>,
    is_failed: AtomicBool,
}

impl Session<'_> {
    /// Sends the NARs that the server lacks, and publishes the paths.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses more than single paths.
    pub(super) fn push(
        &self,
        nars: &dyn Nars,
        dir: &StoreDir,
        infos: &[PathInfo],
        settings: Compressing,
        progress: &Progress,
    ) -> anyhow::Result<Summary> {
        let ledger = Ledger::of_answers(infos, &self.opened.answers);
        let missing = ledger.nars(SMALL_LEN_MAX);
        let shared = Shared {
            session: self,
            infos,
            progress,
            parts: Mutex::default(),
            failure: Mutex::default(),
            is_failed: AtomicBool::new(false),
        };
        shared.find_unfinished(&missing)?;
        let (upload_sender, uploads) = sync_channel(0);
        let (join_sender, joins) = channel();
        let (event_sender, events) = channel();
        let (uploads, joins) = (Mutex::new(uploads), Mutex::new(joins));
        let (buffer_sender, buffers) = channel();
        for _ in 0..=SENDER_COUNT {
            buffer_sender.send(Vec::new()).ok();
        }
        let published = std::thread::scope(|scope| {
            let shared = &shared;
            let publisher = scope.spawn(move || shared.publish(ledger, dir, &events));
            for _ in 0..JOINER_COUNT {
                let (joins, events) = (&joins, event_sender.clone());
                scope.spawn(move || shared.join_all(joins, &events));
            }
            for _ in 0..SENDER_COUNT {
                let (joins, events) = (join_sender.clone(), event_sender.clone());
                let (uploads, buffers) = (&uploads, buffer_sender.clone());
                scope.spawn(move || shared.send_all(uploads, &joins, &events, &buffers));
            }
            drop(join_sender);
            let mut assembler = Assembler::new(shared, upload_sender, event_sender, buffers);
            let done = compress::run(nars, infos, &missing, settings, |one| assembler.take(one));
            shared.note(done.and_then(|()| assembler.flush_pack()));
            drop(assembler);
            publisher.join()
        });
        if let Some(error) = lock(&shared.failure).take() {
            return Err(error);
        }
        let Ok(Some(ledger)) = published else {
            bail!("the push ended without a result");
        };
        let mut summary = ledger.into_result(dir);
        summary.sent_len = progress.sent_len();
        end(self.http, &self.opened);
        Ok(summary)
    }
}

impl Shared<'_> {
    /// Records the error of a failed result, unless an earlier one is recorded.
    fn note(&self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            lock(&self.failure).get_or_insert(error);
            self.is_failed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Relaxed)
    }

    pub(super) fn info(&self, nar: usize) -> anyhow::Result<&PathInfo> {
        self.infos.get(nar).context("unknown path")
    }

    /// Records the number of parts of a NAR, after its last part was made.
    pub(super) fn set_part_count(&self, nar: usize, count: u32) -> anyhow::Result<()> {
        let mut all = lock(&self.parts);
        all.get_mut(&nar).context("unknown NAR")?.count = Some(count);
        Ok(())
    }

    /// Requests, for each large NAR, the list of the parts that an interrupted push has sent.
    fn find_unfinished(&self, nars: &[usize]) -> anyhow::Result<()> {
        for &nar in nars {
            let info = self.info(nar)?;
            // Large NARs come first in `nars`, so all NARs from here on are small.
            if info.nar_size <= SMALL_LEN_MAX {
                break;
            }
            let mut parts = Parts {
                push_id: self.session.opened.push_id,
                known: HashMap::new(),
                done_count: 0,
                count: None,
            };
            if let Some(push_id) = self.session.unfinished.push_id(&info.nar_hash) {
                let url = Target::Parts(push_id, info.nar_hash).to_string();
                let (response, text) = answer(|| self.session.http.get(&url))?;
                if let (200, Some(text)) = (response.status().as_u16(), text) {
                    let listed = PartLine::parse(&text).with_context(|| {
                        format!("invalid answer from {}", self.session.http.url(&url))
                    })?;
                    let known = listed.into_iter();
                    parts.known = known.map(|part| (part.number, part.sha256)).collect();
                    parts.push_id = push_id;
                }
            }
            lock(&self.parts).insert(nar, parts);
        }
        Ok(())
    }

    fn send_all(
        &self,
        uploads: &Mutex<Receiver<Upload>>,
        joins: &Sender<usize>,
        events: &Sender<Event>,
        buffers: &Sender<Vec<u8>>,
    ) {
        loop {
            let upload = lock(uploads).recv();
            let Ok(upload) = upload else { return };
            // After a failure, drop the remaining uploads.
            if !self.is_failed() {
                self.note(match &upload {
                    Upload::Pack { body, nars } => self.send_pack(body, nars, events),
                    Upload::Part(part) => self.send_part(part, joins),
                });
            }
            let (Upload::Pack {
                body: mut buffer, ..
            }
            | Upload::Part(Part {
                bytes: mut buffer, ..
            })) = upload;
            buffer.clear();
            // Ignore errors: the assembler may have ended.
            buffers.send(buffer).ok();
        }
    }

    fn send_pack(&self, body: &[u8], nars: &[usize], events: &Sender<Event>) -> anyhow::Result<()> {
        let url = Target::Pack(self.session.opened.push_id).to_string();
        let (response, text) =
            answer(|| self.session.http.put(&url, BINARY, Payload::Bytes(body)))?;
        let (200, Some(text)) = (response.status().as_u16(), text) else {
            return Err(self.session.http.refused("a pack", response));
        };
        let infos = nars.iter().map(|&nar| self.info(nar));
        let infos = infos.collect::<anyhow::Result<Vec<_>>>()?;
        let hashes: Vec<_> = infos.iter().map(|info| info.nar_hash).collect();
        let outcomes = PackOutcome::parse(&text, &hashes)
            .with_context(|| format!("invalid answer from {}", self.session.http.url(&url)))?;
        let nar_len = infos.iter().map(|info| info.nar_size).sum();
        self.progress.add(nar_len, body.len() as u64);
        for (&nar, outcome) in nars.iter().zip(outcomes) {
            events.send(match outcome.refusal {
                None => Event::Stored(nar),
                Some(reason) => Event::Failed(nar, format!("the cache refused it: {reason}")),
            })?;
        }
        Ok(())
    }

    /// Sends a part, unless the server already has it. After the last part of a NAR, queues the NAR
    /// for joining.
    fn send_part(&self, part: &Part, joins: &Sender<usize>) -> anyhow::Result<()> {
        let sha256: [u8; 32] = Sha256::digest(&part.bytes).into();
        let (push_id, known) = {
            let all = lock(&self.parts);
            let parts = all.get(&part.nar).context("unknown NAR")?;
            (parts.push_id, parts.known.get(&part.number).copied())
        };
        let mut sent_len = 0;
        if known != Some(sha256) {
            self.put_part(part, push_id, &sha256)?;
            sent_len = part.bytes.len() as u64;
        }
        self.progress.add(part.content_len, sent_len);
        let mut all = lock(&self.parts);
        let parts = all.get_mut(&part.nar).context("unknown NAR")?;
        parts.done_count = parts.done_count.saturating_add(1);
        if parts.count == Some(parts.done_count) {
            joins.send(part.nar)?;
        }
        Ok(())
    }

    fn put_part(&self, part: &Part, push_id: PushId, sha256: &[u8; 32]) -> anyhow::Result<()> {
        let info = self.info(part.nar)?;
        let target = Target::Part(push_id, info.nar_hash, part.number);
        let url = format!("{target}?{}", PartQuery { sha256: *sha256 });
        // Record the push id before the part is sent: the part may arrive even if this process is
        // killed.
        self.session.unfinished.remember(&info.nar_hash, push_id);
        let bytes = Payload::Bytes(&part.bytes);
        let response = self.session.http.put(&url, BINARY, bytes)?;
        if response.status() != 200 {
            self.session.unfinished.forget(&info.nar_hash);
            let what = format!("part {} of {}", part.number, info.path.base_name());
            return Err(self.session.http.refused(what, response));
        }
        Ok(())
    }

    fn join_all(&self, joins: &Mutex<Receiver<usize>>, events: &Sender<Event>) {
        loop {
            let nar = lock(joins).recv();
            let Ok(nar) = nar else { return };
            if !self.is_failed() {
                self.note(self.join(nar, events));
            }
        }
    }

    /// Requests that the server join and verify the parts of a NAR. That may take longer than the
    /// server lets a request wait: it then answers 503, and the request is repeated.
    fn join(&self, nar: usize, events: &Sender<Event>) -> anyhow::Result<()> {
        let info = self.info(nar)?;
        let url = {
            let all = lock(&self.parts);
            let parts = all.get(&nar).context("unknown NAR")?;
            let query = JoinQuery {
                part_count: parts.count.context("unknown number of parts")?,
                compression: Compression::Zstd,
            };
            format!("{}?{query}", Target::Join(parts.push_id, info.nar_hash))
        };
        let time = JOIN_TIME + Duration::from_secs(info.nar_size / JOIN_RATE);
        let started_at = Instant::now();
        let response = loop {
            let response = self.session.http.post(&url, b"")?;
            if response.status() != 503 || started_at.elapsed() > time {
                break response;
            }
        };
        match response.status().as_u16() {
            200 => events.send(Event::Stored(nar))?,
            422 => {
                let refusal = self.session.http.refusal(response);
                let reason = format!("the cache refused it: {refusal}");
                events.send(Event::Failed(nar, reason))?;
            }
            409 => {
                let (name, refusal) = (info.path.base_name(), self.session.http.refusal(response));
                return Err(Failed::Unavailable.because(anyhow!(
                    "the server has lost parts of {name} ({refusal}): push again, which sends only \
                     what is missing"
                )));
            }
            _ => {
                let what = format!("to join the parts of {}", info.path.base_name());
                return Err(self.session.http.refused(what, response));
            }
        }
        self.session.unfinished.forget(&info.nar_hash);
        Ok(())
    }

    /// Publishes paths until all senders and joiners have ended. Returns the ledger, or `None`
    /// after a failure.
    fn publish<'l>(
        &self,
        ledger: Ledger<'l>,
        dir: &StoreDir,
        events: &Receiver<Event>,
    ) -> Option<Ledger<'l>> {
        let session = self.session;
        let url = Target::Publish(session.opened.push_id).to_string();
        let mut publisher = Publisher::new(session.http, url, dir, ledger);
        for event in events {
            if !self.is_failed() {
                self.note(publisher.take(event));
            }
        }
        if self.is_failed() {
            return None;
        }
        match publisher.finish() {
            Ok(ledger) => Some(ledger),
            Err(error) => {
                self.note(Err(error));
                None
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
