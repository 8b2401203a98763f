//! A machine that was cloned from another one, with the home directory on one network file system,
//! does not take its own older files for changes after the other one has pulled.

mod support;
mod support_uploads;
mod support_volatile;
mod support_workspaces;

use std::fs;
use std::path::Path;
use std::process::Command;

use support_volatile::VolatileDisk;
use support_workspaces::{Home, assert_has, exits, read, tree, write};

/// Runs its arguments with another host name and ID of the boot, unless these are empty.
const AS_ANOTHER: &str = "set -e
if [ -n \"$HOST\" ]; then echo \"$HOST\" >/proc/sys/kernel/hostname; fi
if [ -n \"$BOOT\" ]; then mount --bind \"$BOOT\" /proc/sys/kernel/random/boot_id; fi
exec \"$@\"";

/// Returns `samovar workspace` on a machine with another host name or another boot.
fn elsewhere(home: &Home, host: &str, boot: &Path, arguments: &[&str]) -> Command {
    let here = home.command(arguments);
    let mut command = support::bare("unshare");
    command.args(["--mount", "--uts", "sh", "-c", AS_ANOTHER, "sh"]);
    command.arg(here.get_program()).args(here.get_args());
    for (name, value) in here.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env("HOST", host).env("BOOT", boot);
    command
}

#[test]
fn a_state_that_another_machine_has_used_is_refused_where_the_files_are_others() {
    let home = Home::new();
    let (boot, none) = (home.dir("boot"), Path::new(""));
    fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let probe = elsewhere(&home, "other", &boot, &["list"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("not tested: this user cannot make namespaces");
        return;
    }
    let state = home.dir("state");
    fs::remove_dir_all(&state).ok();
    fs::create_dir(&state).unwrap();
    let disk = VolatileDisk::new(1);
    let Some(_mounted) = disk.mount(&state) else {
        return;
    };
    let one = home.open("app", "one");
    write(&one, "a", "1");
    home.push(&one);
    let at = one.to_str().unwrap();
    let other = |words: &[&str], code| exits(&mut elsewhere(&home, "other", &boot, words), code);
    // A machine that was renamed, and one that was restarted.
    for (host, boot) in [("other", none), ("", &*boot)] {
        let words = ["status", "--offline", "--dir", at];
        exits(&mut elsewhere(&home, host, boot, &words), 0);
    }
    // The other machine has older files.
    write(&one, "a", "older");
    let before = tree(&one);
    for (words, code) in [
        (&["status", "--dir", at][..], 3),
        (&["diff", "--dir", at], 3),
        (&["push", "--dir", at], 1),
        (&["pull", "--dir", at], 1),
        (&["discard", "--yes", "--dir", at], 1),
        (&["close", "--dir", at], 1),
        (&["open", "app", at], 1),
    ] {
        let text = other(words, code);
        assert_has(&text, "was used by another machine last");
    }
    assert_has(&other(&["list"], 0), "was used by another machine last");
    assert_eq!(tree(&one), before);
    // With a state of its own, the clone merges.
    let mut adopt = elsewhere(&home, "other", &boot, &["open", "--adopt", "app@1", at]);
    exits(adopt.env("XDG_STATE_HOME", home.dir("own")), 0);
    // The disk has moved, for example.
    assert_has(
        &other(&["repair", "--dir", at], 0),
        "used by this machine now",
    );
    assert_has(&other(&["push", "--dir", at], 0), "app@2");
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "another machine last (other)");

    // Both machines have the same files.
    let both = state.join("both");
    let open = ["open", "--on-network-disk", "app", both.to_str().unwrap()];
    exits(&mut home.command(&open), 0);
    assert_eq!(read(&both, "a"), "older");
    other(&["pull", "--dir", both.to_str().unwrap()], 0);
    home.run(&both, &["pull"]);
}
