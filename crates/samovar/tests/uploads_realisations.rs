//! Realisations of content-addressed derivations can be uploaded and served in both forms of Nix.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::{sample, sample_store, secret_file};
use support_uploads::{MadePath, Running, Site, hash};
use testkit::nix::nix;
use testkit::process::{fails, output};

fn id(output: &str) -> String {
    format!("sha256:{}!{output}", "1".repeat(64))
}

/// Returns a signature, which is invalid, with this key name.
fn signature(key: &str) -> String {
    format!("{key}:{}==", "A".repeat(86))
}

/// Returns the realisation of an output as a document of Nix up to 2.34.
fn document(output: &str, path: &MadePath, keys: &[&str]) -> String {
    let signatures: Vec<String> = keys.iter().map(|key| signature(key)).collect();
    json!({
        "dependentRealisations": {}, "id": id(output), "outPath": path.store_path[11..],
        "signatures": signatures,
    })
    .to_string()
}

fn key_names(server: &Running, target: &str) -> Vec<String> {
    let response = server.get(target);
    assert_eq!(response.status, 200, "{target}: {}", response.text());
    let signatures = response.json()["signatures"].clone();
    let name = |one: &Value| match one.as_str() {
        Some(text) => text.split(':').next().unwrap().to_owned(),
        None => one["keyName"].as_str().unwrap().to_owned(),
    };
    signatures.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn both_forms_are_served_at_their_urls_with_all_signatures() {
    let site = Site::new();
    site.configure_empty("signing.realisations = true\n");
    let server = site.start();
    let token = site.token(&[]);
    let (path, other) = (MadePath::new("a"), MadePath::new("b"));
    let by_hash = format!("/realisations/{}.doi", id("out"));
    let by_derivation = format!("/build-trace-v2/{}-a.drv/out.doi", path.hash_part());
    let newer = |path: &MadePath| {
        let sig = &signature("builder-1")["builder-1:".len()..];
        let signature = json!({ "keyName": "builder-1", "sig": sig });
        json!({ "outPath": path.store_path[11..], "signatures": [signature] }).to_string()
    };
    let missing = server.put(&token, &by_hash, document("out", &path, &[]));
    assert_eq!(missing.status, 409, "{}", missing.text());
    assert!(missing.text().contains(&path.store_path[11..]));
    server.publish(&token, &path);
    server.publish(&token, &other);
    for (target, text) in [
        (&by_hash, document("out", &path, &["builder-1"])),
        (&by_derivation, newer(&path)),
    ] {
        assert_eq!(server.get(target).status, 404);
        let put = server.put(&token, &format!("/upload{target}"), &text);
        assert_eq!(put.status, 200, "{}", put.text());
        for below in ["", "/upload"] {
            let target = format!("{below}{target}");
            let names = key_names(&server, &target);
            assert_eq!(names, ["builder-1", "cache-1"], "{target}");
            let (get, head) = (server.get(&target), server.request("HEAD", &target, ""));
            assert_eq!(head.status, 200);
            for name in ["Content-Length", "Content-Type"] {
                assert_eq!(head.header(name), get.header(name));
            }
        }
        let mirrored = fs::read_to_string(site.storage().join(&target[1..])).unwrap();
        assert_eq!(mirrored, server.get(target).text());
    }
    let encoded = by_hash.replace('!', "%21");
    assert_eq!(server.get(&encoded).text(), server.get(&by_hash).text());

    // New signatures are added, but another output path does not replace the first.
    let put = server.put(&token, &encoded, document("out", &path, &["other-1"]));
    assert_eq!(put.status, 200, "{}", put.text());
    let names = ["builder-1", "cache-1", "other-1"];
    assert_eq!(key_names(&server, &by_hash), names);
    let put = server.put(&token, &by_hash, document("out", &other, &["third-1"]));
    assert!(put.text().contains("stays"), "{}", put.text());
    assert_eq!(key_names(&server, &by_hash), names);

    // The next start writes a file that the directory lacks.
    server.process.terminate();
    let mirrored = site.storage().join(&by_hash[1..]);
    fs::remove_file(&mirrored).unwrap();
    let server = site.start();
    testkit::eventually("the realisation is in the directory", || mirrored.exists());
    assert_eq!(key_names(&server, &by_hash), names);
}

#[test]
fn malformed_and_large_realisations_are_refused() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("a");
    server.publish(&token, &path);
    let target = |output: &str| format!("/realisations/{}.doi", id(output));
    let put = |output: &str, text: &str, status: u16, part: &str| {
        let response = server.put(&token, &target(output), text);
        assert_eq!(response.status, status, "{}", response.text());
        assert!(response.text().contains(part), "{}", response.text());
    };
    let text = document("out", &path, &[]);
    put("dev", &text, 422, "!out");
    put("out", "{}", 422, "outPath");
    put("out", "", 422, "malformed");
    let padded = |len: usize| format!("{text}{}", " ".repeat(len - text.len()));
    put("out", &padded((64 << 10) + 1), 413, "65536");
    assert_eq!(server.get(&target("out")).status, 404);
    put("out", &padded(64 << 10), 200, "kept");

    // Together with the realisation above, these are 64 outputs of one derivation.
    for number in 1..64 {
        let output = format!("o{number}");
        put(&output, &document(&output, &path, &[]), 200, "kept");
    }
    put("more", &document("more", &path, &[]), 413, "64");
    put("o1", &document("o1", &path, &["k-1"]), 200, "kept");
    let other = format!("sha256:{}!out", hash(b"other derivation"));
    let text = server.put(&token, &format!("/realisations/{other}.doi"), "{}");
    assert_eq!(text.status, 422, "the limit is that of one derivation");
}

