//! A server that accepts uploads answers each URL of a path of the Nix store as it does without
//! uploads, in every form that nix-serve, nix-serve-ng, eris and harmonia have. Clients remember
//! URLs of NARs for 30 days, also while uploads are turned on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;

use support::{manifest, samovar, sample, sample_root, sample_store};
use support_uploads::{MadePath, Running, Site};
use testkit::http1::{Connection, Response};
use testkit::nix::hash_part;
use testkit::sqlite;

/// A hash part that no path has.
const ABSENT: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

/// Caches at the root and below a prefix, and one that denies every path but one.
const CACHES: &str = "pages = true\n[caches.main]\nprefix = \"/\"\n[caches.team-a]\n\
                      [caches.denied]\npolicy.deny = [{ names = [\"single*\", \"mr-*\"] }]\n";

/// URLs of the four programs. `{H}` is a hash part, `{N}` a NAR hash, `{M}` a wrong one, `{B}` a
/// base name and `{Z}` an absent hash part.
const URLS: [&str; 28] = [
    "/nix-cache-info",
    "/{H}.narinfo",
    "/{Z}.narinfo",
    "/abc.narinfo",
    "/{H}.ls",
    "/{Z}.ls",
    // eris
    "/nar/{H}.nar",
    "/nar/{Z}.nar",
    // nix-serve and nix-serve-ng
    "/nar/{H}-{N}.nar",
    "/nar/{H}-{M}.nar",
    "/nar/{H}-123.nar",
    "/nar/{H}-{N}.nar.zst",
    // harmonia
    "/nar/{N}.nar?hash={H}",
    "/nar/{N}.nar?a=b&hash={H}&c",
    "/nar/{M}.nar?hash={H}",
    "/nar/{N}.nar?hash={Z}",
    "/nar/{N}.nar?hash=x",
    "/nar/{N}.nar",
    "/nar/{N}.nar.zst?hash={H}",
    "/serve/{H}",
    "/log/{B}",
    "/log/{B}/x",
    "/log/{Z}-x.drv",
    "/closure/{Z}",
    "/debuginfo/0.debug",
    "/version",
    "/health",
    "/nowhere",
];

fn ask(server: &Running, method: &str, target: &str, fields: &[&str]) -> Response {
    let mut connection = Connection::connect(server.address);
    connection.request(method, target, fields)
}

/// A server without uploads, and one with the same configuration that accepts some.
fn pair(site: &Site, more: &str) -> (Running, Running) {
    site.configure(&sample_store(), more);
    let accepting = site.start();
    let text = fs::read_to_string(site.config()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("storage"));
    let config = site.dir().join("plain.toml");
    fs::write(&config, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let plain = Running::of(samovar().args(["serve", "--config"]).arg(config));
    (plain, accepting)
}

#[test]
fn urls_of_store_paths_are_answered_as_without_uploads() {
    let site = Site::new();
    let (plain, accepting) = pair(&site, CACHES);
    let uploaded = MadePath::new("mr-1");
    let token = site.token(&["--cache", "main"]);
    accepting.publish(&token, &uploaded);
    let mut targets = Vec::new();
    for key in ["single_file", "tree"] {
        let store_path = sample(key);
        let hash = hash_part(&store_path);
        let narinfo = plain.get(&format!("/{hash}.narinfo")).text();
        let nar_hash = narinfo
            .lines()
            .find_map(|line| line.strip_prefix("NarHash: sha256:"));
        let nar_hash = nar_hash.unwrap();
        let last = if nar_hash.ends_with('0') { "1" } else { "0" };
        let wrong = format!("{}{last}", &nar_hash[..51]);
        targets.extend(URLS.map(|url| {
            url.replace("{H}", hash)
                .replace("{N}", nar_hash)
                .replace("{M}", &wrong)
                .replace("{B}", &store_path[11..])
                .replace("{Z}", ABSENT)
        }));
    }
    for log in manifest()["logs"].as_array().unwrap() {
        targets.push(format!("/log/{}", &log["drv"].as_str().unwrap()[11..]));
    }
    let database = sample_root().join("nix/var/nix/db/db.sqlite");
    let database = format!("file:{}?mode=ro", database.display());
    let id = sqlite::run(database.as_ref(), "select drvPath from Realisations");
    targets.push(format!("/realisations/{id}!out.doi"));
    targets.push(format!("/realisations/{id}%21out.doi"));
    targets.push(format!("/realisations/{id}!dev.doi"));
    targets.push(format!(
        "/build-trace-v2/{}.drv/out.doi",
        &sample("tree")[11..]
    ));
    let mut found = 0;
    for prefix in ["", "/team-a", "/denied"] {
        for target in &targets {
            let target = format!("{prefix}{target}");
            for (method, fields) in [
                ("GET", None),
                ("HEAD", None),
                ("GET", Some("Range: bytes=5-9")),
            ] {
                let fields = fields.as_slice();
                let (expected, response) = (
                    ask(&plain, method, &target, fields),
                    ask(&accepting, method, &target, fields),
                );
                let what = format!("{method} {target} {fields:?}");
                assert_eq!(response.status, expected.status, "{what}");
                assert_eq!(
                    response.head_without_date(),
                    expected.head_without_date(),
                    "{what}"
                );
                assert!(response.body == expected.body, "{what}");
                found += usize::from(response.status == 200);
            }
        }
    }
    assert!(found > 150, "{found}");
    // The other way round, no form of a URL of the store hides an uploaded file.
    for query in ["", "?hash=x", &format!("?hash={ABSENT}"), "?x=1"] {
        let target = format!("{}{query}", uploaded.file_target());
        let response = accepting.get(&target);
        assert!(
            response.status == 200 && response.body == uploaded.file,
            "{target}"
        );
        let below = accepting.get(&format!("/upload{target}"));
        assert!(below.body == uploaded.file, "{target}");
        for prefix in ["/team-a", "/denied"] {
            let elsewhere = accepting.get(&format!("{prefix}{target}"));
            assert_eq!(elsewhere.status, 404, "{prefix}{target}");
        }
    }
}

/// A NAR that the store has under one hash part and the uploads under another one: each is hidden
/// by its own rule only.
#[test]
fn a_denied_store_path_is_not_served_as_the_file_of_an_upload() {
    let site = Site::new();
    let deny = |name: &str| format!("policy.deny = [{{ names = [{name:?}] }}]\n");
    let (plain, accepting) = pair(&site, &deny("mr-*"));
    let store_path = sample("single_file");
    let hash = hash_part(&store_path);
    let narinfo = plain.get(&format!("/{hash}.narinfo")).text();
    let nar_hash = narinfo
        .lines()
        .find_map(|line| line.strip_prefix("NarHash: sha256:"));
    let nar_hash = nar_hash.unwrap();
    let nar = plain.get(&format!("/nar/{hash}.nar")).body;
    let mut uploaded = MadePath::new("mr-1");
    (uploaded.nar, uploaded.file) = (nar.clone(), nar.clone());
    accepting.publish(&site.token(&[]), &uploaded);
    let of_store = format!("/nar/{nar_hash}.nar?hash={hash}");
    let of_upload = format!("/nar/{nar_hash}.nar");
    assert!(accepting.get(&of_store).body == nar);
    assert_eq!(accepting.get(&of_upload).status, 404);
    drop((plain, accepting));
    let (_plain, accepting) = pair(&site, &deny("single*"));
    assert!(accepting.get(&of_upload).body == nar);
    drop(accepting);
    let (_plain, accepting) = pair(&site, &deny("*"));
    for target in [&of_store, &of_upload] {
        assert_eq!(accepting.get(target).status, 404, "{target}");
    }
}
