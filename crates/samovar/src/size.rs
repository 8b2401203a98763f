//! Formats sizes.

pub(crate) use samovar_storage::human_size as human;
