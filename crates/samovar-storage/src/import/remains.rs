//! [`Remains`]: the objects in the bucket of a storage whose database is lost.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use samovar_nix::HashPart;
use samovar_nix::narinfo::NarInfo;
use samovar_protocol::names::FileName;
use samovar_protocol::push::NARINFO_LEN_MAX;

use super::file_name;
use crate::error::StorageError;
use crate::layout::{CACHE_INFO, CONFIRMATION};
use crate::location::Location;
use crate::metadata::{NewNar, nars};
use crate::objects::{InPack, NarObject, Objects, pack_files};
use crate::receive::PutError;
use crate::storage::counters::locked;
use crate::storage::{Storage, StoredCache};
use crate::token::Token;
use crate::verify::{Unlimited, verify};

/// Number of packs that are read at the same time.
const AT_ONCE: usize = 4;

/// Maximum length of a text beside the NARs, in bytes.
const TEXT_LEN_MAX: u64 = NARINFO_LEN_MAX as u64;

/// The objects in the bucket of a storage whose database is lost. Nothing in it is changed.
#[derive(Debug)]
pub struct Remains {
    objects: Objects,
    narinfos: Vec<HashPart>,
    /// Keys of the objects with one NAR file each.
    files: HashSet<String>,
    packs: Vec<String>,
}

/// What was found of the NAR files in a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of NAR files that no narinfo names.
    pub unnamed_count: usize,
    /// Keys of the packs that are damaged, each with the reason.
    pub damaged: Vec<(String, String)>,
}

/// A search of packs, by several threads.
struct Search<'a> {
    storage: &'a Storage,
    token: &'a Token,
    /// The names of the files that narinfos name, by their hashes.
    wanted: HashMap<[u8; 32], FileName>,
    /// Hashes of the files that were recorded: a file may be in several packs.
    taken: Mutex<HashSet<[u8; 32]>>,
    found: Mutex<Found>,
    next: AtomicUsize,
}

impl Remains {
    /// Lists the objects in the bucket at a location. `None`: the location has no bucket.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open(location: &Location) -> Result<Option<Self>, StorageError> {
        if location.bucket().is_none() {
            return Ok(None);
        }
        let mut remains = Self {
            objects: Objects::open(location)?,
            narinfos: Vec::new(),
            files: HashSet::new(),
            packs: Vec::new(),
        };
        let narinfos = &mut remains.narinfos;
        remains.objects.list("", &mut |key| {
            let hash_part = key.strip_suffix(".narinfo");
            narinfos.extend(hash_part.and_then(|text| text.parse::<HashPart>().ok()));
            Ok(())
        })?;
        let (files, packs) = (&mut remains.files, &mut remains.packs);
        remains.objects.list("nar/", &mut |key| {
            match pack_files::is_pack(key) {
                true => packs.push(key.to_owned()),
                false if key != CONFIRMATION => {
                    files.insert(key.to_owned());
                }
                false => {}
            }
            Ok(())
        })?;
        Ok(Some(remains))
    }

    /// Returns the text of `nix-cache-info`; empty if there is none.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn cache_info(&self) -> Result<String, StorageError> {
        let text = self.text(CACHE_INFO)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the hash parts of the paths whose narinfos are in the bucket, in their order.
    #[must_use]
    pub fn narinfos(&self) -> &[HashPart] {
        &self.narinfos
    }

    /// Returns the text of the narinfo of a path. `None`: it is not in the bucket.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn narinfo(&self, hash_part: HashPart) -> Result<Option<Vec<u8>>, StorageError> {
        self.text(&crate::layout::narinfo_key(hash_part))
    }

    fn text(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        let Some(file) = self.objects.read(key)? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = io::Read::read_to_end(&mut io::Read::take(file, TEXT_LEN_MAX), &mut text);
        read.map_err(|error| StorageError::file("cannot read", key, error))?;
        Ok(Some(text))
    }

    /// Verifies and records the files in packs that these narinfos name, and counts the files that
    /// none of them names. Each pack is read once.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn record_packed<'a>(
        &self,
        storage: &Storage,
        token: &Token,
        narinfos: impl IntoIterator<Item = &'a NarInfo>,
    ) -> Result<Found, StorageError> {
        let (mut wanted, mut urls) = (HashMap::new(), HashSet::new());
        for info in narinfos {
            urls.insert(info.url.as_str());
            wanted.extend(file_name(info).map(|name| (*name.file_hash(), name)));
        }
        let unnamed = |key: &&String| !urls.contains(key.as_str());
        let search = Search {
            storage,
            token,
            wanted,
            taken: Mutex::default(),
            found: Mutex::new(Found {
                unnamed_count: self.files.iter().filter(unnamed).count(),
                damaged: Vec::new(),
            }),
            next: AtomicUsize::new(0),
        };
        let panicked = |_| Err(StorageError::Bucket("reading a pack panicked".to_owned()));
        thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE.min(self.packs.len()))
                .map(|_| scope.spawn(|| search.run(&self.objects, &self.packs)))
                .collect();
            let threads = threads.into_iter();
            threads
                .map(|thread| thread.join().unwrap_or_else(panicked))
                .fold(Ok(()), Result::and)
        })?;
        Ok(std::mem::take(&mut *locked(&search.found)))
    }

    /// Verifies the NAR file of a narinfo in the bucket, and records it. Does nothing if it is
    /// recorded. Returns its name.
    ///
    /// # Errors
    ///
    /// Any [`PutError`]; one of the source if the file is missing. Nothing is recorded then.
    pub fn adopt(
        &self,
        stored: &StoredCache,
        token: &Token,
        info: &NarInfo,
    ) -> Result<FileName, PutError> {
        let missing = || {
            let text = format!("its file {} is not in the bucket", info.url);
            PutError::Source(io::Error::new(io::ErrorKind::NotFound, text))
        };
        let metadata = &stored.storage.metadata;
        let name = file_name(info).ok_or_else(missing)?;
        if nars::row(metadata, name.file_hash())?.is_some() {
            return Ok(name);
        }
        if !self.files.contains(&info.url) {
            return Err(missing());
        }
        let object = NarObject {
            // There is no row yet, and the whole object is read.
            id: 0,
            key: &info.url,
            len: 0,
            sha256: name.file_hash(),
            pack: None,
        };
        let mut source = self.objects.read_nar(&object)?.ok_or_else(missing)?;
        let limits = &stored.storage.limits;
        let verified = verify(&mut source, &name, &mut io::sink(), limits, &mut Unlimited);
        let verified = verified.map_err(|error| PutError::of_nar(error, &info.url))?;
        let new = NewNar::new(verified, info.url.clone(), false);
        nars::add(metadata, token.id, &[new])?;
        Ok(name)
    }
}

