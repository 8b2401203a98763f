//! [`StoredCache`]: one cache of a storage.
//!
//! The operations on its paths and files are functions in modules of their own, such as
//! [`nar`](super::nar) and [`logs`](super::logs). What only reads or changes the database is a
//! function of [`metadata`](crate::metadata).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use samovar_protocol::names::FileName;

use crate::error::StorageError;
use crate::metadata::{
    CacheId, Client, Database, SizeLimit, StoredNar, StoredPath, limits, nars, packs, pushes,
    tokens,
};
use crate::objects::{InPack, NarFile};
use crate::receive::{Admitted, PutError, Refusal, Wait};
use crate::storage::Storage;
use crate::storage::counters::{Kind, Reason};
use crate::token::{Denied, Rights, Token, TokenHash};
use crate::waiting::Patience;

/// One cache of a storage.
#[derive(Debug, Clone)]
pub struct StoredCache {
    pub(crate) storage: Arc<Storage>,
    pub(crate) id: CacheId,
    pub(crate) name: String,
    /// Maximum total length of the cache's files, in bytes. `None`: no limit.
    pub(crate) quota: Option<u64>,
    /// Whether clients may not know that the cache has a path. `None`: they may know all.
    pub(crate) hides: Option<Hides>,
}

/// Function that returns whether a policy hides a path.
#[derive(Clone)]
pub(crate) struct Hides(pub(crate) Arc<dyn Fn(&StoredPath) -> bool + Send + Sync>);

impl std::fmt::Debug for Hides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hides")
    }
}

/// A NAR that a client may use.
pub(super) struct FoundNar {
    pub(super) nar: StoredNar,
    /// Place of its file in a pack. `None`: it is not in memory.
    place: Option<Option<InPack>>,
}

impl StoredCache {
    /// Sets the maximum total length of what the cache stores, in bytes. `None`: no limit.
    #[must_use]
    pub fn with_quota(mut self, quota: Option<u64>) -> Self {
        self.quota = quota;
        self
    }

    /// Returns the name of the cache in the storage.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the maximum total length of what the cache stores, in bytes. `None`: no limit.
    #[must_use]
    pub fn quota(&self) -> Option<u64> {
        self.quota
    }

    /// Returns the identifier of the cache in the database.
    #[must_use]
    pub fn id(&self) -> CacheId {
        self.id
    }

    /// Returns the database of the storage.
    #[must_use]
    pub fn metadata(&self) -> &Database {
        &self.storage.metadata
    }

    /// Returns the NAR with this file name if the client may use it, else `None`.
    pub(super) fn file(
        &self,
        client: Client,
        name: &FileName,
    ) -> Result<Option<FoundNar>, StorageError> {
        let storage = &*self.storage;
        let (catalog, file_hash) = (&storage.catalog, name.file_hash());
        // Who may read the cache may use the NARs of all paths that the cache shows.
        let sees_all = client.is_reader && self.hides.is_none();
        let held = || catalog.held(storage.rules.hold)?.nar(self.id, file_hash);
        let in_memory = || catalog.nar(self.id, file_hash).or_else(held);
        if let Some((nar, pack)) = sees_all.then(in_memory).flatten() {
            let place = Some(pack);
            return Ok(Some(FoundNar { nar, place }));
        }
        match nars::find(&storage.metadata, self.id, client, file_hash)? {
            Some(nar) if self.shows_nar(client.token, nar.id)? => {
                Ok(Some(FoundNar { nar, place: None }))
            }
            _ => Ok(None),
        }
    }

