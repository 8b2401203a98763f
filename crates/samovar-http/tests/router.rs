//! A request reaches the handler of its route; without a matching route, the client gets 404 or
//! 405.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use samovar_http::http::Status;
use samovar_http::{Body, Error, Next, Prepared, Request, Response, Route, Router, Server, with};
use support::{Answer, Reader, connect, h2, refused, serve};

fn start(router: Router) -> (Server<Router>, SocketAddr) {
    serve(router, |builder| builder.io_threads(1).workers(2))
}

fn ask(addr: SocketAddr, method: &str, target: &str) -> Answer {
    let mut reader = Reader::new(connect(addr));
    reader.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ));
    reader.next(method == "HEAD").unwrap()
}

fn text(answer: &Answer) -> &str {
    std::str::from_utf8(&answer.body).unwrap()
}

#[track_caller]
fn check(addr: SocketAddr, request: &str, status: u16, body: &str) {
    let (method, target) = request.split_once(' ').unwrap();
    let answer = ask(addr, method, target);
    assert_eq!((answer.status, text(&answer)), (status, body), "{request}");
}

/// Returns a handler that responds with the route's name and its parameters.
fn tell(name: &'static str) -> impl Fn(&mut Request) -> String + Send + Sync + 'static {
    move |request| {
        let params: Vec<_> = request
            .params()
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        format!("{name} {}", params.join(" ")).trim_end().to_owned()
    }
}

#[test]
fn paths_and_parameters() {
    let router = Router::new()
        .get("/", tell("root"))
        .get("/{*all}", tell("all"))
        .get("/users/{id}", tell("user"))
        .get("/users/{id}.json", tell("json"))
        .get("/users/me", tell("me"))
        .get("/users/*/photo", tell("photo"))
        .get("/{*path}/history", tell("history"))
        .get("/page_*", tell("page"))
        .get("/ñandú/{x}", tell("bird"));
    let (_server, addr) = start(router);
    for (path, expected) in [
        ("/", "root"),
        ("/users/7", "user id=7"),
        ("/users/7?id=8", "user id=7"),
        ("/users/7.json", "json id=7"),
        ("/users/me", "me"),
        ("/users/7/photo", "photo"),
        ("/a/b/history", "history path=a/b"),
        ("/a/b", "all all=a/b"),
        ("/page_7", "page"),
        ("/%C3%B1and%C3%BA/%e2%9c%93", "bird x=✓"),
        // An encoded slash does not separate segments.
        ("/users/a%2Fb", "user id=a/b"),
        ("/users/a%252Fb", "user id=a%2Fb"),
        ("http://a/users/7", "user id=7"),
        ("http://a", "root"),
    ] {
        check(addr, &format!("GET {path}"), 200, expected);
    }
    check(addr, "GET /users/%2", 400, "malformed path\n");
    check(addr, "GET /users/%ff", 400, "malformed path\n");
}

#[test]
fn methods() {
    let router = Router::new()
        .get("/a", tell("get"))
        .post("/a", tell("post"))
        .put("/b", tell("put"))
        .delete("/b", tell("delete"))
        .patch("/b", tell("patch"))
        .options("/b", tell("options"))
        .any("/c", tell("any"))
        .get("/c", tell("get"))
        .head("/d", |_| {
            Response::text(Status::OK, "").header("X-Head", "own")
        })
        .get("/d", tell("get"))
        .put("/e", tell("put"))
        .get("/notes/new", tell("form"))
        .put("/notes/{id}", tell("note"));
    let (_server, addr) = start(router);
    for (request, expected) in [
        ("GET /a", "get"),
        ("POST /a", "post"),
        ("PUT /b", "put"),
        ("DELETE /b", "delete"),
        ("PATCH /b", "patch"),
        ("OPTIONS /b", "options"),
        ("GET /c", "get"),
        ("BREW /c", "any"),
        ("GET /notes/new", "form"),
        ("PUT /notes/new", "note id=new"),
    ] {
        check(addr, request, 200, expected);
    }
    let head = ask(addr, "HEAD", "/a");
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("3"))
    );
    assert_eq!(ask(addr, "HEAD", "/d").header("x-head"), Some("own"));
    assert_eq!(ask(addr, "GET", "/d").header("x-head"), None);
    assert_eq!(ask(addr, "HEAD", "/e").status, 405);
}

/// Returns the method's token and the route's parameters.
fn tell_method(request: &mut Request) -> String {
    let name = String::from_utf8_lossy(request.head().method_name()).into_owned();
    let path = request.param("path").unwrap_or_default();
    format!("{name} {path}")
}

