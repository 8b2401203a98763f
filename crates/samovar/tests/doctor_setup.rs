//! `samovar doctor` reports each error and each warning together with a fix.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::{File, samovar, sample_store};

/// A temporary directory with a new key pair.
struct Place {
    dir: tempfile::TempDir,
    public: String,
}

impl Place {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        let public = dir.path().join("public");
        let mut command = std::process::Command::new("nix-store");
        command.args(["--generate-binary-cache-key", name]);
        let made = command.arg(&secret).arg(&public).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let public = fs::read_to_string(public).unwrap().trim().to_owned();
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
    command.args(["doctor", "--store", &sample_store()]);
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

fn text(path: &Path) -> &str {
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
    let config = text(&file.path);
    let words = [
        "--config",
        config,
        "--url",
        &url,
        "--client-config",
        text(&conf),
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
    let free = ["--listen", "127.0.0.1:0"];
    let with = |words: &[&str]| -> Vec<String> {
        free.iter()
            .chain(words)
            .map(|word| (*word).to_owned())
            .collect()
    };
    let check = |words: &[&str], what: &str, fix: &str| {
        let words = with(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        reports_error(&words, what, fix);
    };
    let nowhere = place.path("nowhere");
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let nonsense = place.write("nonsense", "no key\n");
    fs::set_permissions(&nonsense, fs::Permissions::from_mode(0o600)).unwrap();

    check(
        &["--secret-key-files", text(&nowhere)],
        "does not exist",
        "make one with `nix-store --generate-binary-cache-key",
    );
    check(
        &["--secret-key-files", text(&nonsense)],
        "key",
        "one line NAME:BASE64",
    );
    let store = format!("local?root={}", text(&empty));
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
        &["--listen", text(&nowhere.join("socket"))],
        "does not exist",
        "RuntimeDirectory=",
    );
    check(
        &["--state-directory", text(&nowhere)],
        "is not writable",
        "state-directory",
    );
    check(
        &["--nar-cache-directory", text(&nowhere)],
        "as the NAR cache",
        "nar-cache.directory",
    );
    let tls = [
        "--tls-certificate",
        text(&nonsense),
        "--tls-key",
        text(&nonsense),
    ];
    check(&tls, "TLS:", "`tls.certificate`");
    check(
        &["--user", "nobody-of-that-name"],
        "user:",
        "set another user",
    );
    check(
        &["--url", "http://127.0.0.1:1"],
        "round trip:",
        "start the server",
    );
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
        "remove it from deny",
    );
    let (text, _) = doctor(&["--set", &rule("allow")]);
    let line = text.lines().find(|line| line.contains("policy: the root"));
    assert!(!line.unwrap().starts_with("error"), "{text}");
    fs::create_dir(&absent).unwrap();
    let (text, _) = doctor(&["--set", &rule("deny")]);
    assert!(!text.contains("policy:"), "{text}");
}

#[test]
fn invalid_access_files() {
    let place = Place::new("access-1");
    let absent = place.path("users");
    let words = ["--access-users-file", text(&absent)];
    reports_error(&words, "access: the users file", "samovar password NAME");
    place.write("users", "ada:secret\n");
    reports_error(&words, "access: the users file", "samovar password NAME");
    let words = ["--access-networks", "10.0.0.0/99"];
    reports_error(
        &words,
        "access: \"10.0.0.0/99\" is not a network",
        "access.",
    );
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
    let (text, is_well) = doctor(&["--config", text(&file.path), "--url", &url]);
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
    let words = ["--config", text(&file.path), "--url", &url];
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
        let (config, conf) = (text(&file.path), text(&conf));
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
    let nowhere = place.path("nowhere");
    let words = ["--url", &url, "--client-config", text(&nowhere)];
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
    let store = testkit::nix::OwnStore::new();
    let mut command = samovar();
    command.args(["doctor", "--listen", "127.0.0.1:0", "--store"]);
    let output = command
        .arg(testkit::nix::local(store.root()))
        .output()
        .unwrap();
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
