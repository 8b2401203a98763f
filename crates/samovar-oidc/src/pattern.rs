//! [`Pattern`]: patterns for values of claims.
//!
//! # Grammar
//!
//! ```text
//! pattern = *( "**" / "*" / "?" / character )
//! ```
//!
//! `*` matches any number of characters other than `/` and `:`, `?` matches one such character,
//! `**` matches any number of any characters, and every other character matches itself. There is no
//! escaping, no case folding, and no normalisation of Unicode.
//!
//! Claims are paths (`example/app`, `refs/heads/main`) and lists with colons
//! (`repo:example/app:ref:refs/heads/main`). If `*` matched their separators, `example/*` would
//! admit `example/group/app`, and `repo:example/*:ref:refs/heads/main` a value with other parts
//! between.

use std::fmt;

/// A pattern that must match the whole value of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    parts: Box<[Part]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// This character.
    Char(char),
    /// `?`
    One,
    /// `*`
    Star,
    /// `**`
    All,
}

/// Whether `*` and `?` do not match a character.
const fn is_separator(char: char) -> bool {
    matches!(char, '/' | ':')
}

impl Pattern {
    /// Makes a pattern. Every text is a valid one.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        for char in text.chars() {
            let part = match (char, parts.last()) {
                // Three stars are as two.
                ('*', Some(Part::All)) => continue,
                ('*', Some(Part::Star)) => {
                    parts.pop();
                    Part::All
                }
                ('*', _) => Part::Star,
                ('?', _) => Part::One,
                (char, _) => Part::Char(char),
            };
            parts.push(part);
        }
        Self {
            text: text.into(),
            parts: parts.into(),
        }
    }

    /// Returns whether the pattern matches the value. The number of steps is at most the product of
    /// both lengths.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        // Position `i` is true if the parts before `i` match the characters that were read.
        let mut reached = vec![false; self.parts.len() + 1];
        if let Some(start) = reached.first_mut() {
            *start = true;
        }
        self.skip_stars(&mut reached);
        for char in value.chars() {
            let mut next = vec![false; reached.len()];
            for ((at, part), _) in self
                .parts
                .iter()
                .enumerate()
                .zip(&reached)
                .filter(|(_, is)| **is)
            {
                let to = match part {
                    Part::Char(own) if *own == char => at + 1,
                    Part::One if !is_separator(char) => at + 1,
                    Part::Star if !is_separator(char) => at,
                    Part::All => at,
                    _ => continue,
                };
                if let Some(next) = next.get_mut(to) {
                    *next = true;
                }
            }
            self.skip_stars(&mut next);
            reached = next;
        }
        reached.last() == Some(&true)
    }

    /// Marks the positions after stars, which also match nothing.
    fn skip_stars(&self, reached: &mut [bool]) {
        for (at, part) in self.parts.iter().enumerate() {
            let is_star = matches!(part, Part::Star | Part::All);
            if is_star
                && reached.get(at) == Some(&true)
                && let Some(after) = reached.get_mut(at + 1)
            {
                *after = true;
            }
        }
    }

    /// Returns whether the pattern says at most how many separators a value has.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        let is_open = |part: &Part| match part {
            Part::Char(char) => is_separator(*char),
            Part::One | Part::Star | Part::All => true,
        };
        self.parts.iter().all(is_open)
    }

    /// Returns the text before the first `*` or `?`, or the whole text if there is none.
    #[must_use]
    pub fn literal_start(&self) -> &str {
        let end = self.text.find(['*', '?']).unwrap_or(self.text.len());
        self.text.get(..end).unwrap_or_default()
    }

    /// Returns whether the pattern has no `*` or `?`.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.literal_start().len() == self.text.len()
    }
}

/// Writes the text of the pattern.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(pattern: &str, value: &str, expected: bool) {
        let is_match = Pattern::new(pattern).matches(value);
        assert_eq!(is_match, expected, "{pattern} {value}");
    }

    #[test]
    fn stars_stop_at_separators() {
        check("example/*", "example/app", true);
        check("example/*", "example/", true);
        check("example/*", "example/group/app", false);
        check("example/*", "example", false);
        check("example/**", "example/group/app", true);
        check("example/*", "example-evil/app", false);
        check("*", "a/b", false);
        check("**", "a/b:c", true);
        check("***", "a/b", true);
        check("refs/heads/*", "refs/heads/feature/x", false);
        check("refs/heads/release-?", "refs/heads/release-1", true);
        check("refs/heads/release-?", "refs/heads/release-10", false);
        check("a?b", "a/b", false);
        let sub = "repo:example/*:ref:refs/heads/main";
        check(sub, "repo:example/app:ref:refs/heads/main", true);
        check(
            sub,
            "repo:example/app:environment:x:ref:refs/heads/main",
            false,
        );
        check(
            sub,
            "repo:example/app:ref:refs/heads/main:ref:refs/heads/main",
            false,
        );
    }

    #[test]
    fn characters_match_exactly() {
        check("", "", true);
        check("", "a", false);
        check("Example", "example", false);
        // A cyrillic letter, and another form of the same letter.
        check("example", "ex\u{430}mple", false);
        check("caf\u{e9}", "cafe\u{301}", false);
        check("caf?", "caf\u{e9}", true);
        check("a*", "a\0b", true);
        check("main", "main\n", false);
        check("main", " main", false);
    }

    #[test]
    fn matching_takes_at_most_the_product_of_both_lengths() {
        let (pattern, value) = ("a*".repeat(500) + "b", "a".repeat(5000));
        check(&pattern, &value, false);
    }

    #[test]
    fn what_a_pattern_says() {
        for (text, is_trivial, literal) in [
            ("**", true, ""),
            ("?*", true, ""),
            ("*/*", true, ""),
            ("a/*", false, "a/"),
            ("a", false, "a"),
        ] {
            let pattern = Pattern::new(text);
            assert_eq!(pattern.is_trivial(), is_trivial, "{text}");
            assert_eq!(pattern.literal_start(), literal, "{text}");
            assert_eq!(pattern.is_literal(), literal == text, "{text}");
            assert_eq!(pattern.to_string(), text);
        }
    }

    /// Matches by definition, character by character.
    fn naive(pattern: &[char], value: &[char]) -> bool {
        let any = |rest: &[char], is_own: fn(char) -> bool| {
            let mut taken = 0..=value.len();
            taken.any(|len| {
                value[..len].iter().all(|char| is_own(*char)) && naive(rest, &value[len..])
            })
        };
        match (pattern, value) {
            ([], []) => true,
            (['*', '*', rest @ ..], _) => any(rest, |_| true),
            (['*', rest @ ..], _) => any(rest, |char| !is_separator(char)),
            (['?', rest @ ..], [char, left @ ..]) if !is_separator(*char) => naive(rest, left),
            (['?', ..], _) => false,
            ([wanted, rest @ ..], [char, left @ ..]) => wanted == char && naive(rest, left),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_recursive_definition_does(
            pattern in "[ab/:*?]{0,8}",
            value in "[ab/:]{0,10}",
        ) {
            let chars = |text: &str| text.chars().collect::<Vec<char>>();
            let expected = naive(&chars(&pattern), &chars(&value));
            prop_assert_eq!(Pattern::new(&pattern).matches(&value), expected);
        }
    }
}
