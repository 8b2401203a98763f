//! Log lines about outages of the database server and of the bucket of a storage: one when uploads
//! begin to wait, and one when they go on.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use samovar_storage::{PATIENCE, Remote, Storage};

use crate::log::ErrorLog;

/// Interval at which the states are read.
const INTERVAL: Duration = Duration::from_millis(500);

/// Time after which an outage is reported. Shorter ones are usual, such as the restart of a server.
const OUTAGE_MIN: Duration = Duration::from_secs(2);

/// An outage of the database server or of the bucket.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    is_reported: bool,
}

/// What is to be reported.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Begun,
    Over(Duration),
}

impl Outage {
    /// Takes notice of a state. Returns what is to be reported.
    fn observe(&mut self, now: Instant, is_down: bool) -> Option<Line> {
        let length = now.saturating_duration_since(self.since.unwrap_or(now));
        if !is_down {
            let before = std::mem::take(self);
            return before.is_reported.then_some(Line::Over(length));
        }
        self.since.get_or_insert(now);
        let is_due = length >= OUTAGE_MIN && !self.is_reported;
        self.is_reported |= is_due;
        is_due.then_some(Line::Begun)
    }
}

/// Starts a thread that reports outages until the storage is dropped, if the storage has a database
/// server or a bucket.
///
/// # Errors
///
/// If the thread cannot be started.
pub(super) fn watch(storage: &Arc<Storage>, errors: ErrorLog) -> io::Result<()> {
    if Remote::all_of(storage).is_empty() {
        return Ok(());
    }
    let storage = Arc::downgrade(storage);
    let watch = move || {
        let mut outages: Vec<Outage> = Vec::new();
        while let Some(storage) = storage.upgrade() {
            let remotes = Remote::all_of(&storage);
            drop(storage);
            outages.resize_with(remotes.len(), Outage::default);
            for (remote, outage) in remotes.iter().zip(&mut outages) {
                match outage.observe(Instant::now(), remote.down.is_some()) {
                    Some(Line::Begun) => errors.warning(begun(remote)),
                    Some(Line::Over(length)) => errors.info(over(remote, length)),
                    None => {}
                }
            }
            thread::sleep(INTERVAL);
        }
    };
    let builder = thread::Builder::new().name("storage-outages".to_owned());
    builder.spawn(watch).map(drop)
}

fn begun(remote: &Remote) -> impl fmt::Display {
    let Remote { name, place, .. } = remote;
    let reason = remote.down.as_deref().unwrap_or_default();
    let (time, patience) = (OUTAGE_MIN.as_secs(), PATIENCE.as_secs());
    fmt::from_fn(move |f| {
        write!(
            f,
            "uploads wait for the {name} ({place}), which has not been usable for {time} s: \
             {reason}; an upload fails after {patience} s; `samovar doctor` names the step that \
             fails"
        )
    })
}

fn over(remote: &Remote, length: Duration) -> impl fmt::Display {
    let Remote { name, place, .. } = remote;
    let time = length.as_secs();
    fmt::from_fn(move |f| {
        write!(
            f,
            "the {name} ({place}) is usable again after {time} s, and uploads go on"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_when_it_is_over() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(outage.observe(at(0), false), None);
        assert_eq!(outage.observe(at(500), true), None);
        assert_eq!(outage.observe(at(2400), true), None);
        assert_eq!(outage.observe(at(2500), true), Some(Line::Begun));
        assert_eq!(outage.observe(at(60_000), true), None);
        let length = Duration::from_secs(60);
        assert_eq!(outage.observe(at(60_500), false), Some(Line::Over(length)));
        assert_eq!(outage.observe(at(61_000), false), None);
    }

    #[test]
    fn a_short_outage_is_not_reported() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        for ms in [0, 3000, 6000] {
            let at = |more: u64| start + Duration::from_millis(ms + more);
            assert_eq!(outage.observe(at(0), true), None);
            assert_eq!(outage.observe(at(1500), true), None);
            assert_eq!(outage.observe(at(2000), false), None);
        }
    }
}
