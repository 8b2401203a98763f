//! Whatever an upstream does, a stock client that builds through the server succeeds: it gets right
//! paths, or builds them itself. No response is a 500 or 502, and no wrong NAR ends cleanly.

mod support;
mod support_upstreams;

use std::sync::LazyLock;
use std::time::Duration;

use support_upstreams::{Act, BuildEnd, Client, FileCache, Relay, Seen, Upstream, field};
use testkit::closed_port::ClosedPort;
use testkit::http1::Connection;
use testkit::nix::hash_part;
use testkit::wait::holds_within;

/// The cache that all tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// Maximum duration of a build whose paths the upstream cannot give: two narinfos within the budget
/// of two seconds each, and the build itself on a busy machine.
const BUILD_TIME: Duration = Duration::from_secs(60);

/// What a client ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All paths come from the upstream.
    Substituted,
    /// The client builds all paths.
    Built,
    /// The client gets what is right, and builds the rest: which of both depends on the time.
    Either,
}

/// Lets a client build while the upstream follows this rule.
#[track_caller]
fn check(name: &str, end: End, rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) {
    let upstream = Upstream::start(&CACHE.root(), rule);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    check_build(name, end, &relay);
    assert!(
        !upstream.seen().is_empty(),
        "{name}: the upstream is not asked"
    );
}

#[track_caller]
fn check_build(name: &str, end: End, relay: &Relay) -> BuildEnd {
    let built = Client::new().build(relay, &CACHE.public_key);
    assert_eq!(built.path, CACHE.top, "{name}");
    assert!(built.time < BUILD_TIME, "{name} takes {:?}", built.time);
    let has_built = [built.has_built("top"), built.has_built("low")];
    let expected = match end {
        End::Substituted => [false, false],
        End::Built => [true, true],
        End::Either => has_built,
    };
    assert_eq!(has_built, expected, "{name}: {}", built.messages);
    for status in ["500", "502"] {
        let text = format!("HTTP error {status}");
        assert!(
            !built.messages.contains(&text),
            "{name}: {}",
            built.messages
        );
    }
    built
}

/// Serves everything but narinfos, for which it does this.
fn narinfos(act: Act) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    move |seen| match seen.is_narinfo() {
        true => act.clone(),
        false => Act::Serve,
    }
}

/// Serves everything but NARs, for which it does this.
fn nars(act: Act) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    move |seen| match seen.is_nar() {
        true => act.clone(),
        false => Act::Serve,
    }
}

/// Serves narinfos that this function has changed.
fn changed(change: fn(&str) -> String) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    move |seen| {
        let path = [&CACHE.top, &CACHE.low].into_iter().find(|path| {
            seen.target
                .contains(&format!("{}.narinfo", hash_part(path)))
        });
        match path {
            Some(path) => {
                let text = change(&CACHE.narinfo(path)).into_bytes();
                Act::Answer("200 OK", String::new(), text)
            }
            None => Act::Serve,
        }
    }
}

fn status(line: &'static str) -> Act {
    Act::Answer(line, String::new(), b"an error\n".to_vec())
}

#[test]
fn without_a_fault_the_client_builds_nothing() {
    check("no fault", End::Substituted, |_| Act::Serve);
    check("no ranges", End::Substituted, |_| Act::ServePlainly);
}

#[test]
fn an_upstream_that_cannot_be_reached_is_a_miss() {
    let closed = ClosedPort::new();
    let relay = Relay::start(&format!("http://{}", closed.addr()), &CACHE.public_key);
    check_build("refused", End::Built, &relay);
    let relay = Relay::start("http://no-such-host.invalid", &CACHE.public_key);
    check_build("no such host", End::Built, &relay);
    check("closed connections", End::Built, |_| Act::Close);
    check("silence", End::Built, |_| Act::Silence);
}

#[test]
fn statuses_other_than_200_are_misses() {
    for line in [
        "403 Forbidden",
        "404 Not Found",
        "410 Gone",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "204 No Content",
        "206 Partial Content",
        "401 Unauthorized",
    ] {
        check(line, End::Built, narinfos(status(line)));
    }
    let limited = Act::Answer(
        "429 Too Many Requests",
        "Retry-After: 30\r\n".to_owned(),
        Vec::new(),
    );
    check("429", End::Built, narinfos(limited));
}

