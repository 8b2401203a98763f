//! The web interface shows what belongs to a path, and only to clients that may read it.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;
mod support_caches;
mod support_pages;

use samovar_cache::{CacheConfig, PagesConfig, PolicyConfig, Rule};
use support::client::{Client, succeeds};
use support::{
    OwnStore, Response, ServerProcess, hash_part, key_pair, of_sample, raw, sample, sample_list,
    sample_root,
};
use support_caches::Serving;
use support_pages::{HTML, is_page, page, references, serve};
use testkit::limit;

/// Writes the build log of a derivation; returns its base name.
fn write_log(store: &OwnStore, name: &str, text: &[u8]) -> String {
    let base_name = format!("0000000000000000000000000000000a-{name}.drv");
    let dir = store.root().join("nix/var/log/nix/drvs/00");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(&base_name[2..]), text).unwrap();
    base_name
}

#[test]
fn a_build_log_has_a_page_with_colours_and_numbered_lines() {
    let store = OwnStore::new();
    let text = b"\x1b[1;32mok\x1b[0m <b>\n\x1b]0;title\x07two\xff\n";
    let base_name = write_log(&store, "tool", text);
    let server = serve(&store);
    let shown = page(&server, &format!("/build-log/{base_name}"));
    for part in [
        "<title>Build log of tool.drv",
        "<span id=\"L1\"><a href=\"#L1\">1</a><span class=\"c2 bold\">ok</span> &lt;b&gt;\n",
        "<span id=\"L2\"><a href=\"#L2\">2</a>two\u{fffd}\n",
        &format!("href=\"./../log/{base_name}\""),
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.trim_end().ends_with("</html>"), "{shown}");
    // The text is unchanged, for Nix and for browsers.
    for accept in ["Accept: */*", HTML] {
        let raw = server.request("GET", &format!("/log/{base_name}"), &[accept]);
        assert_eq!((raw.status, &*raw.body), (200, &text[..]));
        let media_type = raw.header("content-type");
        assert_eq!(media_type, Some("text/plain; charset=utf-8"));
        assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(raw.header("vary"), Some("Accept-Encoding"));
    }
    // A hash part alone leads to the build log of its path.
    let path = store.add_file("tool?+", b"tool");
    let found = server.get(&format!("/build-log/{}", hash_part(&path)));
    let location = format!("./../build-log/{}-tool%3F%2B", hash_part(&path));
    assert_eq!(
        (found.status, found.header("location")),
        (302, Some(&*location))
    );
    for absent in [
        "/build-log/0000000000000000000000000000000b-x",
        "/build-log/0000000000000000000000000000000b",
        "/build-log/x",
    ] {
        let answer = server.get(absent);
        assert_eq!(answer.status, 404);
        assert!(is_page(&answer), "{answer:?}");
    }
}

/// The page is made while it is sent, so its memory does not depend on the log.
#[test]
fn the_page_of_a_large_log_takes_little_memory() {
    let store = OwnStore::new();
    let line_count = 150_000;
    let text: String = (0..line_count)
        .map(|number| format!("line {number:0>60}\n"))
        .collect();
    let base_name = write_log(&store, "large", text.as_bytes());
    let server = serve(&store);
    // The first response warms up the threads and the allocator.
    server.get("/");
    let before = peak_len(server.pid());
    let shown = page(&server, &format!("/build-log/{base_name}"));
    assert!(shown.contains(&format!("id=\"L{line_count}\"")));
    assert!(shown.len() > text.len());
    let grown = peak_len(server.pid()) - before;
    limit::memory_at_most("memory for a build log", grown, text.len() as u64 / 2);
}

/// Returns the peak of a process's resident memory, in bytes.
fn peak_len(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    1024 * line
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
}

/// A cache with pages that allows only paths with this name.
fn only(name: &str) -> CacheConfig {
    let rule = Rule {
        names: vec![name.to_owned()],
        ..Rule::default()
    };
    CacheConfig {
        policy: PolicyConfig {
            allow: vec![rule],
            ..PolicyConfig::default()
        },
        pages: Some(PagesConfig::default()),
        ..CacheConfig::default()
    }
}

fn get(server: &Serving, target: &str) -> Response {
    raw(
        server.addr(),
        format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
    )
}

/// Returns the field of a search page that has the text to search for.
fn field(text: &str) -> String {
    format!("name=\"q\" value=\"{text}\"")
}

