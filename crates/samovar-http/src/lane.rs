//! Lanes, the classes of worker slots.

/// The lane in which a request is processed. Each lane has its own worker slots, so blocked jobs in
/// one lane do not delay the jobs in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lane {
    /// The lane for jobs that finish soon, or at least do not wait for disk I/O.
    #[default]
    Prompt,
    /// The lane for jobs that may wait for disk I/O, however long it takes.
    Slow,
    /// The lane for jobs that write to a disk. A disk that cannot be written may well be readable.
    Writing,
    /// The lane for long computations. It has few slots, so that processor time remains for the
    /// other lanes.
    Costly,
    /// The lane for TLS handshakes, which compute for a millisecond and never wait.
    Handshake,
}

impl Lane {
    /// Returns the lane for sending the response body: sending needs little computation, so it does
    /// not use a costly slot.
    pub(crate) fn of_body(self) -> Self {
        match self {
            Self::Prompt | Self::Handshake => Self::Prompt,
            Self::Slow | Self::Costly => Self::Slow,
            Self::Writing => Self::Writing,
        }
    }
}
