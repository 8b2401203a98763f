//! The caches from which paths are imported: directories, and caches over HTTP.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail, ensure};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_storage::StoredCache;
use samovar_storage::import::file_name;
use samovar_storage::token::Token;
use samovar_storage::verify::{FileName, Unlimited};

use super::Failure;
use crate::cache::Cache;
use crate::roots;
use crate::storage::copy;
use crate::walk;

/// Maximum length of a narinfo, in bytes.
const NARINFO_LEN_MAX: u64 = 1 << 20;

/// A cache to read.
pub(super) struct Source {
    kind: Kind,
    store_dir: StoreDir,
    /// Directory for files whose hash is not known yet.
    tmp: PathBuf,
}

enum Kind {
    Directory {
        root: PathBuf,
        /// Whether files are published without copying them.
        links: bool,
    },
    Http(Cache),
}

impl Source {
    /// Opens a cache by the text of `--from`; without one, the storage directory itself.
    pub(super) fn open(from: Option<&String>, storage: &Path, links: bool) -> anyhow::Result<Self> {
        let tmp = storage.join(".samovar/tmp");
        let directory = match from {
            None => storage.to_owned(),
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                ensure!(!links, "--link needs a directory, not a URL");
                let cache = Cache::open(url)?;
                return Ok(Self {
                    store_dir: cache.store_dir().clone(),
                    kind: Kind::Http(cache),
                    tmp,
                });
            }
            Some(text) => PathBuf::from(text.strip_prefix("file://").unwrap_or(text)),
        };
        let info = directory.join("nix-cache-info");
        let text = fs::read_to_string(&info).with_context(|| {
            format!("{directory:?} is not a binary cache: cannot read {info:?}")
        })?;
        let store_dir = text.lines().find_map(|line| line.strip_prefix("StoreDir:"));
        let store_dir = match store_dir {
            Some(dir) => StoreDir::new(dir.trim())
                .with_context(|| format!("the StoreDir in {info:?} is invalid"))?,
            None => StoreDir::default(),
        };
        Ok(Self {
            kind: Kind::Directory {
                root: directory,
                links: links || from.is_none(),
            },
            store_dir,
            tmp,
        })
    }

    pub(super) fn store_dir(&self) -> &StoreDir {
        &self.store_dir
    }

    /// Returns the narinfos of the closures of these paths, or of all paths of a directory if there
    /// are none. Each comes after its references.
    pub(super) fn find(&self, paths: &[String]) -> anyhow::Result<(Vec<NarInfo>, Vec<Failure>)> {
        let failures = Mutex::new(Vec::new());
        let fail = |name: String, reason: String| {
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.push(Failure { name, reason });
        };
        let roots = roots::read(paths, &self.store_dir, io::stdin().lock())?;
        let mut named: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
        let found = match &self.kind {
            Kind::Http(_) if named.is_empty() => {
                bail!("a cache over HTTP has no list of its paths: name those to import")
            }
            // Bulk queries do not show the uploaded paths of a server.
            Kind::Http(cache) => {
                walk::closure(&named, &HashSet::new(), |hash_part| cache.one(hash_part))?
            }
            Kind::Directory { root, .. } => {
                if paths.is_empty() {
                    named = narinfos_in(root)?;
                }
                walk::closure(&named, &HashSet::new(), |hash_part| {
                    let read = self.narinfo(root, hash_part);
                    // One narinfo that cannot be used must not end the import.
                    Ok(read.unwrap_or_else(|error| {
                        fail(format!("{hash_part}.narinfo"), format!("{error:#}"));
                        None
                    }))
                })?
            }
        };
        for root in roots {
            if found.missing.contains(&root.hash_part) {
                fail(root.text, "the source does not have it".to_owned());
            }
        }
        let failures = failures
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok((found.narinfos, failures))
    }

    /// Reads a narinfo of a directory; `None` if there is none.
    fn narinfo(&self, root: &Path, hash_part: HashPart) -> anyhow::Result<Option<NarInfo>> {
        let file = match File::open(root.join(format!("{hash_part}.narinfo"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        file.take(NARINFO_LEN_MAX).read_to_end(&mut text)?;
        let info = NarInfo::parse(&self.store_dir, &text).context("the narinfo is malformed")?;
        let found = &info.store_path;
        ensure!(
            found.hash_part() == hash_part,
            "it is the narinfo of {found}"
        );
        Ok(Some(info))
    }

    /// Verifies and stores the NAR of a narinfo.
    pub(super) fn receive(
        &self,
        cache: &StoredCache,
        token: &Token,
        info: &NarInfo,
    ) -> anyhow::Result<FileName> {
        let name = file_name(info);
        match &self.kind {
            Kind::Directory { root, links } => {
                let file = root.join(relative(&info.url)?);
                let opened = File::open(&file);
                let mut reader = opened.with_context(|| format!("cannot read {}", info.url))?;
                let name = match name {
                    Some(name) => name,
                    None => FileName::new(copy(&mut reader, &mut io::sink())?, info.compression),
                };
                if *links {
                    cache.adopt_nar(token, &name, &file)?;
                } else {
                    let mut reader = File::open(&file)?;
                    cache.put_nar(token, &name, &mut reader, &mut Unlimited)?;
                }
                Ok(name)
            }
            Kind::Http(http) => {
                let path = format!("/{}", info.url);
                let response = http.http().get(&path)?;
                let (status, url) = (response.status(), http.http().url(&path));
                ensure!(status == 200, "{url} answered {status}");
                let mut reader = response.into_body().into_reader();
                if let Some(name) = name {
                    cache.put_nar(token, &name, &mut reader, &mut Unlimited)?;
                    return Ok(name);
                }
                // The storage names files by their hash, which is known at the end only.
                let mut file = tempfile::NamedTempFile::new_in(&self.tmp)?;
                let name = FileName::new(copy(&mut reader, &mut file)?, info.compression);
                cache.adopt_nar(token, &name, file.path())?;
                Ok(name)
            }
        }
    }
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
    // The same order each time.
    found.sort_unstable();
    Ok(found)
}

/// Checks that a `URL` stays within its directory.
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
