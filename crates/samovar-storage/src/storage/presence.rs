//! Notices that files of the storage are missing, or the whole directory.
//!
//! A NAR whose file is missing or has a wrong length is recorded as lost as soon as a request needs
//! the file. From then on its paths count as absent, so that clients use another cache, and the
//! next push sends the NAR again.
//!
//! If the directory was moved, unmounted or replaced, all files are missing, but nothing is lost:
//! then requests fail with [`StorageError::Gone`], uploads too. The same holds for the database.

use std::fs;
use std::sync::atomic::Ordering;

use crate::error::StorageError;
use crate::layout::STORE_ID;
use crate::metadata::{StoredNar, check, packs};
use crate::objects::{NarFile, NarObject};
use crate::storage::Storage;
use crate::storage::lost::{LostFile, place_of_nars};
use crate::store_id;
use crate::unmounted::check_files;

impl Storage {
    /// Sets the function that is told of each file that is found to be missing or to have a wrong
    /// length, once for each file. It can be set once.
    pub fn set_on_lost(&self, on_lost: impl Fn(&LostFile) + Send + Sync + 'static) {
        // Caches of one server set the same function.
        self.on_lost.0.set(Box::new(on_lost)).ok();
    }

    /// Checks that the storage directory is still the one that was opened, and that its NAR files
    /// are there.
    ///
    /// # Errors
    ///
    /// [`StorageError::Gone`] if the directory, its part with the NAR files, or its database was
    /// moved, unmounted or replaced; [`StorageError::NoFiles`] if the NAR files were not there
    /// when the storage was opened.
    pub fn check_presence(&self) -> Result<(), StorageError> {
        self.check_directory()?;
        if self.objects.bucket().is_some() {
            return self.check_bucket();
        }
        // The disk of the files may have been unmounted before the storage was opened.
        check_files(&self.metadata, &self.objects)
    }

    /// Checks that the bucket is the one of the storage.
    fn check_bucket(&self) -> Result<(), StorageError> {
        match store_id::read(&self.objects)? {
            Some(id) if id == self.store_id => Ok(()),
            _ => Err(StorageError::OtherBucket),
        }
    }

    /// Checks that the directory has what was committed. Nothing may be acknowledged before this
    /// check: in another directory, it would be gone when the server is started again. While the
    /// storage is usable, its directory is the one in which the last probe has found the NAR files,
    /// so they are not looked for again.
    pub(crate) fn check_committed(&self) -> Result<(), StorageError> {
        match self.is_usable() || self.objects.bucket().is_some() {
            true => self.check_directory(),
            false => self.check_presence(),
        }
    }

    /// Checks that the directory, its part with the NAR files, and its database are still those
    /// that were opened.
    fn check_directory(&self) -> Result<(), StorageError> {
        self.metadata.check_file()?;
        if self.objects.bucket().is_some() {
            return Ok(());
        }
        let id = fs::read_to_string(self.root.join(STORE_ID));
        let is_present = id.is_ok_and(|id| id.trim() == self.store_id)
            && place_of_nars(&self.root) == self.place_of_nars;
        match is_present {
            true => Ok(()),
            false => Err(StorageError::Gone(self.root.clone())),
        }
    }

    /// Checks that another directory has not taken the place of that with the NAR files, before a
    /// file gets its name there. Costs one system call while the storage is usable;
    /// [`check_committed`](Self::check_committed) follows before the file is acknowledged.
    pub(crate) fn check_place(&self) -> Result<(), StorageError> {
        if self.objects.bucket().is_some() {
            return Ok(());
        }
        match self.is_usable() {
            true if place_of_nars(&self.root) == self.place_of_nars => Ok(()),
            _ => self.check_presence(),
        }
    }

