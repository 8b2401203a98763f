//! [`LostFile`]: a file that is missing or has a wrong length.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use samovar_text::counted;

use crate::layout::is_of_upstream;
use crate::metadata::ListedPath;

/// Directory of NAR files, which may be on another disk than the database.
const NARS: &str = "nar";

/// Maximum number of paths that the description of a lost file names.
const NAMED_COUNT_MAX: usize = 3;

/// A file that is missing or has a wrong length. `Display` prints one line for the log: the file,
/// the affected paths, and what the operator can do.
#[derive(Debug)]
pub struct LostFile {
    pub(crate) key: String,
    /// The length that was found. `None`: the file is missing.
    pub(crate) found: Option<u64>,
    pub(crate) expected: u64,
    pub(crate) paths: Vec<ListedPath>,
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.key)?;
        match self.found {
            None => write!(f, "is missing")?,
            Some(found) if found == self.expected => write!(f, "has wrong bytes")?,
            Some(found) => write!(f, "has {}, not {}", counted(found, "byte"), self.expected)?,
        }
        write!(f, " and is recorded as lost; ")?;
        let is_kept = |path: &ListedPath| is_of_upstream(&path.cache_name);
        let is_pushed = self.paths.is_empty() || !self.paths.iter().all(is_kept);
        match self.paths.len() {
            0 => write!(f, "no path uses it")?,
            count => {
                let until = match is_pushed {
                    true => "not served until pushed again",
                    false => "requested from the upstream again",
                };
                write!(f, "{until}: {}", counted(count, "path"))?;
                for path in self.paths.iter().take(NAMED_COUNT_MAX) {
                    write!(f, ", {} ({})", path.path.base_name(), path.cache_name)?;
                }
            }
        }
        match is_pushed {
            true => write!(
                f,
                "; push again, or restore the file and run samovar fsck --deep --repair"
            ),
            false => Ok(()),
        }
    }
}

type Report = dyn Fn(&LostFile) + Send + Sync;

/// The function that is told of each lost file.
#[derive(Default)]
pub(crate) struct OnLost(pub(crate) OnceLock<Box<Report>>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnLost")
            .field(&self.0.get().is_some())
            .finish()
    }
}

/// Device, inode number and time of birth of a directory. They change if another one is mounted,
/// moved or created there.
pub(crate) type Place = Option<(u64, u64, Option<SystemTime>)>;

pub(crate) fn place_of_nars(root: &Path) -> Place {
    let directory = fs::metadata(root.join(NARS)).ok()?;
    let born = directory.created().ok();
    Some((directory.dev(), directory.ino(), born))
}
