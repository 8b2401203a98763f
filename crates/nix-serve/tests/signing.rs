//! With a key the server replaces stored signatures by its own; without one it passes them on. Keys
//! are reloaded, and an unusable key never leads to unsigned responses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use samovar_nix::{PublicKey, Signature};
use support::{OwnStore, hash_part, key_pair, local, nix_serve, sample, sample_list, sample_root};
use support_process::{Connection, Process, PublicBinary, at, is_root, refuses_to_start, set_mode};
use testkit::sqlite::run as sqlite;

fn server_of(root: &Path) -> Command {
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(root)]);
    command
}

fn field<'a>(narinfo: &'a str, name: &str) -> Option<&'a str> {
    narinfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn signatures(narinfo: &str) -> Vec<&str> {
    narinfo
        .lines()
        .filter_map(|line| line.strip_prefix("Sig: "))
        .collect()
}

/// Returns the text that a narinfo's signatures cover, built as a client does.
fn fingerprint(narinfo: &str) -> String {
    let references = field(narinfo, "References").unwrap_or_default();
    let references: Vec<_> = references
        .split_ascii_whitespace()
        .map(|base_name| format!("/nix/store/{base_name}"))
        .collect();
    format!(
        "1;{};{};{};{}",
        field(narinfo, "StorePath").unwrap(),
        field(narinfo, "NarHash").unwrap(),
        field(narinfo, "NarSize").unwrap(),
        references.join(",")
    )
}

#[track_caller]
fn check_signed(narinfo: &str, public: &str) {
    let signatures = signatures(narinfo);
    assert_eq!(signatures.len(), 1, "{narinfo}");
    let signature = Signature::parse(signatures[0]).unwrap();
    let key = PublicKey::parse(public).unwrap();
    assert_eq!(signature.key_name(), key.name());
    assert!(
        key.verify(fingerprint(narinfo).as_bytes(), &signature),
        "{narinfo}"
    );
}

#[test]
fn with_a_key_every_path_has_only_the_signature_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "cache.example.org-1");
    let mut command = server_of(&sample_root());
    let (_server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
    let mut connection = Connection::connect(addr);
    let mut paths = sample_list("closure");
    for key in [
        "signed",
        "ca",
        "built",
        "empty",
        "deriver_gone",
        "self_reference",
    ] {
        paths.push(sample(key));
    }
    for path in paths {
        // The second response comes from memory.
        for _ in 0..2 {
            let reply = connection.get(&format!("/{}.narinfo", hash_part(&path)));
            assert_eq!(reply.status, 200, "{path}");
            check_signed(&reply.text(), &public);
        }
    }
}

#[test]
fn a_key_file_may_end_in_white_space() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "white-1");
    let text = fs::read_to_string(&secret).unwrap();
    for around in [("", "\n"), ("", "\r\n"), (" \t", " \n\n")] {
        fs::write(&secret, format!("{}{text}{}", around.0, around.1)).unwrap();
        let mut command = server_of(&sample_root());
        let (_server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
        let path = format!("/{}.narinfo", hash_part(&sample("tree")));
        check_signed(&Connection::connect(addr).get(&path).text(), &public);
    }
}

#[test]
fn without_a_key_stored_signatures_are_sent_one_a_line() {
    let (_server, addr) = Process::serving(&mut server_of(&sample_root()));
    let mut connection = Connection::connect(addr);
    let narinfo = connection
        .get(&format!("/{}.narinfo", hash_part(&sample("signed"))))
        .text();
    let found = signatures(&narinfo);
    assert_eq!(found.len(), 2, "{narinfo}");
    assert!(
        found[0].starts_with("another-1:") && found[1].starts_with("test-1:"),
        "{narinfo}"
    );
    let key = PublicKey::parse(&sample("signed_by")).unwrap();
    let signature = Signature::parse(found[1]).unwrap();
    assert!(key.verify(fingerprint(&narinfo).as_bytes(), &signature));
    let narinfo = connection
        .get(&format!("/{}.narinfo", hash_part(&sample("built"))))
        .text();
    assert_eq!(signatures(&narinfo), [""; 0]);
}

