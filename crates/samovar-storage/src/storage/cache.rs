//! [`StoredCache`]: receives and returns the uploads of one cache.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StorePath};
use samovar_protocol::names::FileName;

use crate::error::StorageError;
use crate::metadata::{
    CacheId, Client, NewNar, NewPath, NewReference, OWN_LEN, Published, SizeLimit, StoredNar,
    StoredPath, USE_INTERVAL, limits, nars, paths, pushes, tokens,
};
use crate::mirror::Render;
use crate::receive::PutError;
use crate::receive::{Admitted, Wait};
use crate::receive::{Refusal, publish};
use crate::storage::counters::{Kind, Reason, Received};
use crate::storage::{NarOfToken, NewFile, Storage};
use crate::token::{Denied, Rights, Token, TokenHash};
use crate::verify::{Memory, Verified, verify};
use crate::waiting::{PATIENCE, Patience};

/// Maximum number of tokens that are remembered as valid.
pub(crate) const SEEN_COUNT_MAX: usize = 4096;

/// One cache of a storage.
#[derive(Debug, Clone)]
pub struct StoredCache {
    pub(crate) storage: Arc<Storage>,
    pub(crate) id: CacheId,
    pub(crate) name: String,
    /// Whether the narinfos of this cache are also written into the directory.
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

    /// Returns whether an uploaded path with this hash part may exist. If `false`, it certainly
    /// does not. Never blocks on a disk.
    #[must_use]
    pub fn may_contain(&self, hash_part: HashPart) -> bool {
        self.storage.index().may_contain(self.id, hash_part)
    }

    /// Returns whether an uploaded path with this hash part is in the index in memory.
    fn surely_contains(&self, hash_part: HashPart) -> bool {
        let index = self.storage.index();
        index.paths.contains(&(self.id, hash_part))
    }

