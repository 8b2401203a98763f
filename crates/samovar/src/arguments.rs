//! Defines the arguments that several commands share.

use clap::{Arg, ArgAction};

/// Defines a positional argument that must be given.
pub(crate) fn required(id: &'static str, value_name: &'static str) -> Arg {
    Arg::new(id).value_name(value_name).required(true)
}

/// Defines an option `--id` that takes a value.
pub(crate) fn option(id: &'static str, value_name: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(value_name)
}

/// Defines an option `--id` that takes no value.
pub(crate) fn switch(id: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue)
}

/// Defines `--json`.
pub(crate) fn json() -> Arg {
    switch("json").help("Print a JSON document")
}

/// Defines the positional arguments that name store paths.
pub(crate) fn paths() -> Arg {
    Arg::new("paths")
        .value_name("PATH")
        .action(ArgAction::Append)
        .num_args(0..)
        .help(
            "Store path, base name, hash part, or link to a store path such as ./result; - reads \
             them from standard input, one per line",
        )
}
