//! An interrupted download can be resumed at the byte where it broke, by any range that a client
//! may request.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use support::client::{Client, finish, succeeds};
use support::{Nix, PATIENCE, Response, ServerProcess, hash_part, key_pair, nix_serve};
use support::{local, sample, sample_root};
use testkit::http1::Connection;

/// A proxy between client and server that cuts connections.
struct BreakingLine {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A request for a NAR and the head of the response, as recorded by the proxy.
#[derive(Debug, Clone)]
struct Seen {
    request: String,
    answer: String,
    /// Number of bytes of the body that the proxy has forwarded.
    body_len: u64,
}

impl BreakingLine {
    /// Starts a proxy that cuts the bodies of NAR responses after these lengths, in order.
    fn new(server: SocketAddr, cuts: &[u64]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Self {
            addr: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let cuts = Arc::new(Mutex::new(cuts.to_vec()));
        let seen = Arc::clone(&line.seen);
        // This thread runs until the process ends: a blocking accept cannot be interrupted.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (cuts, seen) = (Arc::clone(&cuts), Arc::clone(&seen));
                std::thread::spawn(move || pass(client, server, &cuts, &seen));
            }
        });
        line
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Forwards one request and its response, then closes the connection. The client reconnects for the
/// next request.
fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    cuts: &Mutex<Vec<u64>>,
    seen: &Mutex<Vec<Seen>>,
) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let request = read_head(&mut BufReader::new(&client))?;
    let mut server = TcpStream::connect(server)?;
    server.set_read_timeout(Some(PATIENCE))?;
    let closing = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    server.write_all(closing.as_bytes())?;
    let mut answer = BufReader::new(&server);
    let head = read_head(&mut answer)?;
    client.write_all(head.as_bytes())?;
    let is_nar = request.starts_with("GET /nar/");
    let cut = {
        let mut cuts = cuts.lock().unwrap();
        (is_nar && !cuts.is_empty()).then(|| cuts.remove(0))
    };
    let mut body = answer.take(cut.unwrap_or(u64::MAX));
    let body_len = io::copy(&mut body, &mut client).unwrap_or_default();
    if is_nar {
        seen.lock().unwrap().push(Seen {
            request,
            answer: head,
            body_len,
        });
    }
    client.shutdown(Shutdown::Both)
}

fn read_head(reader: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Returns the value of a header field.
fn field<'head>(head: &'head str, name: &str) -> Option<&'head str> {
    head.lines().skip(1).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn is_same(one: &std::path::Path, other: &std::path::Path) -> bool {
    std::fs::read(one).unwrap() == std::fs::read(other).unwrap()
}

/// Runs a check with each version of Nix. Clients pause for seconds before they try again, so the
/// checks run at the same time.
#[track_caller]
fn at_once(check: fn(&Nix)) {
    std::thread::scope(|scope| {
        for nix in Nix::all() {
            scope.spawn(move || check(&nix));
        }
    });
}

#[test]
fn a_real_client_resumes_after_two_interruptions() {
    at_once(resumes_after_two_interruptions);
}

#[track_caller]
fn resumes_after_two_interruptions(nix: &Nix) {
    let client = Client::of(nix);
    let (secret, public) = key_pair(client.dir(), "ours-1");
    let mut command = nix_serve();
    command
        .args(["--store", &local(&sample_root())])
        .env("NIX_SECRET_KEY_FILE", secret);
    let server = ServerProcess::start(&mut command);
    let cuts = [300_000, 450_000];
    let line = BreakingLine::new(server.addr, &cuts);
    let path = sample("big");
    let output = finish(&mut client.copy(&line.url(), &public, std::slice::from_ref(&path)));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let real = sample_root().join(path.trim_start_matches('/'));
    assert!(is_same(&client.real(&path), &real));

    let seen = line.seen();
    assert_eq!(seen.len(), 3, "{seen:#?}");
    assert_eq!(field(&seen[0].request, "range"), None);
    assert!(seen[0].answer.starts_with("HTTP/1.1 200 "));
    let mut start = 0;
    for (before, resumed) in seen.iter().zip(&seen[1..]) {
        start += before.body_len;
        let range = format!("bytes={start}-");
        assert_eq!(field(&resumed.request, "range"), Some(&*range));
        assert!(resumed.answer.starts_with("HTTP/1.1 206 "), "{resumed:#?}");
    }
    for Seen { answer, .. } in &seen {
        assert_eq!(field(answer, "accept-ranges"), Some("bytes"));
        assert_eq!(field(answer, "content-encoding"), None);
    }
    assert_eq!([seen[0].body_len, seen[1].body_len], cuts);
}

/// A client resumes a NAR of many files in the middle of the tree.
#[test]
fn a_real_client_resumes_within_a_tree() {
    at_once(resumes_within_a_tree);
}

#[track_caller]
fn resumes_within_a_tree(nix: &Nix) {
    let client = Client::of(nix);
    let server = ServerProcess::of_store(&sample_root());
    let line = BreakingLine::new(server.addr, &[1_234_567, 3_000_001, 1]);
    let path = sample("tree");
    let mut copy = client.copy(&line.url(), "", std::slice::from_ref(&path));
    succeeds(copy.arg("--no-check-sigs"));
    let mut verify = client.command("nix");
    verify
        .args(["store", "verify", "--no-trust", "--store"])
        .arg(client.root());
    succeeds(verify.arg(&path));
    let seen = line.seen();
    assert_eq!(seen.len(), 4, "{seen:#?}");
    assert_eq!(
        field(&seen[3].request, "range"),
        Some(&*format!("bytes={}-", 1_234_567 + 3_000_001 + 1))
    );
}

