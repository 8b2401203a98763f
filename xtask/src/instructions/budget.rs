//! Budgets of requests, stored in `xtask/instructions.txt`.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};

use super::server::Counts;

/// Percentage by which a cost may exceed its budget. Runs of the same program differ by 2 %.
const TOLERANCE_PERCENT: u64 = 5;

/// The same percentage if the compiler, C library or processor is not the one with which the
/// budgets were measured.
const TOLERANCE_ELSEWHERE_PERCENT: u64 = 25;

/// Row of the first requests for narinfos, and the percentage by which it may exceed its budget.
/// The order in which workers and prefetch happen to run decides which of them reads a path from
/// the database and how many paths are read together: between runs of the same program, the cost
/// differs by 20 %.
const FIRST_NARINFO: (&str, u64) = ("first-narinfo", 25);

/// Percentage by which a cost must be below its budget to be worth recording.
const BELOW_PERCENT: u64 = 10;

/// System calls that a thread also makes without requests, because it wakes up four times a second
/// and for messages from other threads. The number is the excess per hundred requests that is
/// tolerated on a busy machine.
const CLOCKED: [(&str, u64); 3] = [("clock_gettime", 50), ("epoll_pwait", 25), ("read", 25)];

/// Tolerated excess of each other system call per hundred requests. Their numbers are nearly exact.
const CALL_TOLERANCE: u64 = 1;

const HEADER: &str = "\
# Budgets: `xtask instructions` fails if a request costs more. Each line has the name of a kind of
# request, the instructions of the I/O thread per request without those of the kernel, and the
# system calls of that thread per hundred requests. clock_gettime is one under valgrind only.
# The lines of first requests have the instructions of all threads, and no system calls.
#
# After a change of the costs that is intended, and for another compiler:
#
#     cargo run -p xtask -- instructions --renew
#
";

/// Cost of one request of a row: instructions and system calls of the I/O thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) instructions: u64,
    /// System calls by name, per hundred requests.
    calls: BTreeMap<String, u64>,
}

impl Cost {
    /// Creates a cost without system calls.
    pub(super) fn of(instructions: u64) -> Self {
        Self {
            instructions,
            calls: BTreeMap::new(),
        }
    }

    /// Computes the cost per request. `once` was measured with `request_count` requests, and
    /// `twice` with twice as many.
    pub(super) fn between(once: &Counts, twice: &Counts, request_count: u64) -> Self {
        let mut calls = BTreeMap::new();
        for (name, &count) in &twice.calls {
            let more = count.saturating_sub(once.calls.get(name).copied().unwrap_or(0));
            let of_hundred = (more * 100 + request_count / 2) / request_count;
            if of_hundred > 0 {
                calls.insert(name.clone(), of_hundred);
            }
        }
        let more = twice.instructions.saturating_sub(once.instructions);
        Self {
            instructions: more / request_count,
            calls,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.instructions)?;
        for (name, count) in &self.calls {
            write!(f, " {name} {count}")?;
        }
        Ok(())
    }
}

/// Contents of the file `xtask/instructions.txt`.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// Environment in which the budgets were measured.
    pub(super) environment: String,
    pub(super) rows: BTreeMap<String, Cost>,
}

impl Budgets {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut budgets = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(environment) = line.strip_prefix("with ") {
                environment.clone_into(&mut budgets.environment);
                continue;
            }
            let mut words = line.split(' ');
            let (Some(name), Some(instructions)) = (words.next(), words.next()) else {
                bail!("{line:?} is not a name and a cost");
            };
            let mut calls = BTreeMap::new();
            while let Some(call) = words.next() {
                let count = words.next().context("a call and how many")?;
                calls.insert(call.to_owned(), count.parse()?);
            }
            let instructions = instructions.parse()?;
            let cost = Cost {
                instructions,
                calls,
            };
            budgets.rows.insert(name.to_owned(), cost);
        }
        Ok(budgets)
    }

    /// Returns the tolerance for measurements of `row` in `environment`, in percent.
    pub(super) fn tolerance_percent(&self, row: &str, environment: &str) -> u64 {
        if self.environment != environment {
            TOLERANCE_ELSEWHERE_PERCENT
        } else if row == FIRST_NARINFO.0 {
            FIRST_NARINFO.1
        } else {
            TOLERANCE_PERCENT
        }
    }
}

