//! `samovar profile` counts a tree exactly, survives hostile ones, and changes nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_files;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use support::{File, samovar, secret_file};
use support_files::Files;
use testkit::closed_port::ClosedPort;
use testkit::content::Content;
use testkit::nar::{Content as _, Node};
use testkit::small_files::small_files;

fn profile(root: &Path, options: &[&str]) -> Output {
    let mut command = samovar();
    command.arg("profile").arg(root).args(options);
    command.output().unwrap()
}

#[track_caller]
fn profiled(root: &Path, options: &[&str]) -> Value {
    let output = profile(root, &[&["--json"], options].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn text_of(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn sizes(node: &Node<Content>) -> Vec<u64> {
    match node {
        Node::Link(_) => Vec::new(),
        Node::File { content, .. } => vec![content.size()],
        Node::Dir(entries) => entries.values().flat_map(sizes).collect(),
    }
}

/// Returns the number of entries of the largest directory.
fn largest(node: &Node<Content>) -> usize {
    let Node::Dir(entries) = node else {
        return 0;
    };
    let below = entries.values().map(largest).max().unwrap_or_default();
    entries.len().max(below)
}

#[test]
fn a_generated_tree_is_counted_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    let tree = small_files(40);
    tree.write_tree(&root).unwrap();
    let mut sizes = sizes(&tree);
    sizes.sort_unstable();
    let profiled = profiled(&root, &[]);
    assert_eq!(profiled["files"], sizes.len());
    assert_eq!(profiled["bytes"], sizes.iter().sum::<u64>());
    assert_eq!(profiled["medianSize"], sizes[(sizes.len() - 1) / 2]);
    assert_eq!(profiled["directories"], 95);
    assert_eq!(profiled["symlinks"], 1);
    assert_eq!(profiled["emptyFiles"], 1);
    assert_eq!(profiled["narSize"], tree.nar().len());
    assert_eq!(profiled["largestDirectory"]["entries"], largest(&tree));
    let mut counted = 0;
    for bin in profiled["histogram"].as_array().unwrap() {
        counted += bin["files"].as_u64().unwrap();
        let upper = bin["upTo"].as_u64().unwrap_or(u64::MAX);
        let expected = sizes.iter().filter(|size| **size <= upper).count();
        assert_eq!(counted, expected as u64, "{bin}");
    }
    let text = text_of(profile(&root, &["--rtt-ms", "2", "--top", "3"]));
    for part in [
        "up to 1,248 ",
        "for a round trip of 2 ms",
        "install, NFS sync",
        " × 10.6 ms",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[track_caller]
fn seconds(profiled: &Value, id: &str) -> f64 {
    let predictions = profiled["predictions"].as_array().unwrap();
    let prediction = predictions.iter().find(|it| it["id"] == id);
    prediction.unwrap()["seconds"].as_f64().unwrap()
}

#[test]
fn copies_and_cold_reads_are_predicted_from_files_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    small_files(400).write_tree(&root).unwrap();
    let options = ["--rtt-ms", "2", "--flush-ms", "5", "--mbit", "100"];
    let profiled = profiled(&root, &options);
    let number = |name: &str| profiled[name].as_f64().unwrap();
    let (files, directories) = (number("files"), number("directories"));
    let transfer = number("bytes") * 8.0 / 100e6;
    let copy = files * 0.000_083 + (4.0 * files + 2.0 * directories) * 0.002 + transfer;
    let flushes = (4.0 * files + 2.0 * directories) * 0.005;
    let read = files * 0.000_1 + (3.0 * files + 3.0 * directories) * 0.002 + transfer;
    for (id, expected) in [
        ("copy-nfs-async", copy),
        ("copy-nfs-sync", copy + flushes),
        ("read-nfs-cold", read),
    ] {
        let predicted = seconds(&profiled, id);
        assert!(
            (predicted - expected).abs() < 1e-9,
            "{id}: {predicted} {expected}"
        );
    }
    let text = text_of(profile(&root, &options));
    let rpcs = format!("(4 × {files} + 2 × {directories}) RPCs × 2 ms");
    assert!(text.contains(&rpcs), "{text}");
    let flushes = format!("(4 × {files} + 2 × {directories}) flushes × 5 ms");
    assert!(text.contains(&flushes), "{text}");
}

#[test]
fn only_what_can_be_generated_again_for_certain_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    for (path, is_certain) in [
        ("app/node_modules", true),
        ("crate/target", true),
        ("old/node_modules", false),
        ("shop/target", false),
        ("tagged/output", true),
    ] {
        let sub = dir.path().join(path);
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join("file"), "x").unwrap();
        let (beside, inside) = match path {
            _ if !is_certain => ("README", "other"),
            "app/node_modules" => ("package.json", "other"),
            "crate/target" => ("Cargo.toml", "other"),
            _ => ("README", "CACHEDIR.TAG"),
        };
        let signature = "Signature: 8a477f597d28d172789f06886806bc55";
        fs::write(sub.join(inside), signature).unwrap();
        fs::write(sub.with_file_name(beside), "").unwrap();
    }
    // A manifest that is no file is no manifest.
    symlink("README", dir.path().join("shop/Cargo.toml")).unwrap();
    let profiled = profiled(dir.path(), &[]);
    assert_eq!(profiled["regenerableFiles"], 6);
    let text = text_of(profile(dir.path(), &[]));
    let marked = text
        .lines()
        .filter_map(|line| line.strip_suffix(" (can be generated again)"));
    let mut marked: Vec<_> = marked
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    marked.sort_unstable();
    assert_eq!(
        marked,
        ["app/node_modules", "crate/target", "tagged/output"]
    );
}

/// Returns an address that forwards one connection to `server`, and refuses all others.
fn one_connection(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        drop(listener);
        let server = TcpStream::connect(server).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| io::copy(&mut &client, &mut &server));
            io::copy(&mut &server, &mut &client).unwrap();
        });
    });
    address
}

