//! The state of a workspace is not in its files: whatever programs do with them, the workspace is
//! found again; nothing that a tree brings along is taken for one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use support_workspaces::{Home, assert_has, exits, read, tree, write};
use testkit::process::output;

/// Extended attribute of the directory of a workspace.
const MARK: &str = "user.samovar.workspace";

/// Runs a program with words separated by blanks in a directory.
#[track_caller]
fn run(directory: &Path, words: &str) -> String {
    let mut words = words.split(' ');
    let mut command = support::bare(words.next().unwrap());
    command
        .env("HOME", directory)
        .env("GIT_CONFIG_NOSYSTEM", "1");
    output(command.args(words).current_dir(directory))
}

/// A workspace with one pushed generation.
fn pushed(home: &Home) -> std::path::PathBuf {
    let one = home.dir("one");
    write(&one, "a", "a");
    home.open("app", "one");
    home.push(&one);
    one
}

#[test]
fn programs_that_clean_the_tree_do_not_touch_the_state() {
    let home = Home::new();
    let one = pushed(&home);
    // Nothing of the state is in the tree.
    assert_eq!(fs::read_dir(&one).unwrap().count(), 1);
    run(&one, "git init -q");
    fs::write(one.join(".git/info/exclude"), "").unwrap();
    run(&one, "git add -A");
    assert_eq!(run(&one, "git ls-files"), "a\n");
    let commit = "git -c user.name=n -c user.email=e commit -q -m one";
    run(&one, commit);
    write(&one, "b", "b");
    run(&one, "git -c user.name=n -c user.email=e stash -u -q");
    run(&one, "git clean -fdxq");
    run(&one, "git reset -q --hard");
    home.exits(&one, &["status"], 1);
    fs::remove_dir_all(one.join(".git")).unwrap();
    home.assert_clean(&one);
    assert_has(&home.exits(&one, &["status"], 0), "app@1");
    run(&one, "find . -mindepth 1 -delete");
    assert_has(&home.exits(&one, &["status"], 1), "1 removed");
    home.run(&one, &["discard", "--yes"]);
    home.assert_clean(&one);
}

#[test]
fn a_moved_workspace_is_found_and_a_copy_is_none() {
    let home = Home::new();
    let one = pushed(&home);
    let moved = home.dir("below/moved");
    fs::create_dir(home.dir("below")).unwrap();
    fs::rename(&one, &moved).unwrap();
    // Any command in it tells where it is, also if another one takes its place.
    home.exits(&moved, &["status"], 0);
    let listed = output(&mut home.command(&["list"]));
    assert_has(&listed, "below/moved  app@1");
    home.open("other", "one");
    let listed = output(&mut home.command(&["list"]));
    assert_eq!(listed.lines().count(), 2, "{listed}");
    home.run(&one, &["close", "--delete"]);
    write(&moved, "b", "b");
    assert_eq!(home.push(&moved), 2);
    let listed = output(&mut home.command(&["list"]));
    assert_has(&listed, "below/moved  app@2");
    assert_eq!(listed.lines().count(), 1, "{listed}");
    for (option, name) in [("-r", "copy"), ("-a", "exact")] {
        run(&home.dir("below"), &format!("cp {option} moved {name}"));
        let copy = home.dir("below").join(name);
        let text = home.exits(&copy, &["status"], 2);
        assert_has(&text, "is not in a workspace");
        // Also after the original has gone.
        run(&home.dir("below"), "mv moved elsewhere");
        home.exits(&copy, &["status"], 2);
        run(&home.dir("below"), "mv elsewhere moved");
        home.assert_clean(&moved);
        // It can become one of its own.
        output(home.command(&["open", "--adopt", "app"]).arg(&copy));
        write(&copy, "c", name);
        home.exits(&copy, &["status"], 1);
        home.assert_clean(&moved);
    }
}

