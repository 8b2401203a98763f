//! If the disk of the storage is full, tokens can be revoked, caches be deleted, and the collector
//! runs, with a server and without. Uploads do not use the space that is reserved for that.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_disks;
mod support_uploads;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use support::samovar;
use support_disks::SmallDisk;
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;
use testkit::process::output;

/// Options of disks that build logs fill: one by their lengths, one by their number.
const DISKS: [(&str, usize); 2] = [("size=40m", 1 << 20), ("size=40m,nr_inodes=200", 1)];

/// Returns a site with its storage on a small disk.
fn site(disk: &SmallDisk) -> Site {
    let dir = tempfile::tempdir().unwrap();
    let storage = disk.path().join("storage");
    let site = Site::with_storage(dir, storage);
    site.configure_empty("uploads.retention = \"30d\"\n");
    site
}

/// Puts build logs until the disk is full, and lets another program use the rest.
fn fill(disk: &SmallDisk, server: &Running, token: &str, log_len: usize) {
    let log = vec![b'x'; log_len];
    for number in 0..1000 {
        let target = format!("/log/{number:032}-a.drv");
        match server.put(token, &target, &log).status {
            200 => {}
            507 => break,
            status => assert_eq!(status, 507),
        }
    }
    if log_len > 1 {
        disk.fill(0);
    }
    // The other program also uses all inodes.
    for number in 0..1000 {
        if fs::write(disk.path().join(number.to_string()), "").is_err() {
            break;
        }
    }
}

fn command(site: &Site, arguments: &[&str]) -> Command {
    let mut command = samovar();
    command
        .args(arguments)
        .args(["--config"])
        .arg(site.config());
    command
}

/// Whether the storage has its reserve.
fn has_reserve(site: &Site) -> bool {
    let reserve = site.storage().join(".samovar/reserve/0");
    reserve.metadata().is_ok_and(|file| file.blocks() > 0)
}

#[test]
fn what_frees_space_works_on_a_full_disk() {
    for (options, log_len) in DISKS {
        for is_stopped in [false, true] {
            let Some(disk) = SmallDisk::new(options) else {
                return;
            };
            let site = site(&disk);
            let server = site.start();
            let (token, other) = (site.token(&[]), site.token(&["--name", "other"]));
            let path = MadePath::new("path");
            server.publish(&token, &path);
            assert!(has_reserve(&site));
            fill(&disk, &server, &token, log_len);
            let server = match is_stopped {
                false => Some(server),
                true => {
                    server.process.terminate();
                    None
                }
            };
            let revoked = output(&mut command(&site, &["token", "revoke", "--name", "other"]));
            assert_eq!(revoked, "1 token was revoked\n");
            assert!(!has_reserve(&site));
            let server = server.unwrap_or_else(|| site.start());
            let log = |token: &str| {
                let target = format!("/log/{}-a.drv", "z".repeat(32));
                server.put(token, &target, "x").status
            };
            assert_eq!(log(&other), 401);
            // Uploads leave the space that was given back to the commands.
            let is_refused = |number: usize| {
                let target = format!("/log/{number:032}-b.drv");
                server.put(&token, &target, vec![b'x'; log_len]).status == 507
            };
            assert!((0..100).any(is_refused));
            server.assert_serves(&path);
            let summary = output(&mut command(&site, &["gc"]));
            assert!(summary.starts_with("0 paths condemned"), "{summary}");
            let deleted = output(&mut command(
                &site,
                &["cache", "delete", "--yes", "default"],
            ));
            assert!(deleted.starts_with("deleted the cache"), "{deleted}");
            assert_eq!(fs::read_dir(site.storage().join("log")).unwrap().count(), 0);
            server.assert_lacks(&path);
            for entry in fs::read_dir(disk.path()).unwrap() {
                let entry = entry.unwrap().path();
                if entry.is_file() {
                    fs::remove_file(entry).unwrap();
                }
            }
            eventually("the reserve is there again", || has_reserve(&site));
            assert_eq!(log(&token), 200);
        }
    }
}
