//! Where NARs of many small files are kept.

use std::path::Path;

use anyhow::Context as _;
use samovar_cache::KeptSpace;

use crate::cli::Options;
use crate::environment::Environment;
use crate::log::ErrorLog;

/// Survives a restart of the machine, so it is on a disk: what is there takes no memory.
const DIRECTORY_DEFAULT: &str = "/var/tmp";

/// The place that was asked for, or one that is no burden, or none.
pub(super) fn space(
    options: &Options,
    environment: &Environment,
    errors: &ErrorLog,
) -> anyhow::Result<Option<KeptSpace>> {
    let len_max = options.nar_cache_size.or(environment.nar_cache_size);
    if len_max == Some(0) {
        return Ok(None);
    }
    let asked_for = options
        .nar_cache
        .as_ref()
        .or(environment.nar_cache.as_ref());
    if let Some(directory) = asked_for {
        let space = KeptSpace::open(directory, len_max).with_context(|| {
            format!("cannot keep NARs in {directory:?}: choose another directory with --nar-cache")
        })?;
        return Ok(Some(space));
    }
    let directory = environment.cache_directory.as_deref();
    let directory = directory.unwrap_or(Path::new(DIRECTORY_DEFAULT));
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
