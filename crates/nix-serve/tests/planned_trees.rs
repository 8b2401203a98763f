//! A range costs the same at any offset of a NAR, and a plan made for one tree is never used for
//! another.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::{OwnStore, Response, ServerProcess, eventually, hash_part, output};
use testkit::http1::Connection;
use testkit::sqlite;

const MIB: usize = 1 << 20;

/// A store with one path, and a server.
struct Scene {
    store: OwnStore,
    server: ServerProcess,
    path: String,
}

impl Scene {
    fn new(make: impl FnOnce(&Path)) -> Self {
        let store = OwnStore::new();
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        make(&tree);
        let path = store.add(&tree);
        let server = ServerProcess::of_store(store.root());
        Self {
            store,
            server,
            path,
        }
    }

    /// Creates a store whose path has 40 files of 100,000 bytes with different contents.
    fn of_large_files() -> Self {
        Self::new(|tree| {
            for number in 0..40 {
                write_file(tree, number, b'a' + number);
            }
        })
    }

    fn range(&self, start: usize, len: usize) -> Response {
        let range = format!("Range: bytes={start}-{}", start + len - 1);
        self.server.request("GET", &self.url(), &[&range])
    }

    fn url(&self) -> String {
        format!("/nar/{}.nar", hash_part(&self.path))
    }

    fn listing(&self) -> Response {
        self.server.get(&format!("/{}.ls", hash_part(&self.path)))
    }

    /// Makes the NAR of the current files with Nix.
    fn dump(&self) -> Vec<u8> {
        let mut dump = support::nix("nix-store", self.store.root());
        dump.arg("--dump").arg(self.store.real(&self.path));
        dump.output().unwrap().stdout
    }

    /// Checks that a range far from the start, and the listing, match the current files.
    #[track_caller]
    fn is_right(&self) {
        let expected = self.dump();
        let whole = self.server.get(&self.url());
        assert_eq!(whole.status, 200);
        assert!(whole.body == expected);
        let start = expected.len() - MIB;
        let answer = self.range(start, 500_000);
        assert_eq!(answer.status, 206);
        assert!(answer.body == expected[start..start + 500_000]);
        let listing: serde_json::Value = serde_json::from_slice(&self.listing().body).unwrap();
        for number in 0..40 {
            let name = format!("file-{number:02}");
            let file = &listing["root"]["entries"][&*name];
            let place = |member| usize::try_from(file[member].as_u64().unwrap()).unwrap();
            let real = fs::read(self.store.real(&self.path).join(&name)).unwrap();
            let start = place("narOffset");
            assert_eq!(place("size"), real.len());
            assert!(expected[start..start + real.len()] == real, "{name}");
        }
    }

    /// Replaces the files of the path by another tree.
    fn replace_files(&self, make: impl FnOnce(&Path)) {
        let real = self.store.real(&self.path);
        let was = real.with_file_name(".was");
        fs::rename(&real, &was).unwrap();
        fs::create_dir(&real).unwrap();
        make(&real);
        output(Command::new("rm").arg("-rf").arg(was));
    }
}

fn write_file(tree: &Path, number: u8, byte: u8) {
    let content = vec![byte; 100_000 + usize::from(byte)];
    fs::write(tree.join(format!("file-{number:02}")), content).unwrap();
}

/// CPU time of all threads of a process.
fn cpu_time(server: &ServerProcess) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let times = tasks.map(|task| {
        let schedstat = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        let running_ns = schedstat.split(' ').next().unwrap().parse().unwrap();
        Duration::from_nanos(running_ns)
    });
    times.sum()
}

#[test]
fn a_range_costs_the_same_at_the_start_and_at_the_end() {
    let scene = Scene::new(|tree| {
        for folder in 0..25 {
            let folder = tree.join(format!("{folder:03}"));
            fs::create_dir(&folder).unwrap();
            for file in 0..200 {
                fs::write(folder.join(file.to_string()), [b'x'; 300]).unwrap();
            }
        }
    });
    let expected = scene.dump();
    let url = scene.url();
    let mut connection = Connection::connect(scene.server.addr);
    let mut cost = |start: usize| {
        let before = cpu_time(&scene.server);
        for _ in 0..40 {
            let range = format!("Range: bytes={start}-{}", start + 999);
            let answer = connection.request("GET", &url, &[&range]);
            assert_eq!(answer.status, 206);
            assert!(answer.body == expected[start..start + 1000]);
        }
        cpu_time(&scene.server) - before
    };
    // The first request makes the plan.
    let end = expected.len() - 1000;
    cost(end);
    let (at_start, at_end) = (cost(1000), cost(end));
    // A walk to the end would visit five thousand files, which would cost about a hundred times as
    // much.
    assert!(at_end < 8 * at_start, "{at_end:?}, {at_start:?}");
}

