//! Path and query parameters.
//!
//! ```text
//! cargo run --example parameters
//! curl 'http://127.0.0.1:8080/add/2/3'
//! curl 'http://127.0.0.1:8080/add/2/tea'
//! curl 'http://127.0.0.1:8080/search?q=black+tea&tag=hot&tag=dark&page=2'
//! ```

use samovar_http::http::Status;
use samovar_http::{Error, Request, Router};

fn number(request: &Request, name: &str) -> Result<i64, Error> {
    let text = request.param(name).unwrap_or_default();
    let not_a_number = |_| Error::new(Status::BAD_REQUEST, format!("{name} is not a number"));
    text.parse().map_err(not_a_number)
}

fn add(request: &mut Request) -> Result<String, Error> {
    let sum = number(request, "a")?.checked_add(number(request, "b")?);
    Ok(format!("{}\n", sum.ok_or(Status::UNPROCESSABLE_CONTENT)?))
}

fn search(request: &mut Request) -> String {
    let query = request.query();
    let text = query.get("q").unwrap_or("everything");
    let page = query
        .get("page")
        .and_then(|page| page.parse().ok())
        .unwrap_or(1_u32);
    let tags: Vec<_> = query.all("tag").collect();
    format!("{text} with tags {tags:?}, page {page}\n")
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/add/{a}/{b}", add)
        .get("/search", search)
        .serve(addr)
}
