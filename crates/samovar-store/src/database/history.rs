//! Detects that the database file was overwritten, rather than changed by commits.
//!
//! A backup written over the file restores deleted rows with their old ids. After that, a row id
//! above the last one no longer identifies a new row.
//!
//! # Theory of operation
//!
//! **WAL mode.** Commits do not change the file. Checkpoints do, and count as an overwrite: they
//! are rare.
//!
//! **Rollback mode.** Every commit changes the file and increments its change counter; a copy sets
//! the counter back. That is missed only if the copy is followed by exactly as many commits before
//! the next observation.

use super::file_state::FileState;

/// The state of a database file at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    pub(super) identity: FileState,
    /// The file change counter; `None` in WAL mode. Read after `identity`: a commit between the two
    /// reads then looks like a copy over the file, and a copy never looks like a commit.
    pub(super) commit_count: Option<u32>,
}

/// Assigns a number to each history of a file. A history ends when the file is overwritten.
#[derive(Debug, Default)]
pub(super) struct History {
    last: Option<Observation>,
    number: u64,
}

impl History {
    /// Records an observation. Returns the number of the history, which changes if the file was
    /// overwritten.
    pub(super) fn observe(&mut self, observation: Observation) -> u64 {
        if !self.last.is_some_and(|last| observation.continues(&last)) {
            self.number += 1;
        }
        self.last = Some(observation);
        self.number
    }
}

impl Observation {
    /// Returns whether commits alone can lead from `last` to `self`.
    pub(super) fn continues(&self, last: &Self) -> bool {
        let has_more_commits = match (last.commit_count, self.commit_count) {
            (Some(before), Some(now)) => is_more(now, before),
            _ => false,
        };
        self.identity == last.identity
            || (self.identity.file == last.identity.file && has_more_commits)
    }
}

/// Returns whether the counter `now` is greater than `before`; both wrap around.
fn is_more(now: u32, before: u32) -> bool {
    (1..1 << 31).contains(&now.wrapping_sub(before))
}

#[cfg(test)]
mod tests {
    use super::is_more;

    #[test]
    fn change_counters_wrap_around() {
        assert!(is_more(8, 7));
        assert!(!is_more(7, 7));
        assert!(!is_more(6, 7));
        assert!(is_more(0, u32::MAX));
        assert!(!is_more(u32::MAX, 0));
    }
}