#[test]
fn a_new_directory_in_the_place_of_a_removed_workspace_is_none() {
    let home = Home::new();
    let one = pushed(&home);
    // File systems use the inode of a removed directory again.
    for _ in 0..20 {
        fs::remove_dir_all(&one).unwrap();
        fs::create_dir(&one).unwrap();
        home.exits(&one, &["status", "--offline"], 2);
    }
    // A file system, or a program, without attributes.
    let two = home.open("app", "two");
    if rustix::fs::removexattr(&two, MARK).is_ok() {
        home.assert_clean(&two);
        home.run(&two, &["pull"]);
        assert!(getxattr(&two, MARK, &mut [0; 64]).is_ok());
        // An attribute alone is no proof.
        let mut mark = [0; 64];
        let len = getxattr(&two, MARK, &mut mark).unwrap();
        setxattr(&one, MARK, &mark[..len], XattrFlags::empty()).unwrap();
        home.exits(&one, &["status", "--offline"], 2);
    }
    output(home.command(&["open", "app"]).arg(&one));
    home.assert_clean(&one);
}

/// Writes the state of a workspace as earlier versions did, and removes the present one.
fn make_old(home: &Home, directory: &Path, is_listed: bool) {
    let state = home.state(directory);
    let old = directory.join(".samovar");
    fs::create_dir(&old).unwrap();
    for entry in fs::read_dir(&state).unwrap().flatten() {
        if entry.file_name() != "directory" {
            fs::copy(entry.path(), old.join(entry.file_name())).unwrap();
        }
    }
    fs::write(old.join("clock"), "").unwrap();
    fs::remove_dir_all(state).unwrap();
    rustix::fs::removexattr(directory, MARK).unwrap_or_default();
    if is_listed {
        let name = rustix::system::uname();
        let name = name.nodename().to_string_lossy().into_owned();
        let list = home.dir("state/samovar").join(format!("workspaces-{name}"));
        fs::write(list, format!("{}\n", directory.display())).unwrap();
    }
}

#[test]
fn a_workspace_of_an_earlier_version_is_converted() {
    let home = Home::new();
    let one = pushed(&home);
    write(&one, "sub/b", "unpushed");
    for arguments in [&["status"][..], &["list"], &["push"]] {
        make_old(&home, &one, true);
        let code = i32::from(arguments == ["status"]);
        home.exits(&one.join("sub"), arguments, code);
        assert!(!one.join(".samovar").exists());
        let state = home.state(&one);
        assert!(state.join("workspace").exists() && state.join("index").exists());
    }
    home.assert_clean(&one);
    let list = output(&mut home.command(&["list"]));
    assert_eq!(list.lines().count(), 1, "{list}");
    // A conversion that was killed before it had removed the old state.
    let state = home.state(&one);
    make_old(&home, &one, true);
    let saved = tree(&one.join(".samovar"));
    home.run(&one, &["push"]);
    assert_ne!(home.state(&one), state);
    for (name, content) in saved {
        write(
            &one.join(".samovar"),
            std::str::from_utf8(&name).unwrap(),
            content,
        );
    }
    let list = home.dir("state/samovar");
    let list = fs::read_dir(list)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let mut list = list.filter(|path| path.to_string_lossy().contains("workspaces-"));
    fs::write(list.next().unwrap(), format!("{}\n", one.display())).unwrap();
    write(&one, "c", "c");
    assert_eq!(home.push(&one), 3);
    assert!(!one.join(".samovar").exists());
}

/// Runs commands in a directory whose `.samovar` names a server that waits for tokens.
#[track_caller]
fn assert_not_asked(home: &Home, directory: &Path, listener: &TcpListener) {
    for words in [
        &["status"][..],
        &["push"],
        &["pull"],
        &["log"],
        &["close"],
        &["repair"],
    ] {
        let code = home
            .command_in(directory, words)
            .output()
            .unwrap()
            .status
            .code();
        assert_ne!(code, Some(0), "{words:?}");
    }
    output(&mut home.command(&["list"]));
    listener.set_nonblocking(true).unwrap();
    let mut asked = listener.incoming().map_while(Result::ok);
    assert!(asked.next().is_none(), "a request was sent");
}