/// Malformed stored signatures are left out, because current clients refuse a narinfo with one.
#[test]
fn malformed_stored_signatures_are_dropped() {
    let store = OwnStore::new();
    let path = store.add_file("a", b"a");
    let (good_1, good_2) = (
        format!("{}==", "A".repeat(86)),
        format!("{}A==", "B".repeat(85)),
    );
    let url = format!("/{}.narinfo", hash_part(&path));
    let (_server, addr) = Process::serving(&mut server_of(store.root()));
    let mut connection = Connection::connect(addr);
    for (stored, expected) in [
        (
            format!("z-1:{good_1} a-1:{good_2}"),
            vec![format!("a-1:{good_2}"), format!("z-1:{good_1}")],
        ),
        (
            format!("  z-1:{good_1}  z-1:{good_1} "),
            vec![format!("z-1:{good_1}")],
        ),
        (
            format!("junk :{good_1} a-1: a-1:AAAA a-1:{good_1}A {good_1}"),
            vec![],
        ),
        (
            format!("a-1:{} b-1:{good_1}", good_1.replace('A', "!")),
            vec![format!("b-1:{good_1}")],
        ),
        (
            format!("a-1:{} b-1:{good_1}", "A".repeat(86)),
            vec![format!("b-1:{good_1}")],
        ),
        (String::new(), vec![]),
    ] {
        let sql = format!("update ValidPaths set sigs = '{stored}' where path = '{path}'");
        sqlite(&store.database(), &sql);
        let reply = connection.get(&url);
        assert_eq!(reply.status, 200);
        assert_eq!(signatures(&reply.text()), expected, "{stored}");
    }
    sqlite(&store.database(), "update ValidPaths set sigs = null");
    assert_eq!(signatures(&connection.get(&url).text()), [""; 0]);
    // Nix never writes this value: the row is damaged, but its path is not absent.
    sqlite(&store.database(), "update ValidPaths set sigs = x'00ff'");
    assert_eq!(connection.get(&url).status, 503);
}

#[test]
fn no_start_with_a_key_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = key_pair(dir.path(), "test-1");
    let (good, file) = (fs::read_to_string(&secret).unwrap(), at(dir.path(), "key"));
    let refused = |parts: &[&str]| {
        let mut command = server_of(&sample_root());
        command.env("NIX_SECRET_KEY_FILE", &file);
        let mut all = vec!["secret key file", file.as_str()];
        all.extend(parts);
        refuses_to_start(&mut command, &all);
    };
    refused(&[
        "does not exist",
        "--generate-binary-cache-key",
        "or name none (NIX_SECRET_KEY_FILE",
    ]);
    let public = fs::read_to_string(dir.path().join("test-1.public")).unwrap();
    for (content, fault) in [
        ("", "is empty"),
        (" \n", "is empty"),
        ("junk", "holds no Nix secret key"),
        (&good[..good.len() - 8], "holds no Nix secret key"),
        (&good.replace(':', " "), "holds no Nix secret key"),
        (&good[good.find(':').unwrap()..], "has a name that is empty"),
        (public.as_str(), "holds no Nix secret key"),
    ] {
        fs::write(&file, content).unwrap();
        set_mode(file.as_ref(), 0o600);
        refused(&[fault]);
    }
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    refused(&["holds no Nix secret key"]);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&[]);
    let mut command = server_of(&sample_root());
    // The operator has requested signatures, so it is better not to start than to serve without.
    refuses_to_start(
        command.env("NIX_SECRET_KEY_FILE", ""),
        &["NIX_SECRET_KEY_FILE is set but empty"],
    );
}

/// No error message quotes any part of a key file.
#[test]
fn no_message_quotes_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = key_pair(dir.path(), "test-1");
    let text = fs::read_to_string(&secret).unwrap();
    let base64 = text.split_once(':').unwrap().1;
    fs::write(&secret, format!("test-1:{}", &base64[..60])).unwrap();
    let mut command = server_of(&sample_root());
    let ending = support_process::ends(command.env("NIX_SECRET_KEY_FILE", &secret));
    assert!(!ending.errors.contains(&base64[..8]), "{}", ending.errors);
    assert_eq!(ending.code, Some(1));
}

#[test]
fn no_start_with_a_key_that_this_user_may_not_read() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let (secret, _) = key_pair(dir.path(), "test-1");
    set_mode(&secret, 0o600);
    let binary = PublicBinary::new();
    let mut command = binary.as_nobody();
    command
        .args(["--listen", "127.0.0.1:0", "--store", &local(&sample_root())])
        .env("NIX_SECRET_KEY_FILE", &secret);
    refuses_to_start(
        &mut command,
        &[
            secret.to_str().unwrap(),
            "not readable for this user",
            "owner or mode",
        ],
    );
}

