//! Uploads snapshots of trees.
//!
//! # Theory of operation
//!
//! If the server has an earlier snapshot, the client sends two recipes, for the tree and for the
//! manifest. A recipe contains the new bytes, and references to the ranges that have not changed.
//! The server assembles both NARs, and computes the hash of the tree's NAR. So the client need not
//! read the files that have not changed: the digests in its manifest show every difference.
//!
//! Otherwise, or if the server refuses a recipe, the client sends the whole NARs, as for store
//! paths.

use std::io::{self, Cursor, Read, Write};

use anyhow::{Context as _, anyhow, bail, ensure};
use samovar_nix::{ContentAddress, Method, NarHash, PathInfo, StoreDir, StorePath, path_of_nar};
use samovar_protocol::names::PinName;
use samovar_protocol::push::{AssembleQuery, Assembled, OpenAnswer, Opened, Target};
use samovar_protocol::recipe::{self, RecipeError, WINDOW_LOG, WINDOW_LOG_MAX};
use samovar_workspace::delta::{Delta, Op};
use samovar_workspace::{Entries, Manifest, pack};
use sha2::{Digest as _, Sha256};
use zstd::zstd_safe::CParameter;

use super::compress::{Compressing, Nars};
use super::ledger;
use super::local_tree::read_error;
use super::resume::Unfinished;
use super::session::{self, Opening, Session, answer};
use crate::failed::Failed;
use crate::http::Http;
use crate::progress::Progress;
use crate::refs::path_names;
use crate::snapshot::{Downloaded, Snapshots};

/// Level of zstd: a push is limited by the compressor, not by the network, at 1 Gbit/s.
const LEVEL: i32 = 1;

/// Level of zstd for recipes, which are short.
const RECIPE_LEVEL: i32 = 3;

/// Length of the content of one frame of a tree's NAR, in bytes.
const FRAME_LEN: usize = 1 << 20;

/// Length of a recipe in bytes from which repetitions are sought in the whole recipe. A new version
/// of a program often has several files that are nearly the same.
const LONG_LEN_MIN: u64 = 8 << 20;

/// Largest share of the new NAR that a recipe may send, in percent. Above it, the whole NAR is
/// sent: its upload can continue after an interruption, the upload of a recipe cannot.
const RECIPE_SHARE_MAX: u64 = 50;

/// A tree to upload.
pub trait Tree: Sync {
    /// Returns the entries. Each file has a digest.
    fn entries(&self) -> &Entries;

    /// Returns the hash of the NAR, for which all files may have to be read.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has changed.
    fn nar_hash(&self) -> anyhow::Result<NarHash>;

    /// Opens the NAR.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be read.
    fn nar(&self) -> Result<Box<dyn Read + '_>, String>;

    /// Returns whether there are files that only the server has, in the base.
    fn needs_base(&self) -> bool;

    /// Opens the contents of a file. The reader fails if the file has changed.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    fn file(&self, index: usize) -> anyhow::Result<Box<dyn Read + '_>>;
}

/// An uploaded snapshot.
#[derive(Debug)]
pub struct Uploaded {
    /// The snapshot.
    pub snapshot: Downloaded,
    /// Number of bytes sent for NARs and recipes.
    pub sent_len: u64,
}

/// Uploads a snapshot. Afterwards it is durable on the server; nothing refers to it yet.
/// `base`: an earlier snapshot that the server may still have.
/// `is_quiet`: no progress is shown.
///
/// # Errors
///
/// The cache cannot be reached or refuses the snapshot, or the tree cannot be read.
pub fn upload(
    snapshots: &Snapshots,
    name: &PinName,
    tree: &dyn Tree,
    base: Option<&Downloaded>,
    is_quiet: bool,
) -> anyhow::Result<Uploaded> {
    let http = snapshots.cache().http();
    let upload = Upload {
        http,
        protocol: session::client(http).showing_progress(!is_quiet),
        dir: snapshots.store_dir(),
        names: path_names(name),
        tree,
        is_quiet,
    };
    upload.run(base)
}

