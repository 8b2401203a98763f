//! `DELETE pin/<name>`: how many generations were removed.
//!
//! # Grammar
//!
//! ```text
//! answer = "removed " count LF "end 1" LF
//! ```

use crate::answer::{AnswerError, Lines};
use crate::line::{number, words};

/// Returns the answer to a request that has removed `count` generations.
#[must_use]
pub fn removed(count: usize) -> String {
    format!("removed {count}\nend 1\n")
}

/// Parses the answer. Returns the number of generations that were removed.
///
/// # Errors
///
/// Any [`AnswerError`].
pub fn parse_removed(text: &str) -> Result<u64, AnswerError> {
    let line = Lines::single(text)?;
    let count = match words(line.as_bytes()) {
        Some([b"removed", count]) => number(count),
        _ => None,
    };
    count.ok_or_else(|| AnswerError::line(line))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(count: u32, damage in damage()) {
            let text = removed(count.try_into().unwrap());
            prop_assert_eq!(parse_removed(&text), Ok(count.into()));
            let damaged = damage.of_text(&text);
            if let Ok(read) = parse_removed(&damaged) {
                prop_assert_eq!(removed(read.try_into().unwrap()), damaged);
            }
        }
    }
}
