//! Every response reflects the store at the time of the request; no cached response is stale.

mod support;

use support::{OwnStore, ServerProcess, eventually, hash_part};
use testkit::http1::Connection;

const WRONG_HASH: &str = "Incorrect NAR hash. Maybe the path has been recreated.\n";

fn narinfo_url(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

#[test]
fn an_added_path_is_found_by_the_next_request() {
    let store = OwnStore::new();
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    for number in 0..50 {
        let path = store.add_file(&format!("file-{number}"), format!("{number}").as_bytes());
        let answer = connection.get(&narinfo_url(&path));
        assert_eq!(answer.status, 200, "{number}: {path}");
        assert!(
            answer
                .text()
                .starts_with(&format!("StorePath: {path}\nURL: "))
        );
    }
}

/// The first requests are for absent paths. That they are absent must not be cached once they
/// exist.
#[test]
fn a_404_is_not_cached() {
    let (store, elsewhere) = (OwnStore::new(), OwnStore::new());
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    for number in 0..10 {
        let (name, content) = (format!("file-{number}"), format!("later {number}"));
        // The path gets the same name in this store.
        let path = elsewhere.add_file(&name, content.as_bytes());
        let urls = [
            narinfo_url(&path),
            format!("/nar/{}.nar", hash_part(&path)),
            format!("/{}.ls", hash_part(&path)),
        ];
        for url in urls.iter().chain(&urls) {
            let answer = connection.get(url);
            assert_eq!(
                (answer.status, &*answer.text()),
                (404, "No such path.\n"),
                "{url}"
            );
        }
        assert_eq!(store.add_file(&name, content.as_bytes()), path);
        for url in &urls {
            assert_eq!(connection.get(url).status, 200, "{url}");
        }
    }
}

#[test]
fn a_deleted_path_is_absent_at_once() {
    let store = OwnStore::new();
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    let kept = store.add_file("kept", b"kept");
    for number in 0..10 {
        let path = store.add_file(&format!("file-{number}"), b"short-lived");
        let nar_url = server.nar_url(&path);
        let listing_url = format!("/{}.ls", hash_part(&path));
        for url in [&narinfo_url(&path), &nar_url, &listing_url] {
            // Request twice: the second response comes from a cache.
            assert_eq!(connection.get(url).status, 200, "{url}");
            assert_eq!(connection.get(url).status, 200, "{url}");
        }
        store.run("nix-store", &["--delete", &path]);
        for url in [&narinfo_url(&path), &nar_url, &listing_url] {
            for method in ["HEAD", "GET"] {
                let answer = connection.request(method, url, &[]);
                assert_eq!(answer.status, 404, "{method} {url}");
            }
            assert_eq!(connection.get(url).text(), "No such path.\n");
        }
        assert_eq!(connection.get(&narinfo_url(&kept)).status, 200);
    }
}

/// A path is built again with other contents, as by a build that is not reproducible. The new
/// narinfo is served at once, and requests with the old NAR hash, which clients have cached, fail
/// with a clear message.
#[test]
fn a_recreated_path_has_its_new_hash_at_once() {
    let store = OwnStore::new();
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    let path = store.add_file("again", b"first");
    let mut old_url = server.nar_url(&path);
    assert_eq!(connection.get(&narinfo_url(&path)).status, 200);
    for round in 0..5 {
        store.run("nix-store", &["--delete", &path]);
        // The contents have the same length as before, so only the hash differs.
        std::fs::write(store.real(&path), format!("next{round}")).unwrap();
        store.register(&path);
        let narinfo = connection.get(&narinfo_url(&path));
        assert_eq!(narinfo.status, 200);
        let new_url = server.nar_url(&path);
        assert!(narinfo.text().contains(&new_url[1..]));
        assert_ne!(new_url, old_url);
        let old = connection.get(&old_url);
        assert_eq!((old.status, &*old.text()), (404, WRONG_HASH));
        let new = connection.get(&new_url);
        assert_eq!(new.status, 200);
        let content = format!("next{round}").into_bytes();
        assert!(new.body.windows(content.len()).any(|part| part == content));
        old_url = new_url;
    }
}

/// Signatures are added later. This changes the metadata, but no files.
#[test]
fn an_added_signature_is_served_at_once() {
    let store = OwnStore::new();
    let (secret, public) = support::key_pair(store.root(), "later-1");
    let server = ServerProcess::of_store(store.root());
    let path = store.add_file("signed-later", b"content");
    assert!(!server.narinfo(&path).text().contains("Sig: "));
    let key_file = secret.to_str().unwrap();
    store.run("nix", &["store", "sign", "--key-file", key_file, &path]);
    let narinfo = server.narinfo(&path).text();
    let key_name = public.split(':').next().unwrap();
    assert!(
        narinfo.contains(&format!("\nSig: {key_name}:")),
        "{narinfo}"
    );
}

/// A backup is restored, or a store is moved into place, while the server runs. Only this change
/// may take a moment to be noticed: checking the file name on each request would cost more than the
/// response.
#[test]
fn another_database_is_noticed() {
    let (store, other) = (OwnStore::new(), OwnStore::new());
    let before = store.add_file("before", b"before");
    let after = other.add_file("after", b"after");
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    assert_eq!(connection.get(&narinfo_url(&before)).status, 200);
    assert_eq!(connection.get(&narinfo_url(&after)).status, 404);
    let db = store.root().join("nix/var/nix/db");
    std::fs::rename(&db, store.root().join("old")).unwrap();
    std::fs::rename(other.root().join("nix/var/nix/db"), &db).unwrap();
    for (path, status) in [(before, 404), (after, 200)] {
        let url = narinfo_url(&path);
        eventually(&path, || connection.get(&url).status == status);
    }
}
