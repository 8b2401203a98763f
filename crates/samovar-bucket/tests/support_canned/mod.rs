//! A server that answers each request as the test says, for what engines do only when they fail.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A request that the server has received.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let is_it = |pair: &&(String, String)| pair.0 == name;
        self.headers.iter().find(is_it).map(|pair| pair.1.as_str())
    }
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    len: Option<usize>,
    is_cut: bool,
}

impl Reply {
    /// Answers with a body of this text.
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            len: None,
            is_cut: false,
        }
    }

    /// Answers with an error of S3.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        let text = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>because</Message></Error>"
        );
        Self::new(status, text)
    }

    pub(crate) fn header(mut self, line: impl Into<String>) -> Self {
        self.headers.push(line.into());
        self
    }

    /// Announces another length than that of the body.
    pub(crate) fn announced(mut self, len: usize) -> Self {
        self.len = Some(len);
        self
    }

    /// Closes the connection after the body.
    pub(crate) fn cut(mut self) -> Self {
        self.is_cut = true;
        self
    }
}

type Handler = dyn Fn(&Asked) -> Reply + Send + Sync;

/// A running server.
pub(crate) struct Canned {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Canned {
    pub(crate) fn start(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                std::thread::spawn(move || serve(stream, &*handler, &log));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        let asked = self.asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(asked) = read(&mut reader, &mut stream) {
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(asked.clone());
        let reply = handler(&asked);
        let len = reply.len.unwrap_or(reply.body.len());
        let mut head = format!("HTTP/1.1 {} x\r\n", reply.status);
        for line in &reply.headers {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str(&format!("content-length: {len}\r\n\r\n"));
        let body: &[u8] = if asked.method == "HEAD" {
            b""
        } else {
            &reply.body
        };
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
        if sent.is_err() || reply.is_cut {
            stream.shutdown(Shutdown::Both).ok();
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>, stream: &mut TcpStream) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
    let mut words = line.split(' ');
    let mut asked = Asked {
        method: words.next()?.to_owned(),
        target: words.next()?.to_owned(),
        ..Asked::default()
    };
    let mut len = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        let name = name.to_ascii_lowercase();
        if name == "content-length" {
            len = value.parse().unwrap();
        }
        if name == "expect" {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        asked.headers.push((name, value.to_owned()));
    }
    asked.body = vec![0; len];
    reader.read_exact(&mut asked.body).ok()?;
    Some(asked)
}
