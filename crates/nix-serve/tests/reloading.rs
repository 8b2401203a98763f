//! HUP changes keys under load without a single unsigned response. Unusable files cause a log line
//! and no change, and do not block the server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;
mod support_process;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use samovar_nix::{PublicKey, Signature};
use support::{eventually, hash_part, key_pair, of_sample, output, sample_list};
use support_process::{Connection, Process, at, set_mode};

/// Maximum time to reject an unusable file, on a busy machine. Opening a FIFO without a writer
/// would block forever.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Returns the text that a narinfo's signatures cover, built as a client does.
fn fingerprint(narinfo: &str) -> String {
    let field = |name: &str| {
        let line = narinfo.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim()
    };
    let references: Vec<_> = field("References:")
        .split_ascii_whitespace()
        .map(|base_name| format!("/nix/store/{base_name}"))
        .collect();
    format!(
        "1;{};{};{};{}",
        field("StorePath:"),
        field("NarHash:"),
        field("NarSize:"),
        references.join(",")
    )
}

/// Returns which of two keys has signed a narinfo; fails if there is any other signature.
#[track_caller]
fn signer(narinfo: &str, keys: &[PublicKey; 2]) -> usize {
    let signatures: Vec<_> = narinfo
        .lines()
        .filter_map(|line| line.strip_prefix("Sig: "))
        .collect();
    assert_eq!(signatures.len(), 1, "{narinfo}");
    let signature = Signature::parse(signatures[0]).unwrap();
    let fingerprint = fingerprint(narinfo);
    let by = |key: &PublicKey| key.verify(fingerprint.as_bytes(), &signature);
    keys.iter()
        .position(by)
        .unwrap_or_else(|| panic!("neither key has signed {narinfo}"))
}

#[test]
fn every_answer_is_signed_by_the_old_key_or_the_new() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = ["first-1", "second-1"].map(|name| key_pair(dir.path(), name));
    let keys = [&pairs[0], &pairs[1]].map(|(_, public)| PublicKey::parse(public).unwrap());
    let in_use = dir.path().join("in-use");
    let put = |index: usize| {
        let next = dir.path().join("next");
        symlink(&pairs[index].0, &next).unwrap();
        fs::rename(next, &in_use).unwrap();
    };
    put(0);
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0"]);
    let (server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &in_use));
    let urls: Vec<_> = sample_list("closure")
        .iter()
        .map(|path| format!("/{}.narinfo", hash_part(path)))
        .collect();
    let (is_over, answers) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    let total = || answers[0].load(Ordering::SeqCst) + answers[1].load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (urls, keys, is_over, answers) = (&urls, &keys, &is_over, &answers);
            scope.spawn(move || {
                let mut connection = Connection::connect(addr);
                for url in urls.iter().cycle().skip(client * 7) {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let reply = connection.get(url);
                    assert_eq!(reply.status, 200, "{url}");
                    answers[signer(&reply.text(), keys)].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 1..=30 {
            put(round % 2);
            server.signal("HUP");
            let before = total();
            eventually("answers", || total() > before + 20);
        }
        // Send many signals: pending signals of one kind may merge.
        let storm = "i=0; while [ $i -lt 1000 ]; do kill -s HUP $0; i=$((i+1)); done";
        let pid = server.child.id().to_string();
        output(Command::new("sh").args(["-c", storm, &pid]));
        put(1);
        server.signal("HUP");
        let mut connection = Connection::connect(addr);
        eventually("the last key is in use", || {
            signer(&connection.get(&urls[0]).text(), &keys) == 1
        });
        is_over.store(true, Ordering::SeqCst);
    });
    println!(
        "31 rotations and 1000 more HUPs: {} answers by the one key, {} by the other, none else",
        answers[0].load(Ordering::SeqCst),
        answers[1].load(Ordering::SeqCst)
    );
    assert!(answers.iter().all(|count| count.load(Ordering::SeqCst) > 0));
}

type Put = Box<dyn Fn()>;

