//! Terms of Mummy, axum and actix-web, and the corresponding terms of this crate. A cell with two
//! lines has the term of axum first.
//!
//! |  | samovar-http | Mummy 0.4 (Nim) | axum 0.8 <br> actix-web 4 |
//! |---|---|---|---|
//! | a handler | `fn(&mut Request)` | `proc(request: Request)` | `async fn(extractors…)` |
//! | blocking call in a handler | yes | yes | `spawn_blocking` <br> `web::block` |
//! | handlers that block at the same time | 512; [`Router::workers`](crate::Router::workers) sets a maximum | `workerThreads`, 10 per core | 512 |
//! | long wait beyond that maximum | [`lend_slot`](crate::lend_slot), or [`Response::later`](crate::Response::later) | more `workerThreads` | `.await` |
//! | response without a thread switch | [`Route::inline`](crate::Route::inline) |  | always |
//! | state | [`with(&app, App::method)`](crate::with), [`wrap_with`](crate::Router::wrap_with), or captured by a closure | globals, closures | `State` <br> `web::Data` |
//! | route | `.get("/u/{name}", h)` | `router.get("/u/@name", h)` | `.route("/u/{name}", get(h))` <br> `#[get("/u/{name}")]` |
//! | a method of any name | [`Route::new("PURGE", "/u/{name}", h)`](crate::Route::new) | `addRoute("PURGE", …)` | `on(MethodFilter…)`, standard ones only <br> `web::method` |
//! | which route wins | the most specific | the first | the most specific <br> the first |
//! | path parameter | [`request.param("name")`](crate::Request::param) | `pathParams["name"]` | `Path(name)` <br> `web::Path` |
//! | wildcards for one segment, for several segments | `*`; `**` or `{*rest}` anywhere | `*`, `**` | `{*rest}` at the end <br> `{rest:.*}` |
//! | sub-router | [`Router::mount`](crate::Router::mount) |  | `.nest` <br> `web::scope` |
//! | query | [`request.query()`](crate::Request::query) | `queryParams` | `Query<T>` <br> `web::Query<T>` |
//! | form | [`request.form()`](crate::Request::form) | by hand | `Form<T>` <br> `web::Form<T>` |
//! | multipart | `request.multipart()` of `samovar-web` | in memory | as a stream |
//! | body | [`request.body()`](crate::Request::body), 1 MiB | `request.body`, 1 MiB | `Bytes`, 2 MB <br> `web::Bytes`, 256 KiB |
//! | large upload | [`Route::streaming`](crate::Route::streaming), [`request.reader()`](crate::Request::reader) |  | `Body` stream <br> `web::Payload` |
//! | JSON | `request.json()`, `Json` of `samovar-web`; or any serializer, see the [guide](super::guide#json) | by hand | `Json<T>` <br> `web::Json<T>` |
//! | header of a request | [`head().header_text("x")`](crate::Head::header_text), [`header`](crate::Head::header) for bytes | `headers["X"]` | `HeaderMap` <br> `request.headers()` |
//! | client address | [`head().peer()`](crate::Head::peer) | `remoteAddress` | `ConnectInfo` <br> `peer_addr` |
//! | data attached to a request | [`request.extensions()`](crate::Request::extensions) |  | `Extension` <br> `extensions` |
//! | response | return it | `request.respond(200, headers, body)` | return it |
//! | deferred response | [`Response::later`](crate::Response::later) | from another place in the handler | `.await` |
//! | early hints (103) | [`request.inform(…)`](crate::Request::inform) | `respond(103, …)` |  |
//! | error | `Result` with [`Error`](crate::Error), and `?` | exception: 500 | `Result` <br> `ResponseError` |
//! | 404, 405, 413, malformed requests, errors | [`on_error`](crate::Router::on_error) | three handlers | `fallback`, … <br> `default_service` |
//! | OPTIONS | 405 with `Allow`, or [`Router::answer_options`](crate::Router::answer_options); `*`: 204 | 405 | 405, or `CorsLayer` <br> 404, or `Cors` |
//! | middleware | [`Router::wrap`](crate::Router::wrap): a function around functions | wrap the handler | tower layers <br> `wrap`, `wrap_fn` |
//! | files of a directory | `Files` of `samovar-web` |  | `ServeDir` <br> `Files` |
//! | cookies | `request.cookie()`, `Cookie` of `samovar-web` | by hand | `CookieJar` <br> `request.cookie()` |
//! | CORS | `Cors` of `samovar-web` |  | tower-http <br> actix-cors |
//! | large file | [`Body::file`](crate::Body::file), by `sendfile` | in memory | `ServeFile` <br> `NamedFile` |
//! | streamed response | [`Body::pieces`](crate::Body::pieces), [`Body::reader`](crate::Body::reader) |  | `Body::from_stream` <br> `.streaming` |
//! | server-sent events, and their heartbeat | [`Body::channel`](crate::Body::channel) or `events` of `samovar-web`, [`Sender::beat`](crate::Sender::beat) |  | `Sse`, `KeepAlive` <br> by hand |
//! | WebSocket | [`ws::Upgrade`](crate::ws::Upgrade) | `upgradeToWebSocket()` | `WebSocketUpgrade` <br> `actix_ws::handle` |
//! | WebSocket events | a [`ws::Handler`](crate::ws::Handler), in order, one at a time | one handler, in order, one at a time | a task of your own |
//! | WebSocket send | [`ws::Socket`](crate::ws::Socket), any thread, never blocks | `ws.send`, any thread | the task's half <br> a session |
//! | WebSocket ping, pong | [`Socket::ping`](crate::ws::Socket::ping), [`Handler::pong`](crate::ws::Handler::pong); answered, and silent peers are pinged, by the engine | `ws.send("", Ping)`, `Ping` and `Pong` in `message.kind`; answered by the server | `Message::Ping`, `Message::Pong` <br> `session.ping`, `Message::Pong` |
//! | broadcast | [`ws::Frame`](crate::ws::Frame), encoded once | copies | copies or `Bytes` |
//! | compression | on for texts from 860 bytes; off by [`Router::compression`](crate::Router::compression), [`Route::uncompressed`](crate::Route::uncompressed) | always on, from 860 bytes | tower-http <br> `Compress` |
//! | TLS | [`Listener::tls`](crate::Listener::tls) | a proxy | axum-server <br> `bind_rustls` |
//! | HTTP/2 | yes |  | yes |
//! | metrics | [`Observer`](crate::Observer), [`Server::load`](crate::Server::load) |  | layers <br> middleware |
//! | log | [`log::AccessLog`](crate::log::AccessLog), [`log::Logger`](crate::log::Logger), or any [`Observer`](crate::Observer) | `FileLogger`, `logHandler` | tracing <br> `Logger` |
//! | test without a socket | [`Router::answer`](crate::Router::answer), [`Request::builder`](crate::Request::builder) |  | `oneshot` <br> `test::call_service` |
//! | stopping the server | [`Router::serve_until`](crate::Router::serve_until), [`Server::drain`](crate::Server::drain) | `server.close()` | `with_graceful_shutdown` <br> `shutdown_timeout` |
// The page is 960 pixels wide, so no word of code has more than 24 characters.
