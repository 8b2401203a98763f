//! A server with several certificates gives each client the one of the name that it requests.
//! Renewed files replace all certificates or none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use support::{File, Server, ask, nix, samovar, sample};
use testkit::process::output;

/// An authority, and the certificates of a server that it has issued.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.request(
            "-subj /CN=authority -addext keyUsage=critical,keyCertSign,digitalSignature \
             -keyout ca.key -out ca",
        );
        files.issue("first", "DNS:a.test", 1);
        files.issue("second", "DNS:localhost,DNS:b.test", 2);
        files.issue("third", "DNS:*.c.test", 3);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn request(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc".split(' '));
        let arguments = arguments.split_ascii_whitespace();
        output(openssl.args(arguments).current_dir(self.0.path()));
    }

    /// Writes a certificate for these names to the file `file`, and its key to `file.key`.
    fn issue(&self, file: &str, names: &str, serial: u32) {
        self.issue_for(90, file, names, serial);
    }

    fn issue_for(&self, days: u32, file: &str, names: &str, serial: u32) {
        self.request(&format!(
            "-CA ca -CAkey ca.key -subj /CN={file} -addext subjectAltName={names} -days {days} \
             -addext basicConstraints=critical,CA:FALSE -set_serial {serial} \
             -keyout {file}.key -out {file}"
        ));
        let secret = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path(&format!("{file}.key")), secret).unwrap();
    }

    /// Writes a client's certificate, with its key in the same file.
    fn issue_client(&self) {
        self.request(
            "-CA ca -CAkey ca.key -subj /CN=builder -addext extendedKeyUsage=clientAuth \
             -addext basicConstraints=critical,CA:FALSE -keyout builder.key -out builder",
        );
    }

    /// Returns an entry of `tls.certificates`.
    fn entry(&self, file: &str) -> String {
        let key = self.path(&format!("{file}.key"));
        let file = self.path(file);
        format!("[[tls.certificates]]\ncertificate = {file:?}\nkey = {key:?}\n")
    }

    /// Returns the configuration of the first certificate as the default, and of the others.
    fn options(&self) -> String {
        let (first, key) = (self.path("first"), self.path("first.key"));
        format!(
            "admin.listen = \"127.0.0.1:0\"\ntls.certificate = {first:?}\ntls.key = {key:?}\n{}{}",
            self.entry("second"),
            self.entry("third")
        )
    }

    /// Returns the serial number of the certificate that a client with these options gets.
    fn shown(&self, port: u16, options: &str) -> u32 {
        let mut client = Command::new("sh");
        client.args([
            "-c",
            "openssl s_client -connect \"localhost:$0\" $1 </dev/null 2>/dev/null \
             | openssl x509 -noout -serial",
        ]);
        let text = output(client.arg(port.to_string()).arg(options));
        let serial = text.trim().strip_prefix("serial=").unwrap();
        u32::from_str_radix(serial, 16).unwrap()
    }

    /// Requests `/nix-cache-info` from a host of this name, trusting only the authority.
    fn curl(&self, port: u16, name: &str, options: &[&str]) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--cacert"])
            .arg(self.path("ca"));
        curl.args(["--resolve", &format!("{name}:{port}:127.0.0.1")]);
        curl.args(options).current_dir(self.0.path());
        curl.arg(format!("https://{name}:{port}/nix-cache-info"));
        curl.output().unwrap()
    }
}

fn port(server: &Server) -> u16 {
    let line = server.wait_for("on https://");
    line.rsplit(':').next().unwrap().trim().parse().unwrap()
}

/// Runs `samovar` with a configuration. Returns what it has written.
fn run(words: &[&str], config: &File) -> (String, bool) {
    let mut command = samovar();
    let done = command.args(words).arg("--config").arg(&config.path);
    let done = done.output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (String::from_utf8(text).unwrap(), done.status.success())
}

#[test]
fn the_requested_name_selects_the_certificate() {
    let files = Files::new();
    let config = File::new(&files.options());
    let server = config.serve();
    let port = port(&server);
    for (options, serial) in [
        ("-servername a.test", 1),
        ("-servername b.test", 2),
        ("-servername LOCALHOST", 2),
        ("-servername x.c.test", 3),
        ("-tls1_2 -servername x.c.test", 3),
        // One label only.
        ("-servername x.y.c.test", 1),
        ("-servername c.test", 1),
        ("-servername unknown.test", 1),
        ("-noservername", 1),
    ] {
        assert_eq!(files.shown(port, options), serial, "{options}");
    }
    for (name, is_accepted) in [
        ("a.test", true),
        ("b.test", true),
        ("x.c.test", true),
        ("unknown.test", false),
    ] {
        for version in ["--http1.1", "--http2"] {
            let done = files.curl(port, name, &[version]);
            assert_eq!(done.status.success(), is_accepted, "{name}: {done:?}");
        }
    }
}

#[test]
fn nix_substitutes_over_a_certificate_that_is_not_the_default() {
    let files = Files::new();
    let config = File::new(&files.options());
    let server = config.serve();
    let url = format!("https://localhost:{}", port(&server));
    let (client, top) = (tempfile::tempdir().unwrap(), sample("top"));
    let realise = |authority: &str| {
        let store = client.path().join(authority);
        let mut command = nix("nix-store", client.path());
        command.env("NIX_SSL_CERT_FILE", files.path(authority));
        command.arg("--store").arg(&store);
        command.args(["--realise", &top, "--option", "max-jobs", "0"]);
        command.args(["--option", "substituters", &url]);
        let done = command.output().unwrap();
        assert_eq!(
            store.join(&top[1..]).exists(),
            done.status.success(),
            "{done:?}"
        );
        done.status.success()
    };
    assert!(realise("ca"));
    // This client trusts only the default certificate, which it does not get.
    assert!(!realise("first"));
}

