//! `samovar doctor` asks each upstream, and reports each fault with a fix. A login for an upstream
//! that cannot be read is refused by doctor, `--check-config` and the start.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;
mod support_users;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use support::samovar;
use support_upstreams::{Act, FileCache, Seen, Upstream};
use support_users::has_users;
use testkit::closed_port::ClosedPort;
use testkit::nix::local;

/// The cache that all tests of this file read. The store of its builder is that of the server.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("none"));

/// Runs a command of samovar with a configuration of which these are the last lines. Returns what
/// it has printed, and whether it has succeeded.
fn run(words: &[&str], head: &str, tables: &str) -> (String, bool) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("samovar.toml");
    let store = local(CACHE.builder.root());
    let text = format!("store = {store:?}\nadmin.listen = []\n{head}\n{tables}");
    fs::write(&config, text).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = samovar();
    command.args(words).arg("--config").arg(&config);
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (text, output.status.success())
}

/// Runs `samovar doctor` with one upstream. Returns the findings about it, each with its fix.
#[track_caller]
fn findings(url: &str, key: &str, more: &str) -> Vec<String> {
    let tables = format!("[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n{more}");
    let (text, _) = run(&["doctor"], "listen = \"127.0.0.1:0\"", &tables);
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if !line.get(8..).unwrap_or_default().starts_with("upstream: ") {
            continue;
        }
        let fix = lines.get(index + 1);
        let fix = fix.filter(|fix| fix.starts_with("        fix: "));
        assert_eq!(fix.is_none(), line.starts_with("ok "), "{text}");
        findings.push([*line, fix.copied().unwrap_or_default()].join("\n"));
    }
    findings
}

/// Checks that this is the last finding about an upstream that follows the rule. `words` are parts
/// of the finding, the first one its beginning.
#[track_caller]
fn ends_with(words: &[&str], rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) {
    let upstream = Upstream::start(&CACHE.root(), rule);
    let found = findings(&upstream.url(), &CACHE.public_key, "");
    let last = found.last().unwrap();
    assert!(last.starts_with(words[0]), "{found:?}");
    for word in words {
        assert!(last.contains(word), "{word}: {found:?}");
    }
}

fn info(fields: &str, body: &str) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    let (fields, body) = (fields.to_owned(), body.to_owned());
    move |seen| match seen.target.ends_with("/nix-cache-info") {
        true => Act::Answer("200 OK", fields.clone(), body.clone().into_bytes()),
        false => Act::Serve,
    }
}

fn status(line: &'static str) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    move |_| Act::Answer(line, String::new(), Vec::new())
}

#[test]
fn an_upstream_that_works_is_ok() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let found = findings(&upstream.url(), &CACHE.public_key, "");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("ok      upstream: \"up\" answers after "),
        "{found:?}"
    );
    assert!(found[1].contains("can be passed on"), "{found:?}");
    // One that has none of the paths is no fault.
    ends_with(
        &[
            "ok ",
            "the keys of \"up\" were not checked",
            "of 4 paths of the store",
        ],
        |seen| match seen.is_narinfo() {
            true => Act::Answer("404 Not Found", String::new(), Vec::new()),
            false => Act::Serve,
        },
    );
}

#[test]
fn faults_of_an_upstream_have_fixes() {
    let closed = ClosedPort::new();
    let url = format!("http://{}", closed.addr());
    let found = findings(&url, &CACHE.public_key, "");
    assert!(
        found[0].starts_with("error   upstream: \"up\" does not answer: "),
        "{found:?}"
    );
    ends_with(&["error ", "\"up\" does not answer: "], |_| Act::Close);
    ends_with(
        &["error ", "it answers 401", "set netrc-file"],
        status("401 Unauthorized"),
    );
    ends_with(
        &["error ", "answers 500 for nix-cache-info"],
        status("500 Internal Server Error"),
    );
    ends_with(
        &[
            "error ",
            "has paths of /gnu/store, but this server has those of /nix/store",
        ],
        info("", "StoreDir: /gnu/store\n"),
    );
    let other = FileCache::new("none");
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let found = findings(
        &upstream.url(),
        &other.public_key.replace("up-1", "up-2"),
        "",
    );
    let last = found.last().unwrap();
    assert!(last.starts_with("error "), "{found:?}");
    let fault = "cannot be passed on: its narinfo has no signature by a trusted key, only by: \
                 [\"up-1\"]";
    assert!(last.contains(fault), "{found:?}");
    assert!(last.contains("fix: correct public-keys"), "{found:?}");
}

