//! No error response reveals paths of files, errors of the operating system, or internals of the
//! server. These appear only in the log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::{
    OwnStore, Response, ServerProcess, hash_part, local, nix_serve, raw, sample, sample_root,
};

/// Strings that only a NAR may contain, in lower case.
const NEVER: [&str; 18] = [
    "/nix/var",
    "/proc/",
    "/tmp/",
    "db.sqlite",
    "sqlite",
    "os error",
    "no such file",
    "not a directory",
    "is a directory",
    "permission denied",
    "too many levels",
    "enoent",
    "errno",
    "panicked",
    "src/",
    ".rs:",
    "rust",
    "disk image",
];

/// The end of the NAR of a directory.
const NAR_END: &str = "\x01\0\0\0\0\0\0\0)\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0)\0\0\0\0\0\0\0";

/// Checks that an error response reveals nothing, and is short enough for a client to display.
#[track_caller]
fn is_discreet(answer: &Response, root: &Path) {
    assert!(answer.status >= 400, "{}", answer.head);
    let text = format!("{}{}", answer.head, answer.text());
    assert!(!text.contains(root.to_str().unwrap()), "{text}");
    let text = text.to_lowercase();
    for never in NEVER {
        assert!(!text.contains(never), "{never}: {text}");
    }
    // Clients show bodies of less than 1 KiB to their users.
    assert!(answer.body.len() < 1024);
    // Check that the response shows neither the name nor the version of the program.
    assert_eq!(answer.header("server"), None);
}

#[test]
fn absent_paths() {
    let server = ServerProcess::of_store(&sample_root());
    let (absent, present) = (sample("absent"), sample("kinds"));
    let (absent, present) = (hash_part(&absent), hash_part(&present));
    let wrong_hash = "0".repeat(52);
    for target in [
        "/",
        "/index.html",
        "/.narinfo",
        "/x.narinfo",
        "/../../etc/passwd",
        "/nar/../../../../etc/passwd",
        "/log/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/log/%2fetc%2fpasswd",
        "/%00",
        "/%ff%fe",
        "/%zz",
        "/nix/store",
        &format!("/{absent}.narinfo"),
        &format!("/{absent}.ls"),
        &format!("/nar/{absent}.nar"),
        &format!("/nar/{absent}-{wrong_hash}.nar"),
        &format!("/nar/{present}-{wrong_hash}.nar"),
        &format!("/nar/{wrong_hash}.nar?hash={present}"),
        &format!("/nar/{present}.nar.xz"),
        &format!("/log/{absent}-absent.drv"),
        &format!("/log/{present}-kinds"),
        &format!("/realisations/sha256:{}!out.doi", "0".repeat(64)),
        &format!("/build-trace-v2/{absent}-absent.drv/out.doi"),
        &format!("/{}", "a".repeat(4000)),
    ] {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"] {
            is_discreet(&server.request(method, target, &[]), &sample_root());
        }
    }
}

/// Errors of malformed requests reveal nothing.
#[test]
fn malformed_requests() {
    let server = ServerProcess::of_store(&sample_root());
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/3.0\r\nHost: a\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: odd\r\n\r\n",
        &format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(100_000)
        ),
        &format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(100_000)),
    ] {
        is_discreet(&raw(server.addr, request.as_bytes()), &sample_root());
    }
}

#[test]
fn unsatisfiable_ranges() {
    let server = ServerProcess::of_store(&sample_root());
    let url = server.nar_url(&sample("kinds"));
    let answer = server.request("GET", &url, &["Range: bytes=99999999-"]);
    assert_eq!(answer.status, 416);
    is_discreet(&answer, &sample_root());
}

