//! `samovar ref`: the refs of a cache.

mod command;

pub(crate) use command::{command, run, write_log};
pub(crate) use samovar_client::refs::{
    Expected, Generation, Log, PathOrRef, RefName, Refs, Update, Updated, Version, check_snapshot,
    check_successor, is_manifest, path_names,
};