struct Upload<'a> {
    http: &'a Http,
    protocol: Http,
    dir: &'a StoreDir,
    /// Names of the store paths of the tree and the manifest.
    names: (String, String),
    tree: &'a dyn Tree,
    is_quiet: bool,
}

/// A push that the server has opened for recipes.
struct Recipes {
    opened: Opened,
    /// Number of bytes sent.
    sent_len: u64,
}

impl Upload<'_> {
    fn run(&self, base: Option<&Downloaded>) -> anyhow::Result<Uploaded> {
        let entries = self.tree.entries();
        let mut recipes = None;
        let assembled = match base {
            Some(base) => self.assemble_tree(base, &mut recipes)?,
            None => None,
        };
        let nar_hash = match assembled {
            Some(nar_hash) => nar_hash,
            None => self.whole_hash()?,
        };
        let manifest = Manifest {
            tree: path_of_nar(&nar_hash, &[], &self.names.0, self.dir)?,
            nar_hash,
            entries: entries.clone(),
        };
        let text = manifest.text();
        if let Some(base) = base.filter(|base| base.text == text) {
            return Ok(Uploaded {
                snapshot: base.clone(),
                sent_len: 0,
            });
        }
        let nar = pack::file_nar(text.as_bytes());
        let manifest_hash = NarHash::from_bytes(Sha256::digest(&nar).into());
        let references = [manifest.tree.clone()];
        let path = path_of_nar(&manifest_hash, &references, &self.names.1, self.dir)?;
        let infos = [
            info(&manifest.tree, nar_hash, entries.nar_size(), Vec::new())?,
            info(&path, manifest_hash, nar.len() as u64, references.to_vec())?,
        ];
        let mut is_complete = false;
        if let (Some(base), Some(recipes), true) = (base, &mut recipes, assembled.is_some()) {
            let delta = Delta::of_texts(&pack::file_nar(base.text.as_bytes()), &nar);
            let size = nar.len() as u64;
            is_complete = self
                .assemble(recipes, &base.nar_hash, &delta, size)?
                .is_some();
        }
        let mut sent_len = recipes.as_ref().map_or(0, |recipes| recipes.sent_len);
        let opened = match recipes {
            // The server has both NARs: only the narinfos are missing.
            Some(mut recipes) if is_complete => {
                recipes.opened.answers = vec![OpenAnswer::Link; infos.len()];
                recipes.opened
            }
            recipes => {
                if let Some(recipes) = recipes {
                    session::end(&self.protocol, &recipes.opened);
                }
                self.open(&infos)?
            }
        };
        let nars = SnapshotNars {
            tree: self.tree,
            manifest: nar,
        };
        sent_len += self.push(opened, &infos, &nars)?;
        Ok(Uploaded {
            snapshot: Downloaded {
                manifest,
                path,
                nar_hash: manifest_hash,
                text,
            },
            sent_len,
        })
    }

    /// Lets the server assemble the tree. Returns the hash of its NAR, or `None` if the whole NAR
    /// must be sent. `recipes`: gets the push that was opened for this.
    fn assemble_tree(
        &self,
        base: &Downloaded,
        recipes: &mut Option<Recipes>,
    ) -> anyhow::Result<Option<NarHash>> {
        let Manifest {
            nar_hash: base_hash,
            entries: base,
            ..
        } = &base.manifest;
        let entries = self.tree.entries();
        let delta = Delta::of_trees(base, entries);
        if delta.is_copy_of(base) {
            return Ok(Some(*base_hash));
        }
        *recipes = self.open_recipes(&delta, entries.nar_size())?;
        match recipes {
            Some(recipes) => self.assemble(recipes, base_hash, &delta, entries.nar_size()),
            None => Ok(None),
        }
    }

    /// Returns the hash of a NAR that is sent as a whole.
    fn whole_hash(&self) -> anyhow::Result<NarHash> {
        ensure!(
            !self.tree.needs_base(),
            Failed::Refused.because(anyhow!(
                "some files cannot be read on this machine, and the server cannot take them from \
                 the last generation: unmount the file systems that are mounted in the tree, or \
                 permit reading the files, or remove them"
            ))
        );
        self.tree.nar_hash()
    }

    /// Opens a push for recipes. Returns `None` if the server does not know the protocol, or if a
    /// recipe is not worthwhile.
    fn open_recipes(&self, delta: &Delta, nar_size: u64) -> anyhow::Result<Option<Recipes>> {
        let is_long = delta.literal_len() > nar_size / 100 * RECIPE_SHARE_MAX;
        if is_long && !self.tree.needs_base() {
            return Ok(None);
        }
        Ok(match session::open(&self.protocol, &[])? {
            Opening::Opened(opened, _) => Some(Recipes {
                opened,
                sent_len: 0,
            }),
            Opening::Unsupported | Opening::NotPermitted(_) => None,
        })
    }

    /// Lets the server assemble a NAR. Returns its hash, or `None` if the server does not support
    /// recipes or lacks the base, or if the recipe is too long.
    fn assemble(
        &self,
        recipes: &mut Recipes,
        base: &NarHash,
        delta: &Delta,
        nar_size: u64,
    ) -> anyhow::Result<Option<NarHash>> {
        let body = match self.recipe(delta, recipes.opened.part_len_max) {
            Err(error) if is_too_long(&error) => return Ok(None),
            body => body?,
        };
        let query = AssembleQuery {
            base: *base,
            window_log: match delta.literal_len() >= LONG_LEN_MIN {
                true => WINDOW_LOG_MAX,
                false => WINDOW_LOG,
            },
        };
        let url = format!("{}?{query}", Target::Assemble(recipes.opened.push_id));
        let (response, text) = answer(|| self.protocol.post(&url, &body))?;
        recipes.sent_len += body.len() as u64;
        match (response.status().as_u16(), text) {
            (200, Some(text)) => {
                let hash = kept(&text, nar_size);
                hash.map(Some)
                    .with_context(|| format!("invalid answer from {}", self.protocol.url(&url)))
            }
            // The whole NAR would exceed the quota (413), too.
            (400 | 404 | 405 | 409 | 422, _) => Ok(None),
            _ => Err(self.protocol.refused("a recipe", response)),
        }
    }

    /// Opens a push of both NARs.
    fn open(&self, infos: &[PathInfo]) -> anyhow::Result<Opened> {
        match session::open(&self.protocol, infos)? {
            Opening::Opened(opened, _) => Ok(opened),
            Opening::NotPermitted(error) => Err(error),
            Opening::Unsupported => Err(Failed::Refused.because(anyhow!(
                "{} does not know the push protocol: snapshots need Samovar with storage",
                self.http.remote()
            ))),
        }
    }

    /// Returns the compressed recipe, of at most `len_max` bytes.
    fn recipe(&self, delta: &Delta, len_max: u64) -> anyhow::Result<Vec<u8>> {
        let body = Body {
            bytes: Vec::new(),
            len_max,
        };
        let mut encoder = zstd::Encoder::new(body, RECIPE_LEVEL)?;
        if delta.literal_len() >= LONG_LEN_MIN {
            encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
            encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG_MAX))?;
        }
        let mut recipe = recipe::Writer::new(encoder)?;
        for op in &delta.ops {
            match op {
                Op::Copy { offset, len } => recipe.copy(*offset, *len)?,
                Op::Bytes(range) => {
                    let bytes = delta.bytes.get(range.clone());
                    recipe.data(bytes.context("a recipe has no such bytes")?)?;
                }
                Op::File(index) => {
                    let mut file = self.tree.file(*index)?;
                    let copied = io::copy(&mut file, &mut Data(&mut recipe));
                    copied.map_err(read_error)?;
                }
            }
        }
        Ok(recipe.finish()?.finish()?.bytes)
    }

    /// Uploads what the server lacks, and publishes both paths. Returns the number of bytes sent.
    fn push(
        &self,
        opened: Opened,
        infos: &[PathInfo],
        nars: &SnapshotNars<'_>,
    ) -> anyhow::Result<u64> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let compressing = Compressing {
            worker_count: cores,
            level: LEVEL,
            frame_len: FRAME_LEN,
            is_seekable: true,
        };
        let progress = match self.is_quiet {
            true => Progress::hidden(),
            false => ledger::progress_of(infos, &ledger::lacks(&opened.answers)),
        };
        let target = self.protocol.remote().url();
        // The progress counts all NARs.
        let http = self.protocol.showing_progress(false);
        let session = Session {
            http: &http,
            opened,
            unfinished: Unfinished::new(target, compressing, session::BUFFER_LEN),
        };
        let summary = session.push(nars, self.dir, infos, compressing, &progress);
        progress.end();
        let summary = summary?;
        if let Some((path, reason)) = summary.failed.first() {
            bail!(Failed::Refused.because(anyhow!("{path} was not uploaded: {reason}")));
        }
        Ok(summary.sent_len)
    }
}

