//! `samovar doctor` names what is broken, and what mends it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::{File, Server, samovar, sample_store};

/// A directory with a key pair and room for more.
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

/// What it prints about the sample store, and whether it ends with 0.
fn doctor(words: &[&str]) -> (String, bool) {
    let mut command = samovar();
    command.args(["doctor", "--store", &sample_store()]);
    let output = command.args(words).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (text, output.status.success())
}

/// One thing is broken, and named with what mends it.
#[track_caller]
fn broken(words: &[&str], what: &str, mend: &str) {
    let (text, is_well) = doctor(words);
    assert!(!is_well, "{text}");
    let mut lines = text.lines().skip_while(|line| !line.contains(what));
    let line = lines.next().unwrap_or_default();
    assert!(line.starts_with("BROKEN "), "{what}: {text}");
    let next = lines.next().unwrap_or_default();
    assert!(
        next.starts_with("       mend: ") && next.contains(mend),
        "{text}"
    );
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_set_up_that_is_well() {
    let place = Place::new("well-1");
    let file = File::new(&format!("secret-key-files = {:?}\n", place.secret()));
    let server = Server::of(&file);
    let url = format!("http://{}", server.address());
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
        format!("ok     key: the cache signs with {}\n", place.public),
        "ok     store: /nix/store can be read\n".to_owned(),
        format!("ok     round trip: {url} serves /nix/store/"),
        format!("ok     client: it asks {url}\n"),
        "ok     client: it trusts well-1\n".to_owned(),
        "\n0 broken, ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
}

#[test]
fn broken_servers() {
    let place = Place::new("broken-1");
    let free = ["--listen", "127.0.0.1:0"];
    let with = |words: &[&str]| -> Vec<String> {
        free.iter()
            .chain(words)
            .map(|word| (*word).to_owned())
            .collect()
    };
    let check = |words: &[&str], what: &str, mend: &str| {
        let words = with(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        broken(&words, what, mend);
    };
    let nowhere = place.path("nowhere");
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let nonsense = place.write("nonsense", "no key\n");
    fs::set_permissions(&nonsense, fs::Permissions::from_mode(0o600)).unwrap();

    check(
        &["--secret-key-files", text(&nowhere)],
        "does not exist",
        "see what it says",
    );
    check(
        &["--secret-key-files", text(&nonsense)],
        "key",
        "see what it says",
    );
    let store = format!("local?root={}", text(&empty));
    check(
        &["--set", &format!("store={store}"), "--store", &store],
        "store:",
        "",
    );
    check(
        &["--listen", "192.0.2.1:5000"],
        "no address 192.0.2.1",
        "listen",
    );
    check(
        &["--listen", text(&nowhere.join("socket"))],
        "there is no directory",
        "RuntimeDirectory=",
    );
    check(
        &["--state-directory", text(&nowhere)],
        "cannot be written to",
        "state-directory",
    );
    check(
        &["--nar-cache-directory", text(&nowhere)],
        "cannot be kept",
        "nar-cache.directory",
    );
    let tls = [
        "--tls-certificate",
        text(&nonsense),
        "--tls-key",
        text(&nonsense),
    ];
    check(&tls, "TLS:", "--tls-certificate");
    check(
        &["--user", "nobody-of-that-name"],
        "user:",
        "choose another user",
    );
    check(
        &["--url", "http://127.0.0.1:1"],
        "round trip:",
        "start the server",
    );
    let (text, _) = doctor(&["--set", "priorty=1"]);
    assert!(text.contains("perhaps priority is meant"), "{text}");
}

/// A root that is not there may have led to what must not be read.
#[test]
fn roots_that_are_not_there() {
    let place = Place::new("roots-1");
    let absent = place.path("profile");
    let rule = |kind: &str| format!("policy.{kind}=[{{ roots = [{absent:?}] }}]");
    broken(
        &["--set", &rule("deny")],
        "policy: the root",
        "take it out of deny",
    );
    let (text, _) = doctor(&["--set", &rule("allow")]);
    let line = text.lines().find(|line| line.contains("policy: the root"));
    assert!(!line.unwrap().starts_with("BROKEN"), "{text}");
    fs::create_dir(&absent).unwrap();
    let (text, _) = doctor(&["--set", &rule("deny")]);
    assert!(!text.contains("policy:"), "{text}");
}

/// What may be meant so is said, and is no failure of its own.
#[test]
fn who_may_read_cannot_be_found_out() {
    let place = Place::new("access-1");
    let absent = place.path("users");
    let words = ["--access-users-file", text(&absent)];
    broken(&words, "access: the users file", "samovar password NAME");
    place.write("users", "ada:secret\n");
    broken(&words, "access: the users file", "samovar password NAME");
    let words = ["--access-networks", "10.0.0.0/99"];
    broken(&words, "access: \"10.0.0.0/99\" is no network", "access.");
}

#[test]
fn doubts() {
    let place = Place::new("doubtful-1");
    fs::set_permissions(place.secret(), fs::Permissions::from_mode(0o644)).unwrap();
    let (text, _) = doctor(&["--secret-key-files", place.secret().to_str().unwrap()]);
    assert!(text.contains("doubt  key: the secret key file"), "{text}");
    assert!(text.contains("chmod 600"), "{text}");
    let (text, _) = doctor(&[]);
    assert!(
        text.contains("doubt  key: the cache signs nothing"),
        "{text}"
    );
}

/// One that lets others in is not for that broken, nor down.
#[test]
fn a_private_server() {
    let file = File::new("access.networks = [\"192.0.2.0/24\"]\n");
    let server = Server::of(&file);
    let url = format!("http://{}", server.address());
    let (text, is_well) = doctor(&["--config", text(&file.path), "--url", &url]);
    assert!(is_well, "{text}");
    let said = format!("doubt  round trip: {url}/nix-cache-info answered 403 Forbidden");
    assert!(text.contains(&said), "{text}");
}

/// The server runs with a key that is not the configured one any more.
#[test]
fn a_server_that_signs_with_another_key() {
    let (old, new) = (Place::new("old-1"), Place::new("new-1"));
    let file = File::new(&format!("secret-key-files = {:?}\n", old.secret()));
    let server = Server::of(&file);
    let url = format!("http://{}", server.address());
    file.write(&format!("secret-key-files = {:?}\n", new.secret()));
    let words = ["--config", text(&file.path), "--url", &url];
    broken(&words, "does not sign", "send the server HUP");
    server.signal("HUP");
    server.wait_for("was read again");
    let (text, is_well) = doctor(&words);
    assert!(is_well, "{text}");
}

#[test]
fn clients_that_will_not_use_it() {
    let place = Place::new("ours-1");
    let file = File::new(&format!("secret-key-files = {:?}\n", place.secret()));
    let server = Server::of(&file);
    let url = format!("http://{}", server.address());
    let check = |conf: &str, what: &str, mend: &str| {
        let conf = place.write("nix.conf", conf);
        let (config, conf) = (text(&file.path), text(&conf));
        let words = ["--config", config, "--url", &url, "--client-config", conf];
        broken(&words, what, mend);
    };
    let asks = format!("substituters = https://cache.example.org {url}\n");
    let ours = &place.public;
    let other = Place::new("ours-1").public;
    let trusts = format!("trusted-public-keys = {ours}\n");
    check(
        &trusts,
        "it does not ask",
        &format!("extra-substituters = {url}"),
    );
    let mend = format!("extra-trusted-public-keys = {ours}");
    check(&asks, "it does not trust", &mend);
    let wrong = format!("{asks}trusted-public-keys = {other}\n");
    check(&wrong, "it trusts another key that is called ours-1", &mend);
    let off = format!("{asks}{trusts}substitute = false\n");
    check(&off, "it does not substitute", "substitute = false");
    let nowhere = place.path("nowhere");
    let words = ["--url", &url, "--client-config", text(&nowhere)];
    broken(&words, "cannot be read", "nix.conf");
}

/// What root can read, the server's user may not.
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
    assert!(text.contains("BROKEN store: "), "{text}");
    assert!(!output.status.success());
}
