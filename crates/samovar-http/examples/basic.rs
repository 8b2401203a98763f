//! The smallest server: one route and one line of text.
//!
//! ```text
//! cargo run --example basic
//! curl http://127.0.0.1:8080/
//! ```

use samovar_http::Router;

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new().get("/", |_| "Hello, world\n").serve(addr)
}
