//! [`Watch`]: notices nodes that have ended, and generations that have aged.

use std::collections::BTreeMap;

use crate::{Generation, Moment, RowId, Times};

/// Number of renewals of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Renewals(pub i64);

/// What was observed of the rows of all nodes, and since when it is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Watch {
    times: Times,
    pub(crate) generation: Option<(Generation, Moment)>,
    pub(crate) rows: BTreeMap<RowId, (Renewals, Moment)>,
}

/// What an observation has shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Findings {
    /// Rows without a lease: mark each as lapsed if it still has this number of renewals.
    pub lapsed: Vec<(RowId, Renewals)>,
    /// Generation in which no lease of an earlier one lives: mark it as aged.
    pub aged: Option<Generation>,
}

impl Watch {
    /// Returns a watch that has observed nothing.
    #[must_use]
    pub const fn new(times: Times) -> Self {
        Self {
            times,
            generation: None,
            rows: BTreeMap::new(),
        }
    }

    /// Takes notice of the generation and of all rows that are not lapsed. `now`: a moment after
    /// they were read.
    pub fn observe(
        &mut self,
        now: Moment,
        generation: Generation,
        rows: impl IntoIterator<Item = (RowId, Renewals)>,
    ) -> Findings {
        let before = match self.generation {
            Some((known, _)) if known == generation => std::mem::take(&mut self.rows),
            _ => {
                self.generation = Some((generation, now));
                BTreeMap::new()
            }
        };
        self.rows = rows
            .into_iter()
            .map(|(row, renewals)| match before.get(&row) {
                Some((known, since)) if *known == renewals => (row, (renewals, *since)),
                _ => (row, (renewals, now)),
            })
            .collect();
        let is_over = |since: Moment| now.since(since) >= self.times.wait;
        Findings {
            lapsed: self
                .rows
                .iter()
                .filter(|(_, (_, since))| is_over(*since))
                .map(|(row, (renewals, _))| (*row, *renewals))
                .collect(),
            aged: self
                .generation
                .filter(|(_, since)| is_over(*since))
                .map(|(generation, _)| generation),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn observe(watch: &mut Watch, secs: u64, generation: i64, rows: &[(i64, i64)]) -> Findings {
        let rows = rows
            .iter()
            .map(|(row, renewals)| (RowId(*row), Renewals(*renewals)));
        let now = Moment(Duration::from_secs(secs));
        watch.observe(now, Generation(generation), rows)
    }

    #[test]
    fn a_row_lapses_when_it_was_not_renewed_for_the_wait() {
        let mut watch = Watch::new(Times::default());
        let nothing = Findings::default();
        assert_eq!(observe(&mut watch, 10, 1, &[(1, 7), (2, 7)]), nothing);
        assert_eq!(observe(&mut watch, 12, 1, &[(1, 8), (2, 7)]), nothing);
        let found = observe(&mut watch, 13, 1, &[(1, 8), (2, 7)]);
        assert_eq!(found.lapsed, [(RowId(2), Renewals(7))]);
        assert_eq!(found.aged, Some(Generation(1)));
    }

    #[test]
    fn another_generation_begins_anew() {
        let mut watch = Watch::new(Times::default());
        observe(&mut watch, 10, 1, &[(1, 7)]);
        let nothing = Findings::default();
        assert_eq!(observe(&mut watch, 14, 2, &[(1, 7)]), nothing);
        assert_eq!(observe(&mut watch, 16, 2, &[(1, 7)]), nothing);
        assert_eq!(observe(&mut watch, 17, 2, &[]).aged, Some(Generation(2)));
    }
}