#[test]
fn a_key_that_others_can_read_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "test-1");
    for (mode, warns) in [(0o600, false), (0o400, false), (0o640, true), (0o644, true)] {
        fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = server_of(&sample_root());
        let (server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
        assert_eq!(
            server.count("can be read by others"),
            usize::from(warns),
            "{mode:o}"
        );
        let path = format!("/{}.narinfo", hash_part(&sample("tree")));
        check_signed(&Connection::connect(addr).get(&path).text(), &public);
    }
}

#[test]
fn after_a_reload_the_next_response_is_signed_with_the_new_key() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, first) = key_pair(dir.path(), "test-1");
    let mut command = server_of(&sample_root());
    let (server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
    let mut kept = Connection::connect(addr);
    let url = format!("/{}.narinfo", hash_part(&sample("tree")));
    let mut public = first;
    check_signed(&kept.get(&url).text(), &public);
    for round in 2..5 {
        let (new, new_public) = key_pair(dir.path(), &format!("test-{round}"));
        fs::rename(new, &secret).unwrap();
        // A new key takes effect at the signal, not before.
        check_signed(&kept.get(&url).text(), &public);
        server.signal("HUP");
        server.wait_for("the configuration was reloaded");
        public = new_public;
        check_signed(&kept.get(&url).text(), &public);
        check_signed(&Connection::connect(addr).get(&url).text(), &public);
    }
}

#[test]
fn an_unusable_new_key_leaves_the_old_one_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = key_pair(dir.path(), "test-1");
    let good = fs::read(&secret).unwrap();
    let mut command = server_of(&sample_root());
    let (mut server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
    let mut kept = Connection::connect(addr);
    let url = format!("/{}.narinfo", hash_part(&sample("tree")));
    for bad in [Some("junk"), Some(""), None] {
        match bad {
            Some(text) => fs::write(&secret, text).unwrap(),
            None => fs::remove_file(&secret).unwrap(),
        }
        server.signal("HUP");
        let line = server.wait_for("the configuration was not changed");
        assert!(line.starts_with("nix-serve: error: "), "{line}");
        assert!(line.contains(secret.to_str().unwrap()), "{line}");
        check_signed(&kept.get(&url).text(), &public);
    }
    fs::write(&secret, good).unwrap();
    server.signal("HUP");
    server.wait_for("the configuration was reloaded");
    check_signed(&kept.get(&url).text(), &public);
    assert!(server.is_alive());
}

/// Logs are reopened as log rotation requires: rename, signal, compress the renamed file.
#[test]
fn usr1_and_hup_reopen_logs() {
    let dir = tempfile::tempdir().unwrap();
    let (access, errors) = (at(dir.path(), "access"), at(dir.path(), "errors"));
    let mut command = server_of(&sample_root());
    command.args(["--access-log", &access, "--error-log", &errors]);
    let mut server = Process::spawn(&mut command);
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    support::eventually("it serves", || read(&errors).contains("on http://"));
    let addr = support_process::address_in(
        read(&errors)
            .lines()
            .find(|line| line.contains("on http://"))
            .unwrap(),
    );
    let mut kept = Connection::connect(addr);
    for (round, signal) in [(1, "USR1"), (2, "HUP")] {
        kept.get(&format!("/before-{round}"));
        let before = format!("/before-{round} ");
        support::eventually("a line in the log", || read(&access).contains(&before));
        let (old_access, old_errors) = (format!("{access}.{round}"), format!("{errors}.{round}"));
        fs::rename(&access, &old_access).unwrap();
        fs::rename(&errors, &old_errors).unwrap();
        server.signal(signal);
        let exist = || Path::new(&access).exists() && Path::new(&errors).exists();
        support::eventually("new files", exist);
        kept.get(&format!("/after-{round}"));
        let after = format!("/after-{round} ");
        support::eventually("a line in the new log", || read(&access).contains(&after));
        assert!(!read(&old_access).contains(&after));
        assert!(!read(&access).contains(&before));
        // This signal makes the server write a line to the new error log.
        server.signal("TTIN");
        support::eventually("a line in the new error log", || {
            read(&errors).contains("workers")
        });
        if round == 1 {
            assert!(!read(&old_errors).contains("number of workers"));
        }
    }
    assert!(server.is_alive());
    assert_eq!(server.lines(), [""; 0]);
}
