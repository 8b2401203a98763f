//! `samovar mount` never returns wrong bytes, and never waits without end: neither for a damaged
//! file, nor for a server that cannot be reached, nor with a hostile manifest.

mod support;
mod support_mount;
mod support_uploads;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use support_mount::{Fixture, Line, Snapshot, can_mount, listed};
use testkit::eventually;
use testkit::process::{Process, fails};

const EIO: i32 = 5;

/// Number of bytes of responses with which a snapshot is mounted, and few of its blocks arrive.
const SOME: usize = 1_500_000;

#[test]
fn a_damaged_file_gives_an_error_and_all_others_are_right() {
    if !can_mount() {
        return;
    }
    for compression in ["none", "zstd"] {
        let fixture = Fixture::new(compression);
        fixture.damage();
        let mount = fixture.mount("mnt", &[]);
        let mut damaged = Vec::new();
        for (found, expected) in listed(&mount.dir).into_iter().zip(listed(&fixture.tree())) {
            if found != expected {
                assert_eq!(found.3, Err(EIO), "{:?}", found.0);
                damaged.push(found.0);
            }
        }
        assert!(!damaged.is_empty(), "{compression}");
        for path in damaged {
            let path = path.to_str().unwrap();
            mount.process.wait_for(path);
            assert_eq!(mount.read(path), Err(EIO));
        }
    }
}

#[test]
fn damage_on_this_machine_is_repaired() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let mount = fixture.mount("mnt", &[]);
    fixture.wait_until_whole();
    drop(mount);
    let name = &fixture.snapshot.manifest.store_path[11..];
    let folder = fixture.cache().join("snapshots").join(name);
    let write = |name: &str, bytes: &[u8], at: u64| {
        let path = folder.join(name);
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    // As after a power cut: another boot, and lost contents.
    write("marks", b"another boot", 20);
    write("marks", &[0], 56);
    write("nar", &[0; 5000], 3 << 20);
    let mount = fixture.mount("mnt", &[]);
    assert_eq!(listed(&mount.dir), listed(&fixture.tree()));
}

#[test]
fn reads_fail_while_the_server_is_away_and_succeed_when_it_is_back() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new("zstd");
    let line = Line::to(fixture.server.address, SOME);
    let mount = fixture.mount_from(&line.url(), "mnt", &["--timeout", "1"]);
    line.connect(None);
    fixture.server.process.signal("KILL");
    fixture.server.process.wait();
    mount.process.wait_for("I/O errors");
    // Names and attributes are all here.
    let start = Instant::now();
    assert_eq!(mount.read("deep/large-3"), Err(EIO));
    assert_eq!(fs::read_dir(mount.dir.join("many")).unwrap().count(), 300);
    assert_eq!(mount.read("deep/large-2"), Err(EIO));
    assert!(start.elapsed().as_secs() < 30);
    fixture.server = fixture.site.start();
    line.release();
    line.connect(Some(fixture.server.address));
    mount.process.wait_for("reachable again");
    let expected = listed(&fixture.tree());
    eventually("everything is readable", || listed(&mount.dir) == expected);
}

#[test]
fn a_silent_server_counts_as_away() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let line = Line::to(fixture.server.address, SOME);
    let mount = fixture.mount_from(&line.url(), "mnt", &["--timeout", "1"]);
    assert_eq!(mount.read("deep/large-3"), Err(EIO));
    line.release();
    let expected = listed(&fixture.tree());
    eventually("everything is readable", || listed(&mount.dir) == expected);
}

#[test]
fn a_signal_ends_the_wait_for_a_silent_server() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let line = Line::to(fixture.server.address, 0);
    let mut process = Process::spawn(&mut fixture.command(&line.url(), "app", "mnt"));
    eventually("a request is sent", || line.connection_count() > 0);
    process.signal("TERM");
    assert_eq!(process.wait(), Some(143));
}

#[test]
fn offline_uses_only_what_is_here() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let line = Line::to(fixture.server.address, SOME);
    let url = line.url();
    let error = fails(fixture.command(&url, "app", "mnt").arg("--offline"));
    assert!(error.contains("never mounted on this machine"), "{error}");
    // A part of the snapshot arrives.
    let mount = fixture.mount_from(&url, "mnt", &[]);
    line.connect(None);
    drop(mount);
    let mount = fixture.mount_from(&url, "mnt", &["--offline"]);
    assert_eq!(mount.read("deep/large-3"), Err(EIO));
    assert_eq!(
        fs::read_link(mount.dir.join("link")).unwrap().to_str(),
        Some("deep/large-0")
    );
    drop(mount);
    line.release();
    line.connect(Some(fixture.server.address));
    let mount = fixture.mount_from(&url, "mnt", &[]);
    fixture.wait_until_whole();
    drop(mount);
    line.connect(None);
    let mount = fixture.mount_from(&url, "mnt", &["--offline"]);
    assert_eq!(listed(&mount.dir), listed(&fixture.tree()));
}

#[test]
fn hostile_manifests_are_refused() {
    if !can_mount() {
        return;
    }
    let original = Fixture::new("none");
    let text = original.snapshot.text.clone();
    let digest = text.lines().find_map(|line| {
        let line = line.strip_suffix(" run")?;
        line.rsplit(' ').next()
    });
    let digest = digest.unwrap();
    let size = original.snapshot.tree.nar.len();
    let huge = format!(" {} ", u64::pow(2, 45));
    let cases = [
        (" link\n", " ../link\n"),
        (" link\n", " ..\n"),
        (&*format!(" {size}\n"), " 1\n"),
        (" 10 ", &*huge),
        ("samovar-manifest 1", "samovar-manifest 9"),
    ];
    let url = original.server.url();
    let mut generation = 1;
    let mut publish = |text: String| {
        let snapshot = Snapshot::with_text(original.snapshot.tree.clone(), text);
        snapshot.publish(&original.server, &original.token);
        generation += 1;
        format!("app@{generation}")
    };
    for (from, to) in cases {
        assert!(text.contains(from), "{from}");
        let source = publish(text.replacen(from, to, 1));
        let error = fails(&mut original.command(&url, &source, "mnt"));
        assert!(
            error.contains(".manifest cannot be trusted: it is not a valid manifest: line "),
            "{error}"
        );
    }
    // The NAR hash of another tree.
    let hash = text.split(' ').nth(3).unwrap();
    let last = if hash.ends_with('a') { 'b' } else { 'a' };
    let other = format!("{}{last}", &hash[..51]);
    let source = publish(text.replacen(hash, &other, 1));
    let error = fails(&mut original.command(&url, &source, "mnt"));
    assert!(
        error.contains("not the store path of its content"),
        "{error}"
    );
    // Wrong digests give errors, not contents.
    let wrong = format!(
        "{}{}",
        &digest[..42],
        if digest.ends_with('A') { 'E' } else { 'A' }
    );
    let source = publish(text.replacen(digest, &wrong, 1));
    let mut command = original.command(&url, &source, "mnt");
    let dir = original.dir.path().join("mnt");
    let mount = support_mount::Mount::start(&mut command, dir);
    assert_eq!(mount.read("run"), Err(EIO));
    assert_eq!(mount.read("many/file-1"), Ok(b"1\n".to_vec()));
}
