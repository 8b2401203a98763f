//! Rule that tests wait for events: calls of `sleep` in tests are listed, and the list may only
//! become shorter.

use super::ratchet::Exceptions;
use super::{Finding, Text, lexer};

const LIST: &str = "xtask/sleeps.txt";

/// Compares the tests with `list`, which has a line `PATH COUNT` for each file with calls of
/// `sleep`.
pub(super) fn check(texts: &[Text], list: &str) -> Vec<Finding> {
    let tests = texts.iter().filter(|text| is_test(&text.path));
    let counts = tests.map(|text| {
        let lines = lexer::lines(&text.content);
        let sleeps = lines.iter().filter(|line| line.code.contains("sleep("));
        (text.path.clone(), sleeps.count())
    });
    let list = Exceptions {
        file: LIST,
        text: list,
        max: 0,
    };
    list.check(counts.collect(), |path, count, allowed| {
        let message = format!(
            "sleeps {count} times, {LIST} allows {allowed}: wait for the event, or give the code \
             under test the time as a value"
        );
        Finding::new(path, 0, message)
    })
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