#[test]
fn a_route_can_have_a_method_of_any_name() {
    let router = Router::new()
        .get("/{*path}", tell("get"))
        .route(Route::new("PURGE", "/{*path}", tell_method))
        .route(Route::new("M-SEARCH", "/{*path}", tell_method))
        .route(Route::new("purge", "/lower", tell_method))
        .route(Route::new("GET", "/known", tell("known")))
        .any("/any", tell_method);
    let (_server, addr) = start(router);
    check(addr, "PURGE /a/b", 200, "PURGE a/b");
    check(addr, "M-SEARCH /a", 200, "M-SEARCH a");
    check(addr, "GET /a", 200, "get path=a");
    check(addr, "GET /known", 200, "known");
    assert_eq!(ask(addr, "HEAD", "/known").status, 200);
    check(addr, "PROPFIND /any", 200, "PROPFIND ");
    // RFC 9110, 9.1: "The method token is case-sensitive".
    check(addr, "purge /lower", 200, "purge ");
    check(addr, "PURGE /lower", 200, "PURGE lower");
    for other in ["purge", "Purge", "PURGED", "PROPFIND", "get", "POST"] {
        let answer = ask(addr, other, "/a");
        assert_eq!(answer.status, 405, "{other}");
        assert_eq!(
            answer.header("allow"),
            Some("GET, HEAD, PURGE, M-SEARCH"),
            "{other}"
        );
    }
    let mut client = h2::Client::connect(addr);
    let mut ask_h2 = |method: &str, path: &str| {
        let mut request = h2::get(path);
        *request.method_mut() = method.parse().unwrap();
        client.ask(request)
    };
    assert_eq!(ask_h2("PURGE", "/a/b").text(), "PURGE a/b");
    let refused = ask_h2("Purge", "/a/b");
    assert_eq!(refused.status(), 405);
    assert_eq!(refused.header("allow"), Some("GET, HEAD, PURGE, M-SEARCH"));
}

#[test]
fn a_405_names_what_is_allowed() {
    let router = Router::new()
        .get("/a", tell("get"))
        .post("/a", tell("post"))
        .delete("/{x}", tell("delete"));
    let (_server, addr) = start(router);
    let answer = ask(addr, "PUT", "/a");
    assert_eq!(
        (answer.status, text(&answer)),
        (405, "Method Not Allowed\n")
    );
    // RFC 9110, 15.5.6: "The origin server MUST generate an Allow header field in a 405 response
    // containing a list of the target resource's currently supported methods."
    assert_eq!(answer.header("allow"), Some("GET, HEAD, POST, DELETE"));
    assert_eq!(ask(addr, "OPTIONS", "/a").status, 405);
}

#[test]
fn options_of_a_path_are_answered_by_choice() {
    let router = || {
        Router::new()
            .get("/a", tell("get"))
            .route(Route::new("PURGE", "/{x}", tell("purge")))
            .options("/own", tell("own"))
            .any("/any", tell("any"))
    };
    let mounted = Router::new().put("/b", tell("put")).answer_options();
    let (_server, addr) = start(router().mount("/mounted", mounted));
    let (_chosen_server, chosen) = start(
        router()
            .mount("/mounted", Router::new().put("/b", tell("put")))
            .answer_options()
            .wrap(label("cors")),
    );
    assert_eq!(ask(addr, "OPTIONS", "/a").status, 405);
    for (addr, path, allow) in [
        (addr, "/mounted/b", "PUT, OPTIONS"),
        (chosen, "/mounted/b", "PUT, OPTIONS"),
        (chosen, "/a", "GET, HEAD, PURGE, OPTIONS"),
        (chosen, "/x?query", "PURGE, OPTIONS"),
    ] {
        let answer = ask(addr, "OPTIONS", path);
        assert_eq!(
            (answer.status, answer.header("allow")),
            (204, Some(allow)),
            "{path}"
        );
        assert_eq!(answer.header("content-length"), None);
        let is_chosen = addr == chosen;
        assert_eq!(answer.header("x-back"), is_chosen.then_some("cors"));
    }
    let answer = ask(chosen, "DELETE", "/a");
    let allow = Some("GET, HEAD, PURGE, OPTIONS");
    assert_eq!((answer.status, answer.header("allow")), (405, allow));
    check(chosen, "OPTIONS /own", 200, "own");
    check(chosen, "OPTIONS /any", 200, "any");
    assert_eq!(ask(chosen, "OPTIONS", "/none/at/all").status, 404);
    assert_eq!(ask(chosen, "OPTIONS", "/%zz").status, 400);
}

