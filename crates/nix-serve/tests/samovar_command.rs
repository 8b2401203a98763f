//! `samovar` reports the same about a store through a running server as Nix does with direct
//! access.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::Value;
use support::client::{Client, succeeds};
use support::{OwnStore, local, sample, sample_list, sample_root};
use support_process::serve_sample;

#[track_caller]
fn samovar(words: &[&str]) -> (String, ExitCode) {
    let words = ["samovar"].iter().chain(words);
    let mut out = Vec::new();
    let code = samovar::run(words.map(Into::into), &mut out).unwrap();
    (String::from_utf8(out).unwrap(), code)
}

/// Returns the store paths in a report, in order.
#[track_caller]
fn paths(report: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(report).unwrap();
    let paths = report["paths"].as_array().unwrap();
    assert_eq!(report["count"], paths.len());
    let text = |path: &Value| path["path"].as_str().unwrap().to_owned();
    paths.iter().map(text).collect()
}

fn requisites(path: &str) -> BTreeSet<String> {
    let client = Client::new();
    let mut nix = client.command("nix-store");
    nix.arg("--store").arg(sample_root());
    let text = succeeds(nix.args(["--query", "--requisites", path]));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_closure_is_what_nix_store_says() {
    let (_server, addr) = serve_sample(&[]);
    let url = format!("http://{addr}");
    for key in ["top", "self_reference", "text_reference", "no_references"] {
        let path = sample(key);
        let (report, outcome) = samovar(&["closure", "--json", &url, &path]);
        assert_eq!(outcome, ExitCode::SUCCESS);
        let found = paths(&report);
        assert_eq!(found.last(), Some(&path));
        let count = found.len();
        let found: BTreeSet<_> = found.into_iter().collect();
        assert_eq!((found.len(), &found), (count, &requisites(&path)), "{key}");
    }
}

/// A path that is in several closures is reported once.
#[test]
fn closures_that_overlap_are_told_once() {
    let (_server, addr) = serve_sample(&["--path", "/cache"]);
    let url = format!("http://{addr}/cache/");
    let mut roots = vec![sample("self_reference"), sample("top"), sample("text")];
    roots.extend(sample_list("closure").into_iter().step_by(40));
    let expected: BTreeSet<_> = roots.iter().flat_map(|path| requisites(path)).collect();
    let mut words = vec!["closure", "--json", &url];
    words.extend(roots.iter().map(String::as_str));
    let (report, _) = samovar(&words);
    let found = paths(&report);
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn what_the_local_store_has_is_left_out() {
    let (_server, addr) = serve_sample(&[]);
    let url = format!("http://{addr}");
    let (store, path) = (OwnStore::new(), sample("top"));
    let uri = local(store.root());
    let words = ["closure", "--json", "--store", &uri, &url, &path];
    let all = paths(&samovar(&words).0);
    assert_eq!(all.len(), sample_list("closure").len());
    // Take a path near the leaves, whose closure is small.
    let part = &all[20];
    store.run("nix", &["copy", "--no-check-sigs", "--from", &url, part]);
    let has = requisites(part);
    let left: Vec<_> = all
        .iter()
        .filter(|path| !has.contains(*path))
        .cloned()
        .collect();
    assert_eq!(paths(&samovar(&words).0), left);
}

#[test]
fn which_paths_are_there() {
    let (_server, addr) = serve_sample(&[]);
    let url = format!("http://{addr}");
    let (here, not) = (sample("top"), sample("absent"));
    let (text, outcome) = samovar(&["query", &url, &here, &not, &here]);
    assert_eq!(
        text,
        format!("present {here}\nabsent {not}\npresent {here}\n")
    );
    assert_eq!(outcome, ExitCode::FAILURE);
    assert_eq!(samovar(&["query", &url, &here]).1, ExitCode::SUCCESS);
}
