//! What others have pushed while a command ran is merged with what the command has changed: nothing
//! is displaced, and what both have changed is kept in both versions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_overlays;
mod support_uploads;
mod support_users;
mod support_workspaces;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use support_overlays::{FILES, Overlays};
use support_workspaces::{assert_has, exits, tree, write};
use testkit::process::{Process, output, wait};

/// Starts a run that changes files, and waits for its input.
fn start(overlays: &Overlays, script: &str) -> Child {
    let script = format!("{script}; echo ready; read line || true");
    let mut running = overlays.run(&["app"], &script);
    running.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = running.stderr(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    child
}

/// Kills a run, and waits for the end of all its processes.
fn kill(mut child: Child) {
    child.kill().unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_to_string(&mut String::new()).unwrap();
    child.wait().unwrap();
}

fn run_on(overlays: &Overlays, kept: &Path, code: i32) -> String {
    let continued = ["--continue", kept.to_str().unwrap()];
    exits(&mut overlays.run(&continued, "true"), code)
}

fn generation_count(overlays: &Overlays) -> usize {
    let mut log = overlays.home.command(&["log"]);
    let text = output(log.current_dir(overlays.home.dir("origin")));
    text.lines().count() - 1
}

#[test]
fn changes_of_killed_runs_are_all_published() {
    const RUN_COUNT: usize = 11;
    for overlays in [Overlays::new(), Overlays::unprivileged()] {
        let Some(overlays) = overlays else {
            continue;
        };
        overlays.push(FILES);
        let children: Vec<Child> = (0..RUN_COUNT)
            .map(|number| {
                let script = format!("mkdir -p new/{number} && printf {number} >new/{number}/file");
                let more = match number {
                    0 => "printf edited >keep/edited".to_owned(),
                    1 => "rm -r gone".to_owned(),
                    2 => "mv moved renamed".to_owned(),
                    _ => format!("printf x >keep/new-{number}"),
                };
                start(&overlays, &format!("{script} && {more}"))
            })
            .collect();
        children.into_iter().for_each(kill);
        overlays.assert_nothing_mounted();
        let kept = overlays.kept();
        assert_eq!(kept.len(), RUN_COUNT);
        for kept in &kept {
            run_on(&overlays, kept, 0);
        }
        let pulled = overlays.pulled();
        for number in 0..RUN_COUNT {
            let path = format!("new/{number}/file");
            assert_eq!(pulled[path.as_bytes()], number.to_string().as_bytes());
        }
        assert_eq!(pulled[&b"keep/edited"[..]], b"edited");
        assert_eq!(pulled[&b"renamed/deep/file"[..]], b"moved");
        for path in ["gone/a", "moved/deep/file"] {
            assert!(!pulled.contains_key(path.as_bytes()), "{path}");
        }
        let paths: Vec<_> = pulled
            .keys()
            .map(|path| path.escape_ascii().to_string())
            .collect();
        assert!(!paths.join(" ").contains("conflict"), "{paths:?}");
        // The newest ten are kept.
        assert_eq!(generation_count(&overlays), 10);
        overlays.assert_nothing_left();
    }
}

#[test]
fn a_push_of_another_machine_is_merged() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let mut child = start(&overlays, "printf new >new; rm gone/a");
    // The tree is invisible outside.
    overlays.assert_nothing_mounted();
    let workspace = overlays.home.dir("origin");
    write(&workspace, "other", "other");
    fs::remove_file(workspace.join("again/old")).unwrap();
    assert_eq!(overlays.home.push(&workspace), 2);
    drop(child.stdin.take());
    let ended = wait(child, &overlays.run(&[], ""));
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{text}");
    assert_has(&text, "merged app@2");
    assert_has(&text, "app@3 is ");
    let pulled = overlays.pulled();
    assert_eq!(pulled[&b"new"[..]], b"new");
    assert_eq!(pulled[&b"other"[..]], b"other");
    assert_eq!(pulled[&b"keep/same"[..]], b"same");
    assert!(!pulled.contains_key(&b"gone/a"[..]) && !pulled.contains_key(&b"again/old"[..]));
    overlays.assert_nothing_left();
}

