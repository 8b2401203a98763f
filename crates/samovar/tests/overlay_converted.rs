//! A mounted workspace of an earlier version, whose state is in the directory with the changes, is
//! used by this version without losing a change: while it is mounted, after a reboot, and after its
//! directory was removed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{XattrFlags, removexattr, setxattr};
use support_mount::{can_mount, unmount};
use support_workspaces::{Home, assert_has, close_overlay, exits, read, tree, write};
use testkit::process::{finish, output};

/// The attribute of the directory of a workspace.
const MARK: &str = "user.samovar.workspace";

/// A mounted workspace, as an earlier version has made it, with an unpushed change.
struct Old {
    home: Home,
    directory: PathBuf,
    layers: PathBuf,
}

impl Drop for Old {
    fn drop(&mut self) {
        self.unmount_all();
    }
}

impl Old {
    /// Returns `None`, after printing the reason, if this machine has no overlays.
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let home = Home::new();
        let origin = home.open("app", "origin");
        for name in ["kept", "edited", "gone/a"] {
            write(&origin, name, "old");
        }
        home.push(&origin);
        let directory = home.dir("mounted");
        let mut open = home.command(&["open", "--mode", "overlay", "app"]);
        open.env("SAMOVAR_CACHE_DIR", home.dir("cache"));
        let opened = finish(open.arg(&directory));
        if !opened.status.success() {
            let reason = String::from_utf8_lossy(&opened.stderr);
            println!("not tested: this machine cannot mount workspaces: {reason}");
            return None;
        }
        let state = read(&home.state(&directory), "workspace");
        let layers = state.lines().find_map(|line| line.strip_prefix("layers "));
        let old = Self {
            layers: layers.unwrap().into(),
            home,
            directory,
        };
        write(&old.directory, "pushed", "pushed");
        old.exits(&["push"], 0);
        write(&old.directory, "edited", "new");
        fs::remove_dir_all(old.directory.join("gone")).unwrap();
        old.convert_back();
        old.mount();
        Some(old)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(arguments);
        command.env("SAMOVAR_CACHE_DIR", self.home.dir("cache"));
        command
    }

    #[track_caller]
    fn exits(&self, arguments: &[&str], code: i32) -> String {
        let mut command = self.command(arguments);
        exits(command.arg("--dir").arg(&self.directory), code)
    }

    /// Unmounts the workspace, and moves its state to where earlier versions had it.
    fn convert_back(&self) {
        let state = self.home.state(&self.directory);
        unmount(&self.directory);
        let own = self.layers.join("upper/.samovar");
        fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
        setxattr(&own, "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        for entry in fs::read_dir(&state).unwrap().flatten() {
            if entry.file_name() != "directory" {
                fs::copy(entry.path(), own.join(entry.file_name())).unwrap();
            }
        }
        // There were no lineages.
        let text = read(&own, "workspace");
        let start = text.find("\nbase ").unwrap() + "\nbase ".len();
        let (number, rest) = text[start..].split_once('-').unwrap();
        let (_, rest) = rest.split_once(' ').unwrap();
        write(
            &own,
            "workspace",
            format!("{}{number} {rest}", &text[..start]),
        );
        write(&own, "clock", "");
        fs::remove_dir_all(state).unwrap();
        removexattr(&self.directory, MARK).unwrap_or_default();
        symlink(&own, self.directory.join(".samovar")).unwrap();
        let path = self.directory.to_str().unwrap();
        write(&self.layers, "directory", path);
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let list = self.home.dir("state/samovar");
        write(&list, &format!("workspaces-{host}"), format!("{path}\n"));
    }

    /// Mounts the overlay with the options of the earlier version. Its lower layer is served.
    fn mount(&self) {
        let name = self.layers.file_name().unwrap().to_str().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "-o"]);
        mount.arg(
            "nodev,nosuid,lowerdir=lower,upperdir=upper,workdir=work,metacopy=off,\
             redirect_dir=on,index=off",
        );
        mount.arg(format!("samovar:{name}")).arg(&self.directory);
        output(mount.current_dir(&self.layers));
    }

    /// Unmounts everything, as a reboot does.
    fn unmount_all(&self) {
        unmount(&self.directory);
        unmount(&self.layers.join("lower"));
    }

    /// Asserts that the workspace has its unpushed changes and none besides, that nothing of the
    /// old state is left, and that the changes can be pushed.
    #[track_caller]
    fn assert_converted(&self) {
        let diff = self.exits(&["diff"], 1);
        for part in ["modified edited", "removed  gone"] {
            assert_has(&diff, part);
        }
        assert_has(&diff, "1 modified, 2 removed");
        let upper = self.layers.join("upper");
        for directory in [&*self.directory, &*upper] {
            let old = directory.join(".samovar").symlink_metadata();
            assert!(old.is_err(), "{directory:?}");
        }
        assert_eq!(read(&self.directory, "edited"), "new");
        self.exits(&["push"], 0);
        let copy = self.home.open("app", "copy");
        assert_eq!(tree(&copy), tree(&self.directory));
        let mut close = self.command(&["close", "--delete"]);
        close.arg("--dir").arg(&self.directory);
        let mut open = self.command(&["open", "--mode", "overlay", "app"]);
        close_overlay(&mut close, open.arg(&self.directory));
        assert!(!self.layers.exists() && !self.directory.exists());
    }
}

#[test]
fn a_mounted_workspace_is_converted() {
    let Some(old) = Old::new() else {
        return;
    };
    let text = old.exits(&["status"], 1);
    assert_has(&text, "moved the state of the workspace");
    old.assert_converted();
}

#[test]
fn a_workspace_that_is_not_mounted_is_converted() {
    let Some(old) = Old::new() else {
        return;
    };
    old.unmount_all();
    let text = old.exits(&["status"], 3);
    assert_has(&text, "run samovar workspace repair");
    assert_has(&old.exits(&["repair"], 0), "mounted ");
    old.assert_converted();
}

#[test]
fn a_workspace_whose_directory_was_removed_is_converted() {
    let Some(old) = Old::new() else {
        return;
    };
    old.unmount_all();
    fs::remove_dir_all(&old.directory).unwrap();
    let list = output(&mut old.command(&["list"]));
    assert_has(&list, "vanished, with its changes in");
    let mut open = old.command(&["open", "--mode", "overlay", "app"]);
    output(open.arg(&old.directory));
    old.assert_converted();
}
