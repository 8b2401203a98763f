//! The access log is written only when requested, in Apache's combined format, and no client can
//! forge a line in it. At its end, a server with metrics logs how much it has answered.

mod support;
mod support_process;

use std::fs;

use support::{eventually, hash_part, of_sample, sample};
use support_process::{Connection, Process, at, once, serve_sample};

const INFO: &str = "/nix-cache-info";

#[test]
fn the_access_log_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = at(dir.path(), "access");
    fs::write(&log, "what stood there before\n").unwrap();
    let (_server, addr) = serve_sample(&["--access-log", &log]);
    let mut connection = Connection::connect(addr);
    let nar = format!("/nar/{}.nar", hash_part(&sample("tree")));
    let nar_len = connection.get(&nar).body.len();
    connection.request(
        "GET",
        "/x?y=1",
        &["User-Agent: Nix/2.31", "Referer: http://r/"],
    );
    connection.request("HEAD", INFO, &["User-Agent: a\"b\\c\t\u{e9}"]);
    connection.request(
        "PUT",
        "/%22%0a",
        &["Content-Length: 0", "Referer: \" 200 0 \"-\" \"-"],
    );
    connection.request("GET", "/\"'<>", &["Connection: close"]);
    let read = || fs::read_to_string(&log).unwrap();
    eventually("five lines", || read().lines().count() == 6);
    let text = read();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "what stood there before");
    let expected = [
        format!("\"GET {nar} HTTP/1.1\" 200 {nar_len} \"-\" \"-\""),
        "\"GET /x?y=1 HTTP/1.1\" 404 16 \"http://r/\" \"Nix/2.31\"".to_owned(),
        "\"HEAD /nix-cache-info HTTP/1.1\" 200 0 \"-\" \"a\\\"b\\\\c\\x09\\xc3\\xa9\"".to_owned(),
        "\"PUT /%22%0a HTTP/1.1\" 405 LEN \"\\\" 200 0 \\\"-\\\" \\\"-\" \"-\"".to_owned(),
        "\"GET /\\\"'<> HTTP/1.1\" 404 16 \"-\" \"-\"".to_owned(),
    ];
    for (line, expected) in lines[1..].iter().zip(expected) {
        let (client, rest) = line.split_at(line.find(" [").unwrap());
        assert_eq!(client, "127.0.0.1 - -");
        let (time, rest) = rest.split_at(rest.find("] ").unwrap() + 2);
        assert_eq!((time.len(), &time[22..]), (30, " +0000] "), "{line}");
        let text = "This URL takes no uploads: check it, or ask the operator to allow uploads \
                    (samovar serve --storage).\n";
        let len = text.len();
        assert_eq!(rest, expected.replace("LEN", &len.to_string()));
    }
}

#[test]
fn no_requests_are_logged_unless_asked_for() {
    for (arguments, lines) in [
        (&[][..], 0),
        (&["--quiet"], 0),
        (&["--log-format", "quiet"], 0),
        (&["--access-log", "-"], 1),
        (&["--verbose"], 1),
        (&["--log-format=default"], 1),
    ] {
        let mut command = of_sample();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let (mut server, addr) = Process::serving(&mut command);
        assert_eq!(once(addr, INFO).status, 200);
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        let mut out = String::new();
        let stdout = server.child.stdout.as_mut().unwrap();
        std::io::Read::read_to_string(stdout, &mut out).unwrap();
        assert_eq!(out.lines().count(), lines, "{arguments:?}: {out}");
    }
}

#[test]
fn the_requests_are_totalled_at_the_end() {
    let (server, addr) = serve_sample(&["--admin", "127.0.0.1:0"]);
    let nar = format!("/nar/{}.nar", hash_part(&sample("multi_out")));
    let sent: usize = (0..3).map(|_| once(addr, &nar).body.len()).sum();
    assert!(sent > 0 && sent < 1024, "{sent}");
    let line = |lines: Vec<String>| {
        let is_sum = |line: &String| line.contains("events since the start: ");
        lines.into_iter().find(is_sum).unwrap()
    };
    let totals = line(server.terminate());
    assert!(
        totals.ends_with(&format!("; 3 requests, {sent} B sent")),
        "{totals}"
    );

    let (server, addr) = serve_sample(&[]);
    once(addr, INFO);
    let totals = line(server.terminate());
    assert!(
        totals.ends_with(": none; requests are not counted without an admin listener"),
        "{totals}"
    );
}
