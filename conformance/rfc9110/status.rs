//! Status codes: section 15.

use super::{answer, is_own};

#[test]
fn reset_content_has_none() {
    // RFC 9110, 15.3.6: "Since the 205 status code implies that no additional content will be
    // provided, a server MUST NOT generate content in a 205 response."
    if !is_own() {
        return;
    }
    // The application returns content for 205, which the server must not send.
    let given = answer("GET", "/reset", "");
    assert_eq!((given.status, &given.body[..]), (205, &b""[..]));
}

#[test]
fn not_modified_says_what_ok_would() {
    // RFC 9110, 15.4.5: "The server generating a 304 response MUST generate any of the following
    // header fields that would have been sent in a 200 (OK) response to the same request:"
    if !is_own() {
        return;
    }
    let given = answer("GET", "/fresh", "");
    assert_eq!(
        (given.status, given.header("etag").as_deref()),
        (304, Some("\"letters\""))
    );
    assert!(given.header("date").is_some());
}
