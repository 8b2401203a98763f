//! Checks a storage: its objects, the mirror, orphans, and the database itself.
//!
//! The check reads the database in batches, so that memory use does not depend on the size of the
//! storage, and no transaction is long. A server may run meanwhile: an object that changes during
//! its check is checked again, and a repair takes effect only if the object is still the checked
//! one.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read as _};
use std::mem;
use std::thread;
use std::time::Duration;

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_protocol::{names::FileName, push::NARINFO_LEN_MAX};
use samovar_text::counted;

use super::finding::Fault;
pub use super::finding::{Finding, Kind};
use crate::error::StorageError;
use crate::layout::narinfo_key;
use crate::metadata::{
    DAY, Database, ListedNar, ListedPath, caches, check, collect, nars, packs, paths,
};
use crate::mirror::Render;
use crate::objects::{ObjectState, Objects};
use crate::unmounted::check_files;
use crate::verify::{Limits, Unlimited, VerifyError, verify};

/// Number of rows that one query reads.
const BATCH_COUNT: u32 = 500;

/// Maximum number of faults of the database that are reported.
const FAULT_COUNT_MAX: u32 = 1000;

/// Minimum age in seconds at which an object without a row counts as an orphan. During an upload,
/// the object exists for a moment before its row.
const ORPHAN_AGE: i64 = 2 * DAY;

/// Pause before a wrong narinfo is read again. A server writes the narinfo a moment after its row.
const MIRROR_PAUSE: Duration = Duration::from_millis(500);

/// Selects the parts of a check and its repairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to also read, decompress and hash all objects, and the copies in the disk cache.
    pub deep: bool,
    /// Whether to repair: record missing and damaged objects as lost, so that the next upload
    /// replaces them, and rewrite wrong narinfos and indexes of frames.
    pub repair: bool,
    /// Whether to delete orphans.
    pub delete_orphans: bool,
}

/// Numbers of checked objects and of findings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of NAR objects that were checked.
    pub objects: u64,
    /// Total length of the checked objects, in bytes.
    pub bytes: u64,
    /// Number of paths that were checked.
    pub paths: u64,
    /// Number of findings, without the objects that cannot be read.
    pub findings: u64,
    /// Number of objects that cannot be read.
    pub unreadable: u64,
    /// Number of findings that were repaired.
    pub repaired: u64,
}

/// A check of a storage.
pub struct Fsck<'a> {
    metadata: &'a Database,
    objects: &'a Objects,
    options: Options,
    /// Renders narinfos. `None`: wrong narinfos are reported but not rewritten.
    render: Option<&'a Render<'a>>,
    report: &'a mut dyn FnMut(Finding),
    summary: Summary,
    /// Lengths of the objects of a bucket, unless they are read.
    listed: HashMap<String, u64>,
}

impl fmt::Debug for Fsck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fsck").field(&self.options).finish()
    }
}

impl<'a> Fsck<'a> {
    /// Prepares a check. `render` renders narinfos with the keys of the mirrored cache; without it,
    /// wrong narinfos cannot be rewritten. `report` receives each finding.
    pub fn new(
        metadata: &'a Database,
        objects: &'a Objects,
        options: Options,
        render: Option<&'a Render<'a>>,
        report: &'a mut dyn FnMut(Finding),
    ) -> Self {
        Self {
            metadata,
            objects,
            options,
            render,
            report,
            summary: Summary::default(),
            listed: HashMap::new(),
        }
    }

    /// Runs the check, and reports its findings.
    ///
    /// # Errors
    ///
    /// [`StorageError::NoFiles`] if the disk of the NAR files seems not to be mounted. A
    /// [`StorageError`] of the mirror, or that the database is busy.
    pub fn run(mut self) -> Result<Summary, StorageError> {
        check_files(self.metadata, self.objects)?;
        // Each check runs whatever the others find, also if one cannot read its part of the
        // database.
        let checks = [
            Self::check_database,
            Self::check_derived,
            Self::check_copies,
            Self::check_nars,
            Self::check_paths,
            Self::find_orphans,
        ];
        for check in checks {
            match check(&mut self) {
                Err(StorageError::Damaged(fault) | StorageError::Database(fault)) => {
                    self.find_damage(&fault);
                }
                outcome => outcome?,
            }
        }
        Ok(self.summary)
    }

