//! The server refuses requests of the push protocol that break a rule, states the reason in one
//! sentence, and publishes nothing.

mod support;
mod support_protocol;
mod support_uploads;

use samovar_protocol::push::{BODY_LEN_MAX, PUBLISH_LEN_MAX};
use samovar_storage::DATABASE;
use samovar_storage::metadata::{Database, pushes};
use samovar_storage::token::now;
use support_protocol::{Push, narinfo_records, open_line, pack, pack_of};
use support_uploads::{MadePath, Site, assert_refused, hash, send};

const MIB: u64 = 1 << 20;

#[test]
fn a_push_needs_a_token_that_may_push() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    let (id, _) = Push::new(&server, &token).open(&[&path]);
    let requests = [
        ("POST", "open".to_owned()),
        ("PUT", format!("{id}/pack")),
        ("GET", format!("{id}/part/{}", hash(&path.nar))),
        ("POST", format!("{id}/publish")),
        ("DELETE", id.clone()),
    ];
    let reader = site.token(&["--rights", "read"]);
    let expired = site.expired_token();
    let revoked = site.token(&["--name", "revoked"]);
    site.revoke("revoked");
    for (method, target) in &requests {
        for token in ["", "smv1_unknown", expired, &revoked] {
            let response = Push::new(&server, token).send(method, target, "");
            assert_refused(&response, 401, &["token"]);
        }
        let response = Push::new(&server, &reader).send(method, target, "");
        assert_refused(&response, 403, &["may not push"]);
    }
    // The push is still open after the refused requests.
    Push::new(&server, &token).pack(&id, &[&path]);
}

#[test]
fn a_token_revoked_during_a_push_publishes_nothing() {
    let (site, server, _) = Site::serving();
    let token = site.token(&["--name", "short"]);
    let path = MadePath::new("path");
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[&path]);
    push.pack(&id, &[&path]);
    site.revoke("short");
    assert_refused(&push.publish(&id, &[&path]), 401, &["token"]);
    server.assert_lacks(&path);
}

#[test]
fn a_push_belongs_to_its_token_and_cache() {
    let (site, server, _) = Site::serving();
    site.configure_empty("[caches.a]\n[caches.b]\n");
    server.process.terminate();
    let server = site.start();
    let (token, other) = (site.token(&[]), site.token(&[]));
    let path = MadePath::new("path");
    let push = Push {
        cache: "/a",
        ..Push::new(&server, &token)
    };
    let (id, _) = push.open(&[&path]);
    let nar = hash(&path.nar);
    assert_eq!(push.part(&id, &nar, 1, &path.file).status, 200);
    let unknown = "0".repeat(32);
    for (push, id) in [
        (
            Push {
                token: &other,
                ..push
            },
            &id,
        ),
        (
            Push {
                cache: "/b",
                ..push
            },
            &id,
        ),
        (push, &unknown),
    ] {
        let requests = [
            push.send("PUT", &format!("{id}/pack"), pack(&[&path])),
            push.part(id, &nar, 1, &path.file),
            push.send("GET", &format!("{id}/part/{nar}"), ""),
            push.join(id, &nar, 1),
            push.publish(id, &[&path]),
        ];
        for response in requests {
            assert_refused(&response, 404, &["no such push", "open a new one"]);
        }
        assert_eq!(push.send("DELETE", id, "").status, 200);
    }
    assert_eq!(push.parts(&id, &nar).len(), 1);
}

#[test]
fn an_expired_push_is_gone() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[&path]);
    let nar = hash(&path.nar);
    assert_eq!(push.part(&id, &nar, 1, &path.file).status, 200);
    let database = |clock| Database::with_clock(&site.storage().join(DATABASE), clock).unwrap();
    let almost = database(|| now() + 86_400 - 60);
    pushes::remove_expired(&almost).unwrap();
    assert_eq!(push.parts(&id, &nar).len(), 1);
    let later = database(|| now() + 86_400 + 660);
    pushes::remove_expired(&later).unwrap();
    let response = push.join(&id, &nar, 1);
    assert_refused(&response, 404, &["expired"]);
    server.assert_lacks(&path);
}

