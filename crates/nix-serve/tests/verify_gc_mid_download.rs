//! If a path is deleted or modified while its NAR is sent, only that download fails. The client
//! sees a broken connection, never a complete but wrong NAR.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use support::client::{Client, fails};
use support::{OwnStore, ServerProcess, eventually, hash_part};
use testkit::http1::Connection;
use testkit::sqlite;

/// Length of a file, bytes: more than all socket buffers hold.
const FILE_LEN: usize = 96 << 20;
const FILE_COUNT: usize = 96;

/// A store with a long path and a short one, and a server.
struct Scene {
    store: OwnStore,
    server: ServerProcess,
    long: String,
    short: String,
}

impl Scene {
    fn of_file() -> Self {
        Self::new(|dir| fs::write(dir.join("long"), noise(FILE_LEN)).unwrap())
    }

    fn of_tree() -> Self {
        Self::new(|dir| {
            fs::create_dir(dir.join("long")).unwrap();
            let noise = noise(FILE_LEN / FILE_COUNT);
            for number in 0..FILE_COUNT {
                let folder = dir.join(format!("long/{number:03}"));
                fs::create_dir(&folder).unwrap();
                fs::write(folder.join("file"), &noise).unwrap();
            }
        })
    }

    fn new(make: impl FnOnce(&Path)) -> Self {
        let store = OwnStore::new();
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let long = store.add(&dir.path().join("long"));
        let short = store.add_file("short", b"short");
        let server = ServerProcess::of_store(store.root());
        Self {
            store,
            server,
            long,
            short,
        }
    }

    /// Downloads the long NAR, and calls `change` after the first bytes.
    fn download(&self, change: impl FnOnce(&OwnStore, &str)) -> Outcome {
        download(self.server.addr, &self.long, || {
            change(&self.store, &self.long);
        })
    }

    /// Checks that the other path and other clients are still served.
    fn lives_on(&mut self) {
        assert!(self.server.is_alive());
        let url = self.server.nar_url(&self.short);
        let answer = self.server.get(&url);
        assert_eq!(answer.status, 200);
        assert!(answer.is_complete);
    }
}

fn download(addr: SocketAddr, path: &str, change: impl FnOnce()) -> Outcome {
    let mut connection = Connection::connect(addr);
    let head = connection.begin("GET", &format!("/nar/{}.nar", hash_part(path)), &[]);
    assert_eq!(head.status, 200);
    let (mut change, mut len) = (Some(change), 0);
    let mut hash = Sha256::new();
    let result = connection.body(|piece| {
        // Most of the NAR is unsent: the server waits for this client.
        if let Some(change) = change.take() {
            change();
        }
        hash.update(piece);
        len += piece.len() as u64;
    });
    Outcome {
        ended_well: result.is_ok(),
        len,
        announced: head.content_length(),
        hash: hash.finalize().to_vec(),
    }
}

/// The result of a download.
#[derive(Debug)]
struct Outcome {
    ended_well: bool,
    len: u64,
    announced: u64,
    hash: Vec<u8>,
}

#[track_caller]
fn is_broken(outcome: &Outcome) {
    assert!(!outcome.ended_well, "{outcome:?}");
    assert!(outcome.len < outcome.announced, "{outcome:?}");
}

/// Generates bytes without two equal pages.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let words = (0..len / 8).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()
    });
    words.flatten().collect()
}

/// Makes a path writable, because files and directories of a store are read-only.
fn make_writable(path: &Path) {
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_undisturbed_download_is_complete() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|_, _| {});
    assert!(outcome.ended_well);
    let narinfo = scene.server.narinfo(&scene.long).text();
    let size = format!("\nNarSize: {}\n", outcome.len);
    assert!(narinfo.contains(&size), "{narinfo}");
    scene.lives_on();
}

#[test]
fn a_file_is_truncated() {
    let mut scene = Scene::of_file();
    let outcome = scene.download(|store, long| {
        let real = store.real(long);
        make_writable(&real);
        let file = fs::File::options().write(true).open(real).unwrap();
        file.set_len(100_000).unwrap();
    });
    is_broken(&outcome);
    scene.server.wait_for("does not match its registration");
    scene.lives_on();
    // The truncation may change the file once more after the damage was found. The server then
    // serves the path again, and aborts that response, too.
    let url = format!("/nar/{}.nar", hash_part(&scene.long));
    eventually("it is kept out", || {
        let answer = scene.server.get(&url);
        match answer.status {
            200 => assert!(!answer.is_complete, "{answer:?}"),
            status => assert!(matches!(status, 404 | 503), "{status}"),
        }
        answer.status == 404
    });
    scene.lives_on();
}

