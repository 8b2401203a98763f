//! Lists of exceptions from a rule, which may only become shorter.

use std::collections::BTreeMap;

use super::Finding;

/// A list of exceptions: a line `NAME NUMBER` for each, and comments that start with `#`.
pub(super) struct Exceptions<'a> {
    /// Path of the file, relative to the repository.
    pub(super) file: &'a str,
    pub(super) text: &'a str,
    /// The largest number that needs no exception.
    pub(super) max: usize,
}

impl Exceptions<'_> {
    /// Compares the list with the numbers `found`. `excess` makes the finding for a name, its
    /// number, and the number that is allowed.
    pub(super) fn check(
        &self,
        mut found: BTreeMap<String, usize>,
        excess: impl Fn(&str, usize, usize) -> Finding,
    ) -> Vec<Finding> {
        let lines = self.text.lines().filter(|line| !line.starts_with('#'));
        let listed = lines.filter_map(|line| line.rsplit_once(' '));
        let mut findings = Vec::new();
        for (name, allowed) in listed.filter_map(|(name, count)| Some((name, count.parse().ok()?)))
        {
            let count = found.remove(name).unwrap_or_default();
            if count > allowed {
                findings.push(excess(name, count, allowed));
            } else if count < allowed || allowed <= self.max {
                let remedy = if count > self.max {
                    "lower the number"
                } else {
                    "remove the line"
                };
                let message = format!("allows {name} {allowed}, it has {count}: {remedy}");
                findings.push(Finding::new(self.file, 0, message));
            }
        }
        let new = found.into_iter().filter(|(_, count)| *count > self.max);
        findings.extend(new.map(|(name, count)| excess(&name, count, self.max)));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let list = Exceptions {
            file: "list",
            text,
            max: 1,
        };
        let found = [("fits", 1), ("is large", 3)].map(|(name, count)| (name.to_owned(), count));
        let findings = list.check(BTreeMap::from(found), |name, count, allowed| {
            Finding::new(name, 0, format!("{count} > {allowed}"))
        });
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(findings, expected);
    }

    #[test]
    fn numbers_above_the_list_and_lines_above_the_numbers_are_reported() {
        check("# why\nis large 3\n", &[]);
        check("", &["is large: 3 > 1"]);
        check("is large 2\n", &["is large: 3 > 2"]);
        let lower = "list: allows is large 4, it has 3: lower the number";
        check("is large 4\n", &[lower]);
        let remove = "list: allows fits 1, it has 1: remove the line";
        check("fits 1\nis large 3\n", &[remove]);
        let gone = "list: allows gone 2, it has 0: remove the line";
        check("gone 2\nis large 3\n", &[gone]);
    }
}