/// Returns the contents of the file, and of its conflict copies.
fn versions(pulled: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>, path: &str) -> Vec<String> {
    let prefix = format!("{path}.conflict-");
    let is_version =
        |found: &[u8]| found == path.as_bytes() || found.starts_with(prefix.as_bytes());
    let found = pulled.iter().filter(|(found, _)| is_version(found));
    let texts = found.map(|(_, content)| String::from_utf8(content.clone()).unwrap());
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

/// Another machine removes what a killed merge has brought: it is no change of the command.
#[test]
fn a_merge_that_is_killed_is_completed() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let workspace = overlays.home.dir("origin");
    let read_only = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(workspace.join("moved/deep"), permissions).unwrap();
    };
    read_only(0o555);
    overlays.home.push(&workspace);
    let moments = [
        "renameat2:1",
        "renameat,renameat2:2",
        "unlinkat:1",
        "syncfs:1",
    ];
    for _ in moments {
        kill(start(&overlays, "printf mine >mine"));
    }
    read_only(0o755);
    for (name, text) in [("keep/edited", "2"), ("moved/deep/file", "2"), ("new", "2")] {
        write(&workspace, name, text);
    }
    fs::remove_file(workspace.join("gone/a")).unwrap();
    read_only(0o555);
    overlays.home.push(&workspace);
    for (moment, kept) in moments.iter().zip(overlays.kept()) {
        let (call, count) = moment.split_once(':').unwrap();
        let script = format!(
            "exec strace -f -o /dev/null -e trace={call} \
             --inject={call}:signal=SIGKILL:when={count} \
             \"$SAMOVAR\" workspace run --continue \"$1\" -- true"
        );
        let mut killed = overlays.shell();
        killed.args(["sh", "-c", &script, "sh"]).arg(&kept);
        let Ok(mut killed) = Process::try_spawn(&mut killed) else {
            println!("not tested: there is no strace");
            return;
        };
        killed.wait();
        assert!(kept.exists(), "{moment}");
    }
    read_only(0o755);
    fs::remove_file(workspace.join("new")).unwrap();
    write(&workspace, "keep/edited", "3");
    write(&workspace, "moved/deep/file", "3");
    read_only(0o555);
    overlays.home.push(&workspace);
    let mut expected = tree(&workspace);
    expected.insert(b"mine".to_vec(), b"mine".to_vec());
    for kept in overlays.kept() {
        let text = run_on(&overlays, &kept, 0);
        assert_eq!(overlays.pulled(), expected, "{text}");
    }
    overlays.home.run(&workspace, &["pull"]);
    let mode = fs::metadata(workspace.join("moved/deep")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o555);
    overlays.assert_nothing_left();
}

#[test]
fn both_versions_of_what_two_have_changed_are_kept() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    let scripts =
        ["one", "two"].map(|name| format!("printf {name} >keep/edited; printf x >{name}"));
    let children = scripts.map(|script| start(&overlays, &script));
    children.into_iter().for_each(kill);
    let kept: [PathBuf; 2] = overlays.kept().try_into().unwrap();
    run_on(&overlays, &kept[0], 0);
    let first = overlays.pulled();
    let text = run_on(&overlays, &kept[1], 125);
    for part in [
        "conflict: keep/edited stays as it is",
        "1 conflict with app@2",
        "nothing was published; the changes are kept",
    ] {
        assert_has(&text, part);
    }
    assert_eq!(overlays.pulled(), first);
    assert_eq!(overlays.kept(), [kept[1].clone()]);
    // The user has looked at both versions. A later push of others does not undo that.
    let workspace = overlays.home.dir("origin");
    overlays.home.run(&workspace, &["pull"]);
    write(&workspace, "other", "other");
    assert_eq!(overlays.home.push(&workspace), 3);
    run_on(&overlays, &kept[1], 0);
    let pulled = overlays.pulled();
    assert_eq!(versions(&pulled, "keep/edited"), ["one", "two"]);
    for name in ["one", "two", "other"] {
        assert!(pulled.contains_key(name.as_bytes()), "{name}");
    }
    overlays.assert_nothing_left();
}

#[test]
fn changes_of_a_ref_that_was_removed_or_created_again_are_kept() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    kill(start(&overlays, "printf run >keep/edited; printf x >new"));
    let kept: [PathBuf; 1] = overlays.kept().try_into().unwrap();
    overlays.home.remove_ref("app");
    assert_has(&run_on(&overlays, &kept[0], 125), "the ref app was removed");
    let other = overlays.home.open("app", "other");
    write(&other, "keep/edited", "other");
    overlays.home.push(&other);
    run_on(&overlays, &kept[0], 125);
    run_on(&overlays, &kept[0], 0);
    let pulled = overlays.pulled();
    assert_eq!(versions(&pulled, "keep/edited"), ["other", "run"]);
    // Nothing shows that the others were removed on purpose.
    assert!(pulled.contains_key(&b"keep/same"[..]) && pulled.contains_key(&b"new"[..]));
    overlays.assert_nothing_left();
}

#[test]
fn left_overs_of_a_killed_clean_up_go() {
    let Some(overlays) = Overlays::new() else {
        return;
    };
    overlays.push(FILES);
    kill(start(&overlays, "printf new >new"));
    let kept: [PathBuf; 1] = overlays.kept().try_into().unwrap();
    let runs = kept[0].parent().unwrap();
    for name in ["app-1", ".removed-app-2"] {
        fs::create_dir_all(runs.join(name).join("upper/part")).unwrap();
        fs::create_dir_all(runs.join(name).join("work/work")).unwrap();
    }
    fs::write(runs.join(".removed-app-2/origin"), "").unwrap();
    exits(&mut overlays.run(&["--discard", "app"], "true"), 0);
    assert_eq!(overlays.kept(), kept);
    run_on(&overlays, &kept[0], 0);
    overlays.assert_nothing_left();
}
