//! Errors and panics of handlers cause an error response and a report to the observer.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    Body, End, Error, Exchange, Extensions, Incident, IntoResponse, Limits, Next, Observer,
    Request, Response, Route, Router, Server,
};
use support::{Answer, Reader, connect, serve};

/// Records all incidents as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Observer for Log {
    fn incident(&self, incident: &Incident<'_>) {
        self.0.lock().unwrap().push(incident.to_string());
    }
}

fn start(router: Router) -> (Server<Router>, SocketAddr, Log) {
    let log = Log::default();
    let limits = Limits {
        stall_time: Duration::from_millis(300),
        ..Limits::default()
    };
    let (server, addr) = serve(router.observe(log.clone()), |builder| {
        builder.io_threads(1).workers(2).limits(limits)
    });
    (server, addr, log)
}

fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut reader = Reader::new(connect(addr));
    reader.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    status_and_body(&reader.next(false).unwrap())
}

fn status_and_body(answer: &Answer) -> (u16, String) {
    (
        answer.status,
        String::from_utf8(answer.body.clone()).unwrap(),
    )
}

fn answer(status: u16, text: &str) -> (u16, String) {
    (status, text.to_owned())
}

fn secret(_: &mut Request) -> Result<&'static str, Error> {
    std::fs::read("/nonexistent/secret")?;
    Ok("")
}

#[test]
fn the_cause_of_an_error_is_logged_but_not_sent() {
    let (_server, addr, log) = start(Router::new().get("/secret", secret));
    assert_eq!(get(addr, "/secret"), answer(500, "Internal Server Error\n"));
    let log = log.0.lock().unwrap();
    let [line] = log.as_slice() else {
        panic!("one incident: {log:?}");
    };
    assert!(line.starts_with("GET /secret failed: 500 "), "{line}");
    assert!(line.contains("No such file"), "{line}");
}

#[test]
fn a_client_error_is_sent_but_not_logged() {
    let router = Router::new()
        .get("/text", |_| -> Result<(), Error> {
            Err(Error::new(Status::CONFLICT, "someone was faster"))
        })
        .get("/status", |_| -> Result<(), Error> {
            Err(Status::GONE.into())
        })
        .get("/none", |_| None::<String>)
        .get("/because", |_| {
            let number = "x".parse::<u8>();
            let why = |error| Error::from(error).because(Status::BAD_REQUEST, "not a number");
            number.map_err(why).map(|number| number.to_string())
        });
    let (_server, addr, log) = start(router);
    assert_eq!(get(addr, "/text"), answer(409, "someone was faster\n"));
    assert_eq!(get(addr, "/status"), answer(410, "Gone\n"));
    assert_eq!(get(addr, "/none"), answer(404, "Not Found\n"));
    assert_eq!(get(addr, "/because"), answer(400, "not a number\n"));
    assert!(log.0.lock().unwrap().is_empty());
}