/// Renders the contents of the file with these costs as the budgets.
pub(super) fn render(environment: &str, costs: &[(String, Cost)]) -> String {
    let lines: Vec<String> = costs
        .iter()
        .map(|(name, cost)| format!("{name} {cost}\n"))
        .collect();
    format!("{HEADER}with {environment}\n{}", lines.concat())
}

/// Result of comparing a cost with its budget.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Within,
    /// The cost is so far below its budget that it is worth recording.
    Below(Cost),
    /// The cost is above its budget. Contains the reason as a text.
    Above(String),
    /// The cost has no budget yet and is to be recorded.
    New,
}

impl Verdict {
    /// Compares a cost with its budget; without one, the result is `New`.
    pub(super) fn of(cost: &Cost, budget: Option<&Cost>, tolerance_percent: u64) -> Self {
        let Some(budget) = budget else {
            return Self::New;
        };
        let names = cost.calls.keys().chain(budget.calls.keys());
        let mut has_fewer_calls = false;
        for name in names {
            let count = cost.calls.get(name).copied().unwrap_or(0);
            let allowed = budget.calls.get(name).copied().unwrap_or(0);
            let clocked = CLOCKED.iter().find(|(clocked, _)| clocked == name);
            let tolerance = clocked.map_or(CALL_TOLERANCE, |&(_, tolerance)| tolerance);
            if count > allowed + tolerance {
                let reason =
                    format!("{count} calls of {name} per 100 requests, at most {allowed} allowed");
                return Self::Above(reason);
            }
            has_fewer_calls |= count + tolerance < allowed;
        }
        if cost.instructions * 100 > budget.instructions * (100 + tolerance_percent) {
            return Self::Above(format!("more than {} instructions", budget.instructions));
        }
        let is_below = cost.instructions * 100 < budget.instructions * (100 - BELOW_PERCENT);
        if is_below || has_fewer_calls {
            return Self::Below(budget.clone());
        }
        Self::Within
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Within => write!(f, "ok"),
            Self::Below(budget) => write!(
                f,
                "ok, far below the budget {budget}: record it with `xtask instructions --renew`"
            ),
            Self::Above(reason) => write!(f, "ABOVE THE BUDGET: {reason}"),
            Self::New => write!(f, "recorded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(line: &str) -> Cost {
        let budgets = Budgets::parse(&format!("row {line}")).unwrap();
        budgets.rows.get("row").unwrap().clone()
    }

    #[test]
    fn rendered_budgets_are_parsed_to_the_same_values() {
        let costs = [("a", cost("1 recvfrom 100")), ("b", cost("2"))]
            .map(|(name, cost)| (name.to_owned(), cost));
        let budgets = Budgets::parse(&render("some compiler", &costs)).unwrap();
        assert_eq!(budgets.rows.get("a"), Some(&costs[0].1));
        assert_eq!(budgets.rows.get("b"), Some(&costs[1].1));
        assert_eq!(budgets.tolerance_percent("a", "some compiler"), 5);
        assert_eq!(budgets.tolerance_percent("a", "another"), 25);
        assert_eq!(
            budgets.tolerance_percent("first-narinfo", "some compiler"),
            25
        );
    }

    #[test]
    fn costs_are_judged_by_their_tolerances() {
        let budget = cost("1000 epoll_pwait 100 pread64 100");
        let of = |line: &str| Verdict::of(&cost(line), Some(&budget), 5);
        assert_eq!(of("1050 epoll_pwait 125 pread64 101"), Verdict::Within);
        assert_eq!(of("900 epoll_pwait 75 pread64 99"), Verdict::Within);
        for below in [
            "899 epoll_pwait 75 pread64 99",
            "900 epoll_pwait 100 pread64 98",
        ] {
            assert_eq!(of(below), Verdict::Below(budget.clone()));
        }
        for above in [
            "1051",
            "900 epoll_pwait 126",
            "900 pread64 102",
            "900 futex 2",
        ] {
            assert!(matches!(of(above), Verdict::Above(_)), "{above}");
        }
    }
}