#[test]
fn options_of_the_server_are_always_answered() {
    let router = Router::new()
        .get("/a", tell("get"))
        .route(Route::new("PURGE", "/{x}", tell("purge")))
        .mount("/mounted", Router::new().put("/b", tell("put")))
        .wrap(label("outer"));
    let (_server, addr) = start(router);
    let answer = ask(addr, "OPTIONS", "*");
    let allow = Some("GET, HEAD, PURGE, PUT, OPTIONS");
    assert_eq!((answer.status, answer.header("allow")), (204, allow));
    assert_eq!(answer.header("x-back"), Some("outer"));
    // The target is not a path: with any other method it is malformed.
    assert_eq!(ask(addr, "GET", "*").status, 400);
    let mut client = h2::Client::connect(addr);
    let mut request = h2::get("");
    *request.method_mut() = "OPTIONS".parse().unwrap();
    *request.uri_mut() = "*".parse().unwrap();
    request.headers_mut().insert("host", "a".parse().unwrap());
    let answer = client.ask(request);
    assert_eq!((answer.status(), answer.header("allow")), (204, allow));
}

#[test]
fn the_error_handler_answers_misses() {
    let on_error = |request: Option<&Request>, error: &Error| {
        let request = request.unwrap();
        assert_eq!(request.pattern(), None);
        let path = String::from_utf8_lossy(request.head().path()).into_owned();
        match error.status() {
            Status::NOT_FOUND => Response::html(Status::OK, format!("<h1>No {path}</h1>")),
            _ => Response::text(Status::NOT_IMPLEMENTED, "no"),
        }
    };
    let router = Router::new().get("/a", tell("get")).on_error(on_error);
    let (_server, addr) = start(router);
    let answer = ask(addr, "GET", "/b");
    assert_eq!((answer.status, text(&answer)), (404, "<h1>No /b</h1>"));
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let head = ask(addr, "HEAD", "/b");
    assert_eq!(
        (head.status, head.header("content-length")),
        (404, Some("14"))
    );
    check(addr, "POST /a", 501, "no");
}

#[test]
fn a_trailing_slash_makes_another_path() {
    let router = Router::new().get("/a", tell("a")).get("/b/", tell("b"));
    let (_server, addr) = start(router);
    check(addr, "GET /a", 200, "a");
    check(addr, "GET /a/", 404, "Not Found\n");
    check(addr, "GET /b", 404, "Not Found\n");
}

fn label(name: &'static str) -> impl Fn(&mut Request, Next<'_>) -> Response + Send + Sync {
    move |request, next| {
        let seen = request
            .extensions()
            .get::<String>()
            .cloned()
            .unwrap_or_default();
        request.extensions_mut().insert(format!("{seen}{name}>"));
        next.run(request).header("X-Back", name)
    }
}