#[test]
fn a_state_that_came_with_the_files_gets_no_token() {
    let home = Home::new();
    let one = pushed(&home);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let hostile = |directory: &Path, with_index: bool| {
        let file = directory.join(".samovar/workspace");
        let text = read(directory, ".samovar/workspace");
        let text = text.replace(&home.server.url(), &url);
        assert_has(&text, &url);
        fs::write(file, text).unwrap();
        if !with_index {
            fs::remove_file(directory.join(".samovar/index")).unwrap();
        }
    };
    // From a clone: no command of this user has made it.
    make_old(&home, &one, false);
    for with_index in [true, false] {
        hostile(&one, with_index);
        assert_not_asked(&home, &one, &listener);
        if with_index {
            let text = home.exits(&one, &["status"], 2);
            assert_has(&text, "is not used");
        } else {
            break;
        }
        fs::write(
            one.join(".samovar/workspace"),
            read(&one, ".samovar/workspace").replace(&url, &home.server.url()),
        )
        .unwrap();
    }
    // The same in the place of a workspace that was removed, and that the list still has.
    let two = home.open("app", "two");
    let copy = home.dir("copy");
    make_old(&home, &two, true);
    output(Command::new("cp").arg("-a").args([&two, &copy]));
    for with_index in [true, false] {
        fs::remove_dir_all(&two).unwrap();
        output(Command::new("cp").arg("-a").args([&copy, &two]));
        hostile(&two, with_index);
        assert_not_asked(&home, &two, &listener);
        let text = home.exits(&two, &["status"], 3);
        assert_has(&text, "does not describe the files");
    }
    // Inside of a workspace, it changes nothing.
    fs::rename(&two, one.join("clone")).unwrap();
    let three = home.open("app", "three");
    fs::rename(one.join("clone"), three.join("clone")).unwrap();
    home.exits(&three.join("clone"), &["push"], 0);
    assert!(three.join("clone/.samovar").exists());
}

#[test]
fn an_old_workspace_that_cannot_be_converted_is_adopted_as_the_message_says() {
    let home = Home::new();
    let one = pushed(&home);
    write(&one, "b", "b");
    home.push(&one);
    let two = home.open("app", "two");
    fs::remove_file(two.join("b")).unwrap();
    home.push(&two);
    make_old(&home, &one, true);
    // All files were edited, or restored from a backup.
    for name in ["a", "b"] {
        let text = read(&one, name);
        fs::remove_file(one.join(name)).unwrap();
        write(&one, name, text);
    }
    write(&one, "a", "edited");
    let text = home.exits(&one, &["status"], 3);
    let advice = format!("open --adopt URL#app@2 {}", one.display());
    assert_has(&text, &advice);
    assert_has(&text, &home.server.url());
    // A command that fails changes nothing.
    let adopt = |name: &str| {
        let mut command = home.command(&["open", "--adopt", name]);
        command.arg(&one);
        command
    };
    support_workspaces::exits(&mut adopt("app@9"), 1);
    assert_has(&home.exits(&one, &["status"], 3), &advice);
    output(&mut adopt(&format!("{}#app@2", home.server.url())));
    assert!(!one.join(".samovar").exists());
    assert_has(&home.exits(&one, &["diff"], 1), "1 modified, 1 touched");
    home.run(&one, &["pull"]);
    assert_eq!(read(&one, "a"), "edited");
    assert!(!one.join("b").exists());
}

/// Forgets a workspace, as if its state was lost.
fn forget(home: &Home, directory: &Path) {
    fs::remove_dir_all(home.state(directory)).unwrap();
}

