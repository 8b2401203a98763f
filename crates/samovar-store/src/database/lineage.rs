//! Whether a file went on by commits alone since the last look, or was written over.
//!
//! A backup written over the file has rows that were deleted since, with the numbers they had. What
//! was concluded from rising numbers is then of no more use.
//!
//! # Theory of operation
//!
//! **WAL mode.** Commits do not touch the file. Checkpoints do, and are taken for a copy: they are
//! rare.
//!
//! **Rollback mode.** Every commit touches the file and counts itself there, and a copy takes the
//! count back. That goes unnoticed only when, before the next look, the copy is followed by as many
//! commits as it took back.

use super::session::Identity;

/// What a file looked like at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) identity: Identity,
    /// The count of commits. `None` in WAL mode. Read after `identity`: a commit in between then
    /// looks like a copy, and not the other way round.
    pub(super) commit_count: Option<u32>,
}

/// All looks at a file so far.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    last: Option<Look>,
    number: u64,
}

impl Lineage {
    /// Adds a look. The number that is returned is another one when the file was written over.
    pub(super) fn look(&mut self, look: Look) -> u64 {
        if !self.last.is_some_and(|last| look.continues(&last)) {
            self.number += 1;
        }
        self.last = Some(look);
        self.number
    }
}

impl Look {
    /// Whether commits alone may have led here.
    pub(super) fn continues(&self, last: &Self) -> bool {
        let has_more_commits = match (last.commit_count, self.commit_count) {
            (Some(before), Some(now)) => is_more(now, before),
            _ => false,
        };
        self.identity == last.identity
            || (self.identity.is_same_file(&last.identity) && has_more_commits)
    }
}

/// The count begins again at zero after its highest value.
fn is_more(now: u32, before: u32) -> bool {
    (1..1 << 31).contains(&now.wrapping_sub(before))
}

#[cfg(test)]
mod tests {
    use super::is_more;

    #[test]
    fn counts_of_commits() {
        assert!(is_more(8, 7));
        assert!(!is_more(7, 7));
        assert!(!is_more(6, 7));
        assert!(is_more(0, u32::MAX));
        assert!(!is_more(u32::MAX, 0));
    }
}
