//! Files with any name that the file system allows, and links to any target, are served bit for bit
//! and listed as valid JSON, and their names appear in no log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use support::client::{Client, succeeds};
use support::{OwnStore, eventually, hash_part, local, nix, nix_serve};
use support_process::{Connection, Process, at, set_mode};

/// Part of names, contents and link targets. Must not appear in any log.
const CANARY: &str = "c4nary";

/// Returns file names that a file system allows.
fn names() -> Vec<Vec<u8>> {
    let texts = [
        "...",
        "....",
        ".c4nary",
        " ",
        "  c4nary ",
        "\"",
        "c4nary\",\"type\":\"symlink",
        "'",
        "\\",
        "\\\"",
        "c4nary\nStorePath: c4nary",
        "\r\n\r\n",
        "\t",
        "\u{1}",
        "\u{7f}",
        "\u{1b}[2J\u{1b}]0;c4nary\u{7}",
        "<script>alert(1)<",
        "&lt;",
        "]]>",
        "{hash}",
        "{{c4nary}}",
        "${c4nary}",
        "%s%n",
        "%2e%2e%2fc4nary",
        "..%2f",
        "..\\c4nary",
        "-rf",
        "--c4nary",
        "*",
        "?",
        "~",
        "~nix~case~hack~1",
        "A",
        "a",
        "CON",
        "nul.txt",
        "entries",
        "__proto__",
        "type",
        "root",
        "(",
        ")",
        "entry",
        "nix-archive-1",
        "0",
        "null",
        "NaN",
        "\u{e9}",
        "e\u{301}",
        "\u{202e}gpj.c4nary",
        "\u{feff}",
        "\u{2028}",
        "\u{85}",
        "\u{200b}",
        "\u{10ffff}",
        "\u{1f600}",
    ];
    let mut names: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    // The longest name, made of bytes that take six characters each in JSON.
    names.push(vec![1; 255]);
    names.push(vec![b'x'; 255]);
    names
}

/// Names that are not UTF-8. Two of them in one directory could get the same name in a listing
/// (docs/decisions/0007-listing-names.md), so each gets a separate directory.
const NO_TEXT: [&[u8]; 7] = [
    b"\xff",
    b"c4nary\x80",
    b"\xc0\xae\xc0\xae",
    b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\xe2\x82",
    b"\xff\"\xfe\n",
];

fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Creates a file, a directory and a link for each name.
fn write_tree(root: &Path) {
    for (index, bytes) in names().iter().enumerate() {
        write_node(root, bytes, index % 2 == 0);
    }
    for (index, bytes) in NO_TEXT.iter().enumerate() {
        let own = root.join(format!("no-text-{index}"));
        write_node(&own, bytes, false);
    }
}

fn write_node(root: &Path, bytes: &[u8], is_executable: bool) {
    for folder in ["files", "directories", "links"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let file = root.join("files").join(name(bytes));
    fs::write(&file, [CANARY.as_bytes(), bytes].concat()).unwrap();
    set_mode(&file, if is_executable { 0o755 } else { 0o644 });
    let directory = root.join("directories").join(name(bytes));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join(name(bytes)), bytes).unwrap();
    symlink(name(bytes), root.join("links").join(name(bytes))).unwrap();
}

/// Builds the expected listing of a tree from the file system alone, without the offsets of the
/// files.
fn expected(path: &Path) -> Value {
    let metadata = path.symlink_metadata().unwrap();
    let text = |text: OsString| String::from_utf8_lossy(&text.into_vec()).into_owned();
    if metadata.is_symlink() {
        let target = path.read_link().unwrap().into_os_string();
        return serde_json::json!({"type": "symlink", "target": text(target)});
    }
    if metadata.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        let entries = entries.map(|entry| (text(entry.file_name()), expected(&entry.path())));
        let entries: serde_json::Map<_, _> = entries.collect();
        return serde_json::json!({"type": "directory", "entries": entries});
    }
    let mut node = serde_json::json!({"type": "regular", "size": metadata.len()});
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o100 != 0 {
        node["executable"] = true.into();
    }
    node
}

