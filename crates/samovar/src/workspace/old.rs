//! The list of all workspaces of a user, for `samovar workspace list`.
//!
//! `$XDG_STATE_HOME/samovar/workspaces-HOST` has one path per line, with control characters, `%`
//! and other bytes than ASCII percent-encoded. Each machine has a file of its own, because home
//! directories may be shared. Commands that change the file lock it.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use crate::notice::notice;
use crate::push::host;
use crate::user_dirs;

const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Returns the path of the list. `None`: the user has no home directory.
fn file() -> Option<PathBuf> {
    let host = host().replace('/', "-");
    Some(
        user_dirs::state()?
            .join("samovar")
            .join(format!("workspaces-{host}")),
    )
}

/// Returns the paths of all workspaces, the oldest first.
pub(super) fn list() -> Vec<PathBuf> {
    let text = file().and_then(|file| fs::read_to_string(file).ok());
    parse(&text.unwrap_or_default())
}

/// Adds a workspace. An error is only printed: commands find the workspace without the list.
pub(super) fn add(root: &Path) {
    change(|paths| {
        paths.retain(|path| path != root);
        paths.push(root.to_owned());
    });
}

/// Adds a workspace, unless it is in the list: it may have been moved.
pub(super) fn find_again(root: &Path) {
    if !list().iter().any(|path| path == root) {
        add(root);
    }
}

/// Removes a workspace.
pub(super) fn remove(root: &Path) {
    change(|paths| paths.retain(|path| path != root));
}

fn change(edit: impl FnOnce(&mut Vec<PathBuf>)) {
    let Some(path) = file() else { return };
    if let Err(error) = try_change(&path, edit) {
        notice(&format!(
            "samovar workspace list will not show the change, because {path:?} cannot be written: \
             {error}"
        ));
    }
}

fn try_change(path: &Path, edit: impl FnOnce(&mut Vec<PathBuf>)) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let options = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options
    };
    let mut file = options().open(path)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut paths = parse(&text);
    edit(&mut paths);
    let lines = paths.iter().map(|path| format!("{}\n", encoded(path)));
    let new: String = lines.collect();
    if new != text {
        file.rewind()?;
        file.write_all(new.as_bytes())?;
        file.set_len(new.len() as u64)?;
    }
    Ok(())
}

fn parse(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().filter(|line| line.starts_with('/'));
    lines.map(decoded).collect()
}

/// Encodes a path for one line of text.
pub(super) fn encoded(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ENCODED).to_string()
}

/// Decodes a path that [`encoded`] returned.
pub(super) fn decoded(text: &str) -> PathBuf {
    let bytes: Vec<u8> = percent_decode_str(text).collect();
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_added_once_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a").join("list");
        let odd = PathBuf::from(std::ffi::OsString::from_vec(b"/a\n%41\xff".to_vec()));
        let add = |new: &Path| {
            let new = new.to_owned();
            try_change(&path, |paths| paths.push(new)).unwrap();
        };
        add(&odd);
        add(Path::new("/b"));
        let read = || parse(&fs::read_to_string(&path).unwrap());
        assert_eq!(read(), [odd.clone(), "/b".into()]);
        try_change(&path, |paths| paths.retain(|path| *path != odd)).unwrap();
        assert_eq!(read(), [PathBuf::from("/b")]);
    }
}
