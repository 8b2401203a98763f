//! Metrics and status count the requests of each cache of a server, in a number of series that the
//! configuration bounds.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::Value;
use support::{File, Server, hash, samovar, sample, secret_file, serve, status, token};
use testkit::eventually;
use testkit::http1::exchange;
use testkit::process::output;

const ABSENT: &str = "/00000000000000000000000000000000.narinfo";

/// Returns the address of a server's admin listener.
fn admin_of(server: &Server) -> SocketAddr {
    let line = server.wait_for("metrics and status on http://");
    let address = line.rsplit("//").next().expect("has an address");
    address.trim().parse().expect("is an address")
}

/// Sends a request to an admin listener. Returns the text of the response.
fn admin(address: SocketAddr, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let response = exchange(address, head);
    assert_eq!(response.status, 200, "{path}");
    response.text()
}

/// Returns the values of all samples, by name and labels.
fn samples(address: SocketAddr) -> BTreeMap<String, f64> {
    let text = admin(address, "/metrics");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    lines
        .map(|line| sample(line).expect("is a sample"))
        .collect()
}

/// Returns the values of the label `cache` of the metrics of requests.
fn labels(samples: &BTreeMap<String, f64>) -> BTreeSet<&str> {
    let is_of_requests =
        |name: &str| name.starts_with("samovar_http_") || name.starts_with("samovar_narinfo_");
    let of_requests = samples.keys().filter(|sample| is_of_requests(sample));
    of_requests
        .filter_map(|sample| sample.split("cache=\"").nth(1)?.split('"').next())
        .collect()
}

fn served(status: &Value, name: &str) -> Value {
    let caches = status["served_caches"].as_array().expect("is a list");
    let found = caches.iter().find(|cache| cache["name"] == name);
    found.expect("the cache is listed")["totals"].clone()
}

