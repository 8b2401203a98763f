//! What was true when, as far as anybody outside can know.
//!
//! A command takes effect at one moment between its start and its end, and nobody but the store
//! knows which. So for as long as it runs both are possible, what was before and what is after.

/// Microseconds since the start of the run.
pub(crate) type Moment = u64;

#[derive(Debug)]
struct State<T> {
    value: T,
    /// From here on it is possible.
    from: Moment,
    /// From here on it is certain, until the next one begins.
    certain: Option<Moment>,
}

/// One thing's states, in their order.
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

    /// A change begins, at whose end `value` is expected.
    pub(crate) fn begin(&mut self, now: Moment, value: T) {
        self.0.push(State {
            value,
            from: now,
            certain: None,
        });
    }

    /// The change that began last has ended, and this is what it is now.
    pub(crate) fn end(&mut self, now: Moment, value: T) {
        if let Some(state) = self.0.last_mut() {
            state.value = value;
            state.certain = Some(now);
        }
    }

    /// What it can have been at some moment of a time.
    pub(crate) fn possible(&self, from: Moment, until: Moment) -> Vec<&T> {
        let ends = self.0.iter().skip(1).map(|next| next.certain);
        let ends = ends.chain([None]);
        let states = self.0.iter().zip(ends);
        let within =
            states.filter(|(state, end)| state.from <= until && end.is_none_or(|end| end >= from));
        within.map(|(state, _)| &state.value).collect()
    }

    /// How many changes can have happened in a time.
    pub(crate) fn change_count(&self, from: Moment, until: Moment) -> usize {
        self.possible(from, until).len() - 1
    }

    /// The last so many states: since when each was possible, and since when certain.
    pub(crate) fn recent(
        &self,
        count: usize,
    ) -> impl Iterator<Item = (&T, Moment, Option<Moment>)> {
        let states = self.0.iter().skip(self.0.len().saturating_sub(count));
        states.map(|state| (&state.value, state.from, state.certain))
    }

    /// The state that was begun last.
    pub(crate) fn latest(&self) -> Option<&T> {
        self.0.last().map(|state| &state.value)
    }
}

/// Times in which something was the case.
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

    /// The last so many of them.
    pub(crate) fn recent(&self, count: usize) -> &[(Moment, Option<Moment>)] {
        &self.0[self.0.len().saturating_sub(count)..]
    }

    /// Whether one of them, with `slack` behind it, touches a time.
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
    fn both_are_possible_while_it_changes() {
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
    fn spans_have_consequences() {
        let mut spans = Spans::default();
        spans.begin(10);
        assert!(!spans.touch(0, 9, 5));
        assert!(spans.touch(100, 200, 0));
        spans.end(20);
        assert!(spans.touch(25, 30, 5));
        assert!(!spans.touch(26, 30, 5));
    }
}
