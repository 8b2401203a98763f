//! What upstreams have is passed on exactly: to many clients at once, to slow ones, in parts, after
//! a restart, under the rules of the cache, and while the upstreams are down.

mod support;
mod support_uploads;
mod support_upstreams;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use support::{samovar, user};
use support_uploads::Site;
use support_upstreams::{Act, Client, FileCache, Large, Relay, Seen, Upstream, field};
use testkit::closed_port::ClosedPort;
use testkit::eventually;
use testkit::http1::Connection;
use testkit::nix::{OwnStore, hash_part, key_pair, local};
use testkit::process::{Process, output};

/// The cache that most tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("zstd"));

fn serving() -> (Upstream, Relay) {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    (upstream, relay)
}

/// Returns the table of an upstream with the key of [`CACHE`].
fn table(upstream: &Upstream) -> String {
    let (url, key) = (upstream.url(), &CACHE.public_key);
    format!("[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n")
}

#[test]
fn what_is_known_is_served_while_the_upstream_is_down() {
    let (upstream, relay) = serving();
    let first = Client::new().build(&relay, &CACHE.public_key);
    assert!(
        !first.has_built("top") && !first.has_built("low"),
        "{}",
        first.messages
    );
    upstream.follow(|_| Act::Close);
    let before = upstream.count(".narinfo");
    let second = Client::new().build(&relay, &CACHE.public_key);
    assert!(
        !second.has_built("top") && !second.has_built("low"),
        "{}",
        second.messages
    );
    assert_eq!(upstream.count(".narinfo"), before);
}

#[test]
fn the_server_starts_and_answers_with_all_upstreams_down() {
    let closed = ClosedPort::new();
    let relay = Relay::start(&format!("http://{}", closed.addr()), &CACHE.public_key);
    assert_eq!(relay.get("/nix-cache-info").status, 200);
    let path = relay.store.add_file("here", b"text");
    let (response, time) = relay.narinfo(&path);
    assert_eq!(response.status, 200);
    assert!(time < Duration::from_millis(1900), "{time:?}");
}

#[test]
fn clients_that_ask_at_the_same_time_cost_one_request() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Late(Duration::from_millis(500)));
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    let all = |target: &str| {
        let responses: Vec<_> = std::thread::scope(|scope| {
            let one = |_| scope.spawn(|| Connection::connect(relay.address).get(target));
            let all: Vec<_> = (0..16).map(one).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for response in &responses {
            assert_eq!(response.status, 200, "{target}");
            assert!(response.body == responses[0].body);
        }
        responses[0].clone()
    };
    let narinfo = all(&format!("/{}.narinfo", hash_part(&CACHE.top))).text();
    assert_eq!(upstream.count(hash_part(&CACHE.top)), 1);
    let nar = all(&format!("/{}", field(&narinfo, "URL")));
    assert!(nar.body == CACHE.nar(&CACHE.top));
    assert_eq!(upstream.count(&CACHE.nar_url(&CACHE.top)), 1);
    // Nor do later ones.
    all(&format!("/{}", field(&narinfo, "URL")));
    assert_eq!(upstream.count(&CACHE.nar_url(&CACHE.top)), 1);
}

#[test]
fn the_references_of_a_path_are_looked_up_ahead() {
    let (upstream, relay) = serving();
    assert_eq!(relay.narinfo(&CACHE.top).0.status, 200);
    eventually("the reference is asked for", || {
        upstream.count(hash_part(&CACHE.low)) == 1
    });
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 200);
    assert_eq!(upstream.count(hash_part(&CACHE.low)), 1);
}

#[test]
fn an_upstream_that_hangs_delays_nothing_else() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Silence);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    let path = relay.store.add_file("here", b"text");
    let mut waiting: Vec<Connection> = (0..300_u32)
        .map(|number| {
            let mut connection = Connection::connect(relay.address);
            let absent = format!("/{number:0>32}.narinfo");
            connection.send_request("GET", &absent, &[]);
            connection
        })
        .collect();
    for _ in 0..20 {
        let begin = Instant::now();
        assert_eq!(relay.narinfo(&path).0.status, 200);
        assert_eq!(relay.get("/nix-cache-info").status, 200);
        let time = begin.elapsed();
        assert!(time < Duration::from_millis(1900), "{time:?}");
    }
    for connection in &mut waiting {
        assert_eq!(connection.response(false).status, 404);
    }
}

