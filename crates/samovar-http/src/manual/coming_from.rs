//! Terms of Mummy, axum and actix-web, and the corresponding terms of this crate.
//!
//! |  | samovar-http | Mummy 0.4 (Nim) | axum 0.8 | actix-web 4 |
//! |---|---|---|---|---|
//! | a handler | `fn(&mut Request) -> impl IntoResponse` | `proc(request: Request)` | `async fn(extractors…) -> impl IntoResponse` | `async fn(extractors…) -> impl Responder` |
//! | blocking call in a handler | yes | yes | `spawn_blocking` | `web::block` |
//! | handlers that block at the same time | 512; [`Router::workers`](crate::Router::workers) sets a maximum | `workerThreads`, 10 per core | 512 (`max_blocking_threads`) | 512 (`worker_max_blocking_threads`) |
//! | long wait beyond that maximum | [`lend_slot`](crate::lend_slot), or [`Response::later`](crate::Response::later) | more `workerThreads` | `.await` | `.await` |
//! | response without a thread switch | [`Route::inline`](crate::Route::inline) |  | always | always |
//! | state | [`with(&app, App::method)`](crate::with), [`wrap_with`](crate::Router::wrap_with), or captured by a closure | globals, closures | `State` | `web::Data` |
//! | route | `.get("/u/{name}", h)` | `router.get("/u/@name", h)` | `.route("/u/{name}", get(h))` | `#[get("/u/{name}")]` |
//! | a method of any name | [`Route::new("PURGE", "/u/{name}", h)`](crate::Route::new) | `router.addRoute("PURGE", …)` | `on(MethodFilter…)`, standard ones only | `web::method` |
//! | which route wins | the most specific | the first | the most specific | the first |
//! | path parameter | [`request.param("name")`](crate::Request::param) | `request.pathParams["name"]` | `Path(name)` | `web::Path` |
//! | wildcards for one segment, for several segments | `*`; `**` or `{*rest}` anywhere | `*`, `**` | `{*rest}` at the end | `{rest:.*}` |
//! | sub-router | [`Router::mount`](crate::Router::mount) |  | `.nest` | `web::scope` |
//! | query | [`request.query()`](crate::Request::query) | `request.queryParams` | `Query<T>` | `web::Query<T>` |
//! | form | [`request.form()`](crate::Request::form) | by hand | `Form<T>` | `web::Form<T>` |
//! | multipart | `request.multipart()` of `samovar-web` | in memory | as a stream | as a stream |
//! | body | [`request.body()`](crate::Request::body), 1 MiB | `request.body`, 1 MiB | `Bytes`, 2 MB | `web::Bytes`, 256 KiB |
//! | large upload | [`Route::streaming`](crate::Route::streaming), [`request.reader()`](crate::Request::reader) |  | `Body` stream | `web::Payload` |
//! | JSON | `request.json()`, `Json` of `samovar-web`; or any serializer, see the [guide](super::guide#json) | by hand | `Json<T>` | `web::Json<T>` |
//! | header of a request | [`request.head().header_text("x")`](crate::Head::header_text), [`header`](crate::Head::header) for bytes | `request.headers["X"]` | `HeaderMap` | `request.headers()` |
//! | client address | [`request.head().peer()`](crate::Head::peer) | `request.remoteAddress` | `ConnectInfo` | `peer_addr` |
//! | data attached to a request | [`request.extensions()`](crate::Request::extensions) |  | `Extension` | `extensions` |
//! | response | return it | `request.respond(200, headers, body)` | return it | return it |
//! | deferred response | [`Response::later`](crate::Response::later) | from another place in the handler | `.await` | `.await` |
//! | early hints (103) | [`request.inform(Status::EARLY_HINTS, …)`](crate::Request::inform) | `respond(103, …)` |  |  |
//! | error | `Result` with [`Error`](crate::Error), and `?` | exception: 500 | `Result` | `ResponseError` |
//! | 404, 405, 413, malformed requests, errors | [`on_error`](crate::Router::on_error) | three handlers | `fallback`, … | `default_service` |
//! | OPTIONS | 405 with `Allow`, or [`Router::answer_options`](crate::Router::answer_options); `*`: 204 | 405 | 405, or `CorsLayer` | 404, or `Cors` |
//! | middleware | [`Router::wrap`](crate::Router::wrap): a function around functions | wrap the handler | tower layers | `wrap`, `wrap_fn` |
//! | files of a directory | `Files` of `samovar-web` |  | `ServeDir` | `Files` |
//! | cookies | `request.cookie()`, `Cookie` of `samovar-web` | by hand | `CookieJar` | `request.cookie()` |
//! | CORS | `Cors` of `samovar-web` |  | tower-http | actix-cors |
//! | large file | [`Body::file`](crate::Body::file), by `sendfile` | in memory | `ServeFile` | `NamedFile` |
//! | streamed response | [`Body::pieces`](crate::Body::pieces), [`Body::reader`](crate::Body::reader) |  | `Body::from_stream` | `.streaming` |
//! | server-sent events, and their heartbeat | [`Body::channel`](crate::Body::channel) or `events` of `samovar-web`, [`Sender::beat`](crate::Sender::beat) |  | `Sse`, `KeepAlive` | by hand |
//! | WebSocket | [`ws::Upgrade`](crate::ws::Upgrade) | `request.upgradeToWebSocket()` | `WebSocketUpgrade` | `actix_ws::handle` |
//! | WebSocket events | a [`ws::Handler`](crate::ws::Handler), in order, one at a time | one handler, in order, one at a time | a task of your own | a task of your own |
//! | WebSocket send | [`ws::Socket`](crate::ws::Socket), any thread, never blocks | `ws.send`, any thread | the task's half | a session |
//! | WebSocket ping, pong | [`Socket::ping`](crate::ws::Socket::ping), [`Handler::pong`](crate::ws::Handler::pong); answered, and silent peers are pinged, by the engine | `ws.send("", Ping)`, `Ping` and `Pong` in `message.kind`; answered by the server | `Message::Ping`, `Message::Pong` | `session.ping`, `Message::Pong` |
//! | broadcast | [`ws::Frame`](crate::ws::Frame), encoded once | copies | copies or `Bytes` | copies or `Bytes` |
//! | compression | on for texts from 860 bytes; off by [`Router::compression`](crate::Router::compression), [`Route::uncompressed`](crate::Route::uncompressed) | always on, from 860 bytes | tower-http | `Compress` |
//! | TLS | [`Listener::tls`](crate::Listener::tls) | a proxy | axum-server | `bind_rustls` |
//! | HTTP/2 | yes |  | yes | yes |
//! | metrics | [`Observer`](crate::Observer), [`Server::load`](crate::Server::load) |  | layers | middleware |
//! | log | [`log::AccessLog`](crate::log::AccessLog), [`log::Logger`](crate::log::Logger), or any [`Observer`](crate::Observer) | `FileLogger`, `logHandler` | tracing | `Logger` |
//! | test without a socket | [`Router::answer`](crate::Router::answer), [`Request::builder`](crate::Request::builder) |  | `oneshot` | `test::call_service` |
//! | stopping the server | [`Router::serve_until`](crate::Router::serve_until), [`Server::drain`](crate::Server::drain) | `server.close()` | `with_graceful_shutdown` | `shutdown_timeout` |