#[test]
fn one_error_handler_renders_all_errors() {
    let page = |_: Option<&Request>, error: &Error| {
        Response::html(Status::OK, format!("<p>{}", error.message()))
    };
    let router = Router::new().get("/secret", secret).on_error(page);
    let (_server, addr, _log) = start(router);
    assert_eq!(
        get(addr, "/secret"),
        answer(500, "<p>Internal Server Error")
    );
    assert_eq!(get(addr, "/none"), answer(404, "<p>Not Found"));
    assert_eq!(get(addr, "/%"), answer(400, "<p>malformed path"));
    let mut reader = Reader::new(connect(addr));
    reader.send("POST /secret HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let post = reader.next(false).unwrap();
    assert_eq!(status_and_body(&post), answer(405, "<p>Method Not Allowed"));
    assert_eq!(post.header("allow"), Some("GET, HEAD"));
}

#[test]
fn an_error_of_the_error_handler_causes_a_500() {
    let failing = |_: Option<&Request>, _: &Error| -> Result<String, Error> {
        Err(io::Error::other("worse").into())
    };
    let router = Router::new()
        .get("/secret", secret)
        .get("/panic", |_| -> &'static str { panic!("on purpose") })
        .on_error(failing);
    let (_server, addr, log) = start(router);
    assert_eq!(get(addr, "/secret"), answer(500, "Internal Server Error\n"));
    assert_eq!(get(addr, "/panic"), answer(500, "Internal Server Error\n"));
    let log = log.0.lock().unwrap();
    assert!(
        log.iter()
            .any(|line| line == "handler panicked on GET /panic"),
        "{log:?}"
    );
    drop(log);
    assert_eq!(get(addr, "/none").0, 500);
}

#[test]
fn each_return_type_has_its_response() {
    let router = Router::new()
        .get("/str", |_| "tea")
        .get("/string", |_| "té".to_owned())
        .get("/bytes", |_| vec![1_u8, 2])
        .get("/unit", |_| ())
        .get("/status", |_| Status::FORBIDDEN)
        .get("/created", |_| Status::CREATED)
        .get("/pair", |_| (Status::ACCEPTED, "later"))
        .get("/json", |_| Response::json(Status::OK, "{}"))
        .get("/redirect", |_| {
            Response::redirect(Status::SEE_OTHER, "/str")
        });
    let (_server, addr, _log) = start(router);
    let ask = |path: &str| {
        let mut reader = Reader::new(connect(addr));
        reader.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = reader.next(false).unwrap();
        let media_type = answer.header("content-type").unwrap_or("").to_owned();
        (answer.status, media_type, answer.body)
    };
    let expect = |path: &str, status: u16, media_type: &str, body: &[u8]| {
        let expected = (status, media_type.to_owned(), body.to_vec());
        assert_eq!(ask(path), expected, "{path}");
    };
    expect("/str", 200, "text/plain", b"tea");
    expect("/string", 200, "text/plain; charset=utf-8", "té".as_bytes());
    expect("/bytes", 200, "application/octet-stream", &[1, 2]);
    expect("/unit", 204, "", b"");
    expect("/status", 403, "text/plain", b"Forbidden\n");
    expect("/created", 201, "", b"");
    expect("/pair", 202, "text/plain", b"later");
    expect("/json", 200, "application/json", b"{}");
    expect("/redirect", 303, "", b"");
    assert!(
        Err::<(), _>(Error::from(Status::GONE))
            .into_response()
            .is_err()
    );
}

fn read_all(request: &mut Request) -> Result<String, Error> {
    let mut body = Vec::new();
    request.reader().read_to_end(&mut body)?;
    Ok(format!("{} bytes", body.len()))
}

#[test]
fn errors_of_request_bodies_keep_their_status() {
    let router = Router::new()
        .route(Route::post("/stream", read_all).streaming(10))
        .route(Route::post("/buffer", read_all).body_len_max(10));
    let (_server, addr, log) = start(router);
    let post = |path: &str, len: usize, body: &str| {
        let mut reader = Reader::new(connect(addr));
        reader.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}"
        ));
        reader
    };
    for path in ["/stream", "/buffer"] {
        let at_limit = post(path, 10, "0123456789").next(false).unwrap();
        assert_eq!(
            status_and_body(&at_limit),
            answer(200, "10 bytes"),
            "{path}"
        );
        let past = post(path, 11, "0123456789x").next(false).unwrap();
        assert_eq!(past.status, 413, "{path}");
    }
    let mut slow = post("/stream", 10, "01234");
    assert_eq!(slow.next(false).unwrap().status, 408);
    let mut broken = post("/stream", 10, "01234");
    broken.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(broken.next(false).unwrap().status, 400);
    let failed = |line: &&String| line.contains("failed");
    assert_eq!(log.0.lock().unwrap().iter().find(failed), None);
}

