//! Acknowledged uploads survive crashes, failing disks and upgrades. Any other upload is either
//! absent or complete.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use support::samovar;
use support_uploads::{
    MadePath, Running, Site, Traced, assert_mirrors, can_trace, files_below, on_small_disk,
    try_upload, upload,
};
use testkit::eventually;
use testkit::http1::{Connection, Response};
use testkit::process::{Process, output, signal};

/// System calls that change the storage, and the numbers of the calls at which the server is
/// killed. They cover the start, the upload of files and narinfos, and commits. strace counts the
/// calls of each thread, and an upload may use several threads, so uploads go on until the kill.
const KILLS: [(&str, &[u32]); 4] = [
    ("fsync", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("renameat", &[1, 2, 3, 4]),
    ("write", &[4, 5, 6, 7, 8]),
    ("pwrite64", &[5, 12, 24, 33, 40, 47, 61, 72]),
];

/// System calls for additional kills, and the step between the numbers of the calls.
const MORE_KILLS: [(&str, u32); 5] = [
    ("fsync", 1),
    ("renameat", 1),
    ("write", 1),
    ("pwrite64", 3),
    ("fcntl", 7),
];

/// Returns the system calls at which the server is killed. The environment variable `SAMOVAR_KILLS`
/// sets a number of additional kills.
fn kills() -> Vec<(&'static str, u32)> {
    let Ok(count) = std::env::var("SAMOVAR_KILLS") else {
        let all = KILLS.iter();
        let all = all.flat_map(|(call, whens)| whens.iter().map(move |when| (*call, *when)));
        return all.collect();
    };
    let all = (1..).flat_map(|at| MORE_KILLS.map(|(call, distance)| (call, at * distance)));
    all.take(count.parse().unwrap()).collect()
}

/// Maximum number of uploads until a kill or an error must have happened. The server has few
/// threads, so one of them makes the call long before.
const UPLOAD_COUNT_MAX: usize = 400;

/// Minimum number of paths that are uploaded while a system call fails now and then.
const PATH_COUNT_MIN: usize = 12;

/// Starts a server under strace, which makes a system call fail or kills the server at it. The
/// server has few threads: one worker slot in each lane. `injection`: in the syntax of
/// `strace -e inject=`. `path`: limits the injection to calls with this path as an argument.
fn start_faulty(site: &Site, call: &str, injection: &str, path: Option<&Path>) -> Traced {
    let mut arguments = vec!["-o".to_owned(), "/dev/null".to_owned()];
    if let Some(path) = path {
        arguments.extend(["-P".to_owned(), path.to_str().unwrap().to_owned()]);
    }
    arguments.push(format!("--trace={call}"));
    arguments.push(format!("--inject={call}:{injection}"));
    Traced::start(site, &arguments, &["--workers", "1"])
}

/// Returns two paths. The second refers to the first.
fn pair(name: &str) -> [MadePath; 2] {
    let below = MadePath::new(&format!("{name}-below"));
    let above = MadePath::new(&format!("{name}-above")).referring_to(&below.store_path);
    [below, above]
}

/// Returns a site and a token. The server is not running.
fn site() -> (Site, String) {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    server.process.terminate();
    (site, token)
}

fn unfinished(site: &Site) -> usize {
    let files = site.files();
    files
        .iter()
        .filter(|file| file.starts_with(".samovar/tmp/"))
        .count()
}

/// Uploads the NAR file and the narinfo of a path. Returns whether the server acknowledged both. If
/// not, the server must have been killed.
#[track_caller]
fn publish_or_die(address: SocketAddr, token: &str, path: &MadePath) -> bool {
    let uploads = [
        (path.file_target(), path.file.clone()),
        (path.target(), path.narinfo().into_bytes()),
    ];
    uploads.into_iter().all(|(target, body)| {
        let response = try_upload(address, token, &target, &body);
        let response = response.unwrap_or_default();
        assert!(matches!(response.status, 0 | 200), "{}", response.text());
        response.status == 200
    })
}

#[test]
fn a_server_killed_at_any_point_keeps_what_it_acknowledged() {
    if !can_trace() {
        return;
    }
    let (site, token) = site();
    let (mut acknowledged, mut others) = (Vec::new(), Vec::new());
    let kills = kills();
    for (call, when) in &kills {
        let injection = format!("signal=KILL:when={when}");
        let mut traced = start_faulty(&site, call, &injection, None);
        let Some(address) = traced.address() else {
            continue;
        };
        let uploads = (0..UPLOAD_COUNT_MAX / 4).flat_map(|at| pair(&format!("{call}-{when}-{at}")));
        let killed_at = uploads.into_iter().find(|path| {
            let is_acknowledged = publish_or_die(address, &token, path);
            if is_acknowledged {
                acknowledged.push(path.clone());
            }
            !is_acknowledged
        });
        others.push(killed_at.unwrap_or_else(|| panic!("no kill at {call} {when}")));
        traced.kill();
        // One of the upload, and one of a backup or a narinfo that the server writes by itself.
        assert!(unfinished(&site) <= 2, "{:?}", site.files());
    }
    println!(
        "{} kills, {} of them during uploads; {} paths were acknowledged before",
        kills.len(),
        others.len(),
        acknowledged.len()
    );
    assert!(!acknowledged.is_empty() && others.len() * 2 > kills.len());
    let server = site.start();
    eventually("0 files are unfinished", || unfinished(&site) == 0);
    for path in &acknowledged {
        server.assert_serves(path);
    }
    for path in &others {
        // Perhaps the path was published, and only the response was lost.
        match server.get(&path.target()).status {
            200 => server.assert_serves(path),
            _ => server.assert_lacks(path),
        }
    }
    assert_mirrors(&site, &acknowledged);
    // The clients repeat their uploads.
    for path in &others {
        server.publish(&token, path);
        server.assert_serves(path);
    }
    assert_mirrors(&site, &others);
    // The storage has no files except those of paths.
    let stored = site.files().into_iter();
    let stored: BTreeSet<String> = stored.filter(|file| !file.ends_with(".narinfo")).collect();
    let urls = acknowledged.iter().chain(&others).map(MadePath::url);
    assert_eq!(stored, urls.collect());
}

/// After a crash, no client repeats the push of a path that is in the database but whose response
/// was lost. The server itself must therefore write the missing narinfo into the directory.
#[test]
fn the_directory_is_complete_after_a_crash() {
    if !can_trace() {
        return;
    }
    let (site, token) = site();
    let path = MadePath::new("path");
    let published = site.storage().join(&path.target()[1..]);
    let mut traced = start_faulty(&site, "renameat", "signal=KILL", Some(&published));
    let address = traced.address().unwrap();
    let file = upload(address, &token, &path.file_target(), &path.file);
    assert_eq!(file.status, 200);
    let narinfo = upload(address, &token, &path.target(), path.narinfo());
    assert_eq!(narinfo.status, 0);
    traced.kill();
    assert!(!published.exists());
    let server = site.start();
    server.assert_serves(&path);
    assert_mirrors(&site, &[path]);
}

/// Asserts that a response refuses an upload because of a fault of the server, in one sentence.
#[track_caller]
fn assert_unavailable(response: &Response, statuses: &[u16]) {
    let text = response.text();
    assert!(
        statuses.contains(&response.status),
        "{}: {text}",
        response.status
    );
    assert!(text.len() > 10 && text.lines().count() == 1, "{text:?}");
}

/// Repeats an upload until it succeeds. Returns the number of refused attempts.
fn failures(address: SocketAddr, token: &str, target: &str, body: &[u8]) -> usize {
    let mut count = 0;
    loop {
        let response = upload(address, token, target, body);
        if response.status == 200 {
            return count;
        }
        assert_unavailable(&response, &[503, 507]);
        count += 1;
        assert!(count < UPLOAD_COUNT_MAX, "{target} is always refused");
    }
}

/// If a system call fails, the upload is refused. A second attempt succeeds, and nothing is lost. A
/// narinfo that cannot be written into the directory follows later: it refuses no upload.
#[test]
fn calls_that_fail_are_refused_and_can_be_repeated() {
    if !can_trace() {
        return;
    }
    for (call, error, whens, refusal_count) in [
        ("fsync", "EIO", "3+5", 3),
        ("fsync", "ENOSPC", "4+7", 3),
        ("renameat", "EIO", "1+3", 0),
        ("pwrite64", "ENOSPC", "20+31", 3),
        ("pwrite64", "EIO", "23+37", 3),
    ] {
        let (site, token) = site();
        let injection = format!("error={error}:when={whens}");
        let mut traced = start_faulty(&site, call, &injection, None);
        let address = traced.address().unwrap();
        let mut failed_count = 0;
        let mut paths = Vec::new();
        while failed_count < refusal_count || paths.len() < PATH_COUNT_MIN {
            assert!(paths.len() < UPLOAD_COUNT_MAX, "{call} {error}");
            for path in pair(&paths.len().to_string()) {
                for (target, body) in [
                    (path.file_target(), path.file.clone()),
                    (path.target(), path.narinfo().into_bytes()),
                ] {
                    failed_count += failures(address, &token, &target, &body);
                }
                paths.push(path);
            }
        }
        assert!(refusal_count > 0 || failed_count == 0, "{call} {error}");
        eventually("0 files are unfinished", || unfinished(&site) == 0);
        traced.kill();
        let server = site.start();
        for path in &paths {
            server.assert_serves(path);
        }
        assert_mirrors(&site, &paths);
    }
}

/// The storage is on a file system that is too small. The server runs in its own mount namespace.
#[test]
fn a_full_disk_refuses_uploads_and_loses_nothing() {
    let (site, token) = site();
    let (server, storage) = on_small_disk(&site, "3m");
    let big = |index: u8| MadePath::new(&format!("big-{index}")).containing(&[index; 400_000]);
    let mut acknowledged = vec![MadePath::new("small")];
    server.publish(&token, &acknowledged[0]);
    let mut refused = None;
    for index in 0..10 {
        let path = big(index);
        let response = server.put(&token, &path.file_target(), &path.file);
        if response.status != 200 {
            assert_unavailable(&response, &[507]);
            refused = Some(path);
            break;
        }
        server.publish(&token, &path);
        acknowledged.push(path);
    }
    let refused = refused.unwrap();
    assert!(acknowledged.len() > 2);
    // Nix before 2.33 would repeat a PUT without its body.
    let fields = format!("Authorization: Bearer {token}\r\nUser-Agent: curl/7.88.1 Nix/2.8.0\r\n");
    let old = support_uploads::send(
        server.address,
        "PUT",
        &refused.file_target(),
        &fields,
        &refused.file,
    );
    assert_unavailable(&old, &[422]);
    server.assert_lacks(&refused);
    assert!(
        !files_below(&storage)
            .iter()
            .any(|file| file.contains("tmp/"))
    );
    for path in &acknowledged {
        server.assert_serves(path);
    }
    // When space is free again, the same server accepts uploads.
    let freed = acknowledged.pop().unwrap();
    fs::remove_file(storage.join(freed.url())).unwrap();
    server.publish(&token, &refused);
    server.assert_serves(&refused);
    for path in &acknowledged {
        server.assert_serves(path);
    }
}

/// A server that is upgraded repeatedly. Its PID file names the current process.
struct Upgraded {
    first: Running,
    pid_file: PathBuf,
    pids: Vec<u32>,
}

impl Upgraded {
    fn start(site: &Site) -> Self {
        let pid_file = site.dir().join("pid");
        let mut command = samovar();
        command
            .args(site.arguments())
            .arg("--pid-file")
            .arg(&pid_file);
        let first = Running::of(&mut command);
        let mut upgraded = Self {
            first,
            pid_file,
            pids: Vec::new(),
        };
        eventually("there is a PID file", || upgraded.named().is_some());
        upgraded.pids.extend(upgraded.named());
        upgraded
    }

    fn named(&self) -> Option<u32> {
        fs::read_to_string(&self.pid_file).ok()?.trim().parse().ok()
    }

    fn upgrade(&mut self) {
        let old = *self.pids.last().unwrap();
        signal(old, "USR2");
        eventually("another process serves", || {
            self.named().is_some_and(|pid| pid != old)
        });
        self.pids.extend(self.named());
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        for pid in self.pids.iter().skip(1) {
            let mut kill = Command::new("kill");
            kill.args(["-s", "KILL", &pid.to_string()])
                .stderr(Stdio::null());
            kill.status().ok();
        }
    }
}

/// No request of a client fails while the server is upgraded. After its acknowledgement, a path is
/// found over every connection, whichever process answers.
#[test]
fn an_upgrade_loses_no_upload() {
    let (site, token) = site();
    let mut upgraded = Upgraded::start(&site);
    let address = upgraded.first.address;
    let server = &Running {
        // Only the address of this value is used.
        process: Process::spawn(&mut Command::new("true")),
        address,
    };
    let acknowledged = &Mutex::new(Vec::new());
    let (is_over, count) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let token = &token;
            scope.spawn(move || {
                for index in 0.. {
                    let path = MadePath::new(&format!("path-{thread}-{index}"));
                    server.publish(token, &path);
                    for _ in 0..4 {
                        server.assert_serves(&path);
                    }
                    acknowledged.lock().unwrap().push(path);
                    count.fetch_add(1, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..4 {
            upgraded.upgrade();
            let before = count.load(Ordering::Relaxed);
            eventually("pushes go on", || {
                count.load(Ordering::Relaxed) > before + 5
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let acknowledged = acknowledged.lock().unwrap();
    for path in acknowledged.iter() {
        server.assert_serves(path);
    }
    assert_mirrors(&site, &acknowledged);
    eventually("0 files are unfinished", || unfinished(&site) == 0);
}

/// After the upgrade, the old process either knows the paths that the new process has published, or
/// closes its connections without an answer.
#[test]
fn the_old_process_denies_no_path_of_the_new_one() {
    let (site, token) = site();
    let mut upgraded = Upgraded::start(&site);
    let big = MadePath::new("big").containing(&vec![b'x'; 48 << 20]);
    upgraded.first.publish(&token, &big);
    let mut connection = Connection::connect(upgraded.first.address);
    connection.begin("GET", &big.file_target(), &[]);
    // This connection sends no request before the upgrade.
    let mut idle = Connection::connect(upgraded.first.address);
    upgraded.upgrade();
    let [below, above] = pair("new");
    for path in [&below, &above] {
        upgraded.first.publish(&token, path);
        upgraded.first.assert_serves(path);
    }
    let ask = |connection: &mut Connection| {
        let head = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", above.target());
        drop(connection.try_send(head));
    };
    ask(&mut connection);
    ask(&mut idle);
    let mut len = 0;
    connection.body(|piece| len += piece.len()).unwrap();
    assert_eq!(len, big.file.len());
    for mut connection in [connection, idle] {
        if let Ok(Some(response)) = connection.try_next(false) {
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
}

/// A new process would make an empty storage, and deny all paths.
#[test]
fn an_upgrade_fails_while_the_storage_is_not_there() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    server.publish(&token, &path);
    let away = site.dir().join("away");
    fs::rename(site.storage(), &away).unwrap();
    server.process.signal("USR2");
    server.process.wait_for("put its directory back");
    server.process.wait_for("continues to serve");
    assert!(!site.storage().exists());
    assert_eq!(server.get(&path.target()).status, 503);
    fs::rename(&away, site.storage()).unwrap();
    server.assert_serves(&path);
    // The server writes narinfos into the directory again.
    let later = MadePath::new("later");
    eventually("the storage is usable", || {
        let file = server.put(&token, &later.file_target(), &later.file);
        file.status == 200
    });
    server.publish(&token, &later);
    eventually("the narinfo is in the directory", || {
        let narinfo = format!("{}.narinfo", later.hash_part());
        site.storage().join(narinfo).exists()
    });
}

/// The commands are those of the book.
#[test]
fn a_backup_of_a_running_server_is_complete() {
    let (site, server, token) = Site::serving();
    let copy = tempfile::tempdir().unwrap();
    let storage = copy.path().join("storage");
    let publish = |number: u32| {
        let path = MadePath::new(&format!("path-{number}"));
        server.publish(&token, &path);
        path
    };
    let before: Vec<MadePath> = (0..20).map(publish).collect();
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 100.. {
                publish(number);
                count.fetch_add(1, Ordering::Relaxed);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        fs::create_dir_all(storage.join(".samovar")).unwrap();
        let [from, to] = [&site.storage(), &storage].map(|path| path.display().to_string());
        let run = |script: String| output(Command::new("sh").arg("-c").arg(script));
        run(format!(
            "sqlite3 {from}/.samovar/db.sqlite \".backup '{to}/.samovar/db.sqlite'\""
        ));
        let copied = count.load(Ordering::Relaxed);
        eventually("more paths are pushed", || {
            count.load(Ordering::Relaxed) > copied + 20
        });
        run(format!(
            "tar -C {from} --exclude='./.samovar/db.sqlite*' --exclude='./.samovar/tmp/*' -c . \
             | tar -C {to} -x"
        ));
        is_over.store(true, Ordering::Relaxed);
    });
    let restored = Site::with_storage(copy, storage);
    let server = restored.start();
    for path in &before {
        server.assert_serves(path);
    }
    let check = restored.sql("pragma integrity_check");
    assert_eq!(check.trim(), "ok");
}
