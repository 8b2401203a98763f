//! An invalid TLS configuration is refused with the reason, and a failed renewal keeps the previous
//! configuration.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use samovar_http::tls::{ClientCertificates, TlsConfig};
use tempfile::TempDir;

struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Writes the files of a certificate for a name and of its key; returns their paths.
    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec![name.into()]).unwrap();
        let certificate = self.write(&format!("{name}.crt"), &made.cert.pem());
        let key = self.write(&format!("{name}.key"), &made.signing_key.serialize_pem());
        (certificate, key)
    }
}

/// Returns the error message of a refused configuration, with all its causes.
#[track_caller]
fn refused(chain: &Path, key: &Path) -> String {
    let error = TlsConfig::files(chain, key).unwrap_err();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[test]
fn a_certificate_with_its_key_is_loaded() {
    let files = Files::new();
    let (certificate, key) = files.pair("a.test");
    let config = TlsConfig::files(certificate, key).unwrap();
    let [facts] = config.certificates().try_into().unwrap();
    assert_eq!(facts.names, ["a.test"]);
    assert!(!facts.is_expired(SystemTime::now()));
}

#[test]
fn errors_name_the_file_and_the_problem() {
    let files = Files::new();
    let (certificate, key) = files.pair("a.test");
    let (other, _) = files.pair("b.test");
    let missing = files.path("missing");
    let noise = files.write("noise", "hello\n");
    let broken = files.write(
        "broken",
        "-----BEGIN CERTIFICATE-----\nMIIB!!!!\n-----END CERTIFICATE-----\n",
    );
    let wrong = files.write(
        "wrong",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let bad_key = files.write(
        "bad_key",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    );
    for (chain, key, place, words) in [
        (&missing, &key, &missing, "cannot be read: No such file"),
        (
            &certificate,
            &missing,
            &missing,
            "cannot be read: No such file",
        ),
        (&noise, &key, &noise, "holds no certificate"),
        (
            &certificate,
            &noise,
            &noise,
            "holds no supported private key",
        ),
        // The certificate and the key are swapped.
        (&key, &certificate, &key, "holds no certificate"),
        (&broken, &key, &broken, "is not valid PEM"),
        (&wrong, &key, &wrong, "unsupported certificate"),
        (&certificate, &bad_key, &bad_key, "unsupported private key"),
        (&other, &key, &key, "is not the key of the certificate in"),
    ] {
        let said = refused(chain, key);
        assert!(said.starts_with(&place.display().to_string()), "{said}");
        assert!(said.contains(words), "{said}, not {words}");
    }
    let nothing = TlsConfig::builder().build().unwrap_err();
    assert_eq!(nothing.to_string(), "TLS: no certificate is configured");
}

#[test]
fn errors_of_several_certificates_name_the_one() {
    let files = Files::new();
    let (certificate, key) = files.pair("a.test");
    let (other, other_key) = files.pair("b.test");
    let (nameless, nameless_key) = files.pair("192.0.2.1");
    let one = TlsConfig::builder().certificate_files(&certificate, &key);
    let check = |chain: &Path, key: &Path, words: &str| {
        let error = one.clone().certificate_files(chain, key).build();
        let error = error.unwrap_err();
        let said = error.to_string();
        assert!(said.contains(words), "{said}, not {words}");
        assert_eq!(error.certificate(), Some(1), "{said}");
    };
    let twice = format!("for a.test, as {} does", certificate.display());
    check(&certificate, &key, &twice);
    check(&nameless, &nameless_key, "without a DNS name");
    check(&other, &key, "is not the key of the certificate in");
    let good = one.certificate_files(&other, &other_key).build().unwrap();
    assert_eq!(good.certificates()[1].names, ["b.test"]);
    let first = TlsConfig::files(&nameless, &nameless_key);
    assert!(first.unwrap().certificates()[0].names.is_empty());
    let error = TlsConfig::builder().build().unwrap_err();
    assert_eq!(error.certificate(), None);
}

#[test]
fn the_file_of_authorities_is_checked() {
    let files = Files::new();
    let (certificate, key) = files.pair("a.test");
    let builder = TlsConfig::builder().certificate_files(&certificate, &key);
    let good = builder
        .clone()
        .client_authorities_file(&certificate, ClientCertificates::Required);
    assert!(good.build().is_ok());
    let bad = builder.client_authorities_file(&key, ClientCertificates::Optional);
    let error = bad.build().unwrap_err();
    assert!(
        error.to_string().contains("holds no certificate"),
        "{error}"
    );
}

#[test]
fn an_expired_certificate_is_accepted_and_reported() {
    let mut params = rcgen::CertificateParams::new(vec!["a.test".into()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 9, 9);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let builder = TlsConfig::builder()
        .certificate_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    let config = builder.build().unwrap();
    assert!(config.certificates()[0].is_expired(SystemTime::now()));
}

#[test]
fn a_failed_reload_keeps_the_old_certificate() {
    let files = Files::new();
    let (certificate, key) = files.pair("a.test");
    let config = TlsConfig::files(&certificate, &key).unwrap();
    let (other, other_key) = files.pair("b.test");

    fs::copy(&other, &certificate).unwrap();
    let error = config.reload().unwrap_err();
    assert!(error.to_string().contains("is not the key of"), "{error}");
    assert_eq!(config.certificates()[0].names, ["a.test"]);

    fs::copy(&other_key, &key).unwrap();
    config.reload().unwrap();
    assert_eq!(config.certificates()[0].names, ["b.test"]);

    let recipe = TlsConfig::builder().certificate_files(files.path("missing"), &key);
    config.replace(recipe).unwrap_err();
    assert_eq!(config.clone().certificates()[0].names, ["b.test"]);
    config.reload().unwrap();
}
