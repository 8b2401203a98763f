//! A workspace in overlay mode is usable before its files are downloaded. All commands work as for
//! an ordinary directory, and unpushed changes survive whatever ends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support_mount::{Line, can_mount, noise, unmount};
use support_workspaces::{Home, assert_has, close_overlay, exits, read, tree, write};
use testkit::eventually;
use testkit::process::{finish, output, signal};

/// Number of bytes of responses with which a workspace is opened, and few of its files arrive.
const SOME: usize = 1_500_000;

/// A private cache, and a machine that mounts workspaces of its refs.
struct Machine {
    home: Home,
}

impl Deref for Machine {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.unmount_all();
    }
}

impl Machine {
    /// Returns `None`, after printing the reason, if this machine has no overlays.
    fn new() -> Option<Self> {
        let machine = Self { home: Home::new() };
        if !can_mount() {
            return None;
        }
        let mut probe = support::bare("unshare");
        probe.current_dir(machine.site.dir()).args([
            "--mount",
            "sh",
            "-c",
            "mkdir lower upper work tree && mount -t overlay overlay \
             -o redirect_dir=on,lowerdir=lower,upperdir=upper,workdir=work tree",
        ]);
        let probed = finish(&mut probe);
        if !probed.status.success() {
            let reason = String::from_utf8_lossy(&probed.stderr).into_owned();
            println!("not tested: this machine has no overlays: {reason}");
            return None;
        }
        Some(machine)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(arguments);
        command.env("SAMOVAR_CACHE_DIR", self.dir("cache"));
        command
    }

    /// Returns the command for the workspace in a directory.
    fn command_for(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.arg("--dir").arg(directory);
        command
    }

    #[track_caller]
    fn exits(&self, directory: &Path, arguments: &[&str], code: i32) -> String {
        exits(&mut self.command_for(directory, arguments), code)
    }

    /// Pushes a tree with these files from an ordinary directory. Returns it.
    #[track_caller]
    fn pushed(&self, files: &[(&str, &str)]) -> PathBuf {
        let origin = self.open("app", "origin");
        for (name, content) in files {
            write(&origin, name, content);
        }
        self.push(&origin);
        origin
    }

    /// Opens the ref `app` in overlay mode. Returns the directory.
    #[track_caller]
    fn overlay(&self) -> PathBuf {
        let directory = self.dir("overlay");
        output(&mut self.opening(&directory));
        directory
    }

    fn opening(&self, directory: &Path) -> Command {
        let mut command = self.command(&["open", "--mode", "overlay", "app"]);
        command.arg(directory);
        command
    }

    /// Closes and deletes a workspace without changes.
    #[track_caller]
    fn close(&self, directory: &Path) {
        let mut close = self.command_for(directory, &["close", "--delete"]);
        close_overlay(&mut close, &mut self.opening(directory));
    }

    /// Returns the files of the newest generation.
    fn pulled(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        output(self.home.command(&["open", "app"]).arg(&copy));
        tree(&copy)
    }

    /// Returns the mount points of this machine, the last one first.
    fn mounts(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let own = paths.map(PathBuf::from);
        let mut own: Vec<_> = own
            .filter(|path| path.starts_with(self.site.dir()))
            .collect();
        own.reverse();
        own
    }

    /// Unmounts everything, as a reboot does.
    fn unmount_all(&self) {
        for path in self.mounts() {
            unmount(&path);
        }
    }

    /// Sends a signal to the process that serves the lower layer, and waits until it has ended.
    fn end_server(&self, name: &str) {
        let cache = self.dir("cache");
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let has = |bytes: &[u8], part: &str| String::from_utf8_lossy(bytes).contains(part);
            if has(&arguments, "--detached") && has(&environment, cache.to_str().unwrap()) {
                let pid = process.file_name().to_str().unwrap().parse().unwrap();
                signal(pid, name);
            }
        }
        eventually("nothing serves the files", || {
            let mounts = self.mounts();
            let mut lower = mounts.iter().filter(|path| path.ends_with("lower"));
            lower.all(|path| rustix::fs::statfs(path).is_err())
        });
    }
}

const FILES: &[(&str, &str)] = &[
    ("package.json", "{}"),
    ("keep/same", "same"),
    ("keep/edited", "old"),
    ("gone/a", "a"),
    ("moved/deep/file", "moved"),
    ("run", "#!/bin/sh\n"),
];

/// Makes a change of each kind.
fn work(directory: &Path) {
    work_without_reading(directory);
    fs::set_permissions(directory.join("run"), Permissions::from_mode(0o755)).unwrap();
}

