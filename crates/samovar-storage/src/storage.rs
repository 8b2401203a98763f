//! [`Storage`]: the interface through which a server uses uploads.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use samovar_nix::{HashPart, StoreDir, StorePath};

use crate::commit_queue::CommitQueue;
use crate::error::{PutError, StorageError};
use crate::metadata::{
    CacheId, Metadata, NewNar, NewPath, NewReference, Published, Sqlite, StoredNar, StoredPath,
};
use crate::mirror;
use crate::objects::{Directory, Objects};
use crate::publish::{self, Refusal};
use crate::token::{Token, TokenHash};
use crate::verify::{FileName, Limits, VerifyError, verify};

/// Path of the database, relative to the storage directory.
pub const DATABASE: &str = ".samovar/db.sqlite";

const LOCK: &str = ".samovar/lock";
const STORE_ID: &str = ".samovar/store-id";

/// Length of the buffer for receiving a build log, in bytes.
const LOG_BUFFER_LEN: usize = 64 * 1024;

/// Maximum number of tokens that are remembered as valid.
const SEEN_COUNT_MAX: usize = 4096;

/// Interval at which a new process checks whether its predecessor has ended.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// Renders the narinfo of an uploaded path, including the cache's signatures.
pub type Render<'a> = dyn Fn(&StoredPath) -> Vec<u8> + 'a;

/// The storage for uploaded paths: files and a database.
#[derive(Debug)]
pub struct Storage {
    objects: Box<dyn Objects>,
    metadata: Box<dyn Metadata>,
    store_dir: StoreDir,
    limits: Limits,
    queue: CommitQueue,
    index: RwLock<Index>,
    /// Hashes of tokens that were valid when last looked up. Used only to decide how to receive a
    /// body.
    seen_tokens: RwLock<HashSet<TokenHash>>,
}

/// The hash parts of all paths, in memory.
#[derive(Debug, Default)]
struct Index {
    paths: HashSet<(CacheId, HashPart)>,
    /// The lock of the directory. While this process holds it, no other process publishes, so
    /// `paths` is complete. `None` while the predecessor of a zero-downtime upgrade runs; then
    /// look-ups query the database.
    lock: Option<File>,
    /// Whether a new process may be publishing although this one holds the lock. Then look-ups
    /// query the database.
    is_shared: bool,
}

/// One cache of a storage.
#[derive(Debug, Clone)]
pub struct StoredCache {
    storage: Arc<Storage>,
    id: CacheId,
    name: String,
    /// Whether the narinfos of this cache are also written into the directory.
    is_mirrored: bool,
}

impl Storage {
    /// Opens the storage in a directory; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open(root: &Path, store_dir: &StoreDir) -> Result<Arc<Self>, StorageError> {
        let metadata = open_database(root)?;
        let directory = Directory::open(root)?;
        check_store_id(root, &metadata.store_id()?)?;
        if directory.open(mirror::CACHE_INFO)?.is_none() {
            let text = mirror::cache_info(store_dir);
            directory.write_mirror(mirror::CACHE_INFO, text.as_bytes())?;
        }
        let lock = File::create(root.join(LOCK))
            .map_err(|error| StorageError::file("cannot create", LOCK, error))?;
        let storage = Arc::new(Self {
            objects: Box::new(directory),
            metadata: Box::new(metadata),
            store_dir: store_dir.clone(),
            limits: Limits::default(),
            queue: CommitQueue::default(),
            index: RwLock::default(),
            seen_tokens: RwLock::default(),
        });
        match lock.try_lock() {
            Ok(()) => {
                storage.objects.remove_unfinished()?;
                storage.load_index(lock)?;
            }
            Err(TryLockError::WouldBlock) => {
                keep_others_out(&lock);
                let waiting = Arc::downgrade(&storage);
                std::thread::Builder::new()
                    .name("storage-lock".to_owned())
                    .spawn(move || wait_for_lock(&waiting, lock))
                    .map_err(|error| StorageError::file("cannot wait for", LOCK, error))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(StorageError::file("cannot lock", LOCK, error));
            }
        }
        Ok(storage)
    }

    /// Whether no other process uses the storage.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.index().lock.is_some()
    }

    /// Returns the cache of this name, which is created if it does not exist. `is_mirrored`: its
    /// narinfos are also written into the directory, which makes that a plain binary cache. Only
    /// one cache of a storage may be mirrored.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn cache(
        self: &Arc<Self>,
        name: &str,
        is_mirrored: bool,
    ) -> Result<StoredCache, StorageError> {
        Ok(StoredCache {
            storage: Arc::clone(self),
            id: self.metadata.cache(name, self.store_dir.as_str())?,
            name: name.to_owned(),
            is_mirrored,
        })
    }

    /// Sets whether another process may publish although this one holds the lock. Must be set
    /// before the new process of a zero-downtime upgrade serves: its clients may then ask this
    /// process for paths that the new one has published.
    ///
    /// While this is set, all processes hold a shared lock. Each of them takes the exclusive lock
    /// only after all others have ended.
    pub fn set_shared(&self, is_shared: bool) {
        let mut index = self.index_mut();
        index.is_shared = is_shared;
        let Some(lock) = &index.lock else {
            return;
        };
        let outcome = match is_shared {
            true => lock.try_lock_shared(),
            false => lock.try_lock(),
        };
        // Without the exclusive lock, look-ups query the database, which is correct but slower.
        index.is_shared = is_shared || outcome.is_err();
    }

    fn load_index(&self, lock: File) -> Result<(), StorageError> {
        // If a path is published after this read, its commit adds it to the index.
        let paths = self.metadata.hash_parts()?;
        let mut index = self.index_mut();
        index.paths.extend(paths);
        if index.is_shared {
            // An upgrade has started meanwhile.
            keep_others_out(&lock);
        }
        index.lock = Some(lock);
        Ok(())
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a batch and adds its new paths to the index in memory.
    fn commit(&self, batch: &[NewPath]) -> Result<Vec<Published>, StorageError> {
        let outcomes = self.metadata.publish(batch)?;
        let mut index = self.index_mut();
        for (new, outcome) in batch.iter().zip(&outcomes) {
            if *outcome == Published::New {
                index.paths.insert((new.cache, new.path.hash_part()));
            }
        }
        Ok(outcomes)
    }
}

