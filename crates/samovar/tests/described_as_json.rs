//! A cache describes itself and each of its paths as JSON, with the same contents as
//! `nix-cache-info` and narinfos, to the same clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_upstreams;

use std::fs;

use samovar_nix::StoreDir;
use samovar_nix::narinfo::NarInfo;
use serde_json::{Value, json};
use support::{sample, sample_store, user};
use support_uploads::{MadePath, Site};
use support_upstreams::{Act, FileCache, Relay, Upstream};
use testkit::http1::{Connection, Response};
use testkit::nix::{hash_part, key_pair};

/// Returns the JSON that has the contents of a narinfo.
fn expected(narinfo: &Response) -> Value {
    assert_eq!(narinfo.header("Content-Type"), Some("text/x-nix-narinfo"));
    let narinfo = NarInfo::parse(&StoreDir::default(), &narinfo.body).unwrap();
    let name = |path: &samovar_nix::StorePath| path.base_name().to_owned();
    let signature = |text: String| {
        let (key, sig) = text.split_once(':').unwrap();
        json!({ "keyName": key, "sig": sig })
    };
    let signatures = narinfo.signatures.iter().map(ToString::to_string);
    let mut expected = json!({
        "version": 3,
        "path": name(&narinfo.store_path),
        "storeDir": "/nix/store",
        "url": narinfo.url,
        "compression": narinfo.compression.name(),
        "narHash": narinfo.nar_hash.to_hash().sri(),
        "narSize": narinfo.nar_size,
        "references": narinfo.references.iter().map(name).collect::<Vec<_>>(),
        "deriver": narinfo.deriver.as_ref().map(name),
        "signatures": signatures.map(signature).collect::<Vec<_>>(),
        "ca": null,
        "registrationTime": null,
        "ultimate": false,
    });
    if let Some(address) = narinfo.content_address {
        expected["ca"] = json!({ "method": "nar", "hash": address.hash().sri() });
    }
    if let (Some(hash), Some(size)) = (narinfo.file_hash, narinfo.file_size) {
        expected["downloadHash"] = hash.sri().into();
        expected["downloadSize"] = size.into();
    }
    expected
}

/// Requests a path in both forms and compares them. Returns the JSON.
#[track_caller]
fn check(connection: &mut Connection, target: &str) -> Value {
    let json = connection.get_and_head(&format!("{target}?json"), &[]);
    assert_eq!(json.status, 200, "{target}: {}", json.text());
    assert_eq!(json.header("Content-Type"), Some("application/json"));
    let text = connection.get_and_head(target, &[]);
    assert_eq!(json.json(), expected(&text), "{target}");
    for query in ["?json=1", "?json=", "?a=b&json"] {
        let again = connection.get(&format!("{target}{query}"));
        assert!(again.body == json.body, "{target}{query}");
    }
    for query in ["?", "?jsonp", "?a=json"] {
        let again = connection.get(&format!("{target}{query}"));
        assert_eq!(again.header("Content-Type"), Some("text/x-nix-narinfo"));
        assert!(again.body == text.body, "{target}{query}");
    }
    json.json()
}

