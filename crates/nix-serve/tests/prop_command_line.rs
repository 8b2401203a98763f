//! No command line makes the parser panic, and every message is one line long.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use nix_serve::cli::{Invocation, parse};
use nix_serve::environment;
use proptest::prelude::*;

/// Generates words similar to options, and arbitrary bytes.
fn word() -> impl Strategy<Value = OsString> {
    let name = prop_oneof![
        Just("listen"),
        Just("l"),
        Just("host"),
        Just("p"),
        Just("port"),
        Just("S"),
        Just("pid"),
        Just("workers"),
        Just("keepalive"),
        Just("ssl-cert"),
        Just("ssl"),
        Just("path"),
        Just("priority"),
        Just("read-timeout"),
        Just("log-format"),
        Just("net_server-allow"),
        Just("Ilib"),
        Just("e"),
        Just("max_requests"),
        Just("D"),
        Just("default-middleware"),
        Just("timeout"),
        Just("access-log"),
    ];
    let dashes = prop_oneof![Just(""), Just("-"), Just("--"), Just("---")];
    let prefix =
        prop_oneof![4 => Just(""), 1 => Just("enable-"), 1 => Just("no-"), 1 => Just("disable_")];
    let value = prop_oneof![
        Just(""),
        Just("="),
        Just("=0"),
        Just("=:80"),
        Just("=[::1]:5"),
        Just("=x y")
    ];
    prop_oneof![
        (dashes, prefix, name, value).prop_map(|(a, b, c, d)| format!("{a}{b}{c}{d}").into()),
        "[-=:\\[\\]*!0-9a-z./]{0,12}".prop_map(OsString::from),
        "\\PC{0,8}".prop_map(OsString::from),
        prop::collection::vec(1_u8.., 0..12).prop_map(OsString::from_vec),
    ]
}

proptest! {
    #[test]
    fn any_command_line(words in prop::collection::vec(word(), 0..12)) {
        match parse(words, environment::read(|_| None)) {
            Ok(Invocation::Serve { config, .. }) => {
                prop_assert!(!config.listeners.is_empty());
                for line in config.remarks {
                    prop_assert!(!line.contains('\n') && !line.is_empty(), "{line:?}");
                }
            }
            Ok(Invocation::Help | Invocation::Version) => {}
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
