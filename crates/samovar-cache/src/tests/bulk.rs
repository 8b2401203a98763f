//! Bulk queries refuse lists beyond their limits, and send their answers completely or abort them.

use super::{Answer, TestServer};
use crate::CacheConfig;

fn server() -> TestServer {
    TestServer::new(CacheConfig::default())
}

fn post(server: &TestServer, fields: &str, body: &str) -> Option<Answer> {
    let fields = format!("Content-Length: {}\r\n{fields}", body.len());
    server.request_with_body("POST", "/narinfos", &fields, body)
}

#[test]
fn a_list_of_100_000_paths_is_answered_and_a_longer_one_is_refused() {
    let server = server();
    let line = "0".repeat(32) + "\n";
    let answer = post(&server, "", &line.repeat(100_000)).unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("\nend 0 100000 0\n"));
    let answer = post(&server, "", &line.repeat(100_001)).unwrap();
    assert_eq!(answer.status, 413);
    assert!(answer.text().starts_with("Line 100001 is one too many"));
}

#[test]
fn each_line_is_answered_in_order_also_a_repeated_one() {
    let server = server();
    let info = server.store.add_file("a", b"a");
    let (found, absent) = (info.path.hash_part().to_string(), "0".repeat(32));
    let body = format!("{found}\n{absent}\n/nix/store/{}\n", info.path.base_name());
    let narinfo = server.narinfo(&info);
    let record = format!("path {found} {}\n{}", narinfo.body.len(), narinfo.text());
    let expected = format!("narinfos 1 3\n{record}absent {absent}\n{record}end 2 1 0\n");
    let answer = post(&server, "", &body).unwrap();
    assert!(answer.text().contains(&record) && answer.text().contains("end 2 1 0\n"));
    assert_eq!(unchunked(answer.text()), expected);
    let answer = post(&server, "", "").unwrap();
    assert_eq!(unchunked(answer.text()), "narinfos 1 0\nend 0 0 0\n");
}

#[test]
fn an_invalid_list_is_refused_with_the_number_of_the_line() {
    let server = server();
    let absent = "0".repeat(32);
    let answer = post(&server, "", &format!("{absent}\nnonsense\n")).unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.text().starts_with("Line 2 is neither"));
    let coding = "Content-Encoding: gzip\r\n";
    assert_eq!(post(&server, coding, &absent).unwrap().status, 415);
    let coding = "Content-Encoding: Identity\r\n";
    assert_eq!(post(&server, coding, &absent).unwrap().status, 200);
}

#[test]
fn a_store_that_fails_in_the_middle_is_never_reported_as_absent_paths() {
    let server = server();
    let body = ("0".repeat(32) + "\n").repeat(30_000);
    // The store fails before anything is sent.
    server.store.fail_after(Some(50));
    assert_eq!(post(&server, "", &body).unwrap().status, 503);
    // The store fails after the first pieces were sent.
    server.store.fail_after(Some(29_000));
    assert_eq!(post(&server, "", &body), None);
    server.store.fail_after(None);
    let answer = post(&server, "", &body).unwrap();
    assert!(answer.text().contains("end 0 30000 0\n"));
}

#[test]
fn a_closure_is_sent_completely_or_refused() {
    let server = server();
    let infos = ["a", "b", "c"].map(|name| server.store.add_file(name, b"x"));
    let [a, b, c] = infos.each_ref().map(|info| info.path.clone());
    server
        .store
        .change(&a, |info| info.references = vec![b.clone()]);
    server
        .store
        .change(&b, |info| info.references = vec![c.clone()]);
    let get = || server.get(&format!("/closure/{}", a.hash_part()));
    assert!(get().text().contains("end 3 0 0\n"));
    server.store.unregister(&c);
    assert_ne!(get().status, 200);
    server.store.restore(&infos[2]);
    assert_eq!(get().status, 200);
    server.store.unregister(&a);
    assert_eq!(get().status, 404);
}

/// Decodes a chunked body.
fn unchunked(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((len, rest)) = text.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap();
        body.push_str(&rest[..len]);
        text = &rest[len + 2..];
    }
    body
}