#[test]
fn look_ups_that_have_ended_do_not_delay_later_ones() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Silence);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    let mut waiting: Vec<Connection> = (0..1000_u32)
        .map(|number| {
            let mut connection = Connection::connect(relay.address);
            connection.send_request("GET", &format!("/{number:0>32}.narinfo"), &[]);
            connection
        })
        .collect();
    for connection in &mut waiting {
        assert_eq!(connection.response(false).status, 404);
    }
    upstream.follow(|_| Act::Serve);
    relay.server.wait_for("answers again after");
    let (response, time) = relay.narinfo(&CACHE.top);
    assert_eq!(response.status, 200, "{time:?}");
    let asked = upstream.count(".narinfo");
    assert!(
        asked < 500,
        "{asked} requests, although nobody waited for most of them"
    );
}

#[test]
fn a_path_that_was_absent_is_found_as_soon_as_it_is_here() {
    let (upstream, _relay) = serving();
    let site = Site::new();
    site.configure_empty(&table(&upstream));
    let server = site.start();
    let token = site.token(&[]);
    // The path has a content address, so its name is known before it exists.
    let store = OwnStore::new();
    let pushed = store.add_file("pushed", b"pushed");
    let target = format!("/{}.narinfo", hash_part(&pushed));
    for _ in 0..2 {
        assert_eq!(server.get(&target).status, 404);
    }
    assert_eq!(
        upstream.count(hash_part(&pushed)),
        1,
        "absence is remembered"
    );
    let mut push = samovar();
    push.args([
        "push",
        "--store",
        &local(store.root()),
        &server.url(),
        &pushed,
    ]);
    output(push.env("SAMOVAR_TOKEN", token));
    assert_eq!(server.get(&target).status, 200);
    // So is one that is registered in the store of the server.
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    let registered = store.add_file("registered", b"registered");
    assert_eq!(relay.narinfo(&registered).0.status, 404);
    assert_eq!(
        relay.store.add_file("registered", b"registered"),
        registered
    );
    assert_eq!(relay.narinfo(&registered).0.status, 200);
}

#[test]
fn upstream_paths_have_the_readers_and_policies_of_the_cache() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let dir = tempfile::tempdir().unwrap();
    let users = support::secret_file(dir.path(), "users", &user("reader", "word"));
    let relay = Relay::with(&format!(
        "access.users-file = {users:?}\npolicy.deny = [{{ names = [\"low\"] }}]\n{}",
        table(&upstream)
    ));
    let target = |path: &str| format!("/{}.narinfo", hash_part(path));
    assert_eq!(relay.get(&target(&CACHE.top)).status, 401);
    assert_eq!(upstream.seen().len(), 0);
    // reader:word
    let login = "Authorization: Basic cmVhZGVyOndvcmQ=";
    let get = |target: &str| Connection::connect(relay.address).request("GET", target, &[login]);
    let response = get(&target(&CACHE.top));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("Cache-Control"), Some("private"));
    let nar = get(&format!("/{}", field(&response.text(), "URL")));
    assert_eq!(
        (nar.status, nar.header("Cache-Control")),
        (200, Some("private"))
    );
    assert_eq!(get(&target(&CACHE.low)).status, 404);
    let low = CACHE.narinfo(&CACHE.low);
    let nar_hash = field(&low, "NarHash").trim_start_matches("sha256:");
    let denied = format!("/nar/{}-{nar_hash}.nar.zst", hash_part(&CACHE.low));
    assert_eq!(get(&denied).status, 404);
    // A denied path has the response of one that no upstream has.
    let absent = "/00000000000000000000000000000000.narinfo";
    let (denied, absent) = (get(&target(&CACHE.low)), get(absent));
    assert_eq!(denied.head_without_date(), absent.head_without_date());
    assert_eq!(denied.text(), absent.text());
}

#[test]
fn a_cache_has_nars_of_its_own_upstreams_alone() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let dir = tempfile::tempdir().unwrap();
    let other = Upstream::start(dir.path(), |_| Act::Serve);
    let (url, key) = (other.url(), &CACHE.public_key);
    let relay = Relay::with(&format!(
        "{}[upstreams.other]\nurl = {url:?}\npublic-keys = [{key:?}]\n[caches.a]\nupstreams = \
         [\"up\"]\n[caches.b]\nupstreams = [\"other\"]\n",
        table(&upstream)
    ));
    let narinfo = relay
        .get(&format!("/a/{}.narinfo", hash_part(&CACHE.top)))
        .text();
    let nar = field(&narinfo, "URL");
    assert_eq!(relay.get(&format!("/a/{nar}")).status, 200);
    assert_eq!(relay.get(&format!("/b/{nar}")).status, 404);
    let of_other_path = nar.replace(hash_part(&CACHE.top), hash_part(&CACHE.low));
    assert_eq!(relay.get(&format!("/a/{of_other_path}")).status, 404);
}

