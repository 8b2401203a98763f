//! Tests of a site over a store in memory, through real connections.

mod answers;
mod bulk;
mod hidden;
pub(crate) mod memory_store;
mod paths;
mod patience;
mod policies;
pub(crate) mod recorder;
mod reload;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use samovar_http::{Listener, Server};
use samovar_nix::{PathInfo, SecretKey};

use crate::{CacheConfig, Site, SiteConfig};
use memory_store::MemoryStore;

const KEY: &str = "test-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA==";

fn key() -> SecretKey {
    SecretKey::parse(KEY).unwrap()
}

/// A running server of one site.
struct TestServer {
    store: MemoryStore,
    server: Server<Site>,
}

/// A response without its `Date` field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl TestServer {
    fn new(cache: CacheConfig) -> Self {
        Self::with_site(SiteConfig {
            caches: vec![cache],
            ..SiteConfig::default()
        })
    }

    fn with_site(config: SiteConfig) -> Self {
        let store = MemoryStore::new();
        let site = Site::new(Box::new(store.clone()), config, Arc::new(()));
        let listener = Listener::tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 64).unwrap();
        let server = Server::builder(site).listen(listener).start().unwrap();
        Self { store, server }
    }

    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "").unwrap()
    }

    fn narinfo(&self, info: &PathInfo) -> Answer {
        self.get(&format!("/{}.narinfo", info.path.hash_part()))
    }

    /// Sends a request with the header lines in `fields`. Returns `None` if the connection ended
    /// before the response was complete.
    fn request(&self, method: &str, path: &str, fields: &str) -> Option<Answer> {
        self.request_with_body(method, path, fields, "")
    }

    /// As [`request`](Self::request), with a body whose length is in `fields`.
    fn request_with_body(
        &self,
        method: &str,
        path: &str,
        fields: &str,
        body: &str,
    ) -> Option<Answer> {
        let mut stream = TcpStream::connect(self.server.local_addrs()[0]).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok()?;
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let body = bytes.split_off(end + 4);
        let len = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let is_whole = match len {
            Some(len) => body.len() == len.parse::<usize>().unwrap(),
            // A chunked body is complete if it ends with the last chunk.
            None => body.ends_with(b"0\r\n\r\n"),
        };
        if method != "HEAD" && !is_whole {
            return None;
        }
        let lines = head.lines().filter(|line| !line.starts_with("Date: "));
        Some(Answer {
            status: head[9..12].parse().unwrap(),
            head: lines.collect::<Vec<_>>().join("\n"),
            body,
        })
    }
}
