//! A client of the push protocol. Tests can change each of its requests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use sha2::{Digest as _, Sha256};
use testkit::http1::Response;

use crate::support_uploads::{MadePath, Running, hash};

/// A client with a token that pushes to one cache of a server.
#[derive(Clone, Copy)]
pub(crate) struct Push<'a> {
    pub(crate) server: &'a Running,
    pub(crate) token: &'a str,
    /// Path of the cache's URL: empty, or such as `/name`.
    pub(crate) cache: &'a str,
}

impl<'a> Push<'a> {
    pub(crate) fn new(server: &'a Running, token: &'a str) -> Self {
        Self {
            server,
            token,
            cache: "",
        }
    }

    /// Sends a request; `target` is relative to `upload/push/1/`.
    pub(crate) fn send(&self, method: &str, target: &str, body: impl AsRef<[u8]>) -> Response {
        let target = format!("{}/upload/push/1/{target}", self.cache);
        self.server.send(method, &target, self.token, body)
    }

    /// Opens a push for these paths. Returns its identifier, and the server's answer for each path.
    #[track_caller]
    pub(crate) fn open(&self, paths: &[&MadePath]) -> (String, Vec<String>) {
        let lines: String = paths.iter().map(|path| open_line(path)).collect();
        let response = self.send("POST", "open", lines);
        assert_eq!(response.status, 200, "{}", response.text());
        let lines = lines_of(&response);
        let first: Vec<&str> = lines[0].split(' ').collect();
        let [word, version, id, count, pack_max, part_max] = first[..] else {
            unreachable!("{first:?}");
        };
        assert_eq!((word, version, id.len()), ("push", "1", 32));
        assert_eq!(count, paths.len().to_string());
        assert_eq!([pack_max, part_max], ["33554432"; 2]);
        let answers = &lines[1..];
        assert_eq!(answers.len(), paths.len());
        let words = answers.iter().zip(paths).map(|(line, path)| {
            let word = line.strip_suffix(path.hash_part()).unwrap();
            word.trim_end().to_owned()
        });
        (id.to_owned(), words.collect())
    }

    /// Uploads a pack of these paths' files. Returns the lines of the response, without the last.
    #[track_caller]
    pub(crate) fn pack(&self, id: &str, paths: &[&MadePath]) -> Vec<String> {
        let response = self.send("PUT", &format!("{id}/pack"), pack(paths));
        assert_eq!(response.status, 200, "{}", response.text());
        lines_of(&response)
    }

    /// Uploads part `number` of a NAR file. Returns the response.
    pub(crate) fn part(&self, id: &str, nar: &str, number: usize, part: &[u8]) -> Response {
        let sha256 = hex(&Sha256::digest(part));
        let target = format!("{id}/part/{nar}/{number}?sha256={sha256}");
        self.send("PUT", &target, part)
    }

    /// Returns the numbers and lengths of the parts that the server has.
    #[track_caller]
    pub(crate) fn parts(&self, id: &str, nar: &str) -> Vec<(usize, usize)> {
        let response = self.send("GET", &format!("{id}/part/{nar}"), "");
        assert_eq!(response.status, 200, "{}", response.text());
        let parts = lines_of(&response).into_iter().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!((words[0], words[3].len()), ("part", 64));
            (words[1].parse().unwrap(), words[2].parse().unwrap())
        });
        parts.collect()
    }

    pub(crate) fn join(&self, id: &str, nar: &str, count: usize) -> Response {
        let target = format!("{id}/join/{nar}?parts={count}&compression=none");
        self.send("POST", &target, "")
    }

    pub(crate) fn publish(&self, id: &str, paths: &[&MadePath]) -> Response {
        let narinfos: Vec<String> = paths.iter().map(|path| path.narinfo()).collect();
        self.send("POST", &format!("{id}/publish"), narinfo_records(&narinfos))
    }

    /// Publishes these paths. Asserts that this succeeds.
    #[track_caller]
    pub(crate) fn published(&self, id: &str, paths: &[&MadePath]) {
        let response = self.publish(id, paths);
        let count = paths.len();
        let expected = format!("published {count}\nend {count}\n");
        assert_eq!((response.status, response.text()), (200, expected));
    }
}

impl Running {
    /// Sends a request with this token and body.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        token: &str,
        body: impl AsRef<[u8]>,
    ) -> Response {
        let field = match token {
            "" => String::new(),
            _ => format!("Authorization: Bearer {token}\r\n"),
        };
        crate::support_uploads::send(self.address, method, target, &field, body)
    }
}

/// Returns the lines of a response without the last one, which must begin with `end`.
#[track_caller]
pub(crate) fn lines_of(response: &Response) -> Vec<String> {
    let text = response.text();
    assert!(text.ends_with('\n'), "{text:?}");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(lines.pop().unwrap().starts_with("end "), "{text:?}");
    lines
}

/// Returns the line for a path in the body of `open`.
pub(crate) fn open_line(path: &MadePath) -> String {
    let (hash_part, size) = (path.hash_part(), path.nar.len());
    format!("{hash_part} {} {size}\n", hash(&path.nar))
}

/// Returns a pack with the files of these paths.
pub(crate) fn pack(paths: &[&MadePath]) -> Vec<u8> {
    let records: Vec<_> = paths
        .iter()
        .map(|path| (hash(&path.nar), path.compression, &*path.file))
        .collect();
    pack_of(&records)
}

/// Returns a pack of records. Each consists of a NAR hash, a compression and a file.
pub(crate) fn pack_of(records: &[(String, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (nar_hash, compression, file) in records {
        body.extend(format!("nar {nar_hash} {compression} {}\n", file.len()).bytes());
        body.extend_from_slice(file);
    }
    body.extend(format!("end {}\n", records.len()).bytes());
    body
}

/// Returns a body of `publish` with these narinfos.
pub(crate) fn narinfo_records(narinfos: &[String]) -> String {
    let records = narinfos
        .iter()
        .map(|text| format!("narinfo {}\n{text}", text.len()));
    format!("{}end {}\n", records.collect::<String>(), narinfos.len())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
