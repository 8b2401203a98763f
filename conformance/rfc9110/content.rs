//! Content and its length: section 8.

use super::{answer, ask, is_own, refused, request};

#[test]
fn the_length_for_head_is_that_for_get() {
    // RFC 9110, 8.6: "A server MAY send a Content-Length header field in a response to a HEAD
    // request (Section 9.3.2); a server MUST NOT send Content-Length in such a response unless its
    // field value equals the decimal number of octets that would have been sent"
    // RFC 9110, 9.3.2: "The HEAD method is identical to GET except that the server MUST NOT send
    // content in the response."
    let own = ["/inline", "/file", "/chunked", "/empty"];
    for target in ["/", "/none"]
        .into_iter()
        .chain(own.into_iter().filter(|_| is_own()))
    {
        let (head, get) = (answer("HEAD", target, ""), answer("GET", target, ""));
        assert_eq!(head.status, get.status, "{target}");
        if let Some(len) = head.header("content-length") {
            assert_eq!(Some(len), get.header("content-length"), "{target}");
        }
    }
}

#[test]
fn no_length_where_there_is_no_content() {
    // RFC 9110, 8.6: "A server MUST NOT send a Content-Length header field in any response with a
    // status code of 1xx (Informational) or 204 (No Content)."
    // RFC 9110, 8.6: "a server MUST NOT send Content-Length in such a response unless its field
    // value equals the decimal number of octets that would have been sent in the content of a 200
    // (OK) response to the same request."
    if !is_own() {
        return;
    }
    for target in ["/empty", "/fresh", "/early"] {
        for answer in ask(request("GET", target, "")).answers {
            if answer.status != 200 {
                assert_eq!(
                    answer.header("content-length"),
                    None,
                    "{target}: {}",
                    answer.status
                );
            }
        }
    }
}

#[test]
fn large_lengths() {
    // RFC 9110, 8.6: "Since there is no predefined limit to the length of content, a recipient MUST
    // anticipate potentially large decimal numerals and prevent parsing errors due to integer
    // conversion overflows or precision loss"
    for length in [
        "18446744073709551616",
        "18446744073709551617",
        "99999999999999999999999999",
    ] {
        refused(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nx"
        ));
    }
}

#[test]
fn a_coding_is_named() {
    // RFC 9110, 8.4: "If one or more encodings have been applied to a representation, the sender
    // that applied the encodings MUST generate a Content-Encoding header field that lists the
    // content codings in the order in which they were applied."
    for target in ["/", "/none", "/inline", "/letters"] {
        let given = answer("GET", target, "Accept-Encoding: gzip\r\n");
        let is_zipped = given.body.starts_with(&[0x1f, 0x8b]);
        let coding = given.header("content-encoding");
        assert_eq!(coding, is_zipped.then(|| "gzip".into()), "{target}");
    }
}
