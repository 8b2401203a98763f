//! `samovar doctor --verify` finds the damaged paths of a store. Its exit code reports whether
//! there are any.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::{nix, samovar};

const FILE_LEN: usize = 300_000;

/// A store with three paths, each of one file.
struct Scene {
    dir: tempfile::TempDir,
    paths: Vec<String>,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for name in ["a", "b", "c"] {
            let file = dir.path().join(name);
            fs::write(&file, name.repeat(FILE_LEN)).unwrap();
            let mut add = nix("nix-store", dir.path());
            add.arg("--store").arg(dir.path().join("root"));
            let output = add.arg("--add").arg(file).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            paths.push(String::from_utf8(output.stdout).unwrap().trim().to_owned());
        }
        Self { dir, paths }
    }

    fn real(&self, path: &str) -> PathBuf {
        let root = self.dir.path().join("root");
        root.join(path.trim_start_matches('/'))
    }

    /// Runs `samovar doctor`. Returns the exit code, standard output and standard error.
    fn doctor(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = samovar();
        let uri = format!("local?root={}", self.dir.path().join("root").display());
        command.args(["doctor", "--verify"]);
        if !arguments.contains(&"--store") {
            command.args(["--store", &uri]);
        }
        let output = command.args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

#[test]
fn damage_is_said_and_told_by_the_exit_code() {
    let scene = Scene::new();
    let [a, b, c] = [&scene.paths[0], &scene.paths[1], &scene.paths[2]];
    let (code, out, err) = scene.doctor(&[]);
    assert_eq!((code, &*out), (Some(0), ""), "{err}");
    let last = "3 of 3 paths, 879.2 KiB of 879.2 KiB, 0 damaged\n";
    assert!(err.ends_with(last), "{err}");

    let real = scene.real(b);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&real, "!".repeat(FILE_LEN)).unwrap();
    fs::remove_file(scene.real(c)).unwrap();
    let (code, out, err) = scene.doctor(&[]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("3 of 3 paths") && err.contains("2 damaged"),
        "{err}"
    );
    // Damaged paths are listed newest first.
    assert_eq!(
        out,
        format!(
            "damaged {c}: a part of the tree has vanished\n\
             damaged {b}: NAR has another hash than the registered one\n"
        )
    );
    // Only the given paths are checked.
    assert_eq!(scene.doctor(&[a]).0, Some(0));
    let (code, out, _) = scene.doctor(&[a, b.rsplit('/').next().unwrap()]);
    assert_eq!((code, out.lines().count()), (Some(1), 1));
    fs::write(&real, "too short").unwrap();
    assert!(scene.doctor(&[b]).1.contains("shorter"));
    fs::write(&real, "x".repeat(FILE_LEN + 1)).unwrap();
    assert!(scene.doctor(&[b]).1.contains("longer"));
}

/// Standard output whose reader has ended, as in `samovar doctor --verify | head -1`.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The program prints no error then.
#[test]
fn a_closed_output_is_told_from_other_errors() {
    let scene = Scene::new();
    fs::remove_file(scene.real(&scene.paths[0])).unwrap();
    let uri = format!("local?root={}", scene.dir.path().join("root").display());
    let words = ["samovar", "doctor", "--verify", "--store", &uri];
    let failure = ::samovar::run(words.map(Into::into), &mut Closed).unwrap_err();
    let error = failure.error.downcast_ref::<io::Error>();
    assert_eq!(
        error.map(io::Error::kind),
        Some(io::ErrorKind::BrokenPipe),
        "{failure:?}"
    );
}

#[test]
fn unverifiable_paths_have_their_own_exit_code() {
    let scene = Scene::new();
    let absent = format!("/nix/store/{}-absent", "0".repeat(32));
    for (arguments, what) in [
        (
            ["--store", "local?root=/nowhere/at/all"].as_slice(),
            "/nowhere",
        ),
        (&[&*absent], "is not in this store"),
        (&["--rate", "x"], "expected a number of bytes"),
        (&["--json"], "unknown option --json"),
    ] {
        let (code, out, err) = scene.doctor(arguments);
        assert_eq!((code, &*out), (Some(2), ""), "{arguments:?} {err}");
        assert!(err.contains(what), "{err}");
    }
    // Move the files away, as if their file system were not mounted.
    let files = scene.real("/nix/store");
    fs::rename(&files, scene.real("/nix/aside")).unwrap();
    fs::create_dir(&files).unwrap();
    let (code, out, err) = scene.doctor(&[]);
    assert_eq!((code, &*out), (Some(2), ""), "{err}");
    assert!(err.contains("directory is empty"), "{err}");
}

#[test]
fn the_read_rate_is_limited() {
    let scene = Scene::new();
    let started = Instant::now();
    assert_eq!(scene.doctor(&["--rate", "500000"]).0, Some(0));
    let elapsed = started.elapsed();
    let right = Duration::from_secs_f64(900_000.0 / 500_000.0);
    assert!(
        elapsed > right.mul_f64(0.8) && elapsed < right * 10,
        "{elapsed:?}"
    );
}
