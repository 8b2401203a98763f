//! An upstream that is a Samovar is asked for many narinfos in one request. Each of them must be as
//! trustworthy as a single one, and a client waits for no such request longer than for single ones.

#![expect(clippy::panic, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use support_upstreams::{Act, FileCache, Relay, Seen, Upstream, field};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::nix::hash_part;

/// The cache that all tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("zstd"));

/// Returns a response with these records, each a line and maybe a narinfo.
fn records(records: &[String], end: &str) -> Act {
    let text = records.concat();
    let body = format!("narinfos 1 {}\n{text}{end}\n", records.len());
    let head = "Content-Type: text/x-nix-narinfos\r\n".to_owned();
    Act::Answer("200 OK", head, body.into_bytes())
}

/// Returns the record of a path.
fn record(path: &str, narinfo: &str) -> String {
    format!("path {} {}\n{narinfo}", hash_part(path), narinfo.len())
}

/// Returns the closure of `top`, with this narinfo of `low`.
fn closure(low: &str) -> Act {
    let all = [
        record(&CACHE.low, low),
        record(&CACHE.top, &CACHE.narinfo(&CACHE.top)),
    ];
    records(&all, "end 2 0 0")
}

/// Serves as a Samovar that answers a request for a closure in this way, and requests for lists in
/// the other way.
fn samovar_with(
    closure: Act,
    list: impl Fn(&str) -> Act + Send + Sync + 'static,
) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    move |seen| match &*seen.target {
        "/narinfos" if seen.body.is_empty() => records(&[], "end 0 0 0"),
        "/narinfos" => list(&seen.body),
        target if target.starts_with("/closure/") => closure.clone(),
        _ => Act::Serve,
    }
}

fn no_list(body: &str) -> Act {
    panic!("no list is expected: {body}")
}

fn serving(rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> (Upstream, Relay) {
    let upstream = Upstream::start(&CACHE.root(), rule);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    assert_eq!(relay.narinfo(&CACHE.top).0.status, 200);
    (upstream, relay)
}

fn single(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

#[test]
fn a_closure_is_requested_at_once_from_a_samovar() {
    let (upstream, relay) = serving(samovar_with(closure(&CACHE.narinfo(&CACHE.low)), no_list));
    eventually("the closure is requested", || {
        upstream.count("/closure/") == 1
    });
    let low = relay.narinfo(&CACHE.low).0;
    assert_eq!(low.status, 200);
    assert_eq!(field(&low.text(), "StorePath"), CACHE.low);
    assert_eq!(upstream.count(&single(&CACHE.low)), 0);
    let seen = upstream.seen();
    let closure = seen
        .iter()
        .find(|seen| seen.target.starts_with("/closure/"));
    assert!(closure.unwrap().header("Via").unwrap().contains("samovar-"));
}

#[test]
fn an_ordinary_upstream_is_asked_once_whether_it_has_bulk_queries() {
    let (upstream, relay) = serving(|_| Act::Serve);
    eventually("the reference is looked up", || {
        upstream.count(&single(&CACHE.low)) == 1
    });
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 200);
    assert_eq!(upstream.count("/narinfos"), 1);
    assert_eq!(upstream.count("/closure/"), 0);
}

#[test]
fn a_narinfo_of_a_bulk_answer_is_trusted_like_a_single_one() {
    let low = CACHE.narinfo(&CACHE.low);
    let size = format!("NarSize: {}", field(&low, "NarSize"));
    let unsigned: Vec<&str> = low
        .lines()
        .filter(|line| !line.starts_with("Sig"))
        .collect();
    for wrong in [
        low.replace(&size, "NarSize: 12345"),
        unsigned.join("\n") + "\n",
        CACHE.narinfo(&CACHE.top),
        "StorePath\n".to_owned(),
    ] {
        let (upstream, relay) = serving(samovar_with(closure(&wrong), no_list));
        eventually("the reference is looked up alone", || {
            upstream.count(&single(&CACHE.low)) == 1
        });
        let found = relay.narinfo(&CACHE.low).0;
        assert_eq!(found.status, 200, "{wrong}");
        assert!(found.text().contains(&size), "{wrong}");
    }
}

#[test]
fn absence_that_a_bulk_answer_states_is_remembered() {
    // As of a path that the upstream itself has from an upstream.
    let no_closure = Act::Answer("404 Not Found", String::new(), Vec::new());
    let absent = |_: &str| {
        records(
            &[format!("absent {}\n", hash_part(&CACHE.low))],
            "end 0 1 0",
        )
    };
    let (upstream, relay) = serving(samovar_with(no_closure, absent));
    eventually("the list is requested", || upstream.count("/narinfos") == 2);
    for _ in 0..2 {
        let (response, _) = relay.narinfo(&CACHE.low);
        assert_eq!(response.status, 404);
        assert_eq!(response.header("Samovar-Miss"), Some("absent"));
    }
    assert_eq!(upstream.count(&single(&CACHE.low)), 0);
    assert_eq!(upstream.count("/narinfos"), 2);
}

#[test]
fn a_bulk_answer_that_is_late_or_broken_costs_a_client_no_path() {
    let whole = closure(&CACHE.narinfo(&CACHE.low));
    let Act::Answer(_, _, body) = &whole else {
        panic!("an answer");
    };
    let cut = |len: usize| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/x-nix-narinfos\r\n\r\n";
        Act::Raw([head.as_bytes(), &body[..len]].concat())
    };
    let json = Act::Answer("200 OK", String::new(), b"{}\n".to_vec());
    let error = Act::Answer("503 Service Unavailable", String::new(), Vec::new());
    for (name, act) in [
        ("silence", Act::Silence),
        ("a stall", Act::Stall(10)),
        ("no response", Act::Close),
        ("no record", cut(5)),
        ("half a record", cut(100)),
        ("JSON", json),
        ("an error", error.clone()),
    ] {
        let list = error.clone();
        let (_upstream, relay) = serving(samovar_with(act, move |_| list.clone()));
        let begin = Instant::now();
        let mut connection = Connection::connect(relay.address);
        let response = connection.get(&single(&CACHE.low));
        assert_eq!(response.status, 200, "{name}");
        let time = begin.elapsed();
        assert!(time < Duration::from_millis(1900), "{name}: {time:?}");
    }
}
