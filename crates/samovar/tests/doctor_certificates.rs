//! `samovar doctor` diagnoses a cache with client certificates, and can send one.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{File, samovar, sample_store};
use testkit::process::output;

/// Runs `openssl req` with these arguments in a directory.
fn request(dir: &Path, arguments: &str) {
    let mut openssl = Command::new("openssl");
    openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc".split(' '));
    output(openssl.args(arguments.split(' ')).current_dir(dir));
}

/// Makes the certificate of the server, an authority, and two clients in a directory.
fn certificates(dir: &Path) {
    request(
        dir,
        "-subj /CN=server -addext subjectAltName=IP:127.0.0.1 \
         -addext basicConstraints=critical,CA:FALSE -keyout key -out cert",
    );
    request(
        dir,
        "-subj /CN=authority -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca",
    );
    for client in ["builder", "other"] {
        request(
            dir,
            &format!(
                "-CA ca -CAkey ca.key -subj /CN={client} \
                 -addext basicConstraints=critical,CA:FALSE \
                 -addext extendedKeyUsage=clientAuth -keyout {client}.key -out {client}"
            ),
        );
    }
}

#[test]
fn a_cache_with_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let path = |name: &str| dir.path().join(name);
    let config = File::new("");
    let configure = |more: &str| {
        config.write(&format!(
            "admin.listen = []\ntls.certificate = {:?}\ntls.key = {:?}\n\
             tls.client-authorities = {:?}\n{more}\n",
            path("cert"),
            path("key"),
            path("ca")
        ));
        let server = config.serve();
        let line = server.wait_for("on https://");
        let url = line.rsplit(' ').next().unwrap().trim().to_owned();
        (server, url)
    };
    let doctor = |url: &str, client: Option<&str>| {
        let mut doctor = samovar();
        doctor.env("NIX_SSL_CERT_FILE", path("cert"));
        doctor
            .args(["doctor", "--url", url, "--config"])
            .arg(&config.path);
        if let Some(client) = client {
            doctor.arg("--client-certificate").arg(path(client));
            doctor
                .arg("--client-key")
                .arg(path(&format!("{client}.key")));
        }
        let output = doctor.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (text, output.status.success())
    };
    let (server, url) = configure("access.certificates.common-names = [\"builder\"]");
    let (text, is_well) = doctor(&url, None);
    let fault = "the request had neither a login nor a client certificate";
    assert!(is_well && text.contains(fault), "{text}");
    assert!(
        text.contains("samovar doctor --client-certificate FILE"),
        "{text}"
    );
    let (text, is_well) = doctor(&url, Some("builder"));
    assert!(is_well, "{text}");
    let serves = format!("ok      round trip: {url} serves /nix/store/");
    assert!(text.contains(&serves), "{text}");
    let (text, _) = doctor(&url, Some("other"));
    assert!(
        text.contains("nor the client certificate; nothing"),
        "{text}"
    );
    drop(server);

    let (_server, url) =
        configure("tls.client-certificates = \"required\"\naccess.certificates.any = true");
    let (text, is_well) = doctor(&url, None);
    assert!(
        !is_well && text.contains("requires a client certificate"),
        "{text}"
    );
    assert!(text.contains("--client-certificate"), "{text}");
    let (text, is_well) = doctor(&url, Some("other"));
    assert!(is_well, "{text}");
    fs::write(path("builder.key"), "").unwrap();
    let (text, is_well) = doctor(&url, Some("builder"));
    assert!(
        !is_well && text.contains("holds no private key in PEM"),
        "{text}"
    );
}

/// No certificate of a cache is for the address at which the doctor reaches it.
#[test]
fn a_server_is_asked_by_a_name_of_its_certificate() {
    for (names, public, expected) in [
        ("DNS:cache.example", "", "cache.example"),
        ("DNS:*.cache.example", "", "samovar.cache.example"),
        (
            "DNS:other.example,DNS:*.cache.invalid",
            "public-url = \"https://my.cache.invalid\"",
            "my.cache.invalid",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        request(
            dir.path(),
            &format!(
                "-subj /CN=server -addext subjectAltName={names} \
                 -addext basicConstraints=critical,CA:FALSE -keyout key -out cert"
            ),
        );
        let path = |name: &str| dir.path().join(name);
        let port = testkit::free_port();
        let config = File::new("");
        let text = format!(
            "store = {:?}\nlisten = [\"127.0.0.1:{port}\"]\nadmin.listen = []\n{public}\n\
             tls.certificate = {:?}\ntls.key = {:?}\n",
            sample_store(),
            path("cert"),
            path("key")
        );
        fs::write(&config.path, text).unwrap();
        let server = config.serve();
        server.wait_for("on https://");
        let mut doctor = samovar();
        doctor.env("NIX_SSL_CERT_FILE", path("cert"));
        let done = doctor.args(["doctor", "--config"]).arg(&config.path);
        let done = done.output().unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        let serves = format!(
            "ok      round trip: at https://127.0.0.1:{port}: https://{expected}:{port} serves "
        );
        assert!(text.contains(&serves), "{text}");
        // The host of the public URL does not exist.
        assert_eq!(done.status.success(), public.is_empty(), "{text}");
    }
}
