//! Which jobs may hang together.

/// Where the work for a request is done. Each lane has places of its own, so what hangs in one
/// keeps nothing in the other from being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lane {
    /// What ends soon, or waits for nothing that the slow lane waits for.
    #[default]
    Prompt,
    /// What may wait for a disk, for as long as that takes.
    Slow,
}
