//! `samovar workspace run` runs a command in a writable tree with the files of a ref. Success
//! publishes exactly what the command has done; any failure keeps it; nothing stays mounted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_overlays;
mod support_uploads;
mod support_users;
mod support_workspaces;

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use support_overlays::{FILES, Overlays};
use support_workspaces::{assert_has, exits, read, tree, write};
use testkit::eventually;
use testkit::process::{output, signal, wait};

/// Kills the process that serves the files of the ref.
const KILL_VIEW: &str = r#"
    for process in /proc/[0-9]*; do
        [ "$(readlink $process/ns/mnt)" = "$(readlink /proc/self/ns/mnt)" ] || continue
        tr '\0' '\n' <$process/cmdline | grep -qx -e --writable-directories || continue
        kill -9 ${process#/proc/}
    done
"#;

/// What package managers do, by the programs that people use.
const WORK: &str = r#"
    set -e
    printf new >package.json.tmp && mv package.json.tmp package.json
    printf edited >keep/edited
    chmod 755 keep/same
    rm -r gone
    rm -r again && mkdir again && printf new >again/new
    mv moved renamed && printf more >renamed/deep/more
    rm file-to-directory && mkdir file-to-directory && printf y >file-to-directory/y
    rm -r directory-to-file && printf z >directory-to-file
    ln linked linked-too && printf both >linked-too
    ln -s package.json link && ln -sfn keep/same link
    mkdir -p new/a/b && printf c >new/a/b/c
"#;

fn publishes_what_the_command_did(overlays: &Overlays) {
    overlays.push(FILES);
    let text = exits(&mut overlays.run(&["app"], WORK), 0);
    assert_has(&text, "app@2 is ");
    let plain = overlays.home.dir("plain");
    for (name, content) in FILES {
        write(&plain, name, content);
    }
    output(Command::new("sh").args(["-c", WORK]).current_dir(&plain));
    assert_eq!(overlays.pulled(), tree(&plain));
    overlays.assert_nothing_left();
    // The next command starts with the result.
    let text = exits(
        &mut overlays.run(&["app"], "cat renamed/deep/more; [ ! -e gone ]"),
        0,
    );
    assert_has(&text, "more");
    assert_has(&text, "changed nothing");
}

#[test]
fn success_publishes_what_the_command_did() {
    if let Some(overlays) = Overlays::new() {
        publishes_what_the_command_did(&overlays);
    }
}

#[test]
fn success_publishes_what_the_command_of_a_user_did() {
    if let Some(overlays) = Overlays::unprivileged() {
        publishes_what_the_command_did(&overlays);
    }
}

#[test]
fn a_user_can_change_directories_that_are_read_only() {
    let Some(overlays) = Overlays::unprivileged() else {
        return;
    };
    overlays.push(FILES);
    exits(&mut overlays.run(&["app"], "chmod 555 keep"), 0);
    exits(&mut overlays.run(&["app"], "printf new >keep/new"), 0);
    // The permissions of the directory stay.
    let copy = overlays.home.open("app", "copy");
    assert_eq!(read(&copy, "keep/new"), "new");
    let mode = output(
        Command::new("stat")
            .args(["-c", "%a"])
            .arg(copy.join("keep")),
    );
    assert_eq!(mode.trim(), "555");
}

#[test]
fn a_new_ref_begins_with_an_empty_tree() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    let text = exits(
        &mut overlays.run(&["app"], "[ -z \"$(ls -A)\" ] && printf a >a"),
        0,
    );
    assert_has(&text, "does not exist yet");
    assert_eq!(overlays.pulled().len(), 1);
    overlays.assert_nothing_left();
}

#[test]
fn failure_keeps_the_changes() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let text = exits(&mut overlays.run(&["app"], "printf new >new; exit 3"), 3);
    let [kept] = &overlays.kept()[..] else {
        panic!("{text}");
    };
    assert_has(&text, kept.to_str().unwrap());
    assert_eq!(
        overlays.pulled().len(),
        tree(&overlays.home.dir("origin")).len()
    );
    // A later command mentions them, but does not use them.
    let text = exits(&mut overlays.run(&["app"], "[ ! -e new ]"), 0);
    assert_has(&text, kept.to_str().unwrap());
    let continued = ["--continue", kept.to_str().unwrap()];
    let text = exits(&mut overlays.run(&continued, "cat new"), 0);
    assert_has(&text, "app@2 is ");
    assert!(overlays.pulled().contains_key(&b"new"[..]));
    overlays.assert_nothing_left();
    let text = exits(&mut overlays.run(&["--no-push", "app"], "printf x >x"), 0);
    assert_has(&text, "the changes are kept");
    assert_eq!(overlays.kept().len(), 1);
    exits(&mut overlays.run(&["--discard", "app"], "printf x >x"), 0);
    assert_eq!(overlays.kept().len(), 1);
    assert!(!overlays.pulled().contains_key(&b"x"[..]));
}

