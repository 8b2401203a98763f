//! Each request has an ID, which the handler and the client see.

mod support;

use samovar_http::{Request, Response, Router};
use samovar_web::{RequestId, RequestIds};
use support::{get, read};

fn show(request: &mut Request) -> String {
    let id = request.extensions().get::<RequestId>();
    id.map(ToString::to_string).unwrap_or_default()
}

fn id(response: &Response) -> String {
    response
        .header_text("x-request-id")
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn ids_are_made_for_all_requests() {
    let router = Router::new()
        .get("/", show)
        .wrap(RequestIds::new().handler());
    let mut ids = Vec::new();
    for given in [&[][..], &[("X-Request-Id", "given")]] {
        let response = get(&router, "/", given);
        let id = id(&response);
        assert!(id.len() > 16, "{id}");
        assert_eq!(read(response), (200, id.clone()));
        ids.push(id);
    }
    ids.push(id(&get(&router, "/absent", &[])));
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_trusted_id_is_taken_if_it_is_harmless() {
    let router = Router::new()
        .get("/", show)
        .wrap(RequestIds::new().trust_header().handler());
    let long = "x".repeat(128);
    for given in ["4f1c-Az_9.", &long] {
        assert_eq!(id(&get(&router, "/", &[("X-Request-Id", given)])), given);
    }
    let longer = "x".repeat(129);
    for given in ["", "a b", "ñ", "a;b", &longer] {
        let own = id(&get(&router, "/", &[("X-Request-Id", given)]));
        assert_ne!(own, given);
    }
}
