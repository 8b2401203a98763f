//! Error pages for 404, 405, failed handlers, and requests that the server refuses.
//!
//! ```text
//! cargo run --example custom_404
//! curl -i http://127.0.0.1:8080/nowhere
//! curl -i -X POST http://127.0.0.1:8080/
//! curl -i http://127.0.0.1:8080/broken
//! curl -i -d 'longer than the route allows' http://127.0.0.1:8080/short
//! ```

use samovar_http::http::Status;
use samovar_http::{Error, Request, Response, Route, Router};

fn broken(_: &mut Request) -> Result<String, Error> {
    // The cause of this error goes to standard error; the client does not see it.
    Ok(std::fs::read_to_string("/nonexistent/secret")?)
}

/// Responds to all errors. Must not block, because I/O threads call it, too. The message is meant
/// for the client, the cause is not. If a message contained text from the client, it would have to
/// be escaped.
fn error_page(_: Option<&Request>, error: &Error) -> Response {
    if error.status() == Status::NOT_FOUND {
        return Response::html(Status::NOT_FOUND, "<h1>There is no such page</h1>\n");
    }
    let page = format!("<h1>{} {}</h1>\n", error.status(), error.message());
    Response::html(error.status(), page)
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/", |_| "Hello\n")
        .get("/broken", broken)
        .route(Route::post("/short", |_| "short\n").body_len_max(5))
        .on_error(error_page)
        .serve(addr)
}