#[test]
fn what_no_snapshot_has_is_kept() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let script = "mkdir -p new/.samovar .samovar; printf work >new/.samovar/file; printf x >new/y";
    let text = exits(&mut overlays.run(&["app"], script), 0);
    assert_has(&text, "app@2 is ");
    let [kept] = &overlays.kept()[..] else {
        panic!("{text}");
    };
    for name in ["upper/.samovar", "upper/new/.samovar"] {
        assert_has(&text, &format!("{:?}", kept.join(name)));
    }
    assert_eq!(read(kept, "upper/new/.samovar/file"), "work");
    assert!(overlays.pulled().contains_key(&b"new/y"[..]));
    // The rest was published, so what others make of it is no conflict.
    let workspace = overlays.home.dir("origin");
    overlays.home.run(&workspace, &["pull"]);
    write(&workspace, "new/y", "other");
    assert_eq!(overlays.home.push(&workspace), 3);
    let continued = ["--continue", kept.to_str().unwrap()];
    let text = exits(&mut overlays.run(&continued, "rm -r .samovar"), 0);
    assert_has(&text, "the command has changed nothing");
    assert_eq!(read(kept, "upper/new/.samovar/file"), "work");
    exits(&mut overlays.run(&continued, "rm -r new/.samovar"), 0);
    assert_eq!(overlays.pulled()[&b"new/y"[..]], b"other");
    overlays.assert_nothing_left();
    // A command may have made nothing else.
    exits(&mut overlays.run(&["app"], "mkdir .samovar"), 0);
    assert_eq!(overlays.kept().len(), 1);
    exits(&mut overlays.run(&["--discard", "app"], script), 0);
    assert_eq!(overlays.kept().len(), 1);
}

/// Kept changes name the cache of the command that has left them.
#[test]
fn kept_changes_get_the_token_of_their_cache_and_their_user_only() {
    let Some(overlays) = Overlays::unprivileged() else {
        return;
    };
    overlays.push(FILES);
    exits(
        &mut overlays.run(&["--no-push", "app"], "printf new >new"),
        0,
    );
    let kept = overlays.kept().pop().unwrap();
    let continued = ["--continue", kept.to_str().unwrap()];
    // The cache refuses requests without a token.
    let mut other = overlays.run(&continued, "cat keep/same");
    other.env("SAMOVAR_CACHE", "http://localhost:1");
    let text = exits(&mut other, 125);
    assert_has(&text, "the token in SAMOVAR_TOKEN is not sent to 127.0.0.1");
    assert_eq!(text.matches("is not sent to").count(), 1, "{text}");
    if support_users::has_users() {
        let mut root = overlays.run_as_root(&continued, "true");
        assert_has(&exits(&mut root, 125), "only this user can use them");
    }
    let mut unnamed = overlays.run(&continued, "cat keep/same");
    exits(unnamed.env("SAMOVAR_CACHE", ""), 0);
    assert_eq!(overlays.pulled()[&b"new"[..]], b"new");
    overlays.assert_nothing_left();
}

#[test]
fn exit_codes_are_those_of_the_command() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    exits(&mut overlays.run(&["app"], "kill -KILL $$"), 128 + 9);
    exits(&mut overlays.run(&["app"], "exec ./not-there"), 127);
    let program = |program: &str| {
        let mut command = overlays.shell();
        command.args([
            "sh",
            "-c",
            "exec \"$SAMOVAR\" workspace run app -- $0",
            program,
        ]);
        command
    };
    let text = exits(&mut program("./not-there"), 127);
    assert_has(&text, "cannot run \"./not-there\"");
    exits(&mut program("./package.json"), 126);
    exits(&mut program(""), 2);
    overlays.assert_nothing_left();
}

#[test]
fn standard_output_is_that_of_the_command() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    let script = "printf '%s %s' \"$(pwd)\" \"${SAMOVAR_TOKEN-none}\"; printf a >a";
    let text = output(&mut overlays.run(&["app"], script));
    let target = overlays.dir.path().join("state/trees/app");
    assert_eq!(text, format!("{} none", target.to_str().unwrap()));
    let at = overlays.dir.path().join("a,b:c\\d");
    fs::create_dir(&at).unwrap();
    let script = "pwd; cat a";
    let text = output(&mut overlays.run(&["--at", at.to_str().unwrap(), "app"], script));
    assert_eq!(text, format!("{}\na", at.to_str().unwrap()));
}

