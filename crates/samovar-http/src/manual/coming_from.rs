//! Mummy, axum, actix-web: the same thing here.
//!
//! | | Mummy 0.4 (Nim) | axum 0.8 | actix-web 4 | here |
//! |---|---|---|---|---|
//! | a handler | `proc(request: Request)` | `async fn(extractors…) -> impl IntoResponse` | `async fn(extractors…) -> impl Responder` | `fn(&mut Request) -> impl IntoResponse` |
//! | blocking in it | yes | `spawn_blocking` | `web::block` | yes |
//! | not blocking | | as it is | as it is | [`Route::inline`](crate::Route::inline) |
//! | state | globals, closures | `State` | `web::Data` | what the closure captures |
//! | route | `router.get("/u/@name", h)` | `.route("/u/{name}", get(h))` | `#[get("/u/{name}")]` | `.get("/u/{name}", h)` |
//! | which route wins | the first | the most specific | the first | the most specific |
//! | path parameter | `request.pathParams["name"]` | `Path(name)` | `web::Path` | [`request.param("name")`](crate::Request::param) |
//! | one segment, many | `*`, `**` | `{*rest}` at the end | `{rest:.*}` | `*`, `**`, `{*rest}` anywhere |
//! | sub-router | | `.nest` | `web::scope` | [`Router::mount`](crate::Router::mount) |
//! | query | `request.queryParams` | `Query<T>` | `web::Query<T>` | [`request.query()`](crate::Request::query) |
//! | form | by hand | `Form<T>` | `web::Form<T>` | [`request.form()`](crate::Request::form) |
//! | multipart | in memory | stream | stream | a library, over [`request.reader()`](crate::Request::reader) |
//! | body | `request.body`, 1 MiB | `Bytes`, 2 MB | `web::Bytes`, 256 KiB | [`request.body()`](crate::Request::body), 1 MiB |
//! | large upload | | `Body` stream | `web::Payload` | [`Route::streaming`](crate::Route::streaming), [`request.reader()`](crate::Request::reader) |
//! | JSON | by hand | `Json<T>` | `web::Json<T>` | a serializer of yours: `serde_json::from_slice(request.body())?`, [`Response::json`](crate::Response::json) |
//! | header of a request | `request.headers["X"]` | `HeaderMap` | `request.headers()` | [`request.head().header_text("x")`](crate::Head::header_text), [`header`](crate::Head::header) for bytes |
//! | address of the client | `request.remoteAddress` | `ConnectInfo` | `peer_addr` | [`request.head().peer()`](crate::Head::peer) |
//! | data beside the request | | `Extension` | `extensions` | [`request.extensions()`](crate::Request::extensions) |
//! | answer | `request.respond(200, headers, body)` | return it | return it | return it: an answer cannot be given twice |
//! | answer later | from another place in the handler | `.await` | `.await` | [`Response::later`](crate::Response::later) |
//! | early hints | `respond(103, …)` | | | [`request.inform(103, …)`](crate::Request::inform) |
//! | error | exception: 500 | `Result` | `ResponseError` | `Result` with [`Error`](crate::Error) and `?` |
//! | 404, 405, errors | three handlers | `fallback`, … | `default_service` | [`not_found`](crate::Router::not_found), [`method_not_allowed`](crate::Router::method_not_allowed), [`on_error`](crate::Router::on_error) |
//! | middleware | wrap the handler | tower layers | `wrap`, `wrap_fn` | [`Router::wrap`](crate::Router::wrap): a function around functions |
//! | large file | in memory | `ServeFile` | `NamedFile` | [`Body::file`](crate::Body::file), by `sendfile` |
//! | streamed answer | | `Body::from_stream` | `.streaming` | [`Body::pieces`](crate::Body::pieces), [`Body::reader`](crate::Body::reader), [`Response::push`](crate::Response::push) |
//! | server-sent events | | `Sse` | by hand | [`Body::channel`](crate::Body::channel) |
//! | WebSocket | `request.upgradeToWebSocket()` | `WebSocketUpgrade` | `actix_ws::handle` | [`ws::Upgrade`](crate::ws::Upgrade) |
//! | its events | one handler, in order, one at a time | a task of your own | a task of your own | a [`ws::Handler`](crate::ws::Handler), in order, one at a time |
//! | send to it | `ws.send`, any thread | the task's half | a session | [`ws::Socket`](crate::ws::Socket), any thread, never blocks |
//! | broadcast | copies | copies or `Bytes` | copies or `Bytes` | [`ws::Frame`](crate::ws::Frame), encoded once |
//! | compression | always on | tower-http | `Compress` | [`Builder::compression`](crate::Builder::compression) |
//! | TLS | a proxy | axum-server | `bind_rustls` | [`Listener::tls`](crate::Listener::tls) |
//! | HTTP/2 | | yes | yes | yes |
//! | metrics | | layers | middleware | [`Observer`](crate::Observer), [`Server::load`](crate::Server::load) |
//! | log | `logHandler` | tracing | `Logger` | [`Observer`](crate::Observer) |
//! | stop | `server.close()` | `with_graceful_shutdown` | `shutdown_timeout` | [`Server::drain`](crate::Server::drain) |
//!
//! # From Mummy
//!
//! The model is the same, and so is the promise about WebSocket events. What changes: the most
//! specific route wins instead of the first, so order does not matter; a response is returned
//! instead of sent; compression is asked for instead of given; a close waits for answers under way;
//! `*` and a parameter match no empty segment.
//!
//! # From axum or actix-web
//!
//! Take `async` and `.await` away. Extractors become calls on the request; what they did by type
//! you do where you need it. A pool of connections to a database that blocks (`r2d2`, `postgres`,
//! `rusqlite`) takes the place of one that does not. Tasks that you have spawned become threads,
//! or nothing: most were there because a handler may not block. A pattern that has no route for
//! the method is passed over: 405 comes only if no pattern has one.