    /// Returns a NAR file that the client may use, without opening it. Returns `None` if there is
    /// no such file, or if it is lost or has a wrong length; then the next upload replaces it. In a
    /// bucket, that takes a request.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn find_file(
        &self,
        client: Client,
        name: &FileName,
    ) -> Result<Option<StoredNar>, StorageError> {
        let storage = &*self.storage;
        let Some(FoundNar { nar, .. }) = self.file(client, name)? else {
            return Ok(None);
        };
        let is_whole = storage.is_whole(&nar)?;
        storage.uses().nars.insert((self.id, nar.id));
        Ok(is_whole.then_some(nar))
    }

    /// Returns a URL by which the client downloads a NAR file that it may use from the bucket
    /// directly. Returns `None` if it is to download the file through the server, or if there is no
    /// such file.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn direct_url(
        &self,
        client: Client,
        name: &FileName,
    ) -> Result<Option<String>, StorageError> {
        let storage = &*self.storage;
        let Some(bucket) = storage.objects.bucket().filter(|bucket| bucket.redirects()) else {
            return Ok(None);
        };
        let Some(FoundNar { nar, place }) = self.file(client, name)? else {
            return Ok(None);
        };
        let object = match place {
            Some(pack) => packs::object(&nar, pack),
            None => storage.object_of(&nar)?,
        };
        let url = bucket.url(&object)?;
        if url.is_some() {
            storage.uses().nars.insert((self.id, nar.id));
        }
        Ok(url)
    }

    /// Opens a NAR file that the client may use. Returns `None` if there is no such file, or if it
    /// is lost or has a wrong length; then the next upload replaces it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open_file(
        &self,
        client: Client,
        name: &FileName,
    ) -> Result<Option<(StoredNar, NarFile)>, StorageError> {
        let storage = &*self.storage;
        let Some(FoundNar { nar, place }) = self.file(client, name)? else {
            return Ok(None);
        };
        let object = place.map(|pack| packs::object(&nar, pack));
        let file = object.map(|object| storage.objects.open_nar(object));
        let file = match file.transpose()?.flatten() {
            Some(file) => Some(file),
            None => storage.open_whole(&nar)?,
        };
        storage.uses().nars.insert((self.id, nar.id));
        Ok(file.map(|file| (nar, file)))
    }

    /// Keeps a NAR file for another day, although no path may use it yet, because a client that
    /// will publish a path asked for it or sent it again.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn renew_file(&self, token: &Token, nar: &StoredNar) -> Result<(), StorageError> {
        let Rights { read, push, .. } = token.rights;
        match push {
            true => pushes::renew_nar(&self.storage.metadata, token.id, nar.id, read),
            false => Ok(()),
        }
    }

    /// Returns the token with this text if it is valid for this cache, else the reason why it is
    /// not. `now`: time in seconds since 1970.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn authorize(&self, text: &[u8], now: i64) -> Result<Result<Token, Denied>, StorageError> {
        let Some(hash) = TokenHash::of(text) else {
            return Ok(Err(Denied::Unknown));
        };
        let seen = &self.storage.seen_tokens;
        let epoch = seen.epoch();
        let known = match self.storage.catalog.lease() {
            Some(lease) if lease.lives() => seen.find(&hash, Token::clone),
            _ => None,
        };
        let token = match known {
            Some(token) => Some(token),
            None => tokens::find(&self.storage.metadata, &hash)?,
        };
        let token = token.ok_or(Denied::Unknown).and_then(|token| {
            token.check(&self.name, now)?;
            Ok(token)
        });
        match (&token, self.seen(text, |_| ())) {
            (Ok(token), None) => seen.remember(hash, token.clone(), epoch),
            (Err(_), Some(())) => seen.forget(&hash),
            _ => {}
        }
        Ok(token)
    }

    /// Calls `read` with the token with this text if it was valid for this cache when it was last
    /// looked up. Never blocks on a disk.
    pub fn seen<T>(&self, text: &[u8], read: impl FnOnce(&Token) -> T) -> Option<T> {
        let now = self.storage.metadata.now();
        let if_valid = |token: &Token| token.check(&self.name, now).is_ok().then(|| read(token));
        let seen = &self.storage.seen_tokens;
        seen.find(&TokenHash::of(text)?, if_valid)?
    }

    /// Limits the total time that the request waits for the storage that the calling thread
    /// handles: for a slot, for memory, and for the database. The limit applies until the returned
    /// value is dropped.
    pub fn start_patience(&self) -> Patience {
        self.storage.metadata.waits().start()
    }

    /// Whether the disk hangs: see [`check_disk`](Self::check_disk). Never blocks on a disk.
    #[must_use]
    pub fn disk_hangs(&self) -> bool {
        self.storage.metadata.waits().disk.check().is_err()
    }

    /// Checks that the disk completes writes and flushes: an upload to a disk that hangs would wait
    /// as long as the disk hangs. Counts a refused request otherwise.
    ///
    /// # Errors
    ///
    /// [`StorageError::DiskHangs`].
    pub fn check_disk(&self) -> Result<(), StorageError> {
        let checked = self.storage.metadata.waits().disk.check();
        if checked.is_err() {
            self.storage.counters.refuse(Reason::StorageFailed);
        }
        checked
    }

    /// Admits the upload of a NAR with this token. Waits at most `patience` if too many uploads are
    /// in progress, and later as long for the memory that this one needs.
    ///
    /// # Errors
    ///
    /// [`PutError::Busy`], or [`PutError::Source`] if waiting failed.
    pub fn admit<'a>(
        &'a self,
        token: &Token,
        wait: &'a dyn Wait,
        patience: Duration,
    ) -> Result<Admitted<'a>, PutError> {
        let storage = &*self.storage;
        let admitted = storage.admission.admit(token.id, wait, patience);
        match admitted {
            Ok(admitted) => Ok(admitted),
            Err(error) => storage.counters.count(Kind::Nar, Err(error.into())),
        }
    }

    /// Counts a request that was refused because it had no valid token with the right to push.
    pub fn count_unauthorized(&self) {
        self.storage.counters.refuse(Reason::Token);
    }

    /// Returns the total length of what the cache stores, in bytes. Returns 0 if the cache has no
    /// quota.
    pub(crate) fn used_of_quota(&self) -> Result<u64, StorageError> {
        match self.quota {
            Some(_) => limits::used_bytes(&self.storage.metadata, self.id),
            None => Ok(0),
        }
    }

    /// Refuses a file of `file_size` bytes if it would exceed the quota. `used`: present total
    /// length.
    pub(crate) fn check_quota(&self, used: u64, file_size: u64) -> Result<(), Refusal> {
        match self.quota {
            Some(quota) if used.saturating_add(file_size) > quota => Err(self.over_limit(used)),
            _ => Ok(()),
        }
    }

    /// Returns what the cache may store.
    pub(crate) fn limit(&self) -> SizeLimit {
        SizeLimit {
            quota: self.quota,
            extra_max: self.storage.rules.extra_bytes_max,
        }
    }

    /// Returns the refusal of an upload that would exceed the limit. The background thread then
    /// frees space.
    pub(crate) fn over_limit(&self, used: u64) -> Refusal {
        let SizeLimit { quota, extra_max } = self.limit();
        self.storage.is_over_quota.store(true, Ordering::Relaxed);
        match quota {
            Some(quota) => Refusal::Quota { used, quota },
            None => Refusal::TooManyExtras {
                used,
                limit: extra_max,
            },
        }
    }
}