/// Neither the processes beside the command nor its parents show the token, and the mount and the
/// push have it nevertheless.
#[test]
fn the_command_cannot_read_the_token_anywhere() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let script = "cat package.json >copy; ls -d /proc/[0-9]*; env; \
                  cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null \
                  | tr '\\0' '\\n' || true";
    let mut command = overlays.run(&["app"], script);
    let found = output(command.stdin(std::process::Stdio::null()));
    assert!(
        found.contains("PATH=") && found.contains("/proc/"),
        "{found}"
    );
    assert!(!found.contains(&overlays.home.token), "{found}");
    let pulled = overlays.pulled();
    assert_eq!(pulled.get(&b"copy"[..]), pulled.get(&b"package.json"[..]));
    overlays.assert_nothing_left();
}

#[test]
fn an_older_generation_is_not_pushed_on_top() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let workspace = overlays.home.dir("origin");
    write(&workspace, "other", "other");
    assert_eq!(overlays.home.push(&workspace), 2);
    let text = exits(&mut overlays.run(&["app@1"], "true"), 125);
    assert_has(&text, "not the newest generation");
    exits(
        &mut overlays.run(&["--discard", "app@1"], "[ ! -e other ]"),
        0,
    );
    overlays.assert_nothing_left();
}

#[test]
fn nothing_is_published_if_the_files_of_the_ref_become_unreadable() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let script = format!("printf new >new; {KILL_VIEW} cat keep/same; exit 0");
    let text = exits(&mut overlays.run(&["app"], &script), 125);
    assert_has(&text, "nothing was published");
    let kept = overlays.kept();
    let continued = ["--continue", kept[0].to_str().unwrap()];
    exits(&mut overlays.run(&continued, "cat new keep/same"), 0);
    let pulled = overlays.pulled();
    assert_eq!(pulled[&b"new"[..]], b"new");
    assert_eq!(pulled.len(), 1 + tree(&overlays.home.dir("origin")).len());
    overlays.assert_nothing_left();
}

#[test]
fn background_processes_are_terminated() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    // One ignores TERM, and one is in another session.
    let script = "printf a >a; sleep 1000 & (trap '' TERM; sleep 1000) & setsid sleep 1000 &";
    let text = exits(&mut overlays.run(&["app"], script), 0);
    assert_has(&text, "in the background");
    assert_has(&text, "app@1 is ");
    overlays.assert_nothing_left();
}

/// Returns the only child of a process.
fn child_of(pid: u32) -> u32 {
    let parent = format!("PPid:\t{pid}\n");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut children = processes.filter_map(|process| {
        let status = fs::read_to_string(process.path().join("status")).ok()?;
        let is_child = status.contains(&parent);
        is_child.then(|| process.file_name().to_str().unwrap().parse().unwrap())
    });
    let child = children.next().unwrap();
    assert_eq!(children.next(), None, "{pid} has one child");
    child
}

/// Kills processes of `samovar workspace run`: the one that waits, the one that does the work, or
/// both at once.
fn a_killed_launcher_leaves_only_the_changes(overlays: &Overlays) {
    let script = "printf new >new; setsid sleep 1000 & (trap '' TERM HUP; sleep 1000) & \
                  echo ready; exec sleep 1000";
    for (waiting, working) in [(true, false), (false, true), (true, true)] {
        overlays.push(FILES);
        let before = overlays.pulled();
        let mut running = overlays.run(&["app"], script);
        let mut child = running.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 6]).unwrap();
        let worker = child_of(child.id());
        for (pid, is_killed) in [(child.id(), waiting), (worker, working)] {
            if is_killed {
                signal(pid, "KILL");
            }
        }
        // Ends when all processes of the command have ended.
        stdout.read_to_string(&mut String::new()).unwrap();
        child.wait().unwrap();
        overlays.assert_nothing_mounted();
        assert_eq!(overlays.pulled(), before);
        // The view ends last.
        let kept = overlays.kept();
        let continued = ["--continue", kept[0].to_str().unwrap()];
        exits(
            &mut overlays.run(&continued, "cat new keep/same; rm new"),
            0,
        );
        overlays.assert_nothing_left();
    }
}

#[test]
fn killed_processes_leave_only_the_changes() {
    if let Some(overlays) = Overlays::new() {
        a_killed_launcher_leaves_only_the_changes(&overlays);
    }
}

#[test]
fn killed_processes_of_a_user_leave_only_the_changes() {
    if let Some(overlays) = Overlays::unprivileged() {
        a_killed_launcher_leaves_only_the_changes(&overlays);
    }
}

