//! [`Joins`]: allows at most one join of the same parts at a time.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use samovar_nix::NarHash;

/// Identifier of a push, and hash of the NAR whose file is joined.
type Key = (String, NarHash);

/// The joins in progress.
#[derive(Debug, Default)]
pub(crate) struct Joins(Mutex<HashSet<Key>>);

/// A join in progress. Dropping it ends the join.
pub(crate) struct Join<'a>(&'a Joins, Key);

impl Joins {
    /// Starts a join. Returns `None` if a join of the same parts is in progress.
    pub(crate) fn start(&self, key: Key) -> Option<Join<'_>> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.insert(key.clone()).then(|| Join(self, key))
    }
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        let mut running = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_join_of_the_same_parts_runs_at_a_time() {
        let joins = Joins::default();
        let key = |push: &str| (push.to_owned(), NarHash::from_bytes([1; 32]));
        let first = joins.start(key("a"));
        assert!(first.is_some() && joins.start(key("a")).is_none());
        assert!(joins.start(key("b")).is_some());
        drop(first);
        assert!(joins.start(key("a")).is_some());
    }
}
