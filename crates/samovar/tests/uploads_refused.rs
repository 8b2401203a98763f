//! An upload that breaks a rule is refused with a sentence that states the reason, and leaves no
//! file behind.

mod support;
mod support_uploads;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use support::{File, sample};
use support_uploads::{MadePath, Site, hash, nar_of_depth, nar_of_entry, nar_of_file, send};
use testkit::http1::{Connection, Response};
use testkit::nar::Node;

/// A hash part that no path has.
const OTHER: &str = "00000000000000000000000000000000";

/// Asserts that a response is a refusal with this status. Its text must be one line that contains
/// all of `parts` and, unless the client is not authorised, a fault and a fix.
#[track_caller]
fn assert_refused(response: &Response, status: u16, parts: &[&str]) {
    let text = response.text();
    assert_eq!(response.status, status, "{text}");
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(text.len() < 1024 && text.ends_with('\n'), "{text:?}");
    let has_fix = text.contains("; ") || !matches!(status, 409 | 413 | 422);
    assert!(has_fix, "{text:?}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn uploading_needs_a_token_with_the_right_to_push() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    let revoked = site.token(&["--name", "left"]);
    site.revoke("left");
    let basic = |password: &str| BASE64_STANDARD.encode(format!("ada:{password}"));
    let (elsewhere, reader) = (
        site.token(&["--cache", "other"]),
        site.token(&["--rights", "read", "--name", "looker"]),
    );
    let cases = [
        (String::new(), 401),
        ("Bearer smv1_unknown".to_owned(), 401),
        ("Bearer unknown".to_owned(), 401),
        (format!("Basic {}", basic("smv1_unknown")), 401),
        (format!("Basic {}", basic("secret")), 401),
        (format!("Basic {}", basic("")), 401),
        ("Basic !".to_owned(), 401),
        (format!("Bearer {token}x"), 401),
        (format!("Bearer {}", &token[..token.len() - 1]), 401),
        (format!("Bearer {}", site.expired_token()), 401),
        (format!("Bearer {revoked}"), 401),
        (format!("Basic {}", basic(&revoked)), 401),
        (format!("Bearer {elsewhere}"), 401),
        (format!("Bearer {reader}"), 403),
        (format!("Basic {}", basic(&reader)), 403),
    ];
    let bodies = [
        (path.file_target(), path.file.clone()),
        (path.target(), path.narinfo().into_bytes()),
        (path.listing_target(), b"{}".to_vec()),
        (
            "/nix-cache-info".to_owned(),
            b"StoreDir: /nix/store\n".to_vec(),
        ),
        (format!("/log/{}", &path.store_path[11..]), b"log".to_vec()),
        ("/nowhere".to_owned(), Vec::new()),
    ];
    for (authorization, status) in cases {
        for (target, body) in &bodies {
            for below in ["", "/upload"] {
                let fields = match &*authorization {
                    "" => String::new(),
                    value => format!("Authorization: {value}\r\n"),
                };
                let target = format!("{below}{target}");
                let response = send(server.address, "PUT", &target, &fields, body);
                assert_refused(&response, status, &["token"]);
                let challenge = response.header("WWW-Authenticate").is_some();
                assert_eq!(challenge, status == 401, "{authorization} {target}");
                // The refusal may state how tokens begin, but quotes none.
                let text = response.text().replace("begins with smv1_:", "");
                assert!(!text.contains("smv1_"), "{text}");
            }
        }
    }
    server.assert_lacks(&path);
    assert_eq!(site.files(), BTreeSet::new());
    // Stock clients send the token as the password of a login.
    let fields = format!("Authorization: Basic {}\r\n", basic(&token));
    for (target, body) in &bodies[..2] {
        let response = send(server.address, "PUT", target, &fields, body);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    server.assert_serves(&path);
}

#[test]
fn a_token_revoked_after_the_nar_publishes_nothing() {
    let (site, server, _token) = Site::serving();
    let (path, token) = (MadePath::new("path"), site.token(&["--name", "short"]));
    assert_eq!(
        server.put(&token, &path.file_target(), &path.file).status,
        200
    );
    site.revoke("short");
    let response = server.put(&token, &path.target(), path.narinfo());
    assert_refused(&response, 401, &["token"]);
    server.assert_lacks(&path);
}

#[test]
fn a_narinfo_must_agree_with_the_uploaded_file() {
    let (_site, server, token) = Site::serving();
    let path = MadePath::new("path")
        .containing(&[b'x'; 5000])
        .compressed("zstd");
    assert_eq!(
        server.put(&token, &path.file_target(), &path.file).status,
        200
    );
    let (file, nar) = (hash(&path.file), hash(&path.nar));
    let (file_len, nar_len) = (path.file.len().to_string(), path.nar.len().to_string());
    let other = hash(b"other");
    let sha256 = |hash: &str| format!("sha256:{hash}");
    for (field, found, expected) in [
        ("NarHash", &*sha256(&other), &*sha256(&nar)),
        ("NarHash", &sha256(&file), &sha256(&nar)),
        ("NarSize", "1", &nar_len),
        ("NarSize", &(path.nar.len() + 8).to_string(), &nar_len),
        ("FileHash", &sha256(&other), &sha256(&file)),
        ("FileHash", &sha256(&nar), &sha256(&file)),
        ("FileSize", "1", &file_len),
        ("FileSize", &nar_len, &file_len),
        ("Compression", "none", "zstd"),
        ("Compression", "xz", "zstd"),
        ("URL", "nar/path.nar", ""),
        ("URL", "../nar/path.nar", ""),
        ("URL", &format!("nar/{file}.nar.zst?x"), ""),
        ("URL", &format!("http://127.0.0.1/nar/{file}.nar.zst"), ""),
        ("URL", &format!("/nar/{file}.nar.zst"), ""),
    ] {
        let response = server.put(&token, &path.target(), path.narinfo_with(field, found));
        assert_refused(&response, 422, &[field, found, expected]);
    }
    let text = path.narinfo_with("StorePath", &format!("/nix/store/{OTHER}-path"));
    let response = server.put(&token, &path.target(), text);
    assert_refused(&response, 422, &["StorePath", OTHER, path.hash_part()]);
    // A narinfo with one of these values is refused.
    for (field, found) in [
        ("StorePath", "/nix/store/x"),
        (
            "StorePath",
            "/gnu/store/00000000000000000000000000000000-path",
        ),
        ("StorePath", "/nix/store/../../etc/passwd"),
        ("NarHash", "sha256:x"),
        ("NarHash", "md5:00000000000000000000000000"),
        ("NarSize", "-1"),
        ("NarSize", "99999999999999999999"),
        ("FileSize", "0x10"),
        ("References", "../x"),
        (
            "References",
            "/nix/store/00000000000000000000000000000000-a",
        ),
        ("Compression", "rot13"),
    ] {
        let response = server.put(&token, &path.target(), path.narinfo_with(field, found));
        assert_refused(&response, 422, &["malformed, line", field, found]);
    }
    for field in ["StorePath", "URL", "NarHash", "NarSize"] {
        let without = |text: String| {
            let lines = text.lines().filter(|line| !line.starts_with(field));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        let response = server.put(&token, &path.target(), without(path.narinfo()));
        assert_refused(&response, 422, &[field]);
    }
    for text in [
        "",
        "\n",
        "x",
        "StorePath\n",
        "\0\0\0\0",
        &"Sig: a:\n".repeat(40),
    ] {
        let response = server.put(&token, &path.target(), text);
        assert_refused(&response, 422, &["narinfo"]);
    }
    for address in [
        format!("fixed:r:sha256:{nar}"),
        format!("fixed:sha256:{nar}"),
        format!("text:sha256:{nar}"),
    ] {
        let text = format!("{}CA: {address}\n", path.narinfo());
        let response = server.put(&token, &path.target(), text);
        assert_refused(&response, 422, &["CA", &address, "StorePath"]);
    }
    let narinfo = server.get(&path.target());
    assert_eq!(narinfo.status, 404, "{}", narinfo.text());
    server.assert_lacks(&path);
    server.publish(&token, &path);
    server.assert_serves(&path);
}

#[test]
fn a_narinfo_without_its_file_is_refused() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    let response = server.put(&token, &path.target(), path.narinfo());
    assert_refused(
        &response,
        409,
        &["URL", &path.url(), "upload the NAR first"],
    );
    server.assert_lacks(&path);
    assert_eq!(site.files(), BTreeSet::new());
}

#[test]
fn a_missing_reference_is_named() {
    let (_site, server, token) = Site::serving();
    let below = MadePath::new("below");
    let above = MadePath::new("above")
        .referring_to(&below.store_path)
        .referring_to(&format!(
            "/nix/store/{}-above",
            MadePath::new("above").hash_part()
        ));
    assert_eq!(
        server.put(&token, &above.file_target(), &above.file).status,
        200
    );
    let response = server.put(&token, &above.target(), above.narinfo());
    // The text names at least the base name of the missing reference.
    assert_refused(
        &response,
        409,
        &[&below.store_path[11..], "above", "--refresh"],
    );
    server.assert_lacks(&above);
    // A path with the same hash part but another name is not the reference.
    let twin = format!("/nix/store/{}-other", below.hash_part());
    server.publish(&token, &below);
    let wrong = MadePath::new("wrong").referring_to(&twin);
    assert_eq!(
        server.put(&token, &wrong.file_target(), &wrong.file).status,
        200
    );
    let response = server.put(&token, &wrong.target(), wrong.narinfo());
    assert_refused(&response, 409, &[&twin[11..], "--refresh"]);
    server.assert_lacks(&wrong);
    server.publish(&token, &above);
    server.assert_serves(&above);
}

/// The live Nix store may contain a reference, but its name must match, too.
#[test]
fn a_reference_may_be_in_the_live_store() {
    let (site, _, _) = Site::serving();
    site.configure(&support::sample_store(), "");
    let server = site.start();
    let token = site.token(&[]);
    let tree = sample("tree");
    let path = MadePath::new("path").referring_to(&tree);
    server.publish(&token, &path);
    server.assert_serves(&path);
    let absent = MadePath::new("other").referring_to(&sample("not_valid"));
    assert_eq!(
        server
            .put(&token, &absent.file_target(), &absent.file)
            .status,
        200
    );
    let response = server.put(&token, &absent.target(), absent.narinfo());
    assert_refused(&response, 409, &[&sample("not_valid")[11..], "--refresh"]);
}

/// A body that is not a NAR in the compression of its name is refused, and leaves no file behind.
#[test]
fn a_body_must_be_one_whole_nar() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path").containing(&b"content ".repeat(20_000));
    let put = |suffix: &str, body: &[u8]| {
        let target = format!("/nar/{}.nar{suffix}", hash(body));
        let response = server.put(&token, &target, body);
        assert_refused(&response, 422, &[]);
        for method in ["HEAD", "GET"] {
            assert_eq!(
                server.request(method, &target, &token).status,
                404,
                "{target}"
            );
        }
        assert_eq!(site.files(), BTreeSet::new(), "{target}");
        response.text()
    };
    for (compression, suffix) in [("zstd", ".zst"), ("xz", ".xz"), ("gzip", ""), ("none", "")] {
        let path = match compression {
            "none" => path.clone(),
            _ => path.clone().compressed(compression),
        };
        let len = path.file.len();
        for end in [1, len / 2, len - 1] {
            put(suffix, &path.file[..end]);
        }
        put(suffix, &[&path.file[..], b"x"].concat());
        put(suffix, &[&path.file[..], &[0; 8]].concat());
        put(suffix, &[&path.file[..], &path.file[..]].concat());
        for at in [0, len / 3, len / 2, len - 2] {
            let mut corrupt = path.file.clone();
            corrupt[at] ^= 0x55;
            // In an uncompressed NAR, a changed byte of the content only makes another valid NAR.
            if compression != "none" || at == 0 || at == len - 2 {
                put(suffix, &corrupt);
            }
        }
    }
    for (suffix, body) in [
        ("", &b""[..]),
        (".xz", b""),
        (".zst", b""),
        ("", b"nix-archive-1"),
        (".zst", &path.nar),
        (".br", b"x"),
        (".bz2", b"BZh91AY&SY"),
        (".lz4", b"x"),
        (".lzip", b"x"),
    ] {
        put(suffix, body);
    }
    for name in ["..", ".", "", "a/b", "/etc", "../x", "a\0b"] {
        let text = put("", &nar_of_entry(name.as_bytes()));
        assert!(text.contains("NAR"), "{text}");
    }
    let mut executable = nar_of_file(b"x");
    executable.truncate(executable.len() - 8);
    put("", &executable);
    // Upload a complete NAR under the name of another file.
    let target = format!("/nar/{}.nar", hash(b"other"));
    let response = server.put(&token, &target, &path.nar);
    assert_refused(&response, 422, &[&hash(b"other"), &hash(&path.nar)]);
    assert_eq!(server.request("HEAD", &target, &token).status, 404);
    assert_eq!(site.files(), BTreeSet::new());
    server.publish(&token, &path);
}

#[test]
fn deep_paths_and_duplicate_names_are_refused() {
    let (site, server, token) = Site::serving();
    let two = Node::<Vec<u8>>::dir([("aaaa", Node::file("")), ("bbbb", Node::file(""))]).nar();
    let at = two.windows(4).position(|window| window == b"bbbb").unwrap();
    let second = |name| [&two[..at], name, &two[at + 4..]].concat();
    for nar in [second(b"aaaa"), second(b"0000"), nar_of_depth(64)] {
        let response = server.put(&token, &format!("/nar/{}.nar", hash(&nar)), &nar);
        let is_deep = nar.starts_with(&nar_of_depth(64)[..400]);
        let advice = ["make the NAR", "64 names or more, which Nix refuses; move"];
        assert_refused(&response, 422, &[advice[usize::from(is_deep)]]);
        assert_eq!(site.files(), BTreeSet::new());
    }
    for nar in [nar_of_depth(63), two] {
        let (file, path) = (nar.clone(), MadePath::new(&hash(&nar)));
        server.publish(&token, &MadePath { nar, file, ..path });
    }
}

/// If a client disconnects in the middle of a body, the server keeps nothing of it.
#[test]
fn a_body_that_never_ends_is_not_kept() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path").containing(&[7; 3_000_000]);
    let mut connection = Connection::connect(server.address);
    connection.send(format!(
        "PUT {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        path.file_target(),
        path.file.len()
    ));
    connection.send(&path.file[..2_000_000]);
    testkit::eventually("the body is being written", || !site.files().is_empty());
    assert_eq!(
        server.request("HEAD", &path.file_target(), &token).status,
        404
    );
    drop(connection);
    testkit::eventually("it is removed", || site.files().is_empty());
    server.assert_lacks(&path);
    server.publish(&token, &path);
    server.assert_serves(&path);
}