#[test]
fn a_path_that_is_registered_anew_has_its_new_ranges_and_listing() {
    let scene = Scene::of_large_files();
    // The second request uses the plan.
    scene.is_right();
    scene.is_right();
    let delete = format!("delete from ValidPaths where path = '{}'", scene.path);
    sqlite::run(&scene.store.database(), &delete);
    scene.replace_files(|tree| {
        for number in 0..40 {
            write_file(tree, number, b'A' + number);
        }
    });
    scene.store.register(&scene.path);
    scene.is_right();
}

/// A damaged path is served again after a repair, as by `nix-store --repair-path`: same
/// registration, new files.
#[test]
fn a_damaged_path_is_answered_with_404_until_it_is_repaired() {
    let scene = Scene::of_large_files();
    let right = scene.dump();
    // Leave out one of the registered files.
    scene.replace_files(|tree| {
        for number in 0..39 {
            write_file(tree, number, b'a' + number);
        }
    });
    eventually("it is kept out", || {
        let (range, listing) = (scene.range(2 * MIB, 1000), scene.listing());
        let statuses = (range.status, listing.status);
        assert!(matches!(statuses, (404 | 503, 404 | 503)), "{statuses:?}");
        listing.text().contains("damaged")
    });
    scene.server.wait_for("does not match its registration");
    scene.replace_files(|tree| {
        for number in 0..40 {
            write_file(tree, number, b'a' + number);
        }
    });
    assert!(scene.dump() == right);
    scene.server.wait_for_repair(&scene.path);
    scene.is_right();
}

/// If two files swap sizes, so that the total size and the root stay the same, a range that follows
/// an earlier plan fails; once the files are right again, ranges are served.
#[test]
fn a_range_of_changed_files_is_aborted_and_served_again_after_repair() {
    let scene = Scene::new(|tree| {
        fs::create_dir(tree.join("sub")).unwrap();
        for number in 0..40 {
            write_file(&tree.join("sub"), number, b'a' + number);
        }
    });
    let expected = scene.dump();
    let sub = scene.store.real(&scene.path).join("sub");
    let swap = || {
        output(Command::new("chmod").arg("u+w").arg(&sub));
        let names = ["file-30", "aside", "file-31", "file-30", "aside", "file-31"];
        for pair in names.chunks(2) {
            fs::rename(sub.join(pair[0]), sub.join(pair[1])).unwrap();
        }
    };
    let range = || scene.range(2 * MIB, expected.len() - 2 * MIB);
    swap();
    // The plan is made now. It describes the swapped files, and matches them.
    let answer = range();
    assert!(answer.is_complete);
    assert!(
        answer.body != expected[2 * MIB..],
        "a client compares the hash"
    );
    swap();
    let answer = range();
    assert!(
        !answer.is_complete || answer.status == 503,
        "not as planned"
    );
    let answer = range();
    assert!(answer.is_complete);
    assert!(answer.body == expected[2 * MIB..]);
}

/// A tree whose plan would be too large, here of symbolic links of maximal length, is served
/// without one.
#[test]
fn trees_whose_plan_would_be_too_large_are_served_without_one() {
    const COUNT: usize = 2100;
    let scene = Scene::new(|tree| {
        let target = "t".repeat(4095);
        for number in 0..COUNT {
            symlink(&target, tree.join(format!("{number:04}"))).unwrap();
        }
    });
    let expected = scene.dump();
    for start in [2 * MIB, expected.len() - 5000] {
        for _ in 0..2 {
            let answer = scene.range(start, 5000);
            assert_eq!(answer.status, 206);
            assert!(answer.body == expected[start..start + 5000]);
        }
    }
    let answer = scene.listing();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    assert!(answer.is_complete);
    let listing: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let entries = listing["root"]["entries"].as_object().unwrap();
    assert_eq!(entries.len(), COUNT);
    assert!(
        entries
            .values()
            .all(|entry| entry["target"].as_str().unwrap().len() == 4095)
    );
}

#[test]
fn a_listing_has_a_content_length() {
    let scene = Scene::of_large_files();
    let listing = scene.listing();
    let url = format!("/{}.ls", hash_part(&scene.path));
    let head = scene.server.request("HEAD", &url, &[]);
    for answer in [&listing, &head] {
        let len = answer.header("content-length").unwrap();
        assert_eq!(len, listing.body.len().to_string());
    }
    assert!(listing.is_complete && head.body.is_empty());
}
