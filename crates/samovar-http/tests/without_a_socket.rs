//! A test calls handlers and routers without a socket, and gets the response that a client would
//! get.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use samovar_http::http::Status;
use samovar_http::{Body, Error, Next, Request, Response, Route, Router, with};

fn get(router: &Router, target: &str) -> (u16, String) {
    read(router.answer(Request::builder("GET", target).build()))
}

fn read(response: Response) -> (u16, String) {
    let status = response.status().code();
    let body = response.into_bytes().unwrap();
    (status, String::from_utf8(body).unwrap())
}

#[test]
fn a_request_has_what_was_given() {
    let peer = samovar_http::Peer::Unix(None);
    let mut request = Request::builder("PATCH", "/a/b?c=d")
        .header("X-Name", "value")
        .body("12345")
        .peer(peer)
        .build();
    let head = request.head();
    assert_eq!(head.method_name(), b"PATCH");
    assert_eq!(
        (head.path(), head.query()),
        (&b"/a/b"[..], Some(&b"c=d"[..]))
    );
    assert_eq!(head.header_text("x-name"), Some("value"));
    assert_eq!(head.header_text("host"), Some("localhost"));
    assert_eq!(head.header_text("content-length"), Some("5"));
    assert_eq!(head.peer(), peer);
    let mut read = String::new();
    std::io::Read::read_to_string(&mut request.reader(), &mut read).unwrap();
    assert_eq!(read, "12345");
    let request = Request::builder("GET", "/").header("Host", "a").build();
    assert_eq!(request.head().header_text("host"), Some("a"));
    assert_eq!(request.head().header("content-length"), None);
}

#[test]
#[should_panic(expected = "a server refuses this request")]
fn a_request_that_no_client_can_send_is_refused() {
    drop(Request::builder("GET", "/a b").build());
}

#[test]
fn routes_middleware_and_errors_run() {
    fn fails(_: &mut Request) -> Result<String, Error> {
        Ok(std::fs::read_to_string("/nonexistent/file")?)
    }
    let router = Router::new()
        .get("/hello/{name}", |request: &mut Request| {
            request.param("name").unwrap_or_default().to_owned()
        })
        .get("/fails", fails)
        .wrap(|request, next| next.run(request).header("X-Wrapped", "yes"))
        .on_error(|_, error: &Error| format!("own {}", error.status().code()));
    assert_eq!(get(&router, "/hello/Ada"), (200, "Ada".into()));
    assert_eq!(get(&router, "/fails"), (500, "own 500".into()));
    assert_eq!(get(&router, "/absent"), (404, "own 404".into()));
    let response = router.answer(Request::builder("POST", "/fails").build());
    assert_eq!(response.header_text("ALLOW"), Some("GET, HEAD"));
    assert_eq!(response.header_text("x-wrapped"), Some("yes"));
    assert_eq!(response.headers().count(), 3);
}

#[test]
fn the_limit_of_a_body_is_that_of_the_route() {
    let echo = |request: &mut Request| request.body().to_vec();
    let router = Router::new().route(Route::post("/", echo).body_len_max(3));
    let post = |body: &str| read(router.answer(Request::builder("POST", "/").body(body).build()));
    assert_eq!(post("123"), (200, "123".into()));
    assert_eq!(post("1234"), (413, "request body too large\n".into()));

    fn read_all(request: &mut Request) -> Result<String, Error> {
        let in_memory_len = request.body().len();
        let text = std::io::read_to_string(request.reader())?;
        Ok(format!("{in_memory_len} {text}"))
    }
    let router = Router::new().route(Route::post("/", read_all).streaming(3));
    let post = |body: &str| read(router.answer(Request::builder("POST", "/").body(body).build()));
    assert_eq!(post("123"), (200, "0 123".into()));
    assert_eq!(post("1234"), (413, "request body too large\n".into()));
}

#[test]
fn bodies_of_all_kinds_are_read() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"0123456789").unwrap();
    let range = file.try_clone().unwrap();
    let router = Router::new()
        .get("/pieces", |_| {
            let pieces = (0..10_000).map(|number| Ok(format!("{number:08}").into_bytes()));
            Response::new(Status::OK, Body::pieces(pieces))
        })
        .get("/file", move |_| {
            let body = Body::file_range(range.try_clone().unwrap(), 3..6);
            Response::new(Status::OK, body)
        })
        .get("/channel", |_| {
            let (sender, body) = Body::channel();
            std::thread::spawn(move || {
                sender.send("one").unwrap();
                sender.send("two").unwrap();
                sender.finish();
            });
            Response::new(Status::OK, body)
        })
        .get("/broken", |_| {
            let (sender, body) = Body::channel();
            drop(sender);
            Response::new(Status::OK, body)
        })
        .get("/later", |_| {
            let (responder, response) = Response::later();
            std::thread::spawn(move || responder.respond(Response::text(Status::OK, "late")));
            response
        });
    assert_eq!(get(&router, "/pieces").1.len(), 80_000);
    assert_eq!(get(&router, "/file").1, "345");
    assert_eq!(get(&router, "/channel").1, "onetwo");
    assert_eq!(get(&router, "/later").1, "late");
    let wrapped = router.wrap(|request, next| {
        let response = next.run(request).header("Vary", "Origin");
        response
            .set_header("Content-Type", "unused")
            .header("X-Id", "7")
    });
    let later = wrapped.answer(Request::builder("GET", "/later").build());
    let fields: Vec<_> = later.headers().map(|(name, _)| name).collect();
    assert_eq!(fields, ["Content-Type", "Vary", "X-Id"]);
    assert_eq!(later.header_text("content-type"), Some("text/plain"));
    let router = wrapped;
    let broken = router.answer(Request::builder("GET", "/broken").build());
    assert!(broken.into_bytes().is_err());
}

#[derive(Default)]
struct App {
    count: AtomicUsize,
}

impl App {
    fn shared(self: &Arc<Self>, _: &mut Request) -> String {
        format!("{}", Arc::strong_count(self))
    }

    fn borrowed(&self, _: &mut Request) -> String {
        format!("{}", self.count.load(Ordering::Relaxed))
    }

    fn count(&self, request: &mut Request, next: Next<'_>) -> Response {
        self.count.fetch_add(1, Ordering::Relaxed);
        next.run(request)
    }

    fn count_shared(self: &Arc<Self>, request: &mut Request, next: Next<'_>) -> Response {
        self.count(request, next)
    }
}

#[test]
fn handlers_and_middleware_take_a_shared_value_or_its_arc() {
    let app = Arc::new(App::default());
    let counted = Route::get("/borrowed", with(&app, App::borrowed));
    let router = Router::new()
        .get("/shared", with(&app, App::shared))
        .route(counted.wrap_with(&app, App::count_shared))
        .wrap_with(&app, App::count);
    assert_eq!(get(&router, "/borrowed").1, "2");
    assert_eq!(get(&router, "/borrowed").1, "4");
    assert_eq!(get(&router, "/shared").1, "5");
}
