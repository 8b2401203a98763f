//! Promise: a sample store is the same whatever Nix is installed on the machine. Runs `xtask
//! sample-store` in a copy of this machine's root file system, as an overlay, in which Nix is
//! installed in another way: without settings, as Debian does it, for several users with a daemon,
//! and as on NixOS. Requires root.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it has not tested"
)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use testkit::nix::sample_root;
use testkit::process::finish;

/// Makes an overlay of `/` the root file system: `$1` is an empty directory, `$2` the directory of
/// the repository, `$3` a directory for results, `$4` a script that runs inside. The path of `$5`
/// is a program that the script finds in `$program`.
const MACHINE: &str = r#"
    set -eu
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$1"
    mkdir "$1/upper" "$1/work" "$1/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
    for dir in /proc /dev /sys "$2" "$3"; do
        mkdir -p "$1/root$dir"
        mount --rbind "$dir" "$1/root$dir"
    done
    mkdir "$1/root/old"
    cd "$1/root"
    pivot_root . old
    umount -l /old
    cd "$3"
    result=$3 program=$5 exec sh -euc "$4"
"#;

const MAKE: &str = r#"
    "$program" sample-store "$result/sample" >"$result/log" 2>&1 || { cat "$result/log"; exit 1; }
"#;

/// A group of build users whose members exist, as Nix's installers make it.
const BUILD_USERS: &str = r#"
    sed -i '/^nixbld/d' /etc/group /etc/passwd
    echo 'nixbld:x:30000:nixbld1' >>/etc/group
    echo 'nixbld1:x:30001:30000::/var/empty:/usr/sbin/nologin' >>/etc/passwd
"#;

/// Makes a sample store in a machine that `layout` has set up, and compares it with the one of this
/// machine.
#[track_caller]
fn check(layout: &str) {
    if !is_root() {
        eprintln!("skipped: only root can make another root file system");
        return;
    }
    let (root, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        MACHINE,
        "sh",
    ]);
    command.arg(root.path()).arg(repository).arg(results.path());
    command.arg(format!("{layout}\n{MAKE}"));
    command.arg(env!("CARGO_BIN_EXE_xtask"));
    let done = finish(&mut command);
    let said = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
    if said.contains("mount: ") && !said.contains("samovar") {
        eprintln!("skipped: this machine has no overlays: {said}");
        return;
    }
    assert!(done.status.success(), "{said}");
    let made = results.path().join("sample");
    for dir in ["nix", "nix/store", "nix/store/.links", "nix/var/nix/db"] {
        let dir = made.join(dir).metadata().unwrap();
        assert_eq!((dir.uid(), dir.gid(), dir.mode() & 0o7777), (0, 0, 0o755));
    }
    // Whether Nix may build depends on the machine, so the stores have this part in common.
    let closure = |root: &Path| {
        let text = std::fs::read(root.join("sample.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
        manifest["closure"].clone()
    };
    assert!(closure(&made) == closure(&sample_root()), "other paths");
}

fn is_root() -> bool {
    Path::new("/proc/self").metadata().unwrap().uid() == 0
}

#[test]
fn without_settings() {
    check("rm -rf /etc/nix; sed -i '/^nixbld/d' /etc/group /etc/passwd");
}

#[test]
fn with_build_users() {
    check(&format!(
        "{BUILD_USERS} mkdir -p /etc/nix; echo 'sandbox = false' >/etc/nix/nix.conf"
    ));
}

#[test]
fn with_a_daemon() {
    check(&format!(
        r#"{BUILD_USERS}
        mkdir -p /etc/nix /nix/store
        mount -t tmpfs tmpfs /nix
        echo 'build-users-group = nixbld' >/etc/nix/nix.conf
        NIX_REMOTE=local nix-daemon >"$result/daemon" 2>&1 &
        export NIX_REMOTE=daemon
        until nix-store --verify >"$result/verify" 2>&1; do kill -0 $!; done
        test -n "$(find /nix/store -maxdepth 0 -group nixbld)"
        "#
    ));
}

#[test]
fn with_a_store_that_is_read_only() {
    check(&format!(
        r#"{BUILD_USERS}
        mkdir -p /etc/nix /nix/store
        mount -t tmpfs tmpfs /nix
        mkdir -p /nix/store
        echo 'build-users-group = nixbld' >/etc/nix/nix.conf
        NIX_REMOTE=local nix-store --verify
        mount --bind /nix/store /nix/store
        mount -o remount,bind,ro /nix/store
        "#
    ));
}