#[test]
fn search_finds_names_and_starts_of_hashes() {
    let store = OwnStore::new();
    let curl = store.add_file("curl-8.11.0", b"curl");
    let library = store.add_file("libcurl-8.11.0", b"the library");
    let other = store.add_file("wget-1.25", b"wget");
    let server = serve(&store);
    let link = |path: &str| format!("href=\"./path/{}\"", hash_part(path));
    for asked in ["curl", "CURL", "8.11"] {
        let shown = page(&server, &format!("/search?q={asked}"));
        let (first, second) = (shown.find(&link(&curl)), shown.find(&link(&library)));
        assert!(first.is_some() && second.is_some(), "{shown}");
        assert!(!shown.contains(&link(&other)) && shown.contains(&field(asked)));
        assert!(asked == "8.11" || first < second, "{shown}");
    }
    let hash = hash_part(&other);
    let upper = hash.to_uppercase();
    for asked in ["wget", &hash[..4], &hash[..8], &upper[..8], &upper] {
        let found = server.get(&format!("/search?q={asked}"));
        let location = format!("./path/{hash}");
        assert_eq!(
            found.header("location"),
            Some(&*location),
            "{asked}: {found:?}"
        );
    }
    for (asked, title) in [
        ("no-such-name", "No path found"),
        ("zzzzzzzz", "No path found"),
        ("00000000000000000000000000000000", "No such path"),
        ("%3Cb%3E%22", "No path found"),
    ] {
        let found = server.get(&format!("/search?q={asked}"));
        let text = found.text();
        assert_eq!(found.status, 404, "{asked}");
        assert!(is_page(&found) && text.contains(title), "{text}");
        let kept = asked.replace("%3Cb%3E%22", "&lt;b&gt;&quot;");
        assert!(text.contains(&field(&kept)), "{text}");
    }
    for asked in ["", "?q=", "?q=+", "?q=%20"] {
        let text = server.get(&format!("/search{asked}")).text();
        assert!(text.contains("Nothing to look for"), "{asked}: {text}");
    }
}

#[test]
fn results_of_a_search_are_bounded() {
    let mut command = of_sample();
    let server = ServerProcess::start(command.arg("--pages"));
    let shown = page(&server, "/search?q=lib");
    assert_eq!(shown.matches("<tr><td>").count(), 50, "{shown}");
    let more = references(&shown)
        .into_iter()
        .find(|url| url.starts_with("?q=lib&more"))
        .unwrap();
    let all = page(&server, &format!("/search{more}"));
    let count = all.matches("<tr><td>").count();
    assert!(count > 50 && count <= 1000, "{count}");
    assert!(!all.contains("More results"));
    // The first page states the total, and equal matches are sorted by the numbers in their names.
    let stated = format!("The 50 best matches for “lib”, of {count} paths.");
    assert!(shown.contains(&stated), "{stated}: {shown}");
    let names = ["lib-0-0", "lib-3-4", "lib-31-5"];
    let places: Vec<_> = names
        .iter()
        .map(|name| all.find(&format!(">{name}<")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    // Several words must all match, whatever stands between them.
    let found = page(&server, "/search?q=top+lib");
    assert!(found.contains("2 paths for “top lib”."), "{found}");
    let top = found.find(hash_part(&sample("top"))).unwrap();
    assert!(top < found.find(">lib-top.drv<").unwrap(), "{found}");
}

#[test]
fn a_search_finds_no_path_that_a_policy_hides() {
    let server = Serving::start(&sample_root(), vec![only("lib-1-*")]);
    let shown = get(&server, "/search?q=lib").text();
    assert!(
        shown.contains(">lib-1-2<") && !shown.contains(">lib-0-1<"),
        "{shown}"
    );
    let hidden = sample("no_references");
    let hash = hash_part(&hidden);
    for asked in ["lib-0-1", &hash[..8], hash, "lib-0"] {
        let found = get(&server, &format!("/search?q={asked}"));
        assert_eq!(found.status, 404, "{asked}");
        assert!(!found.text().contains("More results"));
    }
    // The number of matches is not stated: it would count hidden paths.
    let server = Serving::start(&sample_root(), vec![only("lib-?-*")]);
    let shown = get(&server, "/search?q=lib").text();
    assert!(shown.contains("of more than 50 paths."), "{shown}");
}

/// Returns the text of a snippet, unescaped.
fn snippet(page: &str, label: &str) -> String {
    let start = page.find(&format!("data-label=\"{label}\"")).unwrap();
    let text = page[start..].split("<code>").nth(1).unwrap();
    let text = text.split("</code>").next().unwrap();
    // The address is inserted by a script.
    let text = text
        .replace("<span data-address=\"url\">", "")
        .replace("</span>", "");
    text.replace("&amp;", "&").replace("&quot;", "\"")
}

/// The command on the page of a path copies it, as pasted, with the default settings of Nix.
#[test]
fn the_command_on_a_page_copies_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _public) = key_pair(dir.path(), "cache.example-1");
    let mut command = of_sample();
    command.arg("--pages").env("NIX_SECRET_KEY_FILE", secret);
    let server = ServerProcess::start(&mut command);
    let built = sample("built");
    let shown = page(&server, &format!("/path/{}", hash_part(&built)));
    let copy = snippet(&shown, "Copy to this machine");
    assert!(copy.ends_with(&built), "{copy}");
    let client = Client::new();
    let mut shell = client.command("sh");
    let config = "build-users-group =\nsandbox = false\nsubstituters =\ntrusted-public-keys =\n";
    shell.env("NIX_CONFIG", config);
    shell.env("NIX_REMOTE", support::local(&client.root()));
    let copy = copy.replace("http://ADDRESS", &server.url());
    succeeds(shell.arg("-c").arg(&copy));
    assert!(client.real(&built).exists(), "{copy}");
    // The command of the landing page is the same, with a placeholder.
    let landing = page(&server, "/");
    let general = snippet(&landing, "command, with a store path in place of PATH");
    assert_eq!(
        general
            .replace("PATH", &built)
            .replace("http://ADDRESS", &server.url()),
        copy
    );
}

