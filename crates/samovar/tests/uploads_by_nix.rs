//! Paths that a stock Nix client pushes with `nix copy` can be copied back unchanged by another
//! client.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{manifest, sample, sample_root, sample_store, secret_file, user};
use support_uploads::{MadePath, Site};
use testkit::nix::{Nix, hash_part, key_pair, nix};
use testkit::process::{fails, output};

/// Paths that refer to each other and to themselves, with content addresses of all methods,
/// signatures, derivers, odd names and all kinds of files.
const NAMES: [&str; 12] = [
    "self_reference",
    "single_file",
    "fixed",
    "text",
    "text_reference",
    "ca",
    "kinds",
    "odd",
    "multi_dev",
    "signed",
    "empty",
    "built",
];

/// The compressions of Nix 2.8 that all later versions can read.
const COMPRESSIONS: [&str; 6] = ["zstd", "xz", "none", "gzip", "bzip2", "br"];

/// A machine with Nix, an empty store and a netrc file.
struct Client {
    dir: tempfile::TempDir,
    netrc: PathBuf,
    nix: Nix,
}

impl Client {
    fn new(token: &str) -> Self {
        Self::with(&Nix::INSTALLED, token)
    }

    fn with(nix: &Nix, token: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("machine 127.0.0.1 login nobody password {token}\n");
        let netrc = secret_file(dir.path(), "netrc", &text);
        Self {
            dir,
            netrc,
            nix: nix.clone(),
        }
    }

    fn store(&self) -> String {
        format!("local?root={}", self.dir.path().join("store").display())
    }

    /// Returns a `nix` command with these arguments and the token.
    fn nix(&self, arguments: &[&str]) -> Command {
        let mut command = self.nix.command("nix", self.dir.path());
        command
            .args(arguments)
            .args(["--option", "substituters", ""]);
        command.args(["--option", "netrc-file"]).arg(&self.netrc);
        command
    }

    /// Returns a `nix copy` command that pushes paths of the sample store. A newer Nix would change
    /// the database that all tests use, so it pushes from a store of its own with the same paths.
    fn push(&self, to: &str, paths: &[String]) -> Command {
        let mut from = sample_store();
        if self.nix.release().is_some() {
            let own = format!("local?root={}", self.dir.path().join("pushed").display());
            let mut copy = nix("nix", self.dir.path());
            copy.args(["copy", "--no-check-sigs", "--from", &from, "--to", &own]);
            output(copy.args(paths));
            from = own;
        }
        let mut command = self.nix(&["copy", "--from", &from, "--to", to]);
        command.args(paths);
        command
    }

    /// Returns a `nix copy` command that copies paths into this client's store. It trusts only
    /// `key`.
    fn pull(&self, from: &str, key: &str, paths: &[String]) -> Command {
        let mut command = self.nix(&["copy", "--from", from, "--to", &self.store()]);
        command
            .args(["--option", "trusted-public-keys", key])
            .args(paths);
        command
    }

    /// Asserts that the client's store has exactly the closure of these sample paths. `fields`:
    /// fields of the registrations that must be equal.
    #[track_caller]
    fn assert_has(&self, key: &str, paths: &[String], fields: &[&str]) {
        let store = self.store();
        // Verify with the Nix of this machine.
        let mut verify = nix("nix", self.dir.path());
        verify.args(["store", "verify", "--store", &store, "--all"]);
        output(verify.args(["--option", "trusted-public-keys", key]));
        let of_sample = infos(&sample_store(), paths);
        let here = infos(&store, &["--all".to_owned()]);
        assert_eq!(names(&here), names(&of_sample));
        for (found, expected) in here.iter().zip(&of_sample) {
            for &field in fields {
                assert_eq!(
                    found[field], expected[field],
                    "{field} of {}",
                    expected["path"]
                );
            }
            let path = &expected["path"].as_str().unwrap()[1..];
            let root = self.dir.path().join("store");
            assert_same(&root.join(path), &sample_root().join(path));
        }
    }
}

/// Fields of a registration that a narinfo also has, except `CA`.
const FIELDS: [&str; 5] = ["path", "narHash", "narSize", "references", "deriver"];

/// Fields of a registration that a narinfo also has.
const ALL_FIELDS: [&str; 6] = ["path", "narHash", "narSize", "references", "deriver", "ca"];

/// Returns the output of `nix path-info --json --recursive`, sorted by path.
#[track_caller]
fn infos(store: &str, paths: &[String]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let mut command = nix("nix", dir.path());
    command.args(["path-info", "--json", "--recursive", "--store", store]);
    let text = output(command.args(paths));
    let mut infos: Vec<Value> = serde_json::from_str(&text).unwrap();
    infos.sort_by_key(|info| info["path"].to_string());
    infos
}

