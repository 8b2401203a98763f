//! Metrics count responses by protocol and outcome, and the verified files of the store.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::{OwnStore, ServerProcess, eventually, local, nix_serve, raw};

struct Watched {
    server: ServerProcess,
    admin: SocketAddr,
}

impl Watched {
    #[track_caller]
    fn start(store: &OwnStore, arguments: &[&str]) -> Self {
        let mut command = nix_serve();
        command.args(["--store", &local(store.root()), "--admin", "127.0.0.1:0"]);
        let server = ServerProcess::start(command.args(arguments));
        let line = server.wait_for("metrics and status on http://");
        let admin = line.rsplit("//").next().unwrap().parse().unwrap();
        Self { server, admin }
    }

    #[track_caller]
    fn samples(&self) -> BTreeMap<String, f64> {
        let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let samples = raw(self.admin, head.as_bytes()).text();
        let lines = samples.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    #[track_caller]
    fn comes_to(&self, sample: &str, expected: f64) {
        eventually(&format!("{sample} is {expected}"), || {
            self.samples().get(sample) == Some(&expected)
        });
    }
}

/// Responses are counted by protocol.
#[test]
fn responses_are_counted_by_protocol() {
    let store = OwnStore::new();
    let certificates = tempfile::tempdir().unwrap();
    let path = |name: &str| certificates.path().join(name).to_str().unwrap().to_owned();
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(path("certificate"), own.cert.pem()).unwrap();
    fs::write(path("key"), own.signing_key.serialize_pem()).unwrap();
    let plain = Watched::start(&store, &[]);
    let (certificate, key) = (path("certificate"), path("key"));
    let secure = Watched::start(&store, &["--ssl-cert", &certificate, "--ssl-key", &key]);
    let ask = |watched: &Watched, scheme: &str, protocol: &str| {
        let url = format!("{scheme}://{}/nix-cache-info", watched.server.addr);
        let mut curl = Command::new("curl");
        let curl = curl.args(["--insecure", "--silent", "--fail", protocol, &url]);
        assert!(curl.output().unwrap().status.success(), "{url} {protocol}");
    };
    ask(&plain, "http", "--http1.0");
    ask(&plain, "http", "--http1.1");
    ask(&plain, "http", "--http1.1");
    ask(&plain, "http", "--http2-prior-knowledge");
    ask(&secure, "https", "--http1.1");
    ask(&secure, "https", "--http2");
    ask(&secure, "https", "--http2");
    let name = |protocol: &str, tls: &str| {
        let name = "samovar_http_protocol_requests_total";
        format!("{name}{{protocol=\"http/{protocol}\",tls=\"{tls}\"}}")
    };
    for (watched, expected) in [
        (&plain, [(1.0, 0.0), (2.0, 0.0), (1.0, 0.0)]),
        (&secure, [(0.0, 0.0), (0.0, 1.0), (0.0, 2.0)]),
    ] {
        for (protocol, (without, with)) in ["1.0", "1.1", "2"].into_iter().zip(expected) {
            watched.comes_to(&name(protocol, "no"), without);
            watched.comes_to(&name(protocol, "yes"), with);
        }
    }
}

/// A response that the client aborts does not count as a server error. A response that the server
/// aborts because of damage does.
#[test]
fn aborted_responses_are_counted_by_who_aborted_them() {
    const LEN: usize = 32 << 20;
    let store = OwnStore::new();
    let left = store.add_file("left", &vec![7; LEN]);
    let cut = store.add_file("cut", &vec![7; LEN]);
    let real = store.real(&cut);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&real, vec![8; LEN]).unwrap();
    let watched = Watched::start(&store, &[]);
    let broken = |outcome: &str| {
        let labels = format!("cache=\"default\",route=\"nar\",outcome=\"{outcome}\"");
        format!("samovar_http_responses_aborted_total{{{labels}}}")
    };
    assert!(
        !watched
            .server
            .get(&watched.server.nar_url(&cut))
            .is_complete
    );
    watched.comes_to(&broken("aborted-by-server"), 1.0);
    watched.comes_to(&broken("aborted-by-client"), 0.0);
    let url = watched.server.nar_url(&left);
    let mut stream = TcpStream::connect(watched.server.addr).unwrap();
    let head = format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    watched.comes_to("samovar_transfers", 1.0);
    drop(stream);
    watched.comes_to(&broken("aborted-by-client"), 1.0);
    watched.comes_to(&broken("aborted-by-server"), 1.0);
    // Over HTTP/2 the server resets the stream, not the connection.
    let url = format!("http://{}{url}", watched.server.addr);
    let mut curl = Command::new("curl");
    curl.args(["--http2-prior-knowledge", "--silent", "--max-filesize", "9"]);
    assert!(!curl.arg(&url).output().unwrap().status.success());
    watched.comes_to(&broken("aborted-by-client"), 2.0);
    watched.comes_to(&broken("aborted-by-server"), 1.0);
}

#[test]
fn metrics_show_the_progress_of_a_scrub() {
    const LEN: usize = 300_000;
    let store = OwnStore::new();
    let paths: Vec<String> = (0..4)
        .map(|number| store.add_file(&format!("file{number}"), &vec![number; LEN]))
        .collect();
    let real = store.real(&paths[2]);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&real, vec![9; LEN]).unwrap();
    // A scrub slow enough to be observed in progress.
    let watched = Watched::start(&store, &["--scrub", "500000", "--workers", "4"]);
    let mut seen = Vec::new();
    eventually("it has ended", || {
        let samples = watched.samples();
        seen.extend(samples.get("samovar_scrub_bytes_done").copied());
        samples.get("samovar_scrub_rounds_total") == Some(&1.0)
    });
    assert!(seen.is_sorted(), "{seen:?}");
    let samples = watched.samples();
    let all = samples["samovar_scrub_bytes"];
    assert!(seen.iter().any(|len| *len > 0.0 && *len < all), "{seen:?}");
    for (sample, expected) in [
        ("samovar_scrub_paths", 4.0),
        ("samovar_scrub_paths_done", 4.0),
        ("samovar_scrub_bytes_done", all),
        ("samovar_scrub_quarantined_paths", 1.0),
        ("samovar_scrub_unreadable_paths", 0.0),
    ] {
        assert_eq!(samples[sample], expected, "{sample}");
    }
    let read = samples["samovar_scrub_read_bytes_total"];
    assert!(read > 1e6 && read <= 2.0 * all, "{read} of {all}");
    assert!(samples["samovar_catalog_load_seconds"] > 0.0);
    assert_eq!(samples["samovar_store_daemon_fallback"], 0.0);
    // There are three lanes for blocking work, one for computation, and one for TLS handshakes.
    assert_eq!(samples["samovar_workers_max"], 4.0 + 4.0 + 4.0 + 1.0 + 1.0);
}
