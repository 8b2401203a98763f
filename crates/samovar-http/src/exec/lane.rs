//! Lanes, the classes of worker slots.

/// The lane in which a request is processed. Each lane has its own worker slots, so blocked jobs in
/// one lane do not delay the jobs in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lane {
    /// For jobs that finish soon, or at least do not wait for disk I/O.
    #[default]
    Prompt,
    /// For jobs that may wait for disk I/O, however long it takes.
    Slow,
    /// For long computations. It has few slots, so that processor time remains for the other lanes.
    Costly,
}

impl Lane {
    /// Returns the lane for sending the response body: sending needs little computation, so it does
    /// not use a costly slot.
    #[cfg(feature = "http2")]
    pub(crate) fn of_body(self) -> Self {
        match self {
            Self::Prompt => Self::Prompt,
            Self::Slow | Self::Costly => Self::Slow,
        }
    }
}

/// The worker slots of all lanes. Jobs use it while they wait for their client in the middle of a
/// body.
pub(crate) trait Slots: Send + Sync {
    /// Lends the caller's slot to other jobs; returns `false` if too many slots are lent already.
    fn lend(&self, lane: Lane) -> bool;

    /// Reclaims a lent slot immediately. Until another job ends, more jobs may run than the lane
    /// has slots.
    fn reclaim(&self, lane: Lane);
}

/// A worker slot lent to other jobs, reclaimed when dropped.
pub(crate) struct LentSlot<'a> {
    slots: &'a dyn Slots,
    lane: Lane,
}

impl<'a> LentSlot<'a> {
    /// Lends a slot; returns `None` if too many slots are lent already.
    pub(crate) fn lend(slots: &'a dyn Slots, lane: Lane) -> Option<Self> {
        // `then`, not `then_some`: dropping a value for a slot that was not lent would reclaim it.
        slots.lend(lane).then(|| Self { slots, lane })
    }
}

impl Drop for LentSlot<'_> {
    fn drop(&mut self) {
        self.slots.reclaim(self.lane);
    }
}
