//! Patterns of names.
//!
//! # Grammar
//!
//! ```text
//! pattern = *( "*" / "?" / octet )
//! ```
//!
//! `*` stands for any bytes, `?` for one, everything else for itself. Names of store paths have
//! neither of the two, so nothing has to be escaped.

/// A pattern that a whole name has to fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob(Box<[u8]>);

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        Self(pattern.as_bytes().into())
    }

    /// Takes no more steps than the lengths of both multiplied: a star that was passed is never
    /// thought about again, because a later one can take whatever it could.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (&*self.0, name.as_bytes());
        // What follows the last star, and what is left of the name if that takes one byte more.
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
    fn patterns() {
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

    /// What exponential matchers choke on.
    #[test]
    fn stars_cost_no_more_than_both_lengths() {
        let (pattern, name) = ("a*".repeat(2000) + "b", "a".repeat(20_000));
        check(&pattern, &name, false);
    }

    /// By the definition, one byte after the other.
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
        fn as_defined(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            let expected = naive(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(Glob::new(&pattern).matches(&name), expected);
        }
    }
}