#[test]
fn a_bucket_says_403_for_what_it_lacks() {
    let upstream = Upstream::start(&CACHE.root(), |_| status("403 Forbidden"));
    let (url, key) = (upstream.url(), &CACHE.public_key);
    let relay = |option: &str| {
        Relay::with(&format!(
            "upstream-down = \"error\"\n[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n\
             {option}"
        ))
    };
    let refused = relay("");
    assert_eq!(refused.narinfo(&CACHE.top).0.status, 503);
    let bucket = relay("bucket = true\n");
    for _ in 0..2 {
        let (response, _) = bucket.narinfo(&CACHE.top);
        assert_eq!(response.status, 404);
        assert_eq!(response.header("Samovar-Miss"), Some("absent"));
    }
    assert_eq!(upstream.count(".narinfo"), 2, "absence is remembered");
    // A NAR that is gone.
    upstream.follow(nars(status("403 Forbidden")));
    let narinfo = bucket.narinfo(&CACHE.low).0.text();
    let nar = format!("/{}", field(&narinfo, "URL"));
    assert_eq!(bucket.get(&nar).status, 404);
    assert_eq!(bucket.narinfo(&CACHE.low).0.status, 404);
}

#[test]
fn responses_that_are_no_narinfos_are_misses() {
    let page = b"<!DOCTYPE html>\n<html><body>Sign in: here</body></html>\n".to_vec();
    let page = Act::Answer("200 OK", "Content-Type: text/html\r\n".to_owned(), page);
    check("a page", End::Built, narinfos(page));
    let json = Act::Answer("200 OK", String::new(), b"{\"error\": \"none\"}\n".to_vec());
    check("JSON", End::Built, narinfos(json));
    check(
        "an empty body",
        End::Built,
        narinfos(Act::Answer("200 OK", String::new(), Vec::new())),
    );
    let long = Act::Answer("200 OK", String::new(), vec![b'a'; 4 << 20]);
    check("a long body", End::Built, narinfos(long));
    check(
        "no HTTP",
        End::Built,
        narinfos(Act::Raw(b"SSH-2.0-OpenSSH\r\n".to_vec())),
    );
}

#[test]
fn narinfos_that_are_not_trusted_are_misses() {
    check(
        "no signature",
        End::Built,
        changed(|text| without(text, "Sig")),
    );
    check(
        "another key",
        End::Built,
        changed(|text| text.replace("Sig: up-1:", "Sig: other-1:")),
    );
    check(
        "a wrong signature",
        End::Built,
        changed(|text| {
            let size = field(text, "NarSize");
            text.replace(&format!("NarSize: {size}"), "NarSize: 12345")
        }),
    );
    check(
        "another store",
        End::Built,
        changed(|text| text.replace("/nix/store/", "/gnu/store/")),
    );
    check(
        "another path",
        End::Built,
        changed(|_| CACHE.narinfo(&CACHE.low).replace("low", "lov")),
    );
    check(
        "a URL of another host",
        End::Built,
        changed(|text| {
            let url = field(text, "URL");
            text.replace(&format!("URL: {url}"), "URL: http://127.0.0.1:9/x.nar")
        }),
    );
    check(
        "an unknown compression",
        End::Built,
        changed(|text| text.replace("Compression: xz", "Compression: lrzip")),
    );
    // The right key is not the configured one: the key was replaced.
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let other = FileCache::new("none");
    let relay = Relay::start(&upstream.url(), &other.public_key);
    check_build("a replaced key", End::Built, &relay);
}

