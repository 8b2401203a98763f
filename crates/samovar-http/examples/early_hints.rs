//! Early hints: a browser fetches the style sheet while the page is still being computed.
//!
//! ```text
//! cargo run --example early_hints
//! curl -i http://127.0.0.1:8080/
//! ```

use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Body, Error, Request, Response, Router};

fn page(request: &mut Request) -> Result<Response, Error> {
    let style = ("Link", "</style.css>; rel=preload; as=style");
    request.inform(Status::EARLY_HINTS, &[style])?;
    let tea = slow_query();
    let page = format!("<link rel=stylesheet href=/style.css><p>{tea}</p>\n");
    Ok(Response::html(Status::OK, page))
}

/// A query that takes its time.
fn slow_query() -> &'static str {
    std::thread::sleep(Duration::from_millis(200));
    "Assam"
}

fn style(_: &mut Request) -> Response {
    let rules = b"p { font-size: 200% }\n".as_slice().into();
    Response::new(Status::OK, Body::Bytes(rules)).header("Content-Type", "text/css")
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/", page)
        .get("/style.css", style)
        .serve(addr)
}
