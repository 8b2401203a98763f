//! Responses match the store byte for byte, and are 404 only if the store has no such path.

use samovar_nix::{PathInfo, Signature};

use super::{TestServer, key};
use crate::{CacheConfig, NarCacheDirectory, Sign, Signing, SiteConfig, Stored};

fn server() -> TestServer {
    TestServer::new(CacheConfig::default())
}

fn signed(sign: Sign, stored: Stored) -> TestServer {
    TestServer::new(CacheConfig {
        signing: Signing {
            keys: vec![key()],
            sign,
            stored,
            ..Signing::default()
        },
        ..CacheConfig::default()
    })
}

fn nar_url(info: &PathInfo) -> String {
    let nar_hash = String::from_utf8(info.nar_hash.nixbase32().to_vec()).unwrap();
    format!("/nar/{}-{nar_hash}.nar", info.path.hash_part())
}

fn contents(len: usize) -> Vec<u8> {
    (0..251).cycle().take(len).collect()
}

#[test]
fn a_narinfo_from_memory_equals_the_first_one() {
    for server in [server(), signed(Sign::All, Stored::Replace)] {
        let info = server.store.add_file("hello", b"hello\n");
        let first = server.narinfo(&info);
        assert_eq!(first.status, 200);
        assert!(
            first.head.contains("\nContent-Type: text/x-nix-narinfo"),
            "{}",
            first.head
        );
        assert_eq!(server.narinfo(&info), first);
        let url = format!("/{}.narinfo", info.path.hash_part());
        let head = server.request("HEAD", &url, "").unwrap();
        assert_eq!((head.head, head.body.len()), (first.head, 0));
    }
}

#[test]
fn a_narinfo_is_renewed_with_its_row() {
    let server = signed(Sign::All, Stored::Replace);
    let info = server.store.add_file("hello", b"hello\n");
    let first = server.narinfo(&info);
    server.store.change(&info.path, |info| info.nar_size += 8);
    let second = server.narinfo(&info);
    let size = format!("NarSize: {}\n", info.nar_size + 8);
    assert!(second.text().contains(&size), "{}", second.text());
    assert_ne!(second.text(), first.text());
}

#[test]
fn the_configured_keys_sign_the_configured_paths() {
    let foreign = Signature::parse(&format!("other-1:{}", "A".repeat(86) + "==")).unwrap();
    let dir = samovar_nix::StoreDir::default();
    let cases = [
        (Sign::All, Stored::Replace, true, false),
        (Sign::All, Stored::Keep, true, true),
        (Sign::None, Stored::Replace, false, true),
        (Sign::Ultimate, Stored::Replace, false, true),
    ];
    for (sign, stored, has_own, has_foreign) in cases {
        let server = signed(sign.clone(), stored);
        let info = server.store.add_file("hello", b"hello\n");
        let (path, foreign) = (&info.path, foreign.clone());
        server
            .store
            .change(path, |info| info.signatures = vec![foreign]);
        let answer = server.narinfo(&info);
        let own = key().sign(info.fingerprint(&dir).as_bytes()).to_string();
        assert_eq!(answer.text().contains(&own), has_own, "{sign:?} {stored:?}");
        let is_foreign = answer.text().contains("Sig: other-1:");
        assert_eq!(is_foreign, has_foreign, "{sign:?} {stored:?}");
        server.store.change(path, |info| info.ultimate = true);
        let is_signed = server.narinfo(&info).text().contains(&own);
        assert_eq!(is_signed, sign != Sign::None, "{sign:?} {stored:?}");
    }
}