#[test]
fn without_a_default_the_first_entry_is_the_default() {
    let files = Files::new();
    let text = [files.entry("third"), files.entry("second")].concat();
    let config = File::new(&format!("admin.listen = []\n{text}"));
    let server = config.serve();
    let port = port(&server);
    for (options, serial) in [
        ("-noservername", 3),
        ("-servername a.test", 3),
        ("-servername b.test", 2),
    ] {
        assert_eq!(files.shown(port, options), serial, "{options}");
    }
}

#[test]
fn client_certificates_are_required_under_every_name() {
    let files = Files::new();
    files.issue_client();
    let more = format!(
        "tls.client-authorities = {:?}\ntls.client-certificates = \"required\"\n\
         access.certificates.common-names = [\"builder\"]\n{}",
        files.path("ca"),
        files.options()
    );
    let config = File::new(&more);
    let server = config.serve();
    let port = port(&server);
    for name in ["a.test", "b.test", "x.c.test"] {
        assert!(!files.curl(port, name, &[]).status.success(), "{name}");
        let done = files.curl(port, name, &["--cert", "builder", "--key", "builder.key"]);
        assert!(done.status.success(), "{name}: {done:?}");
    }
}

/// The files of one certificate are replaced, and those of another one are broken: neither takes
/// effect.
#[test]
fn a_reload_replaces_all_certificates_or_none() {
    let files = Files::new();
    let config = File::new(&files.options());
    let server = config.serve();
    let port = port(&server);
    let shown = || {
        ["a.test", "b.test", "x.c.test"]
            .map(|name| files.shown(port, &format!("-servername {name}")))
    };
    let reload = || {
        server.signal("HUP");
        server.wait_for("the 3 certificates were reloaded");
    };
    assert_eq!(shown(), [1, 2, 3]);
    files.issue("first", "DNS:a.test", 11);
    files.issue("third", "DNS:*.c.test", 13);
    reload();
    assert_eq!(shown(), [11, 2, 13]);

    files.issue("first", "DNS:a.test", 21);
    let refused = |words: &str, entry: &str| {
        server.signal("HUP");
        let line = server.wait_for("no certificate was changed");
        assert!(line.contains(words), "{line}");
        let end = format!(" (entry {entry} of `tls.certificates`); no certificate was changed");
        assert!(line.ends_with(&end), "{line}");
        assert_eq!(shown(), [11, 2, 13], "{words}");
        // `--check-config` and the doctor find the same.
        let place = format!("; correct entry {entry} of `tls.certificates`");
        let (text, is_well) = run(&["serve", "--check-config"], &config);
        assert!(
            !is_well && text.contains(words) && text.contains(&place),
            "{text}"
        );
        let (text, is_well) = run(&["doctor"], &config);
        let fix = format!("fix: correct entry {entry} of `tls.certificates`");
        assert!(
            !is_well && text.contains(words) && text.contains(&fix),
            "{text}"
        );
    };
    let third = files.path("third");
    fs::write(&third, "nonsense").unwrap();
    let said = format!("{}: holds no certificate", third.display());
    refused(&said, "2");
    files.issue("third", "DNS:d.test,DNS:b.test", 23);
    let said = format!(
        "{}: holds a certificate for b.test, as {} does: clients could get only one",
        third.display(),
        files.path("second").display()
    );
    refused(&said, "2");
    files.issue("third", "IP:127.0.0.1", 23);
    refused("holds a certificate without a DNS name", "2");
    files.issue("third", "DNS:*.c.test", 23);
    files.issue("second", "DNS:b.test", 22);
    let key = files.path("second.key");
    fs::copy(files.path("third.key"), &key).unwrap();
    let said = format!("{}: is not the key of the certificate in", key.display());
    refused(&said, "1");

    files.issue("second", "DNS:b.test", 32);
    reload();
    assert_eq!(shown(), [21, 32, 23]);
}

#[test]
fn the_expiry_of_each_certificate_is_reported() {
    let files = Files::new();
    files.issue_for(5, "second", "DNS:b.test,DNS:bb.test", 2);
    let config = File::new(&files.options());
    let server = config.serve();
    let line = server.wait_for("metrics and status on http://");
    let admin = line.rsplit("//").next().unwrap().trim().to_owned();
    let text = ask(&admin, "/metrics", "");
    let end = |name: &str| -> i64 {
        let name =
            format!("samovar_tls_certificate_expiry_timestamp_seconds{{certificate=\"{name}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&*name));
        value.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    };
    for name in ["a.test", "*.c.test"] {
        let days = (end(name) - end("b.test")) / 86_400;
        assert!((84..=86).contains(&days), "{name}: {days}");
    }
    let (text, _) = run(&["doctor"], &config);
    for finding in [
        "ok      TLS: the certificate is valid for a.test".to_owned(),
        format!(
            "warning TLS: the certificate in {:?} expires within 14 days",
            files.path("second")
        ),
        "ok      TLS: the certificate is valid for *.c.test".to_owned(),
    ] {
        assert!(text.contains(&finding), "{finding}: {text}");
    }
}
