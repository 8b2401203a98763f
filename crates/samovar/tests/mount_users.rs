//! Users other than root mount snapshots: by `fusermount3`, or in a user namespace of their own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_mount;
mod support_uploads;
mod support_users;

use std::process::Command;

use support_mount::{Fixture, can_mount};
use support_users::{as_user, has_users};
use testkit::process::{finish, output};

/// Functions of a script that mounts the ref `app` on the directory `mnt`.
const FUNCTIONS: &str = r#"
    is_mounted() { grep -q '^mounted app@1 on' out; }
    begin() {
        # Emptied here: the shell in the background may open the file later than `grep` does.
        : >out
        "$SAMOVAR" mount "$URL#app" mnt "$@" >>out 2>&1 & pid=$!
        until is_mounted; do
            kill -0 $pid 2>/dev/null || is_mounted || { cat out; exit 9; }
            sleep 0.05
        done
    }
    end() {
        wait $pid; echo "exit code $?"; ls -A mnt
    }
"#;

/// Mounts, and unmounts in all ways.
const USE: &str = r#"
    set -e
    begin
    cat mnt/run mnt/many/file-7
    sha256sum <mnt/deep/large-3
    touch mnt/new 2>/dev/null && echo writable
    kill -TERM $pid; end
    # A mount whose process was killed is replaced.
    begin; kill -KILL $pid; wait $pid || true
    begin; cat mnt/many/file-8
    kill -INT $pid; end
"#;

/// Returns the output of [`USE`].
fn expected(fixture: &Fixture) -> String {
    let sum = output(
        Command::new("sha256sum")
            .stdin(std::fs::File::open(fixture.tree().join("deep/large-3")).unwrap()),
    );
    format!("#!/bin/sh\n7\n{sum}exit code 0\n8\nexit code 0\n")
}

/// Returns a command that runs a script with [`FUNCTIONS`] in a directory of its own.
fn shell(fixture: &Fixture, dir: &tempfile::TempDir, text: &str) -> Command {
    let mut command = as_user(dir.path());
    command.args(["sh", "-c", &format!("{FUNCTIONS}{text}")]);
    command.env("URL", fixture.server.url());
    command.env("SAMOVAR_TOKEN", &fixture.token);
    command.env("SAMOVAR_CACHE_DIR", dir.path().join("cache"));
    command
}

/// Returns whether users can mount by `fusermount3`. Prints the reason if they cannot.
fn has_helper() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let found = finish(Command::new("sh").args(["-c", "command -v fusermount3"]));
    let path = String::from_utf8(found.stdout).unwrap();
    let metadata = std::fs::metadata(path.trim());
    let is_usable =
        metadata.is_ok_and(|metadata| metadata.mode() & 0o4000 != 0 && metadata.uid() == 0);
    if !is_usable {
        println!("not tested: fusermount3 is not installed for users");
    }
    is_usable
}

#[test]
fn a_user_mounts_by_fusermount3() {
    if !can_mount() || !has_users() || !has_helper() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let dir = tempfile::tempdir().unwrap();
    let text = output(&mut shell(&fixture, &dir, USE));
    assert_eq!(text, expected(&fixture));
    let by_helper = "begin; fusermount3 -u mnt; end; \
                     begin --background; cat mnt/many/file-9; fusermount3 -u mnt; ls -A mnt";
    let text = output(&mut shell(&fixture, &dir, by_helper));
    assert_eq!(text, "exit code 0\n9\n");
    // What the helper refuses is stated in its words.
    let refused = "\"$SAMOVAR\" mount \"$URL#app\" mnt --allow-other 2>&1; echo \"exit code $?\"";
    let text = output(&mut shell(&fixture, &dir, refused));
    if !text.contains("mounted app@1") {
        assert!(text.contains("user_allow_other"), "{text}");
        assert!(
            text.ends_with("\nexit code 3\n") && text.lines().count() == 2,
            "{text}"
        );
    }
}

#[test]
fn a_user_mounts_in_a_user_namespace_without_fusermount3() {
    if !can_mount() || !has_users() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let dir = tempfile::tempdir().unwrap();
    let probe = "unshare --user --map-root-user --mount true";
    if !finish(&mut shell(&fixture, &dir, probe)).status.success() {
        println!("not tested: users cannot have namespaces here");
        return;
    }
    let inside = "export FUNCTIONS USE; unshare --user --map-root-user --mount \
                  sh -c \"$FUNCTIONS$USE\"";
    let mut command = shell(&fixture, &dir, inside);
    command.env("FUNCTIONS", FUNCTIONS).env("USE", USE);
    assert_eq!(output(&mut command), expected(&fixture));
}

#[test]
fn without_a_namespace_and_fusermount3_the_remedies_are_stated() {
    if !can_mount() || !has_users() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let dir = tempfile::tempdir().unwrap();
    // The library searches /bin and /sbin, too, unless the variable names the program.
    let text = "PATH=/nonexistent FUSERMOUNT_PATH=/nonexistent/fusermount3 \
                exec \"$SAMOVAR\" mount \"$URL#app\" mnt";
    let failed = finish(&mut shell(&fixture, &dir, text));
    let error = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(3), "{error}");
    for part in [
        "the program fusermount3 of the package fuse3",
        "unshare --user --map-root-user --mount",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}
