//! Where NARs of many small files are kept.

use anyhow::Context as _;
use samovar_cache::KeptSpace;

use crate::config::Configuration;
use crate::log::ErrorLog;

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
        let space = KeptSpace::open(directory, len_max).with_context(|| {
            format!("cannot keep NARs in {directory:?}: choose another directory with --nar-cache")
        })?;
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
