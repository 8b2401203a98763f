//! Permanent redirects, and redirects after a POST.
//!
//! ```text
//! cargo run --example redirect
//! curl -i http://127.0.0.1:8080/old
//! curl -i -d 'title=Tea' http://127.0.0.1:8080/notes
//! ```

use samovar_http::http::Status;
use samovar_http::{Response, Router};

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/new", |_| "here\n")
        // A permanent redirect, which clients may cache.
        .get("/old", |_| {
            Response::redirect(Status::PERMANENT_REDIRECT, "/new")
        })
        // The client fetches the result with GET, so reloading the page does not repeat the POST.
        .post("/notes", |_| Response::redirect(Status::SEE_OTHER, "/new"))
        .serve(addr)
}
