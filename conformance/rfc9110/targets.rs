//! Identifiers and routing: sections 4 and 7.

use super::{answer, ask, is_own, lines, refused};

#[test]
fn a_uri_without_a_host() {
    // RFC 9110, 4.2.1: "A recipient that processes such a URI reference MUST reject it as invalid."
    // RFC 9110, 4.2.2: "A recipient that processes such a URI reference MUST reject it as invalid."
    for target in ["http:///", "http://:80/", "https:///"] {
        refused(format!("GET {target} HTTP/1.1\r\nHost: \r\n\r\n"));
    }
}

#[test]
fn forms_of_other_methods() {
    // RFC 9110, 7.1: "These forms MUST NOT be used with other methods."
    refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n");
    refused("GET a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n");
}

#[test]
fn a_tunnel_to_nowhere() {
    // RFC 9110, 9.3.6: "A server MUST reject a CONNECT request that targets an empty or invalid
    // port number"
    for target in ["a:", "a", "a:x", "a:99999", "a:-1"] {
        refused(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        ));
    }
}

#[test]
fn options_of_the_connection_name_nothing_else() {
    // RFC 9110, 7.6.1: "A sender MUST NOT send a connection option corresponding to a field that is
    // intended for all recipients of the content."
    for request in super::PLAIN {
        for answer in ask(request).answers {
            let options = answer.header("connection").unwrap_or_default();
            for option in options
                .split(',')
                .map(str::trim)
                .filter(|option| !option.is_empty())
            {
                assert!(
                    ["close", "keep-alive", "upgrade"].contains(&option),
                    "{option}"
                );
            }
        }
    }
}

/// Sends a WebSocket handshake for `target`, modified by `change`.
fn handshake(target: &str, change: impl Fn(String) -> String) -> samovar_conformance::Outcome {
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    ask(change(format!(
        "GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"
    )))
}

#[test]
fn nobody_switches_unasked() {
    // RFC 9110, 7.8: "A server MUST NOT switch to a protocol that was not indicated by the client
    // in the corresponding request's Upgrade header field."
    // RFC 9110, 7.8: "A server that receives an Upgrade header field in an HTTP/1.0 request MUST
    // ignore that Upgrade field."
    for target in ["/", "/ws"] {
        let other =
            |text: String| text.replace("websocket\r\n", "other/1\r\nConnection: close\r\n");
        let none = |text: String| text.replace("Upgrade: websocket\r\n", "Connection: close\r\n");
        let old = |text: String| text.replace("HTTP/1.1", "HTTP/1.0");
        for change in [&other as &dyn Fn(String) -> String, &none, &old] {
            let outcome = handshake(target, change);
            assert!(!outcome.answers.is_empty(), "{target}: {outcome:?}");
            assert!(!outcome.statuses().contains(&101), "{target}: {outcome:?}");
        }
    }
}

#[test]
fn a_switch_says_to_what() {
    // RFC 9110, 7.8: "A server that sends a 101 (Switching Protocols) response MUST send an Upgrade
    // header field to indicate the new protocol(s) to which the connection is being switched"
    // RFC 9110, 7.8: "A sender of Upgrade MUST also send an "Upgrade" connection option in the
    // Connection header field"
    // RFC 9110, 15.2.2: "The server MUST generate an Upgrade header field in the response that
    // indicates which protocol(s) will be in effect after this response."
    // RFC 9110, 7.8: "A server that sends a 426 (Upgrade Required) response MUST send an Upgrade
    // header field to indicate the acceptable protocols"
    // RFC 9110, 15.5.22: "The server MUST send an Upgrade header field in a 426 response to
    // indicate the required protocol(s)"
    if !is_own() || answer("GET", "/ws", "").status == 404 {
        return;
    }
    let end = |text: String| text + "\u{8}";
    for (outcome, status) in [
        (handshake("/ws", end), 101),
        (
            handshake("/ws", |text| text.replace("Version: 13", "Version: 12")),
            426,
        ),
    ] {
        assert_eq!(outcome.statuses().first(), Some(&status), "{outcome:?}");
        let lines = lines(&outcome.answers[0]);
        let has = |name: &str, value: &str| {
            lines
                .iter()
                .any(|(n, v)| n.eq_ignore_ascii_case(name) && v.to_lowercase().contains(value))
        };
        assert!(
            has("Upgrade", "websocket") && has("Connection", "upgrade"),
            "{lines:?}"
        );
    }
}

#[test]
fn an_expectation_before_a_switch() {
    // RFC 9110, 7.8: "If a server receives both an Upgrade and an Expect header field with the
    // "100-continue" expectation (Section 10.1.1), the server MUST send a 100 (Continue) response
    // before sending a 101 (Switching Protocols) response."
    if !is_own() || answer("GET", "/ws", "").status == 404 {
        return;
    }
    let expecting = |text: String| {
        let fields = "Host: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\nConnection: close";
        text.replace("Host: a", fields) + "x"
    };
    let statuses = handshake("/ws", expecting).statuses();
    // The server may also refuse to switch. According to 10.1.1 it may omit 100 for a request
    // without content.
    assert!(!statuses.starts_with(&[101]), "{statuses:?}");
}
