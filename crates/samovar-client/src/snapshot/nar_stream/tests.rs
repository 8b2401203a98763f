use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use super::*;
use crate::failed::Failed;
use crate::http::Patience;
use crate::pace::Pace;
use crate::remote::Remote;

const LEN: usize = 100_000;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

const SHORT: Duration = Duration::from_millis(20);

fn content() -> Vec<u8> {
    (0..=250).cycle().take(LEN).collect()
}

/// The state of a connection after its request was answered.
#[derive(PartialEq, Eq)]
enum Then {
    Close,
    /// Keep the connection open, without sending anything.
    Hold,
}

/// A server, and the heads of the requests that it got.
struct Server {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `answer` gets the number of the request, the offset that it asks for, and the connection.
    fn start(answer: impl Fn(usize, usize, &mut TcpStream) -> Then + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&heads);
        thread::spawn(move || {
            let mut held = Vec::new();
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut head = String::new();
                let mut reader = BufReader::new(&stream);
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
                let head = head.to_ascii_lowercase();
                let start = head.split_once("range: bytes=").map_or(0, |(_, rest)| {
                    rest.split_once('-').unwrap().0.parse().unwrap()
                });
                seen.lock().unwrap().push(head);
                if answer(number, start, &mut stream) == Then::Hold {
                    held.push(stream);
                }
            }
        });
        Self { url, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn http(&self, pace: Pace) -> Http {
        let patience = Patience::UPLOAD.with_pace(pace);
        Http::new(Remote::parse(&self.url).unwrap(), patience).unwrap()
    }

    /// Downloads the file. Returns it with the number of bytes received.
    fn read(&self, pace: Pace) -> anyhow::Result<(Vec<u8>, u64)> {
        let received = Arc::<AtomicU64>::default();
        let http = self.http(pace);
        let mut stream = NarStream::start(&http, "/nar".to_owned(), None, Arc::clone(&received))?;
        let mut read = Vec::new();
        stream.read_to_end(&mut read)?;
        Ok((read, received.load(Ordering::Relaxed)))
    }
}

/// Sends the head of a response, and bytes of the file.
fn send(stream: &mut TcpStream, status: u16, bytes: std::ops::Range<usize>) {
    let range = format!("Content-Range: bytes {}-{}/{LEN}\r\n", bytes.start, LEN - 1);
    let head = format!(
        "HTTP/1.1 {status} Yes\r\nETag: \"a\"\r\nConnection: close\r\n{}Content-Length: {}\r\n\r\n",
        if status == 206 { &range } else { "" },
        if status == 206 {
            LEN - bytes.start
        } else {
            LEN
        }
    );
    stream.write_all(head.as_bytes()).ok();
    stream.write_all(&content()[bytes]).ok();
}

const PATIENT: Pace = Pace {
    silence: LONG,
    ..Pace::DOWNLOAD
};

#[test]
fn a_download_continues_where_it_was_cut_off() {
    let server = Server::start(|number, start, stream| {
        let status = if number == 0 { 200 } else { 206 };
        send(stream, status, start..LEN.min(start + LEN / 3));
        Then::Close
    });
    let (read, received) = server.read(PATIENT).unwrap();
    assert!(read == content());
    assert_eq!(received, LEN as u64);
    let heads = server.heads();
    assert_eq!(heads.len(), 4);
    assert!(heads[1].contains("if-range: \"a\""), "{heads:?}");
}

#[test]
fn a_server_without_ranges_sends_the_file_again() {
    let server = Server::start(|number, _, stream| {
        send(stream, 200, 0..if number == 0 { LEN / 2 } else { LEN });
        Then::Close
    });
    assert!(server.read(PATIENT).unwrap().0 == content());
    assert_eq!(server.heads().len(), 2);
}

#[test]
fn another_file_is_not_appended() {
    let server = Server::start(|number, _, stream| {
        match number {
            0 => send(stream, 200, 0..LEN / 2),
            _ => {
                let head = format!("HTTP/1.1 200 Yes\r\nContent-Length: {LEN}\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
            }
        }
        Then::Close
    });
    let error = server.read(PATIENT).unwrap_err().to_string();
    assert!(error.contains("has changed during the download"), "{error}");
}

#[test]
fn interruptions_without_progress_are_limited() {
    let server = Server::start(|number, start, stream| {
        let status = if number == 0 { 200 } else { 206 };
        send(stream, status, start..start + 1);
        Then::Close
    });
    let error = server.read(PATIENT).unwrap_err();
    assert!(error.to_string().contains(&server.url), "{error:#}");
    let count = server.heads().len();
    assert_eq!(count, 1 + INTERRUPTION_COUNT_MAX as usize);
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    // The kernel accepts connections, and no program reads them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pace = Pace {
        silence: SHORT,
        ..PATIENT
    };
    for (patience, count) in [(Patience::QUERY, 2), (Patience::UPLOAD, 4)] {
        let remote = Remote::parse(&url).unwrap();
        let http = Http::new(remote, patience.with_pace(pace)).unwrap();
        let error = http.get("/x").unwrap_err();
        assert_eq!(Failed::of(&error), Some(Failed::Unavailable));
        let expected = format!("{url} cannot be reached (no answer in time)");
        assert!(error.to_string().starts_with(&expected), "{error:#}");
        assert_eq!(http.request_count(), count);
    }
}

#[test]
fn a_server_that_becomes_silent_is_given_up() {
    let server = Server::start(|number, start, stream| {
        let status = if number == 0 { 200 } else { 206 };
        send(stream, status, start..start + 1);
        Then::Hold
    });
    let error = server.read(Pace {
        silence: SHORT,
        ..PATIENT
    });
    // On a busy machine, the head of a response may be late, too.
    let error = error.unwrap_err().to_string();
    let silent = format!("{} sent nothing for {SHORT:?}", server.url);
    let unreachable = format!("{} cannot be reached", server.url);
    assert!(
        error.contains(&silent) || error.contains(&unreachable),
        "{error}"
    );
}

#[test]
fn a_server_that_sends_too_few_bytes_is_given_up() {
    let server = Server::start(|number, start, stream| {
        let status = if number == 0 { 200 } else { 206 };
        send(stream, status, start..start + 1);
        Then::Hold
    });
    // Every wait is too long.
    let error = server.read(Pace {
        window: Duration::ZERO,
        ..PATIENT
    });
    let error = error.unwrap_err().to_string();
    let expected = format!("{} sent less than 30.0 KiB in 0ns", server.url);
    assert_eq!(error, expected);
    assert_eq!(server.heads().len(), 2);
}