fn names(infos: &[Value]) -> Vec<String> {
    infos.iter().map(|info| info["path"].to_string()).collect()
}

/// Asserts that two trees have the same NAR.
#[track_caller]
fn assert_same(found: &Path, expected: &Path) {
    let (of, than) = (
        fs::symlink_metadata(found).unwrap(),
        fs::symlink_metadata(expected).unwrap(),
    );
    assert_eq!(of.file_type(), than.file_type(), "{found:?}");
    if of.is_symlink() {
        assert_eq!(
            fs::read_link(found).unwrap(),
            fs::read_link(expected).unwrap()
        );
    } else if of.is_dir() {
        let list = |dir: &Path| {
            let entries = fs::read_dir(dir).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name());
            names.collect::<BTreeSet<_>>()
        };
        assert_eq!(list(found), list(expected), "{found:?}");
        for name in list(found) {
            assert_same(&found.join(&name), &expected.join(&name));
        }
    } else {
        let is_executable = |of: &fs::Metadata| of.permissions().mode() & 0o100 != 0;
        assert_eq!(is_executable(&of), is_executable(&than), "{found:?}");
        assert!(
            fs::read(found).unwrap() == fs::read(expected).unwrap(),
            "{found:?}"
        );
    }
}

fn paths() -> Vec<String> {
    NAMES.iter().map(|name| sample(name)).collect()
}

/// Returns the number of PUT requests in the access log.
fn put_count(log: &Path) -> usize {
    let text = fs::read_to_string(log).unwrap();
    text.lines().filter(|line| line.contains("\"PUT ")).count()
}

/// Pushes a closure to a new cache. Copies it back twice: from the server, and from the storage
/// directory without a server.
#[track_caller]
fn round_trip(compression: &str, below: &str, parameters: &str, paths: &[String]) {
    let site = Site::new();
    let server = site.start();
    let pusher = Client::new(&site.token(&[]));
    let to = format!(
        "{}{below}?compression={compression}{parameters}",
        server.url()
    );
    output(&mut pusher.push(&to, paths));
    for path in paths {
        let target = format!("/{}.narinfo", hash_part(path));
        let narinfo = server.get(&target).text();
        let line = format!("\nCompression: {compression}\n");
        assert!(narinfo.contains(&line), "{narinfo}");
        assert_eq!(server.get(&format!("/upload{target}")).text(), narinfo);
    }
    let client = Client::new("");
    output(&mut client.pull(&server.url(), &site.public_key, paths));
    client.assert_has(&site.public_key, paths, &ALL_FIELDS);
    server.process.terminate();
    let client = Client::new("");
    let directory = format!("file://{}", site.storage().display());
    output(&mut client.pull(&directory, &site.public_key, paths));
    client.assert_has(&site.public_key, paths, &ALL_FIELDS);
}

/// Pushes a closure with one version of Nix, and copies it back with another.
#[track_caller]
fn from_version_to_version(pusher: &Nix, reader: &Nix, compression: &str, paths: &[String]) {
    let site = Site::new();
    let server = site.start();
    let pusher = Client::with(pusher, &site.token(&[]));
    let to = format!("{}/upload?compression={compression}", server.url());
    output(&mut pusher.push(&to, paths));
    // The second push sends nothing.
    let files = site.files();
    output(&mut pusher.push(&to, paths));
    assert_eq!(site.files(), files);
    let directory = format!("file://{}", site.storage().display());
    for from in [&server.url(), &directory] {
        let client = Client::with(reader, "");
        output(&mut client.pull(from, &site.public_key, paths));
        client.assert_has(&site.public_key, paths, &ALL_FIELDS);
    }
}

#[test]
fn newer_versions_push_and_pull() {
    let installed = &Nix::INSTALLED;
    for newer in &Nix::newer() {
        println!("testing Nix {}", newer.version());
        for (pusher, reader, compression) in [
            (newer, newer, "zstd"),
            (newer, installed, "xz"),
            (installed, newer, "none"),
        ] {
            from_version_to_version(pusher, reader, compression, &paths());
        }
    }
}

#[test]
fn zstd_round_trip() {
    let paths = [&paths()[..], &[sample("tree")]].concat();
    round_trip("zstd", "", "", &paths);
}

#[test]
fn xz_round_trip() {
    round_trip(
        "xz",
        "/upload",
        "&write-nar-listing=1&index-debug-info=1",
        &paths(),
    );
}

#[test]
fn none_round_trip() {
    round_trip("none", "", "&write-nar-listing=1", &paths());
}

#[test]
fn gzip_round_trip() {
    round_trip("gzip", "/upload", "", &paths());
}

#[test]
fn bzip2_round_trip() {
    round_trip("bzip2", "", "&index-debug-info=1", &paths());
}

