//! `samovar mount`: a mounted snapshot has the files of its tree, whoever reads them first.

mod support;
mod support_mount;
mod support_uploads;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use support_mount::{Fixture, Mount, can_mount, listed, unmount};
use testkit::eventually;
use testkit::process::{Process, fails, output};

#[test]
fn a_mounted_snapshot_has_the_files_of_its_tree() {
    if !can_mount() {
        return;
    }
    for compression in ["zstd", "none", "gzip"] {
        let fixture = Fixture::new(compression);
        let mut mount = fixture.mount("mnt", &[]);
        assert!(mount.line.contains("mounted app@1 on "), "{}", mount.line);
        assert!(mount.line.contains(", 308 files;"), "{}", mount.line);
        assert_eq!(listed(&mount.dir), listed(&fixture.tree()), "{compression}");
        assert!(!mount.dir.join("absent").exists());
        let error = fs::write(mount.dir.join("new"), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(30), "read-only: {error}");
        fixture.wait_until_whole();
        mount.process.signal("TERM");
        assert_eq!(mount.process.wait(), Some(0));
        assert_eq!(fs::read_dir(&mount.dir).unwrap().count(), 0);
    }
}

#[test]
fn any_part_of_a_file_is_read_first() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let mount = fixture.mount("mnt", &[]);
    for number in [3, 0, 2, 1] {
        let path = format!("deep/large-{number}");
        let expected = fs::read(fixture.tree().join(&path)).unwrap();
        let file = fs::File::open(mount.dir.join(&path)).unwrap();
        for at in [2 << 20, 5, (1 << 20) - 3, expected.len() - 7] {
            let mut part = [0; 7];
            file.read_exact_at(&mut part, at as u64).unwrap();
            assert_eq!(part, expected[at..at + 7], "{path} at {at}");
        }
        assert_eq!(file.read_at(&mut [0; 7], expected.len() as u64).unwrap(), 0);
    }
}

#[test]
fn a_snapshot_is_mounted_several_times() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let first = fixture.mount("first", &[]);
    let second = fixture.mount("second", &[]);
    assert_eq!(listed(&first.dir), listed(&second.dir));
    let inode = |mount: &Mount| fs::metadata(mount.dir.join("run")).unwrap().ino();
    assert_eq!(inode(&first), inode(&second));
    // The same command does nothing, and another one is refused.
    let url = fixture.server.url();
    let text = output(&mut fixture.command(&url, "app", "first"));
    assert!(text.starts_with("app@1 is mounted on "), "{text}");
    let tree = fixture.snapshot.tree.store_path.clone();
    let error = fails(&mut fixture.command(&url, &tree, "first"));
    assert!(error.contains("unmount it with fusermount3 -u"), "{error}");
    // A mount goes on after the end of the other one.
    drop(first);
    fixture.wait_until_whole();
    assert_eq!(listed(&second.dir), listed(&fixture.tree()));
}

#[test]
fn a_killed_mount_is_replaced() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let mut mount = fixture.mount("mnt", &[]);
    assert_eq!(mount.read("many/file-7"), Ok(b"7\n".to_vec()));
    mount.process.signal("KILL");
    mount.process.wait();
    let stale = rustix::fs::statfs(&mount.dir).unwrap_err();
    assert_eq!(stale, rustix::io::Errno::NOTCONN);
    let again = fixture.mount("mnt", &[]);
    assert_eq!(listed(&again.dir), listed(&fixture.tree()));
}

/// A process that waits for its own answer when it is killed never ends, and neither does anything
/// that reads the directory.
#[test]
fn the_process_asks_nothing_of_its_own_mount() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let dir = fixture.dir.path().join("mnt");
    let calls = fixture.dir.path().join("calls");
    let command = fixture.command(&fixture.server.url(), "app", "mnt");
    let mut traced = support::bare("strace");
    traced.args(["-f", "-s", "4096", "-e", "trace=%file", "-o"]);
    traced.arg(&calls);
    traced.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        traced.env(name, value.unwrap_or_default());
    }
    if Process::try_spawn(&mut support::bare("strace")).is_err() {
        println!("not tested: there is no strace");
        return;
    }
    let mount = Mount::start(&mut traced, dir.clone());
    assert_eq!(mount.read("many/file-7"), Ok(b"7\n".to_vec()));
    let calls = fs::read_to_string(calls).unwrap();
    let path = format!("\"{}", dir.display());
    let of_mount = |line: &&str| line.contains(&path);
    let (_, after) = calls.split_once(" mount(").unwrap();
    let (own, after) = after.split_once('\n').unwrap();
    assert!(of_mount(&own), "{own}");
    let asked: Vec<&str> = after.lines().filter(of_mount).collect();
    assert_eq!(asked, [] as [&str; 0]);
}

#[test]
fn the_process_ends_when_the_snapshot_is_unmounted() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let mut mount = fixture.mount("mnt", &[]);
    unmount(&mount.dir);
    assert_eq!(mount.process.wait(), Some(0));
    // In the background, the command ends once the snapshot is mounted.
    let url = fixture.server.url();
    let mut command = fixture.command(&url, "app@1", "mnt");
    let text = output(command.arg("--background"));
    assert!(text.starts_with("mounted app@1 on "), "{text}");
    assert_eq!(mount.read("many/file-8"), Ok(b"8\n".to_vec()));
    unmount(&mount.dir);
    let error = fails(fixture.command(&url, "app@2", "mnt").arg("--background"));
    assert!(error.contains("no generation 2"), "{error}");
}

#[test]
fn a_store_path_without_a_manifest_is_verified_first() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("none");
    let url = fixture.server.url();
    let path = fixture.snapshot.tree.store_path.clone();
    let dir = fixture.dir.path().join("mnt");
    let mut command = fixture.command(&url, &path, "mnt");
    let mount = Mount::start(&mut command, dir.clone());
    let contents = |root: &Path| -> Vec<_> {
        let entries = listed(root).into_iter();
        entries
            .map(|(path, _, _, content)| (path, content))
            .collect()
    };
    assert_eq!(contents(&dir), contents(&fixture.tree()));
    let modes = ["run", "white space\n", "deep"].map(|name| {
        let metadata = fs::metadata(dir.join(name)).unwrap();
        (metadata.mode() & 0o777, metadata.mtime())
    });
    assert_eq!(modes, [(0o555, 1), (0o444, 1), (0o555, 1)]);
    drop(mount);
    // It is on this machine now.
    let mut command = fixture.command("http://127.0.0.1:9", &path, "mnt");
    let mount = Mount::start(command.arg("--offline"), dir.clone());
    assert_eq!(contents(&dir), contents(&fixture.tree()));
    drop(mount);
    // A damaged one is not mounted.
    let file = fixture.site.storage().join(fixture.snapshot.tree.url());
    let stored = fs::OpenOptions::new().write(true).open(&file).unwrap();
    stored.write_all_at(b"????", 5 << 20).unwrap();
    fs::remove_dir_all(fixture.cache()).unwrap();
    let error = fails(&mut fixture.command(&url, &path, "mnt"));
    assert!(error.contains("damaged on the server"), "{error}");
    eventually("nothing is mounted", || {
        fs::read_dir(&dir).unwrap().count() == 0
    });
}
