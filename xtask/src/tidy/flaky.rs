//! Rule that the list of flaky tests is short, true and becomes shorter: each line names a test
//! that exists, with a date and a cause, and the number of lines may only become smaller.

use std::collections::BTreeSet;

use super::{Finding, Text};
use crate::test_run::parse_known;

const LIST: &str = "xtask/flaky.txt";

/// Number of lines in the list. Lower it when a test is repaired. A new flaky test is repaired
/// instead of listed.
const COUNT: usize = 0;

/// Checks the list against the tests among `texts`.
pub(super) fn check(texts: &[Text], list: &str) -> Vec<Finding> {
    check_count(texts, list, COUNT)
}

fn check_count(texts: &[Text], list: &str, count_max: usize) -> Vec<Finding> {
    let known = match parse_known(list) {
        Ok(known) => known,
        Err(error) => return vec![Finding::new(LIST, 0, error.to_string())],
    };
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in &known {
        let (program, test) = (&entry.program, &entry.test);
        if !seen.insert((program, test)) {
            findings.push(Finding::new(LIST, 0, format!("{program} {test} is twice")));
        }
        let function = test.rsplit("::").next().unwrap_or(test);
        let is_there = match function {
            "*" => true,
            _ => texts.iter().any(|text| has_test(text, program, function)),
        };
        if !is_there {
            let message = format!("{program} {test} is no test: remove the line");
            findings.push(Finding::new(LIST, 0, message));
        }
    }
    if known.len() > count_max {
        let message = format!(
            "has {} lines, {count_max} are allowed: remove the cause instead of listing the test",
            known.len()
        );
        findings.push(Finding::new(LIST, 0, message));
    } else if known.len() < count_max {
        let message = format!(
            "{count_max} lines of {LIST} are allowed, it has {}: lower the number",
            known.len()
        );
        findings.push(Finding::new("xtask/src/tidy/flaky.rs", 0, message));
    }
    findings
}

/// Whether the file belongs to the package of `program`, `PACKAGE/TARGET`, and has the function.
fn has_test(text: &Text, program: &str, function: &str) -> bool {
    let package = program.split('/').next().unwrap_or(program);
    let is_of_package = text.path.split('/').any(|part| part == package);
    is_of_package && text.content.contains(&format!("fn {function}("))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(list: &str, count_max: usize) -> usize {
        let texts = [Text {
            path: "crates/a/tests/b.rs".into(),
            content: "#[test]\nfn one() {}\n#[test]\nfn two() {}\n".into(),
        }];
        check_count(&texts, list, count_max).len()
    }

    #[test]
    fn the_list_names_tests_and_has_the_given_length() {
        let line = "2026-11-29 a/b one: a port\n";
        assert_eq!(count(line, 1), 0);
        assert_eq!(count(line, 0), 1);
        assert_eq!(count(line, 2), 1);
        assert_eq!(count("", 0), 0);
        assert_eq!(count("2026-11-29 a/b gone: a port\n", 1), 1);
        assert_eq!(count("2026-11-29 other/b one: a port\n", 1), 1);
        assert_eq!(count(&format!("{line}{line}"), 2), 1);
        assert_eq!(count("a/b one\n", 1), 1);
    }
}
