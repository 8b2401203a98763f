//! Lanes: classes of worker slots.

/// The lane in which a request is handled. Each lane has worker slots of its own, so jobs that hang
/// in one lane do not delay those in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lane {
    /// For jobs that end soon, or at least do not wait for disks.
    #[default]
    Prompt,
    /// For jobs that may wait for a disk, however long that takes.
    Slow,
    /// For long computations. It has few slots, so that processors remain for the other lanes.
    Costly,
}

impl Lane {
    /// The lane for the body of an answer: sending it computes little, so it takes no costly slot.
    #[cfg(feature = "http2")]
    pub(crate) fn of_body(self) -> Self {
        match self {
            Self::Prompt => Self::Prompt,
            Self::Slow | Self::Costly => Self::Slow,
        }
    }
}

/// The worker slots of all lanes, for jobs that wait for their client in the middle of a body.
pub(crate) trait Slots: Send + Sync {
    /// Lends a slot to other jobs; `false` if too many are lent already.
    fn lend(&self, lane: Lane) -> bool;

    /// Takes a lent slot back at once: for a moment more jobs may run than the lane has slots.
    fn reclaim(&self, lane: Lane);
}

/// A slot lent to other jobs; reclaimed when dropped.
pub(crate) struct LentSlot<'a> {
    slots: &'a dyn Slots,
    lane: Lane,
}

impl<'a> LentSlot<'a> {
    /// `None` if too many slots are lent already.
    pub(crate) fn lend(slots: &'a dyn Slots, lane: Lane) -> Option<Self> {
        // Lazily: dropping one that was not lent would reclaim it.
        slots.lend(lane).then(|| Self { slots, lane })
    }
}

impl Drop for LentSlot<'_> {
    fn drop(&mut self) {
        self.slots.reclaim(self.lane);
    }
}
