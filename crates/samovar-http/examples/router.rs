//! Methods, also one without a function of its own, parameters, wildcards, and a mounted router.
//!
//! ```text
//! cargo run --example router
//! curl http://127.0.0.1:8080/users/7
//! curl http://127.0.0.1:8080/users/7.json
//! curl -X DELETE http://127.0.0.1:8080/users/7
//! curl http://127.0.0.1:8080/files/any/path/below
//! curl -X PURGE http://127.0.0.1:8080/files/any/path/below
//! curl http://127.0.0.1:8080/admin/status
//! curl -i -X PUT http://127.0.0.1:8080/users/7
//! ```

use samovar_http::http::Status;
use samovar_http::{Request, Response, Route, Router};

fn user(request: &mut Request) -> String {
    format!("user {}\n", request.param("id").unwrap_or_default())
}

fn user_json(request: &mut Request) -> Response {
    let id: u32 = request
        .param("id")
        .and_then(|id| id.parse().ok())
        .unwrap_or(0);
    Response::json(Status::OK, format!("{{\"id\":{id}}}\n"))
}

fn file(request: &mut Request) -> String {
    format!("file {}\n", request.param("path").unwrap_or_default())
}

fn purge(request: &mut Request) -> String {
    format!("purged {}\n", request.param("path").unwrap_or_default())
}

fn admin() -> Router {
    Router::new()
        .get("/", |_| "admin\n")
        .get("/status", |_| "all is well\n")
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/users/{id}", user)
        .delete("/users/{id}", |_| Status::NO_CONTENT)
        .get("/users/{id}.json", user_json)
        .get("/users/me", |_| "you\n")
        .get("/files/{*path}", file)
        .route(Route::new("PURGE", "/files/{*path}", purge))
        .get("/*.ico", |_| Status::NOT_FOUND)
        .mount("/admin", admin())
        .serve(addr)
}