    /// Checks only the files of the newest `count_max` paths whose NARs are not recorded as lost,
    /// and with `checks_mirror`, as many narinfos of the mirrored cache. Without it, works with
    /// databases of schema 2.
    pub(super) fn run_on_newest(
        mut self,
        count_max: u32,
        checks_mirror: bool,
    ) -> Result<(), StorageError> {
        for nar in check::newest_nars(self.metadata, count_max)? {
            self.check_nar(nar)?;
        }
        let mirrored = caches::mirrored(self.metadata)?.filter(|_| checks_mirror);
        let Some(mirrored) = mirrored else {
            return Ok(());
        };
        let paths = check::newest_paths(self.metadata, mirrored.id, count_max)?;
        self.check_mirror(paths, &mirrored.store_dir)
    }

    fn check_database(&mut self) -> Result<(), StorageError> {
        for fault in check::faults(self.metadata, self.options.deep, FAULT_COUNT_MAX)? {
            self.find_damage(&fault);
        }
        Ok(())
    }

    /// Reports damage of the database.
    /// Checks the copies of objects in the disk cache of this node.
    fn check_copies(&mut self) -> Result<(), StorageError> {
        let removes = self.options.repair;
        let Some(bucket) = self.objects.bucket().filter(|_| self.options.deep) else {
            return Ok(());
        };
        for key in bucket.wrong_copies(removes)? {
            let reason = "the disk cache of this node has other bytes than the object".to_owned();
            let repair = removes.then_some("removed from the disk cache");
            self.find(Kind::Copy, &key, reason, repair, &[]);
        }
        Ok(())
    }

    fn find_damage(&mut self, fault: &str) {
        let fix = "restore the database from a backup, or make a new one from the files with \
                   samovar import --rebuild";
        let name = match self.metadata.postgres() {
            Some(_) => "PostgreSQL",
            None => crate::DATABASE,
        };
        self.find(Kind::Database, name, format!("{fault}: {fix}"), None, &[]);
        // Do not rewrite narinfos if the database is damaged: those in the directory may be the
        // only correct copies.
        self.render = None;
    }

    /// Compares the numbers that the database derives from its rows with these rows.
    fn check_derived(&mut self) -> Result<(), StorageError> {
        for fault in check::wrong_totals(self.metadata, self.options.repair)? {
            let (reason, repair) = match self.options.repair {
                true => (fault, Some("corrected")),
                false => (format!("{fault}; samovar fsck --repair corrects it"), None),
            };
            self.find(Kind::Database, crate::DATABASE, reason, repair, &[]);
        }
        Ok(())
    }

    fn check_nars(&mut self) -> Result<(), StorageError> {
        if self.objects.bucket().is_some() && !self.options.deep {
            let listed = &mut self.listed;
            self.objects.list_states("nar/", &mut |key, state| {
                listed.insert(key.to_owned(), state.len);
                Ok(())
            })?;
        }
        let mut after = 0;
        loop {
            let nars = check::nars_after(self.metadata, after, BATCH_COUNT)?;
            let Some(last) = nars.last() else { break };
            after = last.nar.id;
            for nar in nars {
                // One request for a thousand objects instead of one for each.
                if !self.listed.is_empty() && !nar.is_lost && self.is_listed(&nar)? {
                    self.summary.objects += 1;
                    self.summary.bytes += nar.nar.file_size;
                    continue;
                }
                self.check_nar(nar)?;
            }
        }
        Ok(())
    }

    fn check_paths(&mut self) -> Result<(), StorageError> {
        let mirrored = caches::mirrored(self.metadata)?;
        let mut after = 0;
        loop {
            let mut paths = check::paths_after(self.metadata, after, BATCH_COUNT)?;
            let Some(last) = paths.last() else { break };
            after = last.id;
            self.summary.paths += paths.len() as u64;
            if let Some(mirrored) = &mirrored {
                paths.retain(|path| path.cache == mirrored.id);
                self.check_mirror(paths, &mirrored.store_dir)?;
            }
        }
        Ok(())
    }

