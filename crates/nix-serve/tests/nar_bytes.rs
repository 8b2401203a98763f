//! Every NAR and narinfo of the sample store equals the output of the real Nix, byte for byte.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};
use support::{
    ServerProcess, hash_part, key_pair, local, nix, nix_serve, output, sample, sample_list,
    sample_root,
};
use testkit::http1::Connection;

/// Data that Nix reports about a path.
struct Registered {
    path: String,
    /// NAR hash in Nix's base-32.
    nar_hash: String,
    nar_hash_hex: String,
    nar_size: u64,
    references: Vec<String>,
    deriver: Option<String>,
    signatures: Vec<String>,
}

/// Copies the sample's database to a place where Nix may open it for writing.
fn database_copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = ("nix/var/nix/db", dir.path().join("nix/var/nix/db"));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::create_dir_all(dir.path().join("nix/store")).unwrap();
    for entry in std::fs::read_dir(sample_root().join(from)).unwrap() {
        let entry = entry.unwrap();
        // The WAL index need not be copied: SQLite rebuilds it from the WAL.
        if entry.file_name() != "db.sqlite-shm" {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    dir
}

fn on_copy(copy: &Path, program: &str) -> Command {
    let mut command = nix(program, copy);
    command.arg("--store").arg(copy);
    command
}

/// Lists all valid paths as Nix reports them.
fn registered(copy: &Path) -> Vec<Registered> {
    let json = output(on_copy(copy, "nix").args(["path-info", "--json", "--all"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let infos = json.as_array().unwrap();
    let hashes: Vec<&str> = infos
        .iter()
        .map(|info| info["narHash"].as_str().unwrap())
        .collect();
    let converted = |form: &str| {
        let mut command = nix("nix", copy);
        command.args(["hash", form, "--type", "sha256"]);
        let text = output(command.args(&hashes));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let forms = converted("to-base32")
        .into_iter()
        .zip(converted("to-base16"));
    infos
        .iter()
        .zip(forms)
        .map(|(info, (nar_hash, nar_hash_hex))| Registered {
            path: info["path"].as_str().unwrap().to_owned(),
            nar_hash,
            nar_hash_hex,
            nar_size: info["narSize"].as_u64().unwrap(),
            references: texts(&info["references"]),
            deriver: info["deriver"].as_str().map(str::to_owned),
            signatures: texts(&info["signatures"]),
        })
        .collect()
}

fn texts(list: &serde_json::Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn base_name(path: &str) -> &str {
    path.strip_prefix("/nix/store/").unwrap()
}

/// Writes the narinfo as nix-serve does.
fn expected_narinfo(info: &Registered, signatures: &[String]) -> String {
    let mut text = format!(
        "StorePath: {path}\nURL: nar/{hash_part}-{nar_hash}.nar\nCompression: none\n\
         NarHash: sha256:{nar_hash}\nNarSize: {size}\n",
        path = info.path,
        hash_part = hash_part(&info.path),
        nar_hash = info.nar_hash,
        size = info.nar_size,
    );
    let mut references: Vec<&str> = info.references.iter().map(|path| base_name(path)).collect();
    references.sort_unstable();
    if !references.is_empty() {
        writeln!(text, "References: {}", references.join(" ")).unwrap();
    }
    if let Some(deriver) = &info.deriver {
        writeln!(text, "Deriver: {}", base_name(deriver)).unwrap();
    }
    let mut signatures = signatures.to_vec();
    signatures.sort_unstable();
    for signature in signatures {
        writeln!(text, "Sig: {signature}").unwrap();
    }
    text
}

#[track_caller]
fn narinfos_are(server: &ServerProcess, infos: &[Registered], key_name: Option<&str>) {
    let mut connection = Connection::connect(server.addr);
    for info in infos {
        let ours = |signature: &&String| {
            key_name.is_none_or(|key_name| signature.starts_with(&format!("{key_name}:")))
        };
        let signatures: Vec<String> = info.signatures.iter().filter(ours).cloned().collect();
        let expected = expected_narinfo(info, &signatures);
        let url = format!("/{}.narinfo", hash_part(&info.path));
        // The second response comes from a cache.
        for _ in 0..2 {
            let answer = connection.get(&url);
            assert_eq!(answer.status, 200, "{}", info.path);
            assert_eq!(answer.text(), expected);
            assert_eq!(answer.header("content-type"), Some("text/x-nix-narinfo"));
        }
    }
}

#[test]
fn every_narinfo_equals_that_of_nix_serve() {
    let copy = database_copy();
    let infos = registered(copy.path());
    assert_eq!(infos.len(), sample_list("valid_paths").len());
    let server = ServerProcess::of_store(&sample_root());
    narinfos_are(&server, &infos, None);
}

/// The server's signatures equal those of the real Nix: Ed25519 is deterministic.
#[test]
fn every_signature_equals_that_of_nix() {
    let copy = database_copy();
    let (secret, _) = key_pair(copy.path(), "ours-1");
    let mut sign = on_copy(copy.path(), "nix");
    sign.args(["store", "sign", "--all", "--key-file"]);
    output(sign.arg(&secret));
    let infos = registered(copy.path());
    let mut command = nix_serve();
    command
        .args(["--store", &local(&sample_root())])
        .env("NIX_SECRET_KEY_FILE", &secret);
    let server = ServerProcess::start(&mut command);
    narinfos_are(&server, &infos, Some("ours-1"));
    let signed = infos.iter().filter(|info| {
        let mut signatures = info.signatures.iter();
        signatures.any(|signature| signature.starts_with("ours-1:"))
    });
    assert_eq!(signed.count(), infos.len());
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
}

#[test]
fn every_nar_has_the_registered_hash_and_size_under_all_its_urls() {
    let copy = database_copy();
    let server = ServerProcess::of_store(&sample_root());
    let mut connection = Connection::connect(server.addr);
    let mut count = 0;
    for info in registered(copy.path()) {
        let (hash_part, nar_hash) = (hash_part(&info.path), &info.nar_hash);
        for url in [
            format!("/nar/{hash_part}-{nar_hash}.nar"),
            format!("/nar/{hash_part}.nar"),
            format!("/nar/{nar_hash}.nar?hash={hash_part}"),
        ] {
            let head = connection.request("HEAD", &url, &[]);
            let answer = connection.get(&url);
            for answer in [&head, &answer] {
                assert_eq!(answer.status, 200, "{url}");
                assert_eq!(
                    answer.header("content-length"),
                    Some(&*info.nar_size.to_string())
                );
                assert_eq!(answer.header("accept-ranges"), Some("bytes"));
                assert_eq!(answer.header("content-encoding"), None);
            }
            assert_eq!(answer.body.len() as u64, info.nar_size);
            assert_eq!(sha256(&answer.body), info.nar_hash_hex, "{url}");
        }
        count += 1;
    }
    assert!(count >= 600, "{count}");
}

#[test]
fn odd_trees_equal_the_dump_of_their_files() {
    let server = ServerProcess::of_store(&sample_root());
    let mut connection = Connection::connect(server.addr);
    let home = tempfile::tempdir().unwrap();
    for key in [
        "odd",
        "kinds",
        "deep63",
        "deep64",
        "empty",
        "big",
        "tree",
        "text",
        "fixed",
        "ca",
        "built",
        "built_drv",
        "self_reference",
        "single_file",
    ] {
        let path = sample(key);
        let mut dump = nix("nix-store", home.path());
        dump.arg("--dump")
            .arg(sample_root().join(path.trim_start_matches('/')));
        let dump = dump.output().unwrap();
        assert!(dump.status.success(), "{dump:?}");
        let answer = connection.get(&format!("/nar/{}.nar", hash_part(&path)));
        // Do not use assert_eq, which would print ten megabytes.
        assert!(answer.body == dump.stdout, "{key} differs");
    }
}

/// A request with a well-formed NAR hash that does not belong to the path gets nix-serve's error
/// text.
#[test]
fn the_nar_hash_of_another_path_is_refused() {
    let copy = database_copy();
    let infos = registered(copy.path());
    let by_path: HashMap<&str, &Registered> =
        infos.iter().map(|info| (&*info.path, info)).collect();
    let server = ServerProcess::of_store(&sample_root());
    let (one, other) = (sample("kinds"), sample("odd"));
    let (hash_part, nar_hash) = (hash_part(&one), &by_path[&*other].nar_hash);
    for url in [
        format!("/nar/{hash_part}-{nar_hash}.nar"),
        format!("/nar/{nar_hash}.nar?hash={hash_part}"),
    ] {
        let answer = server.get(&url);
        assert_eq!(answer.status, 404, "{url}");
        assert_eq!(
            answer.text(),
            "Incorrect NAR hash. Maybe the path has been recreated.\n"
        );
    }
}