#[test]
fn a_path_has_its_closure_and_its_referrers() {
    let mut command = of_sample();
    let server = ServerProcess::start(command.arg("--pages"));
    let (top, leaf) = (sample("top"), sample("no_references"));
    let hash = hash_part(&top);
    let shown = page(&server, &format!("/path/{hash}"));
    let list = format!("./../path/{hash}/closure");
    assert!(references(&shown).contains(&list), "{shown}");
    let closure = page(&server, &format!("/path/{hash}/closure"));
    let paths = sample_list("closure");
    assert_eq!(closure.matches("<tr><td>").count(), paths.len());
    for path in &paths {
        assert!(
            closure.contains(&format!("./../../path/{}", hash_part(path))),
            "{path}"
        );
    }
    let shown = page(&server, &format!("/path/{}", hash_part(&leaf)));
    let users = shown.split("Used by").nth(1).unwrap();
    let count = users.matches("<li>").count();
    assert!((1..=100).contains(&count), "{count}");
    let itself = page(
        &server,
        &format!("/path/{}", hash_part(&sample("self_reference"))),
    );
    let users = itself.split("Used by").nth(1).unwrap_or_default();
    assert!(
        !users.contains(hash_part(&sample("self_reference"))),
        "{itself}"
    );
}

#[test]
fn recently_registered_paths_are_on_the_landing_page() {
    let store = OwnStore::new();
    for number in 0..12 {
        store.add_file(&format!("package-{number}"), b"text");
    }
    let newest = store.add_file("newest", b"new");
    let server = serve(&store);
    let shown = page(&server, "/");
    let recent = shown.split("Recently registered").nth(1).unwrap();
    assert_eq!(recent.matches("<tr><td>").count(), 10, "{recent}");
    let first = recent.split("href=\"").nth(1).unwrap();
    assert!(first.contains(hash_part(&newest)), "{recent}");
    assert!(!recent.contains(">package-0<"), "{recent}");
}

#[test]
fn a_policy_hides_paths_from_lists() {
    let server = Serving::start(&sample_root(), vec![only("lib-1-*")]);
    let landing = get(&server, "/").text();
    let recent = landing
        .split("Recently registered")
        .nth(1)
        .unwrap_or_default();
    for hidden in ["lib-0-", "built", "tree"] {
        assert!(!recent.contains(&format!(">{hidden}")), "{recent}");
    }
    let shown = get(
        &server,
        &format!("/path/{}", hash_part(&sample("self_reference"))),
    );
    assert_eq!(shown.status, 200);
    let users = shown.text();
    let users = users.split("Used by").nth(1).unwrap_or_default();
    assert!(
        !users.contains(">lib-2") && !users.contains(">lib-top"),
        "{users}"
    );
    let closure = format!("/path/{}/closure", hash_part(&sample("no_references")));
    assert_eq!(get(&server, &closure).status, 404);
}
