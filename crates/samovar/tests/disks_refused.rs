//! The directories of Samovar that need a local disk are refused on a file system of a process,
//! such as sshfs, with the remedy.

mod support;
mod support_mount;
mod support_uploads;
mod support_volatile;
mod support_workspaces;

use std::fs;
use std::os::unix::fs::symlink;

use support_mount::{Fixture, can_mount};
use support_volatile::VolatileDisk;
use support_workspaces::{Home, assert_has, exits, write};
use testkit::process::output;

#[test]
fn a_workspace_on_fuse_needs_a_confirmation() {
    let home = Home::new();
    let at = home.dir("fuse");
    fs::create_dir(&at).unwrap();
    let disk = VolatileDisk::new(1);
    let Some(_mounted) = disk.mount(&at) else {
        return;
    };
    // The directories need not exist.
    for directory in [at.clone(), at.join("a/b")] {
        let mut open = home.command(&["open", "app"]);
        let text = exits(open.arg(&directory), 1);
        assert_has(&text, "on a network file system (FUSE)");
        assert_has(&text, "--on-network-disk");
        assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    }
    // Through a symbolic link from a local disk.
    let link = home.dir("link");
    symlink(&at, &link).unwrap();
    let mut open = home.command(&["open", "app"]);
    assert_has(&exits(open.arg(&link), 1), "FUSE");
    let confirmed = at.join("confirmed");
    let mut open = home.command(&["open", "app", "--on-network-disk"]);
    output(open.arg(&confirmed));
    write(&confirmed, "a", "a");
    assert_eq!(home.push(&confirmed), 1);
    home.assert_clean(&confirmed);
}

#[test]
fn the_files_of_mounts_and_overlays_are_not_kept_on_fuse() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let at = fixture.dir.path().join("fuse");
    fs::create_dir(&at).unwrap();
    let disk = VolatileDisk::new(1);
    let Some(_mounted) = disk.mount(&at) else {
        return;
    };
    let url = fixture.server.url();
    let home = at.join("home");
    // The variable, and the default below the home directory.
    for variable in ["SAMOVAR_CACHE_DIR", "XDG_CACHE_HOME", "HOME"] {
        let mut command = fixture.command(&url, "app", "mnt");
        command.env_remove("SAMOVAR_CACHE_DIR").env(variable, &home);
        let text = exits(&mut command, 2);
        assert_has(&text, "is on FUSE");
        assert_has(
            &text,
            "set SAMOVAR_CACHE_DIR to a directory on a local disk",
        );
        let mut command = support::samovar();
        command.args(["workspace", "run", &format!("{url}#app"), "--", "true"]);
        command.env("SAMOVAR_TOKEN", &fixture.token);
        command.env("SAMOVAR_CACHE_DIR", fixture.cache());
        command.env(variable.replace("CACHE", "STATE"), &home);
        let text = exits(&mut command, 125);
        assert_has(&text, "FUSE");
        assert_has(&text, "SAMOVAR_STATE_DIR");
    }
}
