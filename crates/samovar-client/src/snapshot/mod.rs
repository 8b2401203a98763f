//! Downloads snapshots of trees: their manifests and their NARs.

mod ahead;
mod nar_stream;
mod parts;
mod seek_table;
mod spool;

use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, anyhow, ensure};
use samovar_nix::nar::{Decoder, Event};
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{NarHash, PublicKey, StoreDir, StorePath, path_of_nar};
use samovar_verify::decoded_nar;
use samovar_workspace::Manifest;
use sha2::{Digest as _, Sha256};

use crate::cache::{Cache, INFO_PATH};
use crate::credentials::Sources;
use crate::failed::Failed;
use crate::http::{Http, Patience};
use crate::refs::{PathOrRef, Refs};
use crate::remote::Remote;
use crate::trust::Trust;

use ahead::Ahead;
use nar_stream::NarStream;
pub use seek_table::frames;
use spool::Spool;

/// Maximum length of a manifest, in bytes: about 5 million entries.
const MANIFEST_LEN_MAX: u64 = 512 << 20;

/// The snapshots of a cache.
#[derive(Debug)]
pub struct Snapshots {
    /// Client for the URL of the cache, without `/upload`.
    http: Http,
    /// The cache of uploaded paths.
    cache: Cache,
    refs: Refs,
    /// The signatures that manifests and refs must have.
    trust: Trust,
}

/// A downloaded manifest.
#[derive(Debug, Clone)]
pub struct Downloaded {
    /// The manifest.
    pub manifest: Manifest,
    /// Store path of the manifest.
    pub path: StorePath,
    /// Hash of the manifest's NAR.
    pub nar_hash: NarHash,
    /// The manifest's text.
    pub text: String,
}

impl Snapshots {
    /// Opens the cache at `remote`, whose URL is without `/upload`. `keys`: if there are any, one
    /// of them must have signed each ref and each manifest that is read.
    ///
    /// # Errors
    ///
    /// The cache cannot be reached, refuses the login, or takes no uploads.
    pub fn open(remote: Remote, sources: &Sources, keys: &[PublicKey]) -> anyhow::Result<Self> {
        let http = client(remote, sources)?;
        let below = http.at(format!("{}/upload", http.remote()));
        let response = below.get(INFO_PATH)?;
        if matches!(response.status().as_u16(), 404 | 405) {
            let error = anyhow!(
                "{} takes no uploads, and so it has no snapshots: the operator of the cache must \
                 set the option storage",
                http.remote()
            );
            return Err(Failed::Refused.because(error));
        }
        Ok(Self::new(http, Cache::with_info(below, response)?, keys))
    }

    /// Opens any binary cache at `remote`, also one without snapshots.
    ///
    /// # Errors
    ///
    /// The cache cannot be reached, or refuses the login.
    pub fn open_any(remote: Remote, sources: &Sources, keys: &[PublicKey]) -> anyhow::Result<Self> {
        let http = client(remote, sources)?;
        let response = http.get(INFO_PATH)?;
        let cache = Cache::with_info(http.clone(), response)?;
        Ok(Self::new(http, cache, keys))
    }

    fn new(http: Http, cache: Cache, keys: &[PublicKey]) -> Self {
        let trust = Trust::new(keys, cache.store_dir());
        Self {
            refs: Refs::new(&http).with_trust(trust.clone()),
            http,
            cache,
            trust,
        }
    }

    /// Changes the errors for keys that a workspace remembers.
    pub fn with_remembered_keys(self) -> Self {
        let trust = self.trust.remembered();
        Self {
            refs: self.refs.with_trust(trust.clone()),
            trust,
            ..self
        }
    }

    /// Returns a client for the same cache that sends each request once.
    pub fn once(&self) -> Self {
        let cache = self.cache.http().once();
        let http = self.http.once();
        Self {
            cache: Cache::with_store_dir(cache, self.store_dir().clone()),
            refs: Refs::new(&http).with_trust(self.trust.clone()),
            http,
            trust: self.trust.clone(),
        }
    }

