//! Section 7: transfer codings.

use samovar_conformance::End;

use super::{ask, get, refused};

fn chunked(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

#[test]
fn chunked_bodies() {
    // RFC 9112, 6.1: "A recipient MUST be able to parse the chunked transfer coding"
    // RFC 9112, 7.1: "A recipient MUST be able to parse and decode the chunked transfer coding."
    // RFC 9112, 7.1.1: "A recipient MUST ignore unrecognized chunk extensions."
    for body in [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;x\r\nhello\r\n5;y=\"z\"\r\nhello\r\n000\r\n\r\n",
        "A\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
    ] {
        // The response to the second request shows that the server found the end of the first.
        let outcome = ask(chunked(body) + &get(""));
        assert_eq!(
            (outcome.answers.len(), outcome.end),
            (2, End::Closed),
            "{body:?}: {outcome:?}"
        );
        assert_ne!(outcome.answers[0].status, 400, "{body:?}");
        assert_eq!(
            outcome.answers[1].status,
            ask(get("")).answers[0].status,
            "{body:?}"
        );
    }
}

#[test]
fn sizes_that_overflow() {
    // RFC 9112, 7.1: "recipients MUST anticipate potentially large hexadecimal numerals and prevent
    // parsing errors due to integer conversion overflows or precision loss due to integer
    // representation."
    refused(chunked("10000000000000005\r\nhello\r\n0\r\n\r\n"), 400);
}
