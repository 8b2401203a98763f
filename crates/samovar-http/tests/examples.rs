//! Every example behaves as its header states. `cargo test` builds the examples; this test runs
//! them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::{Answer, Reader, connect, eventually, ws};
use testkit::postgres::Postgres;

/// A running example on a port that the kernel has chosen.
struct Example {
    child: Child,
    addr: SocketAddr,
}

impl Drop for Example {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Example {
    fn start(name: &str, arguments: &[&str]) -> Self {
        Self::start_within(None, name, arguments)
    }

    /// Starts an example. `descriptors_max` is the descriptor limit of its process.
    fn start_within(descriptors_max: Option<u32>, name: &str, arguments: &[&str]) -> Self {
        let own = std::env::current_exe().unwrap();
        let program = own.ancestors().nth(2).unwrap().join("examples").join(name);
        assert!(
            program.exists(),
            "{}: build it with `cargo build --examples`",
            program.display()
        );
        let mut command = match descriptors_max {
            None => Command::new(program),
            Some(max) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {max} && exec \"$0\" \"$@\"")]);
                shell.arg(program);
                shell
            }
        };
        let mut child = command
            .arg("127.0.0.1:0")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let port = loop {
            if let Some(port) = listening_port(child.id()) {
                break port;
            }
            assert_eq!(child.try_wait().unwrap(), None, "{name} ended");
            assert!(Instant::now() < deadline, "{name} does not listen");
            std::thread::yield_now();
        };
        let addr = (Ipv4Addr::LOCALHOST, port).into();
        Self { child, addr }
    }

    fn ask(&self, request: &str, fields: &str, body: &str) -> Answer {
        let (method, target) = request.split_once(' ').unwrap();
        let mut reader = Reader::new(connect(self.addr));
        let len = body.len();
        reader.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {len}\r\n\r\n{body}"
        ));
        reader.next(method == "HEAD").unwrap()
    }

    /// Sends SIGTERM; the example must end soon, without an error.
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    #[track_caller]
    fn check(&self, request: &str, status: u16, body: &str) {
        let answer = self.ask(request, "", "");
        assert_eq!(
            (answer.status, text(&answer)),
            (status, body.to_owned()),
            "{request}"
        );
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

/// Returns the TCP port on which a process listens, found through the inode of its socket.
fn listening_port(pid: u32) -> Option<u16> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let descriptors = std::fs::read_dir(proc.join("fd")).ok()?;
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let sockets: Vec<String> = links.map(|link| link.display().to_string()).collect();
    let table = std::fs::read_to_string(proc.join("net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_own = sockets.contains(&format!("socket:[{}]", columns.get(9)?));
        let is_listening = *columns.get(3)? == "0A";
        let (_, port) = columns.get(1)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (is_own && is_listening).then_some(port)
    })
}

#[test]
fn basic() {
    Example::start("basic", &[]).check("GET /", 200, "Hello, world\n");
}

#[test]
fn router() {
    let example = Example::start("router", &[]);
    example.check("GET /users/7", 200, "user 7\n");
    example.check("GET /users/7.json", 200, "{\"id\":7}\n");
    example.check("GET /users/me", 200, "you\n");
    example.check("DELETE /users/7", 204, "");
    example.check("GET /files/any/path/below", 200, "file any/path/below\n");
    example.check("PURGE /files/a/b", 200, "purged a/b\n");
    example.check("GET /favicon.ico", 404, "Not Found\n");
    example.check("GET /admin", 200, "admin\n");
    example.check("GET /admin/status", 200, "all is well\n");
    let answer = example.ask("PUT /users/7", "", "");
    assert_eq!(answer.status, 405);
    assert_eq!(answer.header("allow"), Some("GET, HEAD, DELETE"));
}

#[test]
fn early_hints() {
    let example = Example::start("early_hints", &[]);
    let mut reader = Reader::new(connect(example.addr));
    reader.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let early = reader.next(false).unwrap();
    let link = Some("</style.css>; rel=preload; as=style");
    assert_eq!((early.status, early.header("link")), (103, link));
    assert!(text(&reader.next(false).unwrap()).contains("Assam"));
    example.check("GET /style.css", 200, "p { font-size: 200% }\n");
}

#[test]
fn cors() {
    let example = Example::start("cors", &[]);
    let preflight = "Access-Control-Request-Method: PUT\r\n";
    for (origin, allowed) in [
        ("https://shop.example", Some("https://shop.example")),
        ("https://evil.example", None),
    ] {
        let origin = format!("Origin: {origin}\r\n");
        let answer = example.ask("GET /tea/7", &origin, "");
        assert_eq!(text(&answer), "Assam\n");
        assert_eq!(answer.header("access-control-allow-origin"), allowed);
        assert_eq!(answer.header("access-control-allow-methods"), None);
        let answer = example.ask("OPTIONS /tea/7", &(origin + preflight), "");
        assert_eq!(answer.status, 204);
        assert_eq!(answer.header("access-control-allow-origin"), allowed);
        let methods = allowed.map(|_| "GET, PUT");
        assert_eq!(answer.header("access-control-allow-methods"), methods);
    }
}

