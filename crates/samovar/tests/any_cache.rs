//! `samovar` works with any binary cache. The caches here are files from `nix copy` on a static web
//! server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_files;

use std::collections::{BTreeSet, HashSet};
use std::process::Command;

use serde_json::Value;
use support::{manifest, nix, sample, sample_store};
use support_files::{Files, Rule, no_rule};
use testkit::closed_port::ClosedPort;

fn sample_closure() -> BTreeSet<String> {
    let manifest = manifest();
    let all = manifest["closure"].as_array().unwrap();
    all.iter()
        .map(|path| path.as_str().unwrap().to_owned())
        .collect()
}

/// Copies these closures of the sample store to a file cache. Returns its directory and public key.
fn copied(paths: &[&str]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let (secret, public) = (dir.path().join("secret"), dir.path().join("public"));
    let mut keys = nix("nix-store", &home);
    keys.args([
        "--store",
        "dummy://",
        "--generate-binary-cache-key",
        "any-1",
    ]);
    succeeds(keys.arg(&secret).arg(&public));
    let cache = dir.path().join("cache");
    let to = format!("file://{}?secret-key={}", cache.display(), secret.display());
    let mut copy = nix("nix", &home);
    copy.args([
        "copy",
        "--no-check-sigs",
        "--from",
        &sample_store(),
        "--to",
        &to,
    ]);
    succeeds(copy.args(paths));
    let key = std::fs::read_to_string(public).unwrap().trim().to_owned();
    (dir, key)
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

#[track_caller]
fn samovar(words: &[&str], code: i32) -> String {
    let output = support::samovar().args(words).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {errors}");
    assert_eq!(errors.lines().count(), usize::from(code > 1), "{errors}");
    match code {
        0 | 1 => String::from_utf8(output.stdout).unwrap(),
        _ => errors,
    }
}

#[track_caller]
fn check_order(report: &Value) {
    let mut seen = HashSet::new();
    for path in report["paths"].as_array().unwrap() {
        seen.insert(path["path"].as_str().unwrap());
        for reference in path["references"].as_array().unwrap() {
            assert!(seen.contains(reference.as_str().unwrap()), "{path}");
        }
    }
}

#[test]
fn closure_of_a_static_cache() {
    let top = sample("top");
    let (dir, key) = copied(&[&top]);
    let (addr, files) = Files::serve(&dir.path().join("cache"), no_rule());
    let url = format!("http://{addr}/");
    let report: Value =
        serde_json::from_str(&samovar(&["closure", "--json", &url, &top], 0)).unwrap();
    let paths = report["paths"].as_array().unwrap();
    let found: BTreeSet<_> = paths
        .iter()
        .map(|path| path["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, sample_closure());
    assert_eq!(paths.len(), found.len());
    assert_eq!(paths.last().unwrap()["path"], top.as_str());
    check_order(&report);
    let sum = |key: &str| -> u64 { paths.iter().map(|path| path[key].as_u64().unwrap()).sum() };
    assert_eq!(report["narSize"], sum("narSize"));
    // The files are compressed, and the narinfos contain their sizes.
    assert_eq!(report["downloadSize"], sum("downloadSize"));
    assert_ne!(report["downloadSize"], report["narSize"]);
    // A path has the names and values that Nix prints. Nix leaves out what it does not know; the
    // compression is unknown to Nix 2.8, which also prints hashes in another form.
    let home = dir.path().join("home");
    let mut path_info = nix("nix", &home);
    path_info.args(["path-info", "--json", "--store"]);
    let file = format!("file://{}", dir.path().join("cache").display());
    let printed = path_info.arg(file).arg(&top).output().unwrap().stdout;
    let printed: Value = serde_json::from_slice(&printed).unwrap();
    let sorted = |value: &Value| {
        let mut value = value.clone();
        if let Some(list) = value.as_array_mut() {
            list.sort_by_key(ToString::to_string);
        }
        value
    };
    for (name, value) in paths.last().unwrap().as_object().unwrap() {
        match printed[0].get(name) {
            Some(_) if name == "narHash" => {}
            Some(other) => assert_eq!(sorted(value), sorted(other), "{name}"),
            None => assert!(
                name == "compression" || value.is_null(),
                "{name}: {printed}"
            ),
        }
    }
    // One request per path, one more for the root to check that it exists, and one bulk query.
    let asked = files.asked();
    let posts = asked
        .iter()
        .filter(|line| line.starts_with("POST "))
        .count();
    let narinfos = asked
        .iter()
        .filter(|line| line.ends_with(".narinfo"))
        .count();
    assert_eq!((posts, narinfos), (1, found.len() + 1));

    let store = sample_store();
    let text = samovar(&["closure", "--store", &store, &url, &top], 0);
    assert!(text.starts_with("0 paths, 0 B to download"), "{text}");
    assert!(text.contains("331 in the local store"), "{text}");

    samovar(&["closure", "--trusted-public-keys", &key, &url, &top], 0);
    let other = "other-1:A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";
    let both = format!("{other} {key}");
    samovar(&["closure", "--trusted-public-keys", &both, &url, &top], 0);
    let text = samovar(&["closure", "--trusted-public-keys", other, &url, &top], 1);
    assert!(text.contains(&format!("untrusted  {top}\n")), "{text}");
}

#[test]
fn missing_paths_are_reported() {
    let top = sample("top");
    let (dir, _) = copied(&[&top]);
    let cache = dir.path().join("cache");
    let gone = sample("no_references");
    let hash_part = &gone["/nix/store/".len()..][..32];
    std::fs::remove_file(cache.join(format!("{hash_part}.narinfo"))).unwrap();
    let (addr, _) = Files::serve(&cache, no_rule());
    let url = format!("http://{addr}");
    let text = samovar(&["closure", &url, &top], 1);
    assert!(text.contains(&format!("missing  {gone}\n")), "{text}");
    let text = samovar(&["query", &url, &top, &gone, hash_part], 1);
    assert_eq!(
        text,
        format!("present {top}\nabsent {gone}\nabsent {hash_part}\n")
    );
    assert_eq!(
        samovar(&["query", &url, &top], 0),
        format!("present {top}\n")
    );
    let text = samovar(&["closure", &url, &sample("absent")], 1);
    assert!(
        text.contains("0 paths") && text.contains("1 missing"),
        "{text}"
    );
}

/// Invalid or truncated responses to bulk queries are rejected.
#[test]
fn incomplete_bulk_answers_are_rejected() {
    let text = sample("text");
    let hash_part = text["/nix/store/".len()..][..32].to_owned();
    let (dir, _) = copied(&[&text]);
    let cache = dir.path().join("cache");
    let narinfo = std::fs::read(cache.join(format!("{hash_part}.narinfo"))).unwrap();
    let mut whole = format!("narinfos 1 1\npath {hash_part} {}\n", narinfo.len()).into_bytes();
    whole.extend(narinfo);
    whole.extend(b"end 1 0 0\n");
    let cut = whole[..whole.len() - 5].to_vec();
    let records = "200 OK\r\nContent-Type: text/x-nix-narinfos".to_owned();
    // A web application that responds to every URL with its own page.
    let page: Rule = Box::new(|method, _, _| {
        let head = "200 OK\r\nContent-Type: text/html".to_owned();
        (method == "POST").then(|| (head, b"<html>".to_vec()))
    });
    let cut_closure: Rule = {
        let (records, cut) = (records.clone(), cut.clone());
        Box::new(move |method, path, _| match (method, path) {
            ("POST", _) => Some((records.clone(), whole.clone())),
            (_, path) if path.starts_with("/closure/") => Some((records.clone(), cut.clone())),
            _ => None,
        })
    };
    for rule in [page, cut_closure] {
        let (addr, files) = Files::serve(&cache, rule);
        let report = samovar(&["closure", "--json", &format!("http://{addr}"), &text], 0);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["count"], 2);
        check_order(&report);
        assert!(files.asked().iter().any(|line| line.ends_with(".narinfo")));
    }
    let cut_list: Rule =
        Box::new(move |method, _, _| (method == "POST").then(|| (records.clone(), cut.clone())));
    let (addr, _) = Files::serve(&cache, cut_list);
    let error = samovar(&["query", &format!("http://{addr}"), &text], 3);
    assert!(error.contains("invalid answer"), "{error}");
}

#[test]
fn temporary_errors_are_retried() {
    let text = sample("text");
    let (dir, _) = copied(&[&text]);
    let rule: Rule = Box::new(|_, path, count| {
        let is_early = count < 2 && path.ends_with(".narinfo");
        let head = "503 Service Unavailable\r\nRetry-After: 0".to_owned();
        is_early.then(|| (head, Vec::new()))
    });
    let (addr, _) = Files::serve(&dir.path().join("cache"), rule);
    samovar(&["query", &format!("http://{addr}"), &text], 0);
}

#[test]
fn errors_name_the_cause() {
    let text = sample("text");
    let (dir, _) = copied(&[&text]);
    let cache = dir.path().join("cache");
    let (addr, _) = Files::serve(&cache, no_rule());
    let url = format!("http://{addr}");
    assert!(samovar(&["closure", &url], 2).contains("[PATH]..."));
    assert!(samovar(&["query", &url, "nonsense"], 2).contains("\"nonsense\""));
    assert!(samovar(&["query", "ftp://example.org", &text], 2).contains("http://"));
    let elsewhere = format!("{url}/elsewhere");
    assert!(samovar(&["query", &elsewhere, &text], 3).contains("answered 404"));
    let store = format!("local?root={}", dir.path().display());
    let error = samovar(&["closure", "--store", &store, &url, &text], 3);
    assert!(error.contains("the database does not exist"), "{error}");
    // The response is the narinfo of another path.
    let reference = sample("text_reference");
    let [from, to] = [&reference, &text]
        .map(|path| cache.join(format!("{}.narinfo", &path["/nix/store/".len()..][..32])));
    std::fs::copy(from, to).unwrap();
    let error = samovar(&["query", &url, &text], 3);
    assert!(error.contains("with the narinfo of"), "{error}");
    let closed = ClosedPort::new();
    let error = samovar(&["query", &format!("http://{}", closed.addr()), &text], 3);
    assert!(error.contains("cannot be reached"), "{error}");
}

#[test]
fn help_and_version() {
    assert!(samovar(&["--help"], 0).contains("closure"));
    assert!(samovar(&["help"], 0).contains("closure"));
    assert!(samovar(&["help", "serve"], 0).contains("--check-config"));
    assert!(samovar(&["closure", "-h"], 0).contains("Exit code 0"));
    assert!(samovar(&["--version"], 0).starts_with("samovar 0."));
}
