//! Section 4: the status line.

use super::{ask, get};

#[test]
fn a_space_follows_the_status_code() {
    // RFC 9112, 4: "A server MUST send the space that separates the status-code from the
    // reason-phrase even when the reason-phrase is absent"
    for request in [get(""), "BAD\r\n\r\n".to_owned()] {
        let outcome = ask(request);
        let line = &outcome.answers[0].head[..13];
        assert!(
            line.starts_with(b"HTTP/1.1 ") && line[12] == b' ',
            "{outcome:?}"
        );
    }
}
