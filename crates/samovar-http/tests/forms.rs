//! Queries and forms decode to the values that the client has encoded.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;

use samovar_http::http::Pairs;
use samovar_http::{Error, Request, Route, Router, Server};
use support::{Answer, Reader, connect, serve};

fn start(router: Router) -> (Server<Router>, SocketAddr) {
    serve(router, |builder| builder.io_threads(1).workers(2))
}

fn ask(addr: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
    let mut reader = Reader::new(connect(addr));
    reader.send(request);
    reader.next(false).unwrap()
}

fn show(pairs: &Pairs) -> String {
    pairs
        .iter()
        .map(|(name, value)| format!("[{name}={value}]"))
        .collect()
}

#[test]
fn queries() {
    let (_server, addr) = start(Router::new().get("/", |request| show(&request.query())));
    let query = |target: &str| {
        let answer = ask(addr, format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        String::from_utf8(answer.body).unwrap()
    };
    assert_eq!(query("/"), "");
    assert_eq!(query("/?"), "");
    assert_eq!(
        query("/?q=black+tea&tag=a&tag=b&x"),
        "[q=black tea][tag=a][tag=b][x=]"
    );
    assert_eq!(query("/?%C3%B1=%26%3F&a=b=c?d"), "[ñ=&?][a=b=c?d]");
}

fn form(request: &mut Request) -> Result<String, Error> {
    Ok(show(&request.form()?))
}

fn post(addr: SocketAddr, path: &str, media_type: &str, body: &str) -> (u16, String) {
    let len = body.len();
    let answer = ask(
        addr,
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media_type}\r\n\
             Content-Length: {len}\r\n\r\n{body}"
        ),
    );
    (answer.status, String::from_utf8(answer.body).unwrap())
}

#[test]
fn forms() {
    let router = Router::new()
        .post("/buffered", form)
        .route(Route::post("/streamed", form).streaming(10 << 20));
    let (_server, addr) = start(router);
    for path in ["/buffered", "/streamed"] {
        let post = |media_type: &str, body: &str| post(addr, path, media_type, body);
        const FORM: &str = "application/x-www-form-urlencoded";
        assert_eq!(
            post(FORM, "a=1&b=%20+&a=2"),
            (200, "[a=1][b=  ][a=2]".into())
        );
        assert_eq!(
            post("Application/X-WWW-Form-Urlencoded; charset=utf-8", "a"),
            (200, "[a=]".into())
        );
        assert_eq!(post(FORM, ""), (200, String::new()));
        assert_eq!(post("text/plain", "a=1").0, 415);
        assert_eq!(post(FORM, &"a&".repeat(1000)).0, 200);
        assert_eq!(post(FORM, &"a&".repeat(1001)).0, 413);
        let at_limit = "a".repeat(1 << 20);
        assert_eq!(post(FORM, &at_limit).0, 200);
        assert_eq!(post(FORM, &(at_limit + "a")).0, 413);
    }
}