/// Makes changes for which no file of the ref is read.
fn work_without_reading(directory: &Path) {
    write(directory, "keep/edited", "new");
    write(directory, "new/a/b", "c");
    fs::remove_dir_all(directory.join("gone")).unwrap();
    fs::rename(directory.join("moved"), directory.join("renamed")).unwrap();
    write(directory, "renamed/deep/more", "more");
    symlink("package.json", directory.join("link")).unwrap();
}

#[test]
fn a_workspace_is_opened_and_changed_without_a_download() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.open("app", "origin");
    for (name, content) in FILES {
        write(&origin, name, content);
    }
    for number in 0..8 {
        write(&origin, &format!("big/{number}"), noise(number, 2 << 20));
    }
    machine.push(&origin);
    let line = Line::to(machine.server.address, SOME);
    let directory = machine.dir("overlay");
    let text = output(machine.opening(&directory).env("SAMOVAR_CACHE", line.url()));
    assert_has(&text, "mounted app@1 on");
    assert_has(&text, "14 files");
    machine.exits(&directory, &["status", "--offline"], 0);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 6);
    work_without_reading(&directory);
    let text = machine.exits(&directory, &["diff"], 1);
    for part in [
        "modified keep/edited",
        "removed  gone",
        "added    link",
        "added    renamed/deep/file",
    ] {
        assert_has(&text, part);
    }
    // Nothing more can be received until here.
    line.release();
    let run = directory.join("run");
    fs::set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
    let text = output(&mut machine.command_for(&directory, &["push", "--json"]));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["generation"], 2);
    assert!(report["sentSize"].as_u64().unwrap() < 100_000, "{text}");
    machine.exits(&directory, &["status"], 0);
    work(&origin);
    assert_eq!(machine.pulled(), tree(&origin));
    assert_eq!(tree(&directory), tree(&origin));
}

#[test]
fn changes_of_other_machines_are_merged() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    work(&directory);
    write(&origin, "keep/edited", "theirs");
    write(&origin, "keep/theirs", "new");
    fs::remove_file(origin.join("keep/same")).unwrap();
    machine.push(&origin);
    let text = machine.exits(&directory, &["push"], 1);
    assert_has(&text, "generation 2 of app was pushed by");
    let text = machine.exits(&directory, &["pull"], 1);
    assert_has(&text, "conflict: keep/edited stays");
    assert_eq!(read(&directory, "keep/edited"), "new");
    assert_eq!(read(&directory, "keep/theirs"), "new");
    assert!(!directory.join("keep/same").exists());
    let kept = tree(&directory);
    assert!(kept.values().any(|content| content == b"theirs"));
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), kept);
    // A pull without local changes.
    machine.run(&origin, &["pull"]);
    write(&origin, "package.json", "[]");
    machine.push(&origin);
    machine.exits(&directory, &["pull"], 0);
    assert_eq!(tree(&directory), tree(&origin));
    machine.exits(&directory, &["status"], 0);
}

#[test]
fn changes_are_discarded_and_older_files_restored() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    work(&directory);
    machine.exits(&directory, &["discard"], 2);
    machine.exits(&directory, &["discard", "--yes"], 0);
    machine.exits(&directory, &["status"], 0);
    assert_eq!(tree(&directory), tree(&origin));
    work(&directory);
    machine.exits(&directory, &["push"], 0);
    machine.exits(&directory, &["restore", "@1"], 0);
    assert_eq!(read(&directory, "gone/a"), "a");
    assert_eq!(read(&directory, "keep/edited"), "old");
    let text = machine.exits(&directory, &["log"], 0);
    assert_has(&text, "*          2");
}

#[test]
fn the_end_of_the_server_of_the_files_loses_nothing() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    work(&directory);
    work(&origin);
    // After TERM, the process unmounts the lower layer.
    for name in ["KILL", "TERM"] {
        machine.end_server(name);
        let text = machine.exits(&directory, &["push"], 3);
        assert_has(&text, "run samovar workspace repair");
        machine.exits(&directory, &["close"], 3);
        let text = output(&mut machine.command(&["list"]));
        assert_has(&text, "overlay, not mounted");
        let text = machine.exits(&directory, &["repair"], 0);
        assert_has(&text, "mounted ");
        assert_eq!(tree(&directory), tree(&origin));
    }
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&origin));
    // Damage of the state is repaired: of the base, and of the lower layer.
    let state = fs::read_dir(machine.state(&directory)).unwrap().flatten();
    let bases = state.filter(|file| file.file_name().to_string_lossy().starts_with("base-"));
    let removed = bases.map(|file| fs::remove_file(file.path()).unwrap());
    assert_eq!(removed.count(), 2);
    machine.exits(&directory, &["repair"], 0);
    let text = output(&mut machine.command(&["list", "--json"]));
    let report: Value = serde_json::from_str(&text).unwrap();
    let found = report["workspaces"].as_array().unwrap();
    let overlay = found.iter().find(|one| one["mode"] == "overlay").unwrap();
    assert_eq!(overlay["isMounted"], true);
    assert_eq!(overlay["state"], "no changes");
}

