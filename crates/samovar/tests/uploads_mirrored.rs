//! The storage directory is a plain binary cache of the first cache only. If another cache becomes
//! the first one, the directory keeps nothing that only the clients of the former may read.

mod support;
mod support_protocol;
mod support_uploads;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use support::{bare, samovar};
use support_protocol::Push;
use support_uploads::{MadePath, Running, Site, on_small_disk};
use testkit::eventually;
use testkit::process::output;

const LOG: &str = "log/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a.drv";

#[test]
fn another_first_cache_does_not_inherit_narinfos_and_logs() {
    let site = Site::new();
    site.configure_empty("[caches.private]\nprefix = \"/\"\n");
    let server = site.start();
    let (token, path) = (site.token(&[]), MadePath::new("made"));
    server.publish(&token, &path);
    assert_eq!(server.put(&token, &format!("/{LOG}"), "text").status, 200);
    let narinfo = site.storage().join(format!("{}.narinfo", path.hash_part()));
    let log = site.storage().join(LOG);
    assert!(narinfo.exists() && log.exists());
    server.process.terminate();

    let both = "[caches.a]\nprefix = \"/\"\n[caches.private]\nprefix = \"/private\"\n";
    site.configure_empty(both);
    let server = site.start();
    assert!(!narinfo.exists() && !log.exists());
    for (prefix, status) in [("", 404), ("/private", 200)] {
        assert_eq!(
            server.get(&format!("{prefix}{}", path.target())).status,
            status
        );
        assert_eq!(server.get(&format!("{prefix}/{LOG}")).status, status);
    }
    server.process.terminate();
    let import = samovar()
        .arg("import")
        .arg("--config")
        .arg(site.config())
        .output()
        .unwrap();
    assert!(!narinfo.exists(), "{import:?}");
    let fsck = output(samovar().arg("fsck").arg("--storage").arg(site.storage()));
    assert!(fsck.contains("0 findings"), "{fsck}");

    // An older version could leave a narinfo of the former first cache in the directory.
    fs::write(&narinfo, path.narinfo()).unwrap();
    let fsck = |more: &[&str]| {
        let mut command = samovar();
        command.arg("fsck").arg("--storage").arg(site.storage());
        command.args(more).output().unwrap()
    };
    let found = String::from_utf8(fsck(&[]).stdout).unwrap();
    assert!(
        found.contains("is of the cache \"private\" only"),
        "{found}"
    );
    fsck(&["--repair"]);
    assert!(!narinfo.exists());

    // The directory has everything again when the cache is the first one again.
    site.configure_empty("[caches.private]\nprefix = \"/\"\n");
    let server = site.start();
    assert_eq!(fs::read_to_string(&log).unwrap(), "text");
    eventually("the narinfo is written again", || narinfo.exists());
    assert_eq!(server.get(&path.target()).status, 200);
}

#[test]
fn a_cache_that_came_and_went_leaves_the_mirror_complete() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("made");
    server.publish(&token, &path);
    let narinfo = site.storage().join(format!("{}.narinfo", path.hash_part()));
    let before = fs::read(&narinfo).unwrap();
    let reload = |caches: &str, count| {
        site.configure_empty(caches);
        server.process.signal("HUP");
        let line = "the configuration was reloaded";
        eventually("the caches are reloaded", || {
            server.process.count(line) == count
        });
    };
    reload("[caches.nightly]\npriority = 20\nprefix = \"/\"\n", 1);
    assert!(!narinfo.exists());
    reload("", 2);
    eventually("the narinfo is written again", || narinfo.exists());
    assert_eq!(fs::read(&narinfo).unwrap(), before);
    let fsck = output(samovar().arg("fsck").arg("--storage").arg(site.storage()));
    assert!(fsck.contains("0 findings"), "{fsck}");
}

