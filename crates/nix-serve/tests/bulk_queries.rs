//! A bulk query returns the same narinfos as single requests, in the documented order. Its response
//! is either complete or visibly truncated.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::process::Command;

use support::client::{Client, succeeds};
use support::{OwnStore, hash_part, key_pair, local, nix_serve, sample, sample_list, sample_root};
use support_process::{Connection, Process, Response, serve_sample};
use testkit::sqlite::run as sqlite;

/// The record of one path in the response to a bulk query.
#[derive(Debug, PartialEq, Eq)]
enum Record {
    Path(String, String),
    Absent(String),
}

impl Record {
    fn hash_part(&self) -> &str {
        match self {
            Self::Path(hash_part, _) | Self::Absent(hash_part) => hash_part,
        }
    }
}

/// Parses a response strictly by `docs/bulk-queries.md`.
#[track_caller]
fn records(text: &str) -> Vec<Record> {
    let (first, mut rest) = text.split_once('\n').unwrap();
    let count: usize = first.strip_prefix("narinfos 1 ").unwrap().parse().unwrap();
    let mut records = Vec::new();
    for _ in 0..count {
        let (line, after) = rest.split_once('\n').unwrap();
        rest = after;
        let words: Vec<&str> = line.split(' ').collect();
        records.push(match words[..] {
            ["path", hash_part, len] => {
                let (narinfo, after) = rest.split_at(len.parse().unwrap());
                rest = after;
                assert!(narinfo.ends_with('\n'));
                Record::Path(hash_part.to_owned(), narinfo.to_owned())
            }
            ["absent", hash_part] => Record::Absent(hash_part.to_owned()),
            _ => unreachable!("{line:?}"),
        });
    }
    let absent = records
        .iter()
        .filter(|record| matches!(record, Record::Absent(_)))
        .count();
    assert_eq!(rest, format!("end {} {absent} 0\n", count - absent));
    records
}

#[track_caller]
fn post(addr: SocketAddr, url: &str, body: &str) -> Response {
    let mut connection = Connection::connect(addr);
    connection.send_request("POST", url, &[&format!("Content-Length: {}", body.len())]);
    connection.send(body.as_bytes());
    connection.response(false)
}

#[track_caller]
fn bulk(addr: SocketAddr, body: &str) -> Vec<Record> {
    let reply = post(addr, "/narinfos", body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("text/x-nix-narinfos"));
    records(&reply.text())
}

#[track_caller]
fn closure(addr: SocketAddr, path: &str) -> Vec<Record> {
    let url = format!("/closure/{}", hash_part(path));
    let reply = Connection::connect(addr).get(&url);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("text/x-nix-narinfos"));
    records(&reply.text())
}

/// Compares each record with the response to a single request.
#[track_caller]
fn check_single(addr: SocketAddr, records: &[Record]) {
    let mut connection = Connection::connect(addr);
    for record in records {
        let single = connection.get(&format!("/{}.narinfo", record.hash_part()));
        match record {
            Record::Path(_, narinfo) => assert_eq!((single.status, &single.text()), (200, narinfo)),
            Record::Absent(_) => assert_eq!(single.status, 404),
        }
    }
}

/// Checks that every path comes after its references.
#[track_caller]
fn check_order(records: &[Record]) {
    let mut seen = HashSet::new();
    for record in records {
        assert!(seen.insert(record.hash_part()), "twice: {record:?}");
        let Record::Path(_, narinfo) = record else {
            unreachable!("{record:?}");
        };
        let references = narinfo
            .lines()
            .find_map(|line| line.strip_prefix("References: "))
            .unwrap_or_default();
        for reference in references.split_ascii_whitespace() {
            assert!(seen.contains(hash_part(reference)), "{reference} is late");
        }
    }
}

fn lines(paths: &[String]) -> String {
    paths.iter().map(|path| format!("{path}\n")).collect()
}

/// The response has the records of single requests, in the order of the query.
#[test]
fn a_list_returns_the_narinfos_of_single_requests_in_the_requested_order() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = key_pair(dir.path(), "mass-1");
    for key in [None, Some(secret)] {
        let store = local(&sample_root());
        let mut command = nix_serve();
        command.args(["--listen", "127.0.0.1:0", "--store", &store]);
        if let Some(key) = key {
            command.env("NIX_SECRET_KEY_FILE", key);
        }
        let (_server, addr) = Process::serving(&mut command);
        let mut paths = sample_list("closure");
        paths.insert(5, sample("absent"));
        paths.insert(7, sample("not_valid"));
        paths.push(paths[0].clone());
        paths.extend([sample("signed"), sample("ca"), sample("self_reference")]);
        let expected: Vec<_> = paths.iter().map(|path| hash_part(path)).collect();
        // The second response comes from memory.
        for _ in 0..2 {
            let records = bulk(addr, &lines(&paths));
            let found: Vec<_> = records.iter().map(Record::hash_part).collect();
            assert_eq!(found, expected);
            assert_eq!(records[5], Record::Absent(hash_part(&paths[5]).to_owned()));
            check_single(addr, &records);
        }
    }
}

