//! Parsers of store URIs, `nix.conf` and Nix's environment variables: no input makes them
//! panic, and the resulting directories are absolute.
#![no_main]

use std::collections::HashMap;
use std::path::Path;

use samovar_store::{Conf, Settings, StoreUri};

const NAMES: [&str; 7] = [
    "NIX_STORE_DIR",
    "NIX_STORE",
    "NIX_STATE_DIR",
    "NIX_LOG_DIR",
    "NIX_DAEMON_SOCKET_PATH",
    "NIX_REMOTE",
    "NIX_CONFIG",
];

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(uri) = StoreUri::parse(text) {
        assert_eq!(StoreUri::parse(text).ok(), Some(uri));
    }
    // Included files would make the result depend on this machine.
    if text.contains("include") {
        return;
    }
    let mut conf = Conf::default();
    conf.add(text, Path::new("/nonexistent"));
    for name in ["store", "use-sqlite-wal"] {
        let _flag = conf.flag(name);
        assert!(conf.text(name).is_none_or(|value| !value.is_empty()));
    }
    let values = NAMES.iter().map(|name| (*name).to_owned());
    let mut variables: HashMap<String, String> =
        values.zip(text.split('\0').map(str::to_owned)).collect();
    variables.insert("NIX_CONF_DIR".to_owned(), "/nonexistent".to_owned());
    if let Ok(settings) = Settings::from_environment(|name| variables.get(name).map(Into::into)) {
        assert!(settings.state_dir.is_absolute() && settings.log_dir.is_absolute());
        assert!(settings.socket().is_absolute());
    }
});
