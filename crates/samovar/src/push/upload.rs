//! Uploads paths as a stock Nix client does: HEAD and PUT of the NAR file, then PUT of the narinfo.
//!
//! Files are sent over many connections, the largest NAR first. A narinfo is sent once those of all
//! references are in the cache.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | connections | 16 | Nix itself opens 25 |
//! | compressed file in memory | 1 MiB each | longer ones are temporary files |
//! | memory of a compression | 8 MiB each | a frame, before and after compression |

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Cursor, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, bail};
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{Hash, PathInfo};
use samovar_store::Store;
use sha2::{Digest as _, Sha256};
use tempfile::{SpooledData, SpooledTempFile};
use ureq::Body;
use ureq::http::Response;
use zstd::bulk::Compressor;

use super::ledger::{Ledger, Summary};
use super::progress::Progress;
use crate::http::{Http, Payload, refusal};

const CONNECTION_COUNT: usize = 16;

/// Length of the content of one zstd frame, in bytes.
const FRAME_LEN: usize = 4 << 20;

const MEMORY_LEN_MAX: usize = 1 << 20;

/// How to compress NARs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compressing {
    /// Number of NARs that are compressed at once.
    pub(super) worker_count: usize,
    /// Level of zstd.
    pub(super) level: i32,
}

/// A NAR file that the cache has.
struct Sent {
    url: String,
    hash: Hash,
    len: u64,
}

enum Task {
    Nar(usize),
    Narinfo(usize, Sent),
}

/// Why a task ended without success.
enum Failure {
    /// Only this path, and those that refer to it, cannot be pushed.
    Path(String),
    /// The push ends.
    Push(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Push(error)
    }
}

/// Tasks, and what they wait for.
struct Queue<'a> {
    ledger: Ledger<'a>,
    nars: VecDeque<usize>,
    narinfos: Vec<(usize, Sent)>,
    /// For each path: the NAR file, while references are missing.
    sent: Vec<Option<Sent>>,
    /// For each path: number of references that are not published yet.
    missing_counts: Vec<usize>,
    referrers: Vec<Vec<usize>>,
    active_count: usize,
    failure: Option<anyhow::Error>,
}

impl<'a> Queue<'a> {
    fn new(infos: &'a [PathInfo], is_missing: &[bool]) -> Self {
        let ledger = Ledger::new(infos, is_missing);
        let is_waiting = |index: usize| is_missing.get(index) == Some(&true);
        let mut referrers = vec![Vec::new(); infos.len()];
        let mut missing_counts = vec![0; infos.len()];
        for (index, (info, missing_count)) in infos.iter().zip(&mut missing_counts).enumerate() {
            let references = info.references.iter();
            let references = references.filter_map(|path| ledger.find(path.hash_part()));
            for reference in references.filter(|other| *other != index && is_waiting(*other)) {
                *missing_count += 1;
                referrers[reference].push(index);
            }
        }
        let mut nars: Vec<usize> = (0..infos.len())
            .filter(|index| is_waiting(*index))
            .collect();
        let size = |index: &usize| infos.get(*index).map_or(0, |info| info.nar_size);
        nars.sort_by_key(|index| std::cmp::Reverse(size(index)));
        Self {
            ledger,
            nars: nars.into(),
            narinfos: Vec::new(),
            sent: infos.iter().map(|_| None).collect(),
            missing_counts,
            referrers,
            active_count: 0,
            failure: None,
        }
    }

    fn next(&mut self) -> Option<Task> {
        let narinfo = self.narinfos.pop();
        let task = narinfo.map(|(path, sent)| Task::Narinfo(path, sent));
        let task = task.or_else(|| self.nars.pop_front().map(Task::Nar))?;
        self.active_count += 1;
        Some(task)
    }

    fn is_over(&self) -> bool {
        self.failure.is_some()
            || (self.nars.is_empty() && self.narinfos.is_empty() && self.active_count == 0)
    }

    fn nar_done(&mut self, path: usize, result: Result<Sent, Failure>) {
        match result {
            Ok(sent) if self.missing_counts.get(path) == Some(&0) => {
                self.narinfos.push((path, sent));
            }
            Ok(sent) => {
                if let Some(slot) = self.sent.get_mut(path) {
                    *slot = Some(sent);
                }
            }
            Err(failure) => self.failed(path, failure),
        }
    }