#[test]
fn a_narinfo_has_at_most_one_mebibyte() {
    let (_site, server, token) = Site::serving();
    let path = MadePath::new("path");
    assert_eq!(
        server.put(&token, &path.file_target(), &path.file).status,
        200
    );
    let padded = |len: usize| {
        let mut text = path.narinfo() + "Unknown: ";
        text.push_str(&"x".repeat(len - text.len() - 1));
        text + "\n"
    };
    let response = server.put(&token, &path.target(), padded((1 << 20) + 1));
    assert_refused(&response, 413, &["1048576"]);
    server.assert_lacks(&path);
    let response = server.put(&token, &path.target(), padded(1 << 20));
    assert_eq!(response.status, 200, "{}", response.text());
    server.assert_serves(&path);
}

/// A client cannot get a file of another client by knowing its hash.
#[test]
fn a_file_of_another_token_is_invisible() {
    let (site, server, token) = Site::serving();
    let other = site.token(&["--name", "other"]);
    let path = MadePath::new("path").compressed("zstd");
    assert_eq!(
        server.put(&token, &path.file_target(), &path.file).status,
        200
    );
    let absent = MadePath::new("absent").compressed("zstd");
    for below in ["", "/upload"] {
        for method in ["HEAD", "GET"] {
            let status = |token: &str, path: &MadePath| {
                let target = format!("{below}{}", path.file_target());
                server.request(method, &target, token).status
            };
            assert_eq!(status(&token, &path), 200);
            assert_eq!(status("", &path), 404);
            assert_eq!(status(&other, &path), 404);
        }
    }
    let link = |path: &MadePath| {
        let response = server.put(&other, &path.target(), path.narinfo());
        (response.status, response.text().replace(&path.url(), "URL"))
    };
    assert_eq!(link(&path), link(&absent));
    assert_eq!(link(&path).0, 409);
    server.assert_lacks(&path);
    // After the other client has uploaded the same file, it may use the file, too.
    server.publish(&other, &path);
    server.assert_serves(&path);
    // Every client that may read a published file may use it for other paths.
    let mut third = MadePath::new("third")
        .containing(b"path")
        .compressed("zstd");
    third.file.clone_from(&path.file);
    let reader = site.token(&["--name", "third"]);
    let response = server.put(&reader, &third.target(), third.narinfo());
    assert_eq!(response.status, 200, "{}", response.text());
    server.assert_serves(&third);
}

