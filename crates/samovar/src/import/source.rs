//! The caches from which paths are imported: directories, and caches over HTTP.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, anyhow, ensure};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_protocol::names::FileName;
use samovar_protocol::push::NARINFO_LEN_MAX;
use samovar_storage::import::{Remains, adopt_nar, file_name, owner_reads};
use samovar_storage::token::Token;
use samovar_storage::verify::Unlimited;
use samovar_storage::{StoredCache, nar, open_regular};

use super::Failure;
use crate::cache::Cache;
use crate::outcome::Failed;
use crate::roots;
use crate::storage::copy;
use crate::walk;

/// The caches from which paths are imported. A path comes from the first one that has it.
pub(super) struct Source {
    caches: Vec<Kind>,
    store_dir: StoreDir,
    /// Index of the cache that a path comes from. A path that is not in the map comes from the
    /// first cache.
    origins: Mutex<HashMap<HashPart, usize>>,
    /// Directory for downloaded NAR files whose hash is not known yet.
    tmp: PathBuf,
}

enum Kind {
    Directory {
        root: PathBuf,
        /// Whether NAR files are published by hard links instead of copies.
        links: bool,
    },
    Http(Box<Cache>),
    /// The bucket of the storage itself, whose database is made again.
    Remains(Box<Remains>),
}

impl Source {
    /// Opens the caches that `--from` names. If `from` is empty, opens the storage directory
    /// itself.
    pub(super) fn open(from: &[&String], storage: &Path, links: bool) -> anyhow::Result<Self> {
        let mut opened = Vec::new();
        for text in from {
            opened.push(Kind::open(text, links)?);
        }
        if opened.is_empty() {
            opened.push(Kind::directory(storage, true)?);
        }
        let (caches, dirs): (Vec<Kind>, Vec<StoreDir>) = opened.into_iter().unzip();
        let store_dir = dirs.first().cloned().unwrap_or_default();
        ensure!(
            dirs.iter().all(|dir| *dir == store_dir),
            "the caches have paths of different store directories"
        );
        Ok(Self {
            caches,
            store_dir,
            origins: Mutex::default(),
            tmp: storage.join(".samovar/tmp"),
        })
    }

    /// Opens the bucket of a storage whose database is made again. `storage`: its directory.
    pub(super) fn of_remains(remains: Remains, storage: &Path) -> anyhow::Result<Self> {
        let store_dir = store_dir(&remains.cache_info()?)
            .context("the StoreDir in nix-cache-info is invalid")?;
        Ok(Self {
            caches: vec![Kind::Remains(Box::new(remains))],
            store_dir,
            origins: Mutex::default(),
            tmp: storage.join(".samovar/tmp"),
        })
    }

    /// Returns the bucket of the storage itself, if this is the source.
    pub(super) fn remains(&self) -> Option<&Remains> {
        self.caches.iter().find_map(|cache| match cache {
            Kind::Remains(remains) => Some(&**remains),
            _ => None,
        })
    }

    pub(super) fn store_dir(&self) -> &StoreDir {
        &self.store_dir
    }

    /// Returns the narinfos in the closures of `paths`. If `paths` is empty, returns all narinfos
    /// of the caches that are directories. Each narinfo comes after the narinfos of its references.
    pub(super) fn find(&self, paths: &[String]) -> anyhow::Result<(Vec<NarInfo>, Vec<Failure>)> {
        let failures = Mutex::new(Vec::new());
        let fail = |name: String, reason: String| {
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.push(Failure { name, reason });
        };
        let roots = roots::read(paths, &self.store_dir, io::stdin().lock())?;
        let mut named: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
        for cache in self.caches.iter().filter(|_| paths.is_empty()) {
            match cache {
                Kind::Directory { root, .. } => named.extend(narinfos_in(root)?),
                Kind::Remains(remains) => named.extend(remains.narinfos()),
                Kind::Http(_) => {
                    let error = "a cache over HTTP has no list of its paths: name those to import";
                    return Err(Failed::Usage.because(anyhow!(error)));
                }
            }
        }
        let found = walk::closure(&named, &HashSet::new(), |hash_part| {
            for (at, cache) in self.caches.iter().enumerate() {
                let info = match cache {
                    // Request each narinfo alone: bulk queries do not list the uploaded paths of a
                    // server.
                    Kind::Http(cache) => cache.one(hash_part)?,
                    Kind::Directory { root, .. } => {
                        let read = read_narinfo(root, hash_part, &self.store_dir);
                        // A narinfo that cannot be read fails its own path only, not the import.
                        read.unwrap_or_else(|error| {
                            fail(format!("{hash_part}.narinfo"), format!("{error:#}"));
                            None
                        })
                    }
                    Kind::Remains(remains) => match remains.narinfo(hash_part)? {
                        None => None,
                        Some(text) => {
                            let parsed = parse_narinfo(&text, hash_part, &self.store_dir);
                            parsed.map(Some).unwrap_or_else(|error| {
                                fail(format!("{hash_part}.narinfo"), format!("{error:#}"));
                                None
                            })
                        }
                    },
                };
                if info.is_some() {
                    if at > 0 {
                        self.origins().insert(hash_part, at);
                    }
                    return Ok(info);
                }
            }
            Ok(None)
        })?;
        for root in roots {
            if found.missing.contains(&root.hash_part) {
                fail(root.text, "the source does not have this path".to_owned());
            }
        }
        let failures = failures
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok((found.narinfos, failures))
    }

