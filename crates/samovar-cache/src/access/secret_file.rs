//! Reads files of hashed secrets.

use std::io;
use std::path::Path;

use super::error::{AccessError, FileKind, LineProblem};
use crate::private_file;

/// Maximum size of a file in bytes, enough for 100,000 users. A larger file must be a mistake.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Reads a secret file and parses it with `parse`. Adds warnings about the file to `warnings`.
/// `len` returns the number of parsed entries. Returns `None` if `path` is `None`, because no such
/// file is configured.
pub(super) fn read<T>(
    kind: FileKind,
    path: Option<&Path>,
    warnings: &mut Vec<String>,
    parse: impl FnOnce(&str) -> Result<T, LineError>,
    len: impl FnOnce(&T) -> usize,
) -> Result<Option<T>, AccessError> {
    let Some(path) = path else {
        return Ok(None);
    };
    let owned = || path.to_owned();
    let unreadable = |error: io::Error| AccessError::Unreadable {
        kind,
        path: owned(),
        error,
    };
    let (text, mode) = private_file::read(path, FILE_LEN_MAX).map_err(unreadable)?;
    // The server usually reads the file through its group, so the group may read it. A tokens file
    // must not be readable by all users. For a users file that causes only a warning: existing ones
    // are often world-readable, although hashed passwords are easier to crack than hashed random
    // tokens.
    if mode & 0o007 != 0 && kind == FileKind::Tokens {
        let path = owned();
        return Err(AccessError::ReadableByAll { kind, path });
    }
    if mode & 0o007 != 0 {
        warnings.push(format!(
            "the {kind} {path:?} is readable by all users: run `chmod o-rwx` on it"
        ));
    }
    let entries = parse(&text).map_err(|(line, problem)| AccessError::Line {
        kind,
        path: owned(),
        line,
        problem,
    })?;
    if len(&entries) == 0 {
        warnings.push(format!(
            "the {kind} {path:?} has no entries, so it admits no client"
        ));
    }
    Ok(Some(entries))
}

/// Line number of an invalid line, starting at 1, and the fault in that line.
pub(crate) type LineError = (usize, LineProblem);

/// Calls `take` with the text before and after the first colon of each line. Skips empty lines and
/// lines that start with `#`.
pub(crate) fn lines(
    text: &str,
    no_colon: LineProblem,
    mut take: impl FnMut(&str, &str) -> Result<(), LineProblem>,
) -> Result<(), LineError> {
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.split_once(':').ok_or(no_colon);
        pair.and_then(|(name, rest)| {
            if name.chars().any(char::is_control) {
                return Err(no_colon);
            }
            take(name, rest.trim())
        })
        .map_err(|problem| (index + 1, problem))?;
    }
    Ok(())
}
