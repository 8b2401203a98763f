//! The mirror: narinfos and other files that make the storage directory a plain binary cache. Any
//! Nix can read it as `file://` without this program.

use std::io;

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, NarHash, StoreDir};

use crate::error::StorageError;
use crate::metadata::{CacheId, StoredPath};
use crate::objects::create_directory;
use crate::storage::Storage;

/// Prefix of the keys of logs of the mirrored cache.
const LOGS: &str = "log/";

/// Name of the file that describes the cache to clients.
pub(crate) const CACHE_INFO: &str = "nix-cache-info";

/// Returns the text of `nix-cache-info`.
#[must_use]
pub fn cache_info(dir: &StoreDir) -> String {
    format!(
        "StoreDir: {}\nWantMassQuery: 1\nPriority: 30\n",
        dir.as_str()
    )
}

/// Returns the prefix of the keys of logs of a cache that is not mirrored.
pub(crate) fn log_prefix(cache: CacheId) -> String {
    format!(".samovar/log/{}/", cache.0)
}

/// Returns the key of the narinfo of a path.
pub(crate) fn narinfo_key(hash_part: HashPart) -> String {
    format!("{hash_part}.narinfo")
}

/// Returns the narinfo of an uploaded path, with the uploaded signatures only.
#[must_use]
pub fn narinfo(path: &StoredPath) -> NarInfo {
    NarInfo {
        store_path: path.path.clone(),
        url: path.nar.object_key.clone(),
        compression: path.nar.compression,
        file_hash: Some(NarHash::from_bytes(path.nar.file_hash).to_hash()),
        file_size: Some(path.nar.file_size),
        nar_hash: path.nar.nar_hash,
        nar_size: path.nar.nar_size,
        references: path.references.clone(),
        deriver: path.deriver.clone(),
        system: None,
        signatures: path.signatures.clone(),
        content_address: path.content_address,
    }
}

impl Storage {
    /// Makes a cache the mirrored one. First removes what the directory has of the cache that was
    /// mirrored before: readers of the directory may not be allowed to read that cache, and an
    /// import of the directory would add its paths to the new one.
    ///
    /// If the process is killed, the next call completes the work.
    pub(crate) fn set_mirrored(&self, cache: CacheId) -> Result<(), StorageError> {
        let mirrored = self.metadata.mirrored_cache()?.map(|mirrored| mirrored.id);
        if let Some(before) = mirrored.filter(|before| *before != cache) {
            for (of, hash_part) in self.metadata.hash_parts()? {
                if of == before {
                    self.objects.remove(&narinfo_key(hash_part))?;
                }
            }
            for key in self.metadata.realisation_keys(before)? {
                self.objects.remove(&key)?;
            }
            self.move_logs(LOGS, &log_prefix(before))?;
        }
        self.metadata.set_mirrored(cache)?;
        self.move_logs(&log_prefix(cache), LOGS)
    }

    fn move_logs(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let mut names = Vec::new();
        let mut visit = |key: &str| {
            names.extend(key.strip_prefix(from).map(str::to_owned));
            Ok(())
        };
        match self.objects.list(from, &mut visit) {
            Err(StorageError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(());
            }
            outcome => outcome?,
        }
        create_directory(&self.root.join(to))
            .map_err(|error| StorageError::file("cannot create", to, error))?;
        for name in names {
            let key = format!("{from}{name}");
            self.objects
                .link(&self.root.join(&key), &format!("{to}{name}"))?;
            self.objects.remove(&key)?;
        }
        Ok(())
    }
}
