//! [`InBucket`]: objects in a bucket, with a local directory for files that are being received and
//! for copies.
//!
//! A new object is a temporary file until it is complete. Then it is sent to the bucket, and the
//! file becomes the copy in the disk cache. A request waits for a bucket that is away as long as
//! for the database.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use samovar_bucket::{Bucket, BucketError, Stat};

use super::arrival::{Arrival, Failure, PIECE_LEN, Reader, Wanted};
use super::content_type::options;
use super::disk_cache::{DiskCache, DiskCacheCounts};
use super::pack::{self, InPack};
use super::{Directory, NarFile, NarObject, ObjectState, Placed};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::layout::TMP;
use crate::location::BucketLocation;
use crate::regular::open_regular;
use crate::waiting::{LendSlot, PATIENCE, within};

/// Pause before a request to a bucket that is away is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// Time in which the client of the bucket repeats a request. After it, this module decides whether
/// the caller still waits.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);

/// Number of objects of a group that are sent at the same time.
const THREAD_COUNT: usize = 16;

/// Time for which a URL for direct downloads is valid. Clients resume with the same URL.
const URL_TIME: Duration = Duration::from_secs(3600);

/// Called with the row number of a NAR whose object has wrong bytes.
type OnWrong = Arc<dyn Fn(i64) + Send + Sync>;

/// Objects in a bucket.
pub struct InBucket {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) location: BucketLocation,
    /// The local directory.
    local: Directory,
    cache: Arc<DiskCache>,
    /// The objects that are being received.
    arrivals: Mutex<Vec<(String, Weak<Arrival>)>>,
    lend_slot: OnceLock<LendSlot>,
    on_wrong: OnceLock<OnWrong>,
    /// Keys of objects that have had wrong bytes once.
    suspects: Arc<Mutex<HashSet<String>>>,
    redirect_count: AtomicU64,
}

impl std::fmt::Debug for InBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InBucket").field(&self.bucket).finish()
    }
}

/// Converts the error of a request. The text names the request and the bucket.
fn failed(error: &BucketError) -> StorageError {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    StorageError::Bucket(text)
}

impl InBucket {
    /// Opens a bucket. Sends no request.
    pub(super) fn open(root: &Path, location: &BucketLocation) -> Result<Self, StorageError> {
        let mut settings = location.settings.clone();
        settings.timing.patience = settings.timing.patience.min(CLIENT_PATIENCE);
        let bucket = Bucket::open(&settings).map_err(|error| failed(&error))?;
        let local = Directory::open_local(root)?;
        let cache = DiskCache::open(root, location.cache_len_max);
        let cache = cache.map_err(|error| StorageError::file("cannot open", "cache", error))?;
        Ok(Self {
            bucket: Arc::new(bucket),
            location: location.clone(),
            local,
            cache: Arc::new(cache),
            arrivals: Mutex::default(),
            lend_slot: OnceLock::new(),
            on_wrong: OnceLock::new(),
            suspects: Arc::default(),
            redirect_count: AtomicU64::new(0),
        })
    }

    pub(super) fn local(&self) -> &Directory {
        &self.local
    }

    /// Returns the keys of the copies in the disk cache whose bytes are not those of their objects.
    /// `removes`: removes these copies.
    pub(crate) fn wrong_copies(&self, removes: bool) -> Result<Vec<String>, StorageError> {
        let wrong = self.cache.wrong(removes);
        wrong.map_err(|error| StorageError::file("cannot check", "cache", error))
    }

    /// Sets what notices if the disk of the local directory hangs.
    pub(super) fn set_disk(&mut self, disk: &Arc<Disk>) {
        self.local.set_disk(disk);
    }

    /// Sets the function that lends the worker slot of a thread that waits for the bucket. It can
    /// be set once.
    pub(crate) fn set_lend_slot(&self, lend_slot: LendSlot) {
        self.lend_slot.set(lend_slot).ok();
    }

    /// Sets the function that is called with the row number of a NAR whose object has had wrong
    /// bytes twice. It can be set once.
    pub(crate) fn set_on_wrong(&self, on_wrong: impl Fn(i64) + Send + Sync + 'static) {
        self.on_wrong.set(Arc::new(on_wrong)).ok();
    }

