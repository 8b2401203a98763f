//! An engine is reached by TLS if its certificate is trusted, and its bucket by its host name.

mod support_engine;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use samovar_bucket::{Bucket, Fault, PutOptions, Style};
use support_engine::Engine;
use testkit::nginx::Nginx;
use testkit::process::output;

/// Makes a self-signed certificate for these names, and its key.
fn certificate(dir: &Path, names: &str) {
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    command.args([
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=engine",
        "-addext",
        names,
    ]);
    command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    command.arg("-keyout").arg(dir.join("key.pem"));
    command.arg("-out").arg(dir.join("cert.pem"));
    output(&mut command);
}

/// Starts nginx, which speaks TLS and passes requests on as they are.
fn by_tls(engine: SocketAddr, dir: &Path) -> Option<Nginx> {
    let dir = dir.display();
    Nginx::start(&format!(
        "server {{ listen 127.0.0.1:@port@ ssl; ssl_certificate {dir}/cert.pem;\n\
         ssl_certificate_key {dir}/key.pem; client_max_body_size 0;\n\
         location / {{ proxy_pass http://{engine}; proxy_http_version 1.1;\n\
         proxy_set_header Host $http_host; proxy_request_buffering off; }} }}"
    ))
}

#[test]
fn a_certificate_must_be_trusted() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    certificate(dir.path(), "subjectAltName=DNS:localhost");
    let Some(nginx) = by_tls(engine.address(), dir.path()) else {
        eprintln!("NOT TESTED: TLS; nginx is not installed");
        return;
    };
    let mut settings = engine.settings("");
    let endpoint = format!("https://localhost:{}", nginx.address().port());
    settings.endpoint = Some(endpoint);
    let error = Bucket::open(&settings).unwrap().head("a").unwrap_err();
    assert!(matches!(error.fault(), Fault::Certificate(_)), "{error:?}");
    assert!(!error.is_transient());

    settings.ca_file = Some(dir.path().join("cert.pem"));
    let bucket = Bucket::open(&settings).unwrap();
    // A body that is sent after the engine has asked for it, and one that is sent at once.
    for len in [10, 3 << 20] {
        bucket
            .put("a", &vec![7; len], &PutOptions::default())
            .unwrap();
        assert_eq!(bucket.head("a").unwrap().unwrap().len, len as u64);
    }

    // The name in the certificate counts.
    settings.endpoint = Some(format!("https://{}", nginx.address()));
    let error = Bucket::open(&settings).unwrap().head("a").unwrap_err();
    assert!(matches!(error.fault(), Fault::Certificate(_)), "{error:?}");

    for file in ["key.pem", "absent.pem"] {
        settings.ca_file = Some(dir.path().join(file));
        let error = Bucket::open(&settings).unwrap_err();
        assert!(matches!(error.fault(), Fault::CaFile { .. }), "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn the_bucket_may_be_part_of_the_host_name() {
    if Engine::name() != "s3s-fs" {
        eprintln!("NOT TESTED: names of hosts; only s3s-fs is started with a domain");
        return;
    }
    let Some(engine) = Engine::with_domain("engine.test") else {
        return;
    };
    let by_path = engine.bucket("p");
    by_path
        .put("nar/a b", b"content", &PutOptions::default())
        .unwrap();
    let port = engine.address().port();
    let mut settings = engine.settings("p");
    settings.endpoint = Some(format!("http://engine.test:{port}"));
    settings.style = Style::VirtualHosted;
    let bucket = Bucket::open(&settings).unwrap();
    let url = bucket
        .presigned_get("nar/a b", Duration::from_secs(60))
        .unwrap();
    let expected = format!("http://cache.engine.test:{port}/p/nar/a%20b?");
    assert!(url.starts_with(&expected), "{url}");
    // No name server knows the host, but curl can be told.
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--resolve"]);
    curl.arg(format!("cache.engine.test:{port}:127.0.0.1"));
    assert_eq!(output(curl.arg(&url)), "content");

    // An address has no names below it.
    settings.endpoint = Some(format!("http://127.0.0.1:{port}"));
    let error = Bucket::open(&settings).unwrap_err();
    assert!(matches!(error.fault(), Fault::Settings(_)), "{error}");
}
