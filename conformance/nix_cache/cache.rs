//! The cache under test, with requests for narinfos and NARs.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use sha2::{Digest, Sha256};
use testkit::http1::{Connection, Response};

use crate::{Problem, broken, skipped};

/// The alphabet of Nix's base 32.
const BASE32: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";

/// A hash part that no store contains.
pub(crate) const ABSENT: &str = "00000000000000000000000000000000";

/// The cache under test, and the store paths to request.
pub(crate) struct Cache {
    address: SocketAddr,
    host: String,
    prefix: String,
    /// Store paths that the cache serves; cases that need only one use the first.
    pub(crate) paths: Vec<String>,
    /// Base name of a derivation with a build log, if one is known.
    pub(crate) log: Option<String>,
    /// A store path that is known to be absent from the store.
    pub(crate) absent: Option<String>,
}

impl Cache {
    pub(crate) fn new(
        url: &str,
        paths: Vec<String>,
        log: Option<String>,
        absent: Option<String>,
    ) -> Result<Self, String> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("{url:?} must start with http://; TLS is not supported"))?;
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let with_port = match host.rsplit_once(':') {
            Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host.to_owned(),
            _ => format!("{host}:80"),
        };
        let mut addresses = with_port
            .to_socket_addrs()
            .map_err(|error| format!("{host}: {error}"))?;
        for path in &paths {
            let base = path.rsplit('/').next().unwrap_or(path);
            let hash = base.split('-').next().unwrap_or(base);
            if hash.len() != 32 || !hash.bytes().all(|byte| BASE32.contains(&byte)) {
                return Err(format!("{path:?} is not a store path"));
            }
        }
        Ok(Self {
            address: addresses.next().ok_or("the host has no address")?,
            host: host.to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
            paths,
            log,
            absent,
        })
    }

    /// Returns the bytes of a request; `target` starts with a slash, `fields` end with CRLF.
    fn request(&self, method: &str, target: &str, fields: &str) -> String {
        let prefix = match self.prefix.as_str() {
            "" => String::new(),
            prefix => format!("/{prefix}"),
        };
        let host = &self.host;
        format!("{method} {prefix}{target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
    }

    /// Sends requests on one connection, one after the other.
    pub(crate) fn on_one_connection(&self, requests: &[(&str, &str)]) -> io::Result<Vec<Response>> {
        let mut connection = Connection::try_connect(self.address)?;
        let mut responses = Vec::new();
        for (method, target) in requests {
            connection.try_send(self.request(method, target, ""))?;
            let response = connection.try_next(*method == "HEAD")?;
            responses.push(response.ok_or_else(|| {
                io::Error::other(format!("the connection is closed before {method} {target}"))
            })?);
        }
        Ok(responses)
    }

    pub(crate) fn send(&self, method: &str, target: &str, fields: &str) -> io::Result<Response> {
        let mut connection = Connection::try_connect(self.address)?;
        let fields = format!("Connection: close\r\n{fields}");
        connection.try_send(self.request(method, target, &fields))?;
        let response = connection.try_next(method == "HEAD")?;
        response.ok_or_else(|| io::Error::other(format!("no response to {method} {target}")))
    }

    pub(crate) fn get(&self, target: &str) -> io::Result<Response> {
        self.send("GET", target, "")
    }

    /// Requests a resource that must exist.
    pub(crate) fn found(&self, target: &str) -> Result<Response, Problem> {
        let response = self.get(target)?;
        match response.status {
            200 => Ok(response),
            status => Err(broken(format!("{target}: status {status}"))),
        }
    }

    /// Returns the hash part of the first path.
    pub(crate) fn hash(&self) -> &str {
        hash_part(self.path())
    }

    /// Returns the first path.
    pub(crate) fn path(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }

    pub(crate) fn narinfo(&self, path: &str) -> Result<Narinfo, Problem> {
        let response = self.found(&format!("/{}.narinfo", hash_part(path)))?;
        Ok(Narinfo(response.text()))
    }

    /// Downloads the NAR of a path from the URL in its narinfo, and decompresses it.
    pub(crate) fn nar(&self, path: &str) -> Result<Vec<u8>, Problem> {
        let narinfo = self.narinfo(path)?;
        let file = self.found(&narinfo.url()?)?.body;
        match narinfo.get("Compression") {
            Some("none") => Ok(file),
            Some("zstd") => Ok(zstd::decode_all(&*file)?),
            other => {
                let name = other.unwrap_or("bzip2");
                Err(skipped(format!("{name} is not decompressed here")))
            }
        }
    }
}

/// Text of a narinfo.
pub(crate) struct Narinfo(pub(crate) String);

impl Narinfo {
    /// Returns the values of all lines with this name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.lines();
        lines.filter_map(move |line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    pub(crate) fn required<'a>(&'a self, name: &'a str) -> Result<&'a str, Problem> {
        self.get(name).ok_or_else(|| broken(format!("no {name}")))
    }

    /// Returns the request target of the NAR.
    pub(crate) fn url(&self) -> Result<String, Problem> {
        Ok(format!("/{}", self.required("URL")?))
    }
}

pub(crate) fn hash_part(path: &str) -> &str {
    let base = path.rsplit('/').next().unwrap_or(path);
    base.get(..32).unwrap_or(base)
}

/// Returns whether `text` is a base name of a store path: a hash part, a dash, a name.
pub(crate) fn is_base_name(text: &str) -> bool {
    let Some((hash, name)) = text.split_once('-') else {
        return false;
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._?=".contains(&byte);
    is_base32(hash, 32) && (1..=211).contains(&name.len()) && name.bytes().all(is_name)
}

pub(crate) fn is_base32(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| BASE32.contains(&byte))
}

/// Returns the SHA-256 of bytes in Nix's notation.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let byte = |at: usize| u16::from(hash.get(at).copied().unwrap_or(0));
    let digit = |number: usize| {
        let bit = number * 5;
        let pair = byte(bit / 8) | byte(bit / 8 + 1) << 8;
        char::from(BASE32[usize::from(pair >> (bit % 8) & 31)])
    };
    let digits: String = (0..52).rev().map(digit).collect();
    format!("sha256:{digits}")
}