    /// Returns whether the list of objects has that of a NAR, with the right length.
    fn is_listed(&self, listed: &ListedNar) -> Result<bool, StorageError> {
        let object = packs::object_of(self.metadata, self.objects, &listed.nar)?;
        let len = |key: &str| self.listed.get(key).copied();
        Ok(match &object.pack {
            Some(place) => len(&place.key).is_some_and(|len| place.start + object.len <= len),
            None => len(object.key) == Some(object.len),
        })
    }

    /// Checks the object of a NAR, again if it changes meanwhile, and reports a fault.
    fn check_nar(&mut self, mut listed: ListedNar) -> Result<(), StorageError> {
        let (metadata, objects) = (self.metadata, self.objects);
        self.summary.objects += 1;
        loop {
            let object = packs::object_of(metadata, objects, &listed.nar)?;
            let key = object
                .pack
                .as_ref()
                .map_or(object.key, |place| &*place.key)
                .to_owned();
            let checked = objects.state(&key).and_then(|state| {
                let fault = self.fault(&listed, state)?;
                Ok((state, fault))
            });
            let (state, fault) = match checked {
                Ok(checked) => checked,
                // A file that cannot be read must not end the check.
                Err(error @ StorageError::File { .. }) => {
                    let state = objects.state(&key).unwrap_or_default();
                    (state, Some(Fault::new(Kind::Unreadable, error.to_string())))
                }
                Err(error) => return Err(error),
            };
            if fault.is_none() && !listed.is_lost {
                return Ok(());
            }
            // Meanwhile, an upload or the collector may have replaced or deleted the object or its
            // row.
            let mut is_unchanged = || Ok(objects.state(&key).unwrap_or_default() == state);
            let row = check::nars_after(metadata, listed.nar.id - 1, 1)?.pop();
            match row.filter(|row| row.nar.id == listed.nar.id) {
                Some(row) if row == listed && is_unchanged()? => {
                    return self.conclude(&listed, fault, &mut is_unchanged);
                }
                Some(row) => listed = row,
                None => return Ok(()),
            }
        }
    }

    /// Compares the object of a NAR with its row. Returns `None` if they match.
    fn fault(
        &mut self,
        listed: &ListedNar,
        state: Option<ObjectState>,
    ) -> Result<Option<Fault>, StorageError> {
        let nar = &listed.nar;
        let fault = |kind, reason: String| Ok(Some(Fault::new(kind, reason)));
        let Some(state) = state else {
            return fault(Kind::Missing, "the file is missing".to_owned());
        };
        let object = packs::object_of(self.metadata, self.objects, nar)?;
        let is_long_enough = object
            .pack
            .as_ref()
            .map_or(state.len == nar.file_size, |place| {
                place.start + nar.file_size <= state.len
            });
        if !is_long_enough {
            let (found, expected) = (counted(state.len, "byte"), nar.file_size);
            let reason = format!("the file has {found}, not {expected}");
            return fault(Kind::Damaged, reason);
        }
        self.summary.bytes += nar.file_size;
        if !self.options.deep {
            return Ok(None);
        }
        let Some(mut file) = self.objects.read_nar(&object)? else {
            return fault(Kind::Missing, "the file is missing".to_owned());
        };
        let name = FileName::new(nar.file_hash, nar.compression);
        let limits = Limits::default();
        match verify(&mut file, &name, &mut io::sink(), &limits, &mut Unlimited) {
            Err(VerifyError::Refused(refusal)) => fault(Kind::Damaged, refusal.fault()),
            Err(error) => fault(Kind::Unreadable, error.to_string()),
            Ok(verified) if verified.nar_hash != nar.nar_hash => {
                let (found, expected) = (verified.nar_hash, nar.nar_hash);
                fault(
                    Kind::Damaged,
                    format!("it has the NAR {found}, not {expected}"),
                )
            }
            Ok(verified) => Ok(
                match verified.frames != nars::frames(self.metadata, nar.id)? {
                    true => Some(Fault {
                        kind: Kind::Frames,
                        reason: "the index of its frames is wrong".to_owned(),
                        frames: verified.frames,
                    }),
                    false => None,
                },
            ),
        }
    }