    fn narinfo_done(&mut self, path: usize, result: Result<(), Failure>) {
        if let Err(failure) = result {
            return self.failed(path, failure);
        }
        self.ledger.published(path);
        for referrer in self
            .referrers
            .get_mut(path)
            .map(std::mem::take)
            .unwrap_or_default()
        {
            let Some(count) = self.missing_counts.get_mut(referrer) else {
                continue;
            };
            *count -= 1;
            if *count == 0
                && let Some(sent) = self.sent.get_mut(referrer).and_then(Option::take)
            {
                self.narinfos.push((referrer, sent));
            }
        }
    }

    fn failed(&mut self, path: usize, failure: Failure) {
        match failure {
            Failure::Path(reason) => self.ledger.failed(path, reason),
            Failure::Push(error) => drop(self.failure.get_or_insert(error)),
        }
    }
}

/// A push of paths to a cache.
pub(super) struct Upload<'a> {
    pub(super) http: &'a Http,
    pub(super) store: &'a dyn Store,
    pub(super) infos: &'a [PathInfo],
    pub(super) progress: &'a Progress,
}

/// A compressor, and a buffer for a piece of a NAR.
type Tool = (Compressor<'static>, Vec<u8>);

impl Upload<'_> {
    /// Sends the paths that the cache lacks.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses more than single paths.
    pub(super) fn push(
        &self,
        is_missing: &[bool],
        settings: Compressing,
    ) -> anyhow::Result<Summary> {
        let (tool_sender, tools) = channel();
        for _ in 0..settings.worker_count.max(1) {
            tool_sender
                .send((Compressor::new(settings.level)?, Vec::new()))
                .ok();
        }
        let tools = Mutex::new(tools);
        let queue = Mutex::new(Queue::new(self.infos, is_missing));
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            for _ in 0..CONNECTION_COUNT {
                let tool_sender = tool_sender.clone();
                let (queue, changed, tools) = (&queue, &changed, &tools);
                scope.spawn(move || {
                    while let Some(task) = next(queue, changed) {
                        match task {
                            Task::Nar(path) => {
                                let give_back = |tool| drop(tool_sender.send(tool));
                                let result = self.send_nar(path, tools, &give_back);
                                lock(queue).nar_done(path, result);
                            }
                            Task::Narinfo(path, sent) => {
                                let result = self.send_narinfo(path, sent);
                                lock(queue).narinfo_done(path, result);
                            }
                        }
                        lock(queue).active_count -= 1;
                        changed.notify_all();
                    }
                });
            }
        });
        let queue = queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = queue.failure {
            return Err(error);
        }
        let mut summary = queue.ledger.into_result(self.store.store_dir());
        summary.sent_len = self.progress.sent_len();
        Ok(summary)
    }

    /// Compresses a NAR and uploads the file, unless the cache has it.
    fn send_nar(
        &self,
        path: usize,
        tools: &Mutex<Receiver<Tool>>,
        give_back: &dyn Fn(Tool),
    ) -> Result<Sent, Failure> {
        let info = self.infos.get(path).context("unknown path")?;
        let mut tool = lock(tools).recv().context("no compressor is left")?;
        let compressed = self.compress(info, &mut tool);
        give_back(tool);
        let (file, sent) = compressed?;
        let url = format!("/{}", sent.url);
        if self.http.head(&url)?.status() != 200 {
            let on_disk: File;
            let in_memory: Cursor<Vec<u8>>;
            let payload = match file.into_inner() {
                SpooledData::InMemory(bytes) => {
                    in_memory = bytes;
                    Payload::Bytes(in_memory.get_ref())
                }
                SpooledData::OnDisk(file) => {
                    on_disk = file;
                    Payload::File(&on_disk)
                }
            };
            accepted(self.http.put(&url, "application/x-nix-nar", payload)?, &url)?;
            self.progress.add(info.nar_size, sent.len);
        } else {
            self.progress.add(info.nar_size, 0);
        }
        Ok(sent)
    }

    /// Compresses a NAR into a file, and checks the NAR hash: the cache may not check it.
    fn compress(
        &self,
        info: &PathInfo,
        (compressor, buffer): &mut Tool,
    ) -> Result<(SpooledTempFile, Sent), Failure> {
        let unreadable =
            |reason: &dyn ToString| Failure::Path(format!("unreadable: {}", reason.to_string()));
        let tree = self
            .store
            .tree(&info.path)
            .map_err(|error| unreadable(&error))?;
        let mut reader = tree.nar().map_err(|error| unreadable(&error))?;
        let mut file = SpooledTempFile::new(MEMORY_LEN_MAX);
        let (mut nar_hash, mut file_hash) = (Sha256::new(), Sha256::new());
        let mut len = 0;
        let mut left = info.nar_size;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(FRAME_LEN).min(FRAME_LEN);
            buffer.resize(wanted, 0);
            let mut filled = 0;
            while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match reader.fill(rest).map_err(|error| unreadable(&error))? {
                    0 => return Err(unreadable(&"its NAR is shorter than registered")),
                    more => filled += more,
                }
            }
            left -= wanted as u64;
            nar_hash.update(&buffer);
            let frame = compressor.compress(buffer).map_err(anyhow::Error::from)?;
            file_hash.update(&frame);
            len += frame.len() as u64;
            file.write_all(&frame)
                .context("cannot write a temporary file: set TMPDIR to another directory")?;
        }
        let is_longer = reader.fill(&mut [0]).map_err(|error| unreadable(&error))? > 0;
        if is_longer || nar_hash.finalize().as_slice() != info.nar_hash.as_bytes() {
            return Err(unreadable(
                &"its files differ from its registration: run nix-store --verify --check-contents",
            ));
        }
        let hash = Hash::sha256(&file_hash.finalize().into());
        let url = format!("nar/{}.nar.zst", hash.nixbase32());
        Ok((file, Sent { url, hash, len }))
    }

    fn send_narinfo(&self, path: usize, sent: Sent) -> Result<(), Failure> {
        let info = self.infos.get(path).context("unknown path")?;
        let narinfo = NarInfo {
            store_path: info.path.clone(),
            url: sent.url,
            compression: Compression::Zstd,
            file_hash: Some(sent.hash),
            file_size: Some(sent.len),
            nar_hash: info.nar_hash,
            nar_size: info.nar_size,
            references: info.references.clone(),
            deriver: info.deriver.clone(),
            system: None,
            signatures: info.signatures.clone(),
            content_address: info.content_address,
        };
        let mut text = Vec::new();
        let written = narinfo.write(self.store.store_dir(), &mut text);
        written.map_err(|error| Failure::Path(error.to_string()))?;
        let url = format!("/{}.narinfo", info.path.hash_part());
        let response = self
            .http
            .put(&url, "text/x-nix-narinfo", Payload::Bytes(&text))?;
        accepted(response, &url)
    }
}

