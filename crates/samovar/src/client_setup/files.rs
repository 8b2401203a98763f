//! Changes of configuration files: planned first, then printed or carried out.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Permissions of a new file: `PUBLIC` for settings, `SECRET` for a token.
pub(super) const PUBLIC: u32 = 0o644;
pub(super) const SECRET: u32 = 0o600;

/// A planned change of one file.
#[derive(Debug)]
pub(super) struct Change {
    path: PathBuf,
    /// Text of the file after the change. `None`: the change deletes the file.
    after: Option<String>,
    /// Permissions of the file if the change creates it.
    mode: u32,
    /// Whether a file that exists gets `mode`, too.
    sets_mode: bool,
    /// Description of the change for the user, without secrets.
    summary: String,
}

impl Change {
    /// Plans to replace the text of the file at `path` by `after`. Returns `None` if the file
    /// already has this text.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(super) fn plan(
        path: &Path,
        after: Option<String>,
        mode: u32,
        summary: String,
    ) -> anyhow::Result<Option<Self>> {
        let is_same = read(path)? == after;
        Ok((!is_same).then(|| Self {
            path: path.to_owned(),
            after,
            mode,
            sets_mode: false,
            summary,
        }))
    }

    /// Notes that a secret is written to the file: a file that all users can read gets the
    /// permissions of a new file.
    pub(super) fn closing(mut self) -> Self {
        let mode = fs::metadata(&self.path).map_or(0, |file| file.mode() & 0o7777);
        if mode & 0o004 != 0 {
            self.sets_mode = true;
            self.summary.push_str(&format!(
                "\nmode {:04o} instead of {mode:04o}, with which every user could read the token",
                self.mode
            ));
        }
        self
    }

    /// Returns whether the file has secrets.
    pub(super) fn is_secret(&self) -> bool {
        self.mode == SECRET
    }

    /// Prints the change as made (`is_made`) or as planned.
    pub(super) fn print(&self, is_made: bool, out: &mut dyn Write) -> io::Result<()> {
        let verb = match (is_made, &self.after) {
            (true, Some(_)) => "wrote",
            (true, None) => "removed",
            (false, Some(_)) => "would write",
            (false, None) => "would remove",
        };
        writeln!(out, "{verb} {}", self.path.display())?;
        for line in self.summary.lines() {
            writeln!(out, "    {line}")?;
        }
        Ok(())
    }

    /// Carries out the change: deletes the file, or replaces it by a new one with the same owner
    /// and permissions.
    ///
    /// # Errors
    ///
    /// The file cannot be written or deleted.
    pub(super) fn make(&self) -> anyhow::Result<()> {
        let path = &self.path;
        let failed = || format!("cannot change {path:?}");
        let Some(after) = &self.after else {
            return fs::remove_file(path).with_context(failed);
        };
        // If `path` is a symbolic link, replace the file that it points to, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let parent = path.parent().with_context(failed)?;
        fs::create_dir_all(parent).with_context(failed)?;
        let before = fs::metadata(&path).ok();
        let mode = before
            .as_ref()
            .filter(|_| !self.sets_mode)
            .map_or(self.mode, |before| before.mode() & 0o7777);
        let mut file = tempfile::Builder::new()
            .prefix(".samovar-use-")
            .permissions(fs::Permissions::from_mode(SECRET))
            .tempfile_in(parent)
            .with_context(failed)?;
        file.write_all(after.as_bytes()).with_context(failed)?;
        if let Some(before) = before {
            let new = file.as_file().metadata().with_context(failed)?;
            if (new.uid(), new.gid()) != (before.uid(), before.gid()) {
                let (uid, gid) = (Some(before.uid()), Some(before.gid()));
                std::os::unix::fs::fchown(file.as_file(), uid, gid).with_context(failed)?;
            }
        }
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(mode))
            .with_context(failed)?;
        file.as_file().sync_all().with_context(failed)?;
        file.persist(&path).with_context(failed)?;
        Ok(())
    }
}

/// Reads a file. Returns `None` if the file does not exist.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {path:?}")),
    }
}
