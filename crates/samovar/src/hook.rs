//! `samovar hook`: stores the paths of a build in a spool directory, for `samovar push --spool`.
//!
//! Nix waits for its `post-build-hook`, so the hook does as little as possible: it writes one file
//! for each build and returns. The file gets its final name only after it is synced, so a reader of
//! the directory sees complete files only, also after a power cut.
//!
//! # Format
//!
//! The name of a file is `<nanoseconds since 1970>-<PID>.paths`. Each line is a full store path.
//! Files whose names start with a dot are unfinished.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};

/// Suffix of the names of finished files in a spool directory.
const SUFFIX: &str = ".paths";

/// Subdirectory of the spool for files with a path that the cache refused.
pub(crate) const FAILED: &str = "failed";

/// Environment variable in which Nix passes the paths of a build, separated by spaces.
const VARIABLE: &str = "OUT_PATHS";

pub(crate) fn command() -> Command {
    Command::new("hook")
        .about("Records the paths of a build for a later push; for Nix's post-build-hook")
        .after_help(
            "Reads the paths from the variable OUT_PATHS, which Nix sets. post-build-hook in \
             nix.conf names a program without arguments, so write a script: exec samovar hook \
             --spool /var/spool/samovar. Then let samovar push --spool upload the paths.",
        )
        .arg(spool().required(true))
}

/// Defines the option `--spool`.
pub(crate) fn spool() -> Arg {
    Arg::new("spool")
        .long("spool")
        .value_name("DIRECTORY")
        .value_parser(value_parser!(PathBuf))
        .help("Directory with one file for each build")
}

/// Writes the paths that Nix passes in `OUT_PATHS` into the spool directory.
///
/// # Errors
///
/// The variable is missing, or the file cannot be written.
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let dir: &PathBuf = matches.get_one("spool").context("a directory is missing")?;
    let paths = std::env::var(VARIABLE).with_context(|| {
        format!("cannot read the variable {VARIABLE}: this command is for Nix's post-build-hook")
    })?;
    let paths: Vec<&str> = paths.split_ascii_whitespace().collect();
    ensure!(
        paths.iter().all(|path| path.starts_with('/')),
        "{VARIABLE} must hold store paths, got {paths:?}"
    );
    if paths.is_empty() {
        return Ok(());
    }
    store(dir, &paths).with_context(|| {
        format!(
            "cannot store the paths in {dir:?}: create the directory for the user of the builds"
        )
    })
}

fn store(dir: &Path, paths: &[&str]) -> std::io::Result<()> {
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
pub(crate) fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
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