#[test]
fn other_urls_and_methods_are_refused() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    for target in ["", "opened", &id[1..], &format!("{id}/x"), "../open"] {
        assert_eq!(push.send("POST", target, "").status, 404, "{target}");
    }
    assert_eq!(
        server
            .send("POST", "/upload/push/2/open", &token, "")
            .status,
        404
    );
    // The protocol exists only below `upload/`.
    assert_eq!(server.send("POST", "/push/1/open", &token, "").status, 405);
    for (method, target, allowed) in [
        ("GET", "open".to_owned(), "POST"),
        ("POST", format!("{id}/pack"), "PUT"),
        ("GET", format!("{id}/publish"), "POST"),
        ("GET", id.clone(), "DELETE"),
    ] {
        let response = push.send(method, &target, "");
        assert_refused(&response, 405, &["use", allowed]);
        assert_eq!(response.header("Allow"), Some(allowed));
    }
}

#[test]
fn bodies_need_a_length_within_the_limit_and_no_encoding() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    let part = format!("{id}/part/{}/1?sha256={}", hash(b""), "0".repeat(64));
    for (method, target, limit) in [
        ("POST", "open".to_owned(), 31_900_000),
        ("PUT", format!("{id}/pack"), BODY_LEN_MAX),
        ("PUT", part, BODY_LEN_MAX),
        ("POST", format!("{id}/publish"), PUBLISH_LEN_MAX),
    ] {
        let start = format!(
            "{method} /upload/push/1/{target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\n"
        );
        let request =
            |fields: &str| testkit::http1::exchange(server.address, format!("{start}{fields}\r\n"));
        let chunked = request("Transfer-Encoding: chunked\r\n\r\n0\r\n");
        assert_refused(&chunked, 411, &["Content-Length"]);
        let long = request(&format!("Content-Length: {}\r\n", limit + 1));
        assert_refused(&long, 413, &["the limit is", &limit.to_string()]);
        let encoded = request("Content-Encoding: zstd\r\nContent-Length: 0\r\n");
        assert_refused(&encoded, 415, &["Content-Encoding"]);
    }
}

#[test]
fn malformed_bodies_are_refused() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let path = MadePath::new("path");
    let line = open_line(&path);
    for (body, fault) in [
        (line.replace(' ', "\t"), "line 1"),
        (format!("{line}{}", line.trim_end()), "line 2"),
        (line.repeat(2).replace("\n", "\r\n"), "line 1"),
        ("x".repeat(10_000), "line 1"),
    ] {
        assert_refused(&push.send("POST", "open", body), 400, &[fault]);
    }
    let (id, _) = push.open(&[]);
    let whole = pack(&[&path]);
    let text = String::from_utf8(whole.clone()).unwrap();
    for (body, fault) in [
        (&whole[..whole.len() - 1], "ends before"),
        (&whole[..whole.len() - 20], "ends before"),
        (&text.replace("end 1", "end 2").into_bytes()[..], "record 2"),
        (&[&whole[..], b"\n"].concat()[..], "bytes follow"),
        (b"", "ends before"),
        (b"GET / HTTP/1.1\r\n", "record 1"),
    ] {
        let response = push.send("PUT", &format!("{id}/pack"), body);
        assert_refused(&response, 400, &[fault]);
    }
    let narinfo = path.narinfo();
    for (body, fault) in [
        (narinfo.clone(), "record 1"),
        (
            narinfo_records(&[narinfo]).replace("end 1", "end 0"),
            "record 2",
        ),
        (String::new(), "ends before"),
    ] {
        let response = push.send("POST", &format!("{id}/publish"), body);
        assert_refused(&response, 400, &[fault]);
    }
    server.assert_lacks(&path);
}

#[test]
fn records_are_limited_in_number_and_length() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    let line = open_line(&MadePath::new("path"));
    let many = push.send("POST", "open", line.repeat(100_001));
    assert_refused(&many, 413, &["100000"]);
    let records = |count: usize| {
        let record = (hash(b"x"), "none", &b"x"[..]);
        push.send("PUT", &format!("{id}/pack"), pack_of(&vec![record; count]))
    };
    assert_eq!(records(16_384).status, 200);
    assert_refused(&records(16_385), 413, &["16384"]);
    let path = MadePath::new("path");
    push.pack(&id, &[&path]);
    let comment = |len: usize| {
        let narinfo = path.narinfo();
        let rest = len - narinfo.len() - "Comment: \n".len();
        let text = format!("{narinfo}Comment: {}\n", "x".repeat(rest));
        let body = narinfo_records(&[text]);
        push.send("POST", &format!("{id}/publish"), body)
    };
    let mib = usize::try_from(MIB).unwrap();
    assert_refused(&comment(mib + 1), 413, &["1048576"]);
    assert_eq!(comment(mib).status, 200);
}

