//! The machine that has pushed a path can substitute it at the cache's own URL. Nix remembers for
//! 30 days the narinfo that it has sent, without the cache's signature, for the URL to which it
//! pushed.

mod support;
mod support_uploads;

use support::{sample, sample_store, secret_file};
use support_uploads::Site;
use testkit::nix::{Nix, OwnStore, local};
use testkit::process::{finish, output};

#[test]
fn the_pusher_trusts_its_own_path_at_the_other_url() {
    // A newer Nix would change the database of the sample store.
    let old = OwnStore::new();
    let own = local(old.root());
    let mut get = old.nix.command("nix", old.root());
    get.args([
        "copy",
        "--no-check-sigs",
        "--from",
        &sample_store(),
        "--to",
        &own,
    ]);
    output(get.arg(sample("built")));
    for nix in Nix::all() {
        let site = Site::new();
        let server = site.start();
        let store = OwnStore::of(nix);
        let version = store.nix.version();
        // A path without a content address, which needs a signature.
        let path = sample("built");
        let mut get = store.nix.command("nix", store.root());
        get.args(["copy", "--no-check-sigs", "--from", &own, "--to"]);
        output(get.arg(local(store.root())).arg(&path));
        let token = site.token(&[]);
        let netrc = format!("machine 127.0.0.1 login nobody password {token}\n");
        let netrc = secret_file(site.dir(), "netrc", &netrc);
        let home = tempfile::tempdir().unwrap();
        let copy = |arguments: &[&str]| {
            let mut command = store.nix.command("nix", home.path());
            command.arg("copy").args(arguments).arg(&path);
            command.args(["--option", "substituters", "", "--option", "netrc-file"]);
            command.arg(&netrc);
            command.args(["--option", "trusted-public-keys", &site.public_key]);
            command
        };
        let (url, from) = (server.url(), local(store.root()));
        let below = format!("{url}/upload");
        output(&mut copy(&["--from", &from, "--to", &below]));
        // Where the client has pushed, it has to ask again.
        for from in [&[&*url][..], &[&*below, "--refresh"]] {
            let other = OwnStore::new();
            let to = local(other.root());
            let read = finish(&mut copy(&[&["--to", &to, "--from"], from].concat()));
            let text = String::from_utf8_lossy(&read.stderr);
            assert!(read.status.success(), "Nix {version} from {from:?}: {text}");
        }
    }
}
