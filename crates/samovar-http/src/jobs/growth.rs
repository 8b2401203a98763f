//! The number of slots of a lane, which grows while jobs wait for handlers that block.
//!
//! # Theory of operation
//!
//! A lane starts with `base` slots. If a job waits because all slots are occupied, the monitor
//! looks at the threads that occupy them. Threads that sleep, for example until a database answers,
//! need no processor, so more jobs may run: the number of slots at most doubles with each look, up
//! to `max`. Threads that compute need one, and more threads would only compete with them. So the
//! number of threads that compute or wait for a processor decides: while it is below `base`, there
//! may be more slots, but only so many more that it probably stays there; from twice `base` on, the
//! number of slots shrinks. It does not matter who else uses the processors: a thread that waits
//! for one counts as computing.
//!
//! The first look comes a millisecond after the first job has waited. While looks change nothing,
//! they become rarer. If no job has waited for a second, the number of slots becomes the number
//! that was used in that second. When it has become `base` again, the looks end.

use std::time::{Duration, Instant};

/// Time from the moment when a job must wait, or from a change, to the next look.
pub(super) const LOOK_TIME: Duration = Duration::from_millis(1);
/// Maximum time between two looks while jobs wait.
pub(super) const LOOK_TIME_MAX: Duration = Duration::from_millis(16);
/// Maximum time between two looks while no job waits.
const QUIET_TIME_MAX: Duration = Duration::from_millis(256);
/// Time after which slots are given up that no job has used.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The number of slots of one lane.
#[derive(Debug, Clone)]
pub(super) struct Growth {
    base: usize,
    max: usize,
    slots: usize,
    /// Time between the last look and this one.
    look_time: Duration,
    was_starved: bool,
    /// Start of the current period in which no job has waited.
    quiet_since: Option<Instant>,
    /// Maximum number of occupied slots seen in this period.
    quiet_max: usize,
}

/// What the monitor sees of a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    pub(super) now: Instant,
    /// Number of jobs that wait.
    pub(super) queued: usize,
    /// Number of jobs that run and occupy a slot.
    pub(super) running: usize,
    /// Number of threads with such jobs that were examined.
    pub(super) examined: usize,
    /// Number of these threads that computed or waited for a processor.
    pub(super) computing: usize,
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Number of slots from now on.
    pub(super) slots: usize,
    /// Number of handlers that hang and should lend their slot, if there are so many.
    pub(super) lendable: usize,
    /// Time until the next look; `None` if none is needed before a job waits.
    pub(super) next: Option<Duration>,
}

impl Growth {
    pub(super) fn new(base: usize, max: usize) -> Self {
        Self {
            base,
            max,
            slots: base,
            look_time: LOOK_TIME,
            was_starved: false,
            quiet_since: None,
            quiet_max: 0,
        }
    }

    /// Decides on the number of slots.
    pub(super) fn look(&mut self, sight: Sight) -> Outcome {
        let is_starved = sight.queued > 0 && sight.running >= self.slots;
        let (before, mut lendable) = (self.slots, 0);
        let computing = sight.all_computing();
        if computing >= 2 * self.base {
            self.slots = self.base + (self.slots - self.base) / 2;
        } else if is_starved && computing < self.base {
            let wanted = sight.queued.min(self.room(sight.running, computing));
            self.slots += wanted.min(self.slots).min(self.max - self.slots);
            if before == self.max {
                lendable = wanted;
            }
        }
        if is_starved {
            self.quiet_since = None;
        } else {
            self.settle(sight);
        }
        let is_due = self.slots > before || is_starved && !self.was_starved;
        let time_max = match is_starved {
            true => LOOK_TIME_MAX,
            false => QUIET_TIME_MAX,
        };
        self.look_time = match is_due {
            true => LOOK_TIME,
            false => (self.look_time * 2).min(time_max),
        };
        self.was_starved = is_starved;
        let is_needed = is_starved || self.slots > self.base || sight.running > self.base;
        Outcome {
            slots: self.slots,
            lendable,
            next: is_needed.then_some(self.look_time),
        }
    }

    /// Returns how many jobs can start so that the number of computing threads probably does not
    /// exceed `base`: each job computes as probably as those that run now.
    fn room(&self, running: usize, computing: usize) -> usize {
        match computing {
            0 => usize::MAX,
            _ => ((self.base - computing) * running / computing).max(1),
        }
    }

    /// Gives up slots that no job has used for some time.
    fn settle(&mut self, sight: Sight) {
        let Some(since) = self.quiet_since else {
            (self.quiet_since, self.quiet_max) = (Some(sight.now), sight.running);
            return;
        };
        self.quiet_max = self.quiet_max.max(sight.running);
        if sight.now.saturating_duration_since(since) >= SETTLE_TIME {
            self.slots = self.slots.min(self.quiet_max.max(self.base));
            (self.quiet_since, self.quiet_max) = (Some(sight.now), sight.running);
        }
    }
}

impl Sight {
    /// Returns the probable number of all threads that compute, from those that were examined.
    fn all_computing(self) -> usize {
        match self.examined {
            // Nothing is known, so it is safe to assume that all compute.
            0 => self.running,
            examined => (self.running * self.computing).div_ceil(examined),
        }
    }
}

#[cfg(test)]
mod tests;
