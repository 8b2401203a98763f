//! Authentication and timing as middleware. Handlers read the user from the request's extensions.
//!
//! ```text
//! cargo run --example auth
//! curl http://127.0.0.1:8080/
//! curl -i http://127.0.0.1:8080/account
//! curl -H 'Authorization: Bearer secret-of-ada' http://127.0.0.1:8080/account
//! ```

use std::time::Instant;

use samovar_http::http::Status;
use samovar_http::{Next, Request, Response, Router};

/// The authenticated user. [`members_only`] attaches it to the request as an extension.
struct User(String);

fn members_only(request: &mut Request, next: Next<'_>) -> Response {
    let token = request.head().header("authorization");
    let token = token.and_then(|value| value.strip_prefix(b"Bearer "));
    let name = match token {
        Some(b"secret-of-ada") => "Ada",
        Some(b"secret-of-grace") => "Grace",
        _ => {
            return Response::text(Status::UNAUTHORIZED, "Who are you?\n")
                .header("WWW-Authenticate", "Bearer");
        }
    };
    request.extensions_mut().insert(User(name.to_owned()));
    next.run(request)
}

fn timed(request: &mut Request, next: Next<'_>) -> Response {
    let started = Instant::now();
    let response = next.run(request);
    let millis = started.elapsed().as_secs_f64() * 1000.0;
    response.header("Server-Timing", format!("handler;dur={millis:.3}"))
}

fn account(request: &mut Request) -> Option<String> {
    let user = request.extensions().get::<User>()?;
    Some(format!("Hello, {}\n", user.0))
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let members = Router::new().get("/", account).wrap(members_only);
    Router::new()
        .get("/", |_| "Everybody may read this\n")
        .mount("/account", members)
        .wrap(timed)
        .serve(addr)
}
