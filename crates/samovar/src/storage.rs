//! Functions that the commands on a storage directory share.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use clap::ArgMatches;
use samovar_cache::{Signing, render_uploaded};
use samovar_nix::StoreDir;
use samovar_server::config::{CacheSettings, Configuration, Origin};
use samovar_server::daemon::Identity;
use samovar_server::server;
use samovar_storage::metadata::StoredPath;
use samovar_storage::{Location, RootKind};
use samovar_text::without_logins;
use sha2::{Digest as _, Sha256};

use crate::outcome::Failed;
use crate::serve;

const PIECE_LEN: usize = 256 << 10;

/// Returns where the configured storage keeps its data. Fails if none is configured.
pub(crate) fn location(config: &Configuration) -> anyhow::Result<Location> {
    let none = "no storage is configured: name its directory with --storage, or use --config";
    let location = config.location()?;
    location.ok_or_else(|| Failed::Usage.because(anyhow!(none)))
}

/// Returns the configuration of a command on a storage, and where the storage is. Refuses
/// `--storage` for a directory if a file or the environment configures a bucket: the command would
/// work on what is in that bucket.
pub(crate) fn configured(matches: &ArgMatches) -> anyhow::Result<(Configuration, Location)> {
    let settings = serve::settings(matches)?;
    let config = serve::configuration(&settings)?;
    let is_given = |name: &str| {
        let setting = settings.exactly(name);
        setting.is_some_and(|setting| matches!(setting.origin, Origin::Option(_)))
    };
    if let Some(bucket) = settings.exactly("bucket.url")
        && is_given("storage")
        && !is_given("bucket.url")
    {
        return Err(Failed::Usage.because(anyhow!(
            "--storage names a storage in a directory, but {} sets bucket.url: leave out \
             --storage, or name another configuration with --config",
            bucket.origin
        )));
    }
    let location = location(&config)?;
    Ok((config, location))
}

/// Makes the directory of a new storage for the user of the server, whom the configuration names.
/// Otherwise root, who runs a command before the first start of the server, would own the storage.
/// `adopts`: whether a binary cache in the directory becomes a storage. Call it before
/// [`become_owner`].
pub(crate) fn make_for_user(
    directory: &Path,
    config: &Configuration,
    adopts: bool,
) -> anyhow::Result<()> {
    let failed = || format!("cannot use the storage {directory:?}");
    let identity = Identity::find(config.user.as_deref(), config.group.as_deref())?;
    let identity = identity.filter(|_| rustix::process::geteuid().is_root());
    let Some(identity) = identity else {
        return Ok(());
    };
    // What opens the storage reports errors.
    let is_its = match RootKind::of(directory) {
        Ok(RootKind::New) => check_new(directory).is_ok(),
        Ok(RootKind::BinaryCache) => adopts,
        _ => false,
    };
    if is_its {
        fs::create_dir_all(directory).with_context(failed)?;
        let owner = fs::metadata(directory).with_context(failed)?.uid();
        ensure!(
            owner == 0 || identity.is_user(owner),
            Failed::Refused.because(anyhow!(
                "{directory:?} belongs to the user {owner}, and the server runs as {identity}: \
                 give all files in it to that user with chown -R"
            ))
        );
        identity.take_all(directory).with_context(failed)?;
    }
    Ok(())
}

/// Says that a directory becomes a storage, if it is new: its name may be misspelled.
///
/// # Errors
///
/// The directory cannot be read, or has files of other programs.
pub(crate) fn announce_new(location: &Location) -> anyhow::Result<()> {
    // What opens the storage reports errors.
    if !matches!(RootKind::at(location), Ok(RootKind::New)) {
        return Ok(());
    }
    let directory = location.directory();
    check_new(directory)?;
    note(&format!(
        "{directory:?} is a new storage; if you meant another directory, delete this one and \
         repeat the command"
    ));
    Ok(())
}

/// Refuses to make a storage of a directory that has files of other programs.
fn check_new(directory: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot read {directory:?}");
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(failed),
    };
    for entry in entries {
        let name = entry.with_context(failed)?.file_name();
        // A new file system has lost+found. An empty binary cache has the others.
        let is_ours = ["lost+found", ".samovar", "nix-cache-info", "nar", "log"];
        ensure!(
            is_ours.iter().any(|ours| name == *ours),
            "{directory:?} is not a storage, and has other files, such as {name:?}: name the \
             directory of samovar serve --storage, or an empty one for a new storage"
        );
    }
    Ok(())
}

/// Prints a line to standard error. Ignores errors: standard error may be closed.
pub(crate) fn note(text: &str) {
    writeln!(io::stderr(), "{}", without_logins(text)).ok();
}

/// Makes root the owner of a storage, who runs the server: files of root could not be used by the
/// server. Call it before anything in the directory is opened.
pub(crate) fn become_owner(directory: &Path) -> anyhow::Result<()> {
    let failed = || {
        format!(
            "cannot become the owner of the storage {directory:?}: run the command as the user of \
             the server"
        )
    };
    let owned = samovar_storage::owned(directory).with_context(failed)?;
    Identity::assume_owner(&owned).with_context(failed)
}

/// Reads and checks the signing keys of a cache.
pub(crate) fn signing(cache: &CacheSettings) -> anyhow::Result<Signing> {
    // Discard the warnings about key files: the server reports them.
    Ok(server::signing(cache, &mut Vec::new())?.checked())
}

/// Returns a function that renders the narinfo of an uploaded path as the server does.
pub(crate) fn renderer(
    signing: &Signing,
    dir: StoreDir,
) -> impl Fn(&StoredPath) -> Vec<u8> + use<'_> {
    move |path| render_uploaded(signing, &dir, path)
}

/// Copies `from` to `to`, and returns the SHA-256 of the bytes.
pub(crate) fn copy(from: &mut dyn Read, to: &mut dyn Write) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_LEN];
    loop {
        let len = from.read(&mut piece)?;
        if len == 0 {
            to.flush()?;
            return Ok(hasher.finalize().into());
        }
        hasher.update(&piece[..len]);
        to.write_all(&piece[..len])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_storage_needs_a_directory_without_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(check_new(&root.join("missing")).is_ok());
        assert!(check_new(root).is_ok());
        for name in ["lost+found", ".samovar", "nar"] {
            fs::create_dir(root.join(name)).unwrap();
            assert!(check_new(root).is_ok(), "{name}");
        }
        fs::write(root.join("photo"), "").unwrap();
        let error = check_new(root).unwrap_err().to_string();
        assert!(error.contains("\"photo\""), "{error}");
    }
}