#[test]
fn a_nar_is_found_by_its_url_after_a_restart() {
    let (upstream, relay) = serving();
    let narinfo = relay.narinfo(&CACHE.top).0.text();
    let target = format!("/{}", field(&narinfo, "URL"));
    let relay = relay.restarted();
    let response = relay.get(&target);
    assert!(response.status == 200 && response.body == CACHE.nar(&CACHE.top));
    assert_eq!(upstream.count(&CACHE.nar_url(&CACHE.top)), 1);
    // A NAR hash that no upstream has is no NAR.
    let nar_hash = &target[target.find('-').unwrap() + 1..][..52];
    let other = target.replace(nar_hash, &"0".repeat(52));
    assert_eq!(relay.get(&other).status, 404);
}

#[test]
fn a_connection_that_the_upstream_closes_at_the_next_request_is_no_fault() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::ServeOnce);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    for path in [&CACHE.top, &CACHE.low] {
        let narinfo = relay.narinfo(path).0;
        assert_eq!(narinfo.status, 200);
        let nar = relay.get(&format!("/{}", field(&narinfo.text(), "URL")));
        assert!(nar.status == 200 && nar.body == CACHE.nar(path));
    }
}

#[test]
fn a_part_of_a_nar_is_the_right_part() {
    let (_upstream, relay) = serving();
    let narinfo = relay.narinfo(&CACHE.top).0.text();
    let (target, nar) = (
        format!("/{}", field(&narinfo, "URL")),
        CACHE.nar(&CACHE.top),
    );
    let len = nar.len();
    let mut connection = Connection::connect(relay.address);
    for _ in 0..2 {
        for (range, expected) in [
            ("bytes=1000-", &nar[1000..]),
            ("bytes=0-99", &nar[..100]),
            ("bytes=-1", &nar[len - 1..]),
        ] {
            let response = connection.request("GET", &target, &[&format!("Range: {range}")]);
            assert!(
                response.status == 206 && response.body == expected,
                "{range}"
            );
        }
        let beyond = format!("Range: bytes={len}-");
        assert_eq!(connection.request("GET", &target, &[&beyond]).status, 416);
        let head = connection.request("HEAD", &target, &[]);
        assert_eq!((head.status, head.content_length()), (200, len as u64));
    }
}

#[test]
fn signatures_are_those_that_were_configured() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "ours-1");
    for (resign, names) in [
        ("no", &["up-1"][..]),
        ("add", &["ours-1", "up-1"]),
        ("only", &["ours-1"]),
    ] {
        let relay = Relay::with(&format!(
            "secret-key-files = {secret:?}\n{}resign = {resign:?}\n",
            table(&upstream)
        ));
        let narinfo = relay.narinfo(&CACHE.top).0.text();
        let signatures = narinfo
            .lines()
            .filter_map(|line| line.strip_prefix("Sig: "));
        let found: Vec<&str> = signatures
            .map(|one| one.split(':').next().unwrap())
            .collect();
        assert_eq!(found, names, "{resign}");
        if resign != "no" {
            // A client that trusts our key alone.
            let built = Client::new().build(&relay, &public);
            assert!(
                !built.has_built("top") && !built.has_built("low"),
                "{}",
                built.messages
            );
        }
    }
}

#[test]
fn clients_are_set_up_with_the_keys_of_upstreams() {
    let (upstream, relay) = serving();
    let key = &CACHE.public_key;
    let mut setup = samovar();
    let text = output(setup.args(["use", "--print", &relay.url()]));
    assert!(text.contains(key), "{text}");
    // Not if this cache signs their paths.
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "ours-1");
    let table = table(&upstream);
    let relay = Relay::with(&format!(
        "secret-key-files = {secret:?}\n{table}resign = \"only\"\n"
    ));
    let mut setup = samovar();
    let text = output(setup.args(["use", "--print", &relay.url()]));
    assert!(text.contains(&public) && !text.contains(key), "{text}");
}

