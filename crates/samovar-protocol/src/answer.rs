//! [`Lines`]: a complete answer, which is a text that ends with a line `end`.

use crate::line::number;

/// The reason why an answer is invalid: it is incomplete, breaks the grammar, or does not match the
/// request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The text has no last line `end`.
    #[error("it has no last line \"end\"")]
    Truncated,
    /// The numbers in the last line do not match the lines before it.
    #[error("the last line does not match the answers")]
    End,
    /// The first line is malformed.
    #[error("the first line is malformed")]
    First,
    /// The number of answers differs from the number of items in the request.
    #[error("it has {found} answers for {asked} {of}")]
    Count {
        /// Number of answers.
        found: usize,
        /// Number of things that were asked for.
        asked: usize,
        /// The things, such as "paths".
        of: &'static str,
    },
    /// A line breaks the grammar.
    #[error("the line {0:?} is malformed")]
    Line(String),
    /// A line is about another thing than the one that was asked for.
    #[error("the answer {0:?} is not about what was asked for")]
    Other(String),
}

impl AnswerError {
    pub(crate) fn line(line: &str) -> Self {
        Self::Line(line.to_owned())
    }

    pub(crate) fn other(line: &str) -> Self {
        Self::Other(line.to_owned())
    }
}

/// The lines of an answer.
pub(crate) struct Lines<'a> {
    /// The lines without the last one.
    pub(crate) lines: Vec<&'a str>,
    /// The numbers of the last line.
    end: Vec<u64>,
}

impl<'a> Lines<'a> {
    /// Splits an answer into its lines.
    pub(crate) fn of(text: &'a str) -> Result<Self, AnswerError> {
        let text = text.strip_suffix('\n').ok_or(AnswerError::Truncated)?;
        let mut lines: Vec<&str> = text.split('\n').collect();
        let end = lines.pop().and_then(|line| line.strip_prefix("end "));
        let end = end.ok_or(AnswerError::Truncated)?.split(' ');
        let end = end.map(|word| number(word.as_bytes()));
        Ok(Self {
            lines,
            end: end.collect::<Option<_>>().ok_or(AnswerError::End)?,
        })
    }

    /// Checks the numbers of the last line.
    pub(crate) fn check_end(&self, counts: &[usize]) -> Result<(), AnswerError> {
        let counts = counts.iter().map(|count| u64::try_from(*count).ok());
        match self.end.iter().map(|number| Some(*number)).eq(counts) {
            true => Ok(()),
            false => Err(AnswerError::End),
        }
    }

    /// Returns the lines of an answer whose last line has their number.
    pub(crate) fn counted(text: &'a str) -> Result<Vec<&'a str>, AnswerError> {
        let lines = Self::of(text)?;
        lines.check_end(&[lines.lines.len()])?;
        Ok(lines.lines)
    }

    /// Returns the line of an answer that has one line before `end 1`.
    pub(crate) fn single(text: &'a str) -> Result<&'a str, AnswerError> {
        match Self::counted(text)?[..] {
            [line] => Ok(line),
            _ => Err(AnswerError::End),
        }
    }
}