#[test]
fn files_that_are_not_what_they_are_said_to_be_are_refused_one_by_one() {
    let (site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    let good = MadePath::new("good").compressed("zstd");
    let other = MadePath::new("other");
    let mut corrupt = good.file.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    let nar_hash = || hash(&good.nar);
    let records: [(String, &str, &[u8]); 8] = [
        (hash(&other.nar), "zstd", &good.file),
        (nar_hash(), "zstd", &corrupt),
        (nar_hash(), "xz", &good.file),
        (nar_hash(), "zstd", &good.file[..20]),
        (nar_hash(), "none", b"not a NAR"),
        (nar_hash(), "none", b""),
        (nar_hash(), "lrzip", &good.file),
        (nar_hash(), "zstd", &good.file),
    ];
    let response = push.send("PUT", &format!("{id}/pack"), pack_of(&records));
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 9, "{text}");
    for (line, (nar_hash, ..)) in lines.iter().zip(&records).take(7) {
        let reason = line.strip_prefix(&format!("refused {nar_hash} ")).unwrap();
        assert!(reason.len() > 20, "{line}");
    }
    assert!(lines[0].contains(&hash(&good.nar)), "{}", lines[0]);
    assert_eq!(lines[7..], [&*format!("kept {}", nar_hash()), "end 1 7"]);
    let tmp = site.files();
    let mut tmp = tmp.iter().filter(|file| file.starts_with(".samovar/tmp/"));
    assert_eq!(tmp.next(), None);
    push.published(&id, &[&good]);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let path = MadePath::new("path");
    let nar = &*hash(&path.nar);
    let (id, _) = push.open(&[&path]);
    let part = |number, bytes: &[u8]| push.part(&id, nar, number, bytes);
    // The least length of a part that is not the last one.
    let (four, rest) = ([4; 65_536], [5; 65_536]);
    assert_eq!(part(2, &four[1..]).status, 200);
    assert_refused(
        &part(3, b"last"),
        409,
        &["part 2", "65535 bytes", "least 65536"],
    );
    assert_refused(&part(1, &four[1..]), 409, &["part 1", "least 65536"]);
    assert_eq!(part(1, &four).status, 200);
    assert_eq!(push.parts(&id, nar), [(1, 65_536), (2, 65_535)]);
    assert_eq!(push.send("DELETE", &id, "").status, 200);
    let (id, _) = push.open(&[&path]);
    let part = |number, bytes: &[u8]| push.part(&id, nar, number, bytes);
    assert_eq!(part(2, &four).status, 200);
    assert_refused(
        &part(2, b"three"),
        409,
        &["part 2", "5 bytes", "65536 bytes"],
    );
    assert_refused(&part(1, b"abc"), 409, &["same length"]);
    assert_refused(&part(3, &[6; 65_537]), 409, &["same length"]);
    assert_refused(&part(0, b"four"), 400, &["1 to 10000"]);
    assert_refused(&part(10_001, b"four"), 400, &["1 to 10000"]);
    assert_refused(&part(3, b""), 400, &["at least one byte"]);
    let other_hash = format!("{id}/part/{nar}/3?sha256={}", "0".repeat(64));
    assert_refused(&push.send("PUT", &other_hash, b"four"), 422, &["SHA-256"]);
    for query in ["", "?sha256=", "?sha256=00", "?sha512=00"] {
        let target = format!("{id}/part/{nar}/3{query}");
        assert_refused(&push.send("PUT", &target, b"four"), 400, &["sha256"]);
    }
    assert_eq!(push.parts(&id, nar), [(2, 65_536)]);
    // A second part with the same number and length replaces the first.
    assert_eq!(part(2, &rest).status, 200);
    assert_eq!(push.parts(&id, nar), [(2, 65_536)]);
    assert_eq!(part(1, &four).status, 200);
    for query in [
        "",
        "?parts=2",
        "?parts=x&compression=none",
        "?parts=2&compression=tar",
    ] {
        let response = push.send("POST", &format!("{id}/join/{nar}{query}"), "");
        assert_refused(&response, 400, &["parameter"]);
    }
    assert_refused(&push.join(&id, nar, 0), 400, &["1 to 10000"]);
    assert_refused(&push.join(&id, nar, 3), 409, &["part 3"]);
    // Joined parts that are not a NAR are refused and removed.
    assert_refused(&push.join(&id, nar, 2), 422, &["not a NAR"]);
    assert_eq!(push.parts(&id, nar), []);
    assert_refused(&push.join(&id, nar, 2), 409, &["part 1"]);
}