/// Checks the response to a PUT.
fn accepted(response: Response<Body>, url: &str) -> Result<(), Failure> {
    match response.status().as_u16() {
        200 | 201 | 204 => Ok(()),
        // About the content of this file.
        400 | 409 | 413 | 422 => Err(Failure::Path(format!(
            "the cache refused it: {}",
            refusal(response)
        ))),
        _ => Err(Failure::Push(anyhow::anyhow!(
            "the cache refused PUT {url}: {}",
            refusal(response)
        ))),
    }
}

/// Creates `nix-cache-info` in a cache that has none, as Nix does.
///
/// # Errors
///
/// The server cannot be reached, or does not take uploads.
pub(super) fn create_cache(http: &Http, store: &dyn Store) -> anyhow::Result<()> {
    let text = format!("StoreDir: {}\n", store.store_dir());
    let url = "/nix-cache-info";
    let response = http.put(
        url,
        "text/x-nix-cache-info",
        Payload::Bytes(text.as_bytes()),
    )?;
    match accepted(response, url) {
        Ok(()) => Ok(()),
        Err(Failure::Push(error)) => Err(error),
        Err(Failure::Path(reason)) => bail!("{url}: {reason}"),
    }
}

/// Waits for the next task; `None` at the end.
fn next<'a>(queue: &Mutex<Queue<'a>>, changed: &Condvar) -> Option<Task> {
    let mut queue = lock(queue);
    loop {
        if queue.is_over() {
            return None;
        }
        if let Some(task) = queue.next() {
            return Some(task);
        }
        queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
