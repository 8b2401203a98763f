//! Minimum throughput of the client while a handler waits for it.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::client::Peer;
use crate::core::Core;
use crate::jobs::{LentSlot, Listed, Wait};
use crate::lane::Lane;
use crate::limits::Limits;
use crate::proto::Refusal;
use crate::sync::Lock;
use crate::upload::BodyError;

/// Interval at which a waiting handler checks whether the server is stopping. During a drain it
/// also checks at the time at which it must stop.
const STOP_CHECK_TIME: Duration = Duration::from_millis(200);

/// Minimum time for which a handler waits between two checks.
const WAIT_TIME_MIN: Duration = Duration::from_millis(1);

/// Measurement window of the throughput. Only time spent waiting counts, not the time that the
/// handler needs between two reads.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    waited: Duration,
    moved_len: u64,
    /// The upload in the list of those that wait; `None` before the first wait.
    listed: Option<Listed>,
}

/// A wait for the client, during which the worker slot is lent to other jobs.
pub(crate) struct Waiting<'a> {
    core: &'a Core,
    lane: Lane,
    lent: Option<LentSlot<'a>>,
}

impl Patience {
    /// Counts received bytes towards the current window.
    pub(crate) fn moved(&mut self, len: usize) {
        self.moved_len += len as u64;
        if let Some(listed) = &self.listed {
            listed.moved(len);
        }
    }

    /// Starts to wait for the client.
    pub(crate) fn wait<'a>(&mut self, core: &'a Core, peer: Peer, lane: Lane) -> Waiting<'a> {
        self.listed
            .get_or_insert_with(|| core.queue.uploads.add(peer));
        Waiting {
            core,
            lane,
            lent: None,
        }
    }

    /// Lends the slot, if it is not lent yet. If too many slots are lent, the job keeps its slot
    /// until the next call. Returns the time for which the handler may wait until the next call.
    ///
    /// # Errors
    ///
    /// [`BodyError::Stopped`] if the server is stopping, [`BodyError::GaveWay`] if the upload must
    /// make room for another one.
    pub(crate) fn check(&self, waiting: &mut Waiting<'_>) -> Result<Duration, BodyError> {
        let core = waiting.core;
        let time = time_to_wait(core)?;
        if waiting.lent.is_none() {
            waiting.lent = LentSlot::lend(&core.queue, waiting.lane, Wait::Other);
        }
        if let Some(listed) = &self.listed {
            if listed.is_cut() {
                return Err(BodyError::GaveWay);
            }
            listed.set_waiting(waiting.lent.is_some());
        }
        Ok(time)
    }

    /// Ends a wait.
    pub(crate) fn end(&self, waiting: Waiting<'_>) {
        if let Some(listed) = &self.listed {
            listed.set_waiting(false);
        }
        drop(waiting);
    }

    /// Adds time spent waiting, even if the wait ended because bytes arrived: otherwise a client
    /// that sends single bytes would never fail. Fails with [`Refusal::Timeout`] if the window is
    /// over and too few bytes were received in it.
    pub(crate) fn waited(&mut self, time: Duration, limits: &Limits) -> Result<(), BodyError> {
        self.waited += time;
        if let Some(listed) = &self.listed {
            listed.waited(time);
        }
        if self.waited >= limits.stall_time {
            if self.moved_len < limits.stall_len_min {
                return Err(BodyError::Refused(Refusal::Timeout));
            }
            (self.waited, self.moved_len) = (Duration::ZERO, 0);
        }
        Ok(())
    }
}

/// Returns the time for which a handler may wait before it checks again whether the server is
/// stopping; fails if it is.
fn time_to_wait(core: &Core) -> Result<Duration, BodyError> {
    if core.is_cut_off.load(Ordering::Acquire) {
        return Err(BodyError::Stopped);
    }
    let Some(stops_at) = *core.stops_at.locked() else {
        return Ok(STOP_CHECK_TIME);
    };
    match stops_at.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(BodyError::Stopped),
        left => Ok(left.clamp(WAIT_TIME_MIN, STOP_CHECK_TIME)),
    }
}

/// Calls `is_ready` until it returns `true` or the server stops. Each call may block for at most
/// the time that it is given. Meanwhile the worker slot is lent to other jobs.
pub(crate) fn wait(
    core: &Core,
    lane: Lane,
    is_ready: &mut dyn FnMut(Duration) -> bool,
) -> io::Result<()> {
    // If too many slots are lent already, the job keeps its slot while it waits.
    let _lent = LentSlot::lend(&core.queue, lane, Wait::Other);
    loop {
        let time = time_to_wait(core);
        if is_ready(time.unwrap_or(WAIT_TIME_MIN)) {
            return Ok(());
        }
        time?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_fails_at_its_end_and_one_byte_below_the_minimum() {
        let limits = Limits::default();
        let least_len = usize::try_from(limits.stall_len_min).unwrap();
        let almost = limits.stall_time - Duration::from_nanos(1);
        let timeout = Err(BodyError::Refused(Refusal::Timeout));
        for (moved_len, expected) in [(least_len, Ok(())), (least_len - 1, timeout)] {
            let mut patience = Patience::default();
            patience.moved(moved_len);
            assert_eq!(patience.waited(almost, &limits), Ok(()));
            assert_eq!(patience.waited(Duration::from_nanos(1), &limits), expected);
        }
        // The next window starts with zero bytes.
        let mut patience = Patience::default();
        patience.moved(least_len);
        assert_eq!(patience.waited(limits.stall_time, &limits), Ok(()));
        assert_eq!(patience.waited(limits.stall_time, &limits), timeout);
    }
}