/// A reload that would change the first cache, but is refused, or fails while it changes the
/// directory, leaves the former cache the mirrored one.
#[test]
fn the_former_cache_stays_mirrored_if_a_reload_fails() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("made");
    server.publish(&token, &path);
    assert_eq!(server.put(&token, &format!("/{LOG}"), "text").status, 200);
    let file = |path: &MadePath| site.storage().join(format!("{}.narinfo", path.hash_part()));
    let log = site.storage().join(LOG);
    let former = "[caches.default]\nprefix = \"/\"\n";
    let fails = |caches: &str, part: &str| {
        site.configure_empty(&format!("{caches}{former}"));
        server.process.signal("HUP");
        let line = server.process.wait_for(part);
        assert!(line.contains("the configuration was not changed"), "{line}");
    };
    let is_mirrored = |paths: &[&MadePath]| {
        for path in paths {
            eventually("the narinfo is in the directory", || file(path).exists());
        }
        eventually("the log is in the directory", || log.exists());
    };
    // The reload is refused because of another option. The directory has the files all the time.
    let a = "[caches.a]\nprefix = \"/a\"\n";
    let root = "policy.deny = [{ roots = [\"/nowhere/root\"] }]\n";
    thread::scope(|scope| {
        let reload = scope.spawn(|| fails(&format!("{a}{root}"), "/nowhere/root"));
        while !reload.is_finished() {
            assert!(file(&path).exists() && log.exists());
        }
    });
    assert!(file(&path).exists() && log.exists());
    let later = MadePath::new("later");
    server.publish(&token, &later);
    is_mirrored(&[&path, &later]);

    // Narinfos are removed, and then the logs cannot be moved to this directory.
    let in_the_way = site.storage().join(".samovar/log");
    fs::write(&in_the_way, "").unwrap();
    fails(a, "cannot create .samovar/log/");
    let last = MadePath::new("last");
    server.publish(&token, &last);
    fs::remove_file(&in_the_way).unwrap();
    for path in [&path, &later, &last] {
        server.assert_serves(path);
    }
    is_mirrored(&[&path, &later, &last]);

    // Nothing is left in the way of the change.
    server.process.signal("HUP");
    server.process.wait_for("the configuration was reloaded");
    assert!(!file(&path).exists() && !file(&later).exists() && !log.exists());
    assert_eq!(server.get(&format!("/{LOG}")).text(), "text");
    let fsck = output(samovar().arg("fsck").arg("--storage").arg(site.storage()));
    assert!(fsck.contains("0 findings"), "{fsck}");
}