    /// Finds the store path that the command line names, and opens its cache. If it names a ref,
    /// also returns the generation. `keys`: if there are any, one of them must have signed the path
    /// and, if the command line names a ref, the newest generation of the ref: the signature of a
    /// path does not state its generation.
    ///
    /// # Errors
    ///
    /// There is no such ref, generation or path, or no key has signed it.
    pub fn find(
        wanted: &PathOrRef,
        sources: &Sources,
        keys: &[PublicKey],
    ) -> anyhow::Result<(Self, StorePath, Option<u64>)> {
        let (snapshots, path, generation) = match wanted {
            PathOrRef::Ref(name) => {
                let snapshots = Self::open(name.remote.clone(), sources, keys)?;
                let log = snapshots.refs.log(&name.name)?;
                let one = log.generation(&name.name, name.generation)?;
                (snapshots, one.manifest, Some(one.number))
            }
            PathOrRef::Path(remote, text) => {
                let snapshots = Self::open_any(remote.clone(), sources, keys)?;
                let path = StorePath::parse(snapshots.store_dir(), text).map_err(|error| {
                    Failed::Usage.because(anyhow!("{text:?} is not a store path: {error}"))
                })?;
                (snapshots, path, None)
            }
        };
        if !snapshots.trust.is_empty() {
            let narinfo = snapshots.signed_narinfo(&path)?;
            narinfo.ok_or_else(|| snapshots.lacks(&path))?;
        }
        Ok((snapshots, path, generation))
    }

    /// Returns the client for the URL of the cache, without `/upload`.
    pub fn http(&self) -> &Http {
        &self.http
    }

    /// Returns the cache of uploaded paths.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the refs of the cache.
    pub fn refs(&self) -> &Refs {
        &self.refs
    }

    /// Returns the store directory of the cache.
    pub fn store_dir(&self) -> &StoreDir {
        self.cache.store_dir()
    }

    /// Downloads and verifies a manifest.
    ///
    /// # Errors
    ///
    /// The cache lacks the manifest, or has another one than its store path states, or the manifest
    /// lacks a required signature.
    pub fn manifest(&self, path: &StorePath) -> anyhow::Result<Downloaded> {
        let narinfo = self.narinfo(path)?;
        self.trust.check_path(&narinfo)?;
        let mut nar = Vec::new();
        ensure!(
            narinfo.nar_size <= MANIFEST_LEN_MAX,
            Failed::Refused.because(anyhow!(
                "the manifest {path} has {} bytes, more than the limit of {MANIFEST_LEN_MAX}",
                narinfo.nar_size
            ))
        );
        self.read_nar(&narinfo, &Arc::default(), |stream| {
            let read = stream.take(narinfo.nar_size + 1).read_to_end(&mut nar);
            read.with_context(|| format!("cannot download the manifest {path}"))
        })?;
        let nar_hash = NarHash::from_bytes(Sha256::digest(&nar).into());
        ensure!(
            nar_hash == narinfo.nar_hash,
            Failed::Refused.because(anyhow!(
                "the manifest {path} arrived damaged: its hash is not that of its store path"
            ))
        );
        let refused = |error: anyhow::Error| Failed::Refused.because(error);
        let text = contents(&nar).with_context(|| format!("{path} is not a manifest"));
        let text = text.map_err(refused)?;
        let manifest = Manifest::parse(&text)
            .with_context(|| format!("{path} cannot be trusted: it is not a valid manifest"))
            .map_err(refused)?;
        ensure!(
            narinfo.references.contains(&manifest.tree),
            Failed::Refused.because(anyhow!("the manifest {path} does not refer to its tree"))
        );
        check_path(&manifest.tree, &manifest.nar_hash, &[], self.store_dir())?;
        Ok(Downloaded {
            manifest,
            path: path.clone(),
            nar_hash,
            text,
        })
    }

    /// Requests the narinfo of a snapshot's path, and checks that the content gives this store
    /// path.
    ///
    /// # Errors
    ///
    /// The cache does not answer or lacks the path, or the path does not match its content.
    pub fn narinfo(&self, path: &StorePath) -> anyhow::Result<NarInfo> {
        let narinfo = self.any_narinfo(path)?;
        let (nar_hash, references) = (&narinfo.nar_hash, &narinfo.references);
        check_path(path, nar_hash, references, self.store_dir())?;
        Ok(narinfo)
    }

