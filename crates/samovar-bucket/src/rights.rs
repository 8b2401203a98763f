//! What the credentials may do, and what the engine can do, by trying it.

use crate::wire::Wire;

/// A right of the credentials, or a property of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Right {
    /// Writing objects.
    Put,
    /// Reading objects.
    Get,
    /// Reading ranges of objects.
    Range,
    /// Asking for the length of objects.
    Head,
    /// Listing objects.
    List,
    /// Writing objects in parts.
    Multipart,
    /// Deleting objects.
    Delete,
    /// Refusing to replace an object (`If-None-Match: *`). Nothing depends on it.
    Conditional,
    /// A clock that agrees with the engine's.
    Clock,
    /// No rule of the bucket that deletes or moves our objects.
    Lifecycle,
}

/// What came out when a right was tried.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It is as it should be.
    Good,
    /// Something works in another way than is best; the text says what that means.
    Remark(String),
    /// It is missing.
    Missing(crate::BucketError),
}

/// A right, and what came out when it was tried.
#[derive(Debug)]
pub struct RightFinding {
    /// Which right.
    pub right: Right,
    /// What came out.
    pub outcome: Outcome,
}

pub(crate) fn try_all(_wire: &Wire) -> Vec<RightFinding> {
    Vec::new()
}