#[test]
fn a_404_does_not_wait_for_the_request_body() {
    let (_server, addr, _log) = start(Router::new().get("/a", |_| "a"));
    let mut reader = Reader::new(connect(addr));
    reader.send("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(reader.next(false).unwrap().status, 404);
}

/// Returns the response to these bytes on a new connection.
fn answer_to(addr: SocketAddr, bytes: &str) -> Answer {
    let mut reader = Reader::new(connect(addr));
    reader.send(bytes);
    reader.next(false).unwrap()
}

/// Renders an error as JSON, with the pattern of the route of its request.
fn as_json(request: Option<&Request>, error: &Error) -> Response {
    let route = match request {
        None => "no request",
        Some(request) => request.pattern().unwrap_or("no route"),
    };
    Response::json(Status::OK, format!("[\"{}\",\"{route}\"]", error.message()))
}

#[test]
fn the_error_handler_renders_refusals_of_the_engine() {
    let router = Router::new()
        .get("/panic", |_| -> &'static str { panic!("on purpose") })
        .get("/body", |_| {
            let failing = Body::pieces([Err(io::Error::other("on purpose"))]);
            Response::new(Status::OK, failing)
        })
        .route(Route::post("/small/{id}", |_| "small\n").body_len_max(10))
        .on_error(as_json);
    let (_server, addr, _log) = start(router);
    let long = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nLong: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let sized = "POST /small/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n";
    let chunked = "POST /small/1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   b\r\nelevenbytes\r\n";
    // The rest of this body is never sent.
    let slow = "POST /small/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
    for (request, status, body) in [
        (
            "GET\r\n\r\n",
            400,
            r#"["malformed request line","no request"]"#,
        ),
        (
            "GET / HTTP/1.1\r\n\r\n",
            400,
            r#"["missing, repeated or malformed Host","no request"]"#,
        ),
        (&long, 431, r#"["request head too large","no request"]"#),
        (sized, 413, r#"["request body too large","/small/{id}"]"#),
        (chunked, 413, r#"["request body too large","/small/{id}"]"#),
        (slow, 408, r#"["request timed out","/small/{id}"]"#),
        (
            "GET /panic HTTP/1.1\r\nHost: a\r\n\r\n",
            500,
            r#"["Internal Server Error","/panic"]"#,
        ),
        (
            "GET /none HTTP/1.1\r\nHost: a\r\n\r\n",
            404,
            r#"["Not Found","no route"]"#,
        ),
    ] {
        let answer = answer_to(addr, request);
        assert_eq!(status_and_body(&answer), (status, body.to_owned()));
        assert_eq!(answer.header("Content-Type"), Some("application/json"));
    }
    // Without an access log, the engine does not keep the request until its body fails.
    let failed = answer_to(addr, "GET /body HTTP/1.1\r\nHost: a\r\n\r\n");
    let expected = r#"["temporarily unavailable, try again","no request"]"#;
    assert_eq!(status_and_body(&failed), answer(503, expected));
    assert_eq!(failed.header("Retry-After"), Some("1"));
}

#[test]
fn a_full_queue_is_an_error_like_others() {
    let router = Router::new().get("/tea", |_| "tea").on_error(as_json);
    let limits = Limits {
        queue_len_max: 0,
        ..Limits::default()
    };
    let (_server, addr) = serve(router, |builder| builder.limits(limits));
    let refused = answer_to(addr, "GET /tea HTTP/1.1\r\nHost: a\r\n\r\n");
    let expected = answer(503, r#"["overloaded, try again","/tea"]"#);
    assert_eq!(status_and_body(&refused), expected);
    assert_eq!(refused.header("Retry-After"), Some("1"));
}

#[test]
fn a_panic_of_the_error_handler_is_answered_in_plain_text() {
    let router = Router::new()
        .get("/panic", |_| -> &'static str { panic!("on purpose") })
        .on_error(|_, _| -> Response { panic!("on purpose, too") });
    let (_server, addr, _log) = start(router);
    assert_eq!(get(addr, "/panic"), answer(500, "Internal Server Error\n"));
    let malformed = answer_to(addr, "GET\r\n\r\n");
    let expected = answer(400, "malformed request line\n");
    assert_eq!(status_and_body(&malformed), expected);
    assert_eq!(get(addr, "/none"), answer(500, "Internal Server Error\n"));
}

/// An identifier that middleware gives to a request.
struct Id(&'static str);

fn identify(request: &mut Request, next: Next<'_>) -> Response {
    request.extensions_mut().insert(Id("a1"));
    next.run(request)
}

/// Records pattern and identifier of all reports.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<String>>>);

impl Records {
    fn put(&self, what: &str, pattern: Option<&str>, extensions: &Extensions) {
        let id = extensions.get::<Id>().map_or("-", |id| id.0);
        let line = format!("{what} {} {id}", pattern.unwrap_or("-"));
        self.0.lock().unwrap().push(line);
    }
}

impl Observer for Records {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        assert_eq!(exchange.end, End::Complete);
        let status = exchange.status.code().to_string();
        self.put(&status, exchange.pattern, exchange.extensions);
    }

    fn incident(&self, incident: &Incident<'_>) {
        match incident {
            Incident::HandlerPanicked {
                pattern,
                extensions,
                ..
            } => self.put("panicked", *pattern, extensions),
            Incident::HandlerFailed {
                pattern,
                extensions,
                ..
            } => self.put("failed", *pattern, extensions),
            Incident::Refused { pattern, head, .. } => {
                let method = head.map_or(&b"unknown"[..], |head| head.method_name());
                let what = format!("refused {}", method.escape_ascii());
                self.put(&what, *pattern, &Extensions::default());
            }
            _ => {}
        }
    }
}

/// Sends these requests, each on a new connection, and returns what the observer was told.
fn reports(router: Router, requests: &[&str]) -> Vec<String> {
    let records = Records::default();
    let (server, addr) = serve(router.observe(records.clone()), |builder| builder);
    for request in requests {
        answer_to(addr, request);
    }
    // The observer is told after the client has the response.
    server.drain(Duration::from_secs(10));
    let mut lines = records.0.lock().unwrap().clone();
    lines.sort();
    lines
}

#[test]
fn reports_have_the_pattern_of_the_route_and_what_middleware_has_attached() {
    let router = Router::new()
        .get("/users/{name}", |_| "tea")
        .get("/panics/{id}", |_| -> &'static str { panic!("on purpose") })
        .get("/fails/{id}", secret)
        .route(Route::post("/notes/{id}", |_| "noted").body_len_max(10))
        .wrap(identify);
    let requests = [
        "GET /users/ann HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /panics/1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /fails/1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /notes/7 HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n",
        "POST /notes/7\r\n\r\n",
    ];
    assert_eq!(
        reports(router, &requests),
        [
            "200 /users/{name} a1",
            "404 - a1",
            "500 /fails/{id} a1",
            "500 /panics/{id} a1",
            "failed /fails/{id} a1",
            "panicked /panics/{id} a1",
            "refused POST /notes/{id} -",
            "refused unknown - -",
        ]
    );
    let inline = Router::new().route(Route::get("/inline/{id}", |_| "worker").inline(
        |_, params, reply| {
            assert_ne!(params.get("id"), Some("panic"), "on purpose");
            reply.response(Response::text(Status::OK, "inline"))
        },
    ));
    let requests = [
        "GET /inline/1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /inline/panic HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    assert_eq!(
        reports(inline, &requests),
        [
            "200 /inline/{id} -",
            "500 /inline/{id} -",
            "panicked /inline/{id} -",
        ]
    );
}

#[test]
fn an_error_cannot_forge_a_line_of_the_log() {
    let forging = |_: &mut Request| -> Result<(), Error> {
        let message = "line one\nFORGED 127.0.0.1 GET /admin 200\u{1b}[2J";
        Err(Error::new(Status::INTERNAL_SERVER_ERROR, message))
    };
    let (_server, addr, log) = start(Router::new().get("/forge", forging));
    assert_eq!(get(addr, "/forge").0, 500);
    let log = log.0.lock().unwrap();
    let line = "GET /forge failed: 500 line one\\nFORGED 127.0.0.1 GET /admin 200\\u{1b}[2J";
    assert_eq!(log.as_slice(), [line]);
}

/// The test runs itself as another process, whose standard error it reads.
#[test]
fn the_default_observer_names_the_request_of_a_panic() {
    const NAME: &str = "the_default_observer_names_the_request_of_a_panic";
    const CHILD: &str = "SAMOVAR_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let router = Router::new().get("/panic", |_| -> &'static str { panic!("on purpose") });
        let (_server, addr) = serve(router, |builder| builder);
        assert_eq!(get(addr, "/panic").0, 500);
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("\nhandler panicked on GET /panic\n"),
        "{text}"
    );
}