#[test]
fn the_round_trip_to_a_server_is_measured_over_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let (line, token) = support::token("ada");
    let file = File::new("");
    let folder = file.path.parent().unwrap();
    let tokens = secret_file(folder, "tokens", &line);
    let token = secret_file(folder, "token", &token);
    file.write(&format!("[access]\ntokens-file = {tokens:?}\n"));
    let server = file.serve();
    let address = server.wait_for_address();
    let url = format!("http://{}", one_connection(address));
    let login = ["--token-file", token.to_str().unwrap()];
    let profiled = profiled(dir.path(), &[&["--server", &url], &login[..]].concat());
    let rtt = profiled["server"]["rttSeconds"].as_f64().unwrap();
    assert!(rtt > 0.0 && rtt < 60.0, "{profiled}");
    assert_eq!(profiled["server"]["url"], url);
    assert_eq!(profiled["assumed"]["rttSeconds"], rtt);
    let waits = seconds(&profiled, "read-nfs") - seconds(&profiled, "read-local");
    assert!((waits - 2.0 * rtt).abs() < 1e-9, "{profiled}");

    let url = format!("http://{address}");
    let text = text_of(profile(
        dir.path(),
        &[&["--server", &url], &login[..]].concat(),
    ));
    assert!(text.contains(&format!("Round trip to {url}: ")), "{text}");
    let output = profile(dir.path(), &["--server", &url]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the cache is private"), "{error}");
}

#[test]
fn a_server_that_cannot_be_measured_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let closed = ClosedPort::new();
    let rule = |head: &'static str| -> SocketAddr {
        let rule = move |_: &str, _: &str, _| Some((head.into(), b"StoreDir: /nix/store\n".into()));
        Files::serve(Path::new("/"), Box::new(rule)).0
    };
    let redirect = |_: &str, path: &str, _| {
        let head = match path {
            "/nix-cache-info" => "302 Found\r\nLocation: /other/nix-cache-info",
            _ => "200 OK",
        };
        Some((head.into(), b"StoreDir: /nix/store\n".into()))
    };
    let redirecting = Files::serve(Path::new("/"), Box::new(redirect)).0;
    for (address, reason) in [
        (closed.addr(), "cannot be reached (connection refused)"),
        (redirecting, "redirects requests to another URL"),
        (rule("404 Not Found"), "a binary cache?"),
        (
            rule("200 OK\r\nConnection: close"),
            "closes the connection after each response",
        ),
    ] {
        let output = profile(dir.path(), &["--server", &format!("http://{address}")]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(reason), "{error}");
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn hostile_entries_are_counted_without_being_opened() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xff\n\x1b[2J")), "12345").unwrap();
    fs::hard_link(
        root.join(OsStr::from_bytes(b"\xff\n\x1b[2J")),
        root.join("sub/other-name"),
    )
    .unwrap();
    symlink("..", root.join("sub/up")).unwrap();
    symlink("/", root.join("system")).unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let fifo = root.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let profiled = profiled(&root, &[]);
    assert_eq!(profiled["files"], 2);
    assert_eq!(profiled["bytes"], 5 + (1_u64 << 40));
    assert_eq!(profiled["hardLinks"], 1);
    assert_eq!(profiled["symlinks"], 2);
    assert_eq!(profiled["specialFiles"], 2);
    assert_eq!(profiled["directories"], 2);
}

#[test]
fn names_cannot_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let evil = dir.path().join(OsStr::from_bytes(b"\xff\x1b[2J\nfake"));
    fs::create_dir(&evil).unwrap();
    fs::write(evil.join("a"), "").unwrap();
    fs::write(evil.join("b"), "").unwrap();
    let text = text_of(profile(dir.path(), &[]));
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains("\\xFF\\u{1b}[2J\\nfake"), "{text}");
}

