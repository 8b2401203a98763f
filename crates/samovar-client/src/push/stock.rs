//! Uploads paths as a stock Nix client does: HEAD and PUT for the NAR file, then PUT for the
//! narinfo.
//!
//! Files are sent over many connections, the largest NAR first. A narinfo is sent once the cache
//! has the narinfos of all its references.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | connections | 16 | Nix itself opens 25 |
//! | compressed files that wait for a connection | 16 | |
//! | compressed file in memory | 1 MiB each | longer ones are temporary files |

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Cursor, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, anyhow, bail};
use samovar_nix::narinfo::Compression;
use samovar_nix::{Hash, NarHash, PathInfo};
use samovar_store::Store;
use sha2::{Digest as _, Sha256};
use tempfile::{SpooledData, SpooledTempFile};
use ureq::Body;
use ureq::http::Response;

use super::compress::{self, Compressing, Output, SMALL_LEN_MAX, StoreNars};
use super::ledger::{Lack, Ledger, Summary};
use super::narinfo::narinfo;
use crate::cache::INFO_PATH;
use crate::failed::Failed;
use crate::http::{Http, Payload};
use crate::progress::Progress;

const CONNECTION_COUNT: usize = 16;

const MEMORY_LEN_MAX: usize = 1 << 20;

/// The URL, hash and length of a NAR file that the cache has.
#[derive(Debug, Clone)]
struct Sent {
    url: String,
    hash: Hash,
    len: u64,
}

/// A compressed NAR to upload.
struct NarFile {
    nar: usize,
    content: SpooledTempFile,
    sent: Sent,
}

enum Task {
    Nar(NarFile),
    Narinfo(usize, Sent),
}

/// The scope and the reason of a failed task.
enum Failure {
    /// Only this path, and the paths that refer to it, cannot be pushed.
    Path(String),
    /// The whole push ends with this error.
    Push(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Push(error)
    }
}

/// The tasks of the sending threads, and the state from which they are derived.
struct Queue<'a> {
    ledger: Ledger<'a>,
    files: VecDeque<NarFile>,
    /// Whether all NARs have been compressed.
    is_complete: bool,
    sent: HashMap<NarHash, Sent>,
    active_count: usize,
    failure: Option<anyhow::Error>,
}

impl Queue<'_> {
    fn next(&mut self) -> Option<Task> {
        let task = match self.ledger.next() {
            Some(path) => {
                let info = self.ledger.info(path);
                let sent = info.and_then(|info| self.sent.get(&info.nar_hash));
                Task::Narinfo(path, sent?.clone())
            }
            None => Task::Nar(self.files.pop_front()?),
        };
        self.active_count += 1;
        Some(task)
    }

    fn is_over(&self) -> bool {
        self.failure.is_some()
            || (self.is_complete && self.files.is_empty() && self.active_count == 0)
    }

    fn nar_done(&mut self, nar: usize, result: Result<Sent, Failure>) {
        match result {
            Ok(sent) => {
                if let Some(info) = self.ledger.info(nar) {
                    self.sent.insert(info.nar_hash, sent);
                }
                self.ledger.stored(nar);
            }
            Err(Failure::Path(reason)) => self.ledger.nar_failed(nar, &reason),
            Err(Failure::Push(error)) => self.fail(error),
        }
    }

    fn narinfo_done(&mut self, path: usize, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                self.ledger.published(path);
                self.ledger.release(path);
            }
            Err(Failure::Path(reason)) => self.ledger.failed(path, reason),
            Err(Failure::Push(error)) => self.fail(error),
        }
    }

    fn fail(&mut self, error: anyhow::Error) {
        self.failure.get_or_insert(error);
    }
}

/// A push of paths to a cache with the requests of a stock Nix client.
pub(super) struct Stock<'a> {
    pub(super) http: &'a Http,
    pub(super) store: &'a dyn Store,
    pub(super) infos: &'a [PathInfo],
    pub(super) progress: &'a Progress,
}

