//! `samovar push` uploads closures to servers that do not support the push protocol, as a stock Nix
//! client does. It takes the token from each source, and survives a restart of the server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use support::{sample, sample_root, sample_store, secret_file};
use support_push::proxy::without_protocol;
use support_push::{
    Pusher, assert_copies_back, closure, count, exits_with, noise, overwrite, words,
};
use support_uploads::Site;
use testkit::eventually;
use testkit::faults::{FaultProxy, Faults};
use testkit::nix::{OwnStore, key_pair, local};
use testkit::process::{output, wait};

/// Returns paths that refer to each other and to themselves, with content addresses and all kinds
/// of files.
fn samples() -> Vec<String> {
    let names = ["self_reference", "fixed", "text", "ca", "kinds"];
    let names = names.iter().chain(&["odd", "signed", "empty", "built"]);
    names.map(|name| sample(name)).collect()
}

#[test]
fn a_closure_is_pushed_once_and_copied_back() {
    let site = Site::new();
    let server = site.start();
    let proxy = without_protocol(server.address);
    let (url, paths) = (proxy.url(), samples());
    let all = closure(&sample_root(), &paths).len();
    let pusher = Pusher::new(&sample_store(), &site.token(&[]));

    let listed = pusher.report(&url, &[&["--dry-run"], &words(&paths)[..]].concat());
    assert_eq!(count(&listed, "pushed"), all);
    assert!(site.files().is_empty());

    let report = pusher.report(&url, &words(&paths));
    assert_eq!(
        (count(&report, "pushed"), count(&report, "present")),
        (all, 0)
    );
    assert_copies_back(&server.url(), &site.public_key, &sample_root(), &paths);

    // A second push, to the URL with `/upload`, sends nothing.
    let files = site.files();
    let report = pusher.report(&format!("{url}/upload"), &words(&paths));
    assert_eq!(
        (count(&report, "pushed"), count(&report, "present")),
        (0, all)
    );
    assert_eq!(report["sentSize"], 0);
    assert_eq!(site.files(), files);
    let text = output(&mut pusher.push(&url, &words(&paths)));
    assert!(text.starts_with("pushed 0 paths, "), "{text}");
    assert!(
        text.contains(&format!(" sent, {all} already in the cache; ")),
        "{text}"
    );
}

#[test]
fn credentials_come_from_each_source() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let store = OwnStore::new();
    let pusher = Pusher::new(&local(store.root()), &token);
    let mut number = 0;
    let mut path = || {
        number += 1;
        store.add_file(&format!("file-{number}"), b"text")
    };
    output(&mut pusher.push(&server.url(), &[&path()]));
    let mut by_variable = pusher.without_token(&server.url());
    output(by_variable.arg(path()).env("SAMOVAR_TOKEN", &token));
    let with_login = server.url().replace("//", &format!("//ci:{token}@"));
    output(pusher.without_token(&with_login).arg(path()));
    let line = format!("machine 127.0.0.1 login ci password {token}\n");
    let netrc = secret_file(pusher.home(), "other", &line);
    let mut by_file = pusher.without_token(&server.url());
    output(by_file.arg("--netrc-file").arg(netrc).arg(path()));
    // The token is in the netrc file that Nix uses.
    secret_file(pusher.home(), "netrc", &line);
    output(pusher.without_token(&server.url()).arg(path()));
}

#[test]
fn a_wrong_token_is_refused_in_one_sentence() {
    let site = Site::new();
    let server = site.start();
    let path = sample("self_reference");
    let pusher = Pusher::new(&sample_store(), "smv1_wrong");
    for command in [
        &mut pusher.push(&server.url(), &[&path]),
        pusher.without_token(&server.url()).arg(&path),
    ] {
        let text = exits_with(command, 1);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("the cache refused") && text.contains("401"),
            "{text}"
        );
        assert!(!text.contains("smv1_wrong"), "{text}");
    }
    assert!(site.files().is_empty());
}

#[test]
fn paths_that_cannot_be_pushed_are_listed_and_the_others_are_pushed() {
    let site = Site::new();
    let server = site.start();
    let url = without_protocol(server.address).url();
    let store = OwnStore::new();
    let (good, bad) = (
        store.add_file("good", b"good"),
        store.add_file("bad", b"bad"),
    );
    overwrite(&store.real(&bad), b"BAD");
    let token = site.token(&[]);
    let pusher = Pusher::new(&local(store.root()), &token);
    let text = exits_with(&mut pusher.push(&url, &[&good, &bad]), 1);
    assert!(
        text.contains(&format!("failed {bad}: unreadable: its files differ")),
        "{text}"
    );
    assert!(
        text.contains("\npushed 1 path, ") && text.contains(", 1 failed; "),
        "{text}"
    );
    assert_eq!(
        server.get(&format!("/{}.narinfo", &good[11..43])).status,
        200
    );
    assert_eq!(
        server.get(&format!("/{}.narinfo", &bad[11..43])).status,
        404
    );

    // Without its closure, a path is refused if the cache lacks one of its references.
    let pusher = Pusher::new(&sample_store(), &token);
    let path = sample("text");
    let text = exits_with(&mut pusher.push(&url, &["--no-closure", &path]), 1);
    assert!(
        text.contains(&format!("failed {path}: the cache refused it: 409")),
        "{text}"
    );

    let absent = "/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-absent";
    let text = exits_with(&mut pusher.push(&url, &[absent]), 1);
    assert!(text.contains("is not in the store"), "{text}");
}

