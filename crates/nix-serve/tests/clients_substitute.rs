//! Real Nix clients can query the server and substitute from it, as with any other binary cache.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;

use support::client::{Client, fails, finish, succeeds};
use support::{
    Nix, OwnStore, ServerProcess, eventually, hash_part, key_pair, local, nix_serve, sample,
    sample_list, sample_root,
};
use testkit::http1::Connection;

/// A server of the sample store with a signing key, and a client that trusts the key.
struct Scene {
    client: Client,
    server: ServerProcess,
    public: String,
}

impl Scene {
    fn new() -> Self {
        Self::of(&Nix::INSTALLED)
    }

    /// Makes a scene whose client has this version of Nix.
    fn of(nix: &Nix) -> Self {
        let client = Client::of(nix);
        let (secret, public) = key_pair(client.dir(), "ours-1");
        let mut command = nix_serve();
        command
            .args(["--store", &local(&sample_root())])
            .args([
                "--access-log",
                client.dir().join("access").to_str().unwrap(),
            ])
            .env("NIX_SECRET_KEY_FILE", secret);
        Self {
            server: ServerProcess::start(&mut command),
            client,
            public,
        }
    }

    /// Runs `nix` with these arguments, in which `URL` stands for the cache.
    #[track_caller]
    fn nix(&self, arguments: &[&str]) -> String {
        let mut command = self.client.command("nix");
        let url = self.server.url();
        command.args(arguments.iter().map(|argument| match *argument {
            "URL" => &url,
            other => other,
        }));
        succeeds(&mut command)
    }

    /// Waits until the access log has a request with this prefix.
    #[track_caller]
    fn was_asked(&self, request: &str) {
        let file = self.client.dir().join("access");
        eventually(request, || {
            let text = std::fs::read_to_string(&file).unwrap();
            // Nix 2.34 escapes the exclamation mark.
            let text = text.replace("%21", "!");
            text.contains(&format!("\"{request} HTTP/1.1\""))
        });
    }
}

/// Runs a check with a client of each version of Nix.
#[track_caller]
fn in_every_version(check: impl Fn(&Scene)) {
    for nix in Nix::all() {
        check(&Scene::of(&nix));
    }
}

fn real_sample(path: &str) -> PathBuf {
    sample_root().join(path.trim_start_matches('/'))
}

#[test]
fn a_closure_is_substituted_with_checked_signatures() {
    in_every_version(substitutes_a_closure);
}

#[track_caller]
fn substitutes_a_closure(scene: &Scene) {
    let top = sample("top");
    let mut realise = scene
        .client
        .realise(&scene.server.url(), &scene.public, &top);
    assert_eq!(succeeds(&mut realise).trim(), top);
    let mut substituted = scene.client.closure(&top);
    substituted.sort();
    let mut expected = sample_list("closure");
    expected.sort();
    assert_eq!(substituted, expected);
}

#[test]
fn a_derivation_is_realised_by_its_substituted_outputs() {
    in_every_version(realises_a_derivation);
}

#[track_caller]
fn realises_a_derivation(scene: &Scene) {
    let drv = sample("multi_drv");
    let mut realise = scene
        .client
        .realise(&scene.server.url(), &scene.public, &drv);
    let outputs = succeeds(&mut realise);
    let mut outputs: Vec<&str> = outputs.lines().collect();
    outputs.sort_unstable();
    let mut expected = [sample("multi_dev"), sample("multi_out")];
    expected.sort();
    assert_eq!(outputs, expected);
    for output in outputs {
        assert!(scene.client.real(output).exists());
    }
}

#[test]
fn a_path_without_a_trusted_signature_is_not_substituted() {
    in_every_version(does_not_substitute_without_signature);
}

#[track_caller]
fn does_not_substitute_without_signature(scene: &Scene) {
    let path = sample("no_references");
    let (_, other) = key_pair(scene.client.dir(), "another-1");
    let mut realise = scene.client.realise(&scene.server.url(), &other, &path);
    let error = fails(&mut realise);
    assert!(error.contains("not signed by any of the keys"), "{error}");
    assert!(!scene.client.real(&path).exists());
}

