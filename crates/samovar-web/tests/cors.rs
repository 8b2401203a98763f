//! Pages of the allowed origins can use an application, and pages of other origins cannot.

mod support;

use std::time::Duration;

use samovar_http::{Request, Response, Router};
use samovar_web::Cors;
use support::get;

const APP: &str = "https://app.example.org";

fn router(cors: Cors) -> Router {
    Router::new()
        .get("/tea", |_| "Earl Grey\n")
        .put("/tea", |_| ())
        .wrap(cors.handler())
}

fn strict() -> Router {
    router(
        Cors::new()
            .origin(APP)
            .origin("http://localhost:3000")
            .methods(["PUT"])
            .headers(["Content-Type", "Authorization"])
            .exposed(["ETag"])
            .credentials()
            .max_age(Duration::from_secs(600)),
    )
}

fn preflight(router: &Router, target: &str, origin: &str) -> Response {
    let request = Request::builder("OPTIONS", target)
        .header("Origin", origin)
        .header("Access-Control-Request-Method", "PUT");
    router.answer(request.build())
}

fn cors_fields(response: &Response) -> Vec<String> {
    let fields = response.headers();
    fields
        .filter(|(name, _)| name.starts_with("Access-Control"))
        .map(|(name, value)| format!("{name}: {}", value.escape_ascii()))
        .collect()
}

#[test]
fn a_preflight_of_an_allowed_origin_names_what_is_allowed() {
    for target in ["/tea", "/absent"] {
        let response = preflight(&strict(), target, APP);
        assert_eq!(response.status().code(), 204);
        assert_eq!(response.header_text("vary"), Some("Origin"));
        let expected = [
            "Access-Control-Allow-Origin: https://app.example.org",
            "Access-Control-Allow-Credentials: true",
            "Access-Control-Allow-Methods: PUT",
            "Access-Control-Allow-Headers: Content-Type, Authorization",
            "Access-Control-Max-Age: 600",
        ];
        assert_eq!(cors_fields(&response), expected);
    }
}

#[test]
fn responses_to_allowed_origins_can_be_read() {
    let response = get(&strict(), "/tea", &[("Origin", APP)]);
    let expected = [
        "Access-Control-Allow-Origin: https://app.example.org",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Expose-Headers: ETag",
    ];
    assert_eq!(cors_fields(&response), expected);
    // So can errors.
    let absent = get(&strict(), "/absent", &[("Origin", APP)]);
    assert_eq!(absent.status().code(), 404);
    assert_eq!(cors_fields(&absent), expected);
}

#[test]
fn other_origins_get_no_permission() {
    for origin in [
        "https://evil.example.org",
        "http://app.example.org",
        "https://app.example.org.evil",
        "null",
        "",
    ] {
        let response = preflight(&strict(), "/tea", origin);
        assert_eq!(cors_fields(&response), [""; 0], "{origin}");
        assert_eq!(response.header_text("vary"), Some("Origin"));
        let response = get(&strict(), "/tea", &[("Origin", origin)]);
        assert_eq!(cors_fields(&response), [""; 0], "{origin}");
    }
    let same_origin = get(&strict(), "/tea", &[]);
    assert_eq!(cors_fields(&same_origin), [""; 0]);
    assert_eq!(same_origin.header_text("vary"), Some("Origin"));
}

#[test]
fn any_origin_gets_no_credentials() {
    let router = router(Cors::new().any_origin().credentials());
    let response = get(&router, "/tea", &[("Origin", "https://any.example")]);
    assert_eq!(cors_fields(&response), ["Access-Control-Allow-Origin: *"]);
    assert_eq!(response.header_text("vary"), None);
    // A shared cache may keep this response, and send it to a page.
    let response = get(&router, "/tea", &[]);
    assert_eq!(cors_fields(&response), ["Access-Control-Allow-Origin: *"]);
}

#[test]
fn other_options_requests_reach_the_router() {
    let request = Request::builder("OPTIONS", "/tea").header("Origin", APP);
    let response = strict().answer(request.build());
    assert_eq!(response.status().code(), 405);
    assert_eq!(response.header_text("allow"), Some("GET, HEAD, PUT"));
}