impl Stock<'_> {
    /// Uploads the paths that the cache lacks. `lacks`: for each path, the files that it lacks.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses more than single paths.
    pub(super) fn push(&self, lacks: &[Lack], settings: Compressing) -> anyhow::Result<Summary> {
        let ledger = Ledger::new(self.infos, lacks);
        let nars = ledger.nars(SMALL_LEN_MAX);
        let shared = Shared {
            queue: Mutex::new(Queue {
                ledger,
                files: VecDeque::new(),
                is_complete: false,
                sent: HashMap::new(),
                active_count: 0,
                failure: None,
            }),
            changed: Condvar::new(),
        };
        std::thread::scope(|scope| {
            for _ in 0..CONNECTION_COUNT {
                scope.spawn(|| self.work(&shared));
            }
            let mut file = FileInProgress::default();
            let source = StoreNars(self.store);
            let made = compress::run(&source, self.infos, &nars, settings, |output| {
                match output {
                    Output::Frame {
                        nar,
                        bytes,
                        is_last,
                        ..
                    } => {
                        file.add(&bytes)?;
                        if is_last {
                            shared.add(std::mem::take(&mut file).finish(nar))?;
                        }
                    }
                    Output::Failed { nar, reason } => {
                        file = FileInProgress::default();
                        let failure = Failure::Path(format!("unreadable: {reason}"));
                        shared.lock().nar_done(nar, Err(failure));
                    }
                }
                Ok(())
            });
            let mut queue = shared.lock();
            queue.is_complete = true;
            if let Err(error) = made {
                queue.fail(error);
            }
            drop(queue);
            shared.changed.notify_all();
        });
        let queue = shared.queue.into_inner();
        let queue = queue.unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = queue.failure {
            return Err(error);
        }
        let mut summary = queue.ledger.into_result(self.store.store_dir());
        summary.sent_len = self.progress.sent_len();
        Ok(summary)
    }

    /// Runs one sending thread: uploads files and narinfos until there are no more tasks.
    fn work(&self, shared: &Shared<'_>) {
        while let Some(task) = shared.next() {
            match task {
                Task::Nar(file) => {
                    let nar = file.nar;
                    let result = self.send_nar(file);
                    shared.lock().nar_done(nar, result);
                }
                Task::Narinfo(path, sent) => {
                    let result = self.send_narinfo(path, &sent);
                    shared.lock().narinfo_done(path, result);
                }
            }
            shared.lock().active_count -= 1;
            shared.changed.notify_all();
        }
    }

    /// Uploads a NAR file, unless the cache already has it.
    fn send_nar(&self, file: NarFile) -> Result<Sent, Failure> {
        let NarFile { nar, content, sent } = file;
        let info = self.infos.get(nar).context("unknown path")?;
        let url = format!("/{}", sent.url);
        if self.http.head(&url)?.status() != 200 {
            let on_disk: File;
            let in_memory: Cursor<Vec<u8>>;
            let payload = match content.into_inner() {
                SpooledData::InMemory(bytes) => {
                    in_memory = bytes;
                    Payload::Bytes(in_memory.get_ref())
                }
                SpooledData::OnDisk(file) => {
                    on_disk = file;
                    Payload::File(&on_disk)
                }
            };
            let response = self.http.put(&url, "application/x-nix-nar", payload)?;
            accepted(self.http, response, &url)?;
            self.progress.add(info.nar_size, sent.len);
        } else {
            self.progress.add(info.nar_size, 0);
        }
        Ok(sent)
    }

    fn send_narinfo(&self, path: usize, sent: &Sent) -> Result<(), Failure> {
        let info = self.infos.get(path).context("unknown path")?;
        let mut narinfo = narinfo(info, &sent.url, Compression::Zstd);
        narinfo.file_hash = Some(sent.hash);
        narinfo.file_size = Some(sent.len);
        let mut text = Vec::new();
        let written = narinfo.write(self.store.store_dir(), &mut text);
        written.map_err(|error| Failure::Path(error.to_string()))?;
        let url = format!("/{}.narinfo", info.path.hash_part());
        let response = self
            .http
            .put(&url, "text/x-nix-narinfo", Payload::Bytes(&text))?;
        accepted(self.http, response, &url)
    }
}

/// A NAR file to which frames are still being added.
struct FileInProgress {
    content: SpooledTempFile,
    hash: Sha256,
    len: u64,
}

impl Default for FileInProgress {
    fn default() -> Self {
        Self {
            content: SpooledTempFile::new(MEMORY_LEN_MAX),
            hash: Sha256::new(),
            len: 0,
        }
    }
}

impl FileInProgress {
    fn add(&mut self, frame: &[u8]) -> anyhow::Result<()> {
        self.hash.update(frame);
        self.len += frame.len() as u64;
        let written = self.content.write_all(frame);
        written.context("cannot write a temporary file: set TMPDIR to another directory")
    }

    fn finish(self, nar: usize) -> NarFile {
        let hash = Hash::sha256(&self.hash.finalize().into());
        let url = format!("nar/{}.nar.zst", hash.nixbase32());
        let sent = Sent {
            url,
            hash,
            len: self.len,
        };
        NarFile {
            nar,
            content: self.content,
            sent,
        }
    }
}

/// State that the threads of a push share.
struct Shared<'a> {
    queue: Mutex<Queue<'a>>,
    changed: Condvar,
}

impl<'a> Shared<'a> {
    fn lock(&self) -> MutexGuard<'_, Queue<'a>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the queue of compressed files is full, then adds this one.
    fn add(&self, file: NarFile) -> anyhow::Result<()> {
        let is_full =
            |queue: &mut Queue<'_>| queue.files.len() >= CONNECTION_COUNT && !queue.is_over();
        let queue = self.changed.wait_while(self.lock(), is_full);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        if queue.failure.is_some() {
            bail!("the push has failed");
        }
        queue.files.push_back(file);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for the next task. Returns `None` after the last one, or if the push failed.
    fn next(&self) -> Option<Task> {
        let mut queue = self.lock();
        loop {
            if queue.failure.is_some() {
                return None;
            }
            if let Some(task) = queue.next() {
                return Some(task);
            }
            if queue.is_over() {
                return None;
            }
            let changed = self.changed.wait(queue);
            queue = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Returns an error unless the response to a PUT reports success.
fn accepted(http: &Http, response: Response<Body>, url: &str) -> Result<(), Failure> {
    match response.status().as_u16() {
        200 | 201 | 204 => Ok(()),
        // These statuses refuse the content of this one file.
        400 | 409 | 413 | 422 => Err(Failure::Path(format!(
            "the cache refused it: {}",
            http.refusal(response)
        ))),
        _ => Err(Failure::Push(
            http.refused(format_args!("PUT {url}"), response),
        )),
    }
}

/// Creates `nix-cache-info` in a cache that has none, as Nix does.
///
/// # Errors
///
/// The server cannot be reached, or does not take uploads.
pub(super) fn create_cache(http: &Http, store: &dyn Store) -> anyhow::Result<()> {
    let text = format!("StoreDir: {}\n", store.store_dir());
    let response = http.put(
        INFO_PATH,
        "text/x-nix-cache-info",
        Payload::Bytes(text.as_bytes()),
    )?;
    match response.status().as_u16() {
        200 | 201 | 204 => Ok(()),
        _ => {
            let (url, refusal) = (http.remote(), http.refusal(response));
            Err(Failed::Refused.because(anyhow!(
                "there is no cache at {url}, and the server refused to create one ({refusal}): \
                 check the URL"
            )))
        }
    }
}
