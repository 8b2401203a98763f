//! A directory that `samovar push` has uploaded is the same after `samovar pull`, on any machine;
//! only changes are sent; nobody overwrites a generation that they have not seen.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{samovar, secret_file};
use support_uploads::{Running, Site};
use testkit::nix::nix;
use testkit::process::output;

/// A private cache, and a token with all rights.
struct Home {
    site: Site,
    server: Running,
    token: PathBuf,
}

impl Home {
    fn new() -> Self {
        Self::of("access.networks = [\"192.0.2.0/24\"]\n")
    }

    /// Starts a server with these options.
    fn of(options: &str) -> Self {
        let site = Site::new();
        site.configure_empty(options);
        let server = site.start();
        let token = site.token(&["--rights", "read,push,pin"]);
        let token = secret_file(site.dir(), "token", &token);
        Self {
            site,
            server,
            token,
        }
    }

    fn url(&self, name: &str) -> String {
        format!("{}#{name}", self.server.url())
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.site.dir().join(name)
    }

    /// Returns a command of `samovar` with the token.
    fn command(&self, words: &[&OsStr]) -> Command {
        let mut command = samovar();
        command.args(words).arg("--token-file").arg(&self.token);
        command.env("SAMOVAR_CACHE", self.server.url());
        command
    }

    fn push(&self, directory: &Path, name: &str, more: &[&str]) -> Value {
        let url = self.url(name);
        let mut command = self.command(&["push".as_ref(), directory.as_ref(), url.as_ref()]);
        let text = output(command.arg("--json").args(more));
        serde_json::from_str(&text).unwrap()
    }

    fn pull(&self, name: &str, directory: &Path) -> Value {
        let text = output(
            self.command(&["pull".as_ref(), name.as_ref(), directory.as_ref()])
                .arg("--json"),
        );
        serde_json::from_str(&text).unwrap()
    }

    #[track_caller]
    fn fails(&self, words: &[&OsStr], code: i32, part: &str) -> Output {
        let failed = self.command(words).output().unwrap();
        let text = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(code), "{text}");
        assert!(text.contains(part), "{part:?} is not in {text:?}");
        failed
    }
}

/// Creates a tree with every kind of entry and unusual names.
fn create(root: &Path) {
    fs::create_dir_all(root.join("src/deep/er")).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("src/main.js"), "console.log(1)\n".repeat(99)).unwrap();
    fs::write(root.join("src/deep/er/x"), vec![7; 3 << 20]).unwrap();
    fs::write(root.join("random"), incompressible(2 << 20)).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"new\nline \xff")), "a").unwrap();
    fs::write(root.join("n".repeat(255)), "b").unwrap();
    fs::write(root.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("run"), Permissions::from_mode(0o750)).unwrap();
    fs::write(root.join("secret"), "c").unwrap();
    fs::set_permissions(root.join("secret"), Permissions::from_mode(0o600)).unwrap();
    symlink("src/main.js", root.join("link")).unwrap();
    symlink("/nowhere", root.join("broken")).unwrap();
}

