//! What all engines share: [`Clock`] and [`Flush`].

/// Function that returns the present time, in seconds since 1970.
pub type Clock = fn() -> i64;

/// What has happened to a commit once it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sql) enum Flush {
    /// It is on the disk.
    AtCommit,
    /// A power cut may undo it until the next transaction is committed.
    Later,
}
