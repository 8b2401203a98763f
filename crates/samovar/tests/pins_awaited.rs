//! Clients wait for the next generation of a pin, and learn each change: by any client, by a
//! command on the server, and by its removal. Waiting requests do not delay others.

mod support;
mod support_pins;
mod support_uploads;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use support::samovar;
use support_pins::Pins;
use support_uploads::{assert_refused, send};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::process::output;

/// Maximum number of waiting requests with one token.
const WAITER_COUNT_MAX: usize = 256;

/// Returns a server with two uploaded paths. The first one is pinned as `main`.
fn scene() -> Pins {
    let pins = Pins::new(&["one", "two"]);
    pins.set("main", 0);
    pins
}

impl Pins {
    /// Runs `samovar pin` on the storage.
    fn pin(&self, arguments: &[&str]) {
        let mut command: Command = samovar();
        command.arg("pin").arg(arguments[0]).arg("--storage");
        command.arg(self.site.storage()).args(&arguments[1..]);
        output(&mut command);
    }

    /// Sends a request that waits until the newest generation is not `known`.
    fn wait(&self, token: &str, known: u64) -> Connection {
        let mut connection = Connection::connect(self.server.address);
        let sent = write!(
            connection.stream,
            "GET /upload/pin/main?wait=50 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
             If-None-Match: \"{known}\"\r\n\r\n"
        );
        sent.expect("the server reads");
        connection
    }

    /// Runs `action` while as many requests wait for a change of generation `known` as one token
    /// permits. Returns the status and the text of each response.
    fn while_waiting(&self, token: &str, known: u64, action: impl FnOnce()) -> Vec<(u16, String)> {
        let responses = Mutex::new(Vec::new());
        let refusals = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..=WAITER_COUNT_MAX {
                scope.spawn(|| {
                    let response = self.wait(token, known).response(false);
                    let all = match response.status {
                        429 => &refusals,
                        _ => &responses,
                    };
                    all.lock().expect("no panic").push(response);
                });
            }
            // One request more than permitted is refused once all others wait.
            eventually("a request is refused", || {
                !refusals.lock().expect("no panic").is_empty()
            });
            action();
        });
        let refusals = refusals.into_inner().expect("no panic");
        assert_eq!(refusals.len(), 1);
        assert_refused(&refusals[0], 429, &["256 with one token"]);
        assert!(refusals[0].header("retry-after").is_some());
        let responses = responses.into_inner().expect("no panic");
        let responses = responses
            .iter()
            .map(|response| (response.status, response.text()));
        responses.collect()
    }
}

#[test]
fn each_change_answers_a_waiting_request() {
    const ROUND_COUNT: u64 = 60;
    let pins = scene();
    for round in 1..=ROUND_COUNT {
        let mut waiting = pins.wait(&pins.token, round);
        // The change may come before or after the server has received the request.
        let path = usize::from(round % 2 == 1);
        pins.set("main", path);
        let response = waiting.response(false);
        let text = response.text();
        let expected = format!("generation {} {} ", round + 1, pins.paths[path]);
        assert!(text.starts_with(&expected), "{text}");
        let tag = response.header("etag").expect("a tag");
        assert_eq!(response.status, 200);
        assert!(tag.starts_with(&format!("\"{}-", round + 1)), "{tag}");
    }
    let mut waiting = pins.wait(&pins.token, ROUND_COUNT + 1);
    pins.remove("main");
    assert_eq!(waiting.response(false).status, 404);
}

#[test]
fn changes_by_commands_answer_waiting_requests() {
    let pins = scene();
    let mut waiting = pins.wait(&pins.token, 1);
    pins.pin(&["add", "main", &pins.paths[1]]);
    let response = waiting.response(false);
    assert_eq!(response.status, 200);
    let tag = response.header("etag").expect("a tag");
    assert!(tag.starts_with("\"2-"), "{tag}");
    let mut waiting = pins.wait(&pins.token, 2);
    pins.pin(&["remove", "main"]);
    assert_eq!(waiting.response(false).status, 404);
}