impl StoredCache {
    /// Whether an uploaded path with this hash part may exist. If `false`, it certainly does not.
    /// Never blocks on a disk.
    #[must_use]
    pub fn may_contain(&self, hash_part: HashPart) -> bool {
        let index = self.storage.index();
        index.lock.is_none() || index.is_shared || index.paths.contains(&(self.id, hash_part))
    }

    /// Whether an uploaded path with this hash part certainly exists.
    fn surely_contains(&self, hash_part: HashPart) -> bool {
        let index = self.storage.index();
        index.paths.contains(&(self.id, hash_part))
    }

    /// Returns the uploaded path with this hash part.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn lookup(&self, hash_part: HashPart) -> Result<Option<StoredPath>, StorageError> {
        if !self.may_contain(hash_part) {
            return Ok(None);
        }
        self.storage.metadata.path(self.id, hash_part)
    }

    /// Returns the listing of an uploaded path, compressed with zstd.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn listing(&self, path: &StoredPath) -> Result<Option<Vec<u8>>, StorageError> {
        self.storage.metadata.listing(path.nar.id)
    }

    /// Opens the file of a NAR that a path of this cache uses, or that was uploaded with `token`.
    /// Also returns `None` if the file is lost or has another length; the next upload replaces it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open_file(
        &self,
        token: Option<&Token>,
        name: &FileName,
    ) -> Result<Option<(StoredNar, File)>, StorageError> {
        let storage = &*self.storage;
        let token = token.map(|token| token.id);
        let Some(nar) = storage.metadata.file(self.id, token, name.file_hash())? else {
            return Ok(None);
        };
        let Some(file) = storage.objects.open(&nar.object_key)? else {
            return Ok(None);
        };
        let metadata = file
            .metadata()
            .map_err(|error| StorageError::file("cannot read", nar.object_key.clone(), error))?;
        let is_whole = metadata.is_file() && metadata.len() == nar.file_size;
        Ok(is_whole.then_some((nar, file)))
    }

    /// Returns the token with this text, if it is valid for this cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn authorize(&self, text: &[u8], now: i64) -> Result<Option<Token>, StorageError> {
        let Some(hash) = TokenHash::of(text) else {
            return Ok(None);
        };
        let token = self.storage.metadata.token(&hash)?;
        let token = token.filter(|token| token.is_valid(now) && token.covers(&self.name));
        let seen = &self.storage.seen_tokens;
        if token.is_some() && !self.is_seen(text) {
            let mut seen = seen.write().unwrap_or_else(PoisonError::into_inner);
            if seen.len() >= SEEN_COUNT_MAX {
                seen.clear();
            }
            seen.insert(hash);
        }
        Ok(token)
    }

    /// Whether the token with this text was valid when last looked up. Never blocks on a disk.
    #[must_use]
    pub fn is_seen(&self, text: &[u8]) -> bool {
        let seen = &self.storage.seen_tokens;
        let seen = seen.read().unwrap_or_else(PoisonError::into_inner);
        TokenHash::of(text).is_some_and(|hash| seen.contains(&hash))
    }

    /// Receives a NAR file and verifies it in one pass. When this returns, the file is stored
    /// durably. Only the client that sent it can read it, until a published narinfo refers to it.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]; then nothing is kept.
    pub fn put_nar(
        &self,
        token: &Token,
        name: &FileName,
        source: &mut dyn Read,
    ) -> Result<(), PutError> {
        let storage = &*self.storage;
        if self.open_file(Some(token), name)?.is_some() {
            // The file is stored already, so discard the body.
            io::copy(source, &mut io::sink()).map_err(PutError::Source)?;
            return Ok(());
        }
        let mut object = storage.objects.create()?;
        let verified = verify(source, name, &mut object, &storage.limits);
        let verified = verified.map_err(|error| match error {
            VerifyError::Source(error) => PutError::Source(error),
            VerifyError::Refused(refusal) => PutError::File(Box::new(refusal)),
            VerifyError::Sink(error) => PutError::Storage(StorageError::file(
                "cannot write",
                format!("nar/{name}"),
                error,
            )),
        })?;
        let new = NewNar {
            nar: StoredNar {
                id: 0,
                nar_hash: verified.nar_hash,
                nar_size: verified.nar_size,
                file_hash: *name.file_hash(),
                file_size: verified.file_size,
                compression: verified.compression,
                object_key: format!("nar/{name}"),
            },
            listing: verified.listing,
            frames: verified.frames,
        };
        object.publish(&new.nar.object_key)?;
        Ok(storage.metadata.add_nar(token.id, &new)?)
    }

    /// Publishes a path, after comparing its narinfo with the uploaded file and checking its
    /// references. When this returns, the path is durable and every look-up finds it.
    /// `is_elsewhere` tells whether the live Nix store contains a path. Returns the path.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]; then nothing is published.
    pub fn put_narinfo(
        &self,
        token: &Token,
        hash_part: HashPart,
        text: &[u8],
        is_elsewhere: &dyn Fn(&StorePath) -> bool,
        render: &Render<'_>,
    ) -> Result<(StorePath, Published), PutError> {
        let storage = &*self.storage;
        let (info, name) = publish::parse(&storage.store_dir, hash_part, text)?;
        let file = storage
            .metadata
            .file(self.id, Some(token.id), name.file_hash())?;
        let file = file.ok_or(Refusal::UnknownFile(name))?;
        publish::compare(&storage.store_dir, &info, &name, &file)?;
        let path = info.store_path;
        let others = info
            .references
            .iter()
            .filter(|reference| **reference != path);
        let new = NewPath {
            cache: self.id,
            token: token.id,
            nar_id: file.id,
            references: others
                .map(|reference| NewReference {
                    path: reference.clone(),
                    is_elsewhere: !self.surely_contains(reference.hash_part())
                        && is_elsewhere(reference),
                })
                .collect(),
            has_self_reference: info.references.contains(&path),
            deriver: info.deriver,
            signatures: info.signatures,
            content_address: info.content_address,
            path: path.clone(),
        };
        let outcome = storage.queue.publish(new, |batch| storage.commit(batch))?;
        match outcome {
            Published::MissingReference(reference) => {
                Err(Refusal::MissingReference { reference, path }.into())
            }
            Published::TokenInvalid => Err(Refusal::TokenInvalid.into()),
            Published::New | Published::Known | Published::Conflict => {
                self.mirror(hash_part, render)?;
                Ok((path, outcome))
            }
        }
    }

    /// Receives a build log of at most `len_max` bytes, and replaces an earlier one of the same
    /// name.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]; then nothing is kept.
    pub fn put_log(
        &self,
        token: &Token,
        path: &StorePath,
        source: &mut dyn Read,
        len_max: u64,
    ) -> Result<(), PutError> {
        let key = self.log_key(path);
        let mut object = self.storage.objects.create()?;
        let mut piece = vec![0; LOG_BUFFER_LEN];
        let mut len = 0_u64;
        loop {
            let read = source.read(&mut piece).map_err(PutError::Source)?;
            if read == 0 {
                break;
            }
            len += read as u64;
            if len > len_max {
                return Err(Refusal::LogTooLong(len_max).into());
            }
            object
                .write_all(&piece[..read])
                .map_err(|error| StorageError::file("cannot write", &key, error))?;
        }
        if !self.storage.metadata.is_token_valid(token.id)? {
            return Err(Refusal::TokenInvalid.into());
        }
        Ok(object.publish(&key)?)
    }

    /// Opens an uploaded build log.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open_log(&self, path: &StorePath) -> Result<Option<File>, StorageError> {
        self.storage.objects.open(&self.log_key(path))
    }

    /// Returns the key of a log. Only a mirrored cache uses `log/`, so that a token for one cache
    /// cannot change another cache's logs.
    fn log_key(&self, path: &StorePath) -> String {
        match self.is_mirrored {
            true => format!("log/{}", path.base_name()),
            false => format!(".samovar/log/{}/{}", self.id.0, path.base_name()),
        }
    }

    /// Writes narinfos that are missing in the directory because an earlier process was killed
    /// after publishing them. Does nothing if the cache is not mirrored.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn repair_mirror(&self, render: &Render<'_>) -> Result<(), StorageError> {
        if !self.is_mirrored {
            return Ok(());
        }
        for (cache, hash_part) in self.storage.metadata.hash_parts()? {
            let key = narinfo_key(hash_part);
            if cache == self.id && !self.storage.objects.has_contents(&key)? {
                self.mirror(hash_part, render)?;
            }
        }
        Ok(())
    }

    /// Writes the narinfo of a path into the directory, if the cache is mirrored.
    fn mirror(&self, hash_part: HashPart, render: &Render<'_>) -> Result<(), StorageError> {
        if self.is_mirrored
            && let Some(path) = self.lookup(hash_part)?
        {
            let text = render(&path);
            self.storage
                .objects
                .write_mirror(&narinfo_key(hash_part), &text)?;
        }
        Ok(())
    }
}