#[test]
fn parameters() {
    let example = Example::start("parameters", &[]);
    example.check("GET /add/2/3", 200, "5\n");
    example.check("GET /add/2/tea", 400, "b is not a number\n");
    example.check(
        "GET /add/9223372036854775807/1",
        422,
        "Unprocessable Content\n",
    );
    let expected = "black tea with tags [\"hot\", \"dark\"], page 2\n";
    example.check(
        "GET /search?q=black+tea&tag=hot&tag=dark&page=2",
        200,
        expected,
    );
}

#[test]
fn redirect() {
    let example = Example::start("redirect", &[]);
    for (request, status) in [("GET /old", 308), ("POST /notes", 303)] {
        let answer = example.ask(request, "", "");
        assert_eq!(
            (answer.status, answer.header("location")),
            (status, Some("/new")),
            "{request}"
        );
    }
}

#[test]
fn database() {
    let example = Example::start("database", &[]);
    let answer = example.ask("POST /notes", "", "Buy tea");
    assert_eq!((answer.status, text(&answer)), (201, "/notes/1\n".into()));
    example.check("GET /notes/1", 200, "Buy tea");
    example.check("GET /notes", 200, "1: Buy tea\n");
    example.check("GET /notes/2", 404, "Not Found\n");
    example.check("DELETE /notes/1", 204, "");
    example.check("DELETE /notes/1", 404, "Not Found\n");
    example.check("GET /notes", 200, "");
}

#[test]
fn custom_404() {
    let example = Example::start("custom_404", &[]);
    example.check("GET /nowhere", 404, "<h1>There is no such page</h1>\n");
    example.check("POST /", 405, "<h1>405 Method Not Allowed</h1>\n");
    example.check("GET /broken", 500, "<h1>500 Internal Server Error</h1>\n");
    let answer = example.ask("POST /short", "", "too long");
    assert_eq!(answer.status, 413);
    assert_eq!(text(&answer), "<h1>413 request body too large</h1>\n");
}

#[test]
fn logging() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let example = Example::start("logging", &[folder.path().to_str().unwrap()]);
    example.check("GET /", 200, "Hello\n");
    eventually("the first line is written", || {
        read("access.log").ends_with("\"GET / HTTP/1.1\" 200 6\n")
    });
    let renamed = folder.path().join("access.log.1");
    std::fs::rename(folder.path().join("access.log"), renamed).unwrap();
    let pid = rustix::process::Pid::from_child(&example.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    eventually("the log is reopened", || {
        folder.path().join("access.log").exists()
    });
    let broken = example.ask("GET /broken", "", "");
    assert_eq!(broken.header("X-Request-Id"), Some("2"));
    example.stop();
    assert!(read("access.log").starts_with("127.0.0.1 - - ["));
    assert!(read("access.log").ends_with("\"GET /broken HTTP/1.1\" 500 22\n"));
    let messages = read("server.log");
    let expected = "Z error: [2] GET /broken failed: 500 Internal Server Error: No such";
    assert!(messages.contains(expected), "{messages}");
    assert!(messages.ends_with("Z info: stopped\n"), "{messages}");
}

#[test]
fn client_headers() {
    let example = Example::start("client_headers", &[]);
    let answer = example.ask("GET /", "X-Tea: black\r\nx-tea: gr\u{fc}n\r\n", "");
    let fields = text(&answer);
    assert!(
        fields.contains("X-Tea: black\nx-tea: gr\\xc3\\xbcn\n"),
        "{fields}"
    );
    let german = example.ask("GET /greeting", "ACCEPT-LANGUAGE: de\r\n", "");
    assert_eq!(text(&german), "Guten Tag\n");
    assert_eq!(german.header("content-language"), Some("de"));
    example.check("GET /greeting", 200, "Good day\n");
    example.check("GET /account", 401, "Who are you?\n");
    let account = example.ask("GET /account", "X-Api-Key: secret\r\n", "");
    assert_eq!(text(&account), "Hello, Ada\n");
    let cookies: Vec<_> = account.headers("set-cookie").collect();
    assert!(
        cookies.len() == 2 && cookies[1].starts_with("theme=dark;"),
        "{cookies:?}"
    );
    let report = example.ask("GET /report?name=tea.csv", "", "");
    let disposition = report.header("content-disposition");
    assert_eq!(disposition, Some("attachment; filename=\"tea.csv\""));
    assert_eq!(
        report.header("content-type"),
        Some("text/csv; charset=utf-8")
    );
    example.check(
        "GET /report?name=a%0d%0aX:b",
        400,
        "the name is not plain\n",
    );
}

