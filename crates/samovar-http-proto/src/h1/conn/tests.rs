use super::*;

/// Returns the events of `input`, passed in pieces that end at `cuts`.
fn trace(input: &[u8], cuts: &[usize]) -> Vec<String> {
    let (mut conn, mut index) = (Conn::default(), HeadIndex::default());
    let (mut at, mut seen, mut data) = (0, Vec::new(), Vec::new());
    for shown in cuts.iter().copied().chain([input.len()]) {
        loop {
            let piece = input.get(at..shown).unwrap_or_default();
            let (taken, step) = conn.advance(piece, &HeadLimits::default(), 1000, &mut index);
            let consumed = &piece[..taken];
            at += taken;
            let complete = match step {
                Step::NeedMore => break,
                Step::Head => {
                    seen.push(format!("head {}", index.path.of(consumed).escape_ascii()));
                    !conn.has_body()
                }
                Step::Data => {
                    data.extend_from_slice(consumed);
                    false
                }
                Step::Framing => false,
                Step::BodyEnd => {
                    seen.push(format!("body {}", data.escape_ascii()));
                    data.clear();
                    true
                }
                Step::Http2 => {
                    seen.push("http2".to_owned());
                    return seen;
                }
                Step::Paused => panic!("paused although every request was answered"),
                Step::Refused(refusal) => {
                    seen.push(format!("refused {refusal}"));
                    return seen;
                }
                Step::Closed => {
                    seen.push("closed".to_owned());
                    return seen;
                }
            };
            if complete {
                let keep = conn.may_keep();
                conn.answered(keep);
            }
        }
    }
    seen
}

#[track_caller]
fn check(input: &str, expected: &[&str]) {
    let input = input.as_bytes();
    assert_eq!(trace(input, &[]), expected);
    for cut in 0..input.len() {
        assert_eq!(trace(input, &[cut]), expected, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (0..input.len()).collect();
    assert_eq!(trace(input, &every_byte), expected);
}

#[test]
fn pipelined_requests_are_parsed_with_any_split() {
    check(
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n\
         POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
         POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n\
         HEAD /4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n\
         GET /5 HTTP/1.1\r\nHost: a\r\n\r\n",
        &[
            "head /1",
            "head /2",
            "body hello",
            "head /3",
            "body abcde",
            "head /4",
            "closed",
        ],
    );
}

#[test]
fn http_1_0_closes() {
    check(
        "GET /1 HTTP/1.0\r\n\r\nGET /2 HTTP/1.0\r\n\r\n",
        &["head /1", "closed"],
    );
    check(
        "GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /2 HTTP/1.0\r\n\r\n",
        &["head /1", "head /2", "closed"],
    );
}

#[test]
fn a_refusal_closes_the_connection() {
    check(
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\n\r\n\
         GET /3 HTTP/1.1\r\nHost: a\r\n\r\n",
        &["head /1", "refused missing, repeated or malformed Host"],
    );
}

#[test]
fn body_limits() {
    let at = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{}",
        "x".repeat(1000)
    );
    assert_eq!(trace(at.as_bytes(), &[]).len(), 2);
    let past = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n";
    assert_eq!(
        trace(past.as_bytes(), &[]),
        ["head /", "refused request body too large"]
    );
    let chunk = |len: usize| {
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             {len:x}\r\n{}\r\n0\r\n\r\n",
            "x".repeat(len)
        )
    };
    assert_eq!(trace(chunk(1000).as_bytes(), &[]).len(), 2);
    assert_eq!(
        trace(chunk(1001).as_bytes(), &[])[1],
        "refused request body too large"
    );
}

/// Feeds a head and completes the response without reading the body.
fn early(head: &str, keep: bool) -> (Conn, bool) {
    let (mut conn, mut index) = (Conn::default(), HeadIndex::default());
    let (taken, step) = conn.advance(head.as_bytes(), &HeadLimits::default(), 0, &mut index);
    assert_eq!((taken, step), (head.len(), Step::Head));
    let may_keep = conn.may_keep();
    conn.answered(keep && may_keep);
    (conn, may_keep)
}

#[test]
fn an_unwanted_short_body_is_dropped() {
    let (mut conn, kept) = early(
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n",
        true,
    );
    assert!(kept);
    let mut index = HeadIndex::default();
    let limits = HeadLimits::default();
    assert_eq!(
        conn.advance(&[b'x'; 65535], &limits, 0, &mut index),
        (65535, Step::NeedMore)
    );
    let rest = b"xGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(
        conn.advance(rest, &limits, 0, &mut index),
        (1, Step::Framing)
    );
    assert_eq!(
        conn.advance(&rest[1..], &limits, 0, &mut index),
        (rest.len() - 1, Step::Head)
    );
}

#[test]
fn an_unwanted_long_body_closes() {
    for head in [
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let (conn, kept) = early(head, true);
        assert!(!kept, "{head:?}");
        assert_eq!(conn.phase(), Phase::Closed);
    }
}

#[test]
fn close_after_refuses_further_requests() {
    let (mut conn, mut index) = (Conn::default(), HeadIndex::default());
    let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    conn.advance(head, &HeadLimits::default(), 0, &mut index);
    conn.close_after();
    assert_eq!(conn.phase(), Phase::Busy);
    assert!(!conn.may_keep());
    let mut idle = Conn::default();
    idle.close_after();
    assert_eq!(
        idle.advance(head, &HeadLimits::default(), 0, &mut index),
        (0, Step::Closed)
    );
}

#[test]
fn the_http_2_preface_is_recognized() {
    check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &["http2"]);
    check(
        "PRI * HTTP/2.0\r\n\r\nXM\r\n\r\n",
        &["refused unsupported HTTP version"],
    );
    check(
        "PRI * HTTP/2.0\r\nHost: a\r\n\r\n",
        &["refused unsupported HTTP version"],
    );
}