    /// Requests the narinfo of any path. Unlike [`narinfo`](Self::narinfo), does not check that the
    /// content gives this store path: the signatures of the narinfo vouch for the content.
    ///
    /// # Errors
    ///
    /// The cache does not answer, or lacks the path.
    pub fn any_narinfo(&self, path: &StorePath) -> anyhow::Result<NarInfo> {
        self.one(path)?.ok_or_else(|| self.lacks(path))
    }

    /// Returns the error about a path that the cache does not have.
    pub fn lacks(&self, path: &StorePath) -> anyhow::Error {
        Failed::Refused.because(anyhow!("{} does not have {path}", self.cache.url()))
    }

    /// Requests the narinfo of any path. Returns `None` if the cache does not have the path.
    ///
    /// # Errors
    ///
    /// The narinfo lacks a required signature, or the cache does not answer.
    pub fn signed_narinfo(&self, path: &StorePath) -> anyhow::Result<Option<NarInfo>> {
        let narinfo = self.one(path)?;
        if let Some(narinfo) = &narinfo {
            self.trust.check_path(narinfo)?;
        }
        Ok(narinfo)
    }

    fn one(&self, path: &StorePath) -> anyhow::Result<Option<NarInfo>> {
        let narinfo = self.cache.one(path.hash_part())?;
        Ok(narinfo.filter(|narinfo| narinfo.store_path == *path))
    }

    /// Returns the error about a NAR with a file that differs from the manifest. `path`: that in
    /// the tree.
    pub fn damaged(&self, narinfo: &NarInfo, path: &str, reason: &str) -> anyhow::Error {
        let url = self.cache.http().url(&format!("/{}", narinfo.url));
        Failed::Refused.because(anyhow!(
            "{url} is damaged on the server: {path} differs from the manifest: {reason}; the \
             operator of the server should run samovar fsck --deep"
        ))
    }

    /// Downloads a NAR, and calls `read` with a reader of the decompressed NAR, which is not
    /// verified yet. `received`: counts the received bytes.
    ///
    /// # Errors
    ///
    /// The NAR cannot be downloaded or decompressed; errors of `read`.
    pub fn read_nar<T>(
        &self,
        narinfo: &NarInfo,
        received: &Arc<AtomicU64>,
        read: impl FnOnce(&mut dyn Read) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.read_file(narinfo, None, received, read)
    }

    /// Downloads the file of a NAR, or these bytes of it, which must be whole frames, and calls
    /// `read` with a reader of the decompressed content.
    fn read_file<T>(
        &self,
        narinfo: &NarInfo,
        range: Option<Range<u64>>,
        received: &Arc<AtomicU64>,
        read: impl FnOnce(&mut dyn Read) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let url = format!("/{}", narinfo.url);
        let stream = NarStream::start(self.cache.http(), url, range, Arc::clone(received))?;
        let failure = stream.failure();
        let read = read_decompressed(stream, narinfo, read);
        read.map_err(|error| network_error(&failure, narinfo).unwrap_or(error))
    }

    /// Like [`read_nar`](Self::read_nar), but keeps the received bytes of a large download in the
    /// file at `path` until it is complete: a call after this process was killed, or after the
    /// network has failed, continues the download.
    ///
    /// # Errors
    ///
    /// As [`read_nar`](Self::read_nar).
    pub fn read_nar_resumably<T>(
        &self,
        narinfo: &NarInfo,
        path: &Path,
        received: &Arc<AtomicU64>,
        mut read: impl FnMut(&mut dyn Read) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let Some(mut spool) = Spool::open(path, narinfo) else {
            return self.read_nar(narinfo, received, read);
        };
        let is_continued = spool.len > 0;
        let (mut outcome, mut is_cut_off) = self.read_spool(&spool, narinfo, received, &mut read);
        if outcome.is_err() && is_continued && !is_cut_off {
            // The bytes in the file may be damaged, as after a power cut.
            spool.clear()?;
            (outcome, is_cut_off) = self.read_spool(&spool, narinfo, received, &mut read);
        }
        if !is_cut_off || spool.is_empty() {
            spool.remove();
        }
        outcome
    }