    /// Returns the uploaded path with this hash part, and records a use of it. The collector does
    /// not delete a returned path for [`Rules::hold`](crate::gc::Rules::hold). Returns `None`
    /// if the cache does not have the path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn lookup(&self, hash_part: HashPart) -> Result<Option<StoredPath>, StorageError> {
        if !self.may_contain(hash_part) {
            return Ok(None);
        }
        let storage = &*self.storage;
        let mut path = paths::find(&storage.metadata, self.id, hash_part)?;
        if let Some(found) = &path
            && !storage.seems_whole(&found.nar)?
        {
            path = None;
        }
        match &path {
            Some(path) if path.used_at <= storage.metadata.now() - USE_INTERVAL => {
                storage.uses().paths.insert(path.id);
            }
            Some(_) => {}
            None => {
                storage.forget(self.id, hash_part)?;
            }
        }
        Ok(path)
    }

    /// Returns the listing of an uploaded path, compressed with zstd. `None`: its NAR has no
    /// listing.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn listing(&self, path: &StoredPath) -> Result<Option<Vec<u8>>, StorageError> {
        nars::listing(&self.storage.metadata, path.nar.id)
    }

    /// Returns the NAR with this file name if the client may use it, else `None`.
    fn file(&self, client: Client, name: &FileName) -> Result<Option<StoredNar>, StorageError> {
        let metadata = &self.storage.metadata;
        match nars::find(metadata, self.id, client, name.file_hash())? {
            Some(nar) if self.shows_nar(client.token, nar.id)? => Ok(Some(nar)),
            _ => Ok(None),
        }
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
    ) -> Result<Option<(StoredNar, File)>, StorageError> {
        let storage = &*self.storage;
        let Some(nar) = self.file(client, name)? else {
            return Ok(None);
        };
        let file = storage.open_whole(&nar)?;
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
        let token = tokens::find(&self.storage.metadata, &hash)?;
        let token = token.ok_or(Denied::Unknown).and_then(|token| {
            token.check(&self.name, now)?;
            Ok(token)
        });
        let is_seen = self.seen(text, |_| ()).is_some();
        if is_seen != token.is_ok() {
            let seen = &self.storage.seen_tokens;
            let mut seen = seen.write().unwrap_or_else(PoisonError::into_inner);
            match &token {
                Ok(token) => {
                    if seen.len() >= SEEN_COUNT_MAX {
                        seen.clear();
                    }
                    seen.insert(hash, token.clone());
                }
                Err(_) => drop(seen.remove(&hash)),
            }
        }
        Ok(token)
    }

    /// Calls `read` with the token with this text if it was valid for this cache when it was last
    /// looked up. Never blocks on a disk.
    pub fn seen<T>(&self, text: &[u8], read: impl FnOnce(&Token) -> T) -> Option<T> {
        let hash = TokenHash::of(text)?;
        let seen = &self.storage.seen_tokens;
        let seen = seen.read().unwrap_or_else(PoisonError::into_inner);
        let token = seen.get(&hash)?;
        let is_valid = token.check(&self.name, self.storage.metadata.now()).is_ok();
        is_valid.then(|| read(token))
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

    /// Checks that the disk completes writes and flushes: an upload would wait as long as it hangs.
    /// Counts a refused request otherwise.
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

    /// Receives a NAR file and verifies it in one pass. When this returns, the file is stored
    /// durably. Until a published narinfo refers to it, only clients with the same token can use
    /// it.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]. Nothing of the upload is kept then.
    pub fn put_nar(
        &self,
        token: &Token,
        name: &FileName,
        source: &mut dyn Read,
        memory: &mut dyn Memory,
    ) -> Result<(), PutError> {
        let counters = &self.storage.counters;
        let mut source = Received { source, counters };
        let outcome = self.receive_nar(token, name, &mut source, memory);
        counters.count(Kind::Nar, outcome)
    }

    fn receive_nar(
        &self,
        token: &Token,
        name: &FileName,
        source: &mut dyn Read,
        memory: &mut dyn Memory,
    ) -> Result<(), PutError> {
        let storage = &*self.storage;
        if let Some((nar, _file)) = self.open_file(token.into(), name)? {
            // The file is stored already, so discard the body.
            io::copy(source, &mut io::sink()).map_err(PutError::Source)?;
            self.check_token(token)?;
            self.renew_file(token, &nar)?;
            return Ok(());
        }
        let mut used = self.used_of_quota()?;
        let verify = |object: &mut dyn Write| {
            verify(source, name, object, &storage.limits, memory)
                .map_err(|error| PutError::of_nar(error, &format!("nar/{name}")))
        };
        let (new, file) = self.receive_object(token, &mut used, verify, |_| Ok(*name))?;
        Ok(self.store_nar(token, new, file)?)
    }

    /// Makes the file of a verified NAR durable, and records it, in one commit with others that
    /// arrive at the same time. Each of them syncs its own file before. Fails if the collector has
    /// deleted the NAR since the key was chosen. That takes the collector longer than
    /// `Rules::hold`.
    pub(crate) fn store_nar(
        &self,
        token: &Token,
        new: NewNar,
        file: NewFile,
    ) -> Result<(), StorageError> {
        let storage = &*self.storage;
        storage.check_place()?;
        let commit = |batch: &[&[NarOfToken]], patience| storage.commit_nars(batch, patience);
        let waits = storage.metadata.waits();
        let outcomes = waits.lend(|| {
            let NewFile { object, in_flight } = file;
            let group = Arc::new(vec![NarOfToken {
                file: object.place_synced(&new.nar.object_key, new.is_stored)?,
                new: (token.id, new),
                _in_flight: in_flight,
            }]);
            waits.patiently(PATIENCE, |patience| {
                storage.nar_queue.publish(&group, patience, commit)
            })
        })?;
        // A group of one NAR has one outcome.
        outcomes
            .into_iter()
            .next()
            .unwrap_or(Err(StorageError::Busy))
    }

    /// Receives the file of a NAR into a new object, within the quota of the cache and the limits
    /// of the token. `verify` writes the file into the object. `name` accepts the verified file
    /// and returns its name. Adds the length of the file to `used`, the used part of the quota in
    /// bytes.
    pub(crate) fn receive_object(
        &self,
        token: &Token,
        used: &mut u64,
        verify: impl FnOnce(&mut dyn Write) -> Result<Verified, PutError>,
        name: impl FnOnce(&Verified) -> Result<FileName, PutError>,
    ) -> Result<(NewNar, NewFile), PutError> {
        let storage = &*self.storage;
        // Every file has at least one byte: refuse it before it is received if the quota is used
        // up.
        self.check_quota(*used, 1)?;
        let mut object = storage.objects.create()?;
        let started = Instant::now();
        let verified = verify(&mut object)?;
        let counters = &storage.counters;
        counters.verified(verified.nar_size, started.elapsed());
        let name = name(&verified)?;
        // The path that will use the file counts, too.
        self.check_quota(*used, verified.file_size.saturating_add(OWN_LEN))?;
        let in_flight = storage.count_loose(token, verified.file_size)?;
        // The transaction that records the NAR checks the token, too, but then the file has its
        // name already.
        self.check_token(token)?;
        *used = used.saturating_add(verified.file_size);
        let (key, is_stored) = storage.object_key(&name)?;
        let new = NewNar::new(verified, key, is_stored);
        Ok((new, NewFile { object, in_flight }))
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

    /// Compares a narinfo with the uploaded file, checks its references, and publishes the path.
    /// When this returns, the path is durable and every look-up finds it. `is_elsewhere` returns
    /// whether the live Nix store contains a path. Returns the published path.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]. Nothing is published then.
    pub fn put_narinfo(
        &self,
        token: &Token,
        hash_part: HashPart,
        text: &[u8],
        is_elsewhere: &dyn Fn(&StorePath) -> bool,
        render: &Render<'_>,
    ) -> Result<(StorePath, Published), PutError> {
        let outcome = self.publish_narinfo(token, hash_part, text, is_elsewhere, render);
        self.storage.counters.count(Kind::Narinfo, outcome)
    }

    fn publish_narinfo(
        &self,
        token: &Token,
        hash_part: HashPart,
        text: &[u8],
        is_elsewhere: &dyn Fn(&StorePath) -> bool,
        render: &Render<'_>,
    ) -> Result<(StorePath, Published), PutError> {
        let storage = &*self.storage;
        let (info, name) = publish::parse(&storage.store_dir, hash_part, text)?;
        let file = self.file(token.into(), &name)?;
        let file = file.ok_or(Refusal::UnknownFile(name))?;
        if !storage.seems_whole(&file)? {
            return Err(Refusal::UnknownFile(name).into());
        }
        publish::compare(&storage.store_dir, &info, &name, &file)?;
        let path = info.store_path.clone();
        let new = self.new_path(token, file.id, info, is_elsewhere);
        let outcome = self.publish(Arc::new(vec![new]), is_elsewhere)?.pop();
        // A group of one path has one outcome.
        match outcome.unwrap_or(Published::MissingNar) {
            Published::MissingReferences(references) => {
                let reference = references.into_iter().next().unwrap_or(path.clone());
                Err(Refusal::MissingReference { reference, path }.into())
            }
            Published::MissingNar => Err(Refusal::UnknownFile(name).into()),
            Published::OverLimit { used } => Err(self.over_limit(used).into()),
            Published::TokenInvalid => Err(Refusal::TokenInvalid.into()),
            Published::CacheDeleted => Err(Refusal::CacheDeleted.into()),
            Published::OtherName(names) => {
                let name = path.name().to_owned();
                Err(Refusal::OtherName { name, names }.into())
            }
            Published::OtherPath(found) => Err(self.other_path(path, found)?.into()),
            outcome @ (Published::New | Published::Known | Published::Conflict) => {
                self.follow(hash_part, render);
                Ok((path, outcome))
            }
        }
    }

    /// Returns the refusal of a path whose hash part is that of another one.
    pub(crate) fn other_path(
        &self,
        path: StorePath,
        found: StorePath,
    ) -> Result<Refusal, StorageError> {
        let found = (!self.hides(path.hash_part())?).then_some(found);
        Ok(Refusal::OtherPathExists { path, found })
    }

    /// Publishes all paths of a group, or none of them.
    pub(crate) fn publish(
        &self,
        mut group: Arc<Vec<NewPath>>,
        is_elsewhere: &dyn Fn(&StorePath) -> bool,
    ) -> Result<Vec<Published>, StorageError> {
        let storage = &*self.storage;
        storage.check_room()?;
        for new in group.iter() {
            // If the file of a path that exists is missing, the new NAR replaces it.
            if let Some(known) = self.peek(new.path.hash_part())?
                && known.nar.id != new.nar_id
            {
                storage.seems_whole(&known.nar)?;
            }
        }
        loop {
            let commit = |batch: &[&[NewPath]], patience| storage.commit(batch, patience);
            let waits = storage.metadata.waits();
            let outcomes = waits.lend(|| {
                waits.patiently(PATIENCE, |patience| {
                    storage.queue.publish(&group, patience, commit)
                })
            })?;
            let mut is_outdated = false;
            for (at, outcome) in outcomes.iter().enumerate() {
                let Published::MissingReferences(missing) = outcome else {
                    continue;
                };
                for reference in missing {
                    // The reference is in the index, but the collector of another process has
                    // deleted it. The live Nix store may still have it.
                    if storage.forget(self.id, reference.hash_part())? {
                        let references = &mut Arc::make_mut(&mut group)[at].references;
                        let of_path = references.iter_mut().filter(|new| new.path == *reference);
                        of_path.for_each(|new| new.is_elsewhere = is_elsewhere(reference));
                        is_outdated = true;
                    }
                }
            }
            if !is_outdated {
                return Ok(outcomes);
            }
        }
    }

    /// Converts a checked narinfo to a path that can be published.
    pub(crate) fn new_path(
        &self,
        token: &Token,
        nar_id: i64,
        info: NarInfo,
        is_elsewhere: &dyn Fn(&StorePath) -> bool,
    ) -> NewPath {
        let path = info.store_path;
        let has_self_reference = info.references.contains(&path);
        let others = info.references.into_iter().filter(|other| *other != path);
        NewPath {
            cache: self.id,
            token: token.id,
            nar_id,
            references: others
                .map(|reference| NewReference {
                    is_elsewhere: !self.surely_contains(reference.hash_part())
                        && is_elsewhere(&reference),
                    path: reference,
                })
                .collect(),
            has_self_reference,
            deriver: info.deriver,
            signatures: info.signatures,
            content_address: info.content_address,
            path,
            limit: self.limit(),
        }
    }

    /// Refuses an upload whose token was revoked or has expired since the upload began.
    fn check_token(&self, token: &Token) -> Result<(), PutError> {
        match tokens::is_valid(&self.storage.metadata, token.id)? {
            true => Ok(()),
            false => Err(Refusal::TokenInvalid.into()),
        }
    }
}

/// Returns a reader that decompresses a listing, which is stored with zstd.
///
/// # Errors
///
/// [`StorageError::Damaged`] if the decompressor cannot be created.
pub fn listing_reader(listing: Vec<u8>) -> Result<impl Read + Send, StorageError> {
    zstd::Decoder::new(io::Cursor::new(listing))
        .map_err(|error| StorageError::Damaged(error.to_string()))
}
