//! `samovar export` writes a directory that any Nix can read as a binary cache, without Samovar.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use support::{samovar, sample, sample_store};
use support_uploads::{MadePath, Site, files_below};
use testkit::nix::{hash_part, nix};
use testkit::process::{fails, output};

fn export(site: &Site, to: &Path, arguments: &[&str]) -> Command {
    let mut command = samovar();
    command.args(["export", "--config"]).arg(site.config());
    command.arg("--to").arg(to).args(arguments);
    command
}

/// Imports the closures of sample paths into the storage of a site.
fn fill(site: &Site, paths: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let to = format!("file://{}?compression=xz", site.storage().display());
    let mut copy = nix("nix", home.path());
    copy.args(["copy", "--from", &sample_store(), "--to", &to]);
    output(copy.args(paths));
    output(samovar().args(["import", "--config"]).arg(site.config()));
}

/// Returns a command that copies a path from a directory into a new store, and so verifies its
/// contents and signatures.
fn pull(site: &Site, from: &Path, path: &str) -> Command {
    let home = site
        .dir()
        .join(format!("client-{}", from.file_name().unwrap().display()));
    let to = format!("local?root={}", home.join("store").display());
    let mut copy = nix("nix", &home);
    copy.args([
        "copy",
        "--from",
        &format!("file://{}", from.display()),
        "--to",
        &to,
        path,
    ]);
    copy.args(["--option", "trusted-public-keys", &site.public_key]);
    copy
}

#[test]
fn nix_reads_the_directory_without_a_server() {
    let (site, path, other) = (Site::new(), sample("self_reference"), sample("built"));
    fill(&site, &[&path, &other]);
    for (name, link) in [("copied", &[][..]), ("linked", &["--link"])] {
        let to = site.dir().join(name);
        let text = output(&mut export(&site, &to, link));
        assert!(
            text.contains(" paths exported, ") && text.ends_with(", 0 faults\n"),
            "{text}"
        );
        output(&mut pull(&site, &to, &path));
        output(&mut pull(&site, &to, &other));
        let files = files_below(&to);
        let nar = files.iter().find(|file| file.starts_with("nar/")).unwrap();
        let inode = |directory: &Path| fs::metadata(directory.join(nar)).unwrap().ino();
        assert_eq!(inode(&to) == inode(&site.storage()), !link.is_empty());
        let again = output(&mut export(&site, &to, link));
        assert!(
            again.contains(" paths exported, 0 B written, 0 faults"),
            "{again}"
        );
        assert_eq!(files_below(&to), files);
        // The narinfos equal those in the storage directory.
        for file in files.iter().filter(|file| file.ends_with(".narinfo")) {
            let text = |directory: &Path| fs::read_to_string(directory.join(file)).unwrap();
            assert_eq!(text(&to), text(&site.storage()));
        }
    }
    let inside = site.storage().join("export");
    assert!(fails(&mut export(&site, &inside, &[])).contains("is the storage itself"));
}

#[test]
fn closures_of_named_paths_are_exported_alone() {
    let (site, path) = (Site::new(), sample("self_reference"));
    fill(&site, &[&path, &sample("kinds")]);
    let to = site.dir().join("part");
    output(&mut export(&site, &to, &[&path]));
    output(&mut pull(&site, &to, &path));
    let other = format!("{}.narinfo", hash_part(&sample("kinds")));
    assert!(site.storage().join(&other).exists() && !to.join(&other).exists());
    let absent = MadePath::new("absent").store_path;
    assert!(fails(&mut export(&site, &to, &[&absent])).contains("the cache does not have"));
}

#[test]
fn the_caches_of_a_storage_are_exported_each_with_its_keys() {
    let site = Site::new();
    site.configure_empty("[caches.main]\n[caches.team]\nsecret-key-files = []\n");
    let server = site.start();
    let token = site.token(&[]);
    let (of_first, of_team) = (MadePath::new("first"), MadePath::new("second"));
    for (cache, path) in [("main", &of_first), ("team", &of_team)] {
        for (target, body) in [
            (path.file_target(), path.file.clone()),
            (path.target(), path.narinfo().into_bytes()),
        ] {
            let response = server.put(&token, &format!("/{cache}{target}"), body);
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
    let (first, team) = (site.dir().join("a"), site.dir().join("b"));
    output(&mut export(&site, &first, &[]));
    output(&mut export(&site, &team, &["--cache", "team"]));
    let narinfo = |to: &Path, path: &MadePath| fs::read_to_string(to.join(&path.target()[1..]));
    assert!(
        narinfo(&first, &of_first)
            .unwrap()
            .contains("\nSig: cache-1:")
    );
    assert!(!narinfo(&team, &of_team).unwrap().contains("\nSig: "));
    assert!(narinfo(&first, &of_team).is_err() && narinfo(&team, &of_first).is_err());
    let unknown = fails(&mut export(&site, &team, &["--cache", "other"]));
    assert!(unknown.contains("has no cache \"other\""), "{unknown}");
}

#[test]
fn what_is_damaged_or_incomplete_is_named() {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    let token = site.token(&[]);
    let outer = MadePath::new("outer").referring_to(&sample("built"));
    let (damaged, lost, fine) = (
        MadePath::new("damaged"),
        MadePath::new("lost"),
        MadePath::new("fine"),
    );
    for path in [&outer, &damaged, &lost, &fine] {
        server.publish(&token, path);
    }
    let mut bytes = damaged.file.clone();
    bytes[100] ^= 1;
    fs::write(site.storage().join(damaged.url()), bytes).unwrap();
    fs::remove_file(site.storage().join(lost.url())).unwrap();
    let to = site.dir().join("to");
    let done = export(&site, &to, &[]).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{text}");
    let line = |start: &str, end: &str| {
        assert!(
            text.lines()
                .any(|line| line.starts_with(start) && line.ends_with(end)),
            "{start} … {end}: {text}"
        );
    };
    line(
        &format!("not exported {}", damaged.store_path),
        "the file is damaged: run samovar fsck --deep",
    );
    line(
        &format!("not exported {}", lost.store_path),
        "the file is missing",
    );
    let missing = format!("the cache does not have {}", sample("built"));
    line(&format!("incomplete {}", outer.store_path), &missing);
    assert!(
        text.ends_with("2 paths exported, 230 B written, 3 faults\n") || text.contains("3 faults")
    );
    assert!(to.join(&fine.target()[1..]).exists());
    for path in [&damaged, &lost] {
        assert!(!to.join(&path.target()[1..]).exists() && !to.join(path.url()).exists());
    }
}