/// The whole NAR of a path, and a connection for requests of ranges.
struct Whole {
    connection: Connection,
    url: String,
    nar: Vec<u8>,
    _server: ServerProcess,
}

impl Whole {
    fn of(key: &str) -> Self {
        let server = ServerProcess::of_store(&sample_root());
        let mut connection = Connection::connect(server.addr);
        let url = format!("/nar/{}.nar", hash_part(&sample(key)));
        let answer = connection.get(&url);
        assert_eq!(answer.status, 200);
        Self {
            connection,
            url,
            nar: answer.body,
            _server: server,
        }
    }

    fn ask(&mut self, range: &str) -> Response {
        let fields = [
            &*format!("Range: {range}"),
            "Accept-Encoding: zstd, br, gzip, deflate, bzip2, xz",
        ];
        let answer = self.connection.request("GET", &self.url, &fields);
        assert_eq!(answer.header("content-encoding"), None, "{range}");
        answer
    }

    /// Checks that a range has the bytes `start..end`.
    #[track_caller]
    fn part(&mut self, range: &str, start: usize, end: usize) {
        let answer = self.ask(range);
        assert_eq!(answer.status, 206, "{range}");
        let expected = format!("bytes {start}-{}/{}", end - 1, self.nar.len());
        assert_eq!(answer.header("content-range"), Some(&*expected));
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        assert!(answer.body == self.nar[start..end], "{range}: other bytes");
    }

    #[track_caller]
    fn beyond(&mut self, range: &str) {
        let answer = self.ask(range);
        assert_eq!(answer.status, 416, "{range}");
        let expected = format!("bytes */{}", self.nar.len());
        assert_eq!(answer.header("content-range"), Some(&*expected));
        assert!(answer.body.len() < 1024);
    }

    #[track_caller]
    fn ignored(&mut self, range: &str) {
        let answer = self.ask(range);
        assert_eq!(answer.status, 200, "{range}");
        assert_eq!(answer.header("content-range"), None, "{range}");
        assert!(answer.body == self.nar, "{range}: other bytes");
    }
}

#[test]
fn single_ranges_are_answered_with_206() {
    for key in ["kinds", "big", "empty"] {
        let mut whole = Whole::of(key);
        let len = whole.nar.len();
        whole.part("bytes=0-0", 0, 1);
        whole.part("bytes=0-9", 0, 10);
        whole.part("bytes=7-7", 7, 8);
        whole.part("bytes=100-", 100, len);
        whole.part("bytes=0-", 0, len);
        whole.part(&format!("bytes={}-", len - 1), len - 1, len);
        whole.part(&format!("bytes={}-{}", len - 1, len - 1), len - 1, len);
        // An end after the last byte means the last byte; so does a suffix longer than the NAR.
        whole.part(&format!("bytes=5-{}", len * 2), 5, len);
        whole.part("bytes=5-99999999999999999999999999", 5, len);
        whole.part("bytes=-1", len - 1, len);
        whole.part("bytes=-100", len - 100, len);
        whole.part(&format!("bytes=-{len}"), 0, len);
        whole.part(&format!("bytes=-{}", len * 2), 0, len);
        whole.part("bytes=-99999999999999999999999999", 0, len);
    }
}

#[test]
fn ranges_beyond_the_end_are_answered_with_416() {
    let mut whole = Whole::of("kinds");
    let len = whole.nar.len();
    whole.beyond(&format!("bytes={len}-"));
    whole.beyond(&format!("bytes={len}-{len}"));
    whole.beyond(&format!("bytes={}-", len + 1));
    whole.beyond("bytes=99999999999999999999999999-");
    whole.beyond("bytes=-0");
    // The connection can still be used.
    whole.part("bytes=0-0", 0, 1);
}

/// A malformed range is ignored, and so is a request for several ranges, which no client sends. RFC
/// 9110, 14.2: "A server MAY ignore the Range header field."
#[test]
fn invalid_and_multiple_ranges_are_ignored() {
    let mut whole = Whole::of("kinds");
    for range in [
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=abc",
        "bytes=1",
        "bytes=5-2",
        "bytes=1-2-3",
        "bytes=+1-2",
        "bytes=0x1-0x2",
        "bytes=-1-2",
        "items=0-1",
        "0-1",
        "",
        "bytes=0-1,3-4",
        "bytes=0-0, -1",
    ] {
        whole.ignored(range);
    }
}

/// Ranges of HEAD are ignored. RFC 9110, 14.2: "A server MUST ignore a Range header field received
/// with a request method that is unrecognized or for which range handling is not defined", which
/// means all methods but GET.
#[test]
fn head_ignores_ranges() {
    let mut whole = Whole::of("kinds");
    for range in ["bytes=0-0", "bytes=99999999-"] {
        let field = format!("Range: {range}");
        let url = whole.url.clone();
        let answer = whole.connection.request("HEAD", &url, &[&field]);
        assert_eq!(answer.status, 200);
        let len = whole.nar.len().to_string();
        assert_eq!(answer.header("content-length"), Some(&*len));
        assert_eq!(answer.header("content-range"), None);
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
    }
}

/// A download can be resumed at any byte of a small NAR.
#[test]
fn a_small_nar_can_be_resumed_at_every_byte() {
    let mut whole = Whole::of("odd");
    let len = whole.nar.len();
    for start in 0..len {
        whole.part(&format!("bytes={start}-"), start, len);
    }
}

/// A download can be resumed at offsets spread over a tree of thousands of files.
#[test]
fn a_tree_can_be_resumed_at_five_hundred_offsets() {
    let mut whole = Whole::of("tree");
    let len = whole.nar.len();
    for index in 0..500 {
        let start = index * (len / 500) + index;
        let end = len.min(start + 20_000);
        whole.part(&format!("bytes={start}-{}", end - 1), start, end);
    }
}
