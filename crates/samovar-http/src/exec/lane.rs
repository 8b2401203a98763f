//! Which jobs may hang together.

/// Where the work for a request is done. Each lane has places of its own, so what hangs in one
/// keeps nothing in the others from being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lane {
    /// What ends soon, or waits for nothing that the slow lane waits for.
    #[default]
    Prompt,
    /// What may wait for a disk, for as long as that takes.
    Slow,
    /// What computes for long. It has few places, so that the processors remain for others.
    Costly,
}

impl Lane {
    /// Where what follows a handler is done: a body is no reason to keep others from computing.
    #[cfg(feature = "http2")]
    pub(crate) fn of_body(self) -> Self {
        match self {
            Self::Prompt => Self::Prompt,
            Self::Slow | Self::Costly => Self::Slow,
        }
    }
}
