//! A server for uploads needs no Nix store on its machine.

mod support;
mod support_uploads;

use std::process::Command;

use support::samovar;
use support_uploads::{MadePath, Running, Site};
use testkit::process::{fails, output};

/// The log line of a server that has found no store.
const FOUND_NONE: &str = "this machine has no Nix store: only uploaded paths are served";

/// Returns a command in whose environment there is no Nix store.
fn without_store(site: &Site) -> Command {
    let mut command = samovar();
    command.env("NIX_STORE_DIR", site.dir().join("no/store"));
    command.env("NIX_STATE_DIR", site.dir().join("no/var"));
    command
}

#[test]
fn a_server_without_a_store_serves_uploads() {
    let site = Site::new();
    site.configure("none", "");
    let server = site.start();
    let (token, path) = (site.token(&[]), MadePath::new("uploaded"));
    server.publish(&token, &path);
    server.assert_serves(&path);
    server.assert_lacks(&MadePath::new("absent"));
    let info = server.get("/nix-cache-info").text();
    assert!(info.starts_with("StoreDir: /nix/store\n"), "{info}");
    for page in ["/", "/uploads", "/readyz"] {
        assert_eq!(server.get(page).status, 200, "{page}");
    }
    assert_eq!(server.process.count(FOUND_NONE), 0);
    let mut doctor = samovar();
    doctor.args(["doctor", "--config"]).arg(site.config());
    let text = output(doctor.arg("--url").arg(server.url()));
    assert!(text.contains("ok      store: there is none"), "{text}");
    assert!(text.contains("\n0 errors"), "{text}");
}

#[test]
fn a_machine_without_a_store_is_found() {
    let site = Site::new();
    let mut command = without_store(&site);
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    command.args(["--set", "admin.listen=[]", "--storage"]);
    let server = Running::of(command.arg(site.storage()));
    assert_eq!(server.process.count(FOUND_NONE), 1);
    let info = server.get("/nix-cache-info").text();
    assert!(info.contains("/no/store\n"), "{info}");
    // Without a storage there is nothing to serve.
    let mut command = without_store(&site);
    let text = fails(command.args(["serve", "--listen", "127.0.0.1:0"]));
    assert!(text.contains("the database does not exist"), "{text}");
    // A store without its database is a damaged one, and no reason to answer 404 for its paths.
    std::fs::create_dir_all(site.dir().join("no/store")).unwrap();
    let mut command = without_store(&site);
    command.args(["serve", "--listen", "127.0.0.1:0", "--storage"]);
    let text = fails(command.arg(site.dir().join("other")));
    assert!(text.contains("the database does not exist"), "{text}");
}