    /// Returns the bucket.
    #[must_use]
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Returns the state of the disk cache.
    #[must_use]
    pub fn cache_counts(&self) -> DiskCacheCounts {
        self.cache.counts()
    }

    /// Returns the number of downloads that were redirected to the bucket since the start.
    #[must_use]
    pub fn redirect_count(&self) -> u64 {
        self.redirect_count.load(Ordering::Relaxed)
    }

    /// Returns whether small files share objects.
    pub(super) fn packs(&self) -> bool {
        self.location.packs
    }

    /// Returns whether clients may download files from the bucket directly.
    pub(crate) fn redirects(&self) -> bool {
        self.location.redirect_over.is_some()
    }

    /// Sends a request again while it may succeed, as long as the caller's request may wait.
    fn patiently<T>(
        &self,
        mut request: impl FnMut() -> Result<T, BucketError>,
    ) -> Result<T, StorageError> {
        self.lending(|| {
            within(PATIENCE, |patience| {
                let started = Instant::now();
                loop {
                    match request() {
                        Err(error)
                            if error.is_transient() && started.elapsed() + PAUSE < patience =>
                        {
                            std::thread::sleep(PAUSE);
                        }
                        outcome => return outcome.map_err(|error| failed(&error)),
                    }
                }
            })
        })
    }

    /// Calls a function that waits for the bucket while the worker slot of the thread is lent.
    fn lending<T>(&self, wait: impl FnOnce() -> T) -> T {
        let Some(lend_slot) = self.lend_slot.get() else {
            return wait();
        };
        let (mut wait, mut outcome) = (Some(wait), None);
        lend_slot(&mut || {
            if let Some(wait) = wait.take() {
                outcome = Some(wait());
            }
        });
        match (outcome, wait) {
            (Some(outcome), _) => outcome,
            (None, Some(wait)) => wait(),
            (None, None) => unreachable!("the function was called, so there is an outcome"),
        }
    }