/// The new process of an upgrade writes the files, until it is given up.
#[test]
fn an_upgrade_that_does_not_become_ready_leaves_the_mirror_complete() {
    let site = Site::new();
    let program = site.dir().join("program");
    symlink(samovar().get_program(), &program).unwrap();
    let server = Running::of(bare(program.to_str().unwrap()).args(site.arguments()));
    let token = site.token(&[]);
    let [before, meanwhile, after] = ["before", "meanwhile", "after"].map(MadePath::new);
    let file = |path: &MadePath| site.storage().join(format!("{}.narinfo", path.hash_part()));
    server.publish(&token, &before);
    assert!(file(&before).exists());
    fs::remove_file(&program).unwrap();
    fs::write(&program, "#!/bin/sh\nexec sleep 100\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    server.process.signal("USR2");
    server.process.wait_for("starting process");
    server.publish(&token, &meanwhile);
    let is_written = file(&meanwhile).exists();
    const GIVEN_UP: &str = "was not ready within 10 seconds";
    assert!(!is_written || server.process.count(GIVEN_UP) > 0);
    server.process.wait_for(GIVEN_UP);
    server.publish(&token, &after);
    for path in [&before, &meanwhile, &after] {
        server.assert_serves(path);
        eventually("the narinfo is in the directory", || file(path).exists());
    }
}

/// Paths and logs that are sent at the moment of the change belong to the former first cache, too.
#[test]
fn uploads_while_another_cache_becomes_the_first_one_stay_in_theirs() {
    const PRIVATE: &str = "[caches.private]\nprefix = \"/private\"\n";
    const ROUNDS: usize = 4;
    let site = Site::new();
    site.configure_empty(PRIVATE);
    let (server, token) = (site.start(), site.token(&[]));
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let upload = |client: usize| {
        let mut sent = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let name = format!("made-{client}-{}", sent.len());
            let path = MadePath::new(&name);
            let log = format!("log/{}-{name}.drv", path.hash_part());
            for (target, body) in [
                (path.file_target(), &path.file[..]),
                (path.target(), path.narinfo().as_bytes()),
                (format!("/{log}"), b"text"),
            ] {
                let response = server.put(&token, &format!("/private{target}"), body);
                assert_eq!(response.status, 200, "{target}: {}", response.text());
            }
            sent.push((path, log));
            count.fetch_add(1, Ordering::Relaxed);
        }
        sent
    };
    let sent: Vec<(MadePath, String)> = thread::scope(|scope| {
        let clients = [0, 1, 2].map(|client| scope.spawn(move || upload(client)));
        for round in 0..ROUNDS {
            eventually("something is sent in each round", || {
                count.load(Ordering::Relaxed) > round
            });
            let first = format!("[caches.a]\nprefix = \"/a\"\n{PRIVATE}");
            for (number, caches) in [(2 * round + 1, first.as_str()), (2 * round + 2, PRIVATE)] {
                if number == 2 * ROUNDS {
                    break;
                }
                let before = server.process.count("the configuration was reloaded");
                assert_eq!(before + 1, number);
                site.configure_empty(caches);
                server.process.signal("HUP");
                eventually("the caches are reloaded", || {
                    server.process.count("the configuration was reloaded") == number
                });
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let sent = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap());
        sent.collect()
    });
    assert!(sent.len() >= ROUNDS, "{}", sent.len());
    for (path, log) in &sent {
        let in_directory = [format!("{}.narinfo", path.hash_part()), log.clone()];
        for name in in_directory {
            assert!(!site.storage().join(&name).exists(), "{name}");
            assert_eq!(server.get(&format!("/a/{name}")).status, 404, "{name}");
            let own = server.get(&format!("/private/{name}"));
            assert_eq!(own.status, 200, "{name}");
        }
    }
    let fsck = output(samovar().arg("fsck").arg("--storage").arg(site.storage()));
    assert!(fsck.contains("0 findings"), "{fsck}");
}

/// The disk has no inode left for the narinfos, but the database needs none.
#[test]
fn an_upload_is_acknowledged_although_its_narinfo_cannot_be_mirrored() {
    let site = Site::new();
    let token = site.token(&[]);
    let (server, storage) = on_small_disk(&site, "16m,nr_inodes=100");
    let [single, pushed] = ["single", "pushed"].map(MadePath::new);
    let sent = server.put(&token, &single.file_target(), &single.file);
    assert_eq!(sent.status, 200, "{}", sent.text());
    let protocol = Push::new(&server, &token);
    let (id, _) = protocol.open(&[&pushed]);
    protocol.pack(&id, &[&pushed]);
    let filler = storage.join("filler");
    fs::create_dir(&filler).unwrap();
    let is_created = |number: &u32| fs::write(filler.join(number.to_string()), "").is_ok();
    assert!((0..100).take_while(is_created).count() < 100);

    let published = server.put(&token, &single.target(), single.narinfo());
    assert_eq!(published.status, 200, "{}", published.text());
    protocol.published(&id, &[&pushed]);
    for path in [&single, &pushed] {
        server.assert_serves(path);
    }
    // The background thread tries again, and reports the failure.
    server
        .process
        .wait_for("the storage cannot be used: cannot write");
    let file = |path: &MadePath| storage.join(format!("{}.narinfo", path.hash_part()));
    assert!(!file(&single).exists() && !file(&pushed).exists());
    fs::remove_dir_all(&filler).unwrap();
    for path in [&single, &pushed] {
        eventually("the narinfo is written", || file(path).exists());
    }
}
