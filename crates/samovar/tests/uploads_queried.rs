//! Bulk queries return uploaded paths as single requests do: with the same narinfos, policy and
//! access control, and each as a use of the path.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::collections::HashSet;
use std::fs;

use serde_json::Value;
use support::{samovar, sample, sample_store, user};
use support_uploads::{MadePath, Running, Site, send};
use testkit::http1::Response;
use testkit::nix::{hash_part, sample_list};

/// A record of the response to a bulk query: its hash part, and the narinfo of a found path.
type Record = (String, Result<String, &'static str>);

/// Parses a response strictly by `docs/bulk-queries.md`.
#[track_caller]
fn records(response: &Response) -> Vec<Record> {
    assert_eq!(response.status, 200, "{}", response.text());
    let text = response.text();
    let (first, mut rest) = text.split_once('\n').unwrap();
    let count: usize = first.strip_prefix("narinfos 1 ").unwrap().parse().unwrap();
    let mut records: Vec<Record> = Vec::new();
    for _ in 0..count {
        let (line, after) = rest.split_once('\n').unwrap();
        rest = after;
        let words: Vec<&str> = line.split(' ').collect();
        let (hash_part, answer) = match words[..] {
            ["path", hash_part, len] => {
                let (narinfo, after) = rest.split_at(len.parse().unwrap());
                rest = after;
                (hash_part, Ok(narinfo.to_owned()))
            }
            ["absent", hash_part] => (hash_part, Err("absent")),
            ["failed", hash_part] => (hash_part, Err("failed")),
            _ => unreachable!("{line:?}"),
        };
        records.push((hash_part.to_owned(), answer));
    }
    let number = |kind| {
        let of_kind = records.iter().filter(|(_, answer)| *answer == Err(kind));
        of_kind.count()
    };
    let (absent, failed) = (number("absent"), number("failed"));
    let found = count - absent - failed;
    assert_eq!(rest, format!("end {found} {absent} {failed}\n"));
    records
}

/// Sends a bulk query. An empty `token` is not sent.
fn post(server: &Running, token: &str, hash_parts: &[&str]) -> Response {
    let fields = match token {
        "" => String::new(),
        _ => format!("Authorization: Bearer {token}\r\n"),
    };
    let body: String = hash_parts.iter().map(|text| format!("{text}\n")).collect();
    send(server.address, "POST", "/narinfos", &fields, body)
}

fn query(server: &Running, hash_parts: &[&str]) -> Vec<Record> {
    records(&post(server, "", hash_parts))
}

fn closure(server: &Running, path: &str) -> Response {
    server.get(&format!("/closure/{}", hash_part(path)))
}

/// Asserts that single requests have the same results as the records.
#[track_caller]
fn assert_single(server: &Running, records: &[Record]) {
    for (hash_part, answer) in records {
        let single = server.get(&format!("/{hash_part}.narinfo"));
        match answer {
            Ok(narinfo) => assert_eq!((single.status, &single.text()), (200, narinfo)),
            Err("absent") => assert_eq!(single.status, 404),
            Err(_) => assert_eq!(single.status, 503),
        }
    }
}

/// Asserts that each path of a closure comes after its references, and the requested one last.
#[track_caller]
fn assert_ordered(records: &[Record], last: &str) {
    let mut seen = HashSet::new();
    for (hash, answer) in records {
        assert!(seen.insert(hash.as_str()), "{hash} occurs twice");
        let narinfo = answer.as_ref().unwrap();
        let references = narinfo
            .lines()
            .find_map(|line| line.strip_prefix("References: "));
        for reference in references.unwrap_or_default().split_ascii_whitespace() {
            assert!(seen.contains(hash_part(reference)), "{reference} is late");
        }
    }
    assert_eq!(records.last().unwrap().0, hash_part(last));
}

/// Runs `samovar query` or `samovar closure` with `--json`. Returns the document.
fn json(command: &str, server: &Running, paths: &[&str]) -> Value {
    let mut samovar = samovar();
    samovar.args([command, "--json", &server.url()]).args(paths);
    let printed = samovar.output().unwrap();
    serde_json::from_slice(&printed.stdout).unwrap()
}

#[test]
fn a_list_has_live_uploaded_and_absent_paths_in_the_requested_order() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let token = site.token(&[]);
    let uploaded: Vec<MadePath> = (0..40)
        .map(|number| MadePath::new(&format!("uploaded-{number}")))
        .collect();
    for path in &uploaded {
        server.publish(&token, path);
    }
    let absent: Vec<MadePath> = (0..40)
        .map(|number| MadePath::new(&format!("absent-{number}")))
        .collect();
    let live = sample_list("closure");
    let mut hash_parts = Vec::new();
    for (number, path) in uploaded.iter().enumerate() {
        let others = [
            live[number % live.len()].as_str(),
            &absent[number].store_path,
        ];
        hash_parts.push(path.hash_part());
        hash_parts.extend(others.map(hash_part));
    }
    hash_parts.push(uploaded[0].hash_part());
    let found = query(&server, &hash_parts);
    let order: Vec<&str> = found.iter().map(|(hash_part, _)| &**hash_part).collect();
    assert_eq!(order, hash_parts);
    for (number, (_, answer)) in found.iter().enumerate() {
        assert_eq!(answer.is_err(), number % 3 == 2 && number < 120);
    }
    assert_single(&server, &found);
    let (present, missing) = (&uploaded[0].store_path, &absent[0].store_path);
    let document = json("query", &server, &[present, missing]);
    assert_eq!(document["paths"][0]["present"], true);
    assert_eq!(document["paths"][1]["present"], false);
}