/// Opens the database of a storage directory; creates it if it does not exist. Only its owner can
/// access the database's directory.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn open_database(root: &Path) -> Result<Sqlite, StorageError> {
    let private = root.join(".samovar");
    fs::create_dir_all(&private)
        .and_then(|()| fs::set_permissions(&private, fs::Permissions::from_mode(0o700)))
        .map_err(|error| StorageError::file("cannot create", ".samovar", error))?;
    Sqlite::open(&root.join(DATABASE))
}

fn narinfo_key(hash_part: HashPart) -> String {
    format!("{hash_part}.narinfo")
}

/// Reads a listing that is compressed with zstd.
///
/// # Errors
///
/// [`StorageError::Damaged`] if the decompressor cannot be made.
pub fn listing_reader(listing: Vec<u8>) -> Result<impl Read + Send, StorageError> {
    zstd::Decoder::new(io::Cursor::new(listing))
        .map_err(|error| StorageError::Damaged(error.to_string()))
}

/// Waits until the predecessor has ended, takes the lock, and loads the index.
fn wait_for_lock(storage: &Weak<Storage>, lock: File) {
    loop {
        std::thread::sleep(LOCK_INTERVAL);
        let Some(storage) = storage.upgrade() else {
            return;
        };
        if lock.try_lock().is_ok() {
            // If loading fails, look-ups query the database, which is correct but slower.
            let _still_correct = storage.load_index(lock);
            return;
        }
        keep_others_out(&lock);
    }
}

/// Takes the shared lock. So no process that starts later gets the exclusive lock before this one.
/// The failed attempt to get the exclusive lock has released the shared one.
fn keep_others_out(lock: &File) {
    // Fails while another process holds the exclusive lock.
    lock.try_lock_shared().ok();
}

/// Compares the storage identifier in the directory with the one in the database. Writes it if the
/// directory has none.
fn check_store_id(root: &Path, database: &str) -> Result<(), StorageError> {
    let path = root.join(STORE_ID);
    match fs::read_to_string(&path) {
        Ok(directory) if directory.trim() == database => Ok(()),
        Ok(directory) => Err(StorageError::StoreId {
            directory: directory.trim().to_owned(),
            database: database.to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::write(&path, format!("{database}\n"))
                .map_err(|error| StorageError::file("cannot write", STORE_ID, error))
        }
        Err(error) => Err(StorageError::file("cannot read", STORE_ID, error)),
    }
}