#[test]
fn adopting_a_directory_reverts_nothing_that_others_have_pushed() {
    let home = Home::new();
    let one = home.dir("one");
    for name in ["a", "b", "c"] {
        write(&one, name, "1");
    }
    home.open("app", "one");
    home.push(&one);
    let two = home.open("app", "two");
    // Another machine pushes while the state is lost.
    write(&two, "a", "2");
    write(&two, "new", "2");
    fs::remove_file(two.join("c")).unwrap();
    home.push(&two);
    forget(&home, &one);
    let adopt = |name: &str| {
        let mut command = home.command(&["open", "--adopt", name]);
        output(command.arg(&one))
    };
    // The files are those of the first generation.
    assert_has(
        &adopt("app"),
        "app@1; compared with it: no changes; generation 2 is newer",
    );
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    // New files do not matter.
    forget(&home, &one);
    write(&one, "added", "here");
    assert_has(&adopt("app"), "app@2; compared with it: 1 added");
    assert_eq!(home.push(&one), 3);
    // A file that a generation has removed is not new.
    home.run(&two, &["pull"]);
    fs::remove_file(two.join("added")).unwrap();
    write(&two, "a", "4");
    home.push(&two);
    forget(&home, &one);
    write(&one, "b", "changed here");
    assert_has(&adopt("app"), "--adopt app@3");
    let text = home.exits(&one, &["push"], 1);
    assert_has(&text, "run samovar workspace pull");
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "conflict: a stays");
    assert_has(&text, "conflict: b stays");
    assert_has(&text, "conflict: added stays");
    assert_eq!(read(&one, "b"), "changed here");
    let copies = tree(&one).into_iter();
    let copies: Vec<_> = copies
        .filter(|(name, _)| name.starts_with(b"a.conflict-") || name.starts_with(b"b.conflict-"))
        .map(|(_, content)| content)
        .collect();
    assert_eq!(copies, [b"4".to_vec(), b"1".to_vec()]);
    // Who knows the generation names it.
    let three = home.open("app", "three");
    write(&three, "b", "changed there");
    write(&two, "a", "5");
    home.push(&two);
    forget(&home, &three);
    for name in ["app", "app@4"] {
        output(home.command(&["open", "--adopt", name]).arg(&three));
    }
    assert_has(&home.exits(&three, &["diff"], 1), "modified b\n1 modified");
    home.run(&three, &["pull"]);
    assert_eq!(
        (read(&three, "a"), read(&three, "b")),
        ("5".into(), "changed there".into())
    );
}

/// Two caches, each with a token of its own.
#[test]
fn the_token_of_another_cache_is_not_sent_to_that_of_the_workspace() {
    let home = Home::new();
    let one = pushed(&home);
    let url = format!("http://localhost:{}", home.server.address.port());
    let run = |cache: &str, words: &[&str], code: i32| {
        let mut command = home.command_in(&one, words);
        command.env("SAMOVAR_CACHE", cache);
        support_workspaces::exits(&mut command, code)
    };
    write(&one, "b", "b");
    // The cache of this workspace refuses requests without a token.
    for words in [["status"], ["push"], ["pull"], ["log"]] {
        let text = run(&url, &words, 1);
        assert_has(&text, "the token in SAMOVAR_TOKEN is not sent to");
        assert_eq!(text.matches("is not sent to").count(), 1, "{text}");
    }
    // A cache of the same host, or none, is named.
    let other = format!("{}/other", home.server.url());
    for cache in ["", &other, &home.server.url()] {
        let text = run(cache, &["status"], 1);
        assert!(
            !text.contains("not sent") && !text.contains("401"),
            "{text}"
        );
    }
    run("", &["push"], 0);
    // The command line names the cache.
    let mut open = home.command(&["open", &format!("{}#app", home.server.url())]);
    output(open.arg(home.dir("two")).env("SAMOVAR_CACHE", &url));
}

#[test]
fn tokens_are_not_sent_unencrypted_to_other_machines() {
    let home = Home::new();
    let one = pushed(&home);
    // An address of this machine that is not a loopback address.
    let url = format!("http://0.0.0.0:{}", home.server.address.port());
    let list = |permitted: &str| {
        let mut command = support::samovar();
        command.args(["ref", "list"]).env("SAMOVAR_CACHE", &url);
        command.env("SAMOVAR_TOKEN", &home.token);
        command.env("SAMOVAR_PLAIN_HTTP", permitted);
        command
    };
    for permitted in ["", "0.0.0.1"] {
        let text = support_workspaces::exits(&mut list(permitted), 2);
        assert_has(&text, "unencrypted");
        assert_has(&text, "SAMOVAR_PLAIN_HTTP=0.0.0.0");
    }
    assert_has(&output(&mut list("a,0.0.0.0")), "app");
    assert!(one.exists());
}

#[test]
fn states_that_cannot_be_read_are_not_taken_for_no_workspaces() {
    let home = Home::new();
    exits(&mut home.command(&["list"]), 0);
    let states = home.dir("state/samovar/.samovar");
    fs::create_dir_all(states.parent().unwrap()).unwrap();
    fs::write(&states, "").unwrap();
    for words in [&["list"][..], &["list", "--json"]] {
        let text = exits(&mut home.command(words), 3);
        assert_has(&text, "cannot read");
    }
}
