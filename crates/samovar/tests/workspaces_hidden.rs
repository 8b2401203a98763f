//! Files that a scan cannot see, below a mounted file system or without the permission to read
//! them, are neither pushed nor taken for removed.

mod support;
mod support_uploads;
mod support_users;
mod support_workspaces;

use std::fs;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use support_users::{as_user, has_users};
use support_workspaces::{Home, assert_has, read, tree, write};
use testkit::process::{finish, output};

#[test]
fn a_mounted_file_system_is_a_boundary() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "kept", "kept");
    write(&one, "n/sub/file", "same");
    write(&one, "z", "z");
    home.push(&one);
    let two = home.open("app", "two");
    let elsewhere = home.dir("elsewhere");
    write(&elsewhere, "other", "other");
    if let Err(error) = mount_bind(&elsewhere, one.join("n")) {
        println!("not tested: no directory can be mounted here: {error}");
        return;
    }
    home.assert_clean(&one);
    // More than half of the tree changes, so that a whole upload would be shorter.
    let numbers = (0..40_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let content: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    write(&one, "kept", &content);
    fs::remove_file(one.join("z")).unwrap();
    assert_has(&home.exits(&one, &["push"], 0), "left out 1 mounted");
    home.run(&two, &["pull"]);
    assert_eq!(read(&two, "n/sub/file"), "same");
    assert_eq!(fs::read(two.join("kept")).unwrap(), content);
    let names: Vec<Vec<u8>> = tree(&two).into_keys().collect();
    let expected = ["kept", "n", "n/sub", "n/sub/file"].map(|name| name.as_bytes().to_vec());
    assert_eq!(names, expected);
    // A pull that would have to change what is below the mount changes nothing.
    write(&two, "n/sub/file", "new");
    write(&two, "kept", "of two");
    home.push(&two);
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "\"n\" is a mounted file system");
    assert_eq!(fs::read(one.join("kept")).unwrap(), content);
    assert_eq!(read(&elsewhere, "other"), "other");
    unmount(one.join("n"), UnmountFlags::DETACH).unwrap();
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    home.assert_clean(&one);
}

/// As of a secret that a container gets.
#[test]
fn a_mount_on_a_file_is_a_boundary() {
    let home = Home::new();
    let one = home.open("app", "one");
    for name in ["f", "z"] {
        write(&one, name, "ours");
    }
    home.push(&one);
    let two = home.open("app", "two");
    let secret = home.dir("secret");
    fs::write(&secret, "secret").unwrap();
    for mounted in [&*secret, std::path::Path::new("/dev/null")] {
        if let Err(error) = mount_bind(mounted, one.join("f")) {
            println!("not tested: no file can be mounted here: {error}");
            return;
        }
        home.assert_clean(&one);
        write(&one, "z", mounted.as_os_str().as_encoded_bytes());
        assert_has(&home.exits(&one, &["push"], 0), "left out 1 mounted");
        home.run(&two, &["pull"]);
        assert_eq!(read(&two, "f"), "ours");
        write(&two, "f", mounted.as_os_str().as_encoded_bytes());
        home.push(&two);
        let text = home.exits(&one, &["pull"], 1);
        assert_has(&text, "\"f\" is a mounted file system");
        let text = home.exits(&one, &["close", "--delete"], 1);
        assert_has(&text, "unmount it");
        unmount(one.join("f"), UnmountFlags::DETACH).unwrap();
        home.run(&one, &["pull"]);
        assert_eq!(tree(&one), tree(&two));
        write(&two, "f", "ours");
        home.push(&two);
        home.run(&one, &["pull"]);
    }
}

