//! Ranges: section 14, and 206.

use super::{answer, is_own, own};

#[test]
fn large_positions() {
    // RFC 9110, 14.1.2: "Since there is no predefined limit to the length of content, recipients
    // MUST anticipate potentially large decimal numerals and prevent parsing errors due to integer
    // conversion overflows."
    if !is_own() {
        return;
    }
    let huge = "99999999999999999999999999";
    for (range, statuses) in [
        (format!("bytes=0-{huge}"), [200, 206]),
        (format!("bytes=-{huge}"), [200, 206]),
        (format!("bytes={huge}-"), [200, 416]),
    ] {
        let given = answer("GET", "/file", &format!("Range: {range}\r\n"));
        assert!(statuses.contains(&given.status), "{range}: {given:?}");
        assert!(
            given.status == 416 || given.body == own::FILE,
            "{range}: {given:?}"
        );
    }
}

#[test]
fn ranges_that_are_ignored() {
    // RFC 9110, 14.2: "A server MUST ignore a Range header field received with a request method
    // that is unrecognized or for which range handling is not defined."
    // RFC 9110, 14.2: "An origin server MUST ignore a Range header field that contains a range unit
    // it does not understand."
    // RFC 9110, 14.4: "A server MUST ignore a Content-Range header field received in a request with
    // a method for which Content-Range support is not defined."
    // RFC 9110, 15.3.7.2: "A server MUST NOT generate a multipart response to a request for a
    // single range"
    let target = if is_own() { "/file" } else { "/" };
    let whole = answer("GET", target, "");
    for field in [
        "Range: letters=1-2",
        "Range: bytes",
        "Content-Range: bytes 1-2/26",
    ] {
        let given = answer("GET", target, &format!("{field}\r\n"));
        assert_eq!(
            (given.status, &given.body),
            (whole.status, &whole.body),
            "{field}"
        );
    }
    for method in ["HEAD", "UNHEARDOF"] {
        assert_ne!(
            answer(method, target, "Range: bytes=1-2\r\n").status,
            206,
            "{method}"
        );
    }
    let single = answer("GET", target, "Range: bytes=1-2\r\n");
    let content_type = single.header("content-type").unwrap_or_default();
    assert!(!content_type.starts_with("multipart/"), "{content_type}");
}

#[test]
fn a_part() {
    // RFC 9110, 15.3.7.1: "If a single part is being transferred, the server generating the 206
    // response MUST generate a Content-Range header field, describing what range of the selected
    // representation is enclosed, and a content consisting of the range."
    // RFC 9110, 15.3.7: "A server that generates a 206 response MUST generate the following header
    // fields, in addition to those required in the subsections below"
    // RFC 9110, 15.3.7: "Otherwise, a sender MUST generate all of the representation header fields
    // that would have been sent in a 200 (OK) response to the same request."
    if !is_own() {
        return;
    }
    let whole = answer("GET", "/file", "");
    let part = answer("GET", "/file", "Range: bytes=1-2\r\n");
    assert_eq!((part.status, &part.body[..]), (206, &b"bc"[..]));
    assert_eq!(
        part.header("content-range").as_deref(),
        Some("bytes 1-2/26")
    );
    for name in [
        "etag",
        "cache-control",
        "vary",
        "content-type",
        "accept-ranges",
    ] {
        assert_eq!(part.header(name), whole.header(name), "{name}");
    }
    assert!(part.header("date").is_some());
}
