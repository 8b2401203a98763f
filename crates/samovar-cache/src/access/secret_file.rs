//! Files of hashed secrets.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

use super::error::{AccessError, FileKind, LineProblem};

/// Maximum size of a file in bytes, enough for 100,000 users. A larger file is given by mistake.
const FILE_LEN_MAX: u64 = 16 << 20;

/// The text of a file, and a warning about its permissions.
pub(crate) struct SecretFile {
    kind: FileKind,
    path: PathBuf,
    text: Zeroizing<String>,
    pub(crate) warning: Option<String>,
}

impl SecretFile {
    pub(crate) fn read(kind: FileKind, path: &Path) -> Result<Self, AccessError> {
        let unreadable = |error: io::Error| {
            let path = path.to_owned();
            AccessError::Unreadable { kind, path, error }
        };
        // Without `NONBLOCK`, opening a FIFO without a writer would block for ever, also at a
        // reload.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty());
        let file = File::from(file.map_err(|errno| unreadable(errno.into()))?);
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(unreadable(io::Error::other("it is no regular file")));
        }
        if metadata.len() > FILE_LEN_MAX {
            return Err(unreadable(io::Error::other("it is larger than 16 MiB")));
        }
        let mode = metadata.mode();
        // Hashed passwords are easier to crack than hashed random tokens. But existing files of
        // passwords are often world-readable, so those only get a warning; for token files there is
        // no such habit to tolerate.
        if kind == FileKind::Tokens && mode & 0o007 != 0 {
            let path = path.to_owned();
            return Err(AccessError::ReadableByAll { kind, path });
        }
        // Readable by the group is fine: it is the server's group.
        let warning = (mode & 0o007 != 0).then(|| {
            format!("the {kind} {path:?} is readable by all users: run `chmod o-rwx` on it")
        });
        let mut text = Zeroizing::new(String::with_capacity(
            usize::try_from(metadata.len()).unwrap_or(0) + 1,
        ));
        file.take(FILE_LEN_MAX)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        Ok(Self {
            kind,
            path: path.to_owned(),
            text,
            warning,
        })
    }

    /// Parses the text.
    pub(crate) fn parse<T>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, LineError>,
    ) -> Result<T, AccessError> {
        parse(&self.text).map_err(|(line, problem)| AccessError::Line {
            kind: self.kind,
            path: self.path.clone(),
            line,
            problem,
        })
    }
}

/// The number of a wrong line, starting at 1, and what is wrong with it.
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