#[test]
fn br_round_trip() {
    round_trip("br", "/upload", "", &paths());
}

/// Substitution, listings, signatures and build logs work with uploaded paths.
#[test]
fn other_commands_work_with_uploaded_paths() {
    let site = Site::new();
    let server = site.start();
    let (url, path) = (server.url(), sample("self_reference"));
    let client = Client::new(&site.token(&[]));
    output(&mut client.push(
        &format!("{url}/upload?compression=zstd"),
        std::slice::from_ref(&path),
    ));

    // Substitute a path by its name.
    let store = client.store();
    let mut realise = nix("nix-store", client.dir.path());
    realise.args([
        "--store",
        &store,
        "--realise",
        &path,
        "--option",
        "max-jobs",
        "0",
    ]);
    realise.args(["--option", "substituters", &url]);
    output(realise.args(["--option", "trusted-public-keys", &site.public_key]));
    client.assert_has(&site.public_key, std::slice::from_ref(&path), &ALL_FIELDS);

    // The server's listing equals that of the original store.
    let list = |store: &str| {
        output(&mut client.nix(&["store", "ls", "--store", store, "--json", "-R", &path]))
    };
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let listing = server.get(&format!("/{}.ls", hash_part(&path)));
    let without_offsets = |mut value: Value| {
        remove_offsets(&mut value);
        value
    };
    let root = without_offsets(listing.json()["root"].clone());
    assert_eq!(root, without_offsets(json(&list(&sample_store()))));
    let cat = ["store", "cat", "--store", &url, &format!("{path}/bin/run")];
    let file = fs::read_to_string(sample_root().join(&path[1..]).join("bin/run")).unwrap();
    assert_eq!(output(&mut client.nix(&cat)), file);

    // Add a signature to an uploaded path.
    let (key_file, key) = key_pair(site.dir(), "reviewer-1");
    let mut sign = client.nix(&["store", "sign", "--store", &format!("{url}/upload")]);
    output(sign.arg("--key-file").arg(key_file).arg(&path));
    let narinfo = server
        .get(&format!("/upload/{}.narinfo", hash_part(&path)))
        .text();
    assert!(narinfo.contains("\nSig: reviewer-1:"), "{narinfo}");
    assert!(narinfo.contains("\nSig: cache-1:"), "{narinfo}");
    for from in [
        &format!("{url}/upload"),
        &format!("file://{}", site.storage().display()),
    ] {
        let other = Client::new("");
        let mut verify = other.nix(&["store", "verify", "--store", from, &path]);
        output(verify.args([
            "--sigs-needed",
            "1",
            "--option",
            "trusted-public-keys",
            &key,
        ]));
    }

    // Push and read build logs.
    let logs = manifest()["logs"].clone();
    let logs = logs.as_array().unwrap().iter();
    for log in logs.filter(|log| ["bzip2", "plain"].contains(&log["kind"].as_str().unwrap())) {
        let (drv, text) = (log["drv"].as_str().unwrap(), log["text"].as_str().unwrap());
        let (from, to) = (sample_store(), format!("{url}/upload"));
        for command in [&["copy", "--derivation"][..], &["store", "copy-log"]] {
            let mut copy = client.nix(command);
            output(copy.args(["--from", &from, "--to", &to, drv]));
        }
        let shown = output(&mut client.nix(&["log", "--store", &url, drv]));
        assert_eq!(shown, text);
        assert_eq!(server.get(&format!("/log/{}", &drv[11..])).text(), text);
    }
}

fn remove_offsets(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.remove("narOffset");
        fields.values_mut().for_each(remove_offsets);
    }
}

/// The second push of a closure sends nothing, also from a machine that remembers nothing.
#[test]
fn a_second_push_sends_nothing() {
    let site = Site::new();
    let log = site.dir().join("access.log");
    site.configure_empty(&format!("log.access = {log:?}\n"));
    let server = site.start();
    let token = site.token(&[]);
    let client = Client::new(&token);
    for below in ["", "/upload"] {
        let to = format!("{}{below}?compression=zstd", server.url());
        output(&mut client.push(&to, &paths()));
    }
    testkit::eventually("the pushes are logged", || put_count(&log) > 0);
    let files = site.files();
    let other = Client::new(&token);
    for (client, refresh) in [(&client, false), (&client, true), (&other, false)] {
        for below in ["", "/upload"] {
            let to = format!("{}{below}?compression=xz", server.url());
            let mut push = client.push(&to, &paths());
            if refresh {
                push.arg("--refresh");
            }
            output(&mut push);
        }
    }
    assert_eq!(site.files(), files);
    server.process.terminate();
    // The log has one PUT of a NAR file and one of a narinfo for each path, and at most one of
    // nix-cache-info.
    let count = files
        .iter()
        .filter(|file| file.ends_with(".narinfo"))
        .count();
    let found = put_count(&log);
    assert!(
        (2 * count..=2 * count + 2).contains(&found),
        "{found} for {count} paths"
    );
}

