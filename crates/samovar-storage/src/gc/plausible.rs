//! Finds reasons to doubt that a run of the collector deletes what it should: a clock that has
//! jumped, or far more unused paths than usual. Then the run changes nothing, until an operator
//! confirms it with `samovar gc --force`.

use crate::error::Doubt;
use crate::gc::Verdict;
use crate::gc::{Retentions, Rules};
use crate::metadata::{DAY, Graph};

/// Number of unused paths up to which a run is never doubted.
const FEW_COUNT: usize = 16;

/// Retention in seconds up to which paths are expected to go, many at once. They are not counted.
const SHORT: i64 = 7 * DAY;

/// Minimum time since the last run, in seconds, at which a run is doubted although the clock did
/// not jump while this process ran: the server may not have run.
const PAUSE_MIN: i64 = 7 * DAY;

/// Jumps of the clock while this process runs. The clock minus the time since the boot, its
/// *offset*, is constant unless the clock jumps.
#[derive(Debug)]
pub(crate) struct Jumps {
    /// The offset that is believed, in seconds.
    believed: i64,
    /// The offset after a jump, and the time since the boot at which it was first seen.
    doubted: Option<(i64, i64)>,
}

impl Jumps {
    /// `offset`: the offset when the storage was opened.
    pub(crate) fn new(offset: i64) -> Self {
        Self {
            believed: offset,
            doubted: None,
        }
    }

    /// Returns the number of seconds by which the clock is ahead of the believed offset. After a
    /// jump it is believed again if it has not jumped for [`Rules::settling`]. `boot`: the time
    /// since the boot.
    pub(crate) fn drift(&mut self, offset: i64, boot: i64, rules: &Rules) -> i64 {
        let drift = offset.saturating_sub(self.believed);
        if drift <= rules.drift_max {
            self.doubted = None;
            return drift;
        }
        let seen = self.doubted.filter(|(doubted, _)| {
            let further = offset.saturating_sub(*doubted);
            further.saturating_abs() <= rules.drift_max
        });
        match seen {
            Some((_, since)) if boot - since >= rules.settling => {
                *self = Self::new(offset);
                0
            }
            Some(_) => drift,
            None => {
                self.doubted = Some((offset, boot));
                drift
            }
        }
    }
}

/// Returns the reason to doubt the clock. `drift`: number of seconds by which it has advanced more
/// than the time that has passed since this process started. `collected_at`: time at which the last
/// complete run ended.
pub(crate) fn of_clock(
    now: i64,
    collected_at: Option<i64>,
    drift: i64,
    rules: &Rules,
    retentions: &Retentions,
) -> Option<Doubt> {
    // A clock that was wrong before the jump and is right now passes: the last run is recent.
    let pause = now - collected_at?;
    if drift > rules.drift_max && pause > rules.drift_max {
        return Some(Doubt::Jump(drift));
    }
    let pause_max = retentions.shortest()?;
    (pause > pause_max.max(PAUSE_MIN).max(rules.drift_max)).then_some(Doubt::Pause(pause))
}

