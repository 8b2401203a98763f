//! Section 9: connections.

use samovar_conformance::{End, send};

use super::{ask, get, server};

fn kept(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

#[test]
fn answers_come_in_order() {
    // RFC 9112, 9.3.2: "it MUST send the corresponding responses in the same order that the
    // requests were received."
    let outcome = ask([kept("/"), kept("/none"), kept("/"), kept("/none"), get("")].concat());
    let [first, second] = [&kept("/"), &kept("/none")].map(|request| {
        let request = request.replace("Host: a", "Host: a\r\nConnection: close");
        ask(request).statuses()[0]
    });
    assert_eq!(outcome.statuses(), [first, second, first, second, first]);
    assert_eq!(outcome.end, End::Closed);
}

#[test]
fn an_unread_body_is_no_request() {
    // RFC 9112, 9.3: "A server MUST read the entire request message body or close the connection
    // after sending its response"
    for path in ["/", "/inline", "/none"] {
        let hidden = kept("/hidden");
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{hidden}{}",
            hidden.len(),
            get("")
        );
        let outcome = ask(request);
        assert!(outcome.answers.len() <= 2, "{path}: {outcome:?}");
        if let Some(second) = outcome.answers.get(1) {
            assert_eq!(
                second.status,
                ask(get("")).statuses()[0],
                "{path}: {outcome:?}"
            );
        }
    }
}

#[test]
fn close_is_the_end() {
    // RFC 9112, 9.6: "A server that receives a "close" connection option MUST initiate closure of
    // the connection (see below) after it sends the final response to the request that contained
    // the "close" connection option."
    // RFC 9112, 9.6: "The server MUST NOT process any further requests received on that
    // connection."
    for option in ["close", "Close", "x, close", "keep-alive, close"] {
        let first = kept("/").replace("Host: a", &format!("Host: a\r\nConnection: {option}"));
        let outcome = ask(first + &kept("/"));
        assert_eq!(outcome.answers.len(), 1, "{option}: {outcome:?}");
        assert_ne!(outcome.end, End::Open, "{option}");
    }
}

#[test]
fn http_1_0_closes_unless_asked() {
    let outcome = ask("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n");
    assert_eq!(outcome.answers.len(), 1, "{outcome:?}");
    let kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let outcome = ask(format!("{kept}{kept}GET / HTTP/1.0\r\n\r\n"));
    assert_eq!(outcome.answers.len(), 3, "{outcome:?}");
    assert_eq!(
        outcome.answers[0].header("connection").as_deref(),
        Some("keep-alive")
    );
}

#[test]
fn a_half_closed_client_is_answered() {
    let outcome = send(server::addr(), kept("/").as_bytes(), true, false);
    assert_eq!(
        (outcome.answers.len(), outcome.end),
        (1, End::Closed),
        "{outcome:?}"
    );
}