/// The live store's narinfo comes first, as for a single request.
#[test]
fn a_path_in_both_stores_has_the_narinfo_of_a_single_request() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let tree = sample("tree");
    let mut path = MadePath::new("tree");
    path.store_path.clone_from(&tree);
    server.publish(&token, &path);
    let from_upload = query(&server, &[path.hash_part()]);
    server.process.terminate();
    site.configure(&sample_store(), "");
    let server = site.start();
    let from_both = query(&server, &[path.hash_part()]);
    assert_single(&server, &from_both);
    assert_ne!(from_both, from_upload);
    assert_eq!(records(&closure(&server, &tree)).last(), from_both.last());
}

#[test]
fn the_closure_of_an_uploaded_path_has_uploaded_and_live_paths() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let token = site.token(&[]);
    let live = sample_list("closure");
    let top = live.last().unwrap();
    let shared = MadePath::new("shared").referring_to(top);
    let left = MadePath::new("left").referring_to(&shared.store_path);
    let root = MadePath::new("root")
        .referring_to(&left.store_path)
        .referring_to(&shared.store_path)
        .referring_to(top);
    let root = root.clone().referring_to(&root.store_path);
    for path in [&shared, &left, &root] {
        server.publish(&token, path);
    }
    let response = closure(&server, &root.store_path);
    let found = records(&response);
    assert_ordered(&found, &root.store_path);
    assert_single(&server, &found);
    let below = records(&closure(&server, top)).len();
    assert_eq!(found.len(), below + 3);
    let head = format!("/closure/{}", root.hash_part());
    assert_eq!(server.request("HEAD", &head, "").status, 200);
    let absent = MadePath::new("absent");
    assert_eq!(closure(&server, &absent.store_path).status, 404);
    let document = json("closure", &server, &[&root.store_path]);
    assert_eq!(document["count"], found.len());
    assert_eq!(document["missing"].as_array().unwrap().len(), 0);
    // Without its live paths, the closure is incomplete, and the command names the missing path.
    server.process.terminate();
    site.configure_empty("");
    let server = site.start();
    assert_eq!(closure(&server, &root.store_path).status, 422);
    let document = json("closure", &server, &[&root.store_path]);
    assert_eq!(document["missing"][0], **top);
}

#[test]
fn a_record_is_a_use_of_the_path_and_revives_it() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let lib = MadePath::new("lib");
    let app = MadePath::new("app").referring_to(&lib.store_path);
    let (listed, unused) = (MadePath::new("listed"), MadePath::new("unused"));
    for path in [&lib, &app, &listed, &unused] {
        server.publish(&token, path);
    }
    let use_all = || {
        assert!(query(&server, &[listed.hash_part()])[0].1.is_ok());
        assert_eq!(records(&closure(&server, &app.store_path)).len(), 2);
    };
    // Condemned paths are revived before they are reported as found.
    site.sql("update path set used_at = used_at - 3456000, condemned_at = 1");
    use_all();
    let condemned = "select name from path where condemned_at is not null";
    assert_eq!(site.sql(condemned), "unused");
    let used = "select name from path where used_at > unixepoch() - 1728000 order by name";
    assert_eq!(site.sql(used), "app\nlib\nlisted");
    // Uses of other paths are recorded later.
    site.sql("update path set used_at = used_at - 3456000");
    use_all();
    server.process.terminate();
    assert_eq!(site.sql(used), "app\nlib\nlisted");
}

