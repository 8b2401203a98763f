//! Start, `--check-config` and `samovar doctor` report files that the server's user cannot read,
//! and secrets that everybody can read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_users;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{File, ask, samovar, secret_file, user};
use support_users::has_users;
use testkit::process::output;

/// A directory with a certificate and its key.
struct Certificate(tempfile::TempDir);

impl Certificate {
    /// Makes a certificate of X.509 version 3 that is valid for some days.
    fn new(days: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args("req -x509 -newkey rsa:2048 -noenc -subj /CN=a -keyout key".split(' '));
        output(
            openssl
                .args(["-out", "cert", "-days", days])
                .current_dir(dir.path()),
        );
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self) -> String {
        let (certificate, key) = (self.path("cert"), self.path("key"));
        format!("tls.certificate = {certificate:?}\ntls.key = {key:?}\n")
    }
}

fn set_mode(file: &Path, mode: u32) {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

fn run(words: &[&str], config: &File) -> (String, Output) {
    let mut command = samovar();
    let output = command.args(words).arg("--config").arg(&config.path);
    let output = output.output().unwrap();
    let text = [&*output.stdout, &*output.stderr].concat();
    (String::from_utf8(text).unwrap(), output)
}

const CHECK: [&str; 2] = ["serve", "--check-config"];

/// Root reads these files at the start, but a reload reads them as the user of the server.
#[test]
fn files_that_the_user_of_the_server_cannot_read() {
    if !has_users() {
        return;
    }
    let certificate = Certificate::new("90");
    set_mode(&certificate.path("key"), 0o600);
    let dir = certificate.0.path();
    let (secret, _) = testkit::nix::key_pair(dir, "k-1");
    let users = secret_file(dir, "users", &user("ada", "x"));
    let log = dir.join("access.log");
    fs::write(&log, "").unwrap();
    let config = File::new(&format!(
        "user = \"nobody\"\nadmin.listen = []\nlog.access = {log:?}\n\
         secret-key-files = {secret:?}\naccess.users-file = {users:?}\n{}",
        certificate.options()
    ));
    for directory in [dir, config.path.parent().unwrap()] {
        set_mode(directory, 0o755);
    }
    set_mode(&config.path, 0o600);
    let expected = [
        ("secret key file", &secret),
        ("users file", &users),
        ("TLS key", &certificate.path("key")),
        ("configuration file", &config.path),
    ];
    let expected = expected.map(|(what, file)| {
        format!("the user \"nobody\" cannot read the {what} {file:?}, so that reloads")
    });
    let server = config.serve();
    server.wait_for("on https://");
    let (checked, outcome) = run(&CHECK, &config);
    assert!(outcome.status.success(), "{checked}");
    let (diagnosed, outcome) = run(&["doctor"], &config);
    assert!(!outcome.status.success(), "{diagnosed}");
    let logged = server.terminate().join("\n");
    let old =
        format!("the user \"nobody\" cannot write to the access log {log:?}, so that reloads");
    for (text, kind) in [
        (&logged, "warning: "),
        (&checked, "warning: "),
        (&diagnosed, "warning user: "),
    ] {
        assert!(text.contains(&format!("{kind}{old}")), "{text}");
    }
    for text in &expected {
        assert!(
            logged.contains(&format!("warning: {text}")),
            "{text}: {logged}"
        );
        assert!(
            checked.contains(&format!("warning: {text}")),
            "{text}: {checked}"
        );
        assert!(
            diagnosed.contains(&format!("error   user: {text}")),
            "{text}: {diagnosed}"
        );
    }
    // The certificate is public.
    assert!(
        !diagnosed.contains("cannot read the TLS certificate"),
        "{diagnosed}"
    );
    let key = certificate.path("key");
    for file in [&secret, &users, &key, &config.path, &log] {
        output(Command::new("chown").arg("nobody").arg(file));
    }
    for (words, good) in [(&CHECK[..], true), (&["doctor"], false)] {
        let (text, _) = run(words, &config);
        assert!(!text.contains("so that reloads"), "{good} {text}");
    }
}

#[test]
fn a_key_of_tls_that_everybody_can_read() {
    let certificate = Certificate::new("90");
    set_mode(&certificate.path("key"), 0o644);
    let config = File::new(&certificate.options());
    let (text, _) = run(&["doctor"], &config);
    let key = certificate.path("key");
    let fault = format!("warning TLS: the TLS key {key:?} is readable by all users\n");
    assert!(text.contains(&fault), "{text}");
    assert!(text.contains("fix: run `chmod o-rwx` on it\n"), "{text}");
}

/// The fault comes first, then the cure of this fault.
#[test]
fn the_cure_is_that_of_the_fault() {
    let certificate = Certificate::new("90");
    let (cert, key) = (certificate.path("cert"), certificate.path("key"));
    let config = File::new(&certificate.options());
    let check = |fault: &str, fix: &str| {
        let (text, _) = run(&CHECK, &config);
        let message = format!("{fault}; {fix}");
        assert!(text.contains(&message), "{message}: {text}");
        let (text, _) = run(&["doctor"], &config);
        let finding = format!("{fault}\n        fix: {fix}");
        assert!(text.contains(&finding), "{finding}: {text}");
    };
    let moved = certificate.path("moved");
    fs::rename(&key, &moved).unwrap();
    check(
        &format!(
            "{}: cannot be read: No such file or directory (os error 2)",
            key.display()
        ),
        "correct its path in `tls.certificate` or `tls.key`",
    );
    fs::rename(&moved, &key).unwrap();
    // Without extensions, OpenSSL makes a certificate of version 1.
    let mut openssl = Command::new("openssl");
    openssl.args("req -new -key key -subj /CN=a -out request".split(' '));
    output(openssl.current_dir(certificate.0.path()));
    let mut openssl = Command::new("openssl");
    openssl.args("x509 -req -in request -signkey key -out cert".split(' '));
    output(openssl.current_dir(certificate.0.path()));
    let (text, _) = run(&CHECK, &config);
    let fault = format!("{}: holds a certificate of X.509 version 1", cert.display());
    assert!(text.contains(&fault), "{text}");
    let users = certificate.path("users");
    config.write(&format!("access.users-file = {users:?}\n"));
    check(
        &format!("the users file {users:?} cannot be read: No such file or directory (os error 2)"),
        "correct its path in access.users-file; `samovar password NAME` prints lines",
    );
}

/// The metric is that of the certificate in use, also after it was renewed.
#[test]
fn the_expiry_of_the_certificate_is_a_metric() {
    let certificate = Certificate::new("90");
    let config = File::new(&format!(
        "admin.listen = \"127.0.0.1:0\"\n{}",
        certificate.options()
    ));
    let server = config.serve();
    let line = server.wait_for("metrics and status on http://");
    let admin = line.rsplit("//").next().unwrap().trim().to_owned();
    let expiry = || -> u64 {
        let text = ask(&admin, "/metrics", "");
        let name = "samovar_tls_certificate_expiry_timestamp_seconds{certificate=\"\"} ";
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    };
    let before = expiry();
    let renewed = Certificate::new("190");
    for name in ["cert", "key"] {
        fs::copy(renewed.path(name), certificate.path(name)).unwrap();
    }
    server.signal("HUP");
    testkit::eventually("the metric is that of the new certificate", || {
        expiry() > before + 99 * 86_400
    });
}

/// The address of the proxy or of the server is what clients send their passwords to.
#[test]
fn passwords_over_plain_http() {
    let certificate = Certificate::new("90");
    let users = secret_file(certificate.0.path(), "users", &user("ada", "x"));
    let warning = "passwords are sent unencrypted to 0.0.0.0, which other networks may reach";
    let config = File::new("");
    let listen = |address: &str, more: &str| {
        let text = format!("listen = {address:?}\naccess.users-file = {users:?}\n{more}");
        let store = format!("store = {:?}\n", support::sample_store());
        fs::write(&config.path, store + &text).unwrap();
        let (checked, _) = run(&CHECK, &config);
        let (diagnosed, _) = run(&["doctor"], &config);
        let is_found = checked.contains(&format!("warning: {warning}; set `tls.certificate`"));
        let finding = format!("warning listen: {warning}\n        fix: set `tls.certificate`");
        assert_eq!(
            diagnosed.contains(&finding),
            is_found,
            "{checked}{diagnosed}"
        );
        is_found
    };
    assert!(listen("0.0.0.0:0", "admin.listen = []\n"));
    let server = config.serve();
    server.wait_for(warning);
    drop(server);
    assert!(!listen("127.0.0.1:0", ""));
    assert!(!listen("0.0.0.0:0", &certificate.options()));
    assert!(!listen(
        "0.0.0.0:0",
        "access.trusted-proxies = [\"192.0.2.2\"]\n"
    ));
}

/// A token is worth as much as a password. It is not sent to this address.
#[test]
fn a_token_file_that_everybody_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let token = secret_file(dir.path(), "token", "smv1_x");
    let push = |mode| {
        set_mode(&token, mode);
        let mut command = samovar();
        command.args(["push", "--token-file"]).arg(&token);
        command.args(["--store", &support::sample_store(), "http://192.0.2.1/"]);
        let run = command.arg(support::sample("fixed")).output();
        String::from_utf8(run.unwrap().stderr).unwrap()
    };
    let warning = format!("warning: the token file {token:?} is readable by all users");
    assert!(push(0o644).contains(&warning), "{}", push(0o644));
    assert!(!push(0o640).contains(&warning));
}