    /// Reads a NAR from its spool and from the server. Also returns whether the network has failed.
    fn read_spool<T>(
        &self,
        spool: &Spool,
        narinfo: &NarInfo,
        received: &Arc<AtomicU64>,
        read: &mut dyn FnMut(&mut dyn Read) -> anyhow::Result<T>,
    ) -> (anyhow::Result<T>, bool) {
        let mut rest = None;
        if spool.len < spool.file_size {
            let url = format!("/{}", narinfo.url);
            let range = (spool.len > 0).then_some(spool.len..spool.file_size);
            match NarStream::start(self.cache.http(), url, range, Arc::clone(received)) {
                Ok(stream) => rest = Some(stream),
                Err(error) => {
                    let is_cut_off = Failed::of(&error) == Some(Failed::Unavailable);
                    return (Err(error), is_cut_off);
                }
            }
        }
        let failure = rest.as_ref().map(NarStream::failure).unwrap_or_default();
        let outcome = spool
            .reader(rest)
            .map_err(anyhow::Error::from)
            .and_then(|reader| read_decompressed(reader, narinfo, read));
        match network_error(&failure, narinfo).filter(|_| outcome.is_err()) {
            Some(error) => (Err(error), true),
            None => (outcome, false),
        }
    }
}

/// Checks that the content gives this store path, so that no signature is needed to trust the
/// content.
///
/// # Errors
///
/// It is not.
pub fn check_path(
    path: &StorePath,
    nar_hash: &NarHash,
    references: &[StorePath],
    dir: &StoreDir,
) -> anyhow::Result<()> {
    let expected = path_of_nar(nar_hash, references, path.name(), dir);
    ensure!(
        expected.is_ok_and(|expected| expected == *path),
        Failed::Refused.because(anyhow!(
            "{path} is not the store path of its content: this is not a snapshot, or the \
             cache is damaged"
        ))
    );
    Ok(())
}

/// Returns the error of the network if it has cut off a download. The reader of the download may
/// have failed with another error.
fn network_error(failure: &OnceLock<String>, narinfo: &NarInfo) -> Option<anyhow::Error> {
    let failure = failure.get()?;
    let path = &narinfo.store_path;
    Some(Failed::Unavailable.because(anyhow!("cannot download {path}: {failure}")))
}

/// Calls `read` with a reader of the decompressed NAR.
fn read_decompressed<T>(
    mut stream: impl Read + Send + 'static,
    narinfo: &NarInfo,
    read: impl FnOnce(&mut dyn Read) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    match narinfo.compression {
        Compression::None => read(&mut stream),
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::new(stream)?;
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            read(&mut Ahead::start(decoder)?)
        }
        other => {
            let unsupported = |error| {
                let path = &narinfo.store_path;
                Failed::Refused.because(anyhow!("cannot read the NAR of {path}: {error}"))
            };
            decoded_nar(&mut stream, other, read).map_err(unsupported)?
        }
    }
}

/// Returns a client for a cache.
fn client(mut remote: Remote, sources: &Sources) -> anyhow::Result<Http> {
    let authorized = sources.authorize(&mut remote);
    authorized.map_err(|error| Failed::Usage.because(error))?;
    Http::new(remote, Patience::UPLOAD)
}

/// Maximum window of a zstd frame, as a power of two: the maximum that servers accept.
pub const WINDOW_LOG_MAX: u32 = 27;

/// Returns the contents of a NAR that is a single regular file with UTF-8 text.
fn contents(nar: &[u8]) -> anyhow::Result<String> {
    let mut decoder = Decoder::new();
    let mut input = nar;
    let mut bytes = Vec::new();
    while !decoder.is_done() {
        match decoder.decode(&mut input)? {
            Some(Event::Contents(piece)) => bytes.extend_from_slice(piece),
            Some(Event::DirectoryBegin | Event::Symlink { .. }) => {
                anyhow::bail!("its NAR is not a file")
            }
            Some(_) => {}
            None => anyhow::bail!("its NAR is truncated"),
        }
    }
    Ok(String::from_utf8(bytes)?)
}