#[test]
fn middleware_encloses_routes_and_misses() {
    let seen = |request: &mut Request| request.extensions().get::<String>().cloned();
    let router = Router::new()
        .get("/", seen)
        .route(
            Route::get("/one", seen)
                .wrap(label("route1"))
                .wrap(label("route2")),
        )
        .wrap(label("a"))
        .wrap(label("b"));
    let (_server, addr) = start(router);
    check(addr, "GET /", 200, "a>b>");
    check(addr, "GET /one", 200, "a>b>route1>route2>");
    check(addr, "GET /none", 404, "Not Found\n");
    let backs = |target| {
        let answer = ask(addr, "GET", target);
        let lines = answer
            .head
            .lines()
            .filter_map(|line| line.strip_prefix("X-Back: "));
        lines.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(backs("/one"), "route2 route1 b a");
    assert_eq!(backs("/none"), "b a");
}

#[test]
fn middleware_can_respond_without_calling_the_handler() {
    let count = Arc::new(AtomicUsize::new(0));
    let handler = with(&count, |count: &AtomicUsize, _: &mut Request| {
        count.fetch_add(1, Ordering::SeqCst);
        "in"
    });
    let guard = |request: &mut Request, next: Next<'_>| match request.head().header("x-key") {
        Some(b"good") => next.run(request),
        _ => Response::text(Status::UNAUTHORIZED, "who?"),
    };
    let (_server, addr) = start(Router::new().get("/", handler).wrap(guard));
    check(addr, "GET /", 401, "who?");
    check(addr, "GET /none", 401, "who?");
    assert_eq!(count.load(Ordering::SeqCst), 0);
    let mut reader = Reader::new(connect(addr));
    reader.send("GET / HTTP/1.1\r\nHost: a\r\nX-Key: good\r\n\r\n");
    assert_eq!(reader.next(false).unwrap().body, b"in");
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn inline_routes_answer_or_decline() {
    let known = Prepared::new(Status::OK, &[], b"known");
    let route = Route::get("/{name}.info", tell("worker")).inline(move |head, params, reply| {
        assert_eq!(head.method_name(), b"GET");
        match params.get("name") {
            Some("a b") => reply.prepared(&known),
            _ => reply.dispatch(),
        }
    });
    let (_server, addr) = start(Router::new().route(route).get("/x", tell("x")));
    check(addr, "GET /a%20b.info", 200, "known");
    check(addr, "GET /c.info", 200, "worker name=c");
    check(addr, "GET /x", 200, "x");
    check(addr, "GET /none", 404, "Not Found\n");
}

#[test]
fn inline_routes_send_responses_from_memory() {
    let route = Route::get("/{what}", tell("worker")).inline(|_, params, reply| {
        let response = match params.get("what") {
            Some("text") => Response::text(Status::OK, "text"),
            Some("shared") => Response::new(Status::OK, Body::Shared(b"shared"[..].into())),
            Some("nothing") => Response::new(Status::NO_CONTENT, Body::Empty),
            _ => Response::new(Status::OK, Body::reader(std::io::empty())),
        };
        reply.response(response.header("X-Inline", "yes"))
    });
    let (_server, addr) = start(Router::new().route(route));
    let mut reader = Reader::new(connect(addr));
    for (path, status, body) in [
        ("/text", 200, "text"),
        ("/shared", 200, "shared"),
        ("/nothing", 204, ""),
    ] {
        for method in ["GET", "HEAD"] {
            reader.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let answer = reader.next(method == "HEAD" || status == 204).unwrap();
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("x-inline"), Some("yes"));
            let len = body.len().to_string();
            let expected = (status == 200).then_some(&*len);
            assert_eq!(answer.header("content-length"), expected);
            if method == "GET" {
                assert_eq!(answer.body, body.as_bytes());
            }
        }
    }
    // A source cannot be sent inline: this is a bug of the application, and the client gets 500.
    check(addr, "GET /source", 500, "Internal Server Error\n");
}

#[test]
fn param_path_stays_below_its_directory() {
    let file = |request: &mut Request| {
        request
            .param_path("path")
            .map(|path| path.display().to_string())
    };
    let (_server, addr) = start(Router::new().get("/f/{*path}", file).get("/g/{path}", file));
    check(addr, "GET /f/a/b.txt", 200, "a/b.txt");
    for path in [
        "/f/../x",
        "/f/a/../../x",
        "/f/%2e%2e/x",
        "/g/..%2Fx",
        "/g/%2Fetc%2Fpasswd",
        "/f/a%00b",
        "/f//etc/passwd",
        "/g/.",
    ] {
        assert_eq!(ask(addr, "GET", path).status, 404, "{path}");
    }
}

#[test]
fn the_pattern_is_known_to_middleware() {
    let tell_pattern = |request: &mut Request, next: Next<'_>| {
        let pattern = request.pattern().unwrap_or("none").to_owned();
        next.run(request).header("X-Pattern", pattern)
    };
    let router = Router::new().get("/users/{id}", |_| ()).wrap(tell_pattern);
    let (_server, addr) = start(router);
    assert_eq!(
        ask(addr, "GET", "/users/7").header("x-pattern"),
        Some("/users/{id}")
    );
    assert_eq!(ask(addr, "GET", "/").header("x-pattern"), Some("none"));
}

#[test]
fn mistakes_are_found_when_the_program_starts() {
    let ok = |_: &mut Request| "";
    refused("does not start with `/`", move || {
        Router::new().get("a", ok)
    });
    refused("\"/{a\" is not a pattern", move || {
        Router::new().get("/{a", ok)
    });
    refused("GET /{b} is the same route as /{a}", move || {
        Router::new().get("/{a}", ok).get("/{b}", ok)
    });
    refused("PURGE /{b} is the same route as /{a}", move || {
        let route = |pattern| Route::new("PURGE", pattern, ok);
        Router::new().route(route("/{a}")).route(route("/{b}"))
    });
    for method in ["", "PUR GE", "PURGE:", "PURGÉ", "A\r\nB"] {
        refused("is not a method", move || {
            Router::new().route(Route::new(method, "/", ok))
        });
    }
    let inline = || Route::get("/hot", |_| "").inline(|_, _, reply| reply.dispatch());
    let pass = |request: &mut Request, next: Next<'_>| next.run(request);
    refused("answers inline", move || {
        Router::new().wrap(pass).route(inline())
    });
    refused("answers inline", move || {
        Router::new().route(inline()).wrap(pass)
    });
    refused("answers inline", move || {
        Router::new().route(inline().wrap(pass))
    });
}
