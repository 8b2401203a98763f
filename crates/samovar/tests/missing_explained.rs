//! A 404 for a path says why the path is missing, in one word for scripts and in words for people.
//! A path that a policy hides is not told apart from an absent one. The words for damaged paths
//! without upstreams are tested in `right_bytes.rs` of nix-serve, those for upstreams in
//! `upstreams_down.rs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_upstreams;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use support::{sample, sample_store};
use support_uploads::{MadePath, Site};
use support_upstreams::{Act, FileCache, Relay, Upstream, field};
use testkit::eventually;
use testkit::http1::{Connection, Response};
use testkit::nix::hash_part;

const HTML: &str = "Accept: text/html";

/// A hash part that no path has.
const ABSENT: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

#[track_caller]
fn assert_is_absent(response: &Response) {
    assert_eq!(response.status, 404);
    assert_eq!(response.header("Samovar-Miss"), Some("absent"));
    assert!(
        response.text().contains("No such path"),
        "{}",
        response.text()
    );
}

#[test]
fn absent_and_hidden_paths_have_the_same_word() {
    let site = Site::new();
    site.configure(
        &sample_store(),
        "[caches.main]\nprefix = \"/\"\n[caches.hidden]\npolicy.deny = [{ names = [\"*\"] }]\n",
    );
    let server = site.start();
    let uploaded = MadePath::new("uploaded");
    let token = site.token(&["--cache", "hidden"]);
    for (target, body) in [
        (uploaded.file_target(), uploaded.file.clone()),
        (uploaded.target(), uploaded.narinfo().into_bytes()),
    ] {
        let kept = server.put(&token, &format!("/hidden{target}"), body);
        assert_eq!(kept.status, 200, "{}", kept.text());
    }
    let mut connection = Connection::connect(server.address);
    let path = sample("tree");
    let tree = hash_part(&path);
    for url in [
        "/{}.narinfo",
        "/{}.ls",
        "/nar/{}.nar",
        "/closure/{}",
        "/path/{}",
    ] {
        let url = |prefix: &str, hash: &str| format!("{prefix}{}", url.replace("{}", hash));
        let absent = connection.get_and_head(&url("/hidden", ABSENT), &[HTML]);
        assert_is_absent(&absent);
        assert_is_absent(&connection.get_and_head(&url("", ABSENT), &[HTML]));
        for hidden in [tree, uploaded.hash_part()] {
            let hidden = connection.get_and_head(&url("/hidden", hidden), &[HTML]);
            assert_eq!(hidden.head_without_date(), absent.head_without_date());
            assert!(hidden.body == absent.body);
        }
        let found = connection.get(&url("", tree));
        assert_eq!((found.status, found.header("Samovar-Miss")), (200, None));
    }
    for target in ["/abc.narinfo", &format!("/upload/{ABSENT}.narinfo")] {
        assert_is_absent(&connection.get_and_head(target, &[]));
    }
    // A URL that is not that of a path has no such word.
    for target in ["/nowhere", "/search/x"] {
        let response = connection.get(target);
        assert_eq!(
            (response.status, response.header("Samovar-Miss")),
            (404, None)
        );
    }
    let replaced = connection.get_and_head(&format!("/nar/{tree}-{}.nar", "0".repeat(52)), &[]);
    assert_eq!(replaced.status, 404);
    assert_eq!(replaced.header("Samovar-Miss"), Some("replaced"));
    assert!(replaced.text().contains("recreated"), "{}", replaced.text());
}

#[test]
fn the_page_of_a_path_leads_to_the_answers_of_the_upstreams() {
    let cache = FileCache::new("none");
    let upstream = Upstream::start(&cache.root(), |_| Act::Serve);
    let relay = Relay::start(&upstream.url(), &cache.public_key);
    let mut connection = Connection::connect(relay.address);
    for hash in [ABSENT, hash_part(&cache.top)] {
        let page = connection.get_and_head(&format!("/path/{hash}"), &[HTML]);
        assert_is_absent(&page);
        let link = format!("href=\"./../{hash}.narinfo\"");
        assert!(page.text().contains(&link), "{}", page.text());
    }
    let narinfo = connection.get(&format!("/{ABSENT}.narinfo"));
    assert_is_absent(&narinfo);
    assert!(
        narinfo.text().contains("\nup has no such path\n"),
        "{}",
        narinfo.text()
    );
    let found = connection.get(&format!("/{}.narinfo", hash_part(&cache.top)));
    assert_eq!(found.status, 200);
    let page = connection.get(&format!("/path/{}", "e".repeat(32)));
    assert_is_absent(&page);
    assert!(!page.text().contains(".narinfo\""), "{}", page.text());
}

