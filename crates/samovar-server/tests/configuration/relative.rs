//! Relative paths of files and directories.

use std::path::Path;

use samovar_server::config::{LogTarget, Origin, Settings, read};
use samovar_server::listener::ListenSpec;

/// A relative path in a file is relative to the directory of the file; on the command line and in
/// the environment, it is relative to the working directory.
#[test]
fn relative_paths_are_relative_to_the_file() {
    let text = "storage = \"st\"\nsecret-key-files = [\"../k\", \"/abs\"]\n\
                listen = [\"run/socket\", \":1\"]\nlog.access = \"-\"\n\
                [access]\nusers-file = \"users\"\n";
    let mut settings = Settings::default();
    settings
        .add_text(Path::new("/etc/samovar/samovar.toml"), text)
        .unwrap();
    let config = read(&settings, |_| None).unwrap();
    assert_eq!(
        config.storage.as_deref(),
        Some(Path::new("/etc/samovar/st"))
    );
    assert_eq!(config.access_log, Some(LogTarget::StandardOutput));
    let cache = &config.caches[0];
    let keys = [Path::new("/etc/samovar/../k"), Path::new("/abs")];
    assert_eq!(cache.secret_key_files, keys);
    let users = cache.access.users_file.as_deref();
    assert_eq!(users, Some(Path::new("/etc/samovar/users")));
    let socket = ListenSpec::Unix("/etc/samovar/run/socket".into());
    assert_eq!(config.listeners[0], socket);
    let origin = Origin::Option("storage".to_owned());
    settings.set("storage", "other", origin).unwrap();
    let config = read(&settings, |_| None).unwrap();
    assert_eq!(config.storage.as_deref(), Some(Path::new("other")));
}