/// A client of `advanced_websockets`. A thread reads from its socket and answers pings.
struct Subscriber {
    stream: TcpStream,
    /// Texts; for any other frame, its bytes.
    frames: Receiver<String>,
}

impl Subscriber {
    fn open(server: &Example) -> Self {
        let mut client = ws::Client::open(server.addr, "/socket");
        let stream = client.connection.stream.try_clone().unwrap();
        let (sender, frames) = channel();
        std::thread::spawn(move || {
            while let Some((first, payload)) = client.next_frame() {
                match first {
                    ws::PING => client.send(ws::frame(ws::PONG, payload)),
                    ws::TEXT => drop(sender.send(String::from_utf8(payload).unwrap())),
                    _ => drop(sender.send(format!("{first:#x} {}", payload.escape_ascii()))),
                }
            }
        });
        Self { stream, frames }
    }

    fn tell(&mut self, command: &str) {
        self.stream
            .write_all(&ws::frame(ws::TEXT, command))
            .unwrap();
    }

    #[track_caller]
    fn next(&mut self) -> String {
        self.frames.recv_timeout(testkit::PATIENCE).unwrap()
    }

    #[track_caller]
    fn ask(&mut self, command: &str, reply: &str) {
        self.tell(command);
        assert_eq!(self.next(), reply);
    }
}

impl Drop for Subscriber {
    /// Ends the thread.
    fn drop(&mut self) {
        drop(self.stream.shutdown(std::net::Shutdown::Both));
    }
}

#[test]
fn advanced_websockets() {
    let mut postgres = Postgres::start();
    let url = postgres.url();
    let [one, two] = [(), ()].map(|()| Example::start("advanced_websockets", &[&url, "100"]));
    let mut ada = Subscriber::open(&one);
    let mut bob = Subscriber::open(&one);
    let mut eve = Subscriber::open(&two);
    ada.ask("subscribe tea", "subscribed tea");
    bob.ask("subscribe coffee", "subscribed coffee");
    eve.ask("subscribe tea", "subscribed tea");
    // Messages reach the subscribers of both servers, in the same order.
    ada.tell("publish tea Water boils");
    eve.tell("publish tea 'quoted' \u{1fad6}");
    let [by_ada, by_eve] = [&mut ada, &mut eve].map(|client| [client.next(), client.next()]);
    assert_eq!(by_ada, by_eve);
    assert!(
        by_ada.contains(&"message tea Water boils".to_owned()),
        "{by_ada:?}"
    );
    assert!(
        by_ada.contains(&"message tea 'quoted' \u{1fad6}".to_owned()),
        "{by_ada:?}"
    );
    // Bob has not got them.
    bob.ask("publish coffee Beans", "message coffee Beans");
    ada.ask("unsubscribe tea", "unsubscribed tea");
    ada.tell("publish tea again");
    assert_eq!(eve.next(), "message tea again");
    ada.ask("brew tea", "error unknown command");
    ada.ask("subscribe a b", "subscribed a");
    ada.ask(
        "subscribe ../etc",
        "error a channel has 1 to 50 letters, digits or hyphens",
    );
    // Clients that answer pings stay; one that does not is closed.
    let mut silent = ws::Client::open(one.addr, "/socket");
    let close = loop {
        match silent.next_frame().unwrap() {
            (ws::PING, _) => {}
            frame => break frame,
        }
    };
    assert_eq!(close, (ws::CLOSE, b"\x03\xf0no heartbeat".to_vec()));
    bob.ask("publish coffee Cups", "message coffee Cups");
    // Both servers connect again after the database was down.
    postgres.stop_at_once();
    let refusal = "error the message was not sent, try again later";
    bob.ask("publish coffee lost", refusal);
    postgres.resume();
    // The servers connect again at different times, so a single message could get lost.
    let mut sender = Subscriber::open(&one);
    let mut receivers = [&one, &two].map(Subscriber::open);
    for receiver in &mut receivers {
        receiver.ask("subscribe coffee", "subscribed coffee");
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                sender.tell("publish coffee Sugar");
                sender.tell("unsubscribe coffee");
                while sender.next() != "unsubscribed coffee" {}
            }
        });
        for receiver in &mut receivers {
            assert_eq!(receiver.next(), "message coffee Sugar");
        }
        is_over.store(true, Ordering::Release);
    });
}

