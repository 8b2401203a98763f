use super::MultipartError::{self as Kind, *};
use super::*;

fn part(head: &str, content: &str) -> String {
    format!("--b\r\n{head}\r\n\r\n{content}\r\n")
}

fn field(name: &str, content: &str) -> String {
    part(
        &format!("Content-Disposition: form-data; name=\"{name}\""),
        content,
    )
}

fn read(limits: Limits, body: &str) -> Result<Vec<(String, String)>, Kind> {
    let mut parser = Parser::with_limits("b", limits)?;
    let (mut parts, mut at) = (Vec::new(), 0);
    let (mut name, mut content) = (String::new(), Vec::new());
    loop {
        let rest = &body.as_bytes()[at..];
        let (len, event) = parser.step(rest)?;
        at += len;
        match event {
            Event::Incomplete => return Err(Truncated),
            Event::Framing => {}
            Event::Head => PartHead::parse(&rest[..len])?.name().clone_into(&mut name),
            Event::Data => content.extend_from_slice(&rest[..len]),
            Event::PartEnd => {
                let content = String::from_utf8(std::mem::take(&mut content)).unwrap();
                parts.push((std::mem::take(&mut name), content));
            }
            Event::End => return Ok(parts),
        }
    }
}

#[track_caller]
fn check(body: &str, expected: Result<&[(&str, &str)], Kind>) {
    let expected = expected.map(|entries| {
        let entries = entries.iter();
        entries
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    });
    assert_eq!(read(Limits::default(), body), expected, "{body:?}");
}

#[test]
fn bodies() {
    check("--b--", Ok(&[]));
    check("--b--\r\n", Ok(&[]));
    check(&(field("a", "1") + "--b--"), Ok(&[("a", "1")]));
    check(&(field("a", "") + "--b--"), Ok(&[("a", "")]));
    check(
        &(field("a", "\r\n") + &field("a", "--b") + "--b--"),
        Ok(&[("a", "\r\n"), ("a", "--b")]),
    );
    check(
        &format!("preamble\r\n{}--b--\r\nepilogue", field("a", "1")),
        Ok(&[("a", "1")]),
    );
    check(&format!("\r\n{}--b--", field("a", "1")), Ok(&[("a", "1")]));
    // A bare LF is content.
    check(
        &(field("a", "1\n--b\n2") + "--b--"),
        Ok(&[("a", "1\n--b\n2")]),
    );
    // RFC 2046, 5.1.1: white space may follow the boundary on its line.
    check(
        &field("a", "1")
            .replace("--b\r", "--b \t\r")
            .replace("1\r\n", "1\r\n--b--"),
        Ok(&[("a", "1")]),
    );
}

#[test]
fn malformed_bodies() {
    check("", Err(Truncated));
    check("--b", Err(Truncated));
    check("--b-", Err(Truncated));
    check(&field("a", "1"), Err(Truncated));
    check(&(field("a", "1") + "--b"), Err(Truncated));
    check("--c--", Err(Truncated));
    check("--bb\r\n", Err(Delimiter));
    check("--b-x", Err(Delimiter));
    check("--b\n", Err(Delimiter));
    check("--b\rx", Err(Delimiter));
    check(&(field("a", "1") + "--bx"), Err(Delimiter));
    check(&format!("--b{}\r\n", " ".repeat(65)), Err(Delimiter));
    check("--b\r\n\r\n1\r\n--b--", Err(Disposition));
}

#[track_caller]
fn check_head(lines: &str, expected: Result<(&str, Option<&str>), Kind>) {
    let head = PartHead::parse(format!("{lines}\r\n\r\n").as_bytes());
    let head = head.as_ref().map(|head| (head.name(), head.file_name()));
    assert_eq!(head.map_err(|error| *error), expected, "{lines:?}");
}

