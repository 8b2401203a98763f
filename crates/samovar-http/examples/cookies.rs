//! A cookie that counts visits.
//!
//! ```text
//! cargo run --example cookies
//! curl -c jar -b jar http://127.0.0.1:8080/
//! curl -c jar -b jar http://127.0.0.1:8080/
//! ```

use samovar_http::http::Status;
use samovar_http::{Cookie, Request, Response, Router, SameSite};

fn visit(request: &mut Request) -> Response {
    let old = request.cookie("visits");
    let count = old
        .and_then(|cookie| cookie.value().parse().ok())
        .unwrap_or(0_u32);
    let count = count.saturating_add(1);
    let cookie = Cookie::build(("visits", count.to_string()))
        .path("/")
        .http_only(true)
        .same_site(SameSite::Lax);
    Response::text(Status::OK, format!("Visit {count}\n")).cookie(cookie)
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new().get("/", visit).serve(addr)
}
