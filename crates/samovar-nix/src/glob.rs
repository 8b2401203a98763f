//! [`Glob`]: patterns for names of store paths and of caches.
//!
//! # Grammar
//!
//! ```text
//! pattern = *( "*" / "?" / octet )
//! ```
//!
//! `*` matches any number of bytes, `?` matches one, and every other byte matches itself. There
//! is no escaping: no name contains `*`, and `?` also matches itself.

use std::fmt;

/// A pattern that must match the whole name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Makes a pattern. Every text is a valid one.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// Returns whether the pattern matches the name. The number of steps is at most the product of
    /// both lengths: only the last star is retried, because it can match anything that an earlier
    /// one could.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.as_bytes(), name.as_bytes());
        // Where to continue after a mismatch: the pattern after the last star, and the rest of the
        // name if that star matches one more byte.
        let mut retry: Option<(&[u8], &[u8])> = None;
        loop {
            match (pattern, name) {
                ([b'*', rest @ ..], _) => {
                    retry = Some((rest, name));
                    pattern = rest;
                }
                ([wanted, rest @ ..], [byte, left @ ..]) if *wanted == b'?' || wanted == byte => {
                    (pattern, name) = (rest, left);
                }
                ([], []) => return true,
                _ => match retry {
                    Some((rest, [_, left @ ..])) => {
                        retry = Some((rest, left));
                        (pattern, name) = (rest, left);
                    }
                    _ => return false,
                },
            }
        }
    }
}

/// Writes the text of the pattern.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, expected: bool) {
        assert_eq!(
            Glob::new(pattern).matches(name),
            expected,
            "{pattern} {name}"
        );
    }

    #[test]
    fn stars_and_question_marks_match() {
        check("", "", true);
        check("", "a", false);
        check("hello", "hello", true);
        check("hello", "hello-2.12", false);
        check("hello-*", "hello-2.12", true);
        check("hello-*", "hello", false);
        check("*-secret*", "app-secret", true);
        check("*.drv", "a.drv.drv", true);
        check("a?c", "abc", true);
        check("a?c", "ac", false);
        check("**", "", true);
        check("?", "", false);
        check("*a*b", "aab", true);
        check("*a*b", "aba", false);
    }

    /// A pattern for which naive backtracking takes exponential time.
    #[test]
    fn matching_takes_at_most_the_product_of_both_lengths() {
        let (pattern, name) = ("a*".repeat(2000) + "b", "a".repeat(20_000));
        check(&pattern, &name, false);
    }

    /// Matches by definition, byte by byte.
    fn naive(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|taken| naive(rest, &name[taken..])),
            ([wanted, rest @ ..], [byte, left @ ..]) => {
                (*wanted == b'?' || wanted == byte) && naive(rest, left)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_recursive_definition_does(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            let expected = naive(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(Glob::new(&pattern).matches(&name), expected);
        }
    }
}