#[test]
fn metrics() {
    let example = Example::start("metrics", &[]);
    example.check("GET /", 200, "Hello\n");
    // A response is counted after it was sent, so the client may receive it before the counter
    // changes.
    let metrics = loop {
        let metrics = text(&example.ask("GET /metrics", "", ""));
        if metrics.contains("http_answers_total{route=\"/\"} 1\n") {
            break metrics;
        }
    };
    assert!(metrics.contains("http_failures_total 0\n"), "{metrics}");
    assert!(metrics.contains("\nhttp_workers_running "), "{metrics}");
    example.stop();
}

#[test]
fn auth() {
    let example = Example::start("auth", &[]);
    example.check("GET /", 200, "Everybody may read this\n");
    example.check("GET /account", 401, "Who are you?\n");
    let answer = example.ask(
        "GET /account",
        "Authorization: Bearer secret-of-ada\r\n",
        "",
    );
    assert_eq!(text(&answer), "Hello, Ada\n");
    assert!(
        answer
            .header("server-timing")
            .unwrap()
            .starts_with("handler;dur=")
    );
}

#[test]
fn streaming_upload() {
    let example = Example::start("streaming_upload", &[]);
    let folder = std::env::temp_dir().join(format!("samovar-files-{}", example.child.id()));
    let body = "0123456789".repeat(100_000);
    let answer = example.ask("PUT /files/big", "", &body);
    assert_eq!(
        (answer.status, text(&answer)),
        (201, "1000000 bytes\n".into())
    );
    assert_eq!(std::fs::read_to_string(folder.join("big")).unwrap(), body);
    assert_eq!(example.ask("PUT /files/..%2Fbig", "", "x").status, 400);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn streaming_download() {
    let folder = tempfile::tempdir().unwrap();
    let content = "0123456789".repeat(100_000);
    std::fs::write(folder.path().join("big"), &content).unwrap();
    let example = Example::start("streaming_download", &[folder.path().to_str().unwrap()]);
    example.check("GET /files/big", 200, &content);
    example.check("GET /files/none", 404, "Not Found\n");
    example.check("GET /files/big/x", 404, "Not Found\n");
    example.check("GET /files/../big", 404, "Not Found\n");
    let answer = example.ask("GET /files/big", "Range: bytes=5-8\r\n", "");
    assert_eq!((answer.status, text(&answer)), (206, "5678".into()));
    assert_eq!(answer.header("content-range"), Some("bytes 5-8/1000000"));
    assert_eq!(
        example
            .ask("GET /files/big", "Range: bytes=9999999-\r\n", "")
            .status,
        416
    );
    let count = text(&example.ask("GET /count", "", ""));
    assert!(count.starts_with("1\n2\n") && count.ends_with("\n100000\n"));
}

#[test]
fn sse() {
    let example = Example::start("sse", &[]);
    let mut stream = connect(example.addr);
    stream
        .write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == ": welcome"));
    assert_eq!(example.ask("POST /say", "", "Tea is\nready").status, 204);
    assert!(lines.any(|line| line == "data: Tea is"));
    assert!(lines.any(|line| line == "data: ready"));
    example.stop();
    // The stream ends, instead of being cut off.
    assert_eq!(lines.last().unwrap(), "");
}

#[test]
fn visitors_of_sse_that_close_leave_nothing_behind() {
    // This descriptor limit allows 300 connections, the number of visits below.
    let example = Example::start_within(Some(600), "sse", &[]);
    for _ in 0..4 {
        let visits: Vec<_> = (0..75)
            .map(|_| {
                let mut reader = Reader::new(connect(example.addr));
                reader.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
                let mut lines = BufReader::new(&reader.stream).lines().map(Result::unwrap);
                assert!(lines.any(|line| line == ": welcome"));
                // Read to the end of the event and of its chunk. With unread bytes, the close would
                // send RST.
                assert!(lines.any(|line| line.is_empty()) && lines.any(|line| line.is_empty()));
                reader
            })
            .collect();
        drop(visits);
        eventually("connections are closed", || {
            descriptors(example.child.id()) <= 70
        });
    }
    assert_eq!(example.ask("POST /say", "", "Tea").status, 204);
}

fn descriptors(process: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    open.count()
}

#[test]
fn tls() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let arguments = [&certificate, &key].map(|path| path.to_str().unwrap());
    // Each line on standard input makes the example reload the files; the end of the input stops
    // it.
    let example = Example::start("tls", &arguments);
    let output = Command::new("curl")
        .args(["-sS", "-D", "-", "--compressed", "--cacert"])
        .arg(&certificate)
        .arg(format!("https://localhost:{}/", example.addr.port()))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap().to_lowercase();
    assert!(said.contains("content-encoding: zstd"), "{said}");
    assert!(said.ends_with("is this secure? true\n"), "{said}");
}