#[test]
fn an_unreadable_directory_is_named_and_the_rest_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    for name in ["closed", "open"] {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join("file"), "x").unwrap();
    }
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&root.join("closed"), 0o000);
    let mut command = samovar();
    if rustix::process::geteuid().is_root() {
        // Permissions do not apply to root. The user nobody may have no access to the build
        // directory, so copy the binary.
        set_mode(dir.path(), 0o755);
        let binary = dir.path().join("samovar");
        fs::copy(env!("CARGO_BIN_EXE_samovar"), &binary).unwrap();
        command = support::bare(binary.to_str().unwrap());
        command.uid(65_534).gid(65_534);
    }
    let output = command.arg("profile").arg(&root).output().unwrap();
    set_mode(&root.join("closed"), 0o700);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("1 file, 2 directories"), "{text}");
    let problem = "  closed: reading the tree failed: permission denied";
    assert!(text.contains(problem), "{text}");
}

#[test]
fn mounted_file_systems_are_not_entered() {
    let device = |path: &str| fs::metadata(path).unwrap().dev();
    if device("/dev") == device("/dev/shm") {
        return;
    }
    let output = profile(Path::new("/dev"), &["--json"]);
    let profiled: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(profiled["mountPoints"].as_u64() >= Some(1), "{profiled}");
}

#[test]
fn a_tree_may_change_while_it_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..50 {
        let sub = dir.path().join(format!("{number}"));
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("stays"), "x").unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                for number in 0..50 {
                    let sub = dir.path().join(format!("{number}/goes"));
                    fs::create_dir(&sub).unwrap();
                    fs::write(sub.join("file"), "xyz").unwrap();
                    fs::remove_dir_all(&sub).unwrap();
                }
            }
        });
        let counts: Vec<Output> = (0..10).map(|_| profile(dir.path(), &["--json"])).collect();
        is_done.store(true, Ordering::Relaxed);
        for output in counts {
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let profiled: Value = serde_json::from_slice(&output.stdout).unwrap();
            let files = profiled["files"].as_u64().unwrap();
            assert!((50..=100).contains(&files), "{profiled}");
        }
    });
}

#[test]
fn the_probe_measures_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    small_files(400).write_tree(&root).unwrap();
    let measured = dir.path().join("measured");
    fs::create_dir(&measured).unwrap();
    fs::write(measured.join("mine"), "mine").unwrap();
    let output = profile(&root, &["--json", "--probe", measured.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let profiled: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cost = profiled["probe"]["seconds"]["create"].as_f64().unwrap();
    let files = profiled["files"].as_f64().unwrap();
    let seconds = seconds(&profiled, "install-measured");
    assert!(cost > 0.0 && seconds >= files * cost, "{profiled}");
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("creating up to 200 files"), "{warning}");
    let names: Vec<_> = fs::read_dir(&measured).unwrap().collect();
    assert_eq!(names.len(), 1);
    let output = profile(&root, &["--probe", "/proc/self"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("cannot create a directory in \"/proc/self\""),
        "{error}"
    );
}

#[test]
fn duplicates_are_found_if_contents_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [("a", "same"), ("b", "same"), ("c", "other"), ("d", "")] {
        fs::write(dir.path().join(name), content).unwrap();
    }
    symlink("a", dir.path().join("link")).unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let contents = &profiled(dir.path(), &["--contents"])["contents"];
    assert_eq!(contents["duplicateFiles"], 1);
    assert_eq!(contents["duplicateBytes"], 4);
    assert!(contents["compressedSize"].as_u64() > Some(0), "{contents}");
    let text = text_of(profile(dir.path(), &["--contents"]));
    assert!(
        text.contains("duplicates: 1 file with 4 B, 30.8 % of the bytes"),
        "{text}"
    );
    assert!(profiled(dir.path(), &[])["contents"].is_null());
}

#[test]
fn the_picture_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    small_files(400).write_tree(&root).unwrap();
    let file = dir.path().join("histogram.svg");
    text_of(profile(&root, &["--svg", file.to_str().unwrap()]));
    let svg = fs::read_to_string(&file).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    assert!(svg.contains(">up to 1,248</text>"), "{svg}");
    assert!(!svg.contains("NaN"), "{svg}");
}

#[test]
fn invalid_command_lines_and_roots_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for (root, options, message) in [
        (file.as_path(), &[][..], "is not a directory"),
        (
            Path::new("/nonexistent"),
            &[],
            "cannot read \"/nonexistent\"",
        ),
        (dir.path(), &["--rtt-ms", "0"], "--rtt-ms"),
        (dir.path(), &["--mbit", "NaN"], "--mbit"),
        (dir.path(), &["--mtu", "575"], "--mtu"),
        (dir.path(), &["--top", "1001"], "--top"),
        (
            dir.path(),
            &["--server", "http://a", "--rtt-ms", "1"],
            "--rtt-ms",
        ),
        (dir.path(), &["--server", "a"], "does not begin with http"),
        (dir.path(), &["--token-file", "a"], "--server"),
    ] {
        let output = profile(root, options);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(message), "{error}");
    }
}
