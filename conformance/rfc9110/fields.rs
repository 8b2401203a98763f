//! Fields: sections 2, 5 and 6.

use std::collections::BTreeSet;

use samovar_conformance::{End, send};

use super::{PLAIN, answer, ask, is_own, lines, refused, request, server};

fn is_token(text: &str) -> bool {
    let mark = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(mark)
}

#[test]
fn answers_follow_the_grammar() {
    // RFC 9110, 2.2: "A sender MUST NOT generate protocol elements that do not match the grammar
    // defined by the corresponding ABNF rules."
    // RFC 9110, 5.6.1.1: "In any production that uses the list construct, a sender MUST NOT
    // generate empty list elements."
    for bytes in PLAIN {
        for answer in ask(bytes).answers {
            for (name, value) in lines(&answer) {
                assert!(is_token(&name), "{name:?}");
                assert_eq!(value.trim(), value, "{name}");
                let is_text = |c: char| c == '\t' || (' '..='~').contains(&c);
                assert!(value.chars().all(is_text), "{name}: {value:?}");
                if ["connection", "allow", "vary"].contains(&&*name.to_lowercase()) {
                    assert!(
                        value.split(',').all(|part| !part.trim().is_empty()),
                        "{value:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_it_says_it_understands() {
    // RFC 9110, 2.3: "At a minimum, a recipient MUST be able to parse and process protocol element
    // lengths that are at least as long as the values that it generates for those same protocol
    // elements in other messages."
    let [said] = &ask(PLAIN[0]).answers[..] else {
        panic!("no answer");
    };
    let framing = ["content-length", "transfer-encoding", "connection"];
    let fields = lines(said)
        .into_iter()
        .filter(|(n, _)| !framing.contains(&&*n.to_lowercase()));
    let fields: String = fields
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    assert_eq!(answer("GET", "/", &fields).status, said.status);
}

#[test]
fn a_name_stands_once() {
    // RFC 9110, 5.3: "This means that, aside from the well-known exception noted below, a sender
    // MUST NOT generate multiple field lines with the same name in a message"
    for bytes in PLAIN {
        for answer in ask(bytes).answers {
            let mut seen = BTreeSet::new();
            for (name, _) in lines(&answer) {
                assert!(seen.insert(name.to_lowercase()), "{name} twice");
            }
        }
    }
}

#[test]
fn half_a_head_does_nothing() {
    // RFC 9110, 5.3: "A server MUST NOT apply a request to the target resource until it receives
    // the entire request header section"
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r",
    ] {
        let outcome = send(server::addr(), head.as_bytes(), true, false);
        assert!(
            outcome.answers.iter().all(|answer| answer.status >= 400),
            "{outcome:?}"
        );
        assert_ne!(outcome.end, End::Open);
    }
}

#[test]
fn too_large_is_the_peers_mistake() {
    // RFC 9110, 5.4: "A server that receives a request header field line, field value, or set of
    // fields larger than it wishes to process MUST respond with an appropriate 4xx (Client Error)
    // status code."
    let long = format!("X: {}\r\n", "x".repeat(100_000));
    let many: String = (0..5000).map(|index| format!("X-{index}: y\r\n")).collect();
    for fields in [long, many] {
        let outcome = ask(request("GET", "/", &fields));
        let statuses = outcome.statuses();
        assert!(
            matches!(statuses[..], [200 | 400..=499]),
            "{statuses:?}, {:?}",
            outcome.end
        );
    }
}

#[test]
fn white_space_around_a_value_is_none_of_it() {
    // RFC 9110, 5.5: "When a specific version of HTTP allows such whitespace to appear in a
    // message, a field parsing implementation MUST exclude such whitespace prior to evaluating the
    // field value."
    let expected = answer("POST", "/", "Content-Length: 0\r\n").status;
    for length in [
        "Content-Length:0",
        "Content-Length:\t 0 \t",
        "Content-Length:   0",
    ] {
        assert_eq!(
            answer("POST", "/", &format!("{length}\r\n")).status,
            expected,
            "{length:?}"
        );
    }
    let close = "GET / HTTP/1.1\r\nHost: a\r\nConnection: \t close \t\r\n\r\n";
    let outcome = ask(close);
    assert_eq!((outcome.answers.len(), outcome.end), (1, End::Closed));
}

#[test]
fn dangerous_characters() {
    // RFC 9110, 5.5: "a recipient of CR, LF, or NUL within a field value MUST either reject the
    // message or replace each of those characters with SP before further processing"
    for value in ["a\rb", "a\0b", "\0", "a\r\r\nb: c"] {
        refused(request("GET", "/", &format!("X: {value}\r\n")));
    }
}

#[test]
fn empty_elements_of_a_list() {
    // RFC 9110, 5.6.1.2: "A recipient MUST parse and ignore a reasonable number of empty list
    // elements"
    // RFC 9110, 5.6.1.2: "In other words, a recipient MUST accept lists that satisfy the following
    // syntax:"
    for options in [",close", "close,", ", ,close", "x,,close", "close , ,\t,"] {
        let outcome = ask(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: {options}\r\n\r\n"
        ));
        assert_eq!(
            (outcome.answers.len(), outcome.end),
            (1, End::Closed),
            "{options:?}"
        );
    }
}

#[test]
fn quoted_pairs_in_an_extension() {
    // RFC 9110, 5.6.4: "Recipients that process the value of a quoted-string MUST handle a
    // quoted-pair as if it were replaced by the octet following the backslash."
    let plain = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n";
    let expected = answer("POST", "/", plain);
    for extension in [
        ";a",
        "; a",
        "; a = b",
        ";a=\"b\"",
        ";a=\"b\\\"c\"",
        ";a=\"b;c\"",
    ] {
        let fields = plain.replace("5\r\n", &format!("5{extension}\r\n"));
        let given = answer("POST", "/", &fields);
        assert_eq!(
            (given.status, given.body),
            (expected.status, expected.body.clone()),
            "{extension}"
        );
    }
}

#[test]
fn the_version_is_the_one_spoken() {
    // RFC 9110, 6.2: "A server MUST NOT send a version to which it is not conformant."
    for bytes in PLAIN {
        for answer in ask(bytes).answers {
            assert!(answer.head.starts_with(b"HTTP/1.1 "));
        }
    }
}

#[test]
fn dates() {
    // RFC 9110, 6.6.1: "An origin server with a clock (as defined in Section 5.6.7) MUST generate a
    // Date header field in all 2xx (Successful), 3xx (Redirection), and 4xx (Client Error)
    // responses"
    // RFC 9110, 5.6.7: "When a sender generates a field that contains one or more timestamps
    // defined as HTTP-date, the sender MUST generate those timestamps in the IMF-fixdate format."
    // RFC 9110, 5.6.7: "A sender MUST NOT generate additional whitespace in an HTTP-date beyond
    // that specifically included as SP in the grammar."
    let mut requests: Vec<String> = PLAIN.iter().map(|&bytes| bytes.to_owned()).collect();
    if is_own() {
        let own = ["/inline", "/empty", "/fresh", "/reset", "/chunked"];
        requests.extend(own.map(|target| request("GET", target, "")));
    }
    for bytes in requests {
        for answer in ask(&bytes)
            .answers
            .iter()
            .filter(|answer| answer.status < 500)
        {
            let date = answer
                .header("date")
                .unwrap_or_else(|| panic!("no date: {bytes:?}"));
            let pattern = "aaa, 00 aaa 0000 00:00:00 aaa";
            let is_like = |(c, like): (char, char)| match like {
                'a' => c.is_ascii_lowercase(),
                '0' => c.is_ascii_digit(),
                _ => c == like,
            };
            assert_eq!(date.len(), pattern.len(), "{date}");
            assert!(
                date.chars().zip(pattern.chars()).all(is_like) && date.ends_with(" gmt"),
                "{date}"
            );
        }
    }
}