/// Returns a reason to doubt the verdicts if they would delete more than half of the paths that
/// were kept before. Paths of upstreams do not count: they can be requested again.
pub(crate) fn of_verdicts(graph: &Graph, verdicts: &[Verdict]) -> Option<Doubt> {
    let (mut kept, mut dead) = (0, 0);
    for (index, (path, verdict)) in graph.paths.iter().zip(verdicts).enumerate() {
        let is_short = path.retention.is_some_and(|time| time <= SHORT);
        if path.is_condemned || is_short || graph.is_of_upstream(index) {
            continue;
        }
        kept += 1;
        dead += usize::from(*verdict != Verdict::Keep);
    }
    (dead > FEW_COUNT && dead > kept / 2).then_some(Doubt::Many(dead, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gc::Retention;
    use crate::metadata::GraphPath;

    const NOW: i64 = 20_000 * DAY;

    fn clock(pause: i64, drift: i64, days: Option<i64>) -> Option<Doubt> {
        let retention = Retention {
            time: days.map(|days| days * DAY),
            ..Retention::default()
        };
        let retentions = Retentions::from_iter([("a".to_owned(), retention)]);
        of_clock(
            NOW,
            Some(NOW - pause),
            drift,
            &Rules::default(),
            &retentions,
        )
    }

    #[test]
    fn a_jump_is_doubted_unless_it_corrects_the_clock() {
        assert_eq!(clock(DAY, DAY + 1, None), None);
        assert_eq!(clock(DAY + 1, DAY, None), None);
        let jump = DAY + 1;
        assert_eq!(clock(jump, jump, None), Some(Doubt::Jump(jump)));
        assert_eq!(clock(3600, 50 * 365 * DAY, Some(1)), None);
        let rules = Rules::default();
        let never = of_clock(NOW, None, jump, &rules, &Retentions::default());
        assert_eq!(never, None);
    }

    #[test]
    fn a_clock_that_does_not_jump_again_is_believed_after_a_day() {
        let rules = Rules::default();
        let mut jumps = Jumps::new(7);
        assert_eq!(jumps.drift(7 + DAY, 100, &rules), DAY);
        let jump = 3 * DAY;
        assert_eq!(jumps.drift(7 + jump, 200, &rules), jump);
        assert_eq!(jumps.drift(7 + jump + 60, 200 + DAY - 1, &rules), jump + 60);
        assert_eq!(jumps.drift(7 + jump + 60, 200 + DAY, &rules), 0);
        assert_eq!(jumps.drift(7 + jump + 60, 200 + 2 * DAY, &rules), 0);

        // Each jump starts the day again; a clock that has gone back needs none.
        let mut jumps = Jumps::new(0);
        assert_eq!(jumps.drift(2 * DAY, 0, &rules), 2 * DAY);
        assert_eq!(jumps.drift(4 * DAY, DAY, &rules), 4 * DAY);
        assert_eq!(jumps.drift(2 * DAY, 2 * DAY - 1, &rules), 2 * DAY);
        assert_eq!(jumps.drift(60, 2 * DAY, &rules), 60);
        assert_eq!(jumps.drift(2 * DAY, 3 * DAY, &rules), 2 * DAY);
    }

    #[test]
    fn a_pause_longer_than_the_retention_is_doubted() {
        assert_eq!(clock(30 * DAY, 0, Some(30)), None);
        let pause = 30 * DAY + 1;
        assert_eq!(clock(pause, 0, Some(30)), Some(Doubt::Pause(pause)));
        assert_eq!(clock(pause, 0, None), None);
        assert_eq!(clock(7 * DAY, 0, Some(1)), None);
        assert_eq!(
            clock(7 * DAY + 1, 0, Some(1)),
            Some(Doubt::Pause(7 * DAY + 1))
        );
    }

    #[test]
    fn more_than_half_of_many_paths_is_doubted() {
        let of = |kept: usize, dead: usize, days: Option<i64>| {
            let mut graph = Graph {
                caches: vec!["a".to_owned()],
                ..Graph::default()
            };
            let mut verdicts = vec![Verdict::Keep; kept];
            verdicts.resize(kept + dead, Verdict::Unused);
            for id in 0..verdicts.len() {
                graph.paths.push(GraphPath {
                    id: i64::try_from(id).unwrap(),
                    cache: 0,
                    nar_id: 1,
                    file_size: 1,
                    used_at: 0,
                    registered_at: 0,
                    retention: days.map(|days| days * DAY),
                    is_condemned: false,
                });
            }
            of_verdicts(&graph, &verdicts)
        };
        assert_eq!(of(0, 16, Some(30)), None);
        assert_eq!(of(0, 17, Some(30)), Some(Doubt::Many(17, 17)));
        assert_eq!(of(17, 17, Some(30)), None);
        assert_eq!(of(16, 17, Some(30)), Some(Doubt::Many(17, 33)));
        assert_eq!(of(0, 17, Some(7)), None);
        assert_eq!(of(0, 17, Some(8)), Some(Doubt::Many(17, 17)));
    }
}
