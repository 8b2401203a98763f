use std::io::{self, Read};

use super::MultipartErrorKind::{self as Kind, *};
use super::*;

const TYPE: &[u8] = b"multipart/form-data; boundary=b";

fn part(head: &str, content: &str) -> String {
    format!("--b\r\n{head}\r\n\r\n{content}\r\n")
}

fn field(name: &str, content: &str) -> String {
    part(
        &format!("Content-Disposition: form-data; name=\"{name}\""),
        content,
    )
}

fn read(limits: MultipartLimits, body: &str) -> Result<Vec<(String, String)>, Kind> {
    let form = Multipart::with_limits(TYPE, body.as_bytes(), limits)
        .and_then(|form| form.collect(u64::MAX))
        .map_err(|error| error.kind)?;
    let entries = form.entries().iter();
    let text = |entry: &Entry| String::from_utf8(entry.content.clone()).unwrap();
    Ok(entries
        .map(|entry| (entry.head.name().to_owned(), text(entry)))
        .collect())
}

#[track_caller]
fn check(body: &str, expected: Result<&[(&str, &str)], Kind>) {
    let expected = expected.map(|entries| {
        let entries = entries.iter();
        entries
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    });
    assert_eq!(read(MultipartLimits::default(), body), expected, "{body:?}");
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
    assert_eq!(head.map_err(|error| error.kind), expected, "{lines:?}");
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
        let form = Multipart::new(content_type.as_bytes(), &b"--b--"[..]);
        form.and_then(|mut form| form.next_part().map(|part| part.is_none()))
            .map_err(|error| error.kind)
    };
    for good in [
        "multipart/form-data; boundary=b",
        "MULTIPART/Form-Data; charset=utf-8; BOUNDARY=\"b\"",
        "multipart/form-data, boundary=b",
    ] {
        assert_eq!(form(good), Ok(true), "{good}");
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
    let limits = MultipartLimits {
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
    let limits = |head_len_max| MultipartLimits {
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

#[test]
fn part_len_max_and_one_past() {
    let limits = MultipartLimits {
        part_len_max: 20_000,
        ..Default::default()
    };
    let body = |len| field("a", &"x".repeat(len)) + &field("b", "") + "--b--";
    assert!(read(limits, &body(20_000)).is_ok());
    assert_eq!(read(limits, &body(20_001)), Err(PartTooLong));
    // Skipping is reading too.
    let body = body(20_001);
    let mut form = Multipart::with_limits(TYPE, body.as_bytes(), limits).unwrap();
    drop(form.next_part().unwrap());
    assert_eq!(form.next_part().unwrap_err().kind, PartTooLong);
    assert!(form.next_part().is_err(), "an error is final");
}

#[test]
fn what_is_collected_is_bounded_in_sum() {
    let body = field("a", "12") + &field("b", "34") + "--b--";
    let collect = |len_max| {
        Multipart::new(TYPE, body.as_bytes())
            .unwrap()
            .collect(len_max)
    };
    assert_eq!(collect(4).unwrap().text("b"), Some("34"));
    assert_eq!(collect(3).unwrap_err().kind, PartTooLong);
}

#[test]
fn parts_are_skipped_and_read_in_pieces() {
    let body = field("a", &"x".repeat(50_000)) + &field("b", "12345") + &field("c", "") + "--b--";
    let mut form = Multipart::new(TYPE, body.as_bytes()).unwrap();
    let mut part = form.next_part().unwrap().unwrap();
    part.read_exact(&mut [0; 20_000]).unwrap();
    let mut part = form.next_part().unwrap().unwrap();
    let mut piece = [0; 3];
    assert_eq!(part.read(&mut piece).unwrap(), 3);
    assert_eq!(&piece, b"123");
    assert_eq!(part.text(2).unwrap(), "45");
    assert_eq!(part.read(&mut piece).unwrap(), 0);
    let part = form.next_part().unwrap().unwrap();
    assert_eq!(part.name(), "c");
    assert!(form.next_part().unwrap().is_none());
    assert!(form.next_part().unwrap().is_none());
}

#[test]
fn an_error_of_the_body_reaches_the_reader_as_it_is() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let start = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\n";
    let mut form = Multipart::new(TYPE, start.chain(Broken)).unwrap();
    let mut part = form.next_part().unwrap().unwrap();
    let error = part.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