#[test]
fn excluded_and_signed_paths_are_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let url = format!(
        "http://{}",
        plain_server(dir.path().to_owned(), Arc::clone(&requests))
    );
    let store = OwnStore::new();
    let add = |name: &str| store.add_file(name, name.as_bytes());
    let paths = ["app", "app-debug", "signed"].map(add);
    let (key, _) = key_pair(store.root(), "upstream-1");
    let key = key.to_str().unwrap();
    store.run(
        "nix",
        &["store", "sign", "--key-file", key, paths[2].as_str()],
    );
    let pusher = Pusher::new(&local(store.root()), "unused");
    let leave_out = ["--exclude", "*-debug", "--skip-signed-by", "upstream-1"];
    let report = pusher.report(&url, &[&leave_out, &words(&paths)[..]].concat());
    assert_eq!(report["pushed"], serde_json::json!([paths[0]]));
    assert_eq!(report["excluded"], 2);
    let text = output(&mut pusher.push(&url, &[&leave_out, &words(&paths)[..]].concat()));
    assert!(
        text.contains(", 1 already in the cache, 2 excluded; "),
        "{text}"
    );
    let report = pusher.report(&url, &words(&paths));
    assert_eq!(count(&report, "pushed"), 2);
    // Each of the three pushes requests nix-cache-info once here and once below /upload.
    let requests = requests.lock().unwrap();
    let of_info = requests
        .iter()
        .filter(|line| line.contains("get /nix-cache-info"));
    assert_eq!(of_info.count(), 3);
}

#[test]
fn a_restart_of_the_server_is_survived() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let paths: Vec<String> = (0..12)
        .map(|number| store.add_file(&format!("file-{number}"), &noise(number, 200_000)))
        .collect();
    // The compressed file is too long to be sent from memory.
    let large = store.add_file("large", &noise(99, 3 << 20));
    let paths = [paths, vec![large]].concat();
    let proxy = FaultProxy::start(server.address);
    proxy.set(Faults::reset_requests(2 << 20).in_total());
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let mut command = pusher.push(&proxy.url(), &["--json"]);
    command.args(&paths);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    eventually("the push is interrupted", || proxy.cut_count() > 0);
    server.process.terminate();
    let server = site.start();
    proxy.redirect(server.address);
    proxy.set(Faults::NONE);
    let done = wait(child, &command);
    let text = String::from_utf8(done.stdout).unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}{error}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(count(&report, "pushed"), paths.len());
    assert_copies_back(&server.url(), &site.public_key, store.root(), &paths);
}

/// Starts a web server that accepts every PUT into one directory without a check. Adds the head of
/// each request, in lower case, to `requests`.
fn plain_server(dir: PathBuf, requests: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (dir, requests) = (dir.clone(), Arc::clone(&requests));
            std::thread::spawn(move || while_open(&stream.unwrap(), &dir, &requests));
        }
    });
    address
}

/// Answers the requests of one connection until it is closed.
fn while_open(mut stream: &TcpStream, dir: &Path, requests: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        requests.lock().unwrap().push(head.clone());
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let len = field("content-length: ").map_or(0, |len| len.parse().unwrap());
        if field("expect: ").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).unwrap();
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let file = dir.join(&target[1..]);
        let (status, content) = match method {
            "put" => {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, body).unwrap();
                ("201 Created", Vec::new())
            }
            "get" | "head" => match fs::read(file) {
                Ok(content) => ("200 OK", content),
                Err(_) => ("404 Not Found", Vec::new()),
            },
            _ => ("405 Method Not Allowed", Vec::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
            content.len()
        );
        let content = if method == "head" {
            Vec::new()
        } else {
            content
        };
        stream
            .write_all(&[head.as_bytes(), &content].concat())
            .unwrap();
    }
}

#[test]
fn any_server_that_takes_put_becomes_a_cache() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!(
        "http://{}",
        plain_server(dir.path().to_owned(), Arc::default())
    );
    let (paths, pusher) = (samples(), Pusher::new(&sample_store(), "unused"));
    let report = pusher.report(&url, &words(&paths));
    let all = closure(&sample_root(), &paths).len();
    assert_eq!(count(&report, "pushed"), all);
    for from in [&url, &format!("file://{}", dir.path().display())] {
        assert_copies_back(from, "", &sample_root(), &paths);
    }
    // Long files are compressed as several frames and sent from a temporary file.
    let store = OwnStore::new();
    let long = [noise(7, 3 << 20), vec![b'a'; 6 << 20]].concat();
    let paths = [store.add_file("long", &long)];
    let pusher = Pusher::new(&local(store.root()), "unused");
    assert_eq!(count(&pusher.report(&url, &words(&paths)), "pushed"), 1);
    assert_copies_back(&url, "", store.root(), &paths);
}