/// After a plain 404 the client tries the next cache, without a warning or a delay.
#[test]
fn an_absent_path_falls_through_to_the_next_cache() {
    in_every_version(falls_through);
}

#[track_caller]
fn falls_through(scene: &Scene) {
    let store = OwnStore::new();
    let path = store.add_file("elsewhere", b"only in the second cache");
    let second = ServerProcess::of_store(store.root());
    let urls = format!("{} {}", scene.server.url(), second.url());
    let mut realise = scene.client.realise(&urls, &scene.public, &path);
    let output = finish(realise.args(["--option", "require-sigs", "false"]));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(
        !error.contains("retrying") && !error.contains("error"),
        "{error}"
    );
    assert!(scene.client.real(&path).exists());
    scene.was_asked(&format!("GET /{}.narinfo", hash_part(&path)));
}

#[test]
fn path_info_shows_size_references_and_signature() {
    in_every_version(shows_path_info);
}

#[track_caller]
fn shows_path_info(scene: &Scene) {
    let path = sample("built");
    let json = scene.nix(&["path-info", "--store", "URL", "--json", "-S", &path]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // A list in Nix 2.8; an object with the paths as keys since Nix 2.19.
    let info = json.get(&path).unwrap_or(&json[0]);
    assert_eq!(info["deriver"], sample("built_drv"));
    assert!(info["closureSize"].as_u64() > info["narSize"].as_u64());
    let signature = info["signatures"][0].as_str().unwrap();
    assert!(signature.starts_with("ours-1:"));
    // The client first sends HEAD, to check whether the path exists.
    scene.was_asked(&format!("HEAD /{}.narinfo", hash_part(&path)));
    scene.was_asked(&format!("GET /{}.narinfo", hash_part(&path)));

    let absent = sample("absent");
    let mut query = scene.client.command("nix");
    query.args(["path-info", "--store", &scene.server.url(), &absent]);
    let error = fails(&mut query);
    assert!(
        error.contains(&format!("path '{absent}' is not valid")),
        "{error}"
    );
}

#[test]
fn ls_and_cat_look_into_a_path() {
    in_every_version(looks_into_a_path);
}

#[track_caller]
fn looks_into_a_path(scene: &Scene) {
    let kinds = sample("kinds");
    let listed = scene.nix(&["store", "ls", "--store", "URL", &kinds]);
    let real = real_sample(&kinds).read_dir().unwrap().count();
    assert_eq!(listed.lines().count(), real);
    let program = format!("{kinds}/program");
    assert_eq!(
        scene.nix(&["store", "cat", "--store", "URL", &program]),
        "#!/bin/sh\necho program\n"
    );
    let long = scene.nix(&["store", "ls", "-lR", "--store", "URL", &kinds]);
    assert!(
        long.contains("-r-xr-xr-x                   23 ./program\n"),
        "{long}"
    );
    assert!(long.contains("./link-relative -> program\n"), "{long}");
    // The client has computed the same listing from the NAR.
    let path = sample("built");
    let json = scene.nix(&["store", "ls", "--json", "-R", "--store", "URL", &path]);
    let ours = scene.server.get(&format!("/{}.ls", hash_part(&path)));
    let ours: serde_json::Value = serde_json::from_slice(&ours.body).unwrap();
    let theirs: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(ours["root"], theirs);
}

#[test]
fn logs_of_a_derivation_and_of_its_output() {
    in_every_version(shows_logs);
}

#[track_caller]
fn shows_logs(scene: &Scene) {
    for key in ["built_drv", "built"] {
        let log = scene.nix(&["log", "--store", "URL", &sample(key)]);
        assert_eq!(log, sample("built_log"), "{key}");
    }
    let drv = sample("built_drv");
    scene.was_asked(&format!("GET /log/{}", drv.rsplit('/').next().unwrap()));

    let without = sample("top");
    let mut log = scene.client.command("nix");
    log.args(["log", "--store", &scene.server.url(), &without]);
    let error = fails(&mut log);
    assert!(error.contains("is not available"), "{error}");
}

#[test]
fn nix_store_verify_accepts_contents_and_signatures() {
    in_every_version(verifies);
}

#[track_caller]
fn verifies(scene: &Scene) {
    let mut paths = vec![
        sample("top"),
        sample("tree"),
        sample("kinds"),
        sample("odd"),
    ];
    paths.extend(["deep63", "deep64", "empty", "big"].map(sample));
    let mut verify = scene.client.command("nix");
    verify
        .args(["store", "verify", "--recursive", "--sigs-needed", "1"])
        .args(["--store", &scene.server.url()])
        .args(["--option", "trusted-public-keys", &scene.public])
        .args(&paths);
    succeeds(&mut verify);

    let (_, other) = key_pair(scene.client.dir(), "another-1");
    let mut verify = scene.client.command("nix");
    verify
        .args(["store", "verify", "--store", &scene.server.url()])
        .args(["--option", "trusted-public-keys", &other])
        .arg(sample("no_references"));
    let error = fails(&mut verify);
    assert!(error.contains("is untrusted"), "{error}");
}

/// Nix clients send HEAD and then GET for each path on the command line. If the server sent a body
/// after HEAD, they would parse it as the next response head.
#[test]
fn head_then_get_on_one_connection() {
    let scene = Scene::new();
    let mut connection = Connection::connect(scene.server.addr);
    let (present, absent) = (sample("built"), sample("absent"));
    let narinfo = format!("/{}.narinfo", hash_part(&present));
    let urls = [
        (narinfo.clone(), 200),
        (scene.server.nar_url(&present), 200),
        (format!("/{}.narinfo", hash_part(&absent)), 404),
        (format!("/nar/{}.nar", hash_part(&absent)), 404),
        ("/nix-cache-info".to_owned(), 200),
        (format!("/{}.ls", hash_part(&present)), 200),
        ("/nothing".to_owned(), 404),
    ];
    for (url, status) in &urls {
        for _ in 0..3 {
            let head = connection.request("HEAD", url, &[]);
            assert_eq!(head.status, *status, "{url}");
            assert!(connection.is_quiet(), "{url}: a body");
            let get = connection.get(url);
            assert_eq!(get.status, *status, "{url}");
            for name in ["content-length", "content-type", "accept-ranges"] {
                assert_eq!(head.header(name), get.header(name), "{url}");
            }
        }
    }
}

/// A client requests realisations: only they tell it the output path of a content-addressed
/// derivation.
#[test]
fn a_content_addressed_derivation_is_substituted() {
    in_every_version(substitutes_a_content_addressed_derivation);
}

#[track_caller]
fn substitutes_a_content_addressed_derivation(scene: &Scene) {
    let (drv, output) = (sample("ca_drv"), sample("ca"));
    let features = "ca-derivations";
    let mut fetch = scene.client.command_with("nix-store", features);
    fetch
        .arg("--store")
        .arg(scene.client.root())
        .args(["--option", "substituters", &scene.server.url()])
        .args(["--option", "trusted-public-keys", &scene.public])
        .args(["--realise", &drv, "--option", "max-jobs", "0"]);
    // Do not require signatures: the realisation itself is not signed by the server.
    let printed = succeeds(fetch.args(["--option", "require-sigs", "false"]));
    assert_eq!(printed.trim(), output);
    assert!(scene.client.real(&output).exists());
    assert!(scene.client.real(&drv).exists());

    // The client's cache keeps the realisation byte for byte.
    let cache = scene.client.dir().join("kept");
    let mut copy = scene.client.command_with("nix", features);
    copy.args(["copy", "--no-check-sigs", "--from"])
        .arg(scene.client.root())
        .arg("--to")
        .arg(format!("file://{}", cache.display()))
        .arg(scene.client.outputs_of(&drv));
    succeeds(&mut copy);
    let mut kept = std::fs::read_dir(cache.join("realisations")).unwrap();
    let kept = kept.next().unwrap().unwrap();
    let name = kept.file_name().into_string().unwrap();
    scene.was_asked(&format!("GET /realisations/{name}"));
    let theirs = std::fs::read_to_string(kept.path()).unwrap();
    for name in [name.clone(), name.replace('!', "%21")] {
        let ours = scene.server.get(&format!("/realisations/{name}"));
        assert_eq!(ours.status, 200);
        assert_eq!(ours.text(), theirs);
    }
}