/// Returns ways to put invalid keys and certificates at a path; `good` is the original file.
fn bad_files(path: &Path, good: &[u8]) -> Vec<(&'static str, Put)> {
    let own = |path: &Path| -> PathBuf { path.to_owned() };
    let write = |content: Vec<u8>| -> Put {
        let path = own(path);
        Box::new(move || fs::write(&path, &content).unwrap())
    };
    let (directory, fifo, large, device) = (own(path), own(path), own(path), own(path));
    vec![
        ("missing", Box::new(|| {})),
        ("empty", write(Vec::new())),
        ("garbage", write(vec![0xff; 999])),
        ("truncated", write(good[..good.len() / 2].to_vec())),
        (
            "a directory",
            Box::new(move || fs::create_dir(&directory).unwrap()),
        ),
        (
            "a pipe that nobody writes to",
            Box::new(move || {
                output(Command::new("mkfifo").arg(&fifo));
            }),
        ),
        (
            "large",
            Box::new(move || {
                let file = fs::File::create(&large).unwrap();
                file.set_len(100 << 20).unwrap();
            }),
        ),
        (
            "endless",
            Box::new(move || symlink("/dev/zero", &device).unwrap()),
        ),
    ]
}

fn remove(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// After a reload of an unusable key, the old key stays in use.
#[test]
fn no_key_that_cannot_be_used_replaces_one_that_can() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "test-1");
    let keys = [&public, &public].map(|public| PublicKey::parse(public).unwrap());
    let good = fs::read(&secret).unwrap();
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0"]);
    let (mut server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
    let mut kept = Connection::connect(addr);
    let url = format!("/{}.narinfo", hash_part(&sample_list("closure")[0]));
    for (name, put) in bad_files(&secret, &good) {
        remove(&secret);
        put();
        let start = Instant::now();
        server.signal("HUP");
        let line = server.wait_for("the configuration was not changed");
        assert!(start.elapsed() < AT_ONCE, "{name}");
        assert!(
            line.starts_with("nix-serve: error: the secret key file"),
            "{line}"
        );
        assert!(line.contains(secret.to_str().unwrap()), "{name}: {line}");
        signer(&kept.get(&url).text(), &keys);
    }
    remove(&secret);
    fs::write(&secret, good).unwrap();
    server.signal("HUP");
    server.wait_for("the configuration was reloaded");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// After a reload of an unusable certificate, the old one stays in use.
#[test]
fn no_certificate_that_cannot_be_used_replaces_one_that_can() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["certificate", "key"].map(|name| PathBuf::from(at(dir.path(), name)));
    let pair = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        [certificate.pem(), key.serialize_pem()]
    };
    let put = |pair: &[String; 2]| {
        for (file, content) in files.iter().zip(pair) {
            remove(file);
            fs::write(file, content).unwrap();
            set_mode(file, 0o600);
        }
    };
    let good = pair();
    put(&good);
    let trusted = at(dir.path(), "trusted");
    fs::write(&trusted, &good[0]).unwrap();
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0:ssl"]);
    command.arg("--ssl-cert").arg(&files[0]);
    command.arg("--ssl-key").arg(&files[1]);
    let mut server = Process::spawn(&mut command);
    let line = server.wait_for("on https://");
    let port = line.rsplit(':').next().unwrap().to_owned();
    let refused = |server: &mut Process, name: &str| {
        let start = Instant::now();
        server.signal("HUP");
        let line = server.wait_for("the certificate was not changed");
        assert!(start.elapsed() < AT_ONCE, "{name}");
        assert!(line.starts_with("nix-serve: error: "), "{name}: {line}");
        assert!(
            line.contains(dir.path().to_str().unwrap()),
            "{name}: {line}"
        );
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--cacert", &trusted]);
        output(curl.arg(format!("https://localhost:{port}/nix-cache-info")));
    };
    for (file, content) in files.iter().zip(&good) {
        for (name, put_bad) in bad_files(file, content.as_bytes()) {
            put(&good);
            remove(file);
            put_bad();
            refused(&mut server, name);
        }
    }
    let other = pair();
    put(&[good[0].clone(), other[1].clone()]);
    refused(&mut server, "the key of another certificate");
    put(&[good[1].clone(), good[0].clone()]);
    refused(&mut server, "the one in place of the other");
    put(&good);
    server.signal("HUP");
    server.wait_for("the certificate was reloaded");
}
