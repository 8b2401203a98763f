//! Request heads split at any byte parse to the same result, never panic, and agree with
//! `httparse`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use samovar_http_proto::h1::Refusal;
use samovar_http_proto::h1::head::{HeadIndex, HeadLimits, parse};

/// Small limits, so that random heads reach them.
const LIMITS: HeadLimits = HeadLimits {
    head_len_max: 160,
    target_len_max: 40,
    header_count_max: 4,
    more: (),
};

fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = select(vec![
        "GET ",
        "HEAD ",
        "OPTIONS ",
        "CONNECT ",
        "/",
        "/a?b#",
        "*",
        "http://a/",
        "http://b:80?c",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        " HTTP/2.0\r\n",
        " HTTP/1.10\r\n",
        " http/1.1\r\n",
        "GET / HTTP/1.1\r\n",
        "GET /x HTTP/1.0\r\nHost: a\r\n",
        "Host: a\r\n",
        "Host: b:80\r\n",
        "Host: [::1\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: +5\r\n",
        "Expect: x\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Connection: ",
        "close",
        "keep-alive, ",
        "A:\r\n",
        "A : b\r\n",
        " folded\r\n",
        "A: \t b\t \r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        "\0",
        "\t",
        " ",
        ":",
        "\u{e9}",
        "HTTP/",
        "HTTP/1.",
        "x",
        "Expect: 100-continue\r\n",
    ]);
    prop_oneof![
        20 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..4),
        1 => (1..80_usize).prop_map(|len| vec![b'x'; len]),
    ]
}

fn head() -> impl Strategy<Value = Vec<u8>> {
    let start = select(vec![
        "",
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "GET http://a/",
        "\r\nGET /",
    ]);
    let end = select(vec!["", "\r\n", "\r\nmore", " HTTP/1.1\r\nHost: a\r\n\r\n"]);
    (start, vec(piece(), 0..10), end).prop_map(|(start, pieces, end)| {
        let mut text = start.as_bytes().to_vec();
        text.extend(pieces.concat());
        text.extend_from_slice(end.as_bytes());
        text
    })
}

/// Parses a head and formats the result as text, so that two results can be compared.
fn reading(input: &[u8], limits: &HeadLimits) -> Result<Option<(usize, String)>, Refusal> {
    let mut index = HeadIndex::default();
    let len = parse(input, limits, &mut index)?;
    Ok(len.map(|len| (len, format!("{index:?}"))))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn any_split_gives_the_same_head(text in head(), cuts in vec(any::<Index>(), 0..8)) {
        let whole = reading(&text, &LIMITS);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(text.len());
        let first = ends.iter().map(|end| reading(&text[..*end], &LIMITS)).find(|r| *r != Ok(None));
        prop_assert_eq!(first.unwrap_or(Ok(None)), whole);
    }

    #[test]
    fn bytes_one_at_a_time_give_the_same_head(text in head()) {
        let first = (0..=text.len())
            .map(|end| reading(&text[..end], &LIMITS))
            .find(|reading| *reading != Ok(None));
        prop_assert_eq!(first.unwrap_or(Ok(None)), reading(&text, &LIMITS));
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..400)) {
        reading(&bytes, &HeadLimits::default()).ok();
    }

    #[test]
    fn httparse_agrees(text in head()) {
        let mut index = HeadIndex::default();
        let ours = parse(&text, &HeadLimits::default(), &mut index);
        let mut storage = [httparse::EMPTY_HEADER; 100];
        let mut request = httparse::Request::new(&mut storage);
        match (ours, request.parse(&text)) {
            (Ok(Some(len)), Ok(httparse::Status::Complete(theirs))) => {
                prop_assert_eq!(len, theirs);
                prop_assert_eq!(Some(index.target.of(&text)), request.path.map(str::as_bytes));
                prop_assert_eq!(index.headers.len(), request.headers.len());
                for (field, header) in index.headers.iter().zip(request.headers.iter()) {
                    prop_assert_eq!(field.name.of(&text), header.name.as_bytes());
                    prop_assert_eq!(field.value.of(&text), header.value.trim_ascii());
                }
            }
            (Ok(None), Ok(httparse::Status::Partial)) => {}
            // Our parser waits for the rest of an unsupported version, to tell 505 from 400.
            (Ok(None), Err(httparse::Error::Version)) => {}
            // Checks beyond the line grammar, in which our parser is stricter than `httparse`.
            (Err(refusal), Ok(_)) => {
                let is_lines = matches!(refusal, Refusal::HeaderField | Refusal::HttpVersion);
                prop_assert!(!is_lines, "{:?}", refusal);
            }
            (Err(_), Err(_)) => {}
            (ours, theirs) => prop_assert!(false, "{:?} but {:?}", ours, theirs),
        }
    }
}