    /// Reports the fault of a NAR's object, and repairs it if requested. `fault`: `None` if the
    /// object matches although its row says that it is lost.
    fn conclude(
        &mut self,
        listed: &ListedNar,
        fault: Option<Fault>,
        is_unchanged: &mut dyn FnMut() -> Result<bool, StorageError>,
    ) -> Result<(), StorageError> {
        let (metadata, objects, nar) = (self.metadata, self.objects, &listed.nar);
        let paths = check::paths_of_nar(metadata, nar.id)?;
        if listed.is_lost && paths.is_empty() {
            // Ignore the lost NAR: an upload in another compression has replaced it.
            return Ok(());
        }
        let mut set_lost = |is_lost| {
            objects
                .removing(|mirror| check::set_lost(metadata, nar.id, is_lost, is_unchanged, mirror))
        };
        let intact = Fault::new(Kind::Lost, "it is recorded as lost".to_owned());
        let is_intact = fault.is_none() && self.options.deep;
        let mut fault = fault.unwrap_or(intact);
        let repair = match fault.kind {
            _ if listed.is_lost && !is_intact => {
                fault.reason += "; push the paths again";
                None
            }
            Kind::Unreadable => {
                fault.reason += "; run the command as the user of the server, or delete the file \
                                 if the disk cannot read it";
                None
            }
            Kind::Missing | Kind::Damaged if !self.options.repair => {
                fault.reason += "; samovar fsck --deep --repair records it as lost, then push the \
                                 paths again";
                None
            }
            _ if !self.options.repair => {
                fault.reason += "; samovar fsck --deep --repair repairs this";
                None
            }
            Kind::Frames => {
                nars::set_frames(metadata, nar.id, fault.frames.as_deref())?;
                Some("rewritten")
            }
            Kind::Missing | Kind::Damaged => {
                set_lost(true)?.then_some("recorded as lost, push the paths again")
            }
            Kind::Lost => set_lost(false)?.then_some("the file is intact, recorded as such"),
            _ => None,
        };
        self.find(fault.kind, &nar.object_key, fault.reason, repair, &paths);
        Ok(())
    }

    /// Compares the narinfos of these paths in the directory with the database.
    fn check_mirror(
        &mut self,
        mut paths: Vec<ListedPath>,
        dir: &StoreDir,
    ) -> Result<(), StorageError> {
        let mut wrong = Vec::new();
        for is_second in [false, true] {
            wrong.clear();
            for path in mem::take(&mut paths) {
                if let Some(reason) = self.narinfo_fault(&path, dir)? {
                    wrong.push((path, reason));
                }
            }
            if wrong.is_empty() {
                return Ok(());
            }
            if !is_second {
                thread::sleep(MIRROR_PAUSE);
                paths = wrong.iter().map(|(path, _)| path.clone()).collect();
            }
        }
        for (path, mut reason) in wrong {
            let key = narinfo_key(path.path.hash_part());
            let render = self.render.filter(|_| self.options.repair);
            let stored = paths::peek(self.metadata, path.cache, path.path.hash_part())?;
            let repair = match render.zip(stored) {
                Some((render, stored)) => {
                    self.objects.write_mirror(&key, &render(&stored))?;
                    Some("rewritten")
                }
                None => {
                    reason += "; samovar fsck --repair --config FILE rewrites it, with the keys of \
                               the server";
                    None
                }
            };
            self.find(Kind::Narinfo, &key, reason, repair, &[path]);
        }
        Ok(())
    }