#[test]
fn what_may_be_intended_is_a_warning() {
    let warnings = |rule: Box<dyn Fn(&Seen) -> Act + Send + Sync>| {
        let upstream = Upstream::start(&CACHE.root(), rule);
        let mut found = findings(&upstream.url(), &CACHE.public_key, "");
        found.retain(|finding| finding.starts_with("warning "));
        found
    };
    let found = warnings(Box::new(info("", "<html>\n")));
    assert!(
        found[0].contains("may be no binary cache: its nix-cache-info states no StoreDir"),
        "{found:?}"
    );
    let found = warnings(Box::new(status("404 Not Found")));
    assert!(
        found[0].contains("may be no binary cache: it answers 404"),
        "{found:?}"
    );
    let at = |seconds: i64| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let at = i64::try_from(now.as_secs()).unwrap() + seconds;
        let at = time::OffsetDateTime::from_unix_timestamp(at).unwrap();
        let (day, month) = (at.weekday().to_string(), at.month().to_string());
        format!(
            "Date: {}, {:02} {} {} {:02}:{:02}:{:02} GMT\r\n",
            &day[..3],
            at.day(),
            &month[..3],
            at.year(),
            at.hour(),
            at.minute(),
            at.second()
        )
    };
    let right = "StoreDir: /nix/store\n";
    let found = warnings(Box::new(info(&at(3630), right)));
    assert!(
        found[0].contains("is 60 minutes ahead of that of this machine"),
        "{found:?}"
    );
    let found = warnings(Box::new(info(&at(-3630), right)));
    assert!(found[0].contains("is 60 minutes behind"), "{found:?}");
    // A proxy has kept the response for an hour.
    let kept = format!("{}Age: 3600\r\n", at(-3600));
    assert_eq!(warnings(Box::new(info(&kept, right))), [""; 0]);
    assert_eq!(warnings(Box::new(info(&at(240), right))), [""; 0]);
}

#[test]
fn a_server_that_is_its_own_upstream_is_found() {
    let port = testkit::free_port();
    let key = &CACHE.public_key;
    let expected =
        "error   upstream: \"up\" is this server itself\n        fix: remove the upstream";
    for (listen, host) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
    ] {
        let head = format!("listen = \"{listen}:{port}\"");
        let tables =
            format!("[upstreams.up]\nurl = \"http://{host}:{port}\"\npublic-keys = [{key:?}]\n");
        let (text, _) = run(&["doctor"], &head, &tables);
        assert!(text.contains(expected), "{listen} {host}: {text}");
    }
    let head = "listen = \"127.0.0.1:0\"\n\
                public-url = \"https://cache.example.org/\"";
    let tables =
        format!("[upstreams.up]\nurl = \"https://cache.example.org\"\npublic-keys = [{key:?}]\n");
    let (text, _) = run(&["doctor"], head, &tables);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_login_that_cannot_be_read_is_refused() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let dir = tempfile::tempdir().unwrap();
    let netrc = dir.path().join("netrc");
    let (url, key) = (upstream.url(), &CACHE.public_key);
    let tables =
        format!("[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\nnetrc-file = {netrc:?}\n");
    let head = "listen = \"127.0.0.1:0\"";
    let refused = |head: &str, reason: &str| {
        for words in [&["doctor"][..], &["serve", "--check-config"], &["serve"]] {
            let (text, is_ok) = run(words, head, &tables);
            let fault = format!("the upstream \"up\": netrc-file {netrc:?} {reason}");
            assert!(text.contains(&fault) && !is_ok, "{words:?}: {text}");
        }
    };
    refused(head, "cannot be read: No such file or directory");
    fs::write(&netrc, "machine other.example login ci password secret\n").unwrap();
    refused(head, "has no entry for the host \"127.0.0.1\"");
    fs::write(&netrc, "machine 127.0.0.1 login ci password secret\n").unwrap();
    let (text, _) = run(&["doctor"], head, &tables);
    assert!(text.contains("\"up\" answers after"), "{text}");
    let seen = upstream.seen();
    assert!(
        seen.iter()
            .all(|seen| seen.header("Authorization").is_some())
    );
    assert!(run(&["serve", "--check-config"], head, &tables).1);
    // The server reads it as its user, at the start, too.
    if has_users() {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&netrc, fs::Permissions::from_mode(0o600)).unwrap();
        let head = format!("{head}\nuser = \"nobody\"");
        refused(&head, "cannot be read: Permission denied");
    }
}
