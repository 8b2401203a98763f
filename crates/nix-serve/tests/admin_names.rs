//! A web page of another site whose name resolves to the server (DNS rebinding) cannot read metrics
//! or status in an operator's browser. Monitoring systems may ask by any name for the metrics.

mod support;

use std::net::SocketAddr;

use support::{ServerProcess, of_sample, raw};

/// What every browser sends with every request, and a web page cannot leave out.
const BROWSER: &str = "Accept-Language: en\r\n";

#[test]
fn browsers_read_metrics_and_status_by_own_names_only() {
    let mut command = of_sample();
    let server = ServerProcess::start(command.args(["--admin", "127.0.0.1:0"]));
    let line = server.wait_for("metrics and status on http://");
    let admin: SocketAddr = line.rsplit("//").next().unwrap().parse().unwrap();
    let own = ["localhost".to_owned(), admin.to_string()];
    let foreign = [
        "evil.example".to_owned(),
        "localhost.evil.example".to_owned(),
    ];
    let status = |path: &str, host: &str, fields: &str| {
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
        raw(admin, head.as_bytes()).status
    };
    for path in ["/metrics", "/status.json", "/status"] {
        for host in &own {
            assert_eq!(status(path, host, BROWSER), 200, "{path} {host}");
            let fields = format!("{BROWSER}Origin: http://{host}\r\n");
            assert_eq!(status(path, host, &fields), 200, "{path} {host}");
            let fields = format!("{BROWSER}Origin: http://evil.example\r\n");
            assert_eq!(status(path, host, &fields), 403, "{path} {host}");
        }
        for host in &foreign {
            assert_eq!(status(path, host, BROWSER), 403, "{path} {host}");
            // A page may set the field, but not remove it.
            assert_eq!(status(path, host, "Accept-Language:\r\n"), 403, "{path}");
            let expected = if path == "/metrics" { 200 } else { 403 };
            assert_eq!(status(path, host, ""), expected, "{path} {host}");
        }
    }
    // These tell nothing about paths or clients.
    for path in ["/healthz", "/readyz", "/version"] {
        assert_eq!(status(path, "evil.example", BROWSER), 200, "{path}");
    }
}
