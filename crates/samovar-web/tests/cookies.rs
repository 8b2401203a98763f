//! A cookie that a response has set comes back with the next request.

mod support;

use samovar_http::http::Status;
use samovar_http::{Request, Response, Router};
use samovar_web::{Cookie, RequestExt, ResponseExt};
use support::{Connection, serve};

fn visit(request: &mut Request) -> Response {
    let count: u32 = request
        .cookie("count")
        .and_then(|count| count.parse().ok())
        .unwrap_or(0);
    let name = request.cookie("name").unwrap_or_default();
    Response::text(Status::OK, format!("{count} {name}"))
        .cookie(Cookie::new("count", (count + 1).to_string()).secure())
        .cookie(Cookie::new("name", "ñ; \"b\"\r\n"))
}

#[test]
fn cookies_come_back() {
    let (_server, addr) = serve(Router::new().get("/", visit));
    let mut client = Connection::connect(addr);
    let first = client.get("/");
    assert_eq!(first.text(), "0 ");
    let fields: Vec<_> = first.headers("set-cookie").collect();
    let attributes = "; Path=/; HttpOnly; Secure; SameSite=Lax";
    assert_eq!(fields[0], format!("count=1{attributes}"));
    assert_eq!(fields.len(), 2);
    let pair = |field: &str| field.split(';').next().unwrap().to_owned();
    let (count, name) = (pair(fields[0]), pair(fields[1]));
    // One field with all cookies, and a field for each.
    let one = [&*format!("Cookie: {count}; {name}")];
    let several = [&*format!("Cookie: {count}"), &*format!("Cookie: {name}")];
    for fields in [&one[..], &several] {
        let again = client.request("GET", "/", fields);
        assert_eq!(again.text(), "1 ñ; \"b\"\r\n");
    }
}
