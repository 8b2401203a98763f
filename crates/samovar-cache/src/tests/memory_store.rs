//! A store whose rows are in memory and whose files are in a temporary directory.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use samovar_nix::{HashPart, NarHash, PathInfo, StoreDir, StorePath};
use samovar_store::{
    Catalog, Log, LookupResult, Realisation, RealisationId, Scanned, Store, StoreError, Tree,
    Unavailable,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A store for tests. Clones share their contents.
#[derive(Debug, Clone)]
pub(crate) struct MemoryStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: StoreDir,
    files: TempDir,
    rows: Mutex<HashMap<HashPart, PathInfo>>,
    error: Mutex<Option<StoreError>>,
    /// Number of look-ups that succeed before all further ones fail; `None`: none fails.
    lookups_left: Mutex<Option<usize>>,
}

impl MemoryStore {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            dir: StoreDir::default(),
            files: TempDir::new().unwrap(),
            rows: Mutex::default(),
            error: Mutex::default(),
            lookups_left: Mutex::default(),
        }))
    }

    /// Registers a path that consists of one file.
    pub(crate) fn add_file(&self, name: &str, contents: &[u8]) -> PathInfo {
        let path = self.path_of(name);
        fs::write(self.file(&path), contents).unwrap();
        self.register(path)
    }

    /// Registers a path that is a directory with these files.
    pub(crate) fn add_directory(&self, name: &str, files: &[(&str, &[u8])]) -> PathInfo {
        let path = self.path_of(name);
        fs::create_dir(self.file(&path)).unwrap();
        for (name, contents) in files {
            fs::write(self.file(&path).join(name), contents).unwrap();
        }
        self.register(path)
    }

    /// Changes the row of a path with `change`.
    pub(crate) fn change(&self, path: &StorePath, change: impl FnOnce(&mut PathInfo)) {
        change(
            self.0
                .rows
                .lock()
                .unwrap()
                .get_mut(&path.hash_part())
                .unwrap(),
        );
    }

    /// Makes every look-up fail from now on, or lets all succeed.
    pub(crate) fn fail(&self, is_failing: bool) {
        let error = StoreError::Unavailable(Unavailable::DatabaseMissing);
        *self.0.error.lock().unwrap() = is_failing.then_some(error);
    }

    /// Makes every look-up after the next `count` fail, or lets all succeed.
    pub(crate) fn fail_after(&self, count: Option<usize>) {
        *self.0.lookups_left.lock().unwrap() = count;
    }

    /// Deletes the row of a path.
    pub(crate) fn unregister(&self, path: &StorePath) {
        self.0.rows.lock().unwrap().remove(&path.hash_part());
    }

    /// Registers a path again after [`unregister`](Self::unregister).
    pub(crate) fn restore(&self, info: &PathInfo) {
        let mut rows = self.0.rows.lock().unwrap();
        rows.insert(info.path.hash_part(), info.clone());
    }

    /// Returns where the files of a path are.
    pub(crate) fn file(&self, path: &StorePath) -> PathBuf {
        self.0.files.path().join(path.base_name())
    }

    /// Returns the NAR of a path's present files.
    pub(crate) fn nar(&self, path: &StorePath) -> Vec<u8> {
        let mut reader = self.tree(path).unwrap().nar().unwrap();
        let (mut nar, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match reader.fill(&mut buffer).unwrap() {
                0 => return nar,
                len => nar.extend_from_slice(&buffer[..len]),
            }
        }
    }

    fn path_of(&self, name: &str) -> StorePath {
        let hash = Sha256::digest(name);
        let hash_part = HashPart::from_bytes(hash[..20].try_into().unwrap());
        StorePath::from_base_name(&format!("{hash_part}-{name}")).unwrap()
    }

    fn register(&self, path: StorePath) -> PathInfo {
        let nar = self.nar(&path);
        let mut rows = self.0.rows.lock().unwrap();
        let info = PathInfo {
            nar_hash: NarHash::from_bytes(Sha256::digest(&nar).into()),
            nar_size: nar.len() as u64,
            references: Vec::new(),
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registration_time: 1_700_000_000,
            ultimate: false,
            registration: Some(i64::try_from(rows.len()).unwrap() + 1),
            path,
        };
        rows.insert(info.path.hash_part(), info.clone());
        info
    }
}

impl Store for MemoryStore {
    fn store_dir(&self) -> &StoreDir {
        &self.0.dir
    }

    fn lookup(&self, hash_part: HashPart) -> LookupResult {
        if let Some(left) = &mut *self.0.lookups_left.lock().unwrap() {
            *left = left
                .checked_sub(1)
                .ok_or(StoreError::Unavailable(Unavailable::DatabaseMissing))?;
        }
        match *self.0.error.lock().unwrap() {
            Some(error) => Err(error),
            None => Ok(self.0.rows.lock().unwrap().get(&hash_part).cloned()),
        }
    }

    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        self.probe()?;
        let rows = self.0.rows.lock().unwrap();
        let is_before = |info: &&PathInfo| before.is_none_or(|one| info.registration < Some(one));
        let mut infos: Vec<PathInfo> = rows.values().filter(is_before).cloned().collect();
        infos.sort_by_key(|info| std::cmp::Reverse(info.registration));
        infos.truncate(count_max);
        Ok(infos)
    }

    fn scan(&self, after: &str, accepts: &dyn Fn(&str) -> bool) -> Result<Scanned, StoreError> {
        self.probe()?;
        let rows = self.0.rows.lock().unwrap();
        let paths = rows.values().map(|info| (info.registration, &info.path));
        let accepted = paths.filter(|(_, path)| path.base_name() > after);
        let accepted = accepted.filter(|(_, path)| accepts(path.base_name()));
        let found = accepted.filter_map(|(number, path)| Some((number?, path.clone())));
        Ok(Scanned {
            found: found.collect(),
            next: None,
        })
    }

    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError> {
        Ok(Tree::of_files(self.file(path)))
    }

    fn log(&self, _: &StorePath) -> Result<Option<Log>, StoreError> {
        Ok(None)
    }

    fn realisation(&self, _: &RealisationId) -> Result<Option<Realisation>, StoreError> {
        Ok(None)
    }

    fn catalog(&self) -> Option<&Catalog> {
        None
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.0.error.lock().unwrap().map_or(Ok(()), Err)
    }
}
