use super::*;

fn text(len: usize) -> Response {
    let body = "samovar ".repeat(len.div_ceil(8));
    Response::text(Status::OK, body.get(..len).unwrap_or_default().to_owned())
}

fn negotiated(coding: Option<Coding>, response: Response) -> Response {
    ask(&Compression::new(true), coding, Version::Http11, response)
}

fn ask(
    compression: &Compression,
    coding: Option<Coding>,
    version: Version,
    response: Response,
) -> Response {
    let response = compression.negotiate(coding, version, response);
    assert_eq!(response.body.len(), response.body_len);
    response
}

fn fields(response: &Response) -> String {
    String::from_utf8(response.fields.clone()).unwrap()
}

#[track_caller]
fn is_compressed(response: &Response) -> bool {
    let is_compressed = has(&response.fields, "Content-Encoding");
    assert!(!is_compressed || has(&response.fields, "Vary"));
    is_compressed
}

#[test]
fn the_threshold_is_exact() {
    assert!(!is_compressed(&negotiated(Some(Coding::Gzip), text(859))));
    assert!(is_compressed(&negotiated(Some(Coding::Gzip), text(860))));
    // No client can get another coding, so `Vary` is not needed.
    assert!(!has(&negotiated(None, text(859)).fields, "Vary"));
    assert!(has(&negotiated(None, text(860)).fields, "Vary"));
}

#[test]
fn only_a_body_in_memory_has_a_content_length() {
    for coding in Coding::ALL {
        let short = negotiated(Some(coding), text(WHOLE_LEN_MAX));
        assert!(short.body.len().is_some_and(|len| len < 2000));
        let long = negotiated(Some(coding), text(WHOLE_LEN_MAX + 1));
        assert!(is_compressed(&long));
        assert_eq!(long.body.len(), None);
    }
}

#[test]
fn excluded_responses_stay_unchanged() {
    let typed = |kind: &str| {
        Response::new(Status::OK, Body::Bytes(vec![b'a'; 9000].into())).header("Content-Type", kind)
    };
    let plain = || typed("text/plain");
    let partial = Response::new(
        Status::PARTIAL_CONTENT,
        Body::Bytes(vec![b'a'; 9000].into()),
    )
    .header("Content-Type", "text/plain");
    for (why, response) in [
        ("type", typed("image/png")),
        (
            "no type",
            Response::new(Status::OK, Body::Bytes(vec![b'a'; 9000].into())),
        ),
        ("coded", plain().header("content-encoding", "br")),
        (
            "range",
            plain().header("Content-Range", "bytes 0-8999/9001"),
        ),
        ("part", partial),
        (
            "no-transform",
            plain().header("Cache-Control", "max-age=1, No-Transform"),
        ),
        ("digest", plain().header("Repr-Digest", "sha-256=:AA==:")),
        ("by wish", plain().uncompressed()),
    ] {
        let before = fields(&response);
        let after = negotiated(Some(Coding::Zstd), response);
        assert_eq!(fields(&after), before, "{why}");
        assert_eq!(after.body.len(), Some(9000), "{why}");
    }
    assert!(is_compressed(&negotiated(Some(Coding::Zstd), plain())));
}

#[test]
fn incompressible_bodies_stay_plain() {
    let mut seed = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    })
    .take(5000)
    .collect();
    let response = Response::new(Status::OK, Body::Bytes(noise.into()))
        .header("Content-Type", "text/plain")
        .header("ETag", "\"a\"");
    let response = negotiated(Some(Coding::Gzip), response);
    assert_eq!(response.body.len(), Some(5000));
    assert!(fields(&response).contains("ETag: \"a\"\r\n"));
    assert!(fields(&response).contains("Vary: Accept-Encoding\r\n"));
}

#[test]
fn header_fields_are_adapted() {
    let response = text(1000)
        .header("ETag", "\"a:b\"")
        .header("Accept-Ranges", "bytes")
        .header("Vary", "Cookie");
    let coded = negotiated(Some(Coding::Brotli), response);
    assert_eq!(
        fields(&coded),
        "Content-Type: text/plain\r\nETag: W/\"a:b\"\r\nVary: Cookie\r\n\
         Vary: Accept-Encoding\r\nContent-Encoding: br\r\n"
    );
    for known in ["accept-encoding", "a, Accept-Encoding", "*"] {
        let response = negotiated(Some(Coding::Gzip), text(1000).header("Vary", known));
        assert_eq!(values(&response.fields, "Vary").count(), 1, "{known}");
    }
    let weak = negotiated(Some(Coding::Gzip), text(1000).header("etag", "W/\"a\""));
    assert!(fields(&weak).contains("etag: W/\"a\"\r\n"));
}

#[test]
fn a_304_has_the_fields_of_the_200() {
    let response = |coding| {
        let bare = Response::new(Status::NOT_MODIFIED, Body::Empty).header("ETag", "\"a\"");
        fields(&negotiated(coding, bare))
    };
    assert_eq!(response(None), "ETag: \"a\"\r\nVary: Accept-Encoding\r\n");
    let weak = response(Some(Coding::Zstd));
    assert_eq!(weak, "ETag: W/\"a\"\r\nVary: Accept-Encoding\r\n");
}

#[test]
fn concurrent_streams_are_limited() {
    let compression = Compression {
        streams: Arc::new(Budget::new(1)),
        includes_events: false,
    };
    let again = || {
        let coding = Some(Coding::Gzip);
        ask(&compression, coding, Version::Http11, text(100_000))
    };
    let first = again();
    assert!(is_compressed(&first));
    let second = again();
    assert!(!is_compressed(&second));
    assert!(has(&second.fields, "Vary"));
    assert_eq!(second.body.len(), Some(100_000));
    drop(first);
    assert!(is_compressed(&again()));
}

#[test]
fn a_stream_to_http_1_0_stays_plain() {
    let compression = Compression::new(true);
    let coding = Some(Coding::Gzip);
    let long = ask(&compression, coding, Version::Http10, text(100_000));
    assert_eq!(long.body.len(), Some(100_000));
    let short = ask(&compression, coding, Version::Http10, text(1000));
    assert!(is_compressed(&short));
}

#[test]
fn event_streams_are_compressed_only_on_request() {
    let events = || {
        let (_sender, body) = Body::channel();
        Response::new(Status::OK, body).header("Content-Type", "Text/Event-Stream; charset=utf-8")
    };
    let coding = Some(Coding::Zstd);
    for includes_events in [false, true] {
        let compression = Compression::new(includes_events);
        let response = ask(&compression, coding, Version::Http11, events());
        assert_eq!(is_compressed(&response), includes_events);
        assert_eq!(has(&response.fields, "Vary"), includes_events);
    }
}

#[test]
fn the_cheap_check_excludes_no_response_that_would_change() {
    let bare = Response::new(Status::NOT_MODIFIED, Body::Empty);
    assert!(concerns(&bare, false));
    assert!(concerns(&text(860), false) && !concerns(&text(859), false));
    // An I/O thread compresses nothing; a response that it defers is compressed on a worker.
    assert!(!concerns(&text(860), true));
    assert!(concerns(&Response::later().1, true));
    assert!(!concerns(&Response::later().1.uncompressed(), true));
}
