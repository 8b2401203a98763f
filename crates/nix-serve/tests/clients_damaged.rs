//! When a path is damaged, a real client gets it from the next cache. After Nix has repaired the
//! path, the server serves it again at once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::client::{Client, succeeds};
use support::{OwnStore, ServerProcess, eventually, hash_part};

const FILE_LEN: usize = 2 << 20;

/// Creates a store with one path. Each call creates the same path.
fn store() -> (OwnStore, String) {
    let store = OwnStore::new();
    let path = store.add_file("file", &vec![b'x'; FILE_LEN]);
    (store, path)
}

fn damage(real: &Path) {
    fs::set_permissions(real, fs::Permissions::from_mode(0o644)).unwrap();
    let mut contents = vec![b'x'; FILE_LEN];
    contents[FILE_LEN / 2] = b'!';
    fs::write(real, contents).unwrap();
    fs::set_permissions(real, fs::Permissions::from_mode(0o444)).unwrap();
}

#[test]
fn a_client_gets_a_damaged_path_from_the_next_cache() {
    let (damaged_store, path) = store();
    let (right_store, same_path) = store();
    assert_eq!(path, same_path);
    damage(&damaged_store.real(&path));
    let damaged = ServerProcess::of_store(damaged_store.root());
    let right = ServerProcess::of_store(right_store.root());
    let urls = format!("{} {}", damaged.url(), right.url());
    // The first client discovers the damage; the second finds the path already quarantined.
    for round in 0..2 {
        let client = Client::new();
        let mut realise = client.realise(&urls, "", &path);
        succeeds(realise.args(["--option", "require-sigs", "false"]));
        let contents = fs::read(client.real(&path)).unwrap();
        assert!(contents == vec![b'x'; FILE_LEN], "{round}");
        if round == 0 {
            damaged.wait_for("does not match its registration");
        }
    }
    eventually("the path is quarantined", || {
        damaged.narinfo(&path).status == 404
    });
}

#[test]
fn a_path_repaired_by_nix_is_served_at_once() {
    let (store, path) = store();
    let client = Client::new();
    let cache = format!("file://{}", client.dir().join("cache").display());
    let mut copy = client.command("nix");
    copy.args(["copy", "--to", &cache, "--from"]);
    succeeds(copy.arg(store.root()).arg(&path));
    let server = ServerProcess::of_store(store.root());
    let url = format!("/nar/{}.nar", hash_part(&path));
    for repair in [
        ["--repair-path", &*path].as_slice(),
        &["--verify", "--check-contents", "--repair"],
    ] {
        damage(&store.real(&path));
        // A repair gives the root of the path another inode, so its files are hashed again although
        // they were verified before. The server confirms the damage by a second read, for which it
        // needs the database; if it cannot read that, it waits for the next failed download.
        eventually("the path is quarantined", || {
            let nar = server.get(&url);
            assert!(nar.status != 200 || !nar.is_complete, "{repair:?}");
            server.narinfo(&path).status == 404
        });
        let mut command = client.command("nix-store");
        command.arg("--store").arg(store.root()).args(repair);
        command.args(["--option", "substituters", &cache]);
        succeeds(command.args(["--option", "require-sigs", "false"]));
        server.wait_for_repair(&path);
        assert!(server.get(&url).is_complete, "{repair:?}");
    }
}
