//! Every example behaves as its header states. `cargo test` builds the examples; this test runs
//! them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use samovar_web::multipart::MultipartError;
use serde_json::{Value, json};
use support::{Answer, Connection};
use testkit::process::Process;
use testkit::{eventually, free_port};

fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().nth(2).unwrap().join("examples").join(name);
    let remedy = "build it with `cargo build --examples`";
    assert!(program.exists(), "{}: {remedy}", program.display());
    program
}

/// Sends a request with fields and a body, on a connection of its own.
fn ask(addr: SocketAddr, request: &str, fields: &[&str], body: &str) -> Answer {
    let mut client = Connection::connect(addr);
    let lines: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let len = body.len();
    client.send(format!(
        "{request} HTTP/1.1\r\nHost: a\r\n{lines}Content-Length: {len}\r\n\r\n{body}"
    ));
    client.response(request.starts_with("HEAD"))
}

#[test]
fn basic_multipart() {
    let folder = tempfile::tempdir().unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(program("basic_multipart"));
    let _process = Process::spawn(command.arg(addr.to_string()).arg(folder.path()));
    eventually("the example listens", || {
        Connection::try_connect(addr).is_ok()
    });
    let page = ask(addr, "GET /", &[], "").text();
    assert!(page.contains("enctype=\"multipart/form-data\""), "{page}");
    let media_type = "Content-Type: multipart/form-data; boundary=b";
    let body = "--b\r\nContent-Disposition: form-data; name=title\r\n\r\nTea\r\n\
                --b\r\nContent-Disposition: form-data; name=photo; filename=\"../tea.jpg\"\r\n\r\n\
                123\r\n--b--\r\n";
    let answer = ask(addr, "POST /upload", &[media_type], body);
    assert_eq!(answer.text(), "title: Tea\nphoto: file 0, 3 bytes\n");
    let stored = std::fs::read(folder.path().join("0")).unwrap();
    assert_eq!(stored, b"123");
    let cut = ask(addr, "POST /upload", &[media_type], "--b\r\n");
    assert_eq!(cut.status, 400);
    assert_eq!(cut.text(), format!("{}\n", MultipartError::Truncated));
}

struct Pastebin {
    process: Process,
    addr: SocketAddr,
}

impl Pastebin {
    fn start(database: &Path) -> Self {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(program("pastebin"));
        let process = Process::spawn(command.arg(addr.to_string()).arg(database));
        eventually("the pastebin listens", || {
            Connection::try_connect(addr).is_ok()
        });
        Self { process, addr }
    }

    fn call(&self, request: &str, fields: &[&str], body: &Value) -> Answer {
        let json = ["Content-Type: application/json"];
        ask(
            self.addr,
            request,
            &[fields, &json].concat(),
            &body.to_string(),
        )
    }

    fn get(&self, target: &str, fields: &[&str]) -> Answer {
        ask(self.addr, &format!("GET {target}"), fields, "")
    }

    /// Returns the `Cookie` field of a new session.
    fn log_in(&self, name: &str) -> String {
        let answer = self.call("POST /api/session", &[], &json!({ "name": name }));
        assert_eq!(answer.status, 204);
        let field = answer.header("set-cookie").unwrap();
        assert!(field.contains("; HttpOnly; SameSite=Lax"), "{field}");
        format!("Cookie: {}", field.split(';').next().unwrap())
    }
}

