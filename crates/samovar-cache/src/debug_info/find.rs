//! [`Finder`]: finds files in store paths, and follows links into other paths.

use std::fs::File;

use samovar_metrics::Event;
use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, StorePath};
use samovar_storage::browse::OpenedNar;
use samovar_storage::metadata::StoredPath;
use samovar_storage::objects::NarFile;
use samovar_storage::{StorageError, StoredCache, browse};
use samovar_store::{PageRequest, Place};
use samovar_upstream::local::nar_url;

use super::unused;
use crate::known::listing::{self, Listed};
use crate::pages::link::destination;
use crate::reader::Reader;
use crate::refusal::Refusal;
use crate::route::build_id::BuildId;

/// Maximum number of links that are followed to one file, as in Linux.
const LINK_COUNT_MAX: usize = 40;

/// Maximum distance in a NAR from the place where decompression starts to the end of a file, in
/// bytes.
const UNPACKED_LEN_MAX: u64 = 4 << 30;

/// Finds the files of one cache.
pub(super) struct Finder<'a> {
    pub(super) reader: &'a Reader,
    pub(super) storages: Vec<Stored<'a>>,
}

/// Paths in the storage.
pub(super) enum Stored<'a> {
    /// Those that clients have uploaded.
    Uploads(&'a StoredCache),
    /// The kept paths of an upstream. The function says whether a path is trusted.
    Kept(&'a StoredCache, Box<dyn Fn(&StoredPath) -> bool + 'a>),
}

impl Stored<'_> {
    fn cache(&self) -> &StoredCache {
        match self {
            Self::Uploads(stored) | Self::Kept(stored, _) => stored,
        }
    }

    fn trusts(&self, path: &StoredPath) -> bool {
        match self {
            Self::Uploads(_) => true,
            Self::Kept(_, trusts) => trusts(path),
        }
    }

    /// Returns the URL of the NAR of a path, relative to the cache.
    fn nar_url(&self, path: &StoredPath) -> String {
        let nar = &path.nar;
        match self {
            Self::Uploads(_) => nar.object_key.clone(),
            Self::Kept(..) => nar_url(path.path.hash_part(), &nar.nar_hash, nar.compression),
        }
    }
}

/// A file of a store path.
pub(super) struct Found {
    pub(super) path: StorePath,
    pub(super) names: Vec<Vec<u8>>,
    /// URL of the NAR, relative to the cache.
    pub(super) archive: String,
    /// Length of the file, in bytes.
    pub(super) size: u64,
    pub(super) content: Content,
}

/// Where the bytes of a file are.
pub(super) enum Content {
    Plain {
        file: File,
        /// Offset of the first byte, in bytes.
        offset: u64,
    },
    /// In a NAR of the storage that is not compressed.
    Stored {
        nar: NarFile,
        /// Offset of the first byte, in bytes.
        offset: u64,
    },
    /// In a compressed NAR.
    Packed(Packed),
}

/// A file in a compressed NAR.
pub(super) struct Packed {
    pub(super) nar: OpenedNar,
    /// Number of bytes to decompress before the file.
    pub(super) skip: u64,
}

/// What is at the end of some names.
enum Spot {
    Found(Found),
    Link {
        /// The path that has the link.
        path: StorePath,
        target: Vec<u8>,
        /// Number of names up to and including the link.
        depth: usize,
    },
}