    /// Writes an object.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.patiently(|| self.bucket.put(key, bytes, &options(key, None)))
    }

    /// Writes objects, several at the same time. None is written before all that are much earlier.
    pub(super) fn put_all(&self, objects: &[(String, Vec<u8>)]) -> Result<(), StorageError> {
        let panicked = |_| {
            Err(StorageError::Bucket(
                "sending an object panicked".to_owned(),
            ))
        };
        let mut outcome = Ok(());
        for wave in objects.chunks(THREAD_COUNT) {
            let outcomes = self.lending(|| {
                std::thread::scope(|scope| {
                    let threads: Vec<_> = wave
                        .iter()
                        .map(|(key, bytes)| scope.spawn(move || self.put(key, bytes)))
                        .collect();
                    let threads = threads.into_iter();
                    threads
                        .map(|thread| thread.join().unwrap_or_else(panicked))
                        .fold(Ok(()), Result::and)
                })
            });
            outcome = outcome.and(outcomes);
        }
        outcome
    }

    /// Writes an object of a file.
    pub(super) fn put_file(
        &self,
        key: &str,
        file: &File,
        sha256: Option<[u8; 32]>,
    ) -> Result<(), StorageError> {
        let len = file.metadata();
        let len = len.map_err(|error| StorageError::file("cannot read", key, error))?;
        self.patiently(|| {
            let options = options(key, sha256);
            self.bucket.put_file(key, file, len.len(), &options)
        })
    }

    /// Sends placed objects that were not sent yet. Those that are small share objects, if that is
    /// not switched off.
    pub(super) fn send(&self, placed: &[&Placed]) -> Result<(), StorageError> {
        let unsent: Vec<&Placed> = placed.iter().copied().filter(|it| it.is_unsent()).collect();
        let (small, large): (Vec<&Placed>, Vec<&Placed>) = unsent
            .into_iter()
            .partition(|it| self.packs() && it.len < pack::SMALL_LEN);
        let mut groups: Vec<Vec<&Placed>> = large.into_iter().map(|it| vec![it]).collect();
        groups.extend(pack::groups(small));
        let len = groups.len().div_ceil(THREAD_COUNT).max(1);
        let send = |groups: &[Vec<&Placed>]| groups.iter().try_for_each(|it| self.send_group(it));
        let panicked = |_| {
            Err(StorageError::Bucket(
                "sending an object panicked".to_owned(),
            ))
        };
        let (own, others) = groups.split_at(len.min(groups.len()));
        self.lending(|| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = others
                    .chunks(len)
                    .map(|part| scope.spawn(|| send(part)))
                    .collect();
                let own = send(own);
                let mut outcomes = threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(panicked));
                own.and(outcomes.try_for_each(|outcome| outcome))
            })
        })
    }

    /// Sends one object, or several in a pack.
    fn send_group(&self, group: &[&Placed]) -> Result<(), StorageError> {
        if let [placed] = group {
            return self.send_one(placed);
        }
        let pack = pack::build(group)
            .map_err(|error| StorageError::file("cannot read a file in", TMP, error))?;
        self.patiently(|| {
            let options = options(&pack.key, Some(pack.sha256));
            self.bucket.put(&pack.key, &pack.bytes, &options)
        })?;
        let key: Arc<str> = pack.key.as_str().into();
        for (placed, start) in group.iter().zip(&pack.starts) {
            placed.set_sent(Some(InPack {
                key: Arc::clone(&key),
                start: *start,
            }));
        }
        // Ignore errors: the copy is made again when it is needed.
        self.keep_pack(&pack).ok();
        Ok(())
    }

    fn keep_pack(&self, pack: &pack::Pack) -> io::Result<()> {
        let mut file = self.local.temporary()?;
        io::Write::write_all(&mut file, &pack.bytes)?;
        self.cache.insert(&pack.key, file, pack.bytes.len() as u64)
    }

    /// Sends an object, unless it is to share an object with others.
    pub(super) fn send_large(&self, placed: &Placed) -> Result<(), StorageError> {
        match self.packs() && placed.len < pack::SMALL_LEN {
            true => Ok(()),
            false => self.send_one(placed),
        }
    }

    /// Sends an object of its own. Its file becomes the copy in the disk cache.
    fn send_one(&self, placed: &Placed) -> Result<(), StorageError> {
        let Some(path) = &placed.pending else {
            return Ok(());
        };
        let read = |error| StorageError::file("cannot read", &placed.key, error);
        let file = File::open(path).map_err(read)?;
        self.put_file(&placed.key, &file, placed.sha256)?;
        placed.set_sent(None);
        // Ignore errors: the copy is made again when it is needed.
        self.cache.insert_file(&placed.key, path).ok();
        Ok(())
    }

    /// Opens the file of a NAR. Returns `None` if its object is missing or has a wrong length.
    pub(super) fn open_nar(&self, nar: NarObject<'_>) -> Result<Option<NarFile>, StorageError> {
        let wanted = match &nar.pack {
            Some(place) => {
                let Some(wanted) = self.wanted_pack(&place.key)? else {
                    return Ok(None);
                };
                wanted
            }
            None => Wanted {
                key: nar.key.to_owned(),
                len: nar.len,
                sha256: *nar.sha256,
            },
        };
        let start = nar.pack.as_ref().map_or(0, |place| place.start);
        if start.saturating_add(nar.len) > wanted.len {
            return Ok(None);
        }
        let found = self.cache.find(&wanted.key, wanted.len, &wanted.sha256);
        if let Some(file) = found {
            return Ok(Some(NarFile::local(file, start, nar.len)));
        }
        let (is_short, last) = (
            nar.pack.is_some() || wanted.len <= PIECE_LEN,
            wanted.len.saturating_sub(1),
        );
        let unavailable = |error| StorageError::file("cannot write a file in", TMP, error);
        let mut reader = self.arriving(wanted.clone(), nar.id).map_err(unavailable)?;
        // A short object is received before its response begins: then a fault is answered properly.
        // A file in a pack is right only if the pack is.
        let at = match is_short {
            true => last,
            false => start,
        };
        let mut outcome = self.lending(|| reader.wait(at));
        if matches!(outcome, Err(Failure::Abandoned)) {
            // The last reader has left just before this one came.
            reader = self.arriving(wanted, nar.id).map_err(unavailable)?;
            outcome = self.lending(|| reader.wait(at));
        }
        match outcome {
            Ok(_) => Ok(Some(NarFile::arriving(reader, start, nar.len))),
            Err(Failure::Missing | Failure::Wrong) => Ok(None),
            Err(Failure::Unavailable(reason)) => Err(StorageError::Bucket(reason)),
            Err(failure @ Failure::Abandoned) => Err(StorageError::Bucket(failure.to_string())),
        }
    }

    /// Returns what a pack must be like. Its key has its hash; its length is asked for unless there
    /// is a copy. `None`: it does not exist.
    fn wanted_pack(&self, key: &str) -> Result<Option<Wanted>, StorageError> {
        let Some(sha256) = pack::sha256_of(key) else {
            return Err(StorageError::Damaged(format!("pack {key:?}")));
        };
        let len = match self.cache.len_of(key) {
            Some(len) => Some(len),
            None => self.head_once(key)?.map(|stat| stat.len),
        };
        Ok(len.map(|len| Wanted {
            key: key.to_owned(),
            len,
            sha256,
        }))
    }

    /// Returns a reader of an object that is being received. Begins to receive it if needed.
    fn arriving(&self, wanted: Wanted, nar_id: i64) -> io::Result<Reader> {
        let mut arrivals = locked(&self.arrivals);
        arrivals.retain(|(_, arrival)| arrival.strong_count() > 0);
        let same = arrivals.iter().filter(|(key, _)| *key == wanted.key);
        let same = same.filter_map(|(_, arrival)| arrival.upgrade());
        if let Some(reader) = same.filter_map(|arrival| Reader::join(&arrival)).next() {
            return Ok(reader);
        }
        self.cache.evict(wanted.len);
        let (cache, key, len) = (Arc::clone(&self.cache), wanted.key.clone(), wanted.len);
        let suspects = Arc::clone(&self.suspects);
        let on_wrong = self.on_wrong.get().cloned();
        let ended = move |outcome: Result<tempfile::NamedTempFile, Failure>| match outcome {
            Ok(file) => {
                locked(&suspects).remove(&key);
                // Ignore errors: the readers have the file.
                cache.insert(&key, file, len).ok();
            }
            // The first time, a machine between the disk of the bucket and this one may have erred.
            Err(Failure::Wrong) if locked(&suspects).insert(key.clone()) => {}
            Err(Failure::Wrong) => {
                locked(&suspects).remove(&key);
                if let Some(on_wrong) = on_wrong {
                    on_wrong(nar_id);
                }
            }
            Err(_) => {}
        };
        let key = wanted.key.clone();
        let reader = Arrival::begin(&self.bucket, wanted, self.local.temporary()?, ended)?;
        arrivals.push((key, Arc::downgrade(reader.arrival())));
        Ok(reader)
    }

    /// Returns a URL by which anybody can download the file of a NAR directly, or `None` if it is
    /// to be downloaded through the server.
    pub(crate) fn url(&self, nar: &NarObject<'_>) -> Result<Option<String>, StorageError> {
        let over = self.location.redirect_over;
        if nar.pack.is_some() || over.is_none_or(|over| nar.len <= over) {
            return Ok(None);
        }
        let url = self.bucket.presigned_get(nar.key, URL_TIME);
        let url = url.map_err(|error| failed(&error))?;
        self.redirect_count.fetch_add(1, Ordering::Relaxed);
        Ok(Some(url))
    }

    /// Reads an object into a temporary file without a name. Returns `None` if it does not exist.
    pub(super) fn read(&self, key: &str) -> Result<Option<File>, StorageError> {
        self.lending(|| {
            let download = self.bucket.get(key, None);
            let download = download.map_err(|error| failed(&error))?;
            let Some(mut download) = download else {
                return Ok(None);
            };
            let written = |error| StorageError::file("cannot write a file in", TMP, error);
            let mut file = tempfile::tempfile_in(self.local.path(TMP)).map_err(written)?;
            let copied = io::copy(&mut download, &mut file);
            copied.map_err(|error| StorageError::Bucket(format!("cannot read {key}: {error}")))?;
            io::Seek::rewind(&mut file).map_err(written)?;
            Ok(Some(file))
        })
    }

    /// Opens the file of a NAR in the bucket to read it once, without making a copy.
    pub(super) fn read_nar(
        &self,
        nar: &NarObject<'_>,
    ) -> Result<Option<Box<dyn io::Read + Send>>, StorageError> {
        let (key, range) = match &nar.pack {
            Some(place) => (&*place.key, Some(place.start..place.start + nar.len)),
            None => (nar.key, None),
        };
        let download = self.lending(|| self.bucket.get(key, range));
        let download = download.map_err(|error| failed(&error))?;
        Ok(download.map(|download| Box::new(download) as Box<_>))
    }

    fn head_once(&self, key: &str) -> Result<Option<Stat>, StorageError> {
        let stat = self.lending(|| self.bucket.head(key));
        stat.map_err(|error| failed(&error))
    }

    /// Returns the state of an object, or `None` if it does not exist.
    pub(super) fn state(&self, key: &str) -> Result<Option<ObjectState>, StorageError> {
        let stat = self.head_once(key)?;
        Ok(stat.map(|stat| state(stat.len, stat.modified_at, &stat.etag)))
    }

    /// Calls `visit` with the key and the state of each object directly below a prefix.
    pub(super) fn list(
        &self,
        prefix: &str,
        visit: super::VisitState<'_>,
    ) -> Result<(), StorageError> {
        self.list_all(prefix, &mut |key, state| match key
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.contains('/'))
        {
            true => visit(key, state),
            false => Ok(()),
        })
    }

    /// Calls `visit` with the key and the state of each object whose key begins with a prefix.
    pub(super) fn list_all(
        &self,
        prefix: &str,
        visit: super::VisitState<'_>,
    ) -> Result<(), StorageError> {
        let mut outcome = Ok(());
        let listed = self.lending(|| {
            self.bucket.list(prefix, &mut |entry| {
                outcome = visit(&entry.key, state(entry.len, entry.modified_at, ""));
                match outcome {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })
        });
        outcome?;
        listed.map_err(|error| failed(&error))
    }

    /// Returns the parts of the keys that begin with a prefix, each up to the next slash.
    pub(super) fn directories(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let mut found: Vec<String> = Vec::new();
        self.list_all(prefix, &mut |key, _state| {
            let rest = key.get(prefix.len()..).unwrap_or_default();
            if let Some((name, _)) = rest.split_once('/') {
                let directory = format!("{prefix}{name}");
                // Keys are listed in their order.
                if found.last() != Some(&directory) {
                    found.push(directory);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Removes all objects below a directory.
    pub(super) fn remove_directory(&self, key: &str) -> Result<(), StorageError> {
        let mut keys = Vec::new();
        self.list_all(&format!("{key}/"), &mut |key, _state| {
            keys.push(key.to_owned());
            Ok(())
        })?;
        self.remove_all(&keys)
    }

    /// Writes an object of a file that stays where it is.
    pub(super) fn copy(&self, file: &Path, key: &str) -> Result<(), StorageError> {
        let opened = open_regular(file);
        let opened = opened.map_err(|error| StorageError::file("cannot read", key, error))?;
        self.put_file(key, &opened, None)
    }

    /// Gives an object another key.
    pub(super) fn rename(&self, key: &str, new: &str) -> Result<(), StorageError> {
        if let Some(file) = self.read(key)? {
            self.put_file(new, &file, None)?;
        }
        self.remove_all(&[key.to_owned()])
    }

    /// Removes objects, and their copies.
    pub(super) fn remove_all(&self, keys: &[String]) -> Result<(), StorageError> {
        for key in keys {
            self.cache.remove(key);
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let deleted = self.lending(|| self.bucket.delete(&keys));
        deleted.map_err(|error| failed(&error))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state(len: u64, modified_at: i64, etag: &str) -> ObjectState {
    let mut hasher = DefaultHasher::new();
    etag.hash(&mut hasher);
    ObjectState {
        len,
        modified_at,
        version: (hasher.finish(), 0),
    }
}