#[test]
fn a_line_is_a_hash_part_a_base_name_or_a_path() {
    let (_server, addr) = serve_sample(&[]);
    let path = sample("text");
    let base_name = path.rsplit('/').next().unwrap();
    let body = format!("{path}\n{base_name}\n{}", hash_part(&path));
    let records = bulk(addr, &body);
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| *record == records[0]));
    assert_eq!(bulk(addr, ""), []);
}

/// A malformed query is refused, and the error names the line.
#[test]
fn an_invalid_list_is_refused_with_the_number_of_the_line() {
    let (_server, addr) = serve_sample(&[]);
    let good = hash_part(&sample("text")).to_owned();
    for bad in ["", "nonsense", "/nix/store", "/gnu/store/x", "\r", "é"] {
        let reply = post(addr, "/narinfos", &format!("{good}\n{bad}\n{good}\n"));
        assert_eq!(reply.status, 400, "{bad:?}");
        assert!(reply.text().starts_with("Line 2 "), "{}", reply.text());
    }
    let most = format!("{good}\n").repeat(100_000);
    let reply = post(addr, "/narinfos", &most);
    assert_eq!(reply.status, 200);
    assert_eq!(records(&reply.text()).len(), 100_000);
    let reply = post(addr, "/narinfos", &(most + &good));
    assert_eq!(reply.status, 413);
    assert!(reply.text().contains("100000"), "{}", reply.text());
    let mut connection = Connection::connect(addr);
    connection.send_request("POST", "/narinfos", &["Content-Length: 16777217"]);
    assert!(
        connection
            .begin_reading(false)
            .head
            .starts_with("HTTP/1.1 413 ")
    );
}

#[test]
fn each_url_accepts_only_its_method() {
    let (_server, addr) = serve_sample(&[]);
    let closure = format!("/closure/{}", hash_part(&sample("top")));
    let mut connection = Connection::connect(addr);
    for (method, url, allowed) in [
        ("GET", "/narinfos", "POST"),
        ("HEAD", "/narinfos", "POST"),
        ("PUT", "/narinfos", "GET, HEAD"),
        ("POST", &closure, "GET, HEAD"),
        ("POST", "/nix-cache-info", "GET, HEAD"),
    ] {
        let reply = connection.request(method, url, &["Content-Length: 0"]);
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, Some(allowed)),
            "{method} {url}"
        );
    }
    for url in ["/closure/", "/closure", "/narinfos/", "/narinfos/x"] {
        assert_eq!(connection.get(url).status, 404, "{url}");
    }
    let url = format!("/closure/{}", hash_part(&sample("absent")));
    connection.check_text(&url, 404, "No such path.\n");
    connection.check_text("/closure/abc", 404, "No such path.\n");
}

#[test]
fn a_closure_equals_that_of_nix_with_references_first() {
    let (_server, addr) = serve_sample(&[]);
    for key in ["top", "self_reference", "no_references", "text_reference"] {
        let path = sample(key);
        let records = closure(addr, &path);
        check_order(&records);
        check_single(addr, &records);
        assert_eq!(records.last().unwrap().hash_part(), hash_part(&path));
        let client = Client::new();
        let mut nix = client.command("nix-store");
        nix.arg("--store").arg(sample_root());
        let expected = succeeds(nix.args(["--query", "--requisites", &path]));
        let expected: BTreeSet<_> = expected.lines().map(hash_part).collect();
        let found: BTreeSet<_> = records.iter().map(Record::hash_part).collect();
        assert_eq!(found, expected, "{key}");
    }
    let url = format!("/closure/{}", hash_part(&sample("top")));
    Connection::connect(addr).get_and_head(&url, &[]);
}

/// The limit of concurrent bulk queries, beyond which the server sends 503, applies to large
/// closures only.
#[test]
fn any_number_of_small_closures_is_answered_at_the_same_time() {
    let (_server, addr) = serve_sample(&[]);
    let url = format!("/closure/{}", hash_part(&sample("top")));
    let mut connections: Vec<_> = (0..64).map(|_| Connection::connect(addr)).collect();
    for connection in &mut connections {
        connection.send_request("GET", &url, &[]);
    }
    for connection in &mut connections {
        assert_eq!(connection.response(false).status, 200);
    }
}

