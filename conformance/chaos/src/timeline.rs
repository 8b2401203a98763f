//! Records the states of an object over time as an outside observer knows them: the times of
//! changes are uncertain.
//!
//! A command takes effect at some moment between its start and its end, which only the store knows.
//! While it runs, both the old and the new state are possible.

/// Time in microseconds since the start of the run.
pub(crate) type Moment = u64;

#[derive(Debug)]
struct State<T> {
    value: T,
    /// Moment from which the object may be in this state.
    from: Moment,
    /// Moment from which the object is certainly in this state, until the change to the next state
    /// begins; `None` while the change to this state is in progress.
    certain: Option<Moment>,
}

/// All states of one object, in chronological order.
#[derive(Debug)]
pub(crate) struct Timeline<T>(Vec<State<T>>);

impl<T: PartialEq + Clone> Timeline<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(vec![State {
            value,
            from: 0,
            certain: Some(0),
        }])
    }

    /// Records the start of a change that is expected to result in `value`.
    pub(crate) fn begin(&mut self, now: Moment, value: T) {
        self.0.push(State {
            value,
            from: now,
            certain: None,
        });
    }

    /// Records the end of the latest change, which resulted in `value`.
    pub(crate) fn end(&mut self, now: Moment, value: T) {
        if let Some(state) = self.0.last_mut() {
            state.value = value;
            state.certain = Some(now);
        }
    }

    /// Returns all states that are possible at some moment of an interval.
    pub(crate) fn possible(&self, from: Moment, until: Moment) -> Vec<&T> {
        let ends = self.0.iter().skip(1).map(|next| next.certain);
        let ends = ends.chain([None]);
        let states = self.0.iter().zip(ends);
        let within =
            states.filter(|(state, end)| state.from <= until && end.is_none_or(|end| end >= from));
        within.map(|(state, _)| &state.value).collect()
    }

    /// Returns the maximum number of changes within an interval.
    pub(crate) fn change_count(&self, from: Moment, until: Moment) -> usize {
        self.possible(from, until).len() - 1
    }

    /// Returns the last `count` states. Each has the moment from which it was possible, and the
    /// moment from which it was certain, if it became certain.
    pub(crate) fn recent(
        &self,
        count: usize,
    ) -> impl Iterator<Item = (&T, Moment, Option<Moment>)> {
        let states = self.0.iter().skip(self.0.len().saturating_sub(count));
        states.map(|state| (&state.value, state.from, state.certain))
    }

    /// Returns the state to which the latest change leads, even while that change is in progress;
    /// `None` if there was no state yet.
    pub(crate) fn latest(&self) -> Option<&T> {
        self.0.last().map(|state| &state.value)
    }
}

/// Intervals of time in which a condition held. An interval without an end still lasts.
#[derive(Debug, Default)]
pub(crate) struct Spans(Vec<(Moment, Option<Moment>)>);

impl Spans {
    pub(crate) fn begin(&mut self, now: Moment) {
        self.0.push((now, None));
    }

    pub(crate) fn end(&mut self, now: Moment) {
        if let Some(span) = self.0.last_mut() {
            span.1 = Some(now);
        }
    }

    /// Returns the last `count` intervals; an interval without an end still lasts.
    pub(crate) fn recent(&self, count: usize) -> &[(Moment, Option<Moment>)] {
        &self.0[self.0.len().saturating_sub(count)..]
    }

    /// Returns whether an interval, extended by `slack`, overlaps `from` to `until`.
    pub(crate) fn touch(&self, from: Moment, until: Moment, slack: Moment) -> bool {
        self.0.iter().any(|&(begin, end)| {
            begin <= until && end.is_none_or(|end| end.saturating_add(slack) >= from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_and_the_new_state_are_possible_during_a_change() {
        let mut line = Timeline::new('a');
        line.begin(10, 'b');
        assert_eq!(line.possible(0, 9), [&'a']);
        assert_eq!(line.possible(11, 12), [&'a', &'b']);
        line.end(20, 'b');
        assert_eq!(line.possible(9, 9), [&'a']);
        assert_eq!(line.possible(15, 15), [&'a', &'b']);
        assert_eq!(line.possible(20, 20), [&'a', &'b']);
        assert_eq!(line.possible(21, 30), [&'b']);
        assert_eq!(line.change_count(21, 30), 0);
        line.begin(40, 'c');
        line.end(50, 'b');
        assert_eq!(line.possible(60, 60), [&'b']);
    }

    #[test]
    fn an_interval_excuses_failures_until_its_slack_ends() {
        let mut spans = Spans::default();
        spans.begin(10);
        assert!(!spans.touch(0, 9, 5));
        assert!(spans.touch(100, 200, 0));
        spans.end(20);
        assert!(spans.touch(25, 30, 5));
        assert!(!spans.touch(26, 30, 5));
    }
}
