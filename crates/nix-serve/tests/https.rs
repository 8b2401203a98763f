//! Real clients substitute over HTTPS, with a server configured in the syntax of starman or
//! nix-serve-ng. A renewed certificate takes effect while the server runs.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::client::{Client, fails, finish, succeeds};
use support::{ServerProcess, key_pair, of_sample, output, raw, sample};

/// Certificate and key files for `localhost`.
struct Certificates {
    dir: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Use another subject than rcgen's default, or the certificates would look self-signed.
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("authority"), authority.pem()).unwrap();
        let certificates = Self { dir, authority };
        certificates.renew(1);
        certificates
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a new certificate and key to the files.
    fn renew(&self, serial: u64) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        fs::write(self.path("certificate"), certificate.pem()).unwrap();
        fs::write(self.path("key"), key.serialize_pem()).unwrap();
        let secret = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path("key"), secret).unwrap();
    }

    /// Returns the command of a server that uses these files.
    fn server(&self) -> Command {
        let mut command = of_sample();
        command
            .arg("--ssl-cert")
            .arg(self.path("certificate"))
            .arg("--ssl-key")
            .arg(self.path("key"));
        command
    }

    /// Requests `/nix-cache-info`, trusting only the test CA.
    fn curl(&self, addr: SocketAddr) -> Command {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--cacert"])
            .arg(self.path("authority"))
            .arg(format!("https://localhost:{}/nix-cache-info", addr.port()));
        command
    }

    /// Returns the serial number of the certificate that a new connection gets.
    fn shown(&self, addr: SocketAddr) -> String {
        let mut command = self.curl(addr);
        let output = finish(command.args(["-v", "--no-sessionid"]));
        assert!(output.status.success());
        let mut client = Command::new("sh");
        client.args([
            "-c",
            "openssl s_client -connect \"$0\" </dev/null 2>/dev/null \
             | openssl x509 -noout -serial",
        ]);
        support::output(client.arg(addr.to_string()))
            .trim()
            .to_owned()
    }
}

#[test]
fn a_closure_is_substituted_over_https() {
    let certificates = Certificates::new();
    let client = Client::new();
    let (secret, public) = key_pair(client.dir(), "ours-1");
    let mut command = certificates.server();
    command.env("NIX_SECRET_KEY_FILE", secret);
    let server = ServerProcess::start(&mut command);
    let url = format!("https://localhost:{}", server.addr.port());
    let top = sample("top");
    let mut realise = client.realise(&url, &public, &top);
    realise.env("NIX_SSL_CERT_FILE", certificates.path("authority"));
    assert_eq!(succeeds(&mut realise).trim(), top);
    assert!(client.real(&top).exists());

    // A client that does not trust the CA must not copy anything.
    let stranger = Client::new();
    let mut realise = stranger.realise(&url, &public, &top);
    realise.env("NIX_SSL_CERT_FILE", Certificates::new().path("authority"));
    fails(&mut realise);
    assert!(!stranger.real(&top).exists());
}

#[test]
fn every_spelling_encrypts() {
    let certificates = Certificates::new();
    for arguments in [
        &["--listen", "127.0.0.1:0"][..],
        &["--listen", "127.0.0.1:0", "--enable-ssl"],
        &["--listen", "127.0.0.1:0:ssl"],
        &[
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--listen",
            "127.0.0.1:0:ssl",
        ],
    ] {
        let mut command = certificates.server();
        let server = ServerProcess::start_listening(command.args(arguments));
        let line = server.lines().pop().unwrap();
        assert!(line.contains(" on https://127.0.0.1:"), "{line}");
        let info = output(&mut certificates.curl(server.addr));
        assert!(info.starts_with("StoreDir: "), "{info}");
        // A plain HTTP request must not get any contents.
        let clear = raw(
            server.addr,
            b"GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n\r\n",
        );
        assert_eq!(clear.status, 400);
        assert!(!clear.text().contains("StoreDir"));
    }
}

#[test]
fn only_the_listener_that_says_so_encrypts() {
    let certificates = Certificates::new();
    let mut command = certificates.server();
    command.args(["--listen", "127.0.0.1:0:ssl", "--listen", "[::1]:0"]);
    let server = ServerProcess::start_listening(&mut command);
    assert!(server.lines().join("\n").contains(" on https://127."));
    let line = server.wait_for(" on http");
    let plain = line.split(" on http://").nth(1).unwrap();
    let plain = plain.split('/').next().unwrap().parse().unwrap();
    let info = raw(
        plain,
        b"GET /nix-cache-info HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(info.status, 200);
}

#[test]
fn a_renewed_certificate_is_taken_up_on_hup() {
    let certificates = Certificates::new();
    let mut server = ServerProcess::start(&mut certificates.server());
    assert_eq!(certificates.shown(server.addr), "serial=01");
    // A handshake in progress during the reload completes with the old certificate or the new one.
    let mut open = TcpStream::connect(server.addr).unwrap();
    open.write_all(b"\x16\x03").unwrap();

    certificates.renew(2);
    server.signal("HUP");
    server.wait_for("the certificate was reloaded");
    assert_eq!(certificates.shown(server.addr), "serial=02");

    fs::write(certificates.path("certificate"), "nonsense").unwrap();
    server.signal("HUP");
    let line = server.wait_for("the certificate was not changed");
    assert!(line.contains("holds no certificate"), "{line}");
    assert_eq!(certificates.shown(server.addr), "serial=02");
    assert!(server.is_alive());
    open.set_nonblocking(true).unwrap();
    let still_open = open.read(&mut [0]).unwrap_err().kind();
    assert_eq!(still_open, std::io::ErrorKind::WouldBlock);
}

/// The key is read while the server still runs as root, even if it then serves as another user.
#[test]
fn the_key_is_read_before_rights_are_given_up() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let certificates = Certificates::new();
    let mut command = certificates.server();
    let server = ServerProcess::start(command.args(["--user", "65534"]));
    assert_eq!(certificates.shown(server.addr), "serial=01");
}

/// A server that cannot use its certificate or key does not start.
#[test]
fn what_cannot_be_encrypted_does_not_start() {
    let certificates = Certificates::new();
    certificates.renew(1);
    let refused = |arguments: &[&str]| {
        let mut command = of_sample();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        fails(&mut command)
    };
    let error = refused(&["--enable-ssl"]);
    assert!(
        error.contains("asks for TLS, which requires both"),
        "{error}"
    );
    let [certificate, key] = ["certificate", "key"].map(|name| certificates.path(name));
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
    let error = refused(&["--ssl-cert", certificate, "--ssl-key", "/nonexistent"]);
    assert!(
        error.contains("/nonexistent: cannot be read: No such file"),
        "{error}"
    );
    let error = refused(&["--ssl-cert", key, "--ssl-key", certificate]);
    assert!(error.contains("holds no certificate"), "{error}");
    let other = Certificates::new();
    let other = other.path("key");
    let error = refused(&[
        "--ssl-cert",
        certificate,
        "--ssl-key",
        other.to_str().unwrap(),
    ]);
    assert!(
        error.contains("is not the key of the certificate in"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}
