//! What the output of a test program says: counts, names of failed tests and their outputs, and
//! warnings.

use testkit::limit::{EXPECTED, WARNING};

/// Numbers of test programs and of tests, by their result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) binaries: u32,
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) ignored: u32,
}

impl Summary {
    /// Counts the tests that a program reports in its output.
    pub(super) fn of(output: &str) -> Self {
        let mut summary = Self::default();
        for line in output.lines() {
            summary.add_line(line);
        }
        summary
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.binaries += other.binaries;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds the counts of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add_line(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        self.binaries += 1;
        for count in counts.split(['.', ';']) {
            let Some((number, what)) = count.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u32>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// Returns the names in the last list of failures, which follows the outputs of the failed tests.
pub(super) fn failed_tests(output: &str) -> Vec<String> {
    let Some((_, list)) = output.rsplit_once("\nfailures:\n") else {
        return Vec::new();
    };
    list.lines()
        .map_while(|line| line.strip_prefix("    "))
        .map(str::to_owned)
        .collect()
}

/// Returns the warnings of limits, each with the name of its test in front.
pub(super) fn warnings(output: &str) -> impl Iterator<Item = &str> {
    let lines = output.lines();
    let warnings = lines.filter_map(|line| line.strip_prefix(WARNING));
    warnings.filter(|warning| warning.contains(EXPECTED))
}

/// Returns what a failed test has printed, with its headline; the whole output if there is no such
/// part.
pub(super) fn output_of(test: &str, output: &str) -> String {
    let headline = format!("---- {test} stdout ----\n");
    let Some(start) = output.find(&headline) else {
        return output.to_owned();
    };
    let part = output.get(start..).unwrap_or(output);
    let after = part.get(headline.len()..).unwrap_or_default();
    let end = ["\n---- ", "\nfailures:\n"]
        .iter()
        .filter_map(|next| after.find(next))
        .min()
        .unwrap_or(after.len());
    part.get(..headline.len() + end).unwrap_or(part).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test one ... FAILED
test a::two ... FAILED
test three ... ok

failures:

---- one stdout ----

thread 'one' panicked at a.rs:1:9:
first

---- a::two stdout ----
second

failures:
    one
    a::two

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.83s

";

    #[test]
    fn failed_tests_are_those_of_the_list_at_the_end() {
        assert_eq!(failed_tests(OUTPUT), ["one", "a::two"]);
        assert!(failed_tests("running 1 test\ntest one ... ").is_empty());
    }

    #[test]
    fn the_output_of_a_test_ends_at_the_next_one_or_the_list() {
        let first = output_of("one", OUTPUT);
        assert!(first.starts_with("---- one stdout ----\n"), "{first}");
        assert!(first.ends_with("first\n"), "{first}");
        assert_eq!(
            output_of("a::two", OUTPUT),
            "---- a::two stdout ----\nsecond\n"
        );
        assert_eq!(output_of("three", OUTPUT), OUTPUT);
    }

    #[test]
    fn warnings_are_the_lines_of_values_above_their_limits() {
        let output = "test one ... \n\
                      warning: one: 130.0 MiB of memory, expected at most 128.0 MiB\n\
                      warning: unused import\nok\n";
        let found: Vec<&str> = warnings(output).collect();
        assert_eq!(
            found,
            ["one: 130.0 MiB of memory, expected at most 128.0 MiB"]
        );
    }

    #[test]
    fn test_results_are_summed_over_programs() {
        let mut summary = Summary::default();
        for output in [
            "running 3 tests\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; finished in 3.84s\n",
            "test result: FAILED. 30 passed; 2 failed; 0 ignored; 7 filtered out",
        ] {
            summary.add(&Summary::of(output));
        }
        assert_eq!(
            summary,
            Summary {
                binaries: 2,
                passed: 33,
                failed: 2,
                ignored: 1
            }
        );
    }
}
