//! A client gets the files of a directory with their media types, validators and ranges, and no
//! other files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use samovar_http::{Request, Router};
use samovar_web::{Files, file};
use support::{Connection, get, read, serve};
use tempfile::TempDir;

/// A time at which a file counts as settled, in seconds since 1970, and its text in HTTP.
const TIME: Duration = Duration::from_secs(100);
const DATE: &str = "Thu, 01 Jan 1970 00:01:40 GMT";

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    set_time(path, SystemTime::UNIX_EPOCH + TIME);
}

fn set_time(path: &Path, time: SystemTime) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

/// Returns a directory with `public` and `secret`, and a router that serves the first.
fn example() -> (TempDir, Router) {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("public");
    write(&root.join("index.html"), "<p>start");
    write(&root.join("digits.txt"), "0123456789");
    write(&root.join("docs/index.html"), "<p>docs");
    write(&root.join("docs/a b.css"), "p {}");
    write(&root.join("empty/.keep"), "");
    write(&root.join(".env"), "secret");
    write(&root.join(".well-known/security.txt"), "Contact: a");
    write(&root.join("data"), "x");
    write(&parent.path().join("secret"), "secret");
    symlink("../secret", root.join("out.txt")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    symlink("data", root.join("inside.html")).unwrap();
    let files = Files::new(&root).unwrap();
    let router = router(&files);
    (parent, router)
}

fn router(files: &Files) -> Router {
    Router::new()
        .get("/", files.handler())
        .get("/{*path}", files.handler())
}

#[test]
fn files_have_their_media_types() {
    let (_parent, router) = example();
    for (target, media_type, content) in [
        ("/", "text/html; charset=utf-8", "<p>start"),
        ("/index.html", "text/html; charset=utf-8", "<p>start"),
        ("/digits.txt", "text/plain; charset=utf-8", "0123456789"),
        ("/docs/", "text/html; charset=utf-8", "<p>docs"),
        ("/docs/a%20b.css", "text/css; charset=utf-8", "p {}"),
        ("/data", "application/octet-stream", "x"),
        // The media type is that of the name that the client knows.
        ("/inside.html", "text/html; charset=utf-8", "x"),
        (
            "/.well-known/security.txt",
            "text/plain; charset=utf-8",
            "Contact: a",
        ),
    ] {
        let response = get(&router, target, &[]);
        assert_eq!(
            response.header_text("content-type"),
            Some(media_type),
            "{target}"
        );
        assert_eq!(
            response.header_text("x-content-type-options"),
            Some("nosniff")
        );
        assert_eq!(response.header_text("accept-ranges"), Some("bytes"));
        assert_eq!(response.header_text("last-modified"), Some(DATE));
        assert_eq!(read(response), (200, content.to_owned()), "{target}");
    }
}

#[test]
fn a_directory_without_a_slash_is_redirected() {
    let (_parent, router) = example();
    let response = get(&router, "/docs?a=b", &[]);
    assert_eq!(response.status().code(), 307);
    assert_eq!(response.header_text("location"), Some("./docs/?a=b"));
}

#[test]
fn other_paths_are_absent() {
    let (parent, router) = example();
    for target in [
        "/absent",
        "/digits.txt/",
        "/digits.txt/x",
        "/digits.txt/index.html",
        "/empty/",
        "/../secret",
        "/%2e%2e/secret",
        "/docs/..%2f..%2fsecret",
        "/docs%2findex.html",
        "/docs%2Findex.html",
        "/loop",
        "/docs/../index.html",
        "/%2fetc%2fpasswd",
        "/digits.txt%00",
        "/out.txt",
        "/up/secret",
        "/.env",
        "/empty/.keep",
    ] {
        assert_eq!(get(&router, target, &[]).status().code(), 404, "{target}");
    }
    let long = format!("/{}", "x".repeat(300));
    assert_eq!(get(&router, &long, &[]).status().code(), 404);
    let following = Files::new(parent.path().join("public"))
        .unwrap()
        .follow_links();
    let answer = read(get(&self::router(&following), "/out.txt", &[]));
    assert_eq!(answer, (200, "secret".to_owned()));
}

#[test]
fn a_pipe_is_no_file() {
    let (parent, router) = example();
    let pipe = parent.path().join("public/pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    assert_eq!(get(&router, "/pipe", &[]).status().code(), 404);
}

#[test]
fn a_directory_must_exist() {
    let error = Files::new("/nonexistent").unwrap_err().to_string();
    assert!(error.contains("/nonexistent"), "{error}");
}

#[test]
fn clients_with_the_current_version_get_304() {
    let (parent, router) = example();
    let etag = get(&router, "/digits.txt", &[])
        .header_text("etag")
        .unwrap()
        .to_owned();
    assert!(etag.starts_with('"'), "{etag}");
    let check = |fields: &[(&str, &str)], status: u16| {
        let response = get(&router, "/digits.txt", fields);
        assert_eq!(response.status().code(), status, "{fields:?}");
        response
    };
    let response = check(&[("If-None-Match", &etag)], 304);
    assert_eq!(response.header_text("etag"), Some(&*etag));
    assert_eq!(response.header_text("content-type"), None);
    assert!(response.into_bytes().unwrap().is_empty());
    check(&[("If-Modified-Since", DATE)], 304);
    check(
        &[("If-None-Match", "\"other\""), ("If-Modified-Since", DATE)],
        200,
    );
    check(&[("If-Match", "\"other\"")], 412);
    check(
        &[("If-Unmodified-Since", "Thu, 01 Jan 1970 00:01:39 GMT")],
        412,
    );
    // A file with the same content at another time is another version.
    let path = parent.path().join("public/digits.txt");
    set_time(
        &path,
        SystemTime::UNIX_EPOCH + TIME + Duration::from_nanos(1),
    );
    check(&[("If-None-Match", &etag)], 200);
}

#[test]
fn a_version_is_weak_until_it_is_settled_and_has_no_date_in_a_store() {
    let (parent, router) = example();
    let path = parent.path().join("public/digits.txt");
    set_time(&path, SystemTime::now());
    let response = get(&router, "/digits.txt", &[]);
    let weak = response.header_text("etag").unwrap().to_owned();
    assert!(weak.starts_with("W/\""), "{weak}");
    let range = [("Range", "bytes=1-"), ("If-Range", &*weak)];
    assert_eq!(get(&router, "/digits.txt", &range).status().code(), 200);
    set_time(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1));
    let response = get(&router, "/digits.txt", &[]);
    assert_eq!(response.header_text("last-modified"), None);
    assert!(response.header_text("etag").is_some());
}

#[test]
fn ranges() {
    let (_parent, router) = example();
    let etag = get(&router, "/digits.txt", &[])
        .header_text("etag")
        .unwrap()
        .to_owned();
    let check = |fields: &[(&str, &str)], status: u16, range: Option<&str>, content: &str| {
        let response = get(&router, "/digits.txt", fields);
        assert_eq!(response.header_text("content-range"), range, "{fields:?}");
        assert_eq!(read(response), (status, content.to_owned()), "{fields:?}");
    };
    let all = "0123456789";
    check(&[("Range", "bytes=2-4")], 206, Some("bytes 2-4/10"), "234");
    check(&[("Range", "bytes=-3")], 206, Some("bytes 7-9/10"), "789");
    check(&[("Range", "bytes=8-99")], 206, Some("bytes 8-9/10"), "89");
    check(&[("Range", "lines=1-2")], 200, None, all);
    check(&[("Range", "bytes=0-1,3-4")], 200, None, all);
    let range = ("Range", "bytes=2-4");
    check(
        &[range, ("If-Range", &etag)],
        206,
        Some("bytes 2-4/10"),
        "234",
    );
    check(
        &[range, ("If-Range", DATE)],
        206,
        Some("bytes 2-4/10"),
        "234",
    );
    check(&[range, ("If-Range", "\"other\"")], 200, None, all);
    check(&[range, ("If-None-Match", &etag)], 304, None, "");
    let text = "the file has 10 bytes\n";
    check(&[("Range", "bytes=10-")], 416, Some("bytes */10"), text);
}

#[test]
fn files_pass_over_a_socket() {
    let (parent, router) = example();
    let large = parent.path().join("public/large.bin");
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    fs::write(&large, &content).unwrap();
    set_time(&large, SystemTime::UNIX_EPOCH + TIME);
    let (_server, addr) = serve(router);
    let mut client = Connection::connect(addr);
    assert_eq!(client.get_and_head("/large.bin", &[]).body, content);
    let range = client.request("GET", "/large.bin", &["Range: bytes=1000000-1999999"]);
    assert_eq!(range.status, 206);
    assert_eq!(range.body, content[1_000_000..2_000_000]);
    // RFC 9110, 14.2: "A server MUST ignore a Range header field received with a request method
    // that is unrecognized or for which range handling is not defined."
    let head = client.request("HEAD", "/large.bin", &["Range: bytes=1-2"]);
    assert_eq!((head.status, head.content_length()), (200, 3_000_000));
    let etag = head.header("etag").unwrap().to_owned();
    let cached = client.request("GET", "/large.bin", &[&format!("If-None-Match: {etag}")]);
    assert_eq!((cached.status, cached.body.len()), (304, 0));
}

#[test]
fn one_file_has_a_route_of_its_own() {
    let (parent, _router) = example();
    let path = parent.path().join("public/docs/a b.css");
    let absent = parent.path().join("absent");
    let router = Router::new()
        .get("/style", move |request: &mut Request| file(request, &path))
        .get("/absent", move |request: &mut Request| {
            file(request, &absent)
        });
    let response = get(&router, "/style", &[]);
    assert_eq!(
        response.header_text("content-type"),
        Some("text/css; charset=utf-8")
    );
    assert_eq!(read(response), (200, "p {}".to_owned()));
    assert_eq!(get(&router, "/absent", &[]).status().code(), 404);
}