#[test]
fn heads() {
    let disposition = |text: &str| format!("Content-Disposition: {text}");
    let good = |text: &str, name, file_name| check_head(&disposition(text), Ok((name, file_name)));
    good("form-data; name=a", "a", None);
    good("Form-Data; NAME=\"a b\"; x=y", "a b", None);
    good("form-data; name=\"\"; filename=\"\"", "", Some(""));
    good("form-data; filename=\"ñ.txt\"; name=a", "a", Some("ñ.txt"));
    good(
        r#"form-data; name=a; filename="C:\x\"y\".txt""#,
        "a",
        Some(r#"C:\x"y".txt"#),
    );
    good("form-data; name=a; filename=\"%22\"", "a", Some("%22"));
    // RFC 7578, 4.2: "filename*" must not be used.
    good("form-data; name=a; filename*=UTF-8''x", "a", None);
    let bad = |text: &str| check_head(&disposition(text), Err(Disposition));
    bad("form-data");
    bad("form-data; filename=a");
    bad("attachment; name=a");
    bad("form-data; name=a; name=b");
    bad("form-data; name=a; filename=b; filename=c");
    bad("form-data; name=\"a");
    bad("form-data; name=\"a\"b");
    check_head("Content-Type: a/b", Err(Disposition));
    check_head(
        "content-disposition: form-data; name=a\r\nContent-Type: a/b",
        Ok(("a", None)),
    );
    let two = disposition("form-data; name=a\r\nContent-Disposition: form-data; name=b");
    check_head(&two, Err(Disposition));
    for line in [
        "x",
        ": y",
        "x y: z",
        "x : y",
        "x: \u{1}",
        " folded: y",
        "x: a\nb",
    ] {
        check_head(
            &format!("{}\r\n{line}", disposition("form-data; name=a")),
            Err(Header),
        );
    }
}

#[test]
fn boundaries() {
    let form = |content_type: &str| {
        boundary(content_type.as_bytes()).and_then(|boundary| {
            Parser::new(&boundary)?;
            Ok(boundary)
        })
    };
    for good in [
        "multipart/form-data; boundary=b",
        "MULTIPART/Form-Data; charset=utf-8; BOUNDARY=\"b\"",
        "multipart/form-data, boundary=b",
    ] {
        assert_eq!(form(good).as_deref(), Ok("b"), "{good}");
    }
    for (bad, kind) in [
        ("", MediaType),
        ("text/plain; boundary=b", MediaType),
        ("multipart/mixed; boundary=b", MediaType),
        ("multipart/form-data", Boundary),
        ("multipart/form-data; boundary=", MediaType),
        ("multipart/form-data; boundary=\"\"", Boundary),
        ("multipart/form-data; boundary=\"b \"", Boundary),
        ("multipart/form-data; boundary=\"b@\"", Boundary),
    ] {
        assert_eq!(form(bad), Err(kind), "{bad}");
    }
    assert!(Parser::new(&"b".repeat(70)).is_ok());
    assert!(Parser::new(&"b".repeat(71)).is_err());
}

#[test]
fn part_count_max_and_one_past() {
    let limits = Limits {
        part_count_max: 2,
        ..Default::default()
    };
    let body = |count| field("a", "1").repeat(count) + "--b--";
    assert!(read(limits, &body(2)).is_ok());
    assert_eq!(read(limits, &body(3)), Err(TooManyParts));
}

#[test]
fn head_len_max_and_one_past() {
    let head = "Content-Disposition: form-data; name=a";
    let body = part(head, "1") + "--b--";
    let limits = |head_len_max| Limits {
        head_len_max,
        ..Default::default()
    };
    assert!(read(limits(head.len() + 4), &body).is_ok());
    assert_eq!(read(limits(head.len() + 3), &body), Err(HeadTooLong));
    // Beyond what is read at once.
    let head = format!("{head}\r\nX: {}", "y".repeat(100_000));
    let body = part(&head, "1") + "--b--";
    assert!(read(limits(head.len() + 4), &body).is_ok());
    assert_eq!(read(limits(head.len() + 3), &body), Err(HeadTooLong));
}