impl Search<'_> {
    /// Reads packs until all are read.
    fn run(&self, objects: &Objects, packs: &[String]) -> Result<(), StorageError> {
        while let Some(key) = packs.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            // It was listed: another program deletes objects.
            let Some(file) = objects.read(key)? else {
                continue;
            };
            match pack_files::read(key, file) {
                Ok((bytes, files)) => self.record(key, &bytes, files)?,
                Err(error) => {
                    let fault = (key.clone(), error.to_string());
                    locked(&self.found).damaged.push(fault);
                }
            }
        }
        Ok(())
    }

    /// Verifies and records the wanted files of a pack.
    fn record(
        &self,
        pack: &str,
        bytes: &[u8],
        files: Vec<(String, Range<usize>)>,
    ) -> Result<(), StorageError> {
        let metadata = &self.storage.metadata;
        let place: Arc<str> = pack.into();
        let (mut new, mut unnamed_count) = (Vec::new(), 0);
        for (key, range) in files {
            let name = key.strip_prefix("nar/").map(str::as_bytes);
            let name = name.and_then(FileName::parse);
            let name = name.and_then(|name| self.wanted.get(name.file_hash()));
            let Some(name) = name else {
                unnamed_count += 1;
                continue;
            };
            // An interrupted rebuild has recorded it, or it was in another pack.
            if nars::row(metadata, name.file_hash())?.is_some()
                || !locked(&self.taken).insert(*name.file_hash())
            {
                continue;
            }
            let start = range.start as u64;
            let mut source = bytes.get(range).unwrap_or_default();
            let limits = &self.storage.limits;
            // A path whose file is refused is reported when it is imported.
            let verified = verify(&mut source, name, &mut io::sink(), limits, &mut Unlimited);
            if let Ok(verified) = verified {
                new.push(NewNar {
                    pack: Some(InPack {
                        key: Arc::clone(&place),
                        start,
                    }),
                    ..NewNar::new(verified, key, false)
                });
            }
        }
        locked(&self.found).unnamed_count += unnamed_count;
        match new.is_empty() {
            true => Ok(()),
            false => nars::add(metadata, self.token.id, &new).map(drop),
        }
    }
}
