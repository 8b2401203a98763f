//! A mounted router keeps its middleware and its error handler to its own routes and to what is
//! missing below its prefix.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;

use samovar_http::http::Status;
use samovar_http::{Error, Next, Request, Response, Route, Router, Server};
use support::{Answer, Reader, connect, refused, serve};

fn start(router: Router) -> (Server<Router>, SocketAddr) {
    serve(router, |builder| builder.io_threads(1).workers(2))
}

fn ask(addr: SocketAddr, request: &str, body: &str) -> Answer {
    let mut reader = Reader::new(connect(addr));
    let len = body.len();
    reader.send(format!(
        "{request} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    ));
    reader.next(false).unwrap()
}

#[track_caller]
fn check(addr: SocketAddr, request: &str, status: u16, body: &str) {
    let answer = ask(addr, request, "");
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!((answer.status, &*text), (status, body), "{request}");
}

/// Returns a middleware that adds its name to the path which the request takes to its handler.
fn via(name: &'static str) -> impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync {
    move |request, next| {
        let seen = request.extensions().get::<String>();
        let seen = format!("{}{name}>", seen.map_or("", String::as_str));
        request.extensions_mut().insert(seen);
        next.run(request)
    }
}

/// Tells the pattern, the parameters, and the middleware that the request has passed.
fn tell(request: &mut Request) -> String {
    let seen = request.extensions().get::<String>();
    let mut text = seen.map_or("", String::as_str).to_owned();
    text += request.pattern().unwrap_or("no pattern");
    for (name, value) in request.params().iter() {
        text += &format!(" {name}={value}");
    }
    text
}

/// Returns an error handler that tells its name, the status, and the middleware passed.
fn fail(name: &'static str) -> impl Fn(Option<&Request>, &Error) -> String + Send + Sync {
    move |request, error| {
        let seen = request.and_then(|request| request.extensions().get::<String>());
        let seen = seen.map_or("", String::as_str);
        format!("{seen}{name} {}", error.status())
    }
}

#[test]
fn routes_get_the_prefix_and_keep_their_settings() {
    let notes = Router::new()
        .get("/", tell)
        .get("/{id}", tell)
        .route(Route::new("PURGE", "/{id}", tell))
        .route(Route::put("/{id}", tell).body_len_max(3));
    let router = Router::new()
        .get("/", tell)
        .mount("/users/{user}/notes", notes)
        .mount("/v1/", Router::new().get("/", tell).get("/x", tell));
    let (_server, addr) = start(router);
    check(addr, "GET /", 200, "/");
    check(
        addr,
        "GET /users/ada/notes",
        200,
        "/users/{user}/notes user=ada",
    );
    let expected = "/users/{user}/notes/{id} user=ada id=7";
    check(addr, "GET /users/ada/notes/7", 200, expected);
    check(addr, "PURGE /users/ada/notes/7", 200, expected);
    assert_eq!(ask(addr, "PUT /users/ada/notes/7", "123").status, 200);
    assert_eq!(ask(addr, "PUT /users/ada/notes/7", "1234").status, 413);
    let answer = ask(addr, "POST /users/ada/notes/7", "");
    assert_eq!(answer.status, 405);
    assert_eq!(answer.header("allow"), Some("GET, HEAD, PURGE, PUT"));
    check(addr, "GET /users/ada/notes/", 404, "Not Found\n");
    check(addr, "GET /v1/", 200, "/v1/");
    check(addr, "GET /v1", 404, "Not Found\n");
    check(addr, "GET /v1/x", 200, "/v1/x");
}

#[test]
fn middleware_of_a_mounted_router_is_around_its_routes_only() {
    let inner = Router::new().get("/", tell).wrap(via("inner"));
    let middle = Router::new()
        .route(Route::get("/", tell).wrap(via("route")))
        .mount("/inner", inner)
        .wrap(via("middle"))
        .wrap(via("middle2"));
    let router = Router::new()
        .get("/", tell)
        .mount("/middle", middle)
        .get("/middle/other", tell)
        .wrap(via("outer"));
    let (_server, addr) = start(router);
    check(addr, "GET /", 200, "outer>/");
    check(addr, "GET /middle/other", 200, "outer>/middle/other");
    let expected = "outer>middle>middle2>route>/middle";
    check(addr, "GET /middle", 200, expected);
    let expected = "outer>middle>middle2>inner>/middle/inner";
    check(addr, "GET /middle/inner", 200, expected);
}

#[test]
fn the_nearest_error_handler_answers_errors_and_misses() {
    let failing = |_: &mut Request| -> Result<(), Error> { Err(Status::CONFLICT.into()) };
    let silent = Router::new().get("/fail", failing).wrap(via("silent"));
    let loud = Router::new()
        .get("/fail", failing)
        .mount("/silent", silent)
        .mount(
            "/own",
            Router::new()
                .get("/fail", failing)
                .get("/panic", |_| -> &'static str { panic!("on purpose") })
                .route(Route::post("/short", |_| "short").body_len_max(5))
                .on_error(fail("own")),
        )
        .on_error(fail("loud"))
        .wrap(via("loud"));
    let router = Router::new()
        .get("/fail", failing)
        .mount("/loud", loud)
        .mount("/silent", Router::new().get("/fail", failing))
        .on_error(fail("outer"));
    let (_server, addr) = start(router);
    for (path, error) in [("fail", 409), ("none", 404), ("none/at/all", 404)] {
        let check = |prefix: &str, expected: &str| {
            let request = format!("GET {prefix}/{path}");
            check(addr, &request, error, &format!("{expected} {error}"));
        };
        check("", "outer");
        check("/silent", "outer");
        check("/loud", "loud>loud");
        check("/loud/own", "loud>own");
        check("/loud/silent", "loud>silent>loud");
    }
    check(addr, "GET /loud", 404, "loud>loud 404");
    check(addr, "GET /loud/", 404, "loud>loud 404");
    check(addr, "GET /louder", 404, "outer 404");
    check(addr, "PUT /loud/own/fail", 405, "loud>own 405");
    // Refusals of the engine bypass middleware.
    check(addr, "GET /loud/own/panic", 500, "loud>own 500");
    let mut client = Reader::new(connect(addr));
    client.send("POST /loud/own/short HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n");
    assert_eq!(client.next(false).unwrap().body, b"own 413");
    // The path cannot be decoded, so it is below no prefix.
    check(addr, "GET /loud/%zz", 400, "outer 400");
}

#[test]
fn mistakes_are_found_when_the_program_starts() {
    let hot = || Route::get("/hot", tell).inline(|_, _, reply| reply.dispatch());
    refused("GET /x/y is the same route as /x/y", || {
        let inner = Router::new().get("/y", tell);
        Router::new().get("/x/y", tell).mount("/x", inner)
    });
    refused("two parameters have the same name", || {
        Router::new().mount("/{id}", Router::new().get("/{id}", tell))
    });
    refused("does not start with `/`", || {
        Router::new().mount("x", Router::new().get("/y", tell))
    });
    refused("\"/{*path}/**\" is not a pattern", || {
        Router::new().mount("/{*path}", Router::new())
    });
    refused("answers inline", move || {
        let inner = Router::new().route(hot());
        Router::new().mount("/a", inner).wrap(via("outer"))
    });
    refused("answers inline", move || {
        let inner = Router::new().route(hot());
        Router::new().wrap(via("outer")).mount("/a", inner)
    });
    // Middleware of a mounted router is not around the inline routes beside it.
    let wrapped = Router::new().get("/", tell).wrap(via("inner"));
    drop(Router::new().route(hot()).mount("/a", wrapped));
}
