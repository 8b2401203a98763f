//! A mounted workspace is not closed under programs that use it in another mount namespace.

mod support;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use support_mount::can_mount;
use support_workspaces::{Home, assert_has, close_overlay, exits, write};
use testkit::process::finish;

/// A directory that is unmounted at the end.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // It may not be mounted.
        finish(support::bare("umount").arg("--lazy").arg(self.0));
    }
}

#[test]
fn closing_regards_processes_in_other_mount_namespaces() {
    let machine = Home::new();
    let origin = machine.open("app", "origin");
    write(&origin, "package.json", "{}");
    machine.push(&origin);
    let directory = machine.dir("overlay");
    let command = |arguments: &[&str]| {
        let mut command = machine.command(arguments);
        command.env("SAMOVAR_CACHE_DIR", machine.dir("cache"));
        command
    };
    let run = |arguments: &[&str], code: i32| {
        let mut command = command(arguments);
        exits(command.arg("--dir").arg(&directory), code)
    };
    let open = || finish(command(&["open", "--mode", "overlay", "app"]).arg(&directory));
    if !can_mount() {
        return;
    }
    let opened = open();
    if !opened.status.success() {
        let reason = String::from_utf8_lossy(&opened.stderr);
        println!("not tested: this machine has no overlays: {reason}");
        return;
    }
    let _mounted = Mounted(&directory);
    // Waits for the end of its input.
    let start = |script: &str| {
        let mut command = support::bare("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            &format!("{script} && echo x && exec cat"),
        ]);
        command.current_dir("/").env("WORKSPACE", &directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut ready = [0; 2];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        child
    };
    for script in ["cd \"$WORKSPACE\"", "exec 3>>\"$WORKSPACE/package.json\""] {
        let mut child = start(script);
        run(&["push"], 0);
        let text = run(&["close"], 1);
        assert_has(&text, "in another mount namespace");
        assert_has(&text, &format!("process {}", child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    // One that may use the files later.
    let mut child = start("true");
    let text = run(&["close"], 0);
    assert_has(&text, "still mounted in another mount namespace");
    let kept = text.split("are kept: ").nth(1).unwrap();
    let kept = Path::new(kept.split('"').nth(1).unwrap());
    assert!(kept.join("upper").exists());
    drop(child.stdin.take());
    child.wait().unwrap();
    let again = ["run", "--continue", kept.to_str().unwrap(), "--", "true"];
    exits(&mut command(&again), 0);
    assert!(open().status.success());
    let mut close = command(&["close"]);
    let mut open = command(&["open", "--mode", "overlay", "app"]);
    close.arg("--dir").arg(&directory);
    close_overlay(&mut close, open.arg(&directory));
    let layers = machine.dir("state/samovar/overlays");
    assert_eq!(fs::read_dir(layers).unwrap().count(), 0);
}
