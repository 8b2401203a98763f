//! Modes of directories that a command changes for a while.
//!
//! A read-only directory is writable while entries of it are replaced, and a new directory gets its
//! mode after its entries. Until then, the file `modes` in the state directory lists both kinds of
//! directories. If a command is killed, the next one sets the modes in the list: otherwise the
//! modes that were left would look like changes of the user.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::FileType;

use crate::merge::{Action, ActionKind};
use crate::root::Attributes;
use crate::{Entries, Kind, Root};

/// Name of the file. It has a line for each directory, which ends with a zero byte: `old` or `new`,
/// the mode in octal digits, and the path.
const MODES: &str = "modes";

/// Mode of a directory in which entries are replaced, if its own mode does not permit this.
pub const WRITABLE: u16 = 0o700;

/// Write and search permission of the owner.
const OWNER: u16 = 0o300;

/// Stores the modes of the directories that these changes make writable. `state`: the directory of
/// the state.
///
/// # Errors
///
/// The file cannot be written.
pub fn remember(
    state: &Path,
    ours: &Entries,
    theirs: &Entries,
    actions: &[Action],
) -> io::Result<()> {
    let mut text = Vec::new();
    for action in actions {
        let (word, mode) = match action.kind {
            ActionKind::Metadata { .. } if !action.path.is_empty() => {
                let found = ours.find(&action.path).and_then(|index| ours.get(index));
                let Some(entry) = found.filter(|entry| entry.mode & OWNER != OWNER) else {
                    continue;
                };
                let Kind::Directory { .. } = entry.kind else {
                    continue;
                };
                ("old", entry.mode)
            }
            ActionKind::Create { theirs: index } => match theirs.get(index) {
                Some(entry) if matches!(entry.kind, Kind::Directory { .. }) => ("new", entry.mode),
                _ => continue,
            },
            _ => continue,
        };
        text.extend_from_slice(format!("{word} {mode:o} ").as_bytes());
        text.extend_from_slice(&action.path);
        text.push(0);
    }
    match text.is_empty() {
        true => Ok(()),
        false => fs::write(state.join(MODES), text),
    }
}

/// Forgets the modes, because all directories have their own again.
pub fn forget(state: &Path) {
    fs::remove_file(state.join(MODES)).unwrap_or_default();
}

/// Sets the modes of the directories that a killed command has left writable. Those that somebody
/// has changed since stay as they are.
pub fn complete(root: &Path, state: &Path) {
    let Ok(text) = fs::read(state.join(MODES)) else {
        return;
    };
    let Ok(root) = Root::open(root) else {
        return;
    };
    let lines = text.split(|byte| *byte == 0);
    let directories: BTreeMap<&[u8], (bool, u16)> = lines.filter_map(parse).collect();
    // Directories below one that nobody may enter come first.
    for (path, (is_old, mode)) in directories.into_iter().rev() {
        let Ok(found) = root.stat(path) else {
            continue;
        };
        // The mask leaves 9 bits.
        let now = u16::try_from(found.st_mode & 0o777).unwrap_or_default();
        let is_left = match is_old {
            true => now == WRITABLE,
            false => now & WRITABLE == WRITABLE,
        };
        if is_left && now != mode && FileType::from_raw_mode(found.st_mode).is_dir() {
            let attributes = Attributes { mode, mtime: None };
            // The user sees the mode that stays.
            root.set_attributes(path, attributes).unwrap_or_default();
        }
    }
    forget(state);
}

/// Returns the path, whether the directory is an old one, and the mode.
fn parse(line: &[u8]) -> Option<(&[u8], (bool, u16))> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let is_old = words.next()? == b"old";
    let mode = OsStr::from_bytes(words.next()?).to_str()?;
    let mode = u16::from_str_radix(mode, 8).ok()?;
    Some((words.next()?, (is_old, mode)))
}
