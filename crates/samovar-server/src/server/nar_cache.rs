//! Finds the directory of the NAR cache.

use std::io;
use std::path::Path;

use anyhow::Context as _;
use samovar_cache::NarCacheDirectory;

use crate::config::Configuration;
use crate::log::ErrorLog;

/// Checks, before sockets are bound, that a configured directory exists. Whether it is writable is
/// known only after the switch of the user.
///
/// # Errors
///
/// The path does not exist or is not a directory.
pub(super) fn check(config: &Configuration) -> anyhow::Result<()> {
    let Some(directory) = &config.nar_cache else {
        return Ok(());
    };
    if config.nar_cache_size == Some(0) {
        return Ok(());
    }
    std::fs::metadata(directory)
        .and_then(|found| match found.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        })
        .with_context(|| cannot_use(directory, config))
}

fn cannot_use(directory: &Path, config: &Configuration) -> String {
    let option = config.names.option("nar-cache.directory");
    format!(
        "cannot use the NAR cache directory {directory:?}: create it, or set {option} to another \
         one"
    )
}

/// Opens the configured directory of the NAR cache. Without one, opens the default directory if it
/// is on a disk; else returns `None`.
pub(super) fn space(
    config: &Configuration,
    errors: &ErrorLog,
) -> anyhow::Result<Option<NarCacheDirectory>> {
    let space = find(config, errors)?;
    if let (Some(space), Some(len)) = (&space, config.nar_cache_size)
        && space.is_larger_than_its_disk().unwrap_or(false)
    {
        let option = config.names.option("nar-cache.size");
        errors.warning(format_args!(
            "{option} is {len}, more than the size of the disk: the NAR cache may fill it"
        ));
    }
    Ok(space)
}

fn find(config: &Configuration, errors: &ErrorLog) -> anyhow::Result<Option<NarCacheDirectory>> {
    let len_max = config.nar_cache_size;
    if len_max == Some(0) {
        return Ok(None);
    }
    if let Some(directory) = &config.nar_cache {
        let space = NarCacheDirectory::open(directory, len_max)
            .with_context(|| cannot_use(directory, config))?;
        return Ok(Some(space));
    }
    let directory = &*config.cache_directory;
    let space = NarCacheDirectory::open(directory, len_max)
        .and_then(|space| Ok((!space.is_memory()?).then_some(space)));
    match &space {
        Ok(Some(_)) => {}
        Ok(None) => errors.debug(format_args!("no NAR cache: {directory:?} is in memory")),
        Err(error) => errors.debug(format_args!("no NAR cache in {directory:?}: {error}")),
    }
    Ok(space.ok().flatten())
}
