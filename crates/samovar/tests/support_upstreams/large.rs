//! [`Large`]: a NAR of many megabytes at an upstream.

use std::fs;

use testkit::nix::{OwnStore, hash_part, key_pair, local};

use super::{Act, Relay, Upstream, field, noise};

/// A NAR of many megabytes, in a cache of its own.
pub(crate) struct Large {
    _dir: tempfile::TempDir,
    pub(crate) upstream: Upstream,
    pub(crate) relay: Relay,
    pub(crate) target: String,
    pub(crate) nar: Vec<u8>,
}

impl Large {
    /// Starts a server with these options, and the cache as its upstream.
    #[track_caller]
    pub(crate) fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = OwnStore::new();
        let file = dir.path().join("large");
        fs::write(&file, noise(48 << 20)).unwrap();
        let path = store.add(&file);
        let root = dir.path().join("cache");
        let (secret, key) = key_pair(dir.path(), "large-1");
        let (to, from) = (
            format!(
                "file://{}?compression=none&secret-key={}",
                root.display(),
                secret.display()
            ),
            local(store.root()),
        );
        let mut copy = store.nix.command("nix", store.root());
        testkit::process::output(copy.args(["copy", "--from", &from, "--to", &to, &path]));
        let upstream = Upstream::start(&root, |_| Act::Serve);
        let url = upstream.url();
        let relay = Relay::with(&format!(
            "{options}[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\ntimeout = \"60s\"\n"
        ));
        let narinfo = relay.narinfo(&path).0.text();
        let of_upstream =
            fs::read_to_string(root.join(format!("{}.narinfo", hash_part(&path)))).unwrap();
        Self {
            nar: fs::read(root.join(field(&of_upstream, "URL"))).unwrap(),
            target: format!("/{}", field(&narinfo, "URL")),
            _dir: dir,
            upstream,
            relay,
        }
    }
}
