//! The spool: a directory with one file for each build, whose paths are to be pushed.
//!
//! # Format
//!
//! The name of a file is `<nanoseconds since 1970>-<PID>.paths`. Each line is a full store path.
//! Files whose names start with a dot are unfinished. A file gets its final name only after it is
//! synced, so a reader of the directory sees complete files only, also after a power cut.
//!
//! # Pushes
//!
//! A file is removed only after its paths are in the cache. While the cache is unavailable, the
//! push is repeated after pauses. After ten attempts the command fails, and the files stay for the
//! next run. A file with a path that the cache refuses, or with a line that is no path, is moved
//! into the folder `failed`, so that it does not block the others.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use samovar_nix::{HashPart, StorePath};

use super::pusher::Pusher;
use super::report::Report;
use crate::notice::notice;

/// Suffix of the names of finished files in a spool directory.
const SUFFIX: &str = ".paths";

/// Subdirectory of the spool for files with a path that the cache refused.
pub const FAILED: &str = "failed";

/// Maximum number of attempts to push the same paths. The pauses between them add up to nine
/// minutes.
const ATTEMPT_COUNT_MAX: u32 = 10;

/// Maximum number of spool files in one push.
const FILE_COUNT_MAX: usize = 1000;

/// A file of the spool with the paths of one build.
struct Build {
    file: PathBuf,
    paths: Vec<StorePath>,
    /// The first line that is no path, with the reason.
    invalid_line: Option<String>,
}

/// Stores the full paths of a build in the spool directory.
///
/// # Errors
///
/// Those of writing a file.
pub fn store(dir: &Path, paths: &[&str]) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let name = format!("{now:020}-{}{SUFFIX}", std::process::id());
    let unfinished = dir.join(format!(".{name}"));
    let mut file = File::create_new(&unfinished)?;
    file.write_all((paths.join("\n") + "\n").as_bytes())?;
    file.sync_data()?;
    fs::rename(&unfinished, dir.join(name))?;
    File::open(dir)?.sync_data()
}

/// Lists the finished files of a spool directory, oldest first.
///
/// # Errors
///
/// The directory cannot be read.
pub fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read the spool {dir:?}");
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.ends_with(SUFFIX) && !name.starts_with('.')) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Pushes the paths of all files in the spool directory until it is empty.
///
/// # Errors
///
/// The directory cannot be read or changed, or the cache or the store stays unavailable.
pub fn drain(pusher: &mut Pusher, dir: &Path) -> anyhow::Result<Report> {
    let mut all: Option<Report> = None;
    loop {
        let mut files = files(dir)?;
        files.truncate(FILE_COUNT_MAX);
        if files.is_empty()
            && let Some(all) = all
        {
            return Ok(all);
        }
        let builds = files
            .into_iter()
            .filter_map(|file| read(pusher, file).transpose());
        let builds = builds.collect::<anyhow::Result<Vec<_>>>()?;
        let paths = builds.iter().flat_map(|build| &build.paths);
        let roots: Vec<HashPart> = paths.map(StorePath::hash_part).collect();
        let (mut report, absent) = pusher.push_persistently(&roots, ATTEMPT_COUNT_MAX)?;
        for hash_part in absent {
            notice(&format!(
                "{hash_part} was deleted from the store before it was pushed"
            ));
        }
        let failed = report.summary.failed.iter().map(|(path, _)| path.clone());
        let failed: HashSet<String> = failed.collect();
        for build in builds {
            let dir_of_store = pusher.store().store_dir();
            let is_failed = |path: &StorePath| failed.contains(&path.full(dir_of_store));
            let is_failed = build.invalid_line.is_some() || build.paths.iter().any(is_failed);
            remove(dir, &build, is_failed)?;
            if let Some(reason) = build.invalid_line {
                let file = build.file.display().to_string();
                let reason = format!("{reason}; the file was moved into {FAILED}");
                report.summary.failed.push((file, reason));
            }
        }
        match &mut all {
            Some(all) => all.add(report),
            None => all = Some(report),
        }
    }
}

/// Reads a spool file. Returns `None` if another process has removed it.
fn read(pusher: &Pusher, file: PathBuf) -> anyhow::Result<Option<Build>> {
    let text = match fs::read(&file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {file:?}")),
    };
    let (mut paths, mut invalid_line) = (Vec::new(), None);
    for line in text.lines() {
        match StorePath::parse(pusher.store().store_dir(), line) {
            Ok(path) => paths.push(path),
            Err(error) if invalid_line.is_none() => {
                invalid_line = Some(format!("{line:?} is no path: {error}"));
            }
            Err(_) => {}
        }
    }
    Ok(Some(Build {
        file,
        paths,
        invalid_line,
    }))
}

/// Removes a spool file, or moves it into the folder `failed` if `is_failed`.
fn remove(dir: &Path, build: &Build, is_failed: bool) -> anyhow::Result<()> {
    let file = &build.file;
    let done = if is_failed {
        let folder = dir.join(FAILED);
        let name = file.file_name().unwrap_or_default();
        fs::create_dir_all(&folder).and_then(|()| fs::rename(file, folder.join(name)))
    } else {
        fs::remove_file(file)
    };
    match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {file:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_listed_in_order_and_unfinished_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &["/nix/store/a", "/nix/store/b"]).unwrap();
        store(dir.path(), &["/nix/store/c"]).unwrap();
        for name in [
            ".00000000000000000001-1.paths",
            "00000000000000000002-1.new",
        ] {
            fs::write(dir.path().join(name), "/nix/store/d\n").unwrap();
        }
        let texts: Vec<String> = files(dir.path())
            .unwrap()
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        assert_eq!(texts, ["/nix/store/a\n/nix/store/b\n", "/nix/store/c\n"]);
    }

    #[test]
    fn a_missing_spool_is_an_error() {
        assert!(store(Path::new("/nonexistent/spool"), &["/nix/store/a"]).is_err());
        assert!(files(Path::new("/nonexistent/spool")).is_err());
    }
}