    /// Compares the narinfo of a path in the directory with the database. Returns `None` if they
    /// match.
    fn narinfo_fault(
        &self,
        path: &ListedPath,
        dir: &StoreDir,
    ) -> Result<Option<String>, StorageError> {
        let hash_part = path.path.hash_part();
        let Some(stored) = paths::peek(self.metadata, path.cache, hash_part)? else {
            return Ok(None);
        };
        let file = match self.objects.read(&narinfo_key(hash_part)) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(Some("the narinfo is missing".to_owned())),
            // A file that cannot be read must not end the check.
            Err(error) => return Ok(Some(format!("the narinfo cannot be read, {error}"))),
        };
        let mut text = Vec::new();
        if let Err(error) = file.take(NARINFO_LEN_MAX as u64).read_to_end(&mut text) {
            return Ok(Some(format!("the narinfo cannot be read, {error}")));
        }
        let mut found = match NarInfo::parse(dir, &text) {
            Ok(found) => found,
            Err(error) => return Ok(Some(format!("the narinfo is malformed, {error}"))),
        };
        // Ignore signatures, because the cache's own signatures depend on its current keys.
        found.signatures.clear();
        let mut expected = stored.narinfo();
        expected.signatures.clear();
        let reason = "the narinfo differs from the database";
        Ok((found != expected).then(|| reason.to_owned()))
    }

    /// Finds objects to which no row refers, and narinfos of paths that the database does not have.
    fn find_orphans(&mut self) -> Result<(), StorageError> {
        let (metadata, objects) = (self.metadata, self.objects);
        let mirrored = caches::mirrored(metadata)?;
        let mut has_unknown = false;
        objects.list("", &mut |key| {
            let hash_part = key.strip_suffix(".narinfo");
            let Some(hash_part) = hash_part.and_then(|text| text.parse().ok()) else {
                return Ok(());
            };
            let is_known = match &mirrored {
                Some(mirrored) => paths::exists(metadata, mirrored.id, hash_part)?,
                None => false,
            };
            if !is_known {
                has_unknown |= self.find_unknown(key, hash_part)?;
            }
            Ok(())
        })?;
        let before = metadata.now() - ORPHAN_AGE;
        let mut orphans = Vec::new();
        objects.list_states("nar/", &mut |key, state| {
            if state.modified_at > before || !check::is_orphan(metadata, key)? {
                return Ok(());
            }
            if !self.options.delete_orphans || has_unknown {
                let kept = "no path uses the file; kept, because narinfos of unknown paths may";
                let reason = if has_unknown {
                    kept
                } else {
                    "no path uses the file; samovar fsck --delete-orphans deletes it"
                };
                self.find(Kind::Orphan, key, reason.to_owned(), None, &[]);
                return Ok(());
            }
            orphans.push(key.to_owned());
            if orphans.len() >= BATCH_COUNT as usize {
                self.delete(&mem::take(&mut orphans))?;
            }
            Ok(())
        })?;
        self.delete(&orphans)
    }

    /// Reports a narinfo in the directory that is not of the mirrored cache. Removes it, if that is
    /// requested, if another cache has the path. Returns whether no cache has it.
    fn find_unknown(&mut self, key: &str, hash_part: HashPart) -> Result<bool, StorageError> {
        let owner = caches::of_path(self.metadata, hash_part)?;
        let (reason, repair) = match &owner {
            None => {
                let reason = "the database does not have this path: import it with samovar import, \
                              or remove the narinfo";
                (reason.to_owned(), None)
            }
            Some(name) => {
                let repair = self.options.repair.then_some("the narinfo was removed");
                let advice = match repair {
                    Some(_) => self.objects.remove(key).map(|()| "")?,
                    None => "; samovar fsck --repair removes the narinfo",
                };
                (
                    format!("the path is of the cache {name:?} only{advice}"),
                    repair,
                )
            }
        };
        self.find(Kind::Unknown, key, reason, repair, &[]);
        Ok(owner.is_none())
    }

    /// Deletes orphans. No upload can use their keys before the collector frees the keys.
    fn delete(&mut self, orphans: &[String]) -> Result<(), StorageError> {
        let keys = check::discard(self.metadata, orphans)?;
        self.objects.remove_all(&keys)?;
        collect::set_removed(self.metadata, &keys)?;
        for key in &keys {
            let reason = "no path uses the file".to_owned();
            self.find(Kind::Orphan, key, reason, Some("deleted"), &[]);
        }
        Ok(())
    }

    /// Counts a finding and reports it.
    fn find(
        &mut self,
        kind: Kind,
        object: &str,
        reason: String,
        repair: Option<&'static str>,
        paths: &[ListedPath],
    ) {
        match kind {
            Kind::Unreadable => self.summary.unreadable += 1,
            _ => self.summary.findings += 1,
        }
        self.summary.repaired += u64::from(repair.is_some());
        let named = |path: &ListedPath| (path.cache_name.clone(), path.path.base_name().to_owned());
        (self.report)(Finding {
            kind,
            object: object.to_owned(),
            reason,
            repair,
            paths: paths.iter().map(named).collect(),
        });
    }
}
