//! Rule that tests wait for events: calls of `sleep` in tests are listed, and the list may only
//! become shorter.

use std::collections::BTreeMap;

use super::{Finding, Text, lexer};

const LIST: &str = "xtask/sleeps.txt";

/// Compares the tests with `list`, which has a line `PATH COUNT` for each file with calls of
/// `sleep`.
pub(super) fn check(texts: &[Text], list: &str) -> Vec<Finding> {
    let mut listed: BTreeMap<&str, usize> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(path, count)| Some((path.trim(), count.parse().ok()?)))
        .collect();
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| is_test(&text.path)) {
        let lines = lexer::lines(&text.content);
        let count = lines
            .iter()
            .filter(|line| line.code.contains("sleep("))
            .count();
        let allowed = listed.remove(&*text.path).unwrap_or_default();
        if count > allowed {
            let message = format!(
                "sleeps {count} times, {LIST} allows {allowed}: wait for the event, or give the \
                 code under test the time as a value"
            );
            findings.push(Finding::new(&text.path, 0, message));
        } else if count < allowed {
            let message = format!(
                "allows {} {allowed} sleeps, it has {count}: lower it",
                text.path
            );
            findings.push(Finding::new(LIST, 0, message));
        }
    }
    findings.extend(listed.into_keys().map(|path| {
        Finding::new(
            LIST,
            0,
            format!("names {path}, which is no test: remove the line"),
        )
    }));
    findings
}

fn is_test(path: &str) -> bool {
    let is_test_file = path.ends_with("/tests.rs") || path.ends_with("_tests.rs");
    path.ends_with(".rs") && (path.contains("/tests/") || is_test_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(list: &str) -> usize {
        let texts = [Text {
            path: "crates/a/tests/b.rs".into(),
            content: "thread::sleep(TIME);\n// sleep(\nthread::sleep(TIME);\n".into(),
        }];
        check(&texts, list).len()
    }

    #[test]
    fn sleeps_beyond_the_list_are_reported() {
        assert_eq!(count(""), 1);
        assert_eq!(count("crates/a/tests/b.rs 1\n"), 1);
        assert_eq!(count("# why\ncrates/a/tests/b.rs 2\n"), 0);
        assert_eq!(count("crates/a/tests/b.rs 3\n"), 1);
        assert_eq!(
            count("crates/a/tests/b.rs 2\ncrates/a/tests/gone.rs 1\n"),
            1
        );
    }
}
