//! A path excluded by a policy looks absent under every URL. All other paths are served as usual.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_caches;
mod support_process;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use samovar_cache::{CacheConfig, PolicyConfig, Rule};
use samovar_nix::PublicKey;

use support::client::{Client, fails, succeeds};
use support::{OwnStore, eventually, hash_part, key_pair, sample, sample_list, sample_root};
use support_caches::{Serving, key};
use support_process::{Connection, Response};

/// A hash part that no path has, and a NAR hash.
const ABSENT: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";
const NO_NAR: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

fn cache(prefix: &str, policy: PolicyConfig) -> CacheConfig {
    CacheConfig {
        path_prefix: prefix.to_owned(),
        policy,
        ..CacheConfig::default()
    }
}

fn allow(rule: Rule) -> PolicyConfig {
    PolicyConfig {
        allow: vec![rule],
        ..PolicyConfig::default()
    }
}

fn deny(rule: Rule) -> PolicyConfig {
    PolicyConfig {
        deny: vec![rule],
        ..PolicyConfig::default()
    }
}

fn roots(roots: &[&Path]) -> Rule {
    Rule {
        roots: roots.iter().map(|&root| root.to_owned()).collect(),
        ..Rule::default()
    }
}

fn names(names: &[&str]) -> Rule {
    Rule {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        ..Rule::default()
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// A request: method, target below the prefix, header fields, body.
type Asked = (&'static str, String, Vec<&'static str>, String);

/// Builds requests of every kind about a path.
fn questions(path: &str, nar_hash: &str) -> Vec<Asked> {
    let (hash, name) = (hash_part(path), base_name(path));
    let urls = [
        format!("/{hash}.narinfo"),
        format!("/{hash}.ls"),
        format!("/nar/{hash}-{nar_hash}.nar"),
        format!("/nar/{hash}.nar"),
        format!("/nar/{nar_hash}.nar?hash={hash}"),
        format!("/nar/{hash}-{NO_NAR}.nar"),
        format!("/nar/{hash}-123.nar"),
        format!("/closure/{hash}"),
        format!("/log/{name}"),
        format!("/{hash}.narinfo?x"),
        format!("/serve/{hash}/"),
    ];
    let mut all = Vec::new();
    for url in urls {
        for method in ["GET", "HEAD", "POST"] {
            all.push((method, url.clone(), Vec::new(), String::new()));
        }
        for range in [
            "Range: bytes=0-3",
            "Range: bytes=-1",
            "Range: bytes=99999999-",
        ] {
            all.push(("GET", url.clone(), vec![range], String::new()));
        }
        all.push((
            "GET",
            url,
            vec!["Accept-Encoding: bzip2, gzip, zstd"],
            String::new(),
        ));
    }
    for line in [hash, name, path] {
        all.push((
            "POST",
            "/narinfos".to_owned(),
            Vec::new(),
            format!("{line}\n"),
        ));
    }
    all
}

fn ask(connection: &mut Connection, prefix: &str, (method, url, fields, body): &Asked) -> Response {
    let mut fields = fields.clone();
    let length = format!("Content-Length: {}", body.len());
    fields.push(&length);
    let mut request = format!("{method} {prefix}{url} HTTP/1.1\r\nHost: cache\r\n");
    for field in fields {
        request += field;
        request += "\r\n";
    }
    connection.send(format!("{request}\r\n{body}").as_bytes());
    connection.response(*method == "HEAD")
}

/// Reduces a response to its status, its head without the date, and its body; decodes a chunked
/// body.
fn say(reply: &Response) -> (u16, Vec<String>, String) {
    let head = reply
        .head_without_date()
        .iter()
        .map(|&line| line.to_owned())
        .collect();
    (reply.status, head, reply.text())
}

/// Checks that responses about `path` are the same as those about an absent path.
#[track_caller]
fn check_hidden(connection: &mut Connection, prefix: &str, path: &str, nar_hash: &str) {
    let absent = format!("/nix/store/{ABSENT}-{}", &base_name(path)[33..]);
    let pairs = questions(path, nar_hash)
        .into_iter()
        .zip(questions(&absent, nar_hash));
    for (question, other) in pairs {
        // The second response may come from caches, filled by the first request or through the open
        // cache.
        for _ in 0..2 {
            let reply = say(&ask(connection, prefix, &question));
            let mut expected = say(&ask(connection, prefix, &other));
            expected.2 = expected.2.replace(ABSENT, hash_part(path));
            assert_eq!(reply, expected, "{prefix} {question:?}");
        }
    }
}

fn nar_hash(connection: &mut Connection, path: &str) -> String {
    let narinfo = connection
        .get(&format!("/{}.narinfo", hash_part(path)))
        .text();
    let line = narinfo
        .lines()
        .find(|line| line.starts_with("NarHash: sha256:"));
    line.unwrap()["NarHash: sha256:".len()..].to_owned()
}

#[test]
fn a_denied_path_is_answered_as_an_absent_one_at_every_url() {
    let (allowed, denied) = (sample("self_reference"), sample("signed"));
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    symlink(&allowed, &root).unwrap();
    let trusted = PublicKey::parse(&sample("signed_by")).unwrap();
    let by_signature = Rule {
        signed_by: vec![trusted],
        ..Rule::default()
    };
    let old = Rule {
        min_age: Some(Duration::from_secs(10)),
        ..Rule::default()
    };
    let serving = Serving::start(
        &sample_root(),
        vec![
            CacheConfig::default(),
            cache("/roots", allow(roots(&[&root]))),
            cache("/names", allow(names(&["lib-*"]))),
            cache(
                "/built",
                allow(Rule {
                    ultimate: true,
                    ..Rule::default()
                }),
            ),
            cache("/deny", deny(names(&["sig?ed", "*.drv", "big", "lib-top"]))),
            cache("/unsigned", deny(by_signature)),
            cache("/young", deny(old)),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    eventually("roots are followed", || serving.site().knows_policies());
    for path in [
        &denied,
        &sample("big"),
        &sample("built_drv"),
        &sample("top"),
    ] {
        let nar_hash = nar_hash(&mut connection, path);
        // Request everything through the open cache, to fill the in-memory caches.
        for question in questions(path, &nar_hash) {
            ask(&mut connection, "", &question);
        }
        for prefix in ["/roots", "/names", "/built", "/deny", "/unsigned", "/young"] {
            let of_this = match prefix {
                // This policy allows some of the paths.
                "/names" => *path != sample("top"),
                "/unsigned" => *path == denied,
                // The log of this path may be read, because its output was built here.
                "/built" => *path != sample("built_drv"),
                _ => true,
            };
            if of_this {
                check_hidden(&mut connection, prefix, path, &nar_hash);
            }
        }
    }
    // Allowed paths are served: otherwise the checks above would prove nothing.
    let hash = hash_part(&allowed);
    let nar_hash = nar_hash(&mut connection, &allowed);
    for prefix in ["/roots", "/names", "/deny", "/unsigned"] {
        for url in [
            format!("/{hash}.narinfo"),
            format!("/{hash}.ls"),
            format!("/nar/{hash}-{nar_hash}.nar"),
            format!("/nar/{nar_hash}.nar?hash={hash}"),
        ] {
            for _ in 0..3 {
                assert_eq!(
                    connection.get(&format!("{prefix}{url}")).status,
                    200,
                    "{prefix}{url}"
                );
            }
        }
    }
}

#[test]
fn logs_and_realisations_are_readable_if_their_paths_are() {
    let serving = Serving::start(
        &sample_root(),
        vec![
            CacheConfig::default(),
            cache("/built", allow(names(&["built", "content-addressed"]))),
            cache(
                "/other",
                deny(names(&["built", "content-addressed", "*.drv"])),
            ),
            cache("/drvs", allow(names(&["*.drv"]))),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    let mut get = |url: &str| connection.get(url);
    for path in [sample("built"), sample("built_drv")] {
        let url = format!("/log/{}", base_name(&path));
        let log = get(&url);
        assert_eq!(log.status, 200);
        assert_eq!(get(&format!("/built{url}")).body, log.body);
        let missing = say(&get(&format!("/other/log/{ABSENT}-x")));
        assert_eq!(missing.0, 404);
        assert_eq!(say(&get(&format!("/other{url}"))), missing);
    }
    let url = format!("/log/{}", base_name(&sample("built_drv")));
    assert_eq!(get(&format!("/drvs{url}")).status, 200);
    let url = format!("/log/{}", base_name(&sample("built")));
    assert_eq!(get(&format!("/drvs{url}")).status, 404);
    let database = sample_root().join("nix/var/nix/db/db.sqlite");
    let database = format!("file:{}?mode=ro", database.display());
    let sql = "select drvPath from Realisations";
    let hash = testkit::sqlite::run(database.as_ref(), sql);
    let url = format!("/realisations/{hash}!out.doi");
    let realisation = get(&url);
    assert_eq!(realisation.status, 200);
    assert_eq!(get(&format!("/built{url}")).body, realisation.body);
    let missing = say(&get(&format!("/other/realisations/{hash}!dev.doi")));
    assert_eq!(missing.0, 404);
    assert_eq!(say(&get(&format!("/other{url}"))), missing);
}

#[test]
fn a_closure_with_a_denied_path_is_not_served_and_lists_say_absent() {
    let (top, all) = (sample("top"), sample_list("closure"));
    let inner = all.iter().find(|path| **path != top).unwrap();
    let name = &base_name(inner)[33..];
    let serving = Serving::start(
        &sample_root(),
        vec![CacheConfig::default(), cache("/a", deny(names(&[name])))],
    );
    let mut connection = Connection::connect(serving.addr());
    let url = format!("/closure/{}", hash_part(&top));
    assert_eq!(connection.get(&url).status, 200);
    let reply = connection.get(&format!("/a{url}"));
    assert_eq!(reply.status, 422);
    assert!(!reply.text().contains(hash_part(inner)), "{}", reply.text());
    assert_eq!(
        connection
            .get(&format!("/a/closure/{}", hash_part(inner)))
            .status,
        404
    );
    let list = all.join("\n");
    let asked = ("POST", "/narinfos".to_owned(), Vec::new(), list);
    let text = ask(&mut connection, "/a", &asked).text();
    assert!(
        text.contains(&format!("absent {}\n", hash_part(inner))),
        "{text}"
    );
    assert!(
        text.ends_with(&format!("end {} 1 0\n", all.len() - 1)),
        "{text}"
    );
    assert!(!text.contains(&format!("StorePath: {inner}\n")));
}

/// Profiles change under constant requests: a path that a root leads to is served within a second,
/// and a path that it no longer leads to is absent after a second.
#[test]
fn changed_roots_take_effect_soon() {
    let store = OwnStore::new();
    let (one, other) = (store.add_file("one", b"1"), store.add_file("other", b"2"));
    let dir = tempfile::tempdir().unwrap();
    let profiles = dir.path().join("profiles");
    std::fs::create_dir(&profiles).unwrap();
    let (link, profile) = (profiles.join("team-1-link"), dir.path().join("profile"));
    symlink(&one, &link).unwrap();
    symlink(&profiles, &profile).unwrap();
    let serving = Serving::start(
        store.root(),
        vec![
            cache("/allowed", allow(roots(&[&profile]))),
            cache("/denied", deny(roots(&[&profiles]))),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    let mut status = |cache: &str, path: &str| {
        connection
            .get(&format!("/{cache}/{}.narinfo", hash_part(path)))
            .status
    };
    let soon = |what: &str, condition: &mut dyn FnMut() -> bool| {
        let start = Instant::now();
        eventually(what, condition);
        println!("{what}: {} ms", start.elapsed().as_millis());
    };
    soon("the start", &mut || status("allowed", &one) == 200);
    assert_eq!(status("allowed", &other), 404);
    soon("the other cache", &mut || status("denied", &one) == 404);
    soon("the start", &mut || status("denied", &other) == 200);
    // Replace the link atomically, as Nix does.
    let new = dir.path().join("new");
    symlink(format!("{other}/bin"), &new).unwrap();
    std::fs::rename(&new, &link).unwrap();
    soon("a new target", &mut || status("allowed", &other) == 200);
    assert_eq!(status("allowed", &one), 404);
    soon("not denied any more", &mut || status("denied", &one) == 200);
    assert_eq!(status("denied", &other), 404);
    symlink(&one, profiles.join("team-2-link")).unwrap();
    soon("a second link", &mut || status("allowed", &one) == 200);
    assert_eq!(status("allowed", &other), 200);
    std::fs::remove_file(&link).unwrap();
    soon("a link less", &mut || status("allowed", &other) == 404);
    assert_eq!(status("allowed", &one), 200);
    store.run("nix-store", &["--delete", &one]);
    soon("collected", &mut || status("allowed", &one) == 404);
    let again = store.add_file("one", b"1");
    assert_eq!(again, one);
    soon("added again", &mut || status("allowed", &one) == 200);
}

/// Until the roots are resolved, requests get 503, so that no response reveals whether a path
/// exists.
#[test]
fn requests_get_503_while_the_closures_of_roots_are_unknown() {
    let store = OwnStore::new();
    let path = store.add_file("one", b"1");
    let dir = tempfile::tempdir().unwrap();
    let (secret, none) = (dir.path().join("secret"), dir.path().join("none"));
    let serving = Serving::start(
        store.root(),
        vec![
            CacheConfig::default(),
            cache("/a", deny(roots(&[&secret]))),
            cache("/b", allow(roots(&[&none]))),
        ],
    );
    let mut connection = Connection::connect(serving.addr());
    let hash = nar_hash(&mut connection, &path);
    for path in [&path, &format!("/nix/store/{ABSENT}-one")] {
        for question in questions(path, &hash) {
            let (method, url, ..) = &question;
            if *method != "POST" && !url.starts_with("/serve") {
                let status = ask(&mut connection, "/a", &question).status;
                assert_eq!(status, 503, "{question:?}");
            }
        }
    }
    let asked = (
        "POST",
        "/narinfos".to_owned(),
        Vec::new(),
        hash_part(&path).to_owned(),
    );
    let list = ask(&mut connection, "/a", &asked).text();
    assert!(
        list.contains("failed ") && list.ends_with("end 0 0 1\n"),
        "{list}"
    );
    // A rule that allows paths may name a profile that does not exist yet.
    let url = format!("{}.narinfo", hash_part(&path));
    eventually("it leads nowhere", || {
        connection.get(&format!("/b/{url}")).status == 404
    });
    symlink(&path, &none).unwrap();
    eventually("it leads there", || {
        connection.get(&format!("/b/{url}")).status == 200
    });
    std::fs::create_dir(&secret).unwrap();
    eventually("a folder without links", || {
        connection.get(&format!("/a/{url}")).status == 200
    });
    std::fs::remove_dir(&secret).unwrap();
    eventually("gone again", || {
        connection.get(&format!("/a/{url}")).status == 503
    });
    std::fs::write(&secret, "no link").unwrap();
    assert_eq!(connection.get(&format!("/a/{url}")).status, 503);
    assert_eq!(connection.get(&format!("/{url}")).status, 200);
}

/// Rules on the age of a path also apply to a narinfo that is cached in memory.
#[test]
fn age_limits_apply_to_narinfos_in_memory() {
    let store = OwnStore::new();
    let age = |seconds| Some(Duration::from_secs(seconds));
    let young = Rule {
        max_age: age(5),
        ..Rule::default()
    };
    let old = Rule {
        min_age: age(5),
        ..Rule::default()
    };
    let serving = Serving::start(
        store.root(),
        vec![cache("/young", allow(young)), cache("/old", allow(old))],
    );
    let mut connection = Connection::connect(serving.addr());
    // Add the path last, so that it is young when the first requests are sent.
    let adding = Instant::now();
    let path = store.add_file("one", b"1");
    let hash = hash_part(&path);
    let urls = [format!("{hash}.narinfo"), format!("nar/{hash}.nar")];
    let mut all = |cache: &str, status: u16| {
        urls.iter()
            .all(|url| connection.get(&format!("/{cache}/{url}")).status == status)
    };
    assert!(all("young", 200) && all("old", 404));
    eventually("it was young", || all("young", 404));
    // The registration time has a resolution of a second.
    let took = adding.elapsed();
    assert!(took >= Duration::from_secs(4), "{took:?}");
    eventually("it is old", || all("old", 200));
}

/// A prefix matches whole path segments only, and each cache has its own priority.
#[test]
fn a_prefix_ends_at_a_slash_and_each_cache_has_its_own_nix_cache_info() {
    let priority = |prefix: &str, priority| CacheConfig {
        path_prefix: prefix.to_owned(),
        priority,
        ..CacheConfig::default()
    };
    let serving = Serving::start(
        &sample_root(),
        vec![priority("", 1), priority("/a", 2), priority("/a/b", 3)],
    );
    let mut connection = Connection::connect(serving.addr());
    for (prefix, expected) in [("", 1), ("/a", 2), ("/a/b", 3)] {
        let info = connection.get(&format!("{prefix}/nix-cache-info")).text();
        assert!(
            info.ends_with(&format!("Priority: {expected}\n")),
            "{prefix} {info}"
        );
    }
    for nowhere in [
        "/ab/nix-cache-info",
        "/a/bc/nix-cache-info",
        "/a%2fb/nix-cache-info",
        "/a",
    ] {
        assert_eq!(connection.get(nowhere).status, 404, "{nowhere}");
    }
}

/// Two teams with real Nix clients: one may read the closure of a profile, the other the paths that
/// a certain key has signed.
#[test]
fn two_clients_get_the_paths_of_their_caches() {
    let (top, signed) = (sample("top"), sample("signed"));
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("profile");
    symlink(&top, &profile).unwrap();
    let (secret, public) = key_pair(dir.path(), "team-1");
    let by_signature = Rule {
        signed_by: vec![PublicKey::parse(&sample("signed_by")).unwrap()],
        ..Rule::default()
    };
    let team = |prefix, policy| {
        let mut config = cache(prefix, policy);
        config.signing.keys = vec![key(&secret)];
        config
    };
    let serving = Serving::start(
        &sample_root(),
        vec![
            team("/team-a", allow(roots(&[&profile]))),
            team("/team-b", allow(by_signature)),
        ],
    );
    eventually("roots are followed", || serving.site().knows_policies());
    let url = |team: &str| format!("http://{}/{team}", serving.addr());
    for (team, path, other) in [("team-a", &top, &signed), ("team-b", &signed, &top)] {
        let client = Client::new();
        let copy = |path: &String| client.copy(&url(team), &public, std::slice::from_ref(path));
        succeeds(&mut copy(path));
        assert!(client.closure(path).contains(path));
        let said = fails(&mut copy(other));
        let absent = other.replace(hash_part(other), ABSENT);
        assert_eq!(said.replace(other, &absent), fails(&mut copy(&absent)));
        assert!(!client.real(other).exists());
    }
}
