//! Header fields: handlers that read those of requests, and set those of responses.
//!
//! ```text
//! cargo run --example client_headers
//! curl -i http://127.0.0.1:8080/
//! curl -i -H 'Accept-Language: de, en;q=0.5' http://127.0.0.1:8080/greeting
//! curl -i -H 'X-Api-Key: secret' http://127.0.0.1:8080/account
//! curl -i 'http://127.0.0.1:8080/report?name=tea.csv'
//! ```

use std::io;

use samovar_http::http::Status;
use samovar_http::{Error, Request, Response, Router};

/// Lists all fields in the order in which the client has sent them. Values are bytes, because
/// clients send other encodings than UTF-8, too.
fn list(request: &mut Request) -> String {
    let fields = request.head().headers();
    fields
        .map(|(name, value)| format!("{}: {}\n", name.escape_ascii(), value.escape_ascii()))
        .collect()
}

/// Chooses a language. Names of fields are compared case-insensitively.
fn greet(request: &mut Request) -> Response {
    let accepted = request.head().header_text("accept-language");
    let (language, text) = match accepted {
        Some(accepted) if accepted.trim_start().starts_with("de") => ("de", "Guten Tag\n"),
        _ => ("en", "Good day\n"),
    };
    Response::text(Status::OK, text)
        .header("Content-Language", language)
        // Caches must not send this response to a client that accepts another language.
        .header("Vary", "Accept-Language")
}

fn account(request: &mut Request) -> Response {
    match request.head().header("X-Api-Key") {
        Some(b"secret") => Response::text(Status::OK, "Hello, Ada\n")
            .header("Cache-Control", "private, no-store")
            // A field may occur several times; `set_header` would replace the first one.
            .header("Set-Cookie", "seen=1; Secure; HttpOnly; SameSite=Lax")
            .header("Set-Cookie", "theme=dark; Secure; SameSite=Lax"),
        _ => Response::text(Status::UNAUTHORIZED, "Who are you?\n")
            .header("WWW-Authenticate", "ApiKey"),
    }
}

/// Sends text of the client back in a field. A control character would make `header` panic, so that
/// nobody can add a field to the response; a quote would end the name.
fn report(request: &mut Request) -> Result<Response, Error> {
    let query = request.query();
    let name = query.get("name").unwrap_or("report.csv");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.bytes().all(is_plain) {
        return Err(Error::new(Status::BAD_REQUEST, "the name is not plain"));
    }
    let disposition = format!("attachment; filename=\"{name}\"");
    Ok(Response::text(Status::OK, "kettle,celsius\n1,96\n")
        .set_header("Content-Type", "text/csv; charset=utf-8")
        .header("Content-Disposition", disposition))
}

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    Router::new()
        .get("/", list)
        .get("/greeting", greet)
        .get("/account", account)
        .get("/report", report)
        .serve(addr)
}