/// One NAR is short enough to be sent from memory; the other is sent from files.
#[test]
fn a_nar_is_sent_whole_or_in_ranges() {
    let server = server();
    for len in [10, 200_000] {
        let info = server
            .store
            .add_file(&format!("file-{len}"), &contents(len));
        let (nar, url) = (server.store.nar(&info.path), nar_url(&info));
        for _ in 0..2 {
            let whole = server.get(&url);
            assert_eq!((whole.status, &whole.body), (200, &nar));
            assert!(
                whole.head.contains("\nAccept-Ranges: bytes"),
                "{}",
                whole.head
            );
        }
        let range = server
            .request("GET", &url, "Range: bytes=5-20\r\n")
            .unwrap();
        assert_eq!((range.status, &*range.body), (206, &nar[5..21]));
        let content_range = format!("\nContent-Range: bytes 5-20/{}", nar.len());
        assert!(range.head.contains(&content_range), "{}", range.head);
        let beyond = format!("Range: bytes={}-\r\n", nar.len());
        assert_eq!(server.request("GET", &url, &beyond).unwrap().status, 416);
        let head = server
            .request("HEAD", &url, "Range: bytes=5-20\r\n")
            .unwrap();
        assert_eq!(head.status, 200);
        assert!(
            head.head
                .contains(&format!("\nContent-Length: {}", nar.len()))
        );
    }
}

#[test]
fn a_nar_of_another_hash_is_404_with_the_words_of_nix_serve() {
    let server = server();
    let info = server.store.add_file("hello", b"hello\n");
    let other = server.store.add_file("other", b"other\n");
    let hash = String::from_utf8(other.nar_hash.nixbase32().to_vec()).unwrap();
    for hash in [hash.as_str(), "123"] {
        let answer = server.get(&format!("/nar/{}-{hash}.nar", info.path.hash_part()));
        let words = "Incorrect NAR hash. Maybe the path has been recreated.\n";
        assert_eq!((answer.status, answer.text()), (404, words));
    }
}

#[test]
fn a_path_is_404_only_if_the_store_says_so() {
    let server = server();
    let info = server.store.add_file("hello", b"hello\n");
    let hash_part = info.path.hash_part();
    let urls = [
        format!("/{hash_part}.narinfo"),
        format!("/{hash_part}.ls"),
        format!("/closure/{hash_part}"),
        nar_url(&info),
    ];
    for url in &urls {
        assert_eq!(server.get(url).status, 200, "{url}");
        let absent = url.replace(&hash_part.to_string(), &"1".repeat(32));
        let answer = server.get(&absent);
        assert_eq!(
            (answer.status, answer.text()),
            (404, "No such path.\n"),
            "{url}"
        );
    }
    server.store.fail(true);
    for url in &urls {
        let answer = server.get(url);
        assert_eq!(answer.status, 503, "{url}");
        assert!(answer.head.contains("\nRetry-After: 1"), "{}", answer.head);
    }
    server.store.fail(false);
    assert_eq!(server.get(&urls[0]).status, 200);
}

#[test]
fn files_that_differ_from_their_registration_are_never_sent_whole() {
    for len in [10, 2_000_000] {
        let server = server();
        let info = server.store.add_file("hello", &contents(len));
        let file = server.store.file(&info.path);
        std::fs::write(&file, vec![7; len]).unwrap();
        let answer = server.request("GET", &nar_url(&info), "");
        // A small NAR is hashed before it is sent, a large one while it is sent.
        assert!(answer.is_none_or(|answer| answer.status == 503));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(server.get(&nar_url(&info)).status, 503);
    }
}

#[test]
fn a_nar_of_many_small_files_is_sent_from_the_nar_cache_the_second_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with_site(SiteConfig {
        nar_cache: Some(NarCacheDirectory::open(dir.path(), Some(64 << 20)).unwrap()),
        ..SiteConfig::default()
    });
    let names: Vec<String> = (0..80).map(|number| number.to_string()).collect();
    let file = contents(10_000);
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), &*file)).collect();
    let info = server.store.add_directory("tree", &files);
    let nar = server.store.nar(&info.path);
    assert_eq!(server.get(&nar_url(&info)).body, nar);
    // The second response must not read the files again.
    std::fs::remove_dir_all(server.store.file(&info.path)).unwrap();
    assert_eq!(server.get(&nar_url(&info)).body, nar);
    let range = server.request("GET", &nar_url(&info), "Range: bytes=300000-\r\n");
    assert_eq!(range.unwrap().body, nar[300_000..]);
}
