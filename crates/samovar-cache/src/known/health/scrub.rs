//! Scrub: the background verification of all paths.
//!
//! # Theory of operation
//!
//! A round lists all paths of the store, those never verified first and then by the age of their
//! verification record, and reads them one after the other at the configured rate. Paths that were
//! verified since the start of the round are skipped. While the store cannot be read the round
//! waits.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | memory of a round | 32 bytes for each path | it is sorted by verification record |
//! | rounds | one an hour | a small store need not be read continuously |

use std::fmt;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samovar_metrics::Event;
use samovar_nix::HashPart;
use samovar_store::{Pace, Verdict, VerifyError, verify};

use super::Health;
use super::verified::minute_now;
use samovar_metrics::ScrubStatus;

/// The interval of progress events.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum interval between the starts of rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(3600);

/// The pause while the store cannot be read.
const PAUSE: Duration = Duration::from_secs(2);

/// Paths listed at once.
const STEP_COUNT: usize = 128;

/// Runs until the server ends.
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

/// A path, and the minute of its last verification; 0: never.
struct Planned {
    minute: u32,
    hash_part: HashPart,
    len: u64,
}

struct Round<'a> {
    health: &'a Health,
    pace: Pace,
    started: u32,
    reported_at: Instant,
    progress: Progress,
}

/// The progress of a round.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    is_over: bool,
    path_count: u64,
    paths_done: u64,
    len: u64,
    len_done: u64,
    damaged_count: u64,
    unread_count: u64,
}

/// The status of the scrub, for metrics.
#[derive(Debug, Default)]
pub(super) struct Status(Mutex<Option<ScrubStatus>>);

impl Status {
    /// `None` before the first round.
    pub(super) fn status(&self) -> Option<ScrubStatus> {
        self.lock().clone()
    }

    /// Updates the progress, and adds `read_len` bytes read.
    fn update(&self, progress: &Progress, read_len: u64) {
        let mut status = self.lock();
        let before = status.take().unwrap_or_default();
        *status = Some(ScrubStatus {
            path_count: progress.path_count,
            paths_done: progress.paths_done,
            len: progress.len,
            len_done: progress.len_done,
            quarantined_count: progress.damaged_count,
            unreadable_count: progress.unread_count,
            round_count: before.round_count + u64::from(progress.is_over),
            read_len: before.read_len + read_len,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<ScrubStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Round<'a> {
    fn new(health: &'a Health, rate: NonZeroU64) -> Self {
        Self {
            health,
            pace: Pace::new(Some(rate)),
            started: minute_now(),
            reported_at: Instant::now(),
            progress: Progress::default(),
        }
    }

    fn run(mut self) -> ControlFlow<()> {
        let mut plan = Vec::new();
        self.list(&mut plan)?;
        // Stable: paths of the same minute stay in their order, newest first.
        plan.sort_by_key(|planned| planned.minute);
        self.progress.path_count = plan.len() as u64;
        self.progress.len = plan.iter().map(|planned| planned.len).sum();
        self.update_status(0);
        for planned in plan {
            let len_before = self.progress.len_done;
            self.verify_path(planned.hash_part)?;
            self.progress.paths_done += 1;
            // The planned length, for skipped paths as well.
            self.progress.len_done = len_before + planned.len;
            self.update_status(0);
        }
        self.progress.is_over = true;
        self.update_status(0);
        self.health
            .observer
            .event(&Event::ScrubProgress(&self.progress));
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
                let minute = self.health.verified.minute(&hash_part);
                Planned {
                    minute: minute.unwrap_or(0),
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
                // Collected: no damage.
                Ok(None) => return ControlFlow::Continue(()),
                Err(error) if error.is_about_one_path() => {
                    self.progress.unread_count += 1;
                    return ControlFlow::Continue(());
                }
                Err(_) => {
                    health.tasks.rest(PAUSE)?;
                    continue;
                }
            };
            let root = health.store.tree(&info.path).map(|tree| tree.identity());
            if let Ok(Ok(Some(root))) = root
                && health.minute(&info, &root) >= Some(self.started)
            {
                return ControlFlow::Continue(());
            }
            match verify(&*health.store, &info, &mut |len| self.go_on(len)) {
                Ok(Verdict::Right(root)) => health.note_verified(&info, root.as_ref()),
                Ok(Verdict::Damaged(damage)) => {
                    self.progress.damaged_count += 1;
                    health.note_damaged(&info, &damage);
                }
                Ok(Verdict::Gone) => {}
                Err(VerifyError::Stopped) => return ControlFlow::Break(()),
                Err(VerifyError::Store(_)) => {
                    health.tasks.rest(PAUSE)?;
                    continue;
                }
                Err(error) => {
                    self.progress.unread_count += 1;
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
        self.progress.len_done += len;
        self.update_status(len);
        if self.reported_at.elapsed() >= REPORT_INTERVAL {
            self.reported_at = Instant::now();
            self.health
                .observer
                .event(&Event::ScrubProgress(&self.progress));
        }
        self.health.tasks.rest(self.pace.pass(len))
    }

    fn update_status(&self, read_len: u64) {
        self.health.scrub.update(&self.progress, read_len);
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} of {} paths, {:.1} of {:.1} GB, {} damaged",
            if self.is_over { "scrub ended" } else { "scrub" },
            self.paths_done,
            self.path_count,
            gigabytes(self.len_done),
            gigabytes(self.len),
            self.damaged_count,
        )?;
        match self.unread_count {
            0 => Ok(()),
            count => write!(f, ", {count} cannot be read"),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn gigabytes(len: u64) -> f64 {
    len as f64 / 1e9
}