#[test]
fn a_pin_that_does_not_change_is_answered_after_the_time() {
    let pins = scene();
    let get = |query: &str, fields: &str| {
        let fields = format!("Authorization: Bearer {}\r\n{fields}", pins.token);
        let target = format!("/upload/pin/{query}");
        send(pins.server.address, "GET", &target, &fields, "")
    };
    let known = "If-None-Match: \"1\"\r\n";
    for method in ["GET", "HEAD"] {
        let mut connection = Connection::connect(pins.server.address);
        let authorization = format!("Authorization: Bearer {}", pins.token);
        let fields = [&*authorization, "If-None-Match: \"1\""];
        let response = connection.request(method, "/upload/pin/main?wait=1", &fields);
        assert_eq!(response.status, 304, "{method}");
        let tag = response.header("etag").expect("a tag");
        assert!(tag.starts_with("\"1-"), "{tag}");
        assert!(response.body.is_empty());
        // The connection remains usable.
        let response = connection.request("GET", "/upload/pin/main", &fields);
        assert_eq!(response.status, 304);
    }
    assert_eq!(get("main?wait=60", "If-None-Match: \"2\"\r\n").status, 200);
    assert_eq!(get("other?wait=60", known).status, 404);
    for (query, fields, part) in [
        ("main?wait=0", known, "wait is \"0\""),
        ("main?wait=61", known, "from 1 to 60"),
        ("main?wait=x", known, "wait is \"x\""),
        ("main?wait=1", "", "needs If-None-Match"),
        ("?wait=1", known, "\"wait\""),
    ] {
        assert_refused(&get(query, fields), 400, &[part]);
    }
}

#[test]
fn waiting_requests_are_limited_and_do_not_delay_others() {
    let pins = scene();
    let responses = pins.while_waiting(&pins.token, 1, || {
        // A request with another token may wait.
        let other = pins.site.token(&["--rights", "read"]);
        let mut waiting = pins.wait(&other, 1);
        pins.set("main", 1);
        assert_eq!(waiting.response(false).status, 200);
    });
    assert_eq!(responses.len(), WAITER_COUNT_MAX);
    for (status, text) in responses {
        assert_eq!(status, 200, "{text}");
        assert!(text.starts_with("generation 2 "), "{text}");
    }
}

#[test]
fn clients_that_have_left_do_not_count() {
    let pins = scene();
    let left: Vec<Connection> = (0..=WAITER_COUNT_MAX)
        .map(|_| pins.wait(&pins.token, 1))
        .collect();
    drop(left);
    // The requests of clients that have left may arrive late.
    for _ in 0..3 {
        eventually("a request may wait", || {
            let fields = format!(
                "Authorization: Bearer {}\r\nIf-None-Match: \"1\"\r\n",
                pins.token
            );
            let target = "/upload/pin/main?wait=1";
            let response = send(pins.server.address, "GET", target, &fields, "");
            assert!(matches!(response.status, 304 | 429), "{}", response.text());
            response.status == 304
        });
    }
}

#[test]
fn a_reload_and_a_stop_answer_waiting_requests() {
    let pins = scene();
    let reload = || pins.server.process.signal("HUP");
    let responses = pins.while_waiting(&pins.token, 1, reload);
    assert!(
        responses.iter().all(|(status, _)| *status == 304),
        "{responses:?}"
    );
    let stop = || pins.server.process.signal("TERM");
    let responses = pins.while_waiting(&pins.token, 1, stop);
    assert!(
        responses.iter().all(|(status, _)| *status == 304),
        "{responses:?}"
    );
    let mut process = pins.server.process;
    assert_eq!(process.wait(), Some(0));
    assert_eq!(process.count("aborted"), 0);
}

#[test]
fn a_token_that_is_revoked_meanwhile_reads_nothing() {
    let pins = scene();
    let reader = pins.site.token(&["--rights", "read", "--name", "reader"]);
    let responses = pins.while_waiting(&reader, 1, || {
        pins.site.revoke("reader");
        pins.set("main", 1);
    });
    for (status, text) in responses {
        assert_eq!(status, 401, "{text}");
        assert!(text.contains("revoked"), "{text}");
    }
}

#[test]
fn requests_over_http2_wait_too() {
    let pins = scene();
    let target = format!("{}/upload/pin/main?wait=50", pins.server.url());
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http2-prior-knowledge", "--header"]);
    curl.arg(format!("Authorization: Bearer {}", pins.token));
    curl.args([
        "--header",
        "If-None-Match: \"1\"",
        "--write-out",
        "%{http_code}\\n",
    ]);
    let waiting = curl
        .arg(&target)
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl starts");
    pins.set("main", 1);
    let text = waiting.wait_with_output().expect("curl ends").stdout;
    let text = String::from_utf8(text).expect("is text");
    assert!(
        text.starts_with("generation 2 ") && text.ends_with("\n200\n"),
        "{text}"
    );
}