fn target(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

#[test]
fn store_paths_and_uploaded_paths_are_described() {
    let site = Site::new();
    site.configure(
        &sample_store(),
        "[caches.main]\nprefix = \"/\"\n[caches.packed]\ncompression = \"zstd\"\n\
         [caches.other]\npolicy.deny = [{ names = [\"*\"] }]\n",
    );
    let server = site.start();
    let mut connection = Connection::connect(server.address);
    for key in ["single_file", "tree", "self_reference"] {
        let path = sample(key);
        for prefix in ["", "/packed"] {
            let json = check(&mut connection, &format!("{prefix}{}", target(&path)));
            assert_eq!(json["path"], path["/nix/store/".len()..]);
            assert_eq!(json["signatures"][0]["keyName"], "cache-1");
        }
    }
    let single = sample("single_file");
    let denied = connection.get(&format!("/other{}?json", target(&single)));
    assert_eq!(denied.status, 404);
    let absent = format!("/{}.narinfo", "z".repeat(32));
    for target in [&absent, "/x.narinfo"] {
        let (text, json) = (
            connection.get(target),
            connection.get(&format!("{target}?json")),
        );
        assert_eq!(json.status, 404, "{target}");
        assert_eq!(json.head_without_date(), text.head_without_date());
    }

    let low = MadePath::new("low").compressed("xz");
    let path = MadePath::new("top").referring_to(&low.store_path);
    let token = site.token(&["--cache", "main"]);
    server.publish(&token, &low);
    server.publish(&token, &path);
    for path in [&low, &path] {
        let json = check(&mut connection, &path.target());
        assert_eq!(json["downloadSize"], path.file.len());
        assert_eq!(json["url"], path.url());
        let below = connection.get(&format!("/upload{}?json", path.target()));
        assert_eq!(below.json(), json);
        assert_eq!(
            connection
                .get(&format!("/packed{}?json", path.target()))
                .status,
            404
        );
    }
    let own = connection.get(&format!("/upload{}?json", target(&single)));
    assert_eq!(own.status, 404);
}

#[test]
fn paths_of_upstreams_are_described() {
    let cache = FileCache::new("zstd");
    let upstream = Upstream::start(&cache.root(), |_| Act::Serve);
    let (dir, key) = (tempfile::tempdir().unwrap(), &cache.public_key);
    let (secret, _) = key_pair(dir.path(), "ours-1");
    let relay = Relay::with(&format!(
        "secret-key-files = [{secret:?}]\n[upstreams.up]\nurl = {:?}\npublic-keys = [{key:?}]\n\
         resign = \"only\"\n",
        upstream.url()
    ));
    let mut connection = Connection::connect(relay.address);
    let json = check(&mut connection, &target(&cache.top));
    assert_eq!(json["signatures"][0]["keyName"], "ours-1");
    assert_eq!(json["signatures"].as_array().unwrap().len(), 1);
    assert_eq!(json["compression"], "zstd");
    let nar = connection.get(&format!("/{}", json["url"].as_str().unwrap()));
    assert!(nar.body == cache.nar(&cache.top));
    upstream.follow(|_| Act::Close);
    check(&mut connection, &target(&cache.top));
    let absent = connection.get(&format!("/{}.narinfo?json", "z".repeat(32)));
    assert_eq!(absent.status, 404);
    assert!(absent.header("Samovar-Miss").is_some());
}

#[test]
fn a_private_cache_describes_nothing_to_others() {
    let site = Site::new();
    let users = site.dir().join("users");
    fs::write(&users, user("ada", "secret")).unwrap();
    site.configure(&sample_store(), &format!("access.users-file = {users:?}\n"));
    let server = site.start();
    let path = format!("{}?json", target(&sample("tree")));
    let mut connection = Connection::connect(server.address);
    let login = "Authorization: Basic YWRhOnNlY3JldA==";
    for target in [
        &*path,
        "/nix-cache-info",
        "/cache-info.json",
        "/public-key",
        "/v1/public-key",
        "/v1/version",
    ] {
        let refused = connection.get(target);
        assert_eq!(refused.status, 401, "{target}");
        assert!(!refused.text().contains(&site.public_key), "{target}");
        // The first time on a worker, which verifies the password, and then on an I/O thread.
        for _ in 0..2 {
            let answer = connection.get_and_head(target, &[login]);
            assert_eq!(answer.status, 200, "{target}");
            assert_eq!(answer.header("Cache-Control"), Some("private"), "{target}");
        }
    }
}

#[test]
fn a_cache_describes_itself() {
    let cache = FileCache::new("none");
    let upstream = Upstream::start(&cache.root(), |_| Act::Serve);
    let site = Site::new();
    let key = &cache.public_key;
    site.configure_empty(&format!(
        "[upstreams.up]\nurl = {:?}\npublic-keys = [{key:?}]\n[caches.main]\nprefix = \"/\"\n\
         upstreams = []\n[caches.packed]\ncompression = \"zstd\"\npriority = 7\n\
         pages = false\n[caches.silent]\nsigning.sign = \"none\"\nupstreams = []\n",
        upstream.url()
    ));
    let server = site.start();
    let mut connection = Connection::connect(server.address);
    let own = &site.public_key;
    for (prefix, priority, compression, own, theirs) in [
        ("", 30, "none", vec![own], vec![]),
        ("/packed", 7, "zstd", vec![own], vec![key]),
        ("/silent", 30, "none", vec![], vec![]),
    ] {
        let about = connection.get_and_head(&format!("{prefix}/cache-info.json"), &[]);
        assert_eq!(about.status, 200, "{prefix}");
        assert_eq!(about.header("Content-Type"), Some("application/json"));
        let expected = json!({
            "version": 1,
            "storeDir": "/nix/store",
            "wantMassQuery": true,
            "priority": priority,
            "compression": compression,
            "publicKeys": own,
            "upstreamPublicKeys": theirs,
            "uploadUrl": "upload",
            "pushProtocol": 1,
        });
        assert_eq!(about.json(), expected, "{prefix}");
        let keys: String = own
            .iter()
            .chain(&theirs)
            .map(|key| format!("{key}\n"))
            .collect();
        for name in ["/public-key", "/v1/public-key"] {
            let text = connection.get_and_head(&format!("{prefix}{name}"), &[]);
            assert_eq!(text.header("Content-Type"), Some("text/plain"));
            match &*keys {
                "" => assert_eq!(text.status, 404),
                keys => assert_eq!((text.status, &*text.text()), (200, keys), "{prefix}{name}"),
            }
        }
        let version = connection.get_and_head(&format!("{prefix}/v1/version"), &[]);
        let expected = format!("{}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((version.status, version.text()), (200, expected));
        // The reference to the uploads is relative to the document.
        let upload = connection.get(&format!("{prefix}/upload/nix-cache-info"));
        assert_eq!(upload.status, 200);
    }
    for other in [
        "/upload/cache-info.json",
        "/cache-info.json/",
        "/v1/",
        "/packed/v1/public-key/x",
    ] {
        assert_eq!(connection.get(other).status, 404, "{other}");
    }
    let put = server.put(&site.token(&["--cache", "main"]), "/public-key", "x");
    assert_eq!(put.status, 404);
}

#[test]
fn a_cache_without_uploads_states_no_upload_url() {
    let relay = Relay::with("");
    let about = relay.get("/cache-info.json").json();
    assert_eq!(about["uploadUrl"], Value::Null);
    assert_eq!(about["pushProtocol"], Value::Null);
}
