//! The faults that a check of a storage finds.

use std::fmt;

/// The kind of a fault that a check finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The object of a NAR is missing.
    Missing,
    /// The object of a NAR has a length or contents other than its row states.
    Damaged,
    /// The NAR is recorded as lost. No upload has replaced it yet.
    Lost,
    /// The disk cache of this node has a copy with other bytes than its object.
    Copy,
    /// An object cannot be read.
    Unreadable,
    /// The index of an object's zstd frames is wrong.
    Frames,
    /// A narinfo in the directory is missing, or differs from the database.
    Narinfo,
    /// The directory has a narinfo of a path that the database does not have.
    Unknown,
    /// No row refers to the object.
    Orphan,
    /// The database is damaged.
    Database,
}

impl Kind {
    /// Returns the name of the kind, as `samovar fsck` prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Damaged => "damaged",
            Self::Lost => "lost",
            Self::Copy => "copy",
            Self::Unreadable => "unreadable",
            Self::Frames => "frames",
            Self::Narinfo => "narinfo",
            Self::Unknown => "unknown",
            Self::Orphan => "orphan",
            Self::Database => "database",
        }
    }
}

/// A fault of the storage. `Display` prints it in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of the fault.
    pub kind: Kind,
    /// Key of the object, or the name of the database.
    pub object: String,
    /// What is wrong and, if the check cannot repair it, what the operator can do.
    pub reason: String,
    /// The repair that was made. `None`: nothing was repaired.
    pub repair: Option<&'static str>,
    /// The paths that the fault affects, each with the name of its cache.
    pub paths: Vec<(String, String)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind.name(), self.object, self.reason)?;
        if let Some(repair) = self.repair {
            write!(f, "; {repair}")?;
        }
        for (at, (cache, path)) in self.paths.iter().enumerate() {
            let before = if at == 0 { "; affects" } else { "," };
            write!(f, "{before} {path} ({cache})")?;
        }
        Ok(())
    }
}

/// A fault of a NAR's object.
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) reason: String,
    /// The correct index of frames, if `kind` is [`Kind::Frames`]. Otherwise `None`.
    pub(super) frames: Option<Vec<u8>>,
}

impl Fault {
    pub(super) fn new(kind: Kind, reason: String) -> Self {
        Self {
            kind,
            reason,
            frames: None,
        }
    }
}
