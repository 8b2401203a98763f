//! Downloads snapshots of trees: their manifests and their NARs.

mod ahead;
mod nar_stream;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, anyhow, ensure};
use samovar_nix::nar::{Decoder, Event};
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{NarHash, PublicKey, StoreDir, StorePath};
use samovar_storage::verify::{Encoding, Unlimited, decoded};
use samovar_storage::{PinName, path_of_nar};
use samovar_workspace::Manifest;
use sha2::{Digest as _, Sha256};

use crate::cache::{Cache, INFO_PATH};
use crate::credentials::Sources;
use crate::http::{Http, Patience};
use crate::outcome::Failed;
use crate::refs::{Generation, Refs};
use crate::remote::Remote;

use ahead::Ahead;
pub(crate) use nar_stream::NarStream;

/// Maximum length of a manifest, in bytes: about 5 million entries.
const MANIFEST_LEN_MAX: u64 = 512 << 20;

/// The snapshots of a cache.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// Client for the URL of the cache, without `/upload`.
    http: Http,
    /// The cache of uploaded paths.
    cache: Cache,
    refs: Refs,
}

/// A downloaded manifest.
#[derive(Debug, Clone)]
pub(crate) struct Downloaded {
    pub(crate) manifest: Manifest,
    /// Store path of the manifest.
    pub(crate) path: StorePath,
    /// Hash of the manifest's NAR.
    pub(crate) nar_hash: NarHash,
    /// The manifest's text.
    pub(crate) text: String,
}

impl Snapshots {
    /// Opens the cache at `remote`, whose URL is without `/upload`.
    ///
    /// # Errors
    ///
    /// The cache cannot be reached, refuses the login, or takes no uploads.
    pub(crate) fn open(mut remote: Remote, sources: &Sources) -> anyhow::Result<Self> {
        let authorized = sources.authorize(&mut remote);
        authorized.map_err(|error| Failed::Usage.because(error))?;
        let http = Http::new(remote, Patience::UPLOAD)?;
        let below = http.at(format!("{}/upload", http.remote()));
        let response = below.get(INFO_PATH)?;
        if matches!(response.status().as_u16(), 404 | 405) {
            let error = anyhow!(
                "{} takes no uploads, and so it has no snapshots: its operator must set storage",
                http.remote()
            );
            return Err(Failed::Refused.because(error));
        }
        let refs = Refs::new(&http);
        Ok(Self {
            cache: Cache::with_info(below, response)?,
            http,
            refs,
        })
    }

    /// Opens any binary cache at `remote`, also one without snapshots.
    ///
    /// # Errors
    ///
    /// The cache cannot be reached, or refuses the login.
    pub(crate) fn open_any(mut remote: Remote, sources: &Sources) -> anyhow::Result<Self> {
        let authorized = sources.authorize(&mut remote);
        authorized.map_err(|error| Failed::Usage.because(error))?;
        let http = Http::new(remote, Patience::UPLOAD)?;
        let response = http.get(INFO_PATH)?;
        Ok(Self {
            cache: Cache::with_info(http.clone(), response)?,
            refs: Refs::new(&http),
            http,
        })
    }

    /// Returns one generation of a ref. `number`: `None` for the newest one. `keys`: if there are
    /// any, one of them must have signed the newest generation of the ref.
    ///
    /// # Errors
    ///
    /// There is no such ref or generation, or no key has signed it.
    pub(crate) fn trusted_generation(
        &self,
        name: &PinName,
        number: Option<u64>,
        keys: &[PublicKey],
    ) -> anyhow::Result<Generation> {
        let log = self.refs.log(name)?;
        if !log.is_signed(name, keys, self.store_dir()) {
            let error = anyhow!("the ref {name} is not signed by a key of --trusted-public-keys");
            return Err(Failed::Refused.because(error));
        }
        log.generation(name, number)
    }

