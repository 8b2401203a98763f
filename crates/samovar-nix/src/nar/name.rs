//! What names and targets a NAR may hold, and in which order the names come.

use super::{NAME_LEN_MAX, TARGET_LEN_MAX};

/// Why a name cannot stand in a NAR, or not in this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("empty name")]
    Empty,
    /// It is longer than [`NAME_LEN_MAX`].
    #[error("name longer than {NAME_LEN_MAX} bytes")]
    TooLong,
    /// It is `.` or `..`: unpacking it would write elsewhere.
    #[error("name is . or ..")]
    Dots,
    /// It holds a slash: unpacking it would write elsewhere.
    #[error("name holds a slash")]
    Slash,
    /// It holds a NUL, where the name would end for the system.
    #[error("name holds a NUL")]
    Nul,
    /// It is the same as the name before it, or comes before it.
    #[error("name not after the one before it")]
    Order,
}

/// Why the target of a symbolic link cannot stand in a NAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It is empty.
    #[error("empty target")]
    Empty,
    /// It is longer than [`TARGET_LEN_MAX`].
    #[error("target longer than {TARGET_LEN_MAX} bytes")]
    TooLong,
    /// It holds a NUL, where the target would end for the system.
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

/// The open directories, each with the last name seen in it.
///
/// One buffer for all of them: a directory costs no allocation, and depth costs no stack.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// The last name of each open directory, one after another.
    bytes: Vec<u8>,
    /// Where the name of each open directory starts in `bytes`. No name yet is an empty name,
    /// which comes before every other.
    starts: Vec<usize>,
}

impl Names {
    /// How many directories are open.
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

    /// Takes the next name of the innermost directory.
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