#[test]
fn requests_are_counted_by_cache_across_reloads() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (line, _) = token("ci");
    let tokens = secret_file(dir.path(), "tokens", &line);
    let head = "admin.listen = \"127.0.0.1:0\"\n[caches.open]\nprefix = \"/open\"\n";
    let closed = format!("[caches.closed]\naccess.tokens-file = {tokens:?}\n");
    let file = File::new(&format!("{head}[caches.team]\n{closed}"));
    let (server, address) = serve(&file);
    let admin_address = admin_of(&server);
    let narinfo = format!("/{}.narinfo", hash(&sample("built")));
    for (prefix, target, expected, count) in [
        ("/open", &*narinfo, 200, 3),
        ("/open", ABSENT, 404, 1),
        ("/team", &narinfo, 200, 2),
        ("/team", "/nix-cache-info", 200, 1),
        ("/closed", &narinfo, 401, 4),
        // Below no cache.
        ("", ABSENT, 404, 5),
    ] {
        for _ in 0..count {
            let url = format!("{prefix}{target}");
            assert_eq!(status(&address, &url, ""), expected, "{url}");
        }
    }
    let request = |cache: &str, route: &str, status: &str| {
        let labels = format!("route=\"{route}\",method=\"GET\",status=\"{status}\"");
        format!("samovar_http_requests_total{{{cache}{labels}}}")
    };
    let of_cache = |name: &str, cache: &str| format!("samovar_{name}_total{{cache=\"{cache}\"}}");
    let expected = [
        (request("cache=\"open\",", "narinfo", "2xx"), 3.0),
        (request("cache=\"open\",", "narinfo", "4xx"), 1.0),
        (request("cache=\"team\",", "cache_info", "2xx"), 1.0),
        (request("cache=\"closed\",", "narinfo", "4xx"), 4.0),
        (request("", "narinfo", "4xx"), 5.0),
        (of_cache("narinfo_hits", "open"), 3.0),
        (of_cache("narinfo_misses", "open"), 1.0),
        (of_cache("narinfo_hits", "team"), 2.0),
        (of_cache("narinfo_misses", "team"), 0.0),
        (of_cache("narinfo_hits", "closed"), 0.0),
        (of_cache("http_requests_refused", "open"), 0.0),
        (of_cache("http_requests_refused", "closed"), 4.0),
    ];
    // A response is counted after its last byte, which the client may have read a moment earlier.
    eventually("all requests are counted", || {
        let samples = samples(admin_address);
        let has = |(name, value): &(String, f64)| samples.get(name) == Some(value);
        expected.iter().all(has)
    });
    let before = samples(admin_address);
    assert_eq!(labels(&before), BTreeSet::from(["closed", "open", "team"]));
    let sent = "samovar_http_response_body_bytes_total{cache=\"team\",route=\"narinfo\",\
                outcome=\"complete\"}";
    assert!(before[sent] > 100.0, "{before:#?}");
    promtool_accepts(&admin(admin_address, "/metrics"));

    let json: Value = serde_json::from_str(&admin(admin_address, "/status.json")).expect("is JSON");
    let open = served(&json, "open");
    assert_eq!(
        (&open["hit_count"], &open["miss_count"]),
        (&3.into(), &1.into())
    );
    assert_eq!(served(&json, "closed")["refused_count"], 4);
    assert_eq!(json["totals"]["request_count"], 16);
    let text = output(samovar().args(["status", &format!("http://{admin_address}")]));
    let is_row = |line: &&str| line.trim_start().starts_with("open ") && line.contains("75 %");
    assert!(text.lines().any(|line| is_row(&line)), "{text}");
    let page = admin(admin_address, "/status");
    assert!(
        page.contains("Requests by cache") && page.contains("/team"),
        "{page}"
    );

    // A removed cache has no series any more, and a new one starts at zero.
    file.write(&format!("{head}[caches.fresh]\n[caches.team]\n"));
    server.signal("HUP");
    server.wait_for("the configuration was reloaded");
    eventually("the new cache is served", || {
        status(&address, "/fresh/nix-cache-info", "") == 200
    });
    eventually("the request is counted", || {
        samples(admin_address).contains_key(&request("cache=\"fresh\",", "cache_info", "2xx"))
    });
    let after = samples(admin_address);
    assert_eq!(labels(&after), BTreeSet::from(["fresh", "open", "team"]));
    assert_eq!(after[&of_cache("http_requests_refused", "fresh")], 0.0);
    assert_eq!(after[&of_cache("narinfo_hits", "open")], 3.0);
    promtool_accepts(&admin(admin_address, "/metrics"));
}

/// A server with one cache shows no table of caches.
#[test]
fn a_single_cache_has_a_label_and_no_table() {
    let file = File::new("admin.listen = \"127.0.0.1:0\"\n");
    let (server, address) = serve(&file);
    let admin_address = admin_of(&server);
    assert_eq!(status(&address, ABSENT, ""), 404);
    eventually("the request is counted", || {
        let misses = "samovar_narinfo_misses_total{cache=\"default\"}";
        samples(admin_address).get(misses) == Some(&1.0)
    });
    assert_eq!(labels(&samples(admin_address)), BTreeSet::from(["default"]));
    assert!(!admin(admin_address, "/status").contains("Requests by cache"));
    let text = output(samovar().args(["status", &format!("http://{admin_address}")]));
    assert!(!text.contains("refused"), "{text}");
}

/// Checks the text with `promtool check metrics`, which reports nothing about good metrics.
fn promtool_accepts(text: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("metrics");
    std::fs::write(&file, text).expect("writes the metrics");
    let file = std::fs::File::open(&file).expect("opens the metrics");
    let mut promtool = std::process::Command::new("promtool");
    let checked = promtool.args(["check", "metrics"]).stdin(file).output();
    let checked = checked.expect("runs promtool, of Debian's package prometheus");
    let text = [checked.stdout, checked.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!((checked.status.success(), &*text), (true, ""));
}
