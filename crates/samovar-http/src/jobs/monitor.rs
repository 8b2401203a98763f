//! The monitor: the thread that looks at the workers while jobs wait.
//!
//! The monitor sleeps until a job waits because all slots of its lane are occupied; see
//! [`growth`](super::growth).

use std::time::{Duration, Instant};

use super::growth::{Growth, Outcome, Sight};
use super::progress::{Jobs, Running};
use super::queue::Queue;
use crate::lane::Lane;
use crate::sys;

/// Maximum number of threads that are examined in one look. Each takes some microseconds.
const EXAMINED_MAX: usize = 16;
/// Time for which a handler must have run before the monitor may lend its slot.
const HANG_TIME: Duration = Duration::from_secs(1);
/// Lanes whose number of slots may grow.
const LANES: [Lane; 3] = [Lane::Prompt, Lane::Slow, Lane::Writing];

/// Looks at the workers whenever a job waits, until the queue is closed.
pub(crate) fn run(queue: &Queue, jobs: &Jobs, cores: usize) {
    let mut monitor = Monitor {
        queue,
        jobs,
        lanes: LANES.map(|lane| (lane, Growth::new(queue.slots.base, queue.slots.max))),
        processors: Processors { cores, last: None },
        turn: 0,
    };
    let mut next = None;
    while queue.rest(next) {
        next = monitor.look();
    }
}

struct Monitor<'a> {
    queue: &'a Queue,
    jobs: &'a Jobs,
    lanes: [(Lane, Growth); 3],
    processors: Processors,
    /// Changes which threads are examined.
    turn: usize,
}

impl Monitor<'_> {
    /// Looks once at each lane. Returns the time until the next look; `None` if no lane needs one.
    fn look(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let is_busy = self.processors.is_busy(now, sys::process_cpu_time());
        self.turn = self.turn.wrapping_add(1);
        let mut next: Option<Duration> = None;
        for (lane, growth) in &mut self.lanes {
            let (queued, running) = self.queue.counts(*lane);
            let (examined, computing) = match queued + running {
                0 => (0, 0),
                _ => examine(&self.jobs.in_lane(*lane), self.turn, is_busy),
            };
            let outcome = growth.look(Sight {
                now,
                queued,
                running,
                examined,
                computing,
            });
            let Outcome {
                slots, lendable, ..
            } = outcome;
            self.queue.set_slots(*lane, slots);
            if lendable > 0 && self.queue.lends_hanging() {
                lend(self.queue, self.jobs, *lane, lendable);
            }
            next = next.into_iter().chain(outcome.next).min();
        }
        next
    }
}

/// Examines some of the threads that occupy slots. Returns the number of threads and how many of
/// them compute. `is_busy`: what is assumed if the system does not tell that.
fn examine(all: &[impl AsRef<Running>], turn: usize, is_busy: bool) -> (usize, usize) {
    let from = match all.len() {
        0 => 0,
        count => turn.wrapping_mul(EXAMINED_MAX) % count,
    };
    let some = all.iter().cycle().skip(from).take(all.len());
    let (mut examined, mut computing) = (0, 0);
    for worker in some.take(EXAMINED_MAX) {
        if let Some(is_runnable) = sys::is_runnable(worker.as_ref().thread) {
            examined += 1;
            computing += usize::from(is_runnable);
        }
    }
    match examined {
        0 => (all.len(), if is_busy { all.len() } else { 0 }),
        _ => (examined, computing),
    }
}

/// Lends the slots of up to `count` handlers that have run for long and sleep now, those first that
/// have run longest.
fn lend(queue: &Queue, jobs: &Jobs, lane: Lane, count: usize) {
    let mut workers: Vec<_> = jobs
        .in_lane(lane)
        .into_iter()
        .filter_map(|worker| Some((worker.duration()?, worker)))
        .filter(|(duration, _)| *duration >= HANG_TIME)
        .collect();
    workers.sort_by_key(|(duration, _)| std::cmp::Reverse(*duration));
    let sleeping = workers
        .iter()
        .filter(|(_, worker)| sys::is_runnable(worker.thread) == Some(false));
    for (_, worker) in sleeping.take(count) {
        if !queue.lend_for_thread(&worker.slot) {
            return;
        }
    }
}

/// The use of the processors by this process, for systems that do not tell what threads do.
struct Processors {
    cores: usize,
    /// Time of the last look, and the processor time that the process had used then.
    last: Option<(Instant, Duration)>,
}

impl Processors {
    /// Returns whether the process has used most of all processors since the last look. If that was
    /// long ago or there was none, the process counts as busy.
    fn is_busy(&mut self, now: Instant, used: Duration) -> bool {
        let Some((before, used_before)) = self.last.replace((now, used)) else {
            return true;
        };
        let passed = now.saturating_duration_since(before);
        let share = used.saturating_sub(used_before).as_secs_f64() / passed.as_secs_f64();
        passed > Duration::from_secs(1) || passed.is_zero() || share > 0.7 * self.cores as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_busy_if_it_has_used_most_of_the_processors() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut processors = Processors {
            cores: 2,
            last: None,
        };
        let mut at = |time, used| processors.is_busy(start + ms(time), ms(used));
        assert!(at(0, 50), "nothing is known");
        assert!(!at(10, 60));
        assert!(at(20, 75));
        assert!(!at(21, 75));
        assert!(at(2000, 75), "the last look was long ago");
    }
}