/// What the server itself has is said, whatever the upstreams say.
#[test]
fn damaged_and_replaced_paths_have_their_words_with_upstreams() {
    let cache = FileCache::new("none");
    let upstream = Upstream::start(&cache.root(), |_| Act::Serve);
    let relay = Relay::start(&upstream.url(), &cache.public_key);
    let path = relay.store.add_file("own", b"right");
    let hash = hash_part(&path);
    let narinfo = relay.narinfo(&path).0.text();
    let nar = format!("/{}", field(&narinfo, "URL"));
    let other = format!("/nar/{hash}-{}.nar", "0".repeat(52));
    let replaced = relay.get(&other);
    assert_eq!(replaced.status, 404);
    assert_eq!(replaced.header("Samovar-Miss"), Some("replaced"));
    damage(&relay, &path);
    // The status is 503 until a second check has confirmed the damage.
    eventually("the path is known to be damaged", || {
        Connection::connect(relay.address)
            .try_request("GET", &nar, &[])
            .is_ok_and(|response| response.status == 404)
    });
    for target in [format!("/{hash}.narinfo"), nar] {
        let damaged = Connection::connect(relay.address).get_and_head(&target, &[]);
        assert_eq!(damaged.status, 404);
        assert_eq!(damaged.header("Samovar-Miss"), Some("damaged"));
        let text = damaged.text();
        assert!(text.contains("are damaged on the server"), "{text}");
        assert!(text.ends_with("\nup has no such path\n"), "{text}");
    }
}

/// Changes the only file of a path.
fn damage(relay: &Relay, path: &str) {
    let real = relay.store.real(path);
    let mut permissions = fs::metadata(&real).unwrap().permissions();
    permissions.set_mode(0o644);
    fs::set_permissions(&real, permissions).unwrap();
    fs::write(&real, "wrong").unwrap();
}

#[test]
fn a_path_that_was_deleted_says_when() {
    let site = Site::new();
    site.configure(
        &sample_store(),
        "[caches.main]\nprefix = \"/\"\n[caches.policy]\n\
         policy.deny = [{ names = [\"no-such\"] }]\n",
    );
    let server = site.start();
    let mut connection = Connection::connect(server.address);
    for (cache, prefix, word) in [("main", "", "collected"), ("policy", "/policy", "absent")] {
        let uploaded = MadePath::new("uploaded");
        let token = site.token(&["--cache", cache, "--name", cache]);
        for (target, body) in [
            (uploaded.file_target(), uploaded.file.clone()),
            (uploaded.target(), uploaded.narinfo().into_bytes()),
        ] {
            let kept = server.put(&token, &format!("{prefix}{target}"), body);
            assert_eq!(kept.status, 200, "{}", kept.text());
        }
        let target = format!("{prefix}{}", uploaded.target());
        assert_eq!(connection.get(&target).status, 200);
        let mut delete = support::samovar();
        delete.args(["cache", "delete", "--yes", "--config"]);
        testkit::process::output(delete.arg(site.config()).arg(cache));
        for _ in 0..2 {
            let missing = connection.get(&target);
            assert_eq!(missing.status, 404);
            assert_eq!(missing.header("Samovar-Miss"), Some(word));
            let text = missing.text();
            assert!(text.starts_with("No such path.\n"), "{text}");
            assert_eq!(
                text.contains("The uploaded path was deleted on 20"),
                word == "collected",
                "{text}"
            );
        }
        // Another upload of the path ends this.
        let again = MadePath::new("uploaded");
        assert_eq!(again.target(), uploaded.target());
        let token = site.token(&["--cache", cache, "--name", "again"]);
        for (target, body) in [
            (again.file_target(), again.file.clone()),
            (again.target(), again.narinfo().into_bytes()),
        ] {
            server.put(&token, &format!("{prefix}{target}"), body);
        }
        assert_eq!(connection.get(&target).status, 200);
    }
}