#[test]
fn a_workspace_is_mounted_again_after_a_reboot() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    work(&directory);
    work(&origin);
    machine.unmount_all();
    let text = machine.exits(&directory, &["status"], 3);
    assert_has(&text, "its overlay is not mounted");
    machine.exits(&directory, &["close"], 3);
    // Files that programs have written meanwhile are not hidden.
    write(&directory, "other", "");
    assert_has(&machine.exits(&directory, &["repair"], 1), "would hide");
    fs::remove_file(directory.join("other")).unwrap();
    assert_has(&machine.exits(&directory, &["repair"], 0), "mounted ");
    assert_eq!(tree(&directory), tree(&origin));
    // Twice has no effect.
    let mounts = machine.mounts();
    let text = machine.exits(&directory, &["repair"], 0);
    assert!(!text.contains("mounted "), "{text}");
    assert_has(&output(&mut machine.opening(&directory)), "already");
    assert_eq!(machine.mounts(), mounts);
    machine.unmount_all();
    // The disk with the changes may be missing.
    let (layers, away) = (machine.dir("state/samovar/overlays"), machine.dir("away"));
    fs::rename(&layers, &away).unwrap();
    for text in [
        machine.exits(&directory, &["status"], 3),
        exits(&mut machine.opening(&directory), 3),
    ] {
        assert_has(&text, "which does not exist: mount the disk");
        assert_has(&text, layers.to_str().unwrap());
    }
    fs::rename(&away, &layers).unwrap();
    // Opening it again mounts it, too.
    output(machine.command(&["open", "app"]).arg(&directory));
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&origin));
}

#[test]
fn a_workspace_whose_directory_was_removed_is_opened_with_its_changes() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    work(&directory);
    work(&origin);
    machine.unmount_all();
    fs::remove_dir_all(&directory).unwrap();
    let text = output(&mut machine.command(&["list"]));
    assert_has(&text, "app@1, overlay, not mounted");
    let (_, changes) = text.split_once("vanished, with its changes in \"").unwrap();
    let changes = Path::new(changes.split('"').next().unwrap());
    assert_eq!(read(changes, "keep/edited"), "new");
    let text = exits(&mut machine.opening(&directory), 0);
    assert_has(&text, "already");
    assert_eq!(tree(&directory), tree(&origin));
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&origin));
    // After it is closed, it begins anew.
    machine.close(&directory);
    assert_has(&output(&mut machine.opening(&directory)), "mounted app@2");
}

#[test]
fn files_that_hard_links_copy_up_are_unchanged() {
    let Some(machine) = Machine::new() else {
        return;
    };
    machine.pushed(&[("store/a", "a"), ("modules/x", "x")]);
    let directory = machine.overlay();
    // As pnpm does with its store.
    fs::hard_link(directory.join("store/a"), directory.join("modules/a")).unwrap();
    let text = machine.exits(&directory, &["diff"], 1);
    assert_has(&text, "added    modules/a\n1 added\n");
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&directory));
}

#[test]
fn closing_keeps_unpushed_changes() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    work(&directory);
    work(&origin);
    let text = machine.exits(&directory, &["close"], 1);
    assert_has(&text, "has unpushed changes");
    let file = fs::File::open(directory.join("package.json")).unwrap();
    let text = machine.exits(&directory, &["close", "--discard"], 1);
    assert_has(&text, "a program uses files");
    drop(file);
    let below = directory.join("new");
    output(
        support::bare("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&below),
    );
    let text = machine.exits(&directory, &["close", "--discard"], 1);
    assert_has(&text, &format!("a file system is mounted on {below:?}"));
    unmount(&below);
    assert_eq!(tree(&directory), tree(&origin));
    let text = machine.exits(&directory, &["close", "--discard"], 0);
    assert_has(&text, "which is empty now");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    let kept = text.split('"').nth(3).unwrap();
    assert_eq!(read(Path::new(kept), "upper/keep/edited"), "new");
    let run = ["run", "--continue", kept, "--", "true"];
    exits(&mut machine.command(&run), 0);
    assert_eq!(machine.pulled(), tree(&origin));
    eventually("nothing is mounted", || machine.mounts().is_empty());
    // Without changes, nothing is left.
    let directory = machine.overlay();
    machine.close(&directory);
    assert!(!directory.exists());
    eventually("nothing is mounted", || machine.mounts().is_empty());
    let layers = machine.dir("state/samovar/overlays");
    assert_eq!(fs::read_dir(layers).unwrap().count(), 0);
    assert!(!output(&mut machine.command(&["list"])).contains("overlay"));
}