/// Bulk queries and closures are also served over HTTP/2 and below a prefix.
#[test]
fn lists_and_closures_work_over_http_2_and_below_a_prefix() {
    let (_server, addr) = serve_sample(&["--path", "/cache"]);
    let path = sample("top");
    let curl = |arguments: &[&str]| {
        succeeds(
            Command::new("curl")
                .args(["-sS", "--fail", "--http2-prior-knowledge"])
                .args(arguments),
        )
    };
    let url = format!("http://{addr}/cache/closure/{}", hash_part(&path));
    let by_http2 = records(&curl(&[&url]));
    assert_eq!(by_http2.len(), sample_list("closure").len());
    let url = format!("http://{addr}/cache/narinfos");
    let paths = lines(&sample_list("closure"));
    assert_eq!(
        records(&curl(&["--data-binary", &paths, &url])).len(),
        by_http2.len()
    );
    assert_eq!(post(addr, "/narinfos", &paths).status, 405);
}

/// Inserts rows as Nix does, without files. Path `n` refers to itself and to the twenty paths
/// before it.
fn ladder(store: &OwnStore, count: u32) {
    let path = |number: &str| format!("printf('/nix/store/%032d-ladder-%d', {number}, {number})");
    sqlite(
        &store.database(),
        &format!(
            "with recursive n(i) as (values(1) union all select i + 1 from n where i < {count})
             insert into ValidPaths (path, hash, registrationTime, narSize)
             select {}, printf('sha256:%064x', i), 1700000000, 112 from n;
             with recursive n(i) as (values(0) union all select i + 1 from n where i < 20)
             insert into Refs select id, id - i from ValidPaths, n where id - i > 0;",
            path("i")
        ),
    );
}

fn ladder_path(number: u32) -> String {
    format!("/nix/store/{number:032}-ladder-{number}")
}

/// The response is truncated if a path of the closure is collected meanwhile.
#[test]
fn a_closure_response_is_aborted_if_a_path_is_collected_meanwhile() {
    const COUNT: u32 = 20_000;
    let store = OwnStore::new();
    ladder(&store, COUNT);
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (_server, addr) = Process::serving(&mut command);
    assert_eq!(closure(addr, &ladder_path(COUNT)).len(), 20_000);
    let mut connection = Connection::connect(addr);
    let url = format!("/closure/{}", hash_part(&ladder_path(COUNT)));
    connection.send_request("GET", &url, &[]);
    assert!(
        connection
            .begin_reading(false)
            .head
            .starts_with("HTTP/1.1 200 ")
    );
    // The rest of the response is longer than the socket buffers, and the deleted path comes last.
    sqlite(
        &store.database(),
        &format!("pragma foreign_keys = 1; delete from ValidPaths where id = {COUNT}"),
    );
    let (rest, is_orderly) = connection.rest();
    let rest = String::from_utf8(rest).unwrap();
    assert!(!is_orderly);
    assert!(!rest.contains("\nend "));
    assert!(rest.contains("narinfos 1 20000\n"));
    // Closures without the deleted path are still served.
    assert_eq!(closure(addr, &ladder_path(COUNT - 1)).len(), 19_999);
}

/// The response is truncated if the database fails meanwhile.
#[test]
fn a_response_is_aborted_if_the_database_fails_meanwhile() {
    const COUNT: u32 = 20_000;
    let store = OwnStore::new();
    ladder(&store, COUNT);
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (_server, addr) = Process::serving(&mut command);
    let body: String = (1..=COUNT)
        .map(|number| ladder_path(number) + "\n")
        .collect();
    let mut connection = Connection::connect(addr);
    let len = format!("Content-Length: {}", body.len());
    connection.send_request("POST", "/narinfos", &[&len]);
    connection.send(body.as_bytes());
    assert!(
        connection
            .begin_reading(false)
            .head
            .starts_with("HTTP/1.1 200 ")
    );
    let database = store.database();
    let aside = database.with_extension("aside");
    std::fs::rename(&database, &aside).unwrap();
    let (rest, is_orderly) = connection.rest();
    assert!(!is_orderly);
    assert!(!String::from_utf8_lossy(&rest).contains("\nend "));
    std::fs::rename(&aside, &database).unwrap();
    support::eventually("it is served again", || {
        post(addr, "/narinfos", &ladder_path(1)).status == 200
    });
    assert_eq!(bulk(addr, &body).len(), 20_000);
}

/// The response to a bulk query reflects the database at the time of the request.
#[test]
fn a_commit_is_seen_by_the_next_request() {
    let store = OwnStore::new();
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (_server, addr) = Process::serving(&mut command);
    for number in 0..10 {
        let path = store.add_file(&format!("file-{number}"), b"content");
        assert!(matches!(&bulk(addr, &path)[..], [Record::Path(..)]));
        assert_eq!(closure(addr, &path).len(), 1);
        store.run("nix-store", &["--delete", &path]);
        assert!(matches!(&bulk(addr, &path)[..], [Record::Absent(_)]));
        let url = format!("/closure/{}", hash_part(&path));
        assert_eq!(Connection::connect(addr).get(&url).status, 404);
    }
}
