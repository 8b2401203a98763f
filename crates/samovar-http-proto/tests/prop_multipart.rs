//! A multipart body has the same parts for every split of its bytes: those that a slow, simple
//! parser of the whole body finds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use samovar_http_proto::multipart::{Event, MultipartError, Parser, PartHead, boundary};

/// Heads and contents of all parts; `None` while the body is incomplete; an error.
type Parts = Result<Option<Vec<(Vec<u8>, Vec<u8>)>>, MultipartError>;

const DELIMITER: &[u8] = b"\r\n--b";

/// Parses the whole body from left to right, as RFC 2046, 5.1.1 describes it.
fn reference(input: &[u8]) -> Parts {
    // With a CR LF before it, the first boundary is like all others.
    let text = [b"\r\n", input].concat();
    let find = |from: usize, what: &[u8]| {
        let rest = &text[from..];
        rest.windows(what.len())
            .position(|part| part == what)
            .map(|at| from + at)
    };
    let (mut parts, mut from) = (Vec::new(), 0);
    let mut head: Option<Vec<u8>> = None;
    loop {
        let Some(at) = find(from, DELIMITER) else {
            return Ok(None);
        };
        if let Some(head) = head.take() {
            parts.push((head, text[from..at].to_vec()));
        }
        let mut behind = at + DELIMITER.len();
        if text[behind..].starts_with(b"--") {
            return Ok(Some(parts));
        }
        if text[behind..] == *b"-" {
            return Ok(None);
        }
        while matches!(text.get(behind), Some(b' ' | b'\t')) {
            behind += 1;
        }
        match &text[behind..] {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] => behind += 2,
            _ => return Err(MultipartError::Delimiter),
        }
        let end = if text[behind..].starts_with(b"\r\n") {
            behind + 2
        } else if let Some(at) = find(behind, b"\r\n\r\n") {
            at + 4
        } else {
            return Ok(None);
        };
        head = Some(text[behind..end].to_vec());
        from = end;
    }
}

fn parse(input: &[u8], ends: &[usize]) -> Parts {
    let mut parser = Parser::new("b").unwrap();
    let (mut at, mut parts, mut head, mut data) = (0, Vec::new(), Vec::new(), Vec::new());
    for end in ends {
        loop {
            let rest = &input[at..*end];
            let (taken, event) = parser.step(rest)?;
            match event {
                Event::Incomplete => {
                    assert!(rest.len() <= parser.pending_len_max());
                    break;
                }
                Event::Framing => {}
                Event::Head => head = rest[..taken].to_vec(),
                Event::Data => data.extend_from_slice(&rest[..taken]),
                Event::PartEnd => {
                    parts.push((std::mem::take(&mut head), std::mem::take(&mut data)));
                }
                Event::End => return Ok(Some(parts)),
            }
            at += taken;
        }
    }
    Ok(None)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let piece = select(vec![
        "--b\r\n",
        "--b",
        "\r\n--b\r\n",
        "\r\n--b\r\n",
        "\r\n--b--",
        "\r\n--b \t\r\n",
        "\r\n",
        "\r",
        "\n",
        "-",
        "--",
        "b",
        "\r\n-",
        "\r\n--",
        "\r\n--c",
        "A: b\r\n\r\n",
        "A: b\r\n",
        "\r\n\r\n",
        "text",
        " ",
        "\r\r\n--b\r\n",
        "\r\n--bb",
        "\r\n--b-",
    ]);
    vec(piece, 0..14).prop_map(|pieces| pieces.concat().into_bytes())
}

fn forms() -> impl Strategy<Value = Vec<(String, Option<String>, Vec<u8>)>> {
    let data = vec(select(b"\r\n-bx\0\xff".to_vec()), 0..40).prop_filter("no delimiter", |data| {
        !data.windows(5).any(|part| part == DELIMITER)
    });
    let part = (
        "[a-zé]{1,9}",
        proptest::option::of("[a-z.\\\\/]{0,9}"),
        data,
    );
    vec(part, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn as_the_reference(text in body(), cuts in vec(any::<Index>(), 0..8)) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(text.len());
        prop_assert_eq!(parse(&text, &ends), reference(&text));
    }

    #[test]
    fn byte_by_byte(text in body()) {
        let ends: Vec<usize> = (0..=text.len()).collect();
        prop_assert_eq!(parse(&text, &ends), reference(&text));
    }

    #[test]
    fn what_is_written_is_read(form in forms()) {
        let mut body = Vec::new();
        for (name, file_name, data) in &form {
            body.extend_from_slice(b"--b\r\nContent-Disposition: form-data; name=\"");
            body.extend_from_slice(name.as_bytes());
            if let Some(file_name) = file_name {
                let escaped = file_name.replace('\\', "\\\\");
                body.extend_from_slice(format!("\"; filename=\"{escaped}").as_bytes());
            }
            body.extend_from_slice(b"\"\r\n\r\n");
            body.extend_from_slice(data);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--b--");
        let parts = parse(&body, &[body.len()]).unwrap().unwrap();
        let read: Vec<_> = parts.into_iter().map(|(head, content)| {
            let head = PartHead::parse(&head).unwrap();
            (head.name().to_owned(), head.file_name().map(str::to_owned), content)
        }).collect();
        prop_assert_eq!(read, form);
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..400)) {
        parse(&bytes, &[bytes.len()]).ok();
        PartHead::parse(&bytes).ok();
        boundary(&bytes).ok();
    }
}