/// Paths of the live store count as present at the cache's URL, but can be pushed below `/upload/`.
#[test]
fn paths_of_the_live_store_can_be_pushed_all_the_same() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let client = Client::new(&site.token(&[]));
    let before = server
        .get(&format!("/{}.narinfo", hash_part(&sample("built"))))
        .text();
    output(&mut client.push(&format!("{}?compression=zstd", server.url()), &paths()));
    assert_eq!(site.files(), BTreeSet::new());
    output(&mut client.push(
        &format!("{}/upload?compression=zstd", server.url()),
        &paths(),
    ));
    let narinfo = |below: &str| {
        let target = format!("{below}/{}.narinfo", hash_part(&sample("built")));
        server.get(&target).text()
    };
    assert_eq!(narinfo(""), before);
    assert!(
        narinfo("/upload").contains(".nar.zst\n"),
        "{}",
        narinfo("/upload")
    );
    // By default, narinfos of the live store have no CA, as with nix-serve.
    for (below, fields) in [("", &FIELDS[..]), ("/upload", &ALL_FIELDS)] {
        let client = Client::new("");
        let from = format!("{}{below}", server.url());
        output(&mut client.pull(&from, &site.public_key, &paths()));
        client.assert_has(&site.public_key, &paths(), fields);
    }
    // Uploaded paths remain after the live store has lost them.
    drop(server);
    site.configure_empty("");
    let server = site.start();
    let client = Client::new("");
    output(&mut client.pull(&server.url(), &site.public_key, &paths()));
    client.assert_has(&site.public_key, &paths(), &ALL_FIELDS);
}

/// Each cache serves the file that was pushed to it, in the compression that its client chose.
#[test]
fn caches_serve_the_compression_of_their_clients() {
    let site = Site::new();
    let caches: String = COMPRESSIONS
        .iter()
        .map(|name| format!("[caches.{name}]\n"))
        .collect();
    site.configure_empty(&caches);
    let server = site.start();
    let token = site.token(&[]);
    let path = [sample("self_reference")];
    let count = || {
        site.files()
            .iter()
            .filter(|file| file.starts_with("nar/"))
            .count()
    };
    let mut pushers = Vec::new();
    for (index, compression) in COMPRESSIONS.into_iter().enumerate() {
        let client = Client::new(&token);
        let to = format!(
            "{}/{compression}/upload?compression={compression}",
            server.url()
        );
        output(&mut client.push(&to, &path));
        pushers.push((client, compression));
        assert_eq!(count(), 4 * (index + 1), "{compression}");
    }
    for (pusher, compression) in pushers {
        let url = format!("{}/{compression}/upload", server.url());
        for client in [Client::new(""), pusher] {
            let mut pull = client.pull(&url, &site.public_key, &path);
            // The client remembers the narinfo from its push, which has no signature of the cache
            // and names the file that the client sent. Make it request the narinfo again.
            output(pull.arg("--refresh"));
            let mut infos = infos(&client.store(), &["--all".to_owned()]);
            infos.retain(|info| info["path"] == path[0]);
            assert_eq!(infos.len(), 1, "{compression}");
        }
    }
}

/// A token with the right to read is enough for a cache that is not public.
#[test]
fn a_private_cache_is_read_with_a_token() {
    let site = Site::new();
    let users = site.dir().join("users");
    fs::write(&users, user("ada", "secret")).unwrap();
    site.configure_empty(&format!("access.users-file = {users:?}\n"));
    let server = site.start();
    let path = [sample("built")];
    let reading = site.token(&["--rights", "read", "--name", "reader"]);
    let (pusher, reader) = (Client::new(&site.token(&[])), Client::new(&reading));
    let url = format!("{}?compression=zstd", server.url());
    // Use a new client: one that has seen the path absent remembers that for an hour.
    let error = fails(&mut Client::new(&reading).push(&url, &path));
    assert!(error.contains("403"), "{error}");
    fails(&mut Client::new("secret").push(&url, &path));
    output(&mut pusher.push(&url, &path));
    output(&mut reader.pull(&server.url(), &site.public_key, &path));
    reader.assert_has(&site.public_key, &path, &ALL_FIELDS);
    for token in ["", "smv1_unknown", "wrong"] {
        let stranger = Client::new(token);
        fails(&mut stranger.pull(&server.url(), &site.public_key, &path));
    }
    let secret = MadePath::new("secret");
    for target in [format!("/{}.narinfo", hash_part(&path[0])), secret.target()] {
        assert_eq!(server.get(&target).status, 401);
        assert_eq!(server.get(&format!("/upload{target}")).status, 401);
    }
}