/// Removes the offsets from a listing. Returns where the files are in the NAR, in NAR order.
fn take_offsets(node: &mut Value, places: &mut Vec<(usize, usize)>) {
    let node = node.as_object_mut().unwrap();
    if let Some(offset) = node.remove("narOffset") {
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        places.push((number(&offset), number(&node["size"])));
    }
    if let Some(Value::Object(entries)) = node.get_mut("entries") {
        entries
            .values_mut()
            .for_each(|entry| take_offsets(entry, places));
    }
}

fn dump(store: &OwnStore, real: &Path) -> Vec<u8> {
    let output = nix("nix-store", store.root())
        .arg("--dump")
        .arg(real)
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}

fn serve(store: &OwnStore, log: &str) -> (Process, std::net::SocketAddr) {
    let mut command = nix_serve();
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--access-log",
        log,
        "--log-format",
        "debug",
    ]);
    Process::serving(command.args(["--store", &local(store.root())]))
}

#[test]
fn every_possible_file_name_is_served_and_listed() {
    let store = OwnStore::new();
    let made = store.root().join("made");
    write_tree(&made);
    let path = store.add(&made);
    let real = store.real(&path);
    let log = at(store.root(), "access");
    let (mut server, addr) = serve(&store, &log);
    let mut connection = Connection::connect(addr);
    let hash = hash_part(&path);
    let nar = dump(&store, &real);
    // The first listing comes from a walk, the others from the NAR cache or the plan.
    for _ in 0..3 {
        let reply = connection.get(&format!("/nar/{hash}.nar"));
        assert!(reply.status == 200 && reply.body == nar);
        let start = nar.len() / 2;
        let range = format!("Range: bytes={start}-");
        let reply = connection.request("GET", &format!("/nar/{hash}.nar"), &[&range]);
        assert!(reply.status == 206 && reply.body == nar[start..]);
        let reply = connection.get(&format!("/{hash}.ls"));
        let mut listing: Value = serde_json::from_slice(&reply.body).unwrap();
        let mut places = Vec::new();
        take_offsets(&mut listing["root"], &mut places);
        assert_eq!(listing["root"], expected(&real));
        assert!(places.len() > 2 * names().len());
        for (start, size) in places {
            // In a NAR, the size of a file precedes its contents.
            assert_eq!(nar[start - 8..start], (size as u64).to_le_bytes());
        }
        // A listing without control characters is safe in logs and browsers.
        assert!(!reply.body.iter().any(|byte| *byte < b' '));
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    // A client that unpacks the NAR gets the same files.
    let client = Client::new();
    let url = format!("http://{addr}");
    let mut copy = client.copy(&url, "", std::slice::from_ref(&path));
    succeeds(copy.arg("--no-check-sigs"));
    assert!(dump(&store, &client.real(&path)) == nar);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let lines = server.lines().join("\n") + &fs::read_to_string(&log).unwrap();
    assert!(!lines.contains(CANARY) && lines.contains(hash), "{lines}");
}

/// A path is served whatever name Nix accepts for it.
#[test]
fn every_possible_path_name_is_served() {
    let long = "n".repeat(211);
    let too_long = "n".repeat(212);
    let legal = [
        "a..b",
        "+",
        "x?y",
        "=z",
        "_",
        "-rf",
        "a=b?c+d.e_f-g",
        "x.drv.x",
        "x.narinfo",
        "x..",
        &long,
    ];
    // Nix 2.8 refuses a leading dot; later versions accept some.
    let either = [".hidden", "...", "..a", ".x.drv"];
    let illegal = [
        "x y", "x%2e", "x\ny", "x'y", "x\"y", "x&y", "x;y", "x~", "x@", "\u{e9}", "x\\y", &too_long,
    ];
    let store = OwnStore::new();
    let mut added = Vec::new();
    for name in legal.iter().chain(&either).chain(&illegal) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        fs::write(&file, name).unwrap();
        let mut command = nix("nix-store", store.root());
        command
            .arg("--store")
            .arg(store.root())
            .arg("--add")
            .arg(&file);
        let output = command.output().unwrap();
        if either.contains(name) && !output.status.success() {
            continue;
        }
        assert_eq!(output.status.success(), !illegal.contains(name), "{name:?}");
        if output.status.success() {
            added.push(String::from_utf8(output.stdout).unwrap().trim().to_owned());
        }
    }
    assert!(added.len() >= legal.len());
    let log = at(store.root(), "access");
    let (mut server, addr) = serve(&store, &log);
    let url = format!("http://{addr}");
    let mut connection = Connection::connect(addr);
    for path in &added {
        let (hash, base_name) = (hash_part(path), path.strip_prefix("/nix/store/").unwrap());
        let narinfo = connection.get(&format!("/{hash}.narinfo"));
        assert!(
            narinfo.text().starts_with(&format!("StorePath: {path}\n")),
            "{narinfo:?}"
        );
        let nar = connection.get(&format!("/nar/{hash}.nar"));
        assert!(nar.body == dump(&store, &store.real(path)));
        assert_eq!(connection.get(&format!("/{hash}.ls")).status, 200);
        // A path that was never built may still have a log.
        let drvs = store
            .root()
            .join("nix/var/log/nix/drvs")
            .join(&base_name[..2]);
        fs::create_dir_all(&drvs).unwrap();
        let drv = format!("{base_name}.drv");
        let encoded: String = drv.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let is_log = base_name.len() + 4 <= 211 + 33;
        if is_log {
            fs::write(drvs.join(&drv[2..]), base_name).unwrap();
        }
        for target in [drv.replace('?', "%3f"), encoded] {
            let reply = connection.get(&format!("/log/{target}"));
            let is_served = reply.status == 200 && reply.text() == base_name;
            assert_eq!(is_served, is_log, "{target} {reply:?}");
        }
        // A bulk query finds it by its full path, its base name and its hash part.
        let body = format!("{path}\n{base_name}\n{hash}\n");
        let len = format!("Content-Length: {}", body.len());
        connection.send_request("POST", "/narinfos", &[&len]);
        connection.send(body.as_bytes());
        assert!(connection.response(false).text().ends_with("end 3 0 0\n"));
    }
    let words = [
        &["query", "--json", &url],
        &added.iter().map(String::as_str).collect::<Vec<_>>()[..],
    ]
    .concat();
    for words in [words.clone(), [&["closure"], &words[1..]].concat()] {
        let words = ["samovar"].iter().chain(&words);
        let mut out = Vec::new();
        let code = samovar::run(words.map(Into::into), &mut out).unwrap();
        assert_eq!(code, ExitCode::SUCCESS);
        let report: Value = serde_json::from_slice(&out).unwrap();
        let paths = report["paths"].as_array().unwrap().iter();
        let paths: BTreeSet<&str> = paths.map(|path| path["path"].as_str().unwrap()).collect();
        assert_eq!(paths, added.iter().map(String::as_str).collect());
    }
    // The access log has one line per request, also for requests without a valid path.
    let before = fs::read_to_string(&log).unwrap().lines().count();
    for name in illegal {
        let target: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        connection.check_text(
            &format!("/log/{}-{target}", "0".repeat(32)),
            404,
            "File not found.\n",
        );
    }
    let count = || fs::read_to_string(&log).unwrap().lines().count();
    eventually("all lines", || count() >= before + 2 * illegal.len());
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let lines = server.lines();
    let is_ours = |line: &String| line.starts_with("nix-serve: ") && !line.contains("0000");
    assert!(lines.len() < 10 && lines.iter().all(is_ours), "{lines:#?}");
}
