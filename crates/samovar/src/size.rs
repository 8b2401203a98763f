//! Formats numbers.

pub(crate) use samovar_storage::{counted, human_size as human};