#[test]
fn a_new_ref_begins_with_an_empty_tree() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let directory = machine.dir("overlay");
    let text = output(&mut machine.opening(&directory));
    assert_has(&text, "does not exist yet");
    write(&directory, "a/b", "c");
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&directory));
    machine.exits(&directory, &["status"], 0);
}

#[test]
fn directories_that_are_read_only_can_be_changed_and_stay_so() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let mode = |directory: &Path, mode: u32| {
        fs::set_permissions(directory.join("keep"), Permissions::from_mode(mode)).unwrap();
    };
    mode(&origin, 0o555);
    machine.push(&origin);
    let directory = machine.overlay();
    write(&directory, "keep/new", "new");
    fs::remove_file(directory.join("keep/same")).unwrap();
    machine.exits(&directory, &["push"], 0);
    machine.run(&origin, &["pull"]);
    let found = fs::metadata(origin.join("keep")).unwrap().permissions();
    assert_eq!(found.mode() & 0o777, 0o555);
    assert_eq!(tree(&origin), tree(&directory));
    // Permissions that a user gives are kept.
    mode(&directory, 0o755);
    assert_has(&machine.exits(&directory, &["diff"], 1), "mode     keep");
    machine.exits(&directory, &["push"], 0);
    machine.exits(&directory, &["status"], 0);
}

#[test]
fn a_directory_that_cannot_be_mounted_on_is_refused() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.dir("overlay");
    write(&directory, "mine", "mine");
    assert_has(&exits(&mut machine.opening(&directory), 1), "is not empty");
    assert_eq!(tree(&directory).len(), 1);
    let text = exits(&mut machine.opening(&origin), 1);
    assert_has(&text, "without an overlay already");
    fs::remove_file(directory.join("mine")).unwrap();
    // Without the right to mount for all processes.
    let mut user = support::bare("setpriv");
    user.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
    user.arg(env!("CARGO_BIN_EXE_samovar"));
    let opening = machine.opening(&directory);
    user.args(opening.get_args());
    for (name, value) in opening.get_envs() {
        user.env(name, value.unwrap_or_default());
    }
    let expected = "only root may do: use samovar workspace run REF -- CMD";
    assert_has(&exits(&mut user, 1), expected);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_full_disk_loses_nothing() {
    let Some(machine) = Machine::new() else {
        return;
    };
    machine.pushed(FILES);
    let disk = machine.dir("state/samovar/overlays");
    fs::create_dir_all(&disk).unwrap();
    output(
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(&disk),
    );
    let directory = machine.overlay();
    write(&directory, "keep/edited", "new");
    fs::write(directory.join("big"), noise(1, 2 << 20)).unwrap_err();
    // The state is not on this disk.
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&directory));
    assert_eq!(read(&directory, "keep/edited"), "new");
    fs::remove_file(directory.join("big")).unwrap();
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&directory));
}

#[test]
fn a_workspace_outlives_the_generation_on_which_it_is_based() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.pushed(FILES);
    let directory = machine.overlay();
    let marks = fs::read_dir(machine.dir("cache/snapshots")).unwrap();
    let marks = marks.flatten().next().unwrap().path().join("marks");
    eventually("the files are on this machine", || {
        fs::read(&marks).is_ok_and(|marks| marks.get(56) == Some(&2))
    });
    write(&directory, "mine", "mine");
    for round in ["1", "2"] {
        write(&origin, "theirs", round);
        machine.run(&origin, &["push", "--keep", "1"]);
    }
    machine.exits(&directory, &["pull"], 0);
    assert_eq!(read(&directory, "theirs"), "2");
    assert_eq!(read(&directory, "keep/same"), "same");
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&directory));
}

#[test]
fn a_workspace_is_mounted_without_the_server_and_with_it_later() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let origin = machine.open("app", "origin");
    write(&origin, "a/big", noise(1, 6 << 20));
    write(&origin, "z", "z");
    machine.push(&origin);
    let line = Line::to(machine.server.address, SOME);
    let directory = machine.dir("overlay");
    output(machine.opening(&directory).env("SAMOVAR_CACHE", line.url()));
    write(&directory, "mine", "mine");
    line.connect(None);
    machine.unmount_all();
    let text = machine.exits(&directory, &["repair"], 0);
    assert_has(&text, "mounted without the server");
    assert_eq!(read(&directory, "mine"), "mine");
    fs::read(directory.join("z")).unwrap_err();
    // Nothing changes while there is no server.
    machine.exits(&directory, &["repair"], 0);
    line.connect(Some(machine.server.address));
    line.release();
    let text = machine.exits(&directory, &["repair"], 0);
    assert_has(&text, "mounted ");
    assert_eq!(read(&directory, "z"), "z");
    machine.exits(&directory, &["push"], 0);
    assert_eq!(machine.pulled(), tree(&directory));
}