/// Returns bytes that no compressor shortens.
fn incompressible(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// Returns a line for each entry of a tree: type, permissions, time, size, name and target.
fn listing(root: &Path) -> String {
    let mut find = Command::new("find");
    find.current_dir(root);
    find.args(["-printf", "%y %m %T@ %s %p %l\\0"]);
    let found = find.output().unwrap();
    assert!(found.status.success());
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let mut lines: Vec<&str> = text
        .split('\0')
        .filter(|line| !line.starts_with("d "))
        .collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    assert_eq!(listing(one), listing(other));
    output(
        Command::new("diff")
            .arg("-r")
            .arg("--no-dereference")
            .args([one, other]),
    );
}

#[test]
fn a_pulled_directory_is_the_pushed_one() {
    let home = Home::new();
    let (source, copy) = (home.dir("source"), home.dir("copy"));
    create(&source);
    let pushed = home.push(&source, "mr/app", &["--message", "the first"]);
    assert_eq!(pushed["generation"], 1);
    let pulled = home.pull("mr/app", &copy);
    assert_eq!(
        (&pulled["generation"], &pulled["files"]),
        (&1.into(), &8.into())
    );
    assert_same(&source, &copy);
    // The same tree is no new generation, and is not sent again.
    let again = home.push(&source, "mr/app", &[]);
    assert_eq!(
        (&again["generation"], &again["isUnchanged"]),
        (&1.into(), &true.into())
    );
    assert_eq!(again["sentSize"], 0);
    // A directory that exists is not overwritten.
    let words = ["pull".as_ref(), "mr/app".as_ref(), copy.as_ref()];
    home.fails(&words, 1, "copy");
    assert_same(&source, &copy);
    let log = output(&mut home.command(&["ref".as_ref(), "log".as_ref(), "mr/app".as_ref()]));
    assert!(log.contains("the first"), "{log}");
    // The time of day is that of UTC.
    let line = log.lines().nth(1).unwrap();
    let time = line.split_whitespace().nth(1).unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{log}");
    for name in ["..", "a//b", "a/"] {
        let words = ["push".as_ref(), source.as_ref(), name.as_ref()];
        home.fails(&words, 2, "no part between slashes may be empty");
    }
    let list = output(&mut home.command(&["ref".as_ref(), "list".as_ref()]));
    assert!(list.ends_with(" mr/app\n"), "{list}");
}

#[test]
fn only_changes_are_sent() {
    let home = Home::new();
    let (source, copy) = (home.dir("source"), home.dir("copy"));
    create(&source);
    home.push(&source, "app", &[]);
    fs::write(source.join("src/main.js"), "console.log(2)\n").unwrap();
    fs::write(source.join("src/new"), "new\n").unwrap();
    fs::remove_file(source.join("empty")).unwrap();
    fs::rename(source.join("src/deep"), source.join("moved")).unwrap();
    let pushed = home.push(&source, "app", &[]);
    assert_eq!(pushed["generation"], 2);
    let sent = pushed["sentSize"].as_u64().unwrap();
    assert!(sent < 20_000, "{sent} bytes were sent");
    home.pull("app", &copy);
    assert_same(&source, &copy);
    // The first generation is still there.
    let first = home.dir("first");
    home.pull("app@1", &first);
    assert!(first.join("empty").exists() && first.join("src/deep/er/x").exists());
}

/// A recipe has at most 32 MiB; the client keeps it in memory.
#[test]
fn a_tree_with_many_new_bytes_is_sent_whole() {
    let home = Home::new();
    let (source, copy) = (home.dir("source"), home.dir("copy"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("old"), incompressible(36 << 20)).unwrap();
    home.push(&source, "app", &[]);
    let new = incompressible(33 << 20);
    for (len, whole_len) in [(31 << 20, 31 << 20), (33 << 20, (36 + 33) << 20)] {
        fs::write(source.join("new"), &new[..len]).unwrap();
        let pushed = home.push(&source, "app", &[]);
        let sent = pushed["sentSize"].as_u64().unwrap();
        let extra = sent.checked_sub(whole_len);
        assert!(extra.is_some_and(|extra| extra < 1 << 20), "{sent}");
    }
    home.pull("app", &copy);
    assert_same(&source, &copy);
}

#[test]
fn a_nix_client_copies_a_snapshot() {
    let home = Home::new();
    let source = home.dir("source");
    create(&source);
    fs::remove_file(source.join(OsStr::from_bytes(b"new\nline \xff"))).unwrap();
    // Servers refuse a file that expands to more than 1000 times its length, and this is the first
    // entry of the tree.
    let sparse = fs::File::create(source.join("a-sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    home.push(&source, "app", &[]);
    fs::write(source.join("src/main.js"), "changed").unwrap();
    let pushed = home.push(&source, "app", &[]);
    home.pull("app", &home.dir("copy"));
    assert_same(&source, &home.dir("copy"));
    let path = pushed["path"].as_str().unwrap();
    let netrc = home.dir("netrc");
    let token = fs::read_to_string(&home.token).unwrap();
    let text = format!("machine 127.0.0.1 login a password {}\n", token.trim());
    fs::write(&netrc, text).unwrap();
    let store = home.dir("store");
    // The path has a content address, so no key needs to be trusted.
    let mut copy = nix("nix", home.site.dir());
    copy.args(["--extra-experimental-features", "nix-command", "copy"]);
    copy.args(["--from", &home.server.url(), "--to"]);
    copy.arg(format!("local?root={}", store.display()))
        .arg(path);
    copy.args([
        "--option",
        "substituters",
        "",
        "--option",
        "trusted-public-keys",
        "",
    ]);
    output(copy.args(["--option", "netrc-file"]).arg(&netrc));
    let copied = store.join(path.trim_start_matches('/'));
    output(
        Command::new("diff")
            .arg("-r")
            .arg("--no-dereference")
            .args([&source, &copied]),
    );
}

#[test]
fn a_generation_that_was_not_seen_is_not_displaced() {
    let home = Home::new();
    let source = home.dir("source");
    create(&source);
    home.push(&source, "app", &[]);
    // The newest generation is pinned without its number.
    let pinned = output(&mut home.command(&["ref".as_ref(), "pin".as_ref(), "app".as_ref()]));
    assert!(pinned.contains("app@1 is kept"), "{pinned}");
    let url = home.url("app@1");
    let words = ["push".as_ref(), source.as_ref(), url.as_ref()];
    home.fails(&words, 2, "names a generation");
    // Pinned, a generation outlives newer ones.
    let pin =
        |word: &str| output(&mut home.command(&["ref".as_ref(), word.as_ref(), "app@1".as_ref()]));
    pin("pin");
    for number in 2..=3 {
        fs::write(source.join("secret"), number.to_string()).unwrap();
        home.push(&source, "app", &["--keep", "1"]);
    }
    let words = ["pull".as_ref(), "app@1".as_ref(), "/nonexistent/x".as_ref()];
    home.fails(&words, 1, "has no generation 1");
    output(&mut home.command(&["ref".as_ref(), "log".as_ref(), "app@1@1".as_ref()]));
    pin("unpin");
    let words = ["ref".as_ref(), "unpin".as_ref(), "app@1".as_ref()];
    home.fails(&words, 1, "is not pinned");
    output(&mut home.command(&["ref".as_ref(), "remove".as_ref(), "app".as_ref()]));
    let words = ["ref".as_ref(), "log".as_ref(), "app".as_ref()];
    home.fails(&words, 1, "there is no ref app");
}

#[test]
fn a_public_cache_is_refused_unless_it_is_confirmed() {
    let home = Home::of("");
    let server = &home.server;
    let source = home.dir("source");
    create(&source);
    let url = format!("{}#app", server.url());
    let words = ["push".as_ref(), source.as_ref(), url.as_ref()];
    home.fails(&words, 1, "everybody can read");
    output(home.command(&words).arg("--public"));
    // Names of refs need a token even there.
    assert_eq!(server.get("/upload/pin/app").status, 401);
}

#[test]
fn a_token_without_the_right_to_read_pushes_whole_trees() {
    let home = Home::new();
    let source = home.dir("source");
    create(&source);
    let writer = home.site.token(&["--rights", "push,pin"]);
    let writer = secret_file(home.site.dir(), "writer", &writer);
    let push = |token: &Path| {
        let mut command = samovar();
        command.arg("push").arg(&source).arg(home.url("app"));
        let run = command.arg("--token-file").arg(token).output().unwrap();
        let text = String::from_utf8([run.stdout, run.stderr].concat()).unwrap();
        (run.status.code(), text)
    };
    let (code, text) = push(&writer);
    assert_eq!((code, text.lines().count()), (Some(0), 1), "{text}");
    for generation in 2..4 {
        fs::write(source.join("more"), generation.to_string()).unwrap();
        let (code, text) = push(&writer);
        assert_eq!(code, Some(0), "{text}");
        for part in [
            &format!("app@{generation} is"),
            "the whole tree is sent",
            "may not read: it has the right push,pin",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
    home.pull("app", &home.dir("copy"));
    assert_eq!(fs::read(home.dir("copy").join("more")).unwrap(), b"3");
    // Without one of the other rights, nothing changes.
    for rights in ["read,push", "read,pin"] {
        fs::write(source.join("more"), rights).unwrap();
        fs::write(&writer, home.site.token(&["--rights", rights])).unwrap();
        let (code, text) = push(&writer);
        let missing = if rights == "read,push" { "pin" } else { "push" };
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains(&format!("a token with the right {missing}\n")),
            "{text}"
        );
    }
}

#[test]
fn a_ref_without_the_trusted_signature_is_refused() {
    let home = Home::new();
    let source = home.dir("source");
    create(&source);
    home.push(&source, "app", &[]);
    fs::write(source.join("more"), "more").unwrap();
    home.push(&source, "app", &[]);
    let run = |name: &str, key: &str, words: &[&str]| {
        let mut command = home.command(&[name.as_ref()]);
        let run = command.args(words).args(["--trusted-public-keys", key]);
        run.output().unwrap().status.code()
    };
    let other = format!("{}{}", "cache-1:", "A".repeat(43) + "=");
    let copy = home.dir("copy");
    for wanted in ["app", "app@1"] {
        let words = [wanted, copy.to_str().unwrap()];
        assert_eq!(run("pull", &other, &words), Some(1), "{wanted}");
        assert!(!copy.exists());
        let mount_point = home.dir("mount");
        let words_of_mount = [wanted, mount_point.to_str().unwrap()];
        assert_eq!(run("mount", &other, &words_of_mount), Some(1), "{wanted}");
        assert_eq!(run("pull", &home.site.public_key, &words), Some(0));
        fs::remove_dir_all(&copy).unwrap();
    }
}

#[test]
fn a_push_beyond_the_quota_changes_nothing() {
    let home = Home::of("access.networks = [\"192.0.2.0/24\"]\nuploads.quota = \"3 MiB\"\n");
    let source = home.dir("source");
    create(&source);
    home.push(&source, "app", &[]);
    fs::write(source.join("more"), &incompressible(3 << 20)[1 << 20..]).unwrap();
    let url = home.url("app");
    let words = ["push".as_ref(), source.as_ref(), url.as_ref()];
    // After the refusal of the recipe, the client does not send the whole tree.
    let failed = home.fails(&words, 1, "the cache refused a recipe: 413");
    let text = String::from_utf8_lossy(&failed.stderr);
    assert!(text.contains("quota"), "{text}");
    let log = output(&mut home.command(&["ref".as_ref(), "log".as_ref(), "app".as_ref()]));
    assert_eq!(log.lines().count(), 2, "{log}");
    home.pull("app", &home.dir("copy"));
    assert!(!home.dir("copy").join("more").exists());
}

#[test]
fn options_of_the_other_form_are_refused() {
    let home = Home::new();
    let words = [
        "push".as_ref(),
        home.site.dir().as_ref(),
        "app".as_ref(),
        "--watch".as_ref(),
    ];
    home.fails(&words, 2, "");
    let words = [
        "push".as_ref(),
        home.site.dir().as_ref(),
        "app".as_ref(),
        "--pin=x".as_ref(),
    ];
    home.fails(&words, 2, "--pin is for store paths");
    let words = [
        "push".as_ref(),
        "http://127.0.0.1:1".as_ref(),
        "/x".as_ref(),
        "--force".as_ref(),
    ];
    home.fails(&words, 2, "--force is for directories");
}