/// Returns a command that runs where parts of `/proc` are hidden, as in containers.
fn with_hidden_proc(command: &Command) -> Command {
    let mut hidden = support::bare("unshare");
    let script = "mount --make-rprivate / && mount -t tmpfs none /proc/fs && exec \"$@\"";
    hidden.args(["--mount", "sh", "-c", script, "sh"]);
    hidden.arg(command.get_program()).args(command.get_args());
    hidden.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    hidden.current_dir(command.get_current_dir().unwrap());
    hidden
}

#[test]
fn a_killed_process_leaves_only_the_changes_where_proc_is_hidden() {
    let Some(overlays) = Overlays::unprivileged() else {
        return;
    };
    overlays.push(FILES);
    let script = "printf new >new; setsid sleep 1000 & echo ready; exec sleep 1000";
    let mut running = with_hidden_proc(&overlays.run(&["app"], script));
    let mut child = running.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    signal(child.id(), "KILL");
    stdout.read_to_string(&mut String::new()).unwrap();
    child.wait().unwrap();
    let kept = overlays.kept();
    let continued = ["--continue", kept[0].to_str().unwrap()];
    let continued = overlays.run(&continued, "cat new keep/same");
    exits(&mut with_hidden_proc(&continued), 0);
    assert!(overlays.pulled().contains_key(&b"new"[..]));
    overlays.assert_nothing_left();
}

#[test]
fn the_command_sees_its_own_processes_and_has_no_privileges() {
    let Some(overlays) = Overlays::unprivileged() else {
        return;
    };
    let script = "grep -q '^CapEff:.*[^0\t]' /proc/$$/status && echo privileged; \
                  [ $(readlink /proc/$$/cwd) = \"$PWD\" ] && set -- /proc/[0-9]*; echo $#; \
                  sh -c 'sleep 0.01 & echo $!' >orphan; \
                  while [ -e /proc/$(cat orphan) ]; do :; done; rm orphan";
    // The process that pushes, and the shell.
    let text = output(&mut overlays.run(&["app"], script));
    assert_eq!(text.trim(), "2", "{text}");
}

#[test]
fn signals_reach_the_command() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    let script = "trap 'printf caught >caught; exit 9' TERM; touch ready; echo $PPID; \
                  while :; do sleep 0.05; done";
    let mut running = overlays.run(&["--no-push", "app"], script);
    running.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = running.spawn().unwrap();
    let state = overlays.dir.path().join("state/runs");
    let upper = || {
        let run = fs::read_dir(&state).ok()?.next()?.ok()?;
        Some(run.path().join("upper"))
    };
    eventually("the command runs", || {
        upper().is_some_and(|upper| upper.join("ready").exists())
    });
    signal(child.id(), "TERM");
    let ended = wait(child, &running);
    assert_eq!(ended.status.code(), Some(9), "{ended:?}");
    assert_eq!(read(&upper().unwrap(), "caught"), "caught");
}

#[test]
fn an_interrupt_of_the_keyboard_reaches_the_command_once() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    let handler = "trap 'printf x >>caught' INT; echo ready; \
                   while [ ! -e caught ]; do sleep 0.05; done; exit 9";
    let running = overlays.run(&["--no-push", "app"], handler);
    let words = running
        .get_args()
        .map(|word| shell_word(word.to_str().unwrap()));
    let line = words.collect::<Vec<_>>().join(" ");
    // Gives the command a terminal, whose keyboard is standard input.
    let mut terminal = support::bare("script");
    terminal.args([
        "--quiet",
        "--return",
        "--command",
        &format!("exec sh {line}"),
        "/dev/null",
    ]);
    terminal.envs(
        running
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    terminal.current_dir(running.get_current_dir().unwrap());
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = terminal.spawn().unwrap();
    let (mut output, mut shown) = (child.stdout.take().unwrap(), String::new());
    while !shown.contains("ready") {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        shown.push(char::from(byte[0]));
    }
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    output.read_to_string(&mut shown).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9), "{shown}");
    assert_eq!(read(&overlays.kept()[0].join("upper"), "caught"), "x");
}

fn shell_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[test]
fn the_guard_refuses_to_run_outside_a_private_namespace() {
    let mut guard = support::samovar();
    let guard = guard.args(["workspace", "run-guard", "mnt:[1]"]);
    exits(guard.stdin(Stdio::null()), 3);
}

#[test]
fn a_ref_without_the_trusted_signature_is_refused() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let other = format!("other-1:{}=", "A".repeat(43));
    for (key, code) in [(&other, 125), (&overlays.home.site.public_key, 0)] {
        let options = ["--trusted-public-keys", key, "--discard", "app"];
        let text = exits(&mut overlays.run(&options, "touch ran"), code);
        let is_refused = text.contains("is not signed by a key of --trusted-public-keys");
        assert_eq!(is_refused, code != 0, "{text}");
        overlays.assert_nothing_left();
    }
}
