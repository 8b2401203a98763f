//! Rules for names, their order, and link targets in a NAR.

use super::{NAME_LEN_MAX, TARGET_LEN_MAX};

/// Reason for which a name is not allowed in a NAR, or not at this position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("empty name")]
    Empty,
    /// The name is longer than [`NAME_LEN_MAX`].
    #[error("name longer than {NAME_LEN_MAX} bytes")]
    TooLong,
    /// The name is `.` or `..`, which would unpack outside the directory.
    #[error("name is . or ..")]
    Dots,
    /// The name holds a slash, which would unpack outside the directory.
    #[error("name holds a slash")]
    Slash,
    /// The name holds a NUL, which would truncate it in system calls.
    #[error("name holds a NUL")]
    Nul,
    /// The name is not greater than its predecessor.
    #[error("name not after the one before it")]
    Order,
}

/// Reason for which a target of a symbolic link is not allowed in a NAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The target is empty.
    #[error("empty target")]
    Empty,
    /// The target is longer than [`TARGET_LEN_MAX`].
    #[error("target longer than {TARGET_LEN_MAX} bytes")]
    TooLong,
    /// The target holds a NUL, which would truncate it in system calls.
    #[error("target holds a NUL")]
    Nul,
}

pub(super) fn check_target(target: &[u8]) -> Result<(), TargetError> {
    if target.is_empty() {
        return Err(TargetError::Empty);
    }
    if target.len() > TARGET_LEN_MAX {
        return Err(TargetError::TooLong);
    }
    if target.contains(&0) {
        return Err(TargetError::Nul);
    }
    Ok(())
}

fn check_name(name: &[u8]) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_LEN_MAX {
        return Err(NameError::TooLong);
    }
    if matches!(name, b"." | b"..") {
        return Err(NameError::Dots);
    }
    if name.contains(&b'/') {
        return Err(NameError::Slash);
    }
    if name.contains(&0) {
        return Err(NameError::Nul);
    }
    Ok(())
}

/// The open directories of a NAR, each with the name of its latest entry.
///
/// All share one buffer, so that a directory costs no allocation and depth costs no stack.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// The names of the latest entries of all open directories, one after another.
    bytes: Vec<u8>,
    /// Start of each directory's name in `bytes`. An empty name means that the directory has no
    /// entry yet; it sorts before any other name.
    starts: Vec<usize>,
}

impl Names {
    /// Returns the number of open directories.
    pub(super) const fn depth(&self) -> usize {
        self.starts.len()
    }

    /// Opens a directory.
    pub(super) fn enter(&mut self) {
        self.starts.push(self.bytes.len());
    }

    /// Closes the innermost directory.
    pub(super) fn leave(&mut self) {
        if let Some(start) = self.starts.pop() {
            self.bytes.truncate(start);
        }
    }

    /// Checks the next name of the innermost directory, and records it.
    pub(super) fn next(&mut self, name: &[u8]) -> Result<(), NameError> {
        check_name(name)?;
        let start = self.starts.last().copied().unwrap_or(0);
        if name <= self.bytes.get(start..).unwrap_or_default() {
            return Err(NameError::Order);
        }
        self.bytes.truncate(start);
        self.bytes.extend_from_slice(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_one(name: &[u8], expected: Result<(), NameError>) {
        let mut names = Names::default();
        names.enter();
        assert_eq!(names.next(name), expected);
    }

    #[track_caller]
    fn check_order(names_in_order: &[&[u8]]) {
        for (index, name) in names_in_order.iter().enumerate() {
            for (other_index, other) in names_in_order.iter().enumerate() {
                let mut names = Names::default();
                names.enter();
                names.next(name).unwrap();
                let expected = if index < other_index {
                    Ok(())
                } else {
                    Err(NameError::Order)
                };
                assert_eq!(names.next(other), expected, "{name:?} {other:?}");
            }
        }
    }

    #[test]
    fn names() {
        check_one(b"a", Ok(()));
        check_one(b"...", Ok(()));
        check_one(b".hidden", Ok(()));
        check_one(b"\xff\n\x01\\", Ok(()));
        check_one(&[b'a'; 255], Ok(()));
        check_one(&[b'a'; 256], Err(NameError::TooLong));
        check_one(b"", Err(NameError::Empty));
        check_one(b".", Err(NameError::Dots));
        check_one(b"..", Err(NameError::Dots));
        check_one(b"a/b", Err(NameError::Slash));
        check_one(b"/", Err(NameError::Slash));
        check_one(b"a\0", Err(NameError::Nul));
    }

    #[test]
    fn targets() {
        assert_eq!(check_target(b"../x y\n\xff/"), Ok(()));
        assert_eq!(check_target(&[b'a'; 4095]), Ok(()));
        assert_eq!(check_target(&[b'a'; 4096]), Err(TargetError::TooLong));
        assert_eq!(check_target(b""), Err(TargetError::Empty));
        assert_eq!(check_target(b"a\0b"), Err(TargetError::Nul));
    }

    #[test]
    fn order_is_that_of_unsigned_bytes() {
        check_order(&[
            b"A",
            b"a",
            b"a b",
            b"a-b",
            b"a.b",
            b"a0",
            b"ab",
            b"b",
            b"\x7f",
            b"\xc3\xa9",
            b"\xff",
        ]);
    }

    #[test]
    fn each_directory_has_its_own_order() {
        let mut names = Names::default();
        names.enter();
        names.next(b"m").unwrap();
        names.enter();
        assert_eq!(names.depth(), 2);
        names.next(b"a").unwrap();
        names.next(b"z").unwrap();
        names.leave();
        assert_eq!(names.next(b"m"), Err(NameError::Order));
        assert_eq!(names.next(b"n"), Ok(()));
        names.leave();
        assert_eq!(names.depth(), 0);
    }
}
