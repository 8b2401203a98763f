//! Where NARs of many small files are kept.

use std::io;

use anyhow::Context as _;
use samovar_cache::KeptSpace;

use crate::config::Configuration;
use crate::log::ErrorLog;

/// Checks that a configured NAR cache directory exists. Call it before a port is taken; whether
/// the server's user may write there is known only once the server has become that user.
///
/// # Errors
///
/// If the path does not exist or is no directory.
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
        .with_context(|| cannot_use(directory))
}

fn cannot_use(directory: &std::path::Path) -> String {
    format!("cannot keep NARs in {directory:?}: choose another directory with --nar-cache")
}

/// The place that was asked for, or one that is no burden, or none.
pub(super) fn space(
    config: &Configuration,
    errors: &ErrorLog,
) -> anyhow::Result<Option<KeptSpace>> {
    let space = find(config, errors)?;
    if let (Some(space), Some(len)) = (&space, config.nar_cache_size)
        && space.is_larger_than_its_disk().unwrap_or(false)
    {
        errors.warning(format_args!(
            "--nar-cache-size {len} is more than the whole disk has: NARs are kept until it is full"
        ));
    }
    Ok(space)
}

fn find(config: &Configuration, errors: &ErrorLog) -> anyhow::Result<Option<KeptSpace>> {
    let len_max = config.nar_cache_size;
    if len_max == Some(0) {
        return Ok(None);
    }
    if let Some(directory) = &config.nar_cache {
        let space = KeptSpace::open(directory, len_max).with_context(|| cannot_use(directory))?;
        return Ok(Some(space));
    }
    let directory = &*config.cache_directory;
    let space = KeptSpace::open(directory, len_max)
        .and_then(|space| Ok((!space.is_memory()?).then_some(space)));
    match space {
        Ok(Some(space)) => Ok(Some(space)),
        Ok(None) => {
            errors.debug(format_args!("NARs are not kept: {directory:?} is memory"));
            Ok(None)
        }
        Err(error) => {
            errors.debug(format_args!("NARs are not kept in {directory:?}: {error}"));
            Ok(None)
        }
    }
}