/// Returns whether a recipe has more operations or bytes than a server accepts.
fn is_too_long(error: &anyhow::Error) -> bool {
    let Some(error) = error.downcast_ref::<io::Error>() else {
        return false;
    };
    let has_too_many_bytes = error
        .get_ref()
        .is_some_and(|error| error.is::<TooManyBytes>());
    has_too_many_bytes || RecipeError::of(error) == Some(RecipeError::TooMany)
}

/// Error of a [`Body`] that is full.
#[derive(Debug, thiserror::Error)]
#[error("the recipe is too long")]
struct TooManyBytes;

/// Body of a request, of at most `len_max` bytes.
struct Body {
    bytes: Vec<u8>,
    len_max: u64,
}

impl Write for Body {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.len_max {
            return Err(io::Error::other(TooManyBytes));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds bytes to a recipe.
struct Data<'a, W: Write>(&'a mut recipe::Writer<W>);

impl<W: Write> Write for Data<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.data(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The NARs of a snapshot: index 0 is the NAR of the tree, index 1 the NAR of the manifest.
struct SnapshotNars<'a> {
    tree: &'a dyn Tree,
    manifest: Vec<u8>,
}

impl Nars for SnapshotNars<'_> {
    fn open(&self, nar: usize, _info: &PathInfo) -> Result<Box<dyn Read + '_>, String> {
        match nar {
            0 => self.tree.nar(),
            _ => Ok(Box::new(Cursor::new(&*self.manifest))),
        }
    }

    fn differs(&self) -> &'static str {
        "the tree changed while it was read: push it again when no program writes to it"
    }
}

fn info(
    path: &StorePath,
    nar_hash: NarHash,
    nar_size: u64,
    references: Vec<StorePath>,
) -> anyhow::Result<PathInfo> {
    Ok(PathInfo {
        path: path.clone(),
        nar_hash,
        nar_size,
        references,
        deriver: None,
        signatures: Vec::new(),
        content_address: Some(ContentAddress::new(Method::Nar, nar_hash.to_hash())?),
        registration_time: 0,
        ultimate: false,
        registration: None,
    })
}

/// Parses the response to a recipe, which must state the expected length.
fn kept(text: &str, nar_size: u64) -> anyhow::Result<NarHash> {
    let found = Assembled::parse(text)?;
    let size = found.nar_size;
    ensure!(size == nar_size, "its NAR has {size} bytes, not {nar_size}");
    Ok(found.nar_hash)
}