impl Finder<'_> {
    /// Finds the file at `names` in a path with debug information of a build ID; `None` if there is
    /// none.
    pub(super) fn beside(&self, id: &BuildId, names: &[Vec<u8>]) -> Result<Option<Found>, Refusal> {
        let mut refused = None;
        for path in self.paths_of(id)? {
            match path.and_then(|path| self.file(&path, names.to_vec())) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(refusal) if refusal.is_absence() => {}
                Err(refusal) => refused = Some(refusal),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Returns the paths that may have debug information of a build ID, or why the client may not
    /// read them.
    fn paths_of(&self, id: &BuildId) -> Result<Vec<Result<StorePath, Refusal>>, Refusal> {
        let (reader, shared) = (self.reader, &self.reader.shared);
        let mut in_store = shared
            .build_ids
            .in_store(&*shared.store, &*shared.observer, id)?;
        if in_store.is_empty() && !reader.policy.is_open() {
            // An absent path takes as long as a hidden one.
            in_store.push(unused(id));
        }
        let readable = |hash_part| Ok(reader.readable(hash_part)?.path);
        let mut paths: Vec<_> = in_store.into_iter().map(readable).collect();
        for stored in &self.storages {
            let known = shared
                .build_ids
                .in_storage(stored.cache(), &*shared.observer, id)?;
            let found = |hash_part| self.stored(stored, hash_part).transpose();
            let found = known.into_iter().filter_map(found);
            paths.extend(found.map(|path| Ok(path?.path)));
        }
        Ok(paths)
    }

    /// Finds the file at `names` in a path, or where links lead; `None` if there is none.
    pub(super) fn file(
        &self,
        path: &StorePath,
        names: Vec<Vec<u8>>,
    ) -> Result<Option<Found>, Refusal> {
        let dir = self.reader.store().store_dir();
        let (mut path, mut names) = (path.clone(), names);
        for _ in 0..=LINK_COUNT_MAX {
            let (of, target, depth) = match self.spot(&path, &names)? {
                Some(Spot::Found(found)) => return Ok(Some(found)),
                Some(Spot::Link {
                    path,
                    target,
                    depth,
                }) => (path, target, depth),
                None => return Ok(None),
            };
            let (above, rest) = names.split_at(depth.min(names.len()));
            let above: Vec<&[u8]> = above.iter().map(Vec::as_slice).collect();
            let above = above.split_last().map_or(&[][..], |(_, above)| above);
            let Some(found) = destination(dir, &of, above, &target) else {
                return Ok(None);
            };
            names = [found.names, rest.to_vec()].concat();
            path = found.path;
        }
        Ok(None)
    }

    fn spot(&self, path: &StorePath, names: &[Vec<u8>]) -> Result<Option<Spot>, Refusal> {
        let in_store = self.in_store(path, names);
        let is_absent = match &in_store {
            Ok(spot) => spot.is_none(),
            Err(refusal) => refusal.is_absence(),
        };
        if !is_absent {
            return in_store;
        }
        for stored in &self.storages {
            if let Some(spot) = self.in_storage(stored, path, names)? {
                return Ok(Some(spot));
            }
        }
        Ok(None)
    }

    fn in_store(&self, path: &StorePath, names: &[Vec<u8>]) -> Result<Option<Spot>, Refusal> {
        let registration = self.reader.registration(path.hash_part())?;
        let row = &registration.row;
        if row.path != *path {
            return Ok(None);
        }
        registration.admit()?;
        let tree = self.reader.store().tree(path)?;
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        // Directories are not read.
        let asked = PageRequest {
            skip: 0,
            count_max: 0,
        };
        let place = tree.place(&names, asked);
        let place =
            place.map_err(|error| self.reader.shared.unreadable(&registration, &error.into()))?;
        // The file was opened after the row was read. It belongs to the registration if that is
        // still current.
        if !registration.is_current()? {
            return Ok(None);
        }
        Ok(match place {
            Some(Place::File { file, size, .. }) => Some(Spot::Found(Found {
                archive: format!(
                    "nar/{}-{}.nar",
                    path.hash_part(),
                    row.nar_hash.to_hash().nixbase32()
                ),
                path: path.clone(),
                names: names.iter().map(|name| name.to_vec()).collect(),
                size,
                content: Content::Plain { file, offset: 0 },
            })),
            Some(Place::Symlink { target, depth }) => Some(Spot::Link {
                path: path.clone(),
                target,
                depth,
            }),
            Some(Place::Directory(_)) | None => None,
        })
    }

    fn in_storage(
        &self,
        stored: &Stored<'_>,
        path: &StorePath,
        names: &[Vec<u8>],
    ) -> Result<Option<Spot>, Refusal> {
        let found = self.stored(stored, path.hash_part())?;
        let Some(of_storage) = found.filter(|found| found.path == *path) else {
            return Ok(None);
        };
        let cache = stored.cache();
        let failed = |error: StorageError| self.failed(&error);
        let Some(listing) = browse::listing(cache, &of_storage).map_err(failed)? else {
            return Ok(None);
        };
        // A path whose listing cannot be read counts as one without files.
        let Ok(Some(found)) = listing::find(listing, names) else {
            return Ok(None);
        };
        let (offset, size) = match found.listed {
            Listed::Symlink { target } => {
                return Ok(Some(Spot::Link {
                    path: path.clone(),
                    target,
                    depth: found.depth,
                }));
            }
            Listed::File { offset, size } => (offset, size),
        };
        let Some(nar) = browse::open_at(cache, &of_storage, offset).map_err(failed)? else {
            return Ok(None);
        };
        let skip = offset.saturating_sub(nar.position);
        let content = match nar.compression {
            Compression::None => Content::Stored {
                nar: nar.file.into_file(),
                offset,
            },
            _ if skip.saturating_add(size) > UNPACKED_LEN_MAX => return Ok(None),
            _ => Content::Packed(Packed { nar, skip }),
        };
        Ok(Some(Spot::Found(Found {
            path: path.clone(),
            names: names.to_vec(),
            archive: stored.nar_url(&of_storage),
            size,
            content,
        })))
    }

    /// Returns a path in the storage that the policy does not hide.
    fn stored(
        &self,
        stored: &Stored<'_>,
        hash_part: HashPart,
    ) -> Result<Option<StoredPath>, Refusal> {
        let found = stored.cache().lookup(hash_part);
        let found = found.map_err(|error| self.failed(&error))?;
        let Some(path) = found.filter(|path| stored.trusts(path)) else {
            return Ok(None);
        };
        match self.reader.admit_uploaded(&path) {
            Ok(()) => Ok(Some(path)),
            Err(refusal) if refusal.is_absence() => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    fn failed(&self, error: &StorageError) -> Refusal {
        let observer = &self.reader.shared.observer;
        observer.event(&Event::StorageFailed(error));
        Refusal::Unreadable
    }
}
