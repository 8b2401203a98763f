//! Reads the temporary GC roots of real Nix daemons.

pub use testkit::nix::Daemon as NixDaemon;

use super::OwnStore;

/// Returns all temporary roots held by daemons.
pub fn roots(store: &OwnStore) -> String {
    let directory = store.root().join("nix/var/nix/temproots");
    let Ok(entries) = std::fs::read_dir(directory) else {
        return String::new();
    };
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok());
    texts.collect()
}
