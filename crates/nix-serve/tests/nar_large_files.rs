//! Large files are sent by sendfile, bit for bit as registered, for every range. If a file shrinks
//! meanwhile, the response is visibly truncated.
//!
//! The tests use a Unix socket, where only the size of a file decides whether sendfile is used.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use support::{OwnStore, PATIENCE, ServerProcess, eventually, hash_part, local, nix, nix_serve};

/// Minimum length of contents that are sent by sendfile, bytes.
const RANGE_LEN_MIN: usize = 128 * 1024;
/// Maximum number of bytes per call of sendfile.
const RANGE_LEN_MAX: usize = 512 * 1024;
/// Length of contents that do not fit into the socket buffers, bytes.
const LONG_LEN: usize = 64 << 20;

struct Scene {
    store: OwnStore,
    server: ServerProcess,
    socket: std::path::PathBuf,
    path: String,
}

impl Scene {
    fn new(make: impl FnOnce(&Path)) -> Self {
        let store = OwnStore::new();
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("name"));
        let path = store.add(&dir.path().join("name"));
        let socket = store.root().join("socket");
        let mut command = nix_serve();
        command.args(["--store", &local(store.root())]);
        command.arg("--listen").arg(&socket);
        let server = ServerProcess::start(&mut command);
        Self {
            store,
            server,
            socket,
            path,
        }
    }

    fn begin(&self, range: Option<(usize, usize)>) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let range = range.map_or(String::new(), |(start, end)| {
            format!("Range: bytes={start}-{}\r\n", end - 1)
        });
        let url = format!("/nar/{}.nar", hash_part(&self.path));
        let request = format!("GET {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{range}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn dump(&self) -> Vec<u8> {
        let mut dump = nix("nix-store", self.store.root());
        dump.arg("--dump").arg(self.store.real(&self.path));
        dump.output().unwrap().stdout
    }
}

/// Reads a response to the end of the connection; returns head and body.
fn read(mut stream: UnixStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    // The end of the connection may also be a reset.
    let _reset = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let body = bytes.split_off(end.unwrap() + 4);
    (String::from_utf8(bytes).unwrap(), body)
}

/// Generates bytes without two equal pages.
fn noise(seed: usize, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64)
        .map(|at| ((seed as u64) << 40 | at).wrapping_mul(6_364_136_223_846_793_005));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn files_of_every_length_near_a_limit_are_sent_bit_for_bit() {
    let lens = [RANGE_LEN_MIN, RANGE_LEN_MAX, RANGE_LEN_MIN + RANGE_LEN_MAX];
    let near = lens.iter().flat_map(|len| [len - 1, *len, len + 1]);
    let scene = Scene::new(|dir| {
        fs::create_dir(dir).unwrap();
        for (number, len) in near.chain([0, 1, 7, 3 << 20]).enumerate() {
            fs::write(dir.join(format!("{number:02}-{len}")), noise(number, len)).unwrap();
            fs::write(dir.join(format!("{number:02}-small")), b"between").unwrap();
        }
    });
    let expected = scene.dump();
    let (head, body) = read(scene.begin(None));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(body == expected);
    // Request ranges that start and end in each kind of part.
    let mut at = 0;
    for step in (0..40).map(|round| 61_007 * (round % 7 + 1)) {
        for len in [1, RANGE_LEN_MIN, RANGE_LEN_MAX + 5] {
            let end = (at + len).min(expected.len());
            let (head, body) = read(scene.begin(Some((at, end))));
            assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
            assert!(body == expected[at..end], "{at}..{end}");
        }
        at = (at + step) % (expected.len() - 1);
    }
}

#[test]
fn a_file_that_shrinks_aborts_its_response_and_is_reported() {
    let scene = Scene::new(|file| fs::write(file, noise(1, LONG_LEN)).unwrap());
    let expected = scene.dump();
    let mut stream = scene.begin(None);
    let mut first = [0; 1000];
    stream.read_exact(&mut first).unwrap();
    let real = scene.store.real(&scene.path);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    let file = fs::File::options().write(true).open(&real).unwrap();
    file.set_len(4 << 20).unwrap();
    let mut rest = Vec::new();
    let _reset = stream.read_to_end(&mut rest);
    assert!(first.len() + rest.len() < LONG_LEN);
    scene.server.wait_for("does not match its registration");
    // After a repair the path is served again.
    fs::write(&real, noise(1, LONG_LEN)).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o444)).unwrap();
    let (mut head, mut body) = read(scene.begin(None));
    // The status is 503 until the second check of the path is over.
    eventually("the repaired path is served", || {
        let is_waiting = head.starts_with("HTTP/1.1 503 ") || head.starts_with("HTTP/1.1 404 ");
        if is_waiting {
            (head, body) = read(scene.begin(None));
        }
        !is_waiting
    });
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(body == expected);
}
