//! The bucket, and what can be done with its objects.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use rusty_s3::Method;

use crate::download::Download;
use crate::error::BucketError;
use crate::list::Entry;
use crate::put::PutOptions;
use crate::rights::RightFinding;
use crate::settings::Settings;
use crate::stat::Stat;
use crate::statistics::Statistics;
use crate::wire::{Request, Wire};
use crate::{delete, download, list, multipart, put, rights, stat};

/// One bucket, or what is below a prefix in it.
///
/// All methods block, and may be called from any number of threads. Keys are relative to the prefix
/// of the [`Settings`]; they have no empty segment, no `.` or `..` as a segment, no control
/// character, and at most 1024 bytes with the prefix.
#[derive(Debug, Clone)]
pub struct Bucket {
    wire: Arc<Wire>,
}

impl Bucket {
    /// Opens a bucket. Sends no request, and asks no service for credentials.
    ///
    /// # Errors
    ///
    /// If the settings are wrong, or the file of trusted certificates cannot be used.
    pub fn open(settings: &Settings) -> Result<Self, BucketError> {
        let wire = Arc::new(Wire::new(settings)?);
        Ok(Self { wire })
    }

    /// Writes an object of bytes in memory, by one PUT with its SHA-256.
    ///
    /// An object with this key is replaced, unless the options say otherwise. It is there, whole
    /// and durable, when this returns.
    ///
    /// # Errors
    ///
    /// Any [`BucketError`]. The object may have been written if the error is transient.
    pub fn put(&self, key: &str, bytes: &[u8], put: &PutOptions) -> Result<(), BucketError> {
        put::bytes(&self.wire, key, bytes, put)
    }

    /// Writes an object of the first `len` bytes of a file.
    ///
    /// Up to 16 MiB by one PUT; more in parts, up to four at once, which become an object only when
    /// all are there. The position of the file is neither used nor changed.
    ///
    /// # Errors
    ///
    /// Any [`BucketError`]. The object may have been written if the error is transient; parts of it
    /// are removed as far as possible.
    pub fn put_file(
        &self,
        key: &str,
        file: &File,
        len: u64,
        put: &PutOptions,
    ) -> Result<(), BucketError> {
        if len <= multipart::WHOLE_LEN_MAX {
            put::file(&self.wire, key, file, len, put)
        } else {
            multipart::put(&self.wire, key, file, len, put)
        }
    }

    /// Begins to read an object, or the bytes of it in `range`. Returns `None` if it is absent.
    ///
    /// A range that ends after the end of the object is cut there. The download counts among the 64
    /// requests in flight until it is read to its end or dropped: read it without waiting for a
    /// client.
    ///
    /// # Errors
    ///
    /// Any [`BucketError`]; [`crate::Fault::Range`] if the object has no byte in `range`.
    pub fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<Download>, BucketError> {
        download::begin(&self.wire, key, range)
    }

    /// Returns what the engine says of an object, or `None` if it is absent.
    ///
    /// # Errors
    ///
    /// Any [`BucketError`]. Amazon denies access to absent objects if listing is not allowed.
    pub fn head(&self, key: &str) -> Result<Option<Stat>, BucketError> {
        let key = self.wire.whole(key)?;
        stat::head(&self.wire, &key)
    }

    /// Deletes objects. An object that is absent already is no error.
    ///
    /// # Errors
    ///
    /// Any [`BucketError`]. Some objects may have been deleted.
    pub fn delete(&self, keys: &[&str]) -> Result<(), BucketError> {
        delete::delete(&self.wire, keys)
    }

    /// Visits all objects whose keys begin with `prefix`, in the order of their keys, until `visit`
    /// breaks. `prefix` may be empty, or end within a segment.
    ///
    /// The list is read page by page, while it is visited: objects that are written or deleted
    /// meanwhile may be in it or not.
    ///
    /// # Errors
    ///
    /// Any [`BucketError`]. Objects may have been visited.
    pub fn list(
        &self,
        prefix: &str,
        visit: &mut dyn FnMut(&Entry) -> ControlFlow<()>,
    ) -> Result<(), BucketError> {
        list::list(&self.wire, prefix, visit)
    }

    /// Returns a URL by which anyone can read an object for the time `valid`, at most seven days.
    ///
    /// Nothing is sent, so the object may be absent. Temporary credentials may expire before.
    ///
    /// # Errors
    ///
    /// If there are no credentials, or the key cannot be one.
    pub fn presigned_get(&self, key: &str, valid: Duration) -> Result<String, BucketError> {
        const VALID_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
        let request = Request::object(Method::Get, &self.wire.whole(key)?);
        let failed = |fault| self.wire.error(format!("presigned GET {key}"), fault);
        let login = self.wire.login().map_err(failed)?;
        let valid = valid.clamp(Duration::from_secs(1), VALID_MAX);
        Ok(self.wire.signed_url(&request, &login, valid).into())
    }

    /// Returns what was done since the bucket was opened. Clones of a bucket count together.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.wire.statistics()
    }

    /// Tries each right that is needed, below `.samovar/probe/`, and other properties of the
    /// engine.
    ///
    /// Takes a few seconds if all is well. Everything that it writes is deleted again.
    #[must_use]
    pub fn try_rights(&self) -> Vec<RightFinding> {
        rights::try_all(&self.wire)
    }
}
