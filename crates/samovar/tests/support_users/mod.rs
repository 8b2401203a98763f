//! Commands of a user who is not root.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has not tested"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use crate::support::bare;

/// The user and the group.
pub(crate) const NOBODY: u32 = 65534;

/// Returns whether the tests can run commands of another user. Prints the reason if they cannot.
pub(crate) fn has_users() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not tested: commands of another user need root");
    }
    is_root
}

/// Returns a command that runs the command that follows as a user who owns `dir`, the current
/// directory, with the path of the program in `$SAMOVAR`. Mounts are visible to it only. The
/// machine may keep `/dev/fuse` and the program from other users, so it sees copies of both.
pub(crate) fn as_user(dir: &Path) -> Command {
    chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let program = env!("CARGO_BIN_EXE_samovar");
    let script = format!(
        "set -e; mount --make-rprivate /; [ -e fuse ] || mknod -m 0666 fuse c 10 229; \
         mount --bind fuse /dev/fuse; : >samovar; mount --bind '{program}' samovar; \
         export SAMOVAR=$PWD/samovar; exec setpriv --reuid {NOBODY} --regid {NOBODY} \
         --clear-groups \"$@\""
    );
    let mut command = bare("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.current_dir(dir).env_remove("HOME");
    command
}
