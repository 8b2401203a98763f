//! A web server for the files of a directory, such as those of a plain Nix cache.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A response that replaces a file: the status line with header fields, and the body.
pub(crate) type Special = Option<(String, Vec<u8>)>;

/// Replaces some responses, chosen by method, path and number of earlier requests for the path.
pub(crate) type Rule = Box<dyn Fn(&str, &str, usize) -> Special + Send + Sync>;

/// A web server for the files of one directory. It runs until the process ends.
pub(crate) struct Files {
    dir: PathBuf,
    rule: Rule,
    asked: Mutex<Vec<String>>,
}

impl Files {
    pub(crate) fn serve(dir: &Path, rule: Rule) -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let files = Arc::new(Self {
            dir: dir.to_owned(),
            rule,
            asked: Mutex::default(),
        });
        let server = Arc::clone(&files);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = Arc::clone(&server);
                std::thread::spawn(move || server.connection(&stream.unwrap()));
            }
        });
        (addr, files)
    }

    fn connection(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines();
        while let Some(Ok(line)) = lines.next() {
            let mut len = 0;
            for field in lines.by_ref().map_while(Result::ok) {
                if let Some((name, value)) = field.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    len = value.trim().parse().unwrap();
                }
                if field.is_empty() {
                    break;
                }
            }
            // Skip the request body, which consists of complete lines.
            while len > 0 {
                len -= lines.next().unwrap().unwrap().len() + 1;
            }
            let mut words = line.split(' ');
            let (method, path) = (words.next().unwrap(), words.next().unwrap());
            let (head, body) = self.answer(method, path);
            let mut bytes = format!("HTTP/1.1 {head}\r\n").into_bytes();
            if !head.contains("Content-Length") {
                bytes.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
            }
            bytes.extend(b"\r\n");
            bytes.extend(&body);
            if (&mut &*stream).write_all(&bytes).is_err() || head.contains("Connection: close") {
                return;
            }
        }
    }

    fn answer(&self, method: &str, path: &str) -> (String, Vec<u8>) {
        let name = format!("{method} {path}");
        let count = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(name.clone());
            asked.iter().filter(|other| **other == name).count() - 1
        };
        if let Some(special) = (self.rule)(method, path, count) {
            return special;
        }
        if method != "GET" {
            return ("405 Method Not Allowed".to_owned(), Vec::new());
        }
        match std::fs::read(self.dir.join(path.trim_start_matches('/'))) {
            Ok(bytes) => ("200 OK".to_owned(), bytes),
            Err(_) => ("404 Not Found".to_owned(), b"<html>".to_vec()),
        }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

pub(crate) fn no_rule() -> Rule {
    Box::new(|_, _, _| None)
}