/// The mount is one of a user, whose namespace vanishes with the command.
#[test]
fn a_mounted_file_system_is_a_boundary_of_a_directory_that_is_pushed() {
    let home = Home::new();
    let dir = home.dir("tree");
    write(&dir, "kept", "kept");
    write(&dir, "n/sub/file", "same");
    write(&dir, "z", "z");
    let push = |mounts: &str| {
        let mut command = support::bare("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
        command.arg(format!("{mounts}; exec \"$SAMOVAR\" push tree app"));
        command.env("SAMOVAR", env!("CARGO_BIN_EXE_samovar"));
        command.env("SAMOVAR_CACHE", home.server.url());
        command.env("SAMOVAR_TOKEN", &home.token);
        command.current_dir(home.dir("."));
        command
    };
    let mut probe = push("exit 0");
    if !finish(&mut probe).status.success() {
        println!("not tested: this machine has no user namespaces");
        return;
    }
    let pulled = || {
        let copy = home.dir(&format!(
            "copy-{}",
            fs::read_dir(home.dir(".")).unwrap().count()
        ));
        let mut pull = support::samovar();
        pull.args(["pull", "app"]).arg(&copy);
        pull.env("SAMOVAR_CACHE", home.server.url());
        output(pull.env("SAMOVAR_TOKEN", &home.token));
        tree(&copy)
    };
    output(&mut push("true"));
    let first = pulled();
    write(&home.dir("elsewhere"), "other", "other");
    let mount = "mount --bind elsewhere tree/n";
    // Nothing else has changed.
    let done = finish(&mut push(mount));
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert_has(&text, "left out 1 mounted file system");
    assert_has(&text, "app@1 is unchanged");
    assert_eq!(pulled(), first);
    // Most of the tree has changed.
    let numbers = (0..40_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let content: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    write(&dir, "kept", &content);
    fs::remove_file(dir.join("z")).unwrap();
    output(&mut push(mount));
    let second = pulled();
    assert_eq!(second[&b"n/sub/file"[..]], b"same");
    assert_eq!(second[&b"kept"[..]], content);
    assert!(!second.contains_key(&b"z"[..]) && !second.contains_key(&b"n/other"[..]));
    // Without the mount, what is not there was removed.
    fs::remove_file(dir.join("n/sub/file")).unwrap();
    output(&mut push("true"));
    assert!(!pulled().contains_key(&b"n/sub/file"[..]));
}

/// Root may read all files, other users may not.
#[test]
fn an_unreadable_file_is_refused_or_left_out_by_choice() {
    if !has_users() {
        return;
    }
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let user = |script: &str| {
        let mut command = as_user(dir.path());
        command.args(["sh", "-ec", script]);
        command.env("SAMOVAR_CACHE", home.server.url());
        command.env("SAMOVAR_TOKEN", &home.token);
        command.env("XDG_STATE_HOME", dir.path().join("state"));
        output(&mut command)
    };
    user(
        "mkdir -p one/locked; cd one; echo a >a; echo s >secret; echo l >locked/l; \
         \"$SAMOVAR\" ws open app .; \"$SAMOVAR\" ws push",
    );
    let text = user(
        "cd one; echo b >b; echo n >new; chmod 000 secret new; \
         ! \"$SAMOVAR\" ws push 2>&1; ! \"$SAMOVAR\" ws status 2>&1",
    );
    assert_has(&text, "one/new: Permission denied");
    assert_has(&text, "--skip-unreadable");
    assert_has(&text, "left out 2 unreadable paths: \"new\", \"secret\"");
    assert_has(&text, "app@1 in");
    // A pull changes other files meanwhile.
    let three = home.open("app", "three");
    write(&three, "of-three", "3");
    home.push(&three);
    let text = user("cd one; ! \"$SAMOVAR\" ws diff 2>&1; \"$SAMOVAR\" ws pull");
    assert_has(&text, "added    b\n1 added");
    assert_has(&text, "merged app@2");
    write(&three, "secret", "changed");
    home.push(&three);
    let text = user("cd one; ! \"$SAMOVAR\" ws pull 2>&1");
    assert_has(&text, "secret would be changed");
    home.run(&three, &["restore", "@2"]);
    home.push(&three);
    user("cd one; \"$SAMOVAR\" ws pull");
    let text = user("cd one; chmod 000 locked; ! \"$SAMOVAR\" ws push 2>&1");
    assert_has(&text, "one/locked: Permission denied");
    let text = user(
        "cd one; \"$SAMOVAR\" ws push --skip-unreadable --message mine 2>&1; \
         \"$SAMOVAR\" ws log",
    );
    assert_has(&text, "left out 3 unreadable paths: \"locked\", \"new\"");
    assert_has(&text, "mine; without 3 unreadable paths: \"locked\"");
    let two = home.open("app", "two");
    let names: Vec<Vec<u8>> = tree(&two).into_keys().collect();
    let expected = ["a", "b", "locked", "locked/l", "of-three", "secret"];
    assert_eq!(names, expected.map(|name| name.as_bytes().to_vec()));
    assert_eq!(read(&two, "secret"), "s\n");
    // All is pushed when it can be read again.
    user("cd one; chmod 700 locked; chmod 600 secret new; \"$SAMOVAR\" ws push");
    home.run(&two, &["pull"]);
    assert_eq!(read(&two, "new"), "n\n");
}