fn without(text: &str, name: &str) -> String {
    let kept = text
        .lines()
        .filter(|line| !line.starts_with(&format!("{name}: ")));
    kept.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_slow_or_broken_narinfo_is_a_miss_or_arrives() {
    check(
        "late",
        End::Substituted,
        narinfos(Act::Late(Duration::from_millis(300))),
    );
    check(
        "too late",
        End::Either,
        narinfos(Act::Late(Duration::from_secs(3))),
    );
    check("cut in the head", End::Built, narinfos(Act::Cut(20)));
    check("cut in the body", End::Built, narinfos(Act::Cut(200)));
    check("stalled in the head", End::Built, narinfos(Act::Stall(20)));
    check("stalled in the body", End::Built, narinfos(Act::Stall(200)));
    check(
        "dripping",
        End::Built,
        narinfos(Act::Drip(Duration::from_millis(500))),
    );
}

#[test]
fn a_nar_that_is_gone_is_a_miss_and_so_is_its_narinfo() {
    for line in ["404 Not Found", "410 Gone"] {
        let upstream = Upstream::start(&CACHE.root(), nars(status(line)));
        let (url, key) = (upstream.url(), &CACHE.public_key);
        let relay = Relay::with(&format!(
            "negative-ttl = \"1 s\"\n[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n"
        ));
        check_build(line, End::Built, &relay);
        // The next clients are told so for the narinfo, also after `negative-ttl`.
        let is_there = || {
            let narinfo = relay.narinfo(&CACHE.low).0;
            let word = narinfo.header("Samovar-Miss");
            narinfo.status != 404 || word != Some("absent")
        };
        assert!(!holds_within(Duration::from_millis(1500), is_there));
        assert_eq!(upstream.count(&CACHE.nar_url(&CACHE.low)), 1);
    }
}

#[test]
fn a_nar_that_cannot_be_received_is_a_miss() {
    check("403", End::Built, nars(status("403 Forbidden")));
    check("500", End::Built, nars(status("500 Internal Server Error")));
    check("503", End::Built, nars(status("503 Service Unavailable")));
    check("closed", End::Built, nars(Act::Close));
    check("no HTTP", End::Built, nars(Act::Raw(b"\0\0\0\0".to_vec())));
}

#[test]
fn a_wrong_nar_is_a_miss() {
    let wrong = |body: Vec<u8>| nars(Act::Answer("200 OK", String::new(), body));
    check("a page", End::Built, wrong(b"<html>".to_vec()));
    check("an empty one", End::Built, wrong(Vec::new()));
    let other = CACHE.nar(&CACHE.low);
    check("always the same one", End::Either, wrong(other));
    // The same length, and one byte differs.
    check("a changed byte", End::Built, |seen| {
        let path = [&CACHE.top, &CACHE.low]
            .into_iter()
            .find(|path| seen.target.ends_with(&CACHE.nar_url(path)));
        match path {
            Some(path) => {
                let mut nar = CACHE.nar(path);
                let middle = nar.len() / 2;
                nar[middle] ^= 1;
                Act::Answer("200 OK", String::new(), nar)
            }
            None => Act::Serve,
        }
    });
    check("a longer one", End::Built, |seen| match seen.is_nar() {
        true => {
            let path = [&CACHE.top, &CACHE.low];
            let path = path
                .into_iter()
                .find(|path| seen.target.ends_with(&CACHE.nar_url(path)));
            let mut nar = CACHE.nar(path.unwrap());
            nar.extend_from_slice(&[0; 100]);
            Act::Answer("200 OK", String::new(), nar)
        }
        false => Act::Serve,
    });
}

#[test]
fn a_nar_that_breaks_off_is_resumed() {
    let upstream = Upstream::start(&CACHE.root(), |seen: &Seen| match seen.header("Range") {
        None if seen.is_nar() => Act::Cut(2000),
        _ => Act::Serve,
    });
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    check_build("cut", End::Substituted, &relay);
    let resumed: Vec<Seen> = upstream
        .seen()
        .into_iter()
        .filter(|seen| seen.header("Range").is_some())
        .collect();
    assert_eq!(resumed.len(), 2, "{resumed:?}");
    assert!(resumed.iter().all(|seen| seen.header("If-Range").is_some()));
    // An upstream without ranges sends the file from its beginning.
    check("cut, and no validators", End::Either, |seen| {
        match seen.is_nar() {
            true => Act::Cut(2000),
            false => Act::ServePlainly,
        }
    });
    check("a wrong range", End::Built, |seen| {
        match seen.header("Range") {
            None if seen.is_nar() => Act::Cut(2000),
            Some(_) => Act::Answer(
                "206 Partial Content",
                "Content-Range: bytes 0-9/10\r\n".to_owned(),
                vec![0; 10],
            ),
            None => Act::Serve,
        }
    });
}

#[test]
fn redirects_are_followed_within_limits() {
    let target = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let to = |address: &str| {
        let address = address.to_owned();
        move |seen: &Seen| {
            let location = format!("Location: {address}{}\r\n", seen.target);
            Act::Answer("302 Found", location, Vec::new())
        }
    };
    check("to another port", End::Substituted, to(&target.url()));
    check("in a circle", End::Built, |seen| {
        let location = format!("Location: {}\r\n", seen.target);
        Act::Answer("302 Found", location, Vec::new())
    });
    // The metadata service of a cloud.
    check("to the link", End::Built, to("http://169.254.169.254"));
    assert!(
        target
            .seen()
            .iter()
            .all(|seen| seen.header("Authorization").is_none())
    );
}

#[test]
fn the_login_of_an_upstream_is_sent_to_its_host_alone() {
    let target = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let port = target.address.port();
    // The same machine, by another name.
    let upstream = Upstream::start(&CACHE.root(), move |seen: &Seen| {
        let location = format!("Location: http://localhost:{port}{}\r\n", seen.target);
        Act::Answer("302 Found", location, Vec::new())
    });
    let url = format!("http://user:secret@{}", upstream.address);
    let relay = Relay::start(&url, &CACHE.public_key);
    check_build("redirected", End::Either, &relay);
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.header("Authorization").is_some())
    );
    assert!(
        target
            .seen()
            .iter()
            .all(|seen| seen.header("Authorization").is_none())
    );
    assert!(!relay.server.lines().concat().contains("secret"));
}