#[test]
fn the_pastebin_keeps_pastes_of_its_users() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("pastes.db");
    let pastebin = Pastebin::start(&database);
    let draft = json!({ "title": "Tea", "text": "Earl Grey" });
    let refused = pastebin.call("POST /api/pastes", &[], &draft);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json(), json!({ "error": "log in first" }));

    let ada = &*pastebin.log_in("Ada");
    assert_eq!(
        pastebin.get("/api/session", &[ada]).json(),
        json!({ "name": "Ada" })
    );
    let added = pastebin.call("POST /api/pastes", &[ada], &draft);
    assert_eq!(added.status, 201);
    let url = added.header("location").unwrap();
    assert!(added.header("x-request-id").is_some());
    let shown = pastebin.get(url, &[]);
    assert_eq!(shown.json(), added.json());
    assert_eq!(shown.json()["author"], "Ada");
    let etag = shown.header("etag").unwrap();
    let cached = pastebin.get(url, &[&format!("If-None-Match: {etag}")]);
    assert_eq!((cached.status, cached.body.len()), (304, 0));
    let raw = pastebin.get("/raw/1", &[]);
    assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(
        (raw.text(), raw.header("etag")),
        ("Earl Grey".into(), Some(etag))
    );

    let change = json!({ "title": "Tea", "text": "Assam" });
    let put = format!("PUT {url}");
    let matches = format!("If-Match: {etag}");
    let bob = &*pastebin.log_in("Bob");
    assert_eq!(pastebin.call(&put, &[bob], &change).status, 403);
    assert_eq!(pastebin.call(&put, &[ada, &matches], &change).status, 200);
    assert_eq!(pastebin.call(&put, &[ada, &matches], &change).status, 412);
    assert_eq!(pastebin.get("/raw/1", &[]).text(), "Assam");

    // The pastes and sessions survive a restart.
    pastebin.process.terminate();
    let pastebin = Pastebin::start(&database);
    let of_ada = json!([{ "id": 1, "author": "Ada", "title": "Tea" }]);
    assert_eq!(pastebin.get("/api/pastes?author=Ada", &[]).json(), of_ada);
    assert_eq!(pastebin.get("/api/pastes?page=2", &[]).json(), json!([]));
    let delete = format!("DELETE {url}");
    assert_eq!(ask(pastebin.addr, &delete, &[ada], "").status, 204);
    assert_eq!(ask(pastebin.addr, &delete, &[ada], "").status, 404);
    assert_eq!(
        ask(pastebin.addr, "DELETE /api/session", &[ada], "").status,
        204
    );
    assert_eq!(
        pastebin.get("/api/session", &[ada]).json(),
        json!({ "name": null })
    );
}

#[test]
fn the_pastebin_explains_errors_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let pastebin = Pastebin::start(&folder.path().join("pastes.db"));
    let ada = &*pastebin.log_in("Ada");
    let message = |answer: &Answer| answer.json()["error"].as_str().unwrap().to_owned();
    let malformed = pastebin.call("POST /api/pastes", &[ada], &json!({ "title": "Tea" }));
    assert_eq!(malformed.status, 400);
    let expected = "malformed JSON: missing field `text` at line 1 column 15";
    assert_eq!(message(&malformed), expected);
    let id = pastebin.get("/api/pastes/tea", &[]);
    let expected = "the path parameter \"id\" is malformed: invalid digit found in string";
    assert_eq!((id.status, &*message(&id)), (400, expected));
    let absent = pastebin.get("/api/pastes/7", &[]);
    assert_eq!(
        (absent.status, &*message(&absent)),
        (404, "there is no such paste")
    );
    let long = "x".repeat(300_000);
    let long = json!({ "title": "Tea", "text": long });
    let large = pastebin.call("POST /api/pastes", &[ada], &long);
    assert_eq!(
        (large.status, &*message(&large)),
        (413, "request body too large")
    );
}

#[test]
fn the_pastebin_serves_its_pages_and_ends_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut pastebin = Pastebin::start(&folder.path().join("pastes.db"));
    let page = pastebin.get("/", &[]);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let script = pastebin.get("/static/pastebin.js", &[]);
    let etag = script.header("etag").unwrap();
    let field = format!("If-None-Match: {etag}");
    assert_eq!(pastebin.get("/static/pastebin.js", &[&field]).status, 304);
    let range = pastebin.get("/static/pastebin.js", &["Range: bytes=0-11"]);
    assert_eq!((range.status, range.text()), (206, "\"use strict\"".into()));
    for target in [
        "/static/../main.rs",
        "/static/%2e%2e/main.rs",
        "/static/absent",
    ] {
        assert_eq!(pastebin.get(target, &[]).status, 404, "{target}");
    }
    pastebin
        .process
        .wait_for("\"GET /static/absent HTTP/1.1\" 404");
    pastebin.process.signal("TERM");
    assert_eq!(pastebin.process.wait(), Some(0));
}
