//! A machine that was cloned from another one, with the home directory on one network file system,
//! does not take its own older files for changes after the other one has pushed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_volatile;
mod support_workspaces;

use std::fs;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use support_volatile::VolatileDisk;
use support_workspaces::{Home, assert_has, exits, read, tree, write};

const MARK: &str = "user.samovar.base";

/// Returns the mark; `None` if the file system has no extended attributes.
fn mark(directory: &Path) -> Option<String> {
    let mut value = [0; 256];
    let len = getxattr(directory, MARK, &mut value).ok()?;
    Some(String::from_utf8(value[..len].to_vec()).unwrap())
}

fn set_mark(directory: &Path, value: &str) {
    setxattr(directory, MARK, value.as_bytes(), XattrFlags::empty()).unwrap();
}

/// The disk of the workspace is that of either machine: what differs is its files and its mark.
#[test]
fn a_state_that_another_machine_has_changed_is_refused_where_the_files_are_older() {
    let home = Home::new();
    let state = home.dir("state");
    fs::create_dir_all(&state).unwrap();
    let disk = VolatileDisk::new(1);
    let Some(_mounted) = disk.mount(&state) else {
        return;
    };
    let one = home.open("app", "one");
    write(&one, "a", "1");
    home.push(&one);
    let Some(on_clone) = mark(&one) else {
        println!("not tested: the file system has no extended attributes");
        return;
    };
    write(&one, "a", "2");
    home.push(&one);
    let on_first = mark(&one).unwrap();
    home.exits(&one, &["status"], 0);
    // The process was killed after it had written the mark of a push.
    let next = on_first.split(' ').next_back().unwrap();
    set_mark(&one, &format!("{next} 7-{}", "0a".repeat(16)));
    home.exits(&one, &["status"], 0);

    // The clone has the older file.
    set_mark(&one, &on_clone);
    write(&one, "a", "1");
    let before = tree(&one);
    let at = one.to_str().unwrap();
    for (words, code) in [
        (&["status"][..], 3),
        (&["diff"], 3),
        (&["push"], 1),
        (&["pull"], 1),
        (&["discard", "--yes"], 1),
        (&["close"], 1),
        (&["close", "--delete"], 1),
    ] {
        let text = home.exits(&one, words, code);
        assert_has(&text, "was changed by another machine");
    }
    let text = exits(&mut home.command(&["open", "app", at]), 1);
    assert_has(&text, "was changed by another machine");
    let text = exits(&mut home.command(&["list"]), 0);
    assert_has(&text, "was changed by another machine");
    assert_eq!(tree(&one), before);
    // With a state of its own, the clone merges.
    let mut adopt = home.command(&["open", "--adopt", "app@1", at]);
    exits(adopt.env("XDG_STATE_HOME", home.dir("own")), 0);
    assert_eq!(read(&one, "a"), "1");

    // The disk was restored from a backup, and its files shall count.
    set_mark(&one, &on_clone);
    assert_has(
        &home.exits(&one, &["repair"], 0),
        "belong to this state now",
    );
    assert_has(&home.exits(&one, &["push"], 0), "app@3");
    // The first machine notices that.
    set_mark(&one, &on_first);
    write(&one, "a", "2");
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "was changed by another machine");
}

/// Files that all machines see are the same on each of them.
#[test]
fn a_workspace_on_the_network_disk_itself_is_used_by_all_machines() {
    let home = Home::new();
    let state = home.dir("state");
    fs::create_dir_all(&state).unwrap();
    let disk = VolatileDisk::new(1);
    let Some(_mounted) = disk.mount(&state) else {
        return;
    };
    let both = state.join("both");
    let open = ["open", "--on-network-disk", "app", both.to_str().unwrap()];
    exits(&mut home.command(&open), 0);
    write(&both, "a", "1");
    home.push(&both);
    home.run(&both, &["pull"]);
}
