//! Hard links, such as those of pnpm to its store, become copies. No command changes the file
//! behind another link.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use support_workspaces::{Home, assert_has, read, tree, write};

fn link_count(directory: &Path, name: &str) -> u64 {
    fs::metadata(directory.join(name)).unwrap().nlink()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn hard_links_become_copies_and_no_file_behind_them_changes() {
    let home = Home::new();
    let store = home.dir("store");
    let one = home.dir("one");
    let names = ["replaced", "removed", "mode", "discarded", "kept"];
    fs::create_dir_all(one.join("node_modules/.pnpm")).unwrap();
    for name in names {
        write(&store, name, name);
        fs::hard_link(store.join(name), one.join("node_modules/.pnpm").join(name)).unwrap();
    }
    // Two links to the same file in the workspace.
    fs::hard_link(store.join("kept"), one.join("node_modules/kept")).unwrap();
    home.open("app", "one");
    home.push(&one);
    home.assert_clean(&one);
    let two = home.open("app", "two");
    assert_eq!(tree(&two), tree(&one));
    for name in names {
        assert_eq!(link_count(&two, &format!("node_modules/.pnpm/{name}")), 1);
    }
    // The other machine changes its copies.
    write(&two, "node_modules/.pnpm/replaced", "new");
    fs::remove_file(two.join("node_modules/.pnpm/removed")).unwrap();
    set_mode(&two.join("node_modules/.pnpm/mode"), 0o755);
    home.push(&two);
    write(&one, "node_modules/.pnpm/discarded", "changed in place");
    assert_eq!(read(&store, "discarded"), "changed in place");
    home.run(&one, &["pull"]);
    home.run(&one, &["discard", "--yes"]);
    assert_eq!(tree(&one), tree(&two));
    home.assert_clean(&one);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&one.join("node_modules/.pnpm/mode")), 0o755);
    // The store is as the programs have left it.
    for name in ["replaced", "removed", "mode", "kept"] {
        assert_eq!(read(&store, name), name);
    }
    assert_eq!(read(&store, "discarded"), "changed in place");
    assert_eq!(mode(&store.join("mode")), 0o644);
    assert_eq!(link_count(&store, "kept"), 3);
    // A change through another link is found at all links.
    write(&store, "kept", "KEPT");
    let text = home.exits(&one, &["diff"], 1);
    assert_has(&text, "modified node_modules/.pnpm/kept");
    assert_has(&text, "modified node_modules/kept");
    home.push(&one);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), tree(&one));
}

/// Each change of a link changes the metadata of the others: that is no change by another program.
#[test]
fn links_of_one_file_are_replaced_and_removed_by_one_command() {
    let home = Home::new();
    let one = home.open("app", "one");
    let names = ["p", "q", "r", "s", "t", "u"];
    write(&one, "p", "one");
    let link = |names: &[&str]| {
        for name in names {
            fs::hard_link(one.join("p"), one.join(name)).unwrap();
        }
    };
    link(&names[1..]);
    home.push(&one);
    let two = home.open("app", "two");
    for name in &names[..3] {
        write(&two, name, format!("two {name}"));
    }
    set_mode(&two.join("s"), 0o600);
    fs::remove_file(two.join("t")).unwrap();
    home.push(&two);
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    for name in names {
        fs::remove_file(one.join(name)).unwrap_or_default();
    }
    write(&one, "p", "linked again");
    link(&names[1..]);
    home.run(&one, &["discard", "--yes"]);
    assert_eq!(tree(&one), tree(&two));
    for name in names {
        fs::remove_file(one.join(name)).unwrap_or_default();
    }
    write(&one, "p", "linked again");
    link(&names[1..]);
    home.push(&one);
    home.run(&one, &["close", "--delete"]);
    assert!(!one.exists());
}