/// If the file is collected, the NAR is either complete and right, because an open file outlives
/// its name, or aborted.
#[test]
fn a_file_is_collected() {
    let mut scene = Scene::of_file();
    let expected = scene.download(|_, _| {});
    assert!(expected.ended_well);
    let outcome = scene.download(|store, long| {
        store.run("nix-store", &["--delete", long]);
        assert!(!store.real(long).exists());
    });
    assert!(
        !outcome.ended_well || outcome.hash == expected.hash,
        "{outcome:?}"
    );
    scene.lives_on();
}

#[test]
fn a_tree_is_collected() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|store, long| {
        store.run("nix-store", &["--delete", long]);
    });
    is_broken(&outcome);
    scene.lives_on();
    let url = format!("/nar/{}.nar", hash_part(&scene.long));
    assert_eq!(scene.server.get(&url).status, 404);
    // The log asks for no repair, because garbage collection is not damage.
    let log = scene.server.whole_log().join("\n");
    assert!(!log.contains("repair"), "{log}");
}

#[test]
fn one_file_of_a_tree_vanishes() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|store, long| {
        let folder = store.real(long).join("090");
        make_writable(&folder);
        fs::remove_file(folder.join("file")).unwrap();
    });
    is_broken(&outcome);
    scene.server.wait_for("does not match its registration");
    scene.lives_on();
}

#[test]
fn one_file_of_a_tree_becomes_shorter() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|store, long| {
        let file = store.real(long).join("090/file");
        make_writable(&file);
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_len(17).unwrap();
    });
    is_broken(&outcome);
    scene.lives_on();
}

#[test]
fn one_file_of_a_tree_becomes_longer() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|store, long| {
        let file = store.real(long).join("090/file");
        make_writable(&file);
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_len(FILE_LEN as u64).unwrap();
    });
    is_broken(&outcome);
    scene.lives_on();
}

#[test]
fn a_file_is_replaced_by_something_else() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|store, long| {
        let folder = store.real(long).join("090");
        make_writable(&folder);
        fs::remove_file(folder.join("file")).unwrap();
        fs::create_dir(folder.join("file")).unwrap();
    });
    is_broken(&outcome);
    scene.lives_on();
}

/// A download is aborted if its tree is replaced by another of the same size. Half of one NAR and
/// half of the other would have the announced length.
#[test]
fn a_tree_is_registered_anew_with_other_contents_of_the_same_size() {
    let mut scene = Scene::of_tree();
    let outcome = scene.download(|store, long| {
        let delete = format!("delete from ValidPaths where path = '{long}'");
        sqlite::run(&store.database(), &delete);
        for number in 0..FILE_COUNT {
            let file = store.real(long).join(format!("{number:03}/file"));
            make_writable(&file);
            fs::write(file, vec![7; FILE_LEN / FILE_COUNT]).unwrap();
        }
        store.register(long);
    });
    is_broken(&outcome);
    scene.lives_on();
    let again = scene.download(|_, _| {});
    assert!(again.ended_well, "{again:?}");
}

/// Many downloads at once: each is aborted when the tree is collected.
#[test]
fn twenty_downloads_of_a_tree_that_is_collected() {
    let mut scene = Scene::of_tree();
    let (begun_count, is_gone) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (addr, store, long) = (scene.server.addr, &scene.store, &*scene.long);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let begin = |number| {
            let (begun_count, is_gone) = (&begun_count, &is_gone);
            scope.spawn(move || {
                download(addr, long, || {
                    begun_count.fetch_add(1, Ordering::SeqCst);
                    if number == 0 {
                        eventually("all have begun", || {
                            begun_count.load(Ordering::SeqCst) == 20
                        });
                        store.run("nix-store", &["--delete", long]);
                        is_gone.store(true, Ordering::SeqCst);
                    }
                    eventually("it is gone", || is_gone.load(Ordering::SeqCst));
                })
            })
        };
        let running: Vec<_> = (0..20).map(begin).collect();
        let joined = running.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    for outcome in &outcomes {
        is_broken(outcome);
    }
    scene.lives_on();
}

/// A real client reports the failed download, and registers nothing.
#[test]
fn a_real_client_takes_no_damaged_path() {
    let scene = Scene::of_tree();
    let file = scene.store.real(&scene.long).join("090/file");
    make_writable(&file);
    let file = fs::File::options().write(true).open(file).unwrap();
    file.set_len(17).unwrap();
    let client = Client::new();
    let url = scene.server.url();
    let mut copy = client.copy(&url, "", std::slice::from_ref(&scene.long));
    copy.args(["--no-check-sigs", "--option", "download-attempts", "2"]);
    let error = fails(&mut copy);
    assert!(error.contains("unable to download"), "{error}");
    let mut query = client.command("nix-store");
    query
        .arg("--store")
        .arg(client.root())
        .args(["--query", "--size", &scene.long]);
    fails(&mut query);
}
