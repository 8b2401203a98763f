//! `samovar doctor` reports each error and each warning together with a fix.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use support::{File, samovar, sample, sample_store};
use testkit::closed_port::ClosedPort;
use testkit::nix::{OwnStore, local};

/// A temporary directory with a new key pair.
struct Place {
    dir: tempfile::TempDir,
    public: String,
}

impl Place {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (secret, public) = testkit::nix::key_pair(dir.path(), name);
        fs::rename(secret, dir.path().join("secret")).unwrap();
        Self { dir, public }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn secret(&self) -> PathBuf {
        self.path("secret")
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

/// Runs `samovar doctor` on the sample store. Returns its output and whether it succeeded.
fn doctor(words: &[&str]) -> (String, bool) {
    let mut command = samovar();
    // Without a port, the server's URL is not known, and only --url makes requests.
    command.args(["doctor", "--listen", "127.0.0.1:0"]);
    if !words.contains(&"--store") {
        command.args(["--store", &sample_store()]);
    }
    let output = command.args(words).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2) {
        let has_problem = pair[0].starts_with("error ") || pair[0].starts_with("warning ");
        let has_fix = pair[1].starts_with("        fix: ") && !pair[1].contains("see the message");
        assert!(has_fix || !has_problem, "{pair:?}");
    }
    (text, output.status.success())
}

/// Checks that `samovar doctor` reports an error with its fix.
#[track_caller]
fn reports_error(words: &[&str], what: &str, fix: &str) {
    let (text, is_well) = doctor(words);
    assert!(!is_well, "{text}");
    let mut lines = text.lines().skip_while(|line| !line.contains(what));
    let line = lines.next().unwrap_or_default();
    assert!(line.starts_with("error   "), "{what}: {text}");
    let next = lines.next().unwrap_or_default();
    assert!(
        next.starts_with("        fix: ") && next.contains(fix),
        "{text}"
    );
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_correct_set_up() {
    let place = Place::new("well-1");
    let file = File::new(&format!("secret-key-files = {:?}\n", place.secret()));
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    let conf = format!(
        "extra-substituters = {url}/\nextra-trusted-public-keys = {}\n",
        place.public
    );
    let conf = place.write("nix.conf", &conf);
    let config = text_of(&file.path);
    let words = [
        "--config",
        config,
        "--url",
        &url,
        "--client-config",
        text_of(&conf),
    ];
    let (text, is_well) = doctor(&words);
    assert!(is_well, "{text}");
    for part in [
        format!("ok      key: the cache signs with {}\n", place.public),
        "ok      store: /nix/store is readable\n".to_owned(),
        format!("ok      round trip: {url} serves /nix/store/"),
        format!("ok      client: uses {url}\n"),
        "ok      client: trusts well-1\n".to_owned(),
        "\n0 errors, ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
}

#[test]
fn server_errors() {
    let place = Place::new("broken-1");
    let check = reports_error;
    let nowhere = place.path("nowhere");
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let nonsense = place.write("nonsense", "no key\n");
    fs::set_permissions(&nonsense, fs::Permissions::from_mode(0o600)).unwrap();

    check(
        &["--secret-key-files", text_of(&nowhere)],
        "does not exist",
        "make one with `nix-store --store dummy:// --generate-binary-cache-key",
    );
    check(
        &["--secret-key-files", text_of(&nonsense)],
        "holds no Nix secret key, which is one line NAME:BASE64",
        "name the file of the secret key, or make a new one with `nix-store",
    );
    let store = format!("local?root={}", text_of(&empty));
    check(
        &["--set", &format!("store={store}"), "--store", &store],
        "store:",
        "set the option `store`",
    );
    check(
        &["--listen", "192.0.2.1:5000"],
        "no address 192.0.2.1",
        "listen",
    );
    check(
        &["--listen", text_of(&nowhere.join("socket"))],
        "does not exist",
        "RuntimeDirectory=",
    );
    check(
        &["--state-directory", text_of(&nowhere)],
        "is not writable",
        "state-directory",
    );
    check(
        &["--nar-cache-directory", text_of(&nowhere)],
        "as the NAR cache",
        "nar-cache.directory",
    );
    let tls = [
        "--tls-certificate",
        text_of(&nonsense),
        "--tls-key",
        text_of(&nonsense),
    ];
    check(&tls, "TLS:", "`tls.certificate`");
    check(
        &["--user", "nobody-of-that-name"],
        "user:",
        "set another user",
    );
    let closed = ClosedPort::new();
    check(
        &["--url", &format!("http://{}", closed.addr())],
        "round trip:",
        "start the server",
    );
    let (text, _) = doctor(&["--url", "127.0.0.1:5000"]);
    assert!(
        text.contains("does not begin with http:// or https://"),
        "{text}"
    );
    assert!(!text.contains("start the server"), "{text}");
    let (text, _) = doctor(&["--set", "priorty=1"]);
    assert!(text.contains("did you mean `priority`?"), "{text}");
}

/// A missing root in `deny` is an error, because the denied paths are then unknown.
#[test]
fn missing_roots() {
    let place = Place::new("roots-1");
    let absent = place.path("profile");
    let rule = |kind: &str| format!("policy.{kind}=[{{ roots = [{absent:?}] }}]");
    reports_error(
        &["--set", &rule("deny")],
        "policy: the root",
        "or correct policy.deny",
    );
    let (text, _) = doctor(&["--set", &rule("allow")]);
    let line = text.lines().find(|line| line.contains("policy: the root"));
    assert!(!line.unwrap().starts_with("error"), "{text}");
    fs::create_dir(&absent).unwrap();
    let (text, _) = doctor(&["--set", &rule("deny")]);
    assert!(!text.contains("policy:"), "{text}");
}

/// A root in `allow` that leads to no path is a typo, or will exist later: a warning when the
/// configuration is checked, at the start and at a reload.
#[test]
fn roots_that_lead_to_no_path_are_reported() {
    let place = Place::new("typos-1");
    let (absent, dangling) = (place.path("absent"), place.path("dangling"));
    symlink(place.path("profile-1-link"), &dangling).unwrap();
    let unknown = format!("/nix/store/{}-unknown", "z".repeat(32));
    let allow = |roots: &str| format!("policy.allow = [{{ roots = [{roots}] }}]\n");
    let file = File::new(&allow(&format!("{absent:?}, {dangling:?}, {unknown:?}")));
    let missing = |root: &Path| {
        format!(
            "warning: the root {root:?} in policy.allow is missing: it adds no paths to /; create \
             {root:?}, or correct policy.allow"
        )
    };
    let not_in_store = format!(
        "warning: the root {unknown:?} in policy.allow leads to {}-unknown, which is not in the \
         store: it adds no paths to /",
        "z".repeat(32)
    );
    let expected = [missing(&absent), missing(&dangling), not_in_store];

    let mut check = samovar();
    check.args(["serve", "--check-config", "--config"]);
    let output = check.arg(&file.path).output().unwrap();
    assert!(output.status.success());
    let checked = String::from_utf8(output.stderr).unwrap();
    let server = file.serve();
    server.wait_for_address();
    for line in &expected {
        assert!(checked.contains(line), "{line}: {checked}");
        assert_eq!(server.count(line), 1, "{line}");
    }
    let (text, _) = doctor(&["--config", text_of(&file.path)]);
    assert!(text.contains("warning policy: the root"), "{text}");

    file.write(&allow(&format!("{:?}", sample("fixed"))));
    server.signal("HUP");
    server.wait_for("was reloaded");
    file.write(&allow(&format!("{absent:?}")));
    server.signal("HUP");
    server.wait_for("was reloaded");
    assert_eq!(server.count(&expected[0]), 2);
    assert_eq!(server.count(&expected[1]), 1);
}

/// The example of several caches in the book: each cache has its own key, and its policy may deny
/// the newest path of the store.
#[test]
fn each_cache_is_checked_with_its_key_and_its_policy() {
    let (main, team) = (Place::new("main-1"), Place::new("team-1"));
    let file = File::new(&format!(
        "admin.listen = []\n\
         [caches.main]\nprefix = \"/\"\nsecret-key-files = {:?}\n\
         [caches.team-a]\nsecret-key-files = {:?}\npolicy.allow = [{{ names = [\"fixed\"] }}]\n",
        main.secret(),
        team.secret(),
    ));
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    let newest = format!("ok      round trip: {url} serves /nix/store/");
    let fixed = format!(
        "ok      round trip: {url}/team-a serves {}\n",
        sample("fixed")
    );
    let config = text_of(&file.path);
    let (text, is_well) = doctor(&["--config", config, "--url", &url]);
    assert!(
        is_well && text.contains(&newest) && text.contains(&fixed),
        "{text}"
    );
    // The URL of one cache.
    let team_url = format!("{url}/team-a");
    let (text, is_well) = doctor(&["--config", config, "--url", &team_url]);
    assert!(
        is_well && !text.contains(&newest) && text.contains(&fixed),
        "{text}"
    );

    // A client uses one of the caches.
    let conf = |key: &str| {
        let text = format!("substituters = {team_url}\ntrusted-public-keys = {key}\n");
        main.write("nix.conf", &text)
    };
    let words = |conf: &Path| {
        let words = ["--config", config, "--url", &url, "--client-config"];
        let words = words.iter().copied().chain([text_of(conf)]);
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let run = |words: Vec<String>| doctor(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let (text, is_well) = run(words(&conf(&team.public)));
    assert!(is_well && text.contains("client: trusts team-1"), "{text}");
    let (text, is_well) = run(words(&conf(&main.public)));
    let wrong = format!("error   client: does not trust {}", team.public);
    assert!(!is_well && text.contains(&wrong), "{text}");

    // The server lacks a cache that the configuration has.
    file.write(&format!(
        "admin.listen = []\n[caches.main]\nprefix = \"/\"\nsecret-key-files = {:?}\n\
         [caches.team-b]\n",
        main.secret()
    ));
    let words = ["--config", config, "--url", &url];
    reports_error(&words, &format!("{url}/team-b"), "--url");
}

/// Clients use the public URL, which leads through a proxy.
#[test]
fn public_urls_are_checked_and_expected_of_clients() {
    let place = Place::new("public-1");
    let file = File::new(&format!("secret-key-files = {:?}\n", place.secret()));
    let server = file.serve();
    let address = server.wait_for_address();
    let public = format!("http://localhost:{}", address.port());
    let with = |public: &str| {
        file.write(&format!(
            "secret-key-files = {:?}\n[caches.a]\nprefix = \"/\"\npublic-url = {public:?}\n",
            place.secret()
        ));
    };
    with(&public);
    let conf = format!(
        "substituters = {public}\ntrusted-public-keys = {}\n",
        place.public
    );
    let conf = place.write("nix.conf", &conf);
    let words = [
        "--config",
        text_of(&file.path),
        "--client-config",
        text_of(&conf),
    ];
    let (text, is_well) = doctor(&words);
    assert!(is_well, "{text}");
    let serves = format!("ok      round trip: {public} serves /nix/store/");
    assert!(text.contains(&serves), "{text}");
    assert!(text.contains(&format!("client: uses {public}\n")), "{text}");

    // This machine may be unable to reach the proxy.
    let closed = ClosedPort::new();
    with(&format!("http://{}", closed.addr()));
    let (text, _) = doctor(&words[..2]);
    let said = format!(
        "warning round trip: http://{} cannot be reached (connection refused)\n        fix: check \
         public-url",
        closed.addr()
    );
    assert!(text.contains(&said), "{text}");
}

/// A path whose narinfo is served and whose NAR is not.
#[test]
fn a_nar_that_is_not_served() {
    let store = OwnStore::new();
    let path = store.add_file("path", &vec![b'x'; 100_000]);
    let uri = local(store.root());
    let server = testkit::process::Process::spawn(samovar().args([
        "serve",
        "--store",
        &uri,
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--gc-lease",
        "0",
    ]));
    let url = format!("http://{}", server.wait_for_address());
    let words = ["--store", &uri, "--url", &url];
    let (text, is_well) = doctor(&words);
    assert!(is_well, "{text}");
    fs::remove_file(store.real(&path)).unwrap();
    reports_error(&words, &path, "in the log of the server");
}

/// Nix locks a database without a WAL by files of its own, and the server has to do the same.
#[test]
fn the_journal_of_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let uri = local(&root);
    let file = dir.path().join("file");
    fs::write(&file, "file").unwrap();
    let run = |wal: &str| {
        let mut add = testkit::nix::nix("nix-store", dir.path());
        add.args(["--store", &uri, "--option", "use-sqlite-wal", wal, "--add"]);
        testkit::process::output(add.arg(&file));
    };
    let check = |conf: &str, expected: &str| {
        let mut command = samovar();
        command.args(["doctor", "--listen", "127.0.0.1:0", "--store", &uri]);
        let output = command.env("NIX_CONFIG", conf).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(expected), "{text}");
    };
    run("false");
    check("", "warning store: its database is not in WAL mode: if Nix");
    let off = "use-sqlite-wal = false";
    check(
        off,
        "ok      store: its database is not in WAL mode, as use-sqlite-wal",
    );
    run("true");
    check("", "ok      store: its database is in WAL mode\n");
}

/// Paths that the keys need not sign are no error.
#[test]
fn a_cache_that_does_not_sign_every_path() {
    let place = Place::new("some-1");
    let file = File::new(&format!(
        "signing.sign = \"none\"\nsecret-key-files = {:?}\n",
        place.secret()
    ));
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    let (text, is_well) = doctor(&["--config", text_of(&file.path), "--url", &url]);
    assert!(is_well, "{text}");
}

#[test]
fn invalid_access_files() {
    let place = Place::new("access-1");
    let absent = place.path("users");
    let words = ["--access-users-file", text_of(&absent)];
    reports_error(&words, "access: the users file", "samovar password NAME");
    place.write("users", "ada:secret\n");
    reports_error(&words, "access: the users file", "samovar password NAME");
}

#[test]
fn warnings_are_no_failure() {
    let place = Place::new("doubtful-1");
    fs::set_permissions(place.secret(), fs::Permissions::from_mode(0o644)).unwrap();
    let (text, _) = doctor(&["--secret-key-files", place.secret().to_str().unwrap()]);
    assert!(text.contains("warning key: the secret key file"), "{text}");
    assert!(text.contains("chmod 600"), "{text}");
    let (text, _) = doctor(&[]);
    assert!(
        text.contains("warning key: the cache has no signing key"),
        "{text}"
    );
}

/// A private server causes a warning, not an error.
#[test]
fn a_private_server() {
    let file = File::new("access.networks = [\"192.0.2.0/24\"]\n");
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    let (text, is_well) = doctor(&["--config", text_of(&file.path), "--url", &url]);
    assert!(is_well, "{text}");
    let said = format!("warning round trip: {url}/nix-cache-info answered 403 Forbidden");
    assert!(text.contains(&said), "{text}");
}

/// A server that still uses an old key, which the configuration no longer names, is an error.
#[test]
fn a_server_that_signs_with_another_key() {
    let (old, new) = (Place::new("old-1"), Place::new("new-1"));
    let file = File::new(&format!("secret-key-files = {:?}\n", old.secret()));
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    file.write(&format!("secret-key-files = {:?}\n", new.secret()));
    let words = ["--config", text_of(&file.path), "--url", &url];
    reports_error(&words, "does not sign", "send HUP to the server");
    server.signal("HUP");
    server.wait_for("was reloaded");
    let (text, is_well) = doctor(&words);
    assert!(is_well, "{text}");
}

#[test]
fn client_errors() {
    let place = Place::new("ours-1");
    let file = File::new(&format!("secret-key-files = {:?}\n", place.secret()));
    let server = file.serve();
    let url = format!("http://{}", server.wait_for_address());
    let check = |conf: &str, what: &str, fix: &str| {
        let conf = place.write("nix.conf", conf);
        let (config, conf) = (text_of(&file.path), text_of(&conf));
        let words = ["--config", config, "--url", &url, "--client-config", conf];
        reports_error(&words, what, fix);
    };
    let asks = format!("substituters = https://cache.example.org {url}\n");
    let ours = &place.public;
    let other = Place::new("ours-1").public;
    let trusts = format!("trusted-public-keys = {ours}\n");
    check(
        &trusts,
        "does not use",
        &format!("extra-substituters = {url}"),
    );
    let fix = format!("extra-trusted-public-keys = {ours}");
    check(&asks, "does not trust", &fix);
    let wrong = format!("{asks}trusted-public-keys = {other}\n");
    check(&wrong, "trusts another key with the name ours-1", &fix);
    let off = format!("{asks}{trusts}substitute = false\n");
    check(&off, "substitution is disabled", "substitute = false");
    // Nix fails on a missing file, unless it is included by !include.
    place.write(
        "second.conf",
        "include missing.conf\n!include absent.conf\n",
    );
    let fault = format!("second.conf\" includes {:?}", place.path("missing.conf"));
    check("!include second.conf\n", &fault, "write !include");
    let nowhere = place.path("nowhere");
    let words = ["--url", &url, "--client-config", text_of(&nowhere)];
    reports_error(&words, "cannot read", "nix.conf");
}

/// A store that root can read, but not the server's user, is an error.
#[test]
fn a_store_that_the_servers_user_cannot_read() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let copied = std::process::Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/sample/nix/var"))
        .arg(&root)
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = samovar();
    let store = format!("local?store=/nix/store&state={}/nix", root.display());
    command.args(["doctor", "--user", "nobody", "--listen", "127.0.0.1:0"]);
    let output = command.args(["--store", &store]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("error   store: "), "{text}");
    assert!(!output.status.success());
}

/// The socket in the warning is that of the configured store, which may have a daemon of its own.
#[test]
fn the_daemon_of_the_configured_store_is_checked() {
    let store = OwnStore::new();
    let mut command = samovar();
    command.args(["doctor", "--listen", "127.0.0.1:0", "--store"]);
    let output = command.arg(local(store.root())).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("warning daemon: "));
    let socket = format!(
        "{}/nix/var/nix/daemon-socket/socket",
        store.root().display()
    );
    assert!(line.is_some_and(|line| line.contains(&socket)), "{text}");
}