/// Returns a Nix command that supports content-addressed derivations.
fn ca_nix(program: &str, home: &Path) -> Command {
    let mut command = nix(program, home);
    command.env(
        "NIX_CONFIG",
        "experimental-features = nix-command ca-derivations\nbuild-users-group =\n\
         sandbox = false\nsubstituters =\ntrusted-public-keys =\nrequire-sigs = true\n",
    );
    command
}

#[test]
fn nix_copies_a_content_addressed_derivation_to_the_cache_and_back() {
    let site = Site::new();
    site.configure_empty("signing.realisations = true\n");
    let server = site.start();
    let pusher = tempfile::tempdir().unwrap();
    let login = format!("machine 127.0.0.1 login a password {}\n", site.token(&[]));
    let netrc = secret_file(pusher.path(), "netrc", &login);
    let (drv, out) = (sample("ca_drv"), sample("ca"));
    let to = format!("{}/upload?compression=zstd", server.url());
    for arguments in [&["copy"][..], &["copy", "--derivation"]] {
        let mut push = ca_nix("nix", pusher.path());
        push.args(arguments)
            .args(["--no-check-sigs", "--from", &sample_store(), "--to", &to]);
        output(push.arg(&drv).arg("--netrc-file").arg(&netrc));
    }
    let directory = format!("file://{}", site.storage().display());
    for from in [server.url(), format!("{}/upload", server.url()), directory] {
        let client = tempfile::tempdir().unwrap();
        let with_key = |program: &str, key: &str| {
            let mut command = ca_nix(program, client.path());
            command.args(["--option", "trusted-public-keys", key]);
            command
        };
        // `nix copy` checks the signature of the realisation.
        let copy = |key: &str| {
            let mut copy = with_key("nix", key);
            copy.args(["copy", &drv, "--from", &from, "--to"]);
            copy.arg(client.path().join("copied"));
            copy
        };
        let text = fails(&mut copy(""));
        assert!(text.contains("lacks a valid signature"), "{text}");
        output(&mut copy(&site.public_key));
        let mut realise = with_key("nix-store", &site.public_key);
        realise.arg("--store").arg(client.path().join("store"));
        realise.args(["--realise", &drv, "--option", "max-jobs", "0"]);
        let printed = output(realise.args(["--option", "substituters", &from]));
        assert_eq!(printed.trim(), out, "{from}");
        assert!(client.path().join("store").join(&out[1..]).exists());
    }
}