    /// Returns the client for the URL of the cache, without `/upload`.
    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// Returns the cache of uploaded paths.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn refs(&self) -> &Refs {
        &self.refs
    }

    pub(crate) fn store_dir(&self) -> &StoreDir {
        self.cache.store_dir()
    }

    /// Downloads and verifies a manifest.
    ///
    /// # Errors
    ///
    /// The cache lacks the manifest, or has another one than its store path states.
    pub(crate) fn manifest(&self, path: &StorePath) -> anyhow::Result<Downloaded> {
        let narinfo = self.narinfo(path)?;
        let mut nar = Vec::new();
        ensure!(
            narinfo.nar_size <= MANIFEST_LEN_MAX,
            "the manifest {path} has {} bytes, more than the limit of {MANIFEST_LEN_MAX}",
            narinfo.nar_size
        );
        self.read_nar(&narinfo, &Arc::default(), |stream| {
            let read = stream.take(narinfo.nar_size + 1).read_to_end(&mut nar);
            read.with_context(|| format!("cannot download the manifest {path}"))
        })?;
        let nar_hash = NarHash::from_bytes(Sha256::digest(&nar).into());
        ensure!(
            nar_hash == narinfo.nar_hash,
            "the manifest {path} arrived damaged: its hash is not that of its store path"
        );
        let refused = |error: anyhow::Error| Failed::Refused.because(error);
        let text = contents(&nar).with_context(|| format!("{path} is not a manifest"));
        let text = text.map_err(refused)?;
        let manifest = Manifest::parse(&text)
            .with_context(|| format!("{path} cannot be trusted: it is not a valid manifest"))
            .map_err(refused)?;
        ensure!(
            narinfo.references.contains(&manifest.tree),
            "the manifest {path} does not refer to its tree"
        );
        self.check_path(&manifest.tree, &manifest.nar_hash, &[])?;
        Ok(Downloaded {
            manifest,
            path: path.clone(),
            nar_hash,
            text,
        })
    }

    /// Requests the narinfo of a snapshot's path, and checks that the path is that of the content.
    pub(crate) fn narinfo(&self, path: &StorePath) -> anyhow::Result<NarInfo> {
        let narinfo = self.any_narinfo(path)?;
        self.check_path(path, &narinfo.nar_hash, &narinfo.references)?;
        Ok(narinfo)
    }

    /// Requests the narinfo of any path. Unlike [`narinfo`](Self::narinfo), does not check that the
    /// path is that of the content: its signatures vouch for it.
    pub(crate) fn any_narinfo(&self, path: &StorePath) -> anyhow::Result<NarInfo> {
        let narinfo = self.cache.one(path.hash_part())?;
        let narinfo = narinfo.filter(|narinfo| narinfo.store_path == *path);
        narinfo.ok_or_else(|| {
            Failed::Refused.because(anyhow!("{} does not have {path}", self.cache.url()))
        })
    }

    /// Checks that a store path is that of its content, so that no signature is needed to trust it.
    fn check_path(
        &self,
        path: &StorePath,
        nar_hash: &NarHash,
        references: &[StorePath],
    ) -> anyhow::Result<()> {
        let expected = path_of_nar(nar_hash, references, path.name(), self.store_dir());
        ensure!(
            expected.is_ok_and(|expected| expected == *path),
            "{path} is not the store path of its content: this is not a snapshot, or the cache is \
             damaged"
        );
        Ok(())
    }

    /// Downloads a NAR, and calls `read` with a reader of the decompressed NAR, which is not
    /// verified yet. `received`: counts the received bytes.
    ///
    /// # Errors
    ///
    /// The NAR cannot be downloaded or decompressed; errors of `read`.
    pub(crate) fn read_nar<T>(
        &self,
        narinfo: &NarInfo,
        received: &Arc<AtomicU64>,
        read: impl FnOnce(&mut dyn Read) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let url = format!("/{}", narinfo.url);
        let mut stream = NarStream::start(self.cache.http(), url, Arc::clone(received))?;
        match narinfo.compression {
            Compression::None => read(&mut stream),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::new(stream)?;
                decoder.window_log_max(WINDOW_LOG_MAX)?;
                read(&mut Ahead::start(decoder)?)
            }
            other => {
                let encoding = Encoding::from_name(other.name());
                let encoding = encoding.ok_or_else(|| {
                    anyhow!(
                        "{} is compressed with {}, which is not supported",
                        narinfo.store_path,
                        other.name()
                    )
                })?;
                let mut outcome = None;
                let decoded = decoded(&mut stream, encoding, &mut Unlimited, |nar| {
                    outcome = Some(read(nar));
                    Ok(())
                });
                decoded?;
                outcome.context("the NAR was not read")?
            }
        }
    }
}

/// Maximum window of a zstd frame, as a power of two: the maximum that servers accept.
const WINDOW_LOG_MAX: u32 = 27;

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
            None => anyhow::bail!("its NAR is cut off"),
        }
    }
    Ok(String::from_utf8(bytes)?)
}