    fn origins(&self) -> MutexGuard<'_, HashMap<HashPart, usize>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the NAR file of a narinfo from its cache, verifies it, and stores it in `cache`.
    pub(super) fn receive(
        &self,
        cache: &StoredCache,
        token: &Token,
        info: &NarInfo,
    ) -> anyhow::Result<FileName> {
        let name = file_name(info);
        let origin = self.origins().get(&info.store_path.hash_part()).copied();
        match &self.caches[origin.unwrap_or(0)] {
            Kind::Directory { root, links } => {
                let file = root.join(relative(&info.url)?);
                let opened = open_regular(&file);
                let mut reader = opened.with_context(|| format!("cannot read {}", info.url))?;
                let name = match name {
                    Some(name) => name,
                    None => FileName::new(copy(&mut reader, &mut io::sink())?, info.compression),
                };
                // A link keeps the owner and the mode of the file, which may belong to root.
                if *links && owner_reads(cache, &file)? {
                    adopt_nar(cache, token, &name, &file)?;
                } else {
                    let mut reader = open_regular(&file)?;
                    nar::put(cache, token, &name, &mut reader, &mut Unlimited)?;
                }
                Ok(name)
            }
            Kind::Remains(remains) => Ok(remains.adopt(cache, token, info)?),
            Kind::Http(http) => {
                let path = format!("/{}", info.url);
                let response = http.http().get(&path)?;
                let (status, url) = (response.status(), http.http().url(&path));
                ensure!(status == 200, "{url} answered {status}");
                let mut reader = response.into_body().into_reader();
                if let Some(name) = name {
                    nar::put(cache, token, &name, &mut reader, &mut Unlimited)?;
                    return Ok(name);
                }
                // The storage names a NAR file by its hash, which is known only after the whole
                // download.
                let mut file = tempfile::NamedTempFile::new_in(&self.tmp)?;
                let name = FileName::new(copy(&mut reader, &mut file)?, info.compression);
                adopt_nar(cache, token, &name, file.path())?;
                Ok(name)
            }
        }
    }
}

impl Kind {
    fn open(text: &str, links: bool) -> anyhow::Result<(Self, StoreDir)> {
        if !text.starts_with("http://") && !text.starts_with("https://") {
            let path = text.strip_prefix("file://").unwrap_or(text);
            if path.len() < text.len() && !path.starts_with('/') {
                return Err(Failed::Usage.because(anyhow!(
                    "{text:?} has no absolute path: write three slashes, file:///{path}"
                )));
            }
            return Self::directory(Path::new(path), links);
        }
        let cache = Cache::open(text)?;
        let store_dir = cache.store_dir().clone();
        Ok((Self::Http(Box::new(cache)), store_dir))
    }

    fn directory(root: &Path, links: bool) -> anyhow::Result<(Self, StoreDir)> {
        let info = root.join("nix-cache-info");
        let text = open_regular(&info)
            .and_then(io::read_to_string)
            .with_context(|| format!("{root:?} is not a binary cache: cannot read {info:?}"))?;
        let store_dir =
            store_dir(&text).with_context(|| format!("the StoreDir in {info:?} is invalid"))?;
        let root = root.to_owned();
        Ok((Self::Directory { root, links }, store_dir))
    }
}

/// Returns the store directory that a `nix-cache-info` states.
fn store_dir(cache_info: &str) -> anyhow::Result<StoreDir> {
    let mut lines = cache_info.lines();
    match lines.find_map(|line| line.strip_prefix("StoreDir:")) {
        Some(dir) => Ok(StoreDir::new(dir.trim())?),
        None => Ok(StoreDir::default()),
    }
}

/// Reads the narinfo of a path from a directory. Returns `None` if the directory has no such file.
fn read_narinfo(
    root: &Path,
    hash_part: HashPart,
    dir: &StoreDir,
) -> anyhow::Result<Option<NarInfo>> {
    let file = match open_regular(&root.join(format!("{hash_part}.narinfo"))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(NARINFO_LEN_MAX as u64).read_to_end(&mut text)?;
    parse_narinfo(&text, hash_part, dir).map(Some)
}

/// Parses the narinfo of a path.
fn parse_narinfo(text: &[u8], hash_part: HashPart, dir: &StoreDir) -> anyhow::Result<NarInfo> {
    let info = NarInfo::parse(dir, text).context("the narinfo is malformed")?;
    let found = &info.store_path;
    ensure!(
        found.hash_part() == hash_part,
        "the file is the narinfo of {found}"
    );
    Ok(info)
}

/// Returns the hash parts of all narinfos in a directory.
fn narinfos_in(root: &Path) -> anyhow::Result<Vec<HashPart>> {
    let failed = || format!("cannot list {root:?}");
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name();
        let hash_part = name.to_str().and_then(|name| name.strip_suffix(".narinfo"));
        found.extend(hash_part.and_then(|text| text.parse::<HashPart>().ok()));
    }
    // Sort, so that every run imports the paths in the same order.
    found.sort_unstable();
    Ok(found)
}

/// Returns the `URL` of a narinfo as a relative path. Fails if the path leaves the cache's
/// directory.
fn relative(url: &str) -> anyhow::Result<&Path> {
    let path = Path::new(url);
    let is_within = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        is_within,
        "its URL {url:?} is not a file below the directory"
    );
    Ok(path)
}