/// The same NAR in another compression is another file, which only its sender can use. The narinfo
/// of the published path does not change.
#[test]
fn a_file_has_the_hash_of_its_name() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path").containing(&[b'x'; 5000]);
    server.publish(&token, &path.clone().compressed("zstd"));
    let (files, narinfo) = (site.files(), server.get(&path.target()).text());
    for compression in ["none", "gzip", "xz"] {
        let alias = match compression {
            "none" => path.clone(),
            _ => path.clone().compressed(compression),
        };
        server.publish(&token, &alias);
        assert_eq!(server.get(&alias.target()).text(), narinfo);
        assert_eq!(
            server.request("HEAD", &alias.file_target(), &token).status,
            200
        );
        let response = server.request("GET", &alias.file_target(), &token);
        assert_eq!((response.status, response.body), (200, alias.file.clone()));
        let response = server.request("GET", &alias.file_target(), "");
        assert_eq!(response.status, 404, "{compression}");
    }
    assert!(site.files().is_superset(&files));
}

/// If two builds of a path are uploaded, the first one stays.
#[test]
fn a_published_path_never_changes() {
    let (site, server, token) = Site::serving();
    let other = site.token(&["--name", "other"]);
    let path = MadePath::new("path");
    server.publish(&token, &path);
    let narinfo = server.get(&path.target()).text();
    for token in [&token, &other] {
        let twin = path.clone().containing(b"another build");
        let file = server.put(token, &twin.file_target(), &twin.file);
        assert_eq!(file.status, 200, "{}", file.text());
        // The second upload succeeds, because the client cannot do anything about the difference.
        let response = server.put(token, &twin.target(), twin.narinfo());
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.text().contains("stays"), "{}", response.text());
        assert_eq!(server.get(&path.target()).text(), narinfo);
        server.assert_serves(&path);
    }
}

