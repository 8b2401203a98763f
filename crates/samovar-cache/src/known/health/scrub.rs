//! Scrub: verification of all paths in the background.
//!
//! # Theory of operation
//!
//! A round lists all paths of the store (32 bytes of memory each) and reads them one after the
//! other at the configured rate.
//! Paths never verified come first, then those with the oldest verification records. Paths that
//! were verified since the round started are skipped. While the store cannot be read, the round
//! waits.

#[cfg(test)]
mod tests;

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use samovar_metrics::Event;
use samovar_nix::HashPart;
use samovar_store::{Pace, Verdict, VerifyError, verify};
use samovar_text::human;

use super::Health;
use super::verified::Moment;
use crate::known::row::Row;
use crate::sync::Locked;
use samovar_metrics::ScrubStatus;

/// Interval at which a round reports its progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum interval between the starts of rounds: a small store need not be read all the time.
const ROUND_INTERVAL: Duration = Duration::from_secs(3600);

/// The pause while the store cannot be read.
const PAUSE: Duration = Duration::from_secs(2);

/// Number of paths that one query of the store lists.
const STEP_COUNT: usize = 128;

/// Verifies the store, round after round, until the server ends.
pub(super) fn run(health: &Health, rate: NonZeroU64) {
    loop {
        let started = Instant::now();
        if Round::new(health, rate).run().is_break() {
            return;
        }
        let rest = ROUND_INTERVAL.saturating_sub(started.elapsed());
        if health.tasks.rest(rest).is_break() {
            return;
        }
    }
}

/// A path to verify, and when its last verification began; `None`: never.
struct Planned {
    verified: Option<Moment>,
    hash_part: HashPart,
    len: u64,
}

struct Round<'a> {
    health: &'a Health,
    pace: Pace,
    /// Time at which the round started.
    started: Moment,
    reported_at: Instant,
    status: ScrubStatus,
}

impl<'a> Round<'a> {
    fn new(health: &'a Health, rate: NonZeroU64) -> Self {
        let before = health.scrub_status().unwrap_or_default();
        Self {
            health,
            pace: Pace::new(Some(rate)),
            started: Moment::now(),
            reported_at: Instant::now(),
            status: ScrubStatus {
                round_count: before.round_count,
                read_len: before.read_len,
                ..ScrubStatus::default()
            },
        }
    }

    fn run(mut self) -> ControlFlow<()> {
        let mut plan = Vec::new();
        self.list(&mut plan)?;
        // The sort is stable, so paths that were never verified stay in their order, newest
        // first.
        plan.sort_by_key(|planned| planned.verified);
        self.status.path_count = plan.len() as u64;
        self.status.len = plan.iter().map(|planned| planned.len).sum();
        self.publish();
        for planned in plan {
            let len_before = self.status.len_done;
            self.verify_path(planned.hash_part)?;
            self.status.paths_done += 1;
            // Count the planned length even if the path was skipped.
            self.status.len_done = len_before + planned.len;
            self.publish();
        }
        // The next save drops the records and marks of garbage-collected paths, for which it needs
        // the catalog.
        if let Some(catalog) = self.health.store.catalog()
            && catalog.load().is_ok()
        {
            self.health.tasks.note_change();
        }
        self.status.round_count += 1;
        self.publish();
        self.report("scrub ended");
        ControlFlow::Continue(())
    }

    fn list(&self, plan: &mut Vec<Planned>) -> ControlFlow<()> {
        let mut before = None;
        loop {
            let Ok(infos) = self.health.store.newest(before, STEP_COUNT) else {
                self.health.tasks.rest(PAUSE)?;
                continue;
            };
            let Some(last) = infos.last() else {
                return ControlFlow::Continue(());
            };
            before = last.registration;
            plan.extend(infos.iter().map(|info| {
                let hash_part = info.path.hash_part();
                Planned {
                    verified: self.health.verified.began(&hash_part),
                    hash_part,
                    len: info.nar_size,
                }
            }));
            if before.is_none() || self.health.tasks.is_stopped() {
                return self.health.tasks.rest(Duration::ZERO);
            }
        }
    }

    fn verify_path(&mut self, hash_part: HashPart) -> ControlFlow<()> {
        let health = self.health;
        loop {
            let info = match health.store.lookup(hash_part) {
                Ok(Some(info)) => info,
                // The path was garbage-collected, which is no damage.
                Ok(None) => return ControlFlow::Continue(()),
                Err(error) if error.is_about_one_path() => {
                    self.status.unreadable_count += 1;
                    return ControlFlow::Continue(());
                }
                Err(_) => {
                    health.tasks.rest(PAUSE)?;
                    continue;
                }
            };
            let row = Row::from(&info);
            let root = health.store.tree(&info.path).map(|tree| tree.identity());
            if let Ok(Ok(root)) = root
                && health.verified_since(&row, &root) >= Some(self.started)
            {
                return ControlFlow::Continue(());
            }
            let began = Moment::now();
            match verify(&*health.store, &info, &mut |len| self.go_on(len)) {
                Ok(Verdict::Right(root)) => health.note_verified(&row, &root, began),
                Ok(Verdict::Damaged(damage)) => {
                    self.status.quarantined_count += 1;
                    health.note_damaged(&row, &damage);
                }
                Ok(Verdict::Gone) => {}
                Err(VerifyError::Stopped) => return ControlFlow::Break(()),
                Err(VerifyError::Store(_)) => {
                    health.tasks.rest(PAUSE)?;
                    continue;
                }
                Err(error) => {
                    self.status.unreadable_count += 1;
                    health.observer.event(&Event::PathFailed {
                        path: &info.path,
                        error: &error,
                    });
                }
            }
            return ControlFlow::Continue(());
        }
    }

    fn go_on(&mut self, len: u64) -> ControlFlow<()> {
        self.status.len_done += len;
        self.status.read_len += len;
        self.publish();
        if self.reported_at.elapsed() >= REPORT_INTERVAL {
            self.reported_at = Instant::now();
            self.report("scrub");
        }
        self.health.tasks.rest(self.pace.pass(len))
    }

    fn publish(&self) {
        *self.health.scrub.locked() = Some(self.status.clone());
    }

    fn report(&self, what: &str) {
        let status = &self.status;
        let unreadable = match status.unreadable_count {
            0 => String::new(),
            count => format!(", {count} cannot be read"),
        };
        let progress = format_args!(
            "{what}: {} of {} paths, {} of {}, {} damaged{unreadable}",
            status.paths_done,
            status.path_count,
            human(status.len_done),
            human(status.len),
            status.quarantined_count,
        );
        self.health.observer.event(&Event::ScrubProgress(&progress));
    }
}