#[test]
fn narinfos_that_do_not_match_their_nar_are_refused() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    let (path, other) = (MadePath::new("path"), MadePath::new("other"));
    push.pack(&id, &[&path, &other]);
    let publish = |narinfo: String| {
        let body = narinfo_records(&[other.narinfo(), narinfo]);
        push.send("POST", &format!("{id}/publish"), body)
    };
    for (field, value, texts) in [
        ("NarSize", "7", &["NarSize is 7", "path"][..]),
        ("NarHash", "sha256:x", &["narinfo 2", "bad NarHash"]),
        (
            "StorePath",
            "/nix/store/../etc",
            &["narinfo 2", "bad StorePath"],
        ),
        ("References", "..", &["narinfo 2", "bad reference"]),
    ] {
        let response = publish(path.narinfo_with(field, value));
        assert_refused(&response, 422, texts);
    }
    let address = format!("CA: fixed:r:sha256:{}\n", hash(b"other"));
    let response = publish(path.narinfo() + &address);
    assert_refused(
        &response,
        422,
        &["CA is fixed:r:sha256:", "leave the field out"],
    );
    let response = publish(path.narinfo().trim_end().to_owned());
    assert_eq!(response.status, 422);
    for path in [&path, &other] {
        server.assert_lacks(path);
    }
    // The server ignores the URL, the compression and the file hash that the client states.
    let fields = path.narinfo();
    let fields = fields.lines().filter(|line| {
        let names = ["URL", "Compression", "FileHash", "FileSize"];
        !names.iter().any(|name| line.starts_with(name))
    });
    let narinfo: String = fields.map(|line| format!("{line}\n")).collect();
    let response = publish(narinfo);
    assert_eq!(response.status, 200, "{}", response.text());
    server.assert_serves(&path);
}

#[test]
fn a_quota_refuses_what_exceeds_it() {
    let (site, server, token) = Site::serving();
    let (first, second) = (MadePath::new("first"), MadePath::new("second"));
    // Each path counts 4 KiB besides its file.
    let quota = first.file.len() + second.file.len() + 2 * 4096 - 1;
    site.configure_empty(&format!("uploads.quota = {quota}\n"));
    server.process.terminate();
    let server = site.start();
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    push.pack(&id, &[&first]);
    push.pack(&id, &[&second]);
    let refused = push.publish(&id, &[&first, &second]);
    assert_refused(&refused, 413, &["quota"]);
    server.assert_lacks(&first);
    push.published(&id, &[&first]);
    let third = MadePath::new("third");
    let response = push.send("PUT", &format!("{id}/pack"), pack(&[&third]));
    assert_refused(&response, 413, &["quota"]);
    server.assert_serves(&first);
}

#[test]
fn the_pushes_of_a_token_are_limited() {
    let (site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let mut connection = testkit::http1::Connection::connect(server.address);
    let field = format!("Authorization: Bearer {token}");
    let mut open = || {
        let fields = [&*field, "Content-Length: 0"];
        connection.request("POST", "/upload/push/1/open", &fields)
    };
    let (id, _) = push.open(&[]);
    for _ in 1..1024 {
        let response = open();
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let refused = open();
    assert_refused(&refused, 429, &["1024 pushes"]);
    assert!(refused.header("Retry-After").is_some());
    Push::new(&server, &site.token(&[])).open(&[]);
    assert_eq!(push.send("DELETE", &id, "").status, 200);
    assert_eq!(open().status, 200);
}

#[test]
fn a_server_without_storage_does_not_know_the_protocol() {
    let site = Site::new();
    let text = std::fs::read_to_string(site.config()).unwrap();
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with("storage"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(site.config(), text).unwrap();
    let server = site.start();
    let response = send(server.address, "POST", "/upload/push/1/open", "", "");
    assert!(matches!(response.status, 404 | 405), "{}", response.text());
}