#[test]
fn an_upstream_that_answers_again_is_asked_again() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Close);
    let relay = Relay::start(&upstream.url(), &CACHE.public_key);
    for path in [&CACHE.top, &CACHE.low, &CACHE.top, &CACHE.low] {
        let (response, time) = relay.narinfo(path);
        assert_eq!(response.status, 404);
        assert_eq!(response.header("Samovar-Miss"), Some("upstream-down"));
        assert!(time < Duration::from_secs(5), "{time:?}");
    }
    relay.server.wait_for("is not asked until it answers again");
    upstream.follow(|_| Act::Serve);
    relay.server.wait_for("answers again after");
    assert_eq!(relay.narinfo(&CACHE.top).0.status, 200);
}

#[test]
fn a_server_that_is_its_own_upstream_ends_the_circle() {
    let port = testkit::free_port();
    let key = &CACHE.public_key;
    let relay = Relay::listening(
        port,
        &format!("[upstreams.self]\nurl = \"http://127.0.0.1:{port}\"\npublic-keys = [{key:?}]\n"),
    );
    let (response, time) = relay.narinfo(&CACHE.top);
    assert_eq!(response.status, 404);
    assert!(time < Duration::from_millis(1900), "{time:?}");
    check_build("itself", End::Built, &relay);
}

#[test]
fn two_servers_that_are_upstreams_of_each_other_end_the_circle() {
    let file = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let key = &CACHE.public_key;
    let ports = [testkit::free_port(), testkit::free_port()];
    let table = |name: &str, url: &str| {
        format!("[upstreams.{name}]\nurl = {url:?}\npublic-keys = [{key:?}]\n")
    };
    let other = |port: u16| table("other", &format!("http://127.0.0.1:{port}"));
    let first = Relay::listening(ports[0], &other(ports[1]));
    let second = Relay::listening(ports[1], &other(ports[0]));
    let absent = "/nix/store/00000000000000000000000000000000-absent";
    std::thread::scope(|scope| {
        for relay in [&first, &second, &first, &second] {
            scope.spawn(move || {
                let (response, time) = relay.narinfo(absent);
                assert_eq!(response.status, 404);
                assert!(time < Duration::from_millis(1900), "{time:?}");
            });
        }
    });
    drop(second);
    // The second one gets another upstream: the first finds what that has.
    let both = other(ports[0]) + &table("file", &file.url());
    let second = Relay::listening(ports[1], &both);
    check_build("through two servers", End::Substituted, &first);
    assert_eq!(second.narinfo(&CACHE.top).0.status, 200);
}

#[test]
fn a_wrong_nar_of_many_megabytes_never_ends_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let store = testkit::nix::OwnStore::new();
    let file = dir.path().join("large");
    std::fs::write(&file, support_upstreams::noise(6 << 20)).unwrap();
    let path = store.add(&file);
    let root = dir.path().join("cache");
    let (secret, key) = testkit::nix::key_pair(dir.path(), "large-1");
    let to = format!(
        "file://{}?compression=none&secret-key={}",
        root.display(),
        secret.display()
    );
    let mut copy = store.nix.command("nix", store.root());
    let from = testkit::nix::local(store.root());
    testkit::process::output(copy.args(["copy", "--from", &from, "--to", &to, &path]));
    let upstream = Upstream::start(&root, |_| Act::Serve);
    let url = upstream.url();
    let relay = Relay::with(&format!(
        "nar-cache.size = 0\n[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n"
    ));
    let narinfo = relay.narinfo(&path).0.text();
    let target = format!("/{}", field(&narinfo, "URL"));
    // The right one ends.
    let right = relay.get(&target);
    assert_eq!(right.status, 200);
    assert_eq!(
        right.body.len() as u64,
        field(&narinfo, "NarSize").parse::<u64>().unwrap()
    );
    // The last byte of the file is another one.
    let nar = root.join(field(
        &std::fs::read_to_string(root.join(format!("{}.narinfo", hash_part(&path)))).unwrap(),
        "URL",
    ));
    let mut bytes = std::fs::read(&nar).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    std::fs::write(&nar, &bytes).unwrap();
    let mut connection = Connection::connect(relay.address);
    connection.begin("GET", &target, &[]);
    let mut received = 0;
    let ended = connection.body(|piece| received += piece.len());
    assert!(
        ended.is_err() && received < bytes.len(),
        "{received} bytes, {ended:?}"
    );
    relay.server.wait_for("its NAR is wrong");
    // From now on, the path is missing, also for a client that repeats the request for its NAR.
    assert_eq!(relay.get(&target).status, 404);
    assert_eq!(relay.narinfo(&path).0.status, 404);
}