#[test]
fn bulk_queries_find_what_upstreams_have() {
    let (_upstream, relay) = serving();
    let absent = "/nix/store/00000000000000000000000000000000-absent";
    let mut query = samovar();
    query.args([
        "query",
        "--json",
        &relay.url(),
        &CACHE.top,
        &CACHE.low,
        absent,
    ]);
    let done = query.output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(
        text.contains(&CACHE.top[11..]) && text.contains(&CACHE.low[11..]),
        "{text}"
    );
    assert!(
        relay
            .server
            .lines()
            .iter()
            .all(|line| !line.contains("500"))
    );
}

#[test]
fn a_certificate_that_is_not_trusted_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = [
        ("cert.pem", made.cert.pem()),
        ("key.pem", made.signing_key.serialize_pem()),
    ];
    for (name, text) in &files {
        support::secret_file(dir.path(), name, text);
    }
    let mut serve = samovar();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", ""]);
    serve.args(["--store", &local(CACHE.builder.root())]);
    serve
        .arg("--tls-certificate")
        .arg(dir.path().join("cert.pem"));
    serve.arg("--tls-key").arg(dir.path().join("key.pem"));
    let server = Process::spawn(&mut serve);
    let line = server.wait_for("on https://");
    let port = line.rsplit(':').next().unwrap().trim();
    let url = format!("https://localhost:{port}");
    let relay = Relay::start(&url, &CACHE.public_key);
    let built = Client::new().build(&relay, &CACHE.public_key);
    assert!(
        built.has_built("top") && built.has_built("low"),
        "{}",
        built.messages
    );
    // The third fault in a row is reported.
    assert_eq!(
        relay
            .narinfo("/nix/store/00000000000000000000000000000000-a")
            .0
            .status,
        404
    );
    let line = relay.server.wait_for("is not asked until it answers again");
    assert!(line.contains("certificate"), "{line}");
}

#[test]
fn slow_readers_get_the_whole_nar_beside_a_fast_one() {
    let large = Large::new("upstream-memory = \"1 MiB\"\nnar-cache.size = 0\n");
    // Readers that stop after their first bytes, each at another place.
    let slow: Vec<(Connection, Vec<u8>)> = (0..6)
        .map(|number| {
            let mut slow = Connection::connect(large.relay.address);
            slow.begin("GET", &large.target, &[]);
            let first = slow.take_bytes(1000 + number * 2_000_000);
            (slow, first)
        })
        .collect();
    for _ in 0..2 {
        let fast = large.relay.get(&large.target);
        assert!(fast.status == 200 && fast.body == large.nar);
    }
    std::thread::scope(|scope| {
        for (mut slow, mut all) in slow {
            let nar = &large.nar;
            scope.spawn(move || {
                slow.body(|piece| all.extend_from_slice(piece)).unwrap();
                assert!(all == *nar);
            });
        }
    });
}

#[test]
fn slow_readers_do_not_keep_others_from_the_upstream() {
    let large = Large::new("");
    // More than the upstream's NARs that are received at the same time.
    let slow: Vec<Connection> = (0..100)
        .map(|_| {
            let mut slow = Connection::connect(large.relay.address);
            slow.begin("GET", &large.target, &[]);
            slow
        })
        .collect();
    let nars = || {
        large
            .upstream
            .seen()
            .iter()
            .filter(|seen| seen.is_nar())
            .count()
    };
    assert_eq!(nars(), 1);
    let fast = large.relay.get(&large.target);
    assert!(fast.status == 200 && fast.body == large.nar);
    for mut slow in slow.into_iter().take(3) {
        let mut all = Vec::new();
        slow.body(|piece| all.extend_from_slice(piece)).unwrap();
        assert!(all == large.nar);
    }
    assert_eq!(nars(), 1, "all readers read the copy");
}

#[test]
fn a_nar_of_many_megabytes_is_received_once_and_breaks_are_resumed() {
    let large = Large::new("");
    large
        .upstream
        .follow(|seen: &Seen| match seen.header("Range") {
            None => Act::Cut(10 << 20),
            Some("bytes=30000000-") => Act::Serve,
            Some(_) => Act::Serve,
        });
    let responses: Vec<_> = std::thread::scope(|scope| {
        let one = |_| scope.spawn(|| large.relay.get(&large.target));
        let all: Vec<_> = (0..4).map(one).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for response in &responses {
        assert_eq!(response.status, 200);
        assert!(response.body == large.nar);
    }
    let nars = large.upstream.seen();
    let whole = nars
        .iter()
        .filter(|seen| seen.is_nar() && seen.header("Range").is_none());
    assert_eq!(whole.count(), 1, "{nars:?}");
}