#[test]
fn a_cache_that_is_not_public_answers_only_tokens_with_the_right_to_read() {
    let site = Site::new();
    let users = site.dir().join("users");
    fs::write(&users, user("ada", "secret")).unwrap();
    site.configure_empty(&format!("access.users-file = {users:?}\n"));
    let server = site.start();
    let path = MadePath::new("path");
    server.publish(&site.token(&["--rights", "push"]), &path);
    let (reading, pushing) = (
        site.token(&["--rights", "read"]),
        site.token(&["--rights", "push"]),
    );
    let found = records(&post(&server, &reading, &[path.hash_part()]));
    assert!(found[0].1.is_ok());
    let target = format!("/closure/{}", path.hash_part());
    assert_eq!(server.request("GET", &target, &reading).status, 200);
    for (token, status) in [
        (&*pushing, 403),
        ("", 401),
        ("smv1_unknown", 401),
        (site.expired_token(), 401),
    ] {
        let posted = post(&server, token, &[path.hash_part()]);
        assert_eq!(posted.status, status, "{token}");
        let closure = server.request("GET", &target, token);
        assert_eq!(closure.status, status, "{token}");
    }
    // A list that is longer than the part of a body that is received before the token is checked.
    let many = vec![path.hash_part(); 20_000];
    assert_eq!(records(&post(&server, &reading, &many)).len(), many.len());
}

#[test]
fn paths_of_other_caches_and_denied_paths_are_absent() {
    let site = Site::new();
    site.configure_empty(
        "policy.deny = [{ names = [\"denied-*\"] }]\n[caches.main]\n[caches.team]\n",
    );
    let server = site.start();
    let token = site.token(&[]);
    let publish = |cache: &str, path: &MadePath| {
        for (target, body) in [
            (path.file_target(), path.file.clone()),
            (path.target(), path.narinfo().into_bytes()),
        ] {
            let response = server.put(&token, &format!("/{cache}{target}"), body);
            assert_eq!(response.status, 200, "{}", response.text());
        }
    };
    let (path, denied, other) = (
        MadePath::new("path"),
        MadePath::new("denied-path"),
        MadePath::new("other"),
    );
    publish("main", &path);
    publish("main", &denied);
    publish("team", &other);
    let body = [&path, &denied, &other].map(|path| format!("{}\n", path.hash_part()));
    let response = send(server.address, "POST", "/main/narinfos", "", body.concat());
    let found: Vec<bool> = records(&response)
        .iter()
        .map(|(_, answer)| answer.is_ok())
        .collect();
    assert_eq!(found, [true, false, false]);
    assert!(response.text().ends_with("end 1 2 0\n"));
    for (path, status) in [(&path, 200), (&denied, 404), (&other, 404)] {
        let narinfo = server.get(&format!("/main{}", path.target()));
        let closure = server.get(&format!("/main/closure/{}", path.hash_part()));
        assert_eq!((narinfo.status, closure.status), (status, status));
    }
}

#[test]
fn paths_that_cannot_be_looked_up_are_never_reported_as_absent() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let token = site.token(&[]);
    let (path, damaged) = (MadePath::new("path"), MadePath::new("damaged"));
    for path in [&path, &damaged] {
        server.publish(&token, path);
    }
    let tree = sample("tree");
    let all = [path.hash_part(), damaged.hash_part(), hash_part(&tree)];
    site.sql("update path set name = '!' where name = 'damaged'");
    let found = query(&server, &all);
    assert_eq!(found[1].1, Err("failed"));
    assert!(found[0].1.is_ok() && found[2].1.is_ok());
    assert_single(&server, &found);
    assert_eq!(closure(&server, &damaged.store_path).status, 503);
    // Without the table, every query of uploaded paths fails.
    site.sql("pragma foreign_keys = off; alter table path rename to gone");
    assert_eq!(post(&server, "", &all).status, 503);
    assert_eq!(closure(&server, &path.store_path).status, 503);
    // The database is not queried for paths that it never had.
    let found = query(
        &server,
        &[hash_part(&tree), MadePath::new("absent").hash_part()],
    );
    assert!(found[0].1.is_ok());
    assert_eq!(found[1].1, Err("absent"));
}
