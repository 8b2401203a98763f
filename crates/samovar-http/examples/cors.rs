//! Requests from pages of other origins (CORS), as middleware.
//!
//! ```text
//! cargo run --example cors
//! curl -i -H 'Origin: https://shop.example' http://127.0.0.1:8080/tea/7
//! curl -i -X OPTIONS -H 'Origin: https://shop.example' \
//!     -H 'Access-Control-Request-Method: PUT' http://127.0.0.1:8080/tea/7
//! ```

use samovar_http::http::{Method, Status};
use samovar_http::{Next, Request, Response, Router};

/// The origins whose pages may call this server.
const ORIGINS: [&str; 2] = ["https://shop.example", "https://admin.example"];

/// Adds the fields that let browsers pass responses to pages of [`ORIGINS`].
fn allow_origins(request: &mut Request, next: Next<'_>) -> Response {
    let head = request.head();
    let origin = head.header_text("origin").unwrap_or_default();
    let origin = ORIGINS.into_iter().find(|known| *known == origin);
    // Before a request that a form could not send, a browser asks with OPTIONS whether it may.
    let is_preflight =
        head.method() == Method::Options && head.header("access-control-request-method").is_some();
    let response = next.run(request).header("Vary", "Origin");
    let Some(origin) = origin else {
        return response;
    };
    let response = response.header("Access-Control-Allow-Origin", origin);
    if !is_preflight {
        return response;
    }
    response
        .header("Access-Control-Allow-Methods", "GET, PUT")
        .header("Access-Control-Allow-Headers", "Content-Type")
        .header("Access-Control-Max-Age", "600")
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/tea/{id}", |_| "Assam\n")
        .put("/tea/{id}", |_| Status::NO_CONTENT)
        .answer_options()
        .wrap(allow_origins)
        .serve(addr)
}