#[test]
fn encoded_bodies_and_other_requests_are_refused() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    let narinfo = path.narinfo();
    let (file, narinfo) = (
        (path.file_target(), &path.file[..]),
        (path.target(), narinfo.as_bytes()),
    );
    let listing = (path.listing_target(), &b"{}"[..]);
    for (encoding, (target, body), text) in [
        ("gzip", &file, "suffix of the URL"),
        ("identity", &file, "suffix of the URL"),
        ("bzip2", &narinfo, "narinfo-compression"),
        ("deflate", &listing, "ls-compression"),
        ("zstd, gzip", &narinfo, "\"zstd, gzip\""),
        ("", &narinfo, "\"\""),
    ] {
        let fields = format!("Authorization: Bearer {token}\r\nContent-Encoding: {encoding}\r\n");
        let response = send(server.address, "PUT", target, &fields, body);
        assert_refused(&response, 415, &["Content-Encoding", text]);
    }
    let cache_info = |text: &str| server.put(&token, "/upload/nix-cache-info", text);
    assert_eq!(cache_info("StoreDir: /nix/store\n").status, 200);
    let response = cache_info("StoreDir: /gnu/store\n");
    assert_refused(&response, 409, &["/gnu/store", "/nix/store"]);
    for text in ["", "garbage", "\u{fffd}", "Priority: 40\n"] {
        let response = cache_info(text);
        assert_refused(
            &response,
            422,
            &["no field StoreDir", "StoreDir: /nix/store"],
        );
    }
    for target in [
        "/nowhere",
        "/upload",
        "/upload/",
        "/upload/upload/nix-cache-info",
        "/nar/x.nar",
        "/realisations/sha256:0!out.doi",
        "/build-trace-v2/x.drv/out.doi",
    ] {
        assert_eq!(server.put(&token, target, "x").status, 404, "{target}");
    }
    for method in ["POST", "DELETE", "PATCH", "OPTIONS"] {
        for target in [path.target(), path.file_target()] {
            let target = format!("/upload{target}");
            assert_eq!(
                server.request(method, &target, &token).status,
                405,
                "{method}"
            );
        }
    }
    for (method, target) in [("POST", path.file_target()), ("DELETE", path.target())] {
        let response = server.request(method, &target, &token);
        let parts = [
            "GET, HEAD and PUT",
            "POST is for URLs below upload/push/",
            "upload/pin/",
        ];
        assert_refused(&response, 405, &parts);
        let allowed = response.header("Allow");
        assert_eq!(allowed, Some("GET, HEAD, PUT"), "{method}");
    }
    server.assert_lacks(&path);
    assert_eq!(site.files(), BTreeSet::new());
}

#[test]
fn a_cache_without_storage_takes_no_uploads() {
    let file = File::new("admin.listen = []\n");
    let (_server, address) = support::serve(&file);
    let path = MadePath::new("path");
    for target in [
        path.file_target(),
        path.target(),
        "/nix-cache-info".to_owned(),
    ] {
        let response = send(
            address.parse().unwrap(),
            "PUT",
            &target,
            "Authorization: Bearer smv1_x\r\n",
            &path.file,
        );
        assert_eq!(response.status, 405, "{target}: {}", response.text());
    }
}