    /// Checks that the storage directory is present and that the database can be read.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn probe(&self) -> Result<(), StorageError> {
        let present = self.check_presence();
        let outcome = present.and_then(|()| self.metadata.store_id().map(drop));
        self.is_usable.store(outcome.is_ok(), Ordering::Relaxed);
        outcome
    }

    /// Returns whether the last [`probe`](Self::probe) succeeded; a background thread probes every
    /// few seconds. Never blocks on a disk.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_usable.load(Ordering::Relaxed)
    }

    /// Opens the file of a NAR. Returns `None` if the file is missing or has a wrong length, and
    /// then records it as lost.
    pub(crate) fn open_whole(&self, nar: &StoredNar) -> Result<Option<NarFile>, StorageError> {
        // A second attempt follows if an upload replaces the file meanwhile.
        for _ in 0..2 {
            match self.objects.open_nar(self.object_of(nar)?)? {
                Some(file) => return Ok(Some(file)),
                None if self.is_whole(nar)? => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns whether the file of a NAR exists with the right length. If not, records it as lost.
    pub(crate) fn is_whole(&self, nar: &StoredNar) -> Result<bool, StorageError> {
        let object = self.object_of(nar)?;
        let len = || self.objects.nar_len(&object);
        let mut found = len()?;
        if found == Some(nar.file_size) {
            return Ok(true);
        }
        // Check the directory before and after its file, in case it is unmounted just now.
        self.check_presence()?;
        let mut is_missing = || {
            found = len()?;
            self.check_presence()?;
            Ok(found != Some(nar.file_size))
        };
        let is_lost = match self.objects.bucket() {
            // No writer of the database waits for the bucket.
            Some(_) => is_missing()? && self.set_lost(nar.id, &mut || Ok(true))?,
            None => self.set_lost(nar.id, &mut is_missing)?,
        };
        if is_lost {
            self.report_lost(nar, found)?;
        }
        Ok(found == Some(nar.file_size))
    }

    /// Like [`is_whole`](Self::is_whole), but a file that cannot be examined counts as whole: the
    /// request for the file itself reports the cause.
    pub(crate) fn seems_whole(&self, nar: &StoredNar) -> Result<bool, StorageError> {
        match self.is_there(nar) {
            Err(StorageError::File { .. }) => Ok(true),
            outcome => outcome,
        }
    }

    /// Returns whether a NAR that is not recorded as lost counts as there without a look at its
    /// file, because that takes a request to a bucket. A reader that needs the file looks.
    pub(crate) fn is_there(&self, nar: &StoredNar) -> Result<bool, StorageError> {
        match self.objects.bucket() {
            Some(_) => Ok(true),
            None => self.is_whole(nar),
        }
    }

    /// Returns the object with the file of a NAR.
    pub(crate) fn object_of<'a>(&self, nar: &'a StoredNar) -> Result<NarObject<'a>, StorageError> {
        packs::object_of(&self.metadata, &self.objects, nar)
    }

    /// Records a NAR whose object in the bucket has wrong bytes as lost.
    pub(crate) fn lose(&self, id: i64) -> Result<(), StorageError> {
        let Some(listed) = check::nars_after(&self.metadata, id - 1, 1)?.pop() else {
            return Ok(());
        };
        let nar = listed.nar;
        if nar.id != id {
            return Ok(());
        }
        if self.set_lost(id, &mut || Ok(true))? {
            self.report_lost(&nar, Some(nar.file_size))?;
        }
        Ok(())
    }

    fn set_lost(
        &self,
        id: i64,
        is_unchanged: &mut dyn FnMut() -> Result<bool, StorageError>,
    ) -> Result<bool, StorageError> {
        self.objects
            .removing(|mirror| check::set_lost(&self.metadata, id, true, is_unchanged, mirror))
    }

    fn report_lost(&self, nar: &StoredNar, found: Option<u64>) -> Result<(), StorageError> {
        if let Some(on_lost) = self.on_lost.0.get() {
            on_lost(&LostFile {
                key: nar.object_key.clone(),
                found,
                expected: nar.file_size,
                paths: check::paths_of_nar(&self.metadata, nar.id)?,
            });
        }
        Ok(())
    }
}
