//! The metrics show what each upstream has answered, and whether it is down. The dashboard shows
//! all of them, and the book names them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use support_upstreams::{Act, FileCache, NAME, Relay, Upstream, field};
use testkit::eventually;
use testkit::http1::Connection;

/// Paths that no cache has.
const ABSENT: [&str; 3] = [
    "/nix/store/00000000000000000000000000000000-a",
    "/nix/store/11111111111111111111111111111111-b",
    "/nix/store/22222222222222222222222222222222-c",
];

fn samples(admin: SocketAddr) -> BTreeMap<String, f64> {
    let response = Connection::connect(admin).get("/metrics");
    assert_eq!(response.status, 200);
    let text = response.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    pairs
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Waits until these metrics of the upstream have these values.
#[track_caller]
fn await_values(admin: SocketAddr, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        let (name, labels) = name.split_once(' ').unwrap_or((name, ""));
        let sample = format!("samovar_upstream_{name}{{upstream=\"{NAME}\"{labels}}}");
        eventually(&format!("{sample} is {value}"), || {
            samples(admin).get(&sample) == Some(value)
        });
    }
}

#[test]
fn what_an_upstream_answers_is_counted() {
    let cache = FileCache::new("none");
    let upstream = Upstream::start(&cache.root(), |_| Act::Serve);
    let tables = format!(
        "[upstreams.{NAME}]\nurl = {:?}\npublic-keys = [{:?}]\n",
        upstream.url(),
        cache.public_key
    );
    let (relay, admin) = Relay::watched(&tables);
    await_values(admin, &[("up", 1.0), ("narinfo_requests_total", 0.0)]);
    let (narinfo, _) = relay.narinfo(&cache.low);
    let nar = relay.get(&format!("/{}", field(&narinfo.text(), "URL")));
    assert_eq!((narinfo.status, nar.status), (200, 200));
    assert_eq!(relay.narinfo(ABSENT[0]).0.status, 404);
    #[expect(clippy::cast_precision_loss, reason = "the NAR is short")]
    let nar_len = nar.body.len() as f64;
    await_values(
        admin,
        &[
            ("up", 1.0),
            ("narinfo_requests_total", 2.0),
            ("narinfos_total ,result=\"found\"", 1.0),
            ("narinfos_total ,result=\"absent\"", 1.0),
            ("faults_total", 0.0),
            ("nars_total", 1.0),
            ("nar_bytes_total", nar_len),
        ],
    );
    upstream.follow(|_| Act::Close);
    for path in [ABSENT[1], ABSENT[2], &cache.top] {
        assert_eq!(relay.narinfo(path).0.status, 404);
    }
    await_values(admin, &[("up", 0.0), ("faults_total", 3.0)]);
    let event = "samovar_events_total{event=\"upstream_down\"}";
    assert_eq!(samples(admin).get(event), Some(&1.0));
    let is_ours = |name: &&str| name.len() > 17 && name.starts_with("samovar_upstream_");
    let there: BTreeSet<String> = samples(admin)
        .keys()
        .filter_map(|sample| sample.split('{').next())
        .filter(is_ours)
        .map(str::to_owned)
        .collect();
    assert_eq!(there.len(), 8, "{there:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (file, shows_all) in [
        ("rig/grafana/dashboards/cache.json", true),
        ("docs/book/monitoring.md", true),
        ("rig/prometheus/alerts.yml", false),
    ] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: BTreeSet<String> = words.filter(is_ours).map(str::to_owned).collect();
        assert!(named.is_subset(&there), "{file} names {named:?}");
        assert!(
            !named.is_empty() && (named == there || !shows_all),
            "{file}: {named:?}"
        );
    }
}