/// Requests all URLs of a path whose files do not match the registration.
#[track_caller]
fn damaged(damage: impl FnOnce(&Path)) {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    let path = store.add(&tree);
    let mut server = ServerProcess::of_store(store.root());
    let nar_url = server.nar_url(&path);
    let real = store.real(&path);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
    damage(&real);
    let listing_url = format!("/{}.ls", hash_part(&path));
    for (method, url) in [
        ("GET", &listing_url),
        ("HEAD", &listing_url),
        ("GET", &nar_url),
        ("HEAD", &nar_url),
    ] {
        let request = format!("{method} {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let text = until_end(&server, request.as_bytes());
        // The damage in a NAR may be found after its head was sent. The connection is then closed.
        let begun = url == &nar_url && (text.is_empty() || text.starts_with("HTTP/1.1 200 "));
        if !begun {
            let answer = server.request(method, url, &[]);
            assert!(matches!(answer.status, 404 | 503), "{method} {url}");
            is_discreet(&answer, store.root());
        } else if method == "GET" {
            assert!(!text.ends_with(NAR_END), "{text:?}");
        }
        assert!(!text.contains(store.root().to_str().unwrap()), "{text}");
    }
    // The details must be in the log.
    let line = server.wait_for("does not match its registration");
    assert!(line.contains(path.rsplit('/').next().unwrap()), "{line}");
    assert!(server.is_alive());
}

#[test]
fn missing_files() {
    damaged(|real| fs::remove_dir_all(real).unwrap());
}

#[test]
fn a_path_that_is_a_special_file() {
    damaged(|real| {
        fs::remove_dir_all(real).unwrap();
        std::os::unix::net::UnixListener::bind(real).unwrap();
    });
}

#[test]
fn a_path_that_contains_a_special_file() {
    damaged(|real| drop(std::os::unix::net::UnixListener::bind(real.join("socket")).unwrap()));
}

/// Requests all URLs while the database is missing or invalid.
#[track_caller]
fn without_database(break_it: impl FnOnce(&Path)) {
    let store = OwnStore::new();
    let path = store.add_file("file", b"content");
    fs::create_dir_all(store.root().join("nix/var/log/nix/drvs")).unwrap();
    let mut server = ServerProcess::of_store(store.root());
    let nar_url = server.nar_url(&path);
    break_it(&store.root().join("nix/var/nix/db"));
    let hash_part = hash_part(&path);
    for url in [
        format!("/{hash_part}.narinfo"),
        format!("/{hash_part}.ls"),
        format!("/log/{hash_part}-file"),
        format!("/{}.narinfo", "z".repeat(32)),
        nar_url,
    ] {
        let answer = server.get(&url);
        // The server may still send responses that are certainly current.
        if answer.status >= 400 {
            is_discreet(&answer, store.root());
        }
    }
    assert_eq!(server.get("/nix-cache-info").status, 200);
    assert!(server.is_alive());
}

#[test]
fn a_missing_database() {
    without_database(|db| fs::rename(db, db.with_file_name("elsewhere")).unwrap());
}

#[test]
fn a_file_that_is_not_a_database() {
    without_database(|db| {
        // Put a new file in its place, as restoring a backup would.
        let new = db.join("new");
        fs::write(&new, vec![b'x'; 64 << 10]).unwrap();
        fs::rename(new, db.join("db.sqlite")).unwrap();
    });
}

#[test]
fn a_directory_in_place_of_the_database() {
    without_database(|db| {
        fs::remove_file(db.join("db.sqlite")).unwrap();
        fs::create_dir(db.join("db.sqlite")).unwrap();
    });
}

/// The log of a path cannot be read: it is damaged, a directory, or a circular link.
#[test]
fn unreadable_logs() {
    let store = OwnStore::new();
    let hash_part = "0".repeat(32);
    let drvs = store.root().join("nix/var/log/nix/drvs/00");
    fs::create_dir_all(&drvs).unwrap();
    let place = |name: &str| drvs.join(format!("{}-{name}", &hash_part[2..]));
    fs::create_dir(place("directory.drv")).unwrap();
    std::os::unix::fs::symlink(place("circle.drv"), place("circle.drv")).unwrap();
    fs::write(place("damaged.drv.bz2"), "this is not bzip2").unwrap();
    let mut server = ServerProcess::of_store(store.root());
    for name in ["directory.drv", "circle.drv"] {
        let answer = server.get(&format!("/log/{hash_part}-{name}"));
        is_discreet(&answer, store.root());
    }
    let answer = server.get(&format!("/log/{hash_part}-damaged.drv"));
    assert_eq!(answer.status, 503);
    is_discreet(&answer, store.root());
    assert!(server.is_alive());
}

/// Sends a request and reads until the connection ends.
fn until_end(server: &ServerProcess, request: &[u8]) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.addr).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// No response shows the prefix at which the server is mounted, or the path of its key file.
#[test]
fn the_command_line_is_in_no_response() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = support::key_pair(dir.path(), "secret-name-1");
    let mut command = nix_serve();
    command
        .args([
            "--store",
            &local(&sample_root()),
            "--path",
            "/hidden-prefix",
        ])
        .env("NIX_SECRET_KEY_FILE", secret);
    let server = ServerProcess::start(&mut command);
    for target in ["/", "/nix-cache-info", "/hidden-prefix/nothing"] {
        let answer = server.get(target);
        is_discreet(&answer, dir.path());
        let text = format!("{}{}", answer.head, answer.text());
        assert!(
            !text.contains("hidden") && !text.contains("secret"),
            "{text}"
        );
    }
}
